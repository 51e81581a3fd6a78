"""Cooperative scheduling: long work is a generator (`Work`) that yields wherever other work may run.

It yields often: between two yields little is done, whatever a peer has sent. `at_once` runs it to its end;
`net.cooperative.in_turns` lets the event loop serve others in between. Where a function has a second form that is Work,
the name of that ends in -ing: `body` and `writing`, `loads` and `loading`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Work: TypeAlias = Generator[None, None, T]
#: Work that yields functions, too, which may block (read files, run a user's code): each is called before it goes on.
BlockingWork: TypeAlias = Generator[Callable[[], object] | None, None, T]


def at_once(work: BlockingWork[T]) -> T:
    """The result of this work, without a pause. Raises what it raises."""
    while True:
        try:
            blocking = next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if blocking is not None:
            blocking()
