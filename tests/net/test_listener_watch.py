"""A listening socket that several processes watch: what the kernel has of it, and what a failure costs."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egressproxy.net import listener_watch
from egressproxy.net.listener_watch import ListenerWatch
from egressproxy.net.loop import poller
from tests.support.loops import BOTH_LOOPS
from tests.support.waiting import WAIT_S

Factory = Callable[[], asyncio.AbstractEventLoop]


class Accepting:
    """Takes what comes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.taken = 0
        self.errors: list[Exception] = []

    def ready(self, fd: int, events: int) -> None:
        assert (fd, events) == (self.sock.fileno(), select.EPOLLIN)
        self.sock.accept()[0].close()
        self.taken += 1

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    def unwatched(self, error: OSError) -> None:
        self.errors.append(error)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def entry_in_kernel(fd: int) -> int | None:
    """The events for which the loop watches this descriptor, from proc(5); None where it does not."""
    loop = asyncio.get_running_loop()
    for line in Path(f"/proc/self/fdinfo/{listener_watch._descriptor_of(loop)}").read_text().splitlines():
        words = line.split()
        if words[0] == "tfd:" and int(words[1]) == fd:
            return int(words[3], 16)
    return None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110   what is waited for is the kernel's
            await asyncio.sleep(0.001)


def is_exclusive(fd: int) -> bool:
    return bool((entry_in_kernel(fd) or 0) & select.EPOLLEXCLUSIVE)


async def call_in(sock: socket.socket, accepting: Accepting) -> None:
    before = accepting.taken
    with socket.create_connection(sock.getsockname()):
        await until(lambda: accepting.taken > before)


def on(factory: Factory, main: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@BOTH_LOOPS
def test_a_connection_wakes_one_process_only(factory: Factory, sock: socket.socket):
    """The kernel has the exclusive entry on the very descriptor on which the loop waits, and keeps it."""

    async def main() -> None:
        accepting = Accepting(sock)
        watch = ListenerWatch(poller(), sock.fileno(), accepting)
        await until(lambda: is_exclusive(sock.fileno()))
        for _ in range(3):
            await call_in(sock, accepting)
            watch.let_others_first()
            assert is_exclusive(sock.fileno())
        watch.close()
        watch.close()
        assert entry_in_kernel(sock.fileno()) is None
        assert not accepting.errors

    on(factory, main)


@BOTH_LOOPS
def test_a_loop_that_does_not_tell_its_descriptor_accepts_too(
    factory: Factory, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    async def main() -> None:
        def untold(_loop: asyncio.AbstractEventLoop) -> int:
            raise AttributeError("private, and gone")

        accepting = Accepting(sock)
        with monkeypatch.context() as patch:
            patch.setattr(listener_watch, "_descriptor_of", untold)
            watch = ListenerWatch(poller(), sock.fileno(), accepting)
            await call_in(sock, accepting)
            watch.let_others_first()
        assert not is_exclusive(sock.fileno())
        await call_in(sock, accepting)
        watch.close()

    on(factory, main)


@BOTH_LOOPS
def test_a_watch_that_is_closed_at_once_leaves_nothing(factory: Factory, sock: socket.socket):
    async def main() -> None:
        ListenerWatch(poller(), sock.fileno(), Accepting(sock)).close()
        for _ in range(4):
            await asyncio.sleep(0)
        assert entry_in_kernel(sock.fileno()) is None

    on(factory, main)


class Deaf:
    """Another process: it is woken for connections, and takes none. `heard` counts those that it was woken for."""

    def __init__(self, sock: socket.socket) -> None:
        self.heard = 0
        self._is_over = threading.Event()
        self._next = threading.Event()
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._epoll.poll(0.01):
                self.heard += 1
                self._next.clear()
                self._next.wait(WAIT_S)

    def go_on(self) -> None:
        self._next.set()

    def __enter__(self) -> Deaf:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._next.set()
        self._thread.join()
        self._epoll.close()


@BOTH_LOOPS
def test_a_connection_is_taken_that_another_process_was_woken_for_and_does_not_take(
    factory: Factory, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(listener_watch, "LOOK_S", 0.05)

    async def main() -> None:
        accepting = Accepting(sock)
        with Deaf(sock) as other:
            watch = ListenerWatch(poller(), sock.fileno(), accepting)
            await until(lambda: is_exclusive(sock.fileno()))
            async with asyncio.timeout(WAIT_S):
                while other.heard < 3:  # not each time: it has to wait in that moment, and to be the first in the queue
                    await call_in(sock, accepting)
                    other.go_on()
            watch.close()

    on(factory, main)


class Full:
    """An epoll descriptor that takes no more entries."""

    def __init__(self, real: select.epoll) -> None:
        self._real = real

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def unregister(self, fd: int) -> None:
        self._real.unregister(fd)

    def register(self, _fd: int, _events: int) -> None:
        raise OSError(errno.ENOSPC, "no watches are left")


@BOTH_LOOPS
def test_who_can_be_watched_no_more_is_told(factory: Factory, sock: socket.socket, monkeypatch: pytest.MonkeyPatch):
    class Select:
        EPOLLIN, EPOLLEXCLUSIVE = select.EPOLLIN, select.EPOLLEXCLUSIVE

        class epoll:
            @staticmethod
            def fromfd(fd: int) -> Full:
                return Full(select.epoll.fromfd(fd))

    async def main() -> None:
        accepting = Accepting(sock)
        watch = ListenerWatch(poller(), sock.fileno(), accepting)
        await until(lambda: is_exclusive(sock.fileno()))
        with monkeypatch.context() as patch:
            patch.setattr(listener_watch, "select", Select)
            watch.let_others_first()
        assert [error.errno for error in accepting.errors if isinstance(error, OSError)] == [errno.ENOSPC]
        assert entry_in_kernel(sock.fileno()) is None
        again = ListenerWatch(poller(), sock.fileno(), accepting)
        await call_in(sock, accepting)
        again.close()

    on(factory, main)


@BOTH_LOOPS
def test_a_connection_that_fails_is_reported_and_the_next_is_taken(factory: Factory, sock: socket.socket):
    async def main() -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        accepting = Accepting(sock)
        refusals = [RuntimeError("not this one")]
        take = accepting.ready

        def ready(fd: int, events: int) -> None:
            take(fd, events)
            if refusals:
                raise refusals.pop()

        accepting.ready = ready  # type: ignore[method-assign]
        watch = ListenerWatch(poller(), sock.fileno(), accepting)
        await call_in(sock, accepting)
        await call_in(sock, accepting)
        assert reported == ["not this one"]
        assert len(accepting.errors) == 1
        watch.close()

    on(factory, main)
