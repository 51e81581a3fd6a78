"""Who waits for a promise goes on where it is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from egressproxy.net.driver import Driver
from egressproxy.net.inline_future import InlineFuture


async def test_a_coroutine_on_a_driver_goes_on_at_once():
    promise: InlineFuture[int] = InlineFuture()
    got: list[int] = []

    async def life() -> None:
        got.append(await promise)

    driver = Driver()
    driver.start(life())
    promise.set_result(3)
    assert got == [3]
    assert not driver.is_busy


async def test_a_task_may_wait_for_one_too():
    promise: InlineFuture[int] = InlineFuture()
    asyncio.get_running_loop().call_soon(promise.set_result, 3)
    assert await promise == 3
    assert await promise == 3


async def test_an_error_is_raised_where_it_is_waited_for():
    promise: InlineFuture[int] = InlineFuture()
    asyncio.get_running_loop().call_soon(promise.set_exception, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await promise
    assert isinstance(promise.exception(), ValueError)


async def test_a_driver_that_throws_cancels_what_it_waits_for():
    promise: InlineFuture[int] = InlineFuture()
    caught: list[BaseException] = []

    async def life() -> None:
        try:
            await promise
        except ValueError as error:
            caught.append(error)

    driver = Driver()
    driver.start(life())
    driver.throw(ValueError("no"))
    assert promise.cancelled()
    assert len(caught) == 1
    assert not promise.cancel(), "it is done"
    with pytest.raises(asyncio.CancelledError):
        promise.result()
    with pytest.raises(asyncio.CancelledError):
        promise.exception()


class Fault(ValueError):
    """One that can be watched."""


async def test_an_error_is_gone_with_the_coroutine_on_a_driver_that_has_waited_for_it():
    promise: InlineFuture[int] = InlineFuture()

    async def wait(waited: list[InlineFuture[int]]) -> None:
        with suppress(Fault):
            await waited.pop()

    made = Fault("no")
    seen = weakref.ref(made)
    gc.disable()
    try:
        driver = Driver()
        driver.start(wait([promise]))
        promise.set_exception(made)
        del made, promise
        assert not driver.is_busy
        assert seen() is None
    finally:
        gc.enable()
