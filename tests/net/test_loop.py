"""asyncio on the poller: its descriptors beside those of handlers, and whoever calls it while they are served."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from egressproxy.net.loop import poller
from egressproxy.net.poller import READABLE
from tests.support.loops import BOTH_LOOPS
from tests.support.waiting import WAIT_S


class Watcher:
    def __init__(self, act: Callable[[int], object]) -> None:
        self.act = act

    def ready(self, fd: int, _events: int) -> None:
        self.act(fd)

    def failed(self, error: Exception) -> None: ...


@pytest.fixture
def pair() -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:

        def made() -> tuple[socket.socket, socket.socket]:
            one, two = socket.socketpair()
            one.setblocking(False)
            two.setblocking(False)
            stack.enter_context(one)
            stack.enter_context(two)
            return one, two

        yield made


Pair = Callable[[], tuple[socket.socket, socket.socket]]


async def settle(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110   what is waited for is the kernel's
            await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["call_soon", "call_later", "task", "future", "threadsafe", "thread", "signal"])
async def test_what_a_handler_schedules_is_done_though_nothing_else_happens(pair: Pair, how: str):
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    future = loop.create_future()
    future.add_done_callback(lambda _: done.set())
    kept: list[object] = []

    async def sets() -> None:
        done.set()

    def act(fd: int) -> None:
        poller().leave(fd)
        match how:
            case "call_soon":
                loop.call_soon(done.set)
            case "call_later":
                loop.call_later(0.01, done.set)
            case "task":
                kept.append(loop.create_task(sets()))
            case "future":
                future.set_result(None)
            case "threadsafe":
                loop.call_soon_threadsafe(done.set)
            case "thread":
                thread = threading.Timer(0.02, loop.call_soon_threadsafe, (done.set,))
                kept.append(thread)
                thread.start()
            case "signal":
                os.kill(os.getpid(), signal.SIGUSR1)

    loop.add_signal_handler(signal.SIGUSR1, done.set)
    one, two = pair()
    poller().watch(one.fileno(), READABLE, Watcher(act))
    two.send(b"x")
    async with asyncio.timeout(WAIT_S):
        began = loop.time()
        await done.wait()
    assert loop.time() - began < WAIT_S / 2
    loop.remove_signal_handler(signal.SIGUSR1)
    for each in kept:
        if isinstance(each, threading.Timer):
            each.join()


async def test_sockets_that_are_always_ready_leave_timers_tasks_and_connections_their_turn(pair: Pair):
    served = 0

    def count(_fd: int) -> None:
        nonlocal served
        served += 1

    for _ in range(300):  # more than one turn takes
        one, two = pair()
        two.send(b"x")
        poller().watch(one.fileno(), READABLE, Watcher(count))
    ticks = 0
    said = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(10))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with asyncio.timeout(WAIT_S):
        for _ in range(20):
            await asyncio.sleep(0.001)
            ticks += 1
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await asyncio.to_thread(said.set)
    server.close()
    assert served > 300
    for fd in list(range(len(poller()._handlers))):
        if isinstance(poller()._handlers[fd], Watcher):
            poller().leave(fd)


async def test_tasks_that_never_rest_leave_sockets_their_turn(pair: Pair):
    seen: list[int] = []
    pairs = [pair() for _ in range(300)]
    for one, two in pairs:
        two.send(b"x")
        poller().watch(one.fileno(), READABLE, Watcher(lambda fd: (seen.append(fd), poller().leave(fd))))
    await settle(lambda: len(seen) == 300)


async def test_a_registration_that_a_handler_makes_anew_in_the_same_turn_stays(pair: Pair):
    loop = asyncio.get_running_loop()
    (one, two), (three, four) = pair(), pair()
    got: list[bytes] = []

    def read() -> None:
        with suppress(BlockingIOError):
            got.append(one.recv(10))

    def renew(fd: int) -> None:
        poller().leave(fd)
        loop.remove_reader(one.fileno())
        loop.add_reader(one.fileno(), read)

    loop.add_reader(one.fileno(), read)
    poller().watch(three.fileno(), READABLE, Watcher(renew))
    two.send(b"x")  # in front of the other in the kernel's queue
    four.send(b"x")
    await settle(lambda: got == [b"x"])
    two.send(b"y")
    await settle(lambda: got == [b"x", b"y"])
    loop.remove_reader(one.fileno())


async def test_a_descriptor_that_was_closed_under_asyncio_costs_its_next_owner_nothing(pair: Pair):
    loop = asyncio.get_running_loop()
    (old, _), (one, two) = pair(), pair()
    number = old.fileno()
    loop.add_reader(number, lambda: None)
    old.close()
    os.dup2(one.fileno(), number)
    with socket.socket(fileno=number) as new:
        seen: list[int] = []
        poller().watch(number, READABLE, Watcher(lambda fd: (seen.append(new.fileno()), poller().leave(fd))))
        loop.remove_reader(number)
        two.send(b"x")
        await settle(lambda: seen)


@pytest.mark.parametrize("what", ["reader", "writer", "both"])
async def test_an_end_and_a_reset_are_told_as_by_the_selectors_of_python(pair: Pair, what: str):
    loop = asyncio.get_running_loop()
    one, two = pair()
    two.close()  # EPOLLHUP
    seen: set[str] = set()
    if what != "writer":
        loop.add_reader(one.fileno(), lambda: (seen.add("reader"), loop.remove_reader(one.fileno())))
    if what != "reader":
        loop.add_writer(one.fileno(), lambda: (seen.add("writer"), loop.remove_writer(one.fileno())))
    wanted = {"reader", "writer"} if what == "both" else {what}
    await settle(lambda: seen == wanted)


@BOTH_LOOPS
def test_a_loop_that_is_stopped_by_a_handler_returns(pair: Pair, factory: Callable[[], asyncio.AbstractEventLoop]):
    with asyncio.Runner(loop_factory=factory) as runner:
        loop = runner.get_loop()
        one, two = pair()

        def watch() -> None:
            here = poller()
            here.watch(one.fileno(), READABLE, Watcher(lambda fd: (here.leave(fd), loop.stop())))

        loop.call_soon(watch)
        two.send(b"x")
        loop.run_forever()


async def test_programs_and_names_are_waited_for():
    async with asyncio.timeout(WAIT_S):
        process = await asyncio.create_subprocess_exec("/bin/cat", stdin=-1, stdout=-1)
        out, _ = await process.communicate(b"x" * 300_000)
        assert len(out) == 300_000
        assert process.returncode == 0
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
