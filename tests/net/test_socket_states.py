"""The states of a transport, in every order of events: what happens is what the table says, and nothing else.

The kernel is a fake that says of itself what epoll(7), recv(2) and send(2) would.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import booleans, lists, sampled_from

from egressproxy.net import sockets
from egressproxy.net.poller import ENDED, READABLE, WRITABLE
from egressproxy.net.sockets import SocketState, SocketTransport
from egressproxy.net.watched_socket import NOT_WATCHED
from tests.support.properties import examples
from tests.support.states import Table, tables

TABLE: Table = tables(sockets)[0]
OVER = (SocketState.CLOSED, SocketState.GONE)


class FakeKernel:
    """The socket and the poller of one transport; they cannot be told apart here."""

    def __init__(self) -> None:
        self.incoming = b""
        self.room = 100
        self.sent = b""
        self.has_fin = self.is_reset = self.is_shut = self.is_closed = False
        self.mask = NOT_WATCHED
        self.handler: Any = None
        self.ending: list[Callable[[], object]] = []

    # the socket
    def fileno(self) -> int:
        return -1 if self.is_closed else 7

    def recv(self, size: int) -> bytes:
        if self.is_reset:
            raise ConnectionResetError
        if not self.incoming and not self.has_fin:
            raise BlockingIOError
        data, self.incoming = self.incoming[:size], self.incoming[size:]
        return data

    def send(self, data: Any) -> int:
        assert not self.is_closed
        assert not self.is_shut
        if self.is_reset:
            raise ConnectionResetError
        if not self.room:
            raise BlockingIOError
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def sendmsg(self, pieces: list[Any]) -> int:
        return self.send(b"".join(pieces))

    def shutdown(self, how: int) -> None:
        self.is_shut = True

    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> int:
        return 104 if self.is_reset else 0

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    # the poller
    def watch(self, fd: int, events: int, handler: Any) -> None:
        assert self.mask == NOT_WATCHED
        self.mask, self.handler = events, handler

    def change(self, fd: int, events: int) -> None:
        assert self.mask != NOT_WATCHED
        self.mask = events

    def leave(self, fd: int) -> None:
        self.mask, self.handler = NOT_WATCHED, None

    def forget(self, fd: int) -> None:
        self.handler = None

    def end_later(self, call: Callable[[], object]) -> None:
        self.ending.append(call)

    def turn(self) -> None:
        """One turn: what is ready is served, then what is over ends."""
        events = select.EPOLLIN if self.incoming or self.has_fin or self.is_reset else 0
        events |= select.EPOLLRDHUP if self.has_fin else 0
        events |= WRITABLE if self.room else 0
        if self.is_reset or (self.has_fin and self.is_shut):
            events |= ENDED
        events &= self.mask | ENDED
        if events and self.handler is not None:
            self.handler.ready(7, events)
        ending, self.ending = self.ending, []
        for call in ending:
            call()


class Recorder(asyncio.Protocol):
    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.heard: list[str] = []
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        assert "eof" not in self.heard
        assert "lost" not in self.heard

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return self.keeps

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append("lost")


class World:
    """A transport, and what the table says of it."""

    def __init__(self, *, keeps: bool) -> None:
        self.kernel = FakeKernel()
        self.protocol = Recorder(keeps)
        self.transport = SocketTransport(self.kernel, self.kernel, self.protocol)  # type: ignore[arg-type]
        self.transport.start()
        self.said = self.written = b""
        self.was_aborted = False

    @property
    def state(self) -> SocketState:
        return self.transport._state

    def expect(self, event: str) -> str:
        """The state after this event, by the table; the same one where it says nothing."""
        return TABLE.get((self.state.name, event), self.state.name)

    # --- what may happen -------------------------------------------------------------------------------------------
    def peer_says(self) -> None:
        if not self.kernel.has_fin:
            self.kernel.incoming += b"p"
            self.said += b"p"

    def peer_ends(self) -> None:
        self.kernel.has_fin = True

    def peer_resets(self) -> None:
        self.kernel.is_reset = True
        self.kernel.incoming = b""

    def peer_takes(self) -> None:
        self.kernel.room += 70

    def write(self) -> None:
        before = self.state
        if before in (SocketState.ENDED, SocketState.BOTH_ENDED):
            try:
                self.transport.write(b"x" * 60)
            except RuntimeError:
                return
            raise AssertionError("written behind its end")
        self.transport.write(b"x" * 60)
        if before in (SocketState.OPEN, SocketState.PEER_ENDED) and self.state is before:
            self.written += b"x" * 60
        assert self.state is before or (self.kernel.is_reset and self.state is SocketState.CLOSED)

    def end(self) -> None:
        expected = self.expect("end")
        self.transport.write_eof()
        assert self.state.name == expected

    def close(self) -> None:
        expected = self.expect("close")
        if expected == "CLOSING" and not self.transport.get_write_buffer_size():
            expected = TABLE["CLOSING", "finish"]
        self.transport.close()
        assert self.state.name == expected

    def abort(self) -> None:
        expected = self.expect("finish")
        self.was_aborted = self.was_aborted or self.state not in OVER
        self.transport.abort()
        assert self.state.name == expected

    def pause(self) -> None:
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()

    def turn(self) -> None:
        before, was_reading, heard = self.state, self.transport.is_reading(), self.protocol.data
        self.kernel.turn()
        if not was_reading:
            assert self.protocol.data == heard
        if before is SocketState.CLOSED:
            assert self.state.name == TABLE["CLOSED", "told"]


NO_ACTIONS = ("state", "expect")
ACTIONS = [act for name, act in vars(World).items() if not name.startswith("_") and name not in NO_ACTIONS]


@settings(max_examples=examples(600))
@given(lists(sampled_from(ACTIONS), max_size=25), booleans())
def test_whatever_happens_in_whatever_order_is_in_the_table(actions: list[Callable[[World], None]], keeps: bool):
    world = World(keeps=keeps)
    for action in actions:
        action(world)
        state, kernel, transport = world.state, world.kernel, world.transport
        assert transport.is_closing() == (state in (SocketState.CLOSING, *OVER))
        assert not (transport.is_reading() and "eof" in world.protocol.heard)
        assert world.protocol.heard.count("lost") == (state is SocketState.GONE) == kernel.is_closed
        assert bool(kernel.ending) == (state is SocketState.CLOSED)
        assert world.said.startswith(world.protocol.data)
    world.resume()
    world.close()
    world.kernel.room = 1 << 20
    for _ in range(3):
        world.kernel.turn()
    assert world.state is SocketState.GONE
    if not world.was_aborted and not world.kernel.is_reset:
        assert world.kernel.sent == world.written


@settings(max_examples=examples(200))
@given(lists(sampled_from([World.peer_says, World.peer_ends, World.write, World.end, World.turn]), max_size=10))
def test_who_is_given_the_socket_has_all_that_was_unsent(actions: list[Callable[[World], None]]):
    world = World(keeps=True)
    for action in actions:
        action(world)
    expected = world.expect("detach")
    kernel, unsent, watched = world.transport.detach()
    assert world.state.name == expected == "GONE"
    assert kernel is world.kernel  # type: ignore[comparison-overlap]
    assert world.kernel.sent + bytes(unsent or b"") == world.written
    assert watched == world.kernel.mask
    for act in (World.abort, World.close, World.resume):
        act(world)
    assert world.protocol.heard.count("lost") == 0
    assert not world.kernel.is_closed
    assert READABLE & world.kernel.mask == READABLE or "eof" in world.protocol.heard
