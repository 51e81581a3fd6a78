"""Cooperative scheduling on the event loop: long work yields to others after every SLICE_S."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, Final, TypeVar

from egressproxy.model.work import BlockingWork, Work, at_once

T = TypeVar("T")

#: Seconds that work keeps the loop before it yields. The part that runs then ends later: make parts small.
SLICE_S: Final = 0.002


def run(work: Work[T], *, is_long: bool) -> T | Coroutine[Any, Any, T]:
    """The result of this work; where it is long, a coroutine that does the work `in_turns`."""
    return in_turns(work) if is_long else at_once(work)


async def in_turns(work: BlockingWork[T]) -> T:
    """The result of this work, in as many turns of the loop as it takes; what may block runs in a thread. Raises what
    it raises. In a task or under a `Driver`.
    """
    ends = perf_counter() + SLICE_S
    try:
        while True:
            try:
                blocking = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if blocking is not None:
                await asyncio.get_running_loop().run_in_executor(None, blocking)
            elif perf_counter() < ends:
                continue
            else:
                await next_turn()
            ends = perf_counter() + SLICE_S
    finally:
        work.close()


class TimeSlice:
    """The time that a coroutine keeps the loop: where it could yield, it looks whether that `is_over`."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_S

    @property
    def is_over(self) -> bool:
        """Whether it is the turn of others: await `next`."""
        return perf_counter() >= self._ends

    async def next(self) -> None:
        """Yield to others, and begin another slice."""
        await next_turn()
        self._ends = perf_counter() + SLICE_S


async def next_turn() -> None:
    """Wait for the next turn of the loop. Not `sleep(0)`, which a `Driver` takes for a pause."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(_come, turn)
    await turn


def _come(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # the coroutine that waits for it may have been cancelled
        turn.set_result(None)
