"""Cooperative work: what may take long gives all others their turn in between, by the time that it has taken."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final, TypeVar

from egressproxy.model.work import Work

T = TypeVar("T")

#: How long one piece of work keeps the loop, in seconds, and the part of it longer that is under way then.
SLICE_S: Final = 0.002


async def in_turns(work: Work[T]) -> T:
    """The result of this work, in as many turns of the loop as it takes. In a task or under a `Driver`."""
    ends = perf_counter() + SLICE_S
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if perf_counter() >= ends:
            await next_turn()
            ends = perf_counter() + SLICE_S


class Turns:
    """The same for work that waits for others, too, and so is a coroutine: it asks wherever it could yield."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_S

    @property
    def is_over(self) -> bool:
        """Whether it is the turn of others: await `next`."""
        return perf_counter() >= self._ends

    async def next(self) -> None:
        """Let the others have their turn."""
        await next_turn()
        self._ends = perf_counter() + SLICE_S


async def next_turn() -> None:
    """Wait for the next turn of the loop. Not `sleep(0)`, which a `Driver` takes for a pause."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(_come, turn)
    await turn


def _come(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # who waits for it may have been cancelled
        turn.set_result(None)
