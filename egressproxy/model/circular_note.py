"""CircularNote: what a filter keeps of an exchange, and has to let go of by name."""

from __future__ import annotations

from abc import ABC, abstractmethod


class CircularNote(ABC):
    """A note that leads to an object which leads back to the note: counting references would never free either."""

    __slots__ = ()

    @abstractmethod
    def release(self) -> None:
        """Break the circle. Called once, when the exchange is over."""
