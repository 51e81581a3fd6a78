"""Work in turns of the loop: who runs in between, what blocks, what fails, and what is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from egressproxy.model.work import BlockingWork, Work
from egressproxy.net import cooperative as module
from egressproxy.net.cooperative import in_turns


async def test_the_loop_has_turns_between_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        again[0] = asyncio.get_running_loop().call_soon(turn)

    def work() -> Work[int]:
        for _ in range(50):
            yield None
        return turns

    again = [asyncio.get_running_loop().call_soon(turn)]
    assert await in_turns(work()) >= 49
    again[0].cancel()


async def test_what_blocks_runs_in_another_thread():
    threads: list[int] = []

    def work() -> BlockingWork[str]:
        threads.append(threading.get_ident())
        yield lambda: threads.append(threading.get_ident())
        threads.append(threading.get_ident())
        return "made"

    assert await in_turns(work()) == "made"
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False, True]


async def test_a_step_that_fails_ends_it():
    def work() -> Work[None]:
        yield None
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_turns(work())


async def test_steps_that_nobody_waits_for_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    closed = asyncio.Event()

    def work() -> Work[None]:
        try:
            while True:
                yield None
        finally:
            closed.set()

    task = asyncio.create_task(in_turns(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
