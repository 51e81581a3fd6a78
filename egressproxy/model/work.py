"""Work in parts: a generator that yields None wherever others may have their turn, and returns its result.

It yields often: between two of these places little is done, whatever a peer has sent. Who runs it (`net.cooperative`)
looks at the time. What is short is done at once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Work: TypeAlias = Generator[None, None, T]


def at_once(work: Work[T]) -> T:
    """The result of this work, in this turn of the loop."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
