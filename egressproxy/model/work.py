"""Cooperative scheduling: long work is a generator (`Work`) that yields wherever other work may run.

It yields often: a bounded amount of work lies between two yields, for any input. `at_once` runs it to its end;
`net.cooperative.in_turns` lets the event loop run in between. A second form of a function that is Work has a name in
-ing: `body` and `writing`, `loads` and `loading`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Work: TypeAlias = Generator[None, None, T]
#: Work that also yields blocking functions (read files, run a user's code); the runner calls each before it resumes.
BlockingWork: TypeAlias = Generator[Callable[[], object] | None, None, T]


def at_once(work: BlockingWork[T]) -> T:
    """The result of this work, run without a pause. Raises the errors of the work."""
    while True:
        try:
            blocking = next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if blocking is not None:
            blocking()
