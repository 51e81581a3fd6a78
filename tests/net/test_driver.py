"""The driver: one coroutine, resumed by callbacks and futures, ended once."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from hypothesis import given, settings
from hypothesis.strategies import lists, sampled_from

from egressproxy.errors import ClientGone
from egressproxy.net.driver import PAUSE, Driver, driven
from tests.support.properties import examples


def test_a_coroutine_that_does_not_wait_ends_within_start():
    seen = []

    async def life() -> None:
        seen.append(1)

    driver = Driver(lambda: seen.append(2))
    driver.start(life())
    assert seen == [1, 2]
    assert not driver.is_busy


def test_a_pause_ends_with_resume_and_a_spurious_one_does_no_harm():
    state = {"is_there": False, "looks": 0}

    async def life() -> None:
        while not state["is_there"]:
            state["looks"] += 1
            await PAUSE

    driver = Driver()
    driver.start(life())
    driver.resume()
    driver.resume()
    assert driver.is_busy
    state["is_there"] = True
    driver.resume()
    assert not driver.is_busy
    assert state["looks"] == 3


def test_a_driver_drives_one_at_a_time():
    async def life() -> None:
        await PAUSE

    driver = Driver()
    driver.start(life())
    with pytest.raises(RuntimeError, match="busy"):
        driver.start(life())
    driver.throw(ClientGone())


def test_the_next_exchange_may_start_as_soon_as_the_one_before_has_ended():
    seen = []

    async def life(number: int) -> None:
        seen.append(number)
        await PAUSE

    driver = Driver()
    driver.on_idle = lambda: driver.start(life(2)) if seen == [1] else None
    driver.start(life(1))
    driver.resume()
    assert seen == [1, 2]
    assert driver.is_busy
    driver.resume()


async def test_a_future_resumes_with_its_result_or_its_error():
    loop = asyncio.get_running_loop()
    good, bad = loop.create_future(), loop.create_future()
    seen: list[object] = []

    async def life() -> None:
        seen.append(await good)
        try:
            await bad
        except ValueError as error:
            seen.append(str(error))

    driver = Driver()
    driver.start(life())
    driver.resume()  # not what is waited for
    good.set_result("result")
    await asyncio.sleep(0)
    bad.set_exception(ValueError("error"))
    await asyncio.sleep(0)
    assert seen == ["result", "error"]
    assert not driver.is_busy


async def test_a_throw_cancels_what_is_awaited():
    future = asyncio.get_running_loop().create_future()
    seen = []

    async def life() -> None:
        try:
            await future
        except ClientGone:
            seen.append("gone")

    driver = Driver()
    driver.start(life())
    driver.throw(ClientGone())
    assert future.cancelled()
    assert seen == ["gone"]


async def test_the_error_of_a_future_that_nobody_asks_for_any_more_is_not_reported():
    reported = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context))
    future = loop.create_future()

    async def life(waited: asyncio.Future[None]) -> None:
        with contextlib.suppress(ClientGone):
            await waited

    driver = Driver()
    driver.start(life(future))
    future.set_exception(ValueError("late"))
    driver.throw(ClientGone())  # in the same turn
    del future
    gc.collect()
    await asyncio.sleep(0)
    assert not reported


def test_a_throw_from_within_waits_for_the_next_pause():
    seen = []
    driver = Driver()

    async def life() -> None:
        driver.throw(ClientGone())
        seen.append("still here")
        try:
            await PAUSE
        except ClientGone:
            seen.append("gone")

    driver.start(life())
    assert seen == ["still here", "gone"]


def test_a_throw_from_within_dies_with_its_coroutine():
    driver = Driver()

    async def first() -> None:
        driver.throw(ClientGone())

    async def second() -> None:
        await PAUSE

    driver.start(first())
    driver.start(second())
    assert driver.is_busy
    driver.resume()
    assert not driver.is_busy


def test_an_error_that_nobody_catches_ends_the_exchange_and_is_logged(caplog: pytest.LogCaptureFixture):
    async def life() -> None:
        raise ValueError

    driver = Driver()
    driver.start(life())
    assert not driver.is_busy
    assert "ValueError" in caplog.text


EVENTS = ["resume", "throw", "result", "error", "cancel", "turn"]


@settings(max_examples=examples(300), deadline=None)
@given(lists(sampled_from(["pause", "future"]), max_size=5), lists(sampled_from(EVENTS), max_size=14))
def test_whatever_the_order_of_events_an_exchange_ends_once(waits: list[str], events: list[str]):
    ends = []
    idles = []

    async def go() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in waits]
        now = [0]

        async def life() -> None:
            try:
                for index, kind in enumerate(waits):
                    now[0] = index
                    if kind == "pause":
                        await PAUSE
                    else:
                        await futures[index]
            except (ClientGone, ValueError, asyncio.CancelledError):
                pass
            finally:
                ends.append(1)

        driver = Driver(lambda: idles.append(1))
        driver.start(life())
        for event in events:
            future = futures[now[0]] if futures else None
            if event == "resume":
                driver.resume()
            elif event == "throw":
                driver.throw(ClientGone())
            elif event == "turn":
                await asyncio.sleep(0)
            elif future is not None and not future.done():
                if event == "result":
                    future.set_result(None)
                elif event == "error":
                    future.set_exception(ValueError())
                else:
                    future.cancel()
            assert len(ends) == len(idles) <= 1
            assert driver.is_busy == (not ends)
        driver.throw(ClientGone())
        for future in futures:
            if future.done() and not future.cancelled():
                future.exception()
        await asyncio.sleep(0)

    asyncio.run(go())
    assert ends == [1]
    assert idles == [1]


async def test_a_task_may_wait_for_what_pauses():
    drivers: list[Driver] = []
    is_done = False

    async def work(driver: Driver) -> str:
        drivers.append(driver)
        while not is_done:
            await PAUSE
        return "done"

    result = driven(work)
    assert not result.done()
    is_done = True
    drivers[0].resume()
    assert await result == "done"


async def test_what_is_driven_raises_for_its_task():
    async def work(_driver: Driver) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await driven(work)


async def test_what_is_driven_ends_with_the_wait_for_it():
    ended: list[str] = []

    async def work(_driver: Driver) -> None:
        try:
            while True:
                await PAUSE
        finally:
            ended.append("ended")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await driven(work)
    await asyncio.sleep(0)
    assert ended == ["ended"]
