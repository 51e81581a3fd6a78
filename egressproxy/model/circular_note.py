"""CircularNote: a filter's note of an exchange with a reference cycle that has to be broken explicitly."""

from __future__ import annotations

from abc import ABC, abstractmethod


class CircularNote(ABC):
    """A note in a reference cycle, which reference counting alone would never free."""

    __slots__ = ()

    @abstractmethod
    def release(self) -> None:
        """Break the cycle. Called once, at the end of the exchange."""
