"""The longest step of a filter with a body: what it does before others have their turn, in units of this machine.

A unit is a fixed part of a fixed piece of work, some two milliseconds: a large JSON text is read and freed, since that
is what most steps do, and memory is slower beside others than additions are. Only the time that this thread itself has
the processor counts, and of several tries the best one does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final
from unittest import mock

from egressproxy.errors import GatewayError
from egressproxy.filters.chain import run_to_end
from egressproxy.filters.filter_step import FilterAnswered
from egressproxy.filters.testing import FilterHarness, exchange, response
from egressproxy.model.exchange import Exchange
from egressproxy.model.work import Work

#: The piece of work, and the units in it.
_PIECE: Final = b"[" + b",".join([b'{"id":1,"params":{"name":"a"}}'] * 60_000) + b"]"
_UNITS: Final = 14
#: What a connection reads at once.
READ = 64 * 1024


@cache
def unit(number: int) -> float:
    """Seconds of a unit, measured for each try anew."""
    best = 1.0
    gc.disable()
    for _ in range(5):
        began = time.thread_time()
        json.loads(_PIECE)
        best = min(best, time.thread_time() - began)
    gc.enable()
    return best / _UNITS


def least(measure: Callable[[], float], most: float) -> float:
    """Units of the best of eight tries, since others use the processor's caches; the first below `most` is the last."""
    found = measure() / unit(0)
    for number in range(1, 8):
        if found >= most:
            found = min(found, measure() / unit(number))
    return found


def pieces(body: bytes) -> list[bytes]:
    return [body[at : at + READ] for at in range(0, len(body), READ)]


def longest_step(
    harness: FilterHarness, body: Sequence[bytes], media_type: str, *, path: str, is_answer: bool, most: float
) -> float:
    """Units of the longest step with this body, in these pieces."""
    return least(lambda: asyncio.run(_longest(harness, body, media_type, path, is_answer)), most)


def longest_part(begin: Callable[[], Work[object]], most: float) -> float:
    """The same of work in parts."""
    return least(lambda: _part(begin()), most)


def _part(work: Work[object]) -> float:
    longest = 0.0
    while True:
        began = time.thread_time()
        try:
            next(work)
        except StopIteration:
            return max(longest, time.thread_time() - began)
        longest = max(longest, time.thread_time() - began)


async def _longest(harness: FilterHarness, body: Sequence[bytes], media_type: str, path: str, is_answer: bool) -> float:
    taken = [0.0]
    is_on = False
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        if is_on:
            taken.append(time.thread_time() - began)

    x = exchange(
        "POST", f"https://api.example.com{path}", {"content-type": "application/json" if is_answer else media_type}
    )
    x.request.body = 1
    chain = harness._chain
    asked = b'{"model":"m","messages":[{"role":"user","content":"mail a@example.com"}]}'
    with mock.patch.object(asyncio.Handle, "_run", timed):
        gc.disable()
        try:
            if chain.request_headers is not None:
                await run_to_end(chain.request_headers, x)
            if is_answer:
                await _fed(x, chain.request_body, [asked])
                x.response = response(200, {"content-type": media_type})
                x.status = 200
                for steps in chain.response_phases:
                    await run_to_end(steps, x)
            head = x.response if is_answer else x.request
            head.body = sum(map(len, body))
            await asyncio.sleep(0)
            is_on = True
            await _fed(x, chain.response_body if is_answer else chain.request_body, body)
            await asyncio.sleep(0)
        except (GatewayError, FilterAnswered):
            await asyncio.sleep(0)  # what the filter refuses is as good as what it lets pass
        finally:
            is_on = False
            gc.enable()
    return max(taken)


async def _fed(x: Exchange, plan: Any, body: Sequence[bytes]) -> None:
    """Feed the pieces, each in a turn of its own."""
    chain = plan.begin(x) if plan is not None else None
    for number, piece in enumerate(body if chain is not None else (), 1):
        await asyncio.sleep(0)
        outcome = chain.feed(x, piece, number == len(body))
        if not isinstance(outcome, bytes):
            await outcome
