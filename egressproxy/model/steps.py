"""Cooperative: long work as a generator that returns its result, and yields wherever other work may run: None, or a
function that may block (reads files, runs a user's code). Call that before going on, best in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

Cooperative = Generator[Callable[[], object] | None, None, T]


def finished(steps: Cooperative[T]) -> T:
    """Run all steps without pause; returns the result. Raises what a step raises."""
    while True:
        try:
            blocking = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if blocking is not None:
            blocking()
