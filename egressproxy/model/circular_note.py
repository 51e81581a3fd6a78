"""CircularNote: what a filter keeps of an exchange, and has to let go of by name."""

from __future__ import annotations


class CircularNote:
    """A note that leads to something which leads back to it: no count of references would ever free either."""

    __slots__ = ()

    def release(self) -> None:
        """Break the circle. Called once, when the exchange is over."""
        raise NotImplementedError
