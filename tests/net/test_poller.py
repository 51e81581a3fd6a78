"""Turns of the poller: who is called, in which order, and what a failure costs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from itertools import pairwise

import pytest

from egressproxy.net.loop import poller
from egressproxy.net.poller import MAX_ENDS, READABLE, Poller
from tests.support.loops import BOTH_LOOPS
from tests.support.waiting import WAIT_S


class Watcher:
    """A handler that says what it sees."""

    def __init__(self, act: Callable[[int], None] = lambda _fd: None) -> None:
        self.seen: list[int] = []
        self.act = act
        self.error: Exception | None = None

    def ready(self, fd: int, events: int) -> None:
        self.seen.append(events)
        self.act(fd)

    def failed(self, error: Exception) -> None:
        self.error = error


class Flushing:
    def __init__(self, said: list[str], act: Callable[[], None] = lambda: None) -> None:
        self.said, self.act = said, act

    def flush(self) -> None:
        self.said.append("flush")
        self.act()


def pair() -> tuple[socket.socket, socket.socket]:
    one, two = socket.socketpair()
    one.setblocking(False)
    two.setblocking(False)
    return one, two


async def settle(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110   what is waited for is the kernel's
            await asyncio.sleep(0.001)


async def test_a_loop_has_one_poller():
    assert poller() is poller()
    assert isinstance(poller(), Poller)


@BOTH_LOOPS
def test_each_loop_has_its_own(factory: Callable[[], asyncio.AbstractEventLoop]):
    async def main() -> Poller:
        return poller()

    with asyncio.Runner(loop_factory=factory) as one, asyncio.Runner(loop_factory=factory) as other:
        assert one.run(main()) is not other.run(main())


async def test_a_handler_hears_of_its_descriptor_until_it_leaves():
    one, two = pair()
    watcher = Watcher(lambda fd: poller().leave(fd))
    poller().watch(one.fileno(), READABLE, watcher)
    two.send(b"x")
    await settle(lambda: bool(watcher.seen))
    await asyncio.sleep(0.01)
    assert len(watcher.seen) == 1
    one.close()
    two.close()


async def test_a_descriptor_changes_hands():
    one, two = pair()
    first, second = Watcher(), Watcher(lambda fd: poller().leave(fd))
    poller().watch(one.fileno(), READABLE, first)
    poller().hand_over(one.fileno(), second)
    two.send(b"x")
    await settle(lambda: bool(second.seen))
    assert not first.seen
    one.close()
    two.close()


async def test_who_was_forgotten_in_a_turn_hears_nothing_of_that_turn():
    pairs = [pair(), pair()]
    watchers: list[Watcher] = []

    def forget_all(_fd: int) -> None:
        for one, _ in pairs:
            poller().leave(one.fileno())

    for one, two in pairs:
        watchers.append(Watcher(forget_all))
        poller().watch(one.fileno(), READABLE, watchers[-1])
        two.send(b"x")
    await settle(lambda: any(watcher.seen for watcher in watchers))
    await asyncio.sleep(0.01)
    assert sum(len(watcher.seen) for watcher in watchers) == 1
    for one, two in pairs:
        one.close()
        two.close()


async def test_a_descriptor_that_was_closed_before_it_is_left_costs_nobody_anything():
    one, two = pair()
    seen = Watcher(lambda fd: poller().leave(fd))
    last = 1023  # of the table, which grows by 64
    os.dup2(one.fileno(), last)
    poller().watch(last, READABLE, seen)
    one.close()
    poller().leave(one.fileno())
    two.send(b"x")
    await settle(lambda: bool(seen.seen))
    os.close(last)
    two.close()


async def test_a_failing_handler_is_reported_and_the_others_are_served():
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(str(context["exception"])))

    def fail(fd: int) -> None:
        poller().leave(fd)
        raise ValueError("no")

    (one, two), (three, four) = pair(), pair()
    bad, good = Watcher(fail), Watcher(lambda fd: poller().leave(fd))
    poller().watch(one.fileno(), READABLE, bad)
    poller().watch(three.fileno(), READABLE, good)
    two.send(b"x")
    four.send(b"x")
    await settle(lambda: bool(bad.seen and good.seen))
    assert failures == ["no"]
    assert isinstance(bad.error, ValueError)
    for sock in (one, two, three, four):
        sock.close()


class Unlucky(Watcher):
    """It fails when it is told that it has failed."""

    def failed(self, error: Exception) -> None:
        super().failed(error)
        raise ValueError("again")


async def test_a_handler_that_fails_in_a_way_that_is_no_exception_ends_nothing_but_itself():
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failures.append(type(context["exception"]).__name__)
    )

    def fail(fd: int) -> None:
        poller().leave(fd)
        poller().end_later(lambda: fail_again())
        raise asyncio.CancelledError

    def fail_again() -> None:
        raise GeneratorExit

    one, two = pair()
    bad = Unlucky(fail)
    poller().watch(one.fileno(), READABLE, bad)
    two.send(b"x")
    await settle(lambda: len(failures) == 3)
    assert failures == ["CancelledError", "ValueError", "GeneratorExit"]
    assert isinstance(bad.error, RuntimeError)
    one.close()
    two.close()


@BOTH_LOOPS
@pytest.mark.parametrize("where", ["event", "end"])
def test_what_is_to_end_the_process_gets_out_and_the_turn_is_ended(
    where: str, factory: Callable[[], asyncio.AbstractEventLoop]
):
    said: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def fails() -> None:
        one, two = pair()

        def act(fd: int) -> None:
            poller().leave(fd)
            if where == "end":
                poller().end_later(interrupt)
                return
            poller().end_later(lambda: said.append("end"))
            interrupt()

        poller().watch(one.fileno(), READABLE, Watcher(act))
        two.send(b"x")
        await asyncio.sleep(10)

    async def goes_on() -> None:
        poller().end_later(lambda: said.append("afterwards"))
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=factory) as runner:
        with pytest.raises(KeyboardInterrupt):
            runner.run(fails())
        runner.run(goes_on())
    assert said == (["end"] if where == "event" else []) + ["afterwards"]


async def test_outside_of_a_turn_what_was_begun_is_ended_by_one_call_of_the_loop():
    said: list[str] = []
    poller().end_later(lambda: said.append("end"))
    poller().flush_later(Flushing(said))
    assert said == []
    await asyncio.sleep(0)
    assert said == ["flush", "end"]


async def test_what_is_flushed_while_things_end_comes_before_the_next_end():
    said: list[str] = []

    def end() -> None:
        said.append("end")
        poller().flush_later(Flushing(said, lambda: poller().end_later(lambda: said.append("last"))))

    poller().end_later(end)
    await asyncio.sleep(0)
    assert said == ["end", "flush", "last"]


async def test_where_thousands_end_together_the_loop_has_turns_between():
    loop, said = asyncio.get_running_loop(), list[int]()
    number = 3 * MAX_ENDS + 1
    for each in range(number):
        poller().end_later(lambda each=each: said.append(each))
    poller().end_later(lambda: poller().end_later(lambda: said.append(number)))
    between: list[int] = []

    def look() -> None:
        between.append(len(said))
        if between[-1] <= number:
            loop.call_soon(look)

    look()
    await poller().all_ended()
    assert said == [*range(number + 1)]
    steps = [after - before for before, after in pairwise(between)]
    assert max(steps, default=0) <= MAX_ENDS
    assert len(between) > 3


async def test_a_failing_flush_and_a_failing_end_are_reported_alone():
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["message"]))
    said: list[str] = []

    def fail() -> None:
        raise ValueError("no")

    poller().flush_later(Flushing(said, fail))
    poller().flush_later(Flushing(said))
    poller().end_later(fail)
    poller().end_later(lambda: said.append("end"))
    await asyncio.sleep(0)
    assert said == ["flush", "flush", "end"]
    assert len(failures) == 2


async def test_in_a_turn_the_end_comes_with_it():
    said: list[str] = []
    one, two = pair()

    def act(fd: int) -> None:
        poller().leave(fd)
        poller().flush_later(Flushing(said))
        said.append("event")
        asyncio.get_running_loop().call_soon(lambda: said.append("next turn"))

    poller().watch(one.fileno(), READABLE, Watcher(act))
    two.send(b"x")
    await settle(lambda: "next turn" in said)
    assert said == ["event", "flush", "next turn"]
    one.close()
    two.close()
