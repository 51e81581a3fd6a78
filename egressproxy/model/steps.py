"""Long work in small steps: a generator that yields wherever something else may have a turn.

It yields None, or what may block (reads files, runs code of others): that is to be called before it goes on, best where
nobody waits. Its return value is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

__all__ = ["Cooperative", "finished"]

T = TypeVar("T")

Cooperative = Generator[Callable[[], object] | None, None, T]


def finished(steps: Cooperative[T]) -> T:
    """All steps at once; gives the result. Raises what a step raises."""
    while True:
        try:
            blocking = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if blocking is not None:
            blocking()
