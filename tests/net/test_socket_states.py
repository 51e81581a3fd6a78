"""The states of a transport, in every order of events: what happens is what the table says, and nothing else.

The kernel is a fake (tests/support/fake_kernel).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis.strategies import booleans, lists, sampled_from

from egressproxy.model.states import state_name
from egressproxy.net import socket_states as states
from egressproxy.net.poller import READABLE
from egressproxy.net.sockets import SocketTransport
from tests.support.builds import skip_where_compiled
from tests.support.fake_kernel import FakePoller, FakeSocket
from tests.support.properties import examples
from tests.support.states import tables

skip_where_compiled()

(TABLE,) = tables(states)
OVER = (states.CLOSED, states.GONE)


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
        self.poller = FakePoller()
        self.kernel = FakeSocket(self.poller)
        self.protocol = Recorder(keeps)
        self.transport = SocketTransport(self.poller, self.kernel, self.protocol)  # type: ignore[arg-type]
        self.transport.start()
        self.said = self.written = b""
        self.was_aborted = False

    @property
    def state(self) -> int:
        return self.transport._state

    def expect(self, event: str) -> str:
        """The state after this event, by the table; the same one where it says nothing."""
        return TABLE.get((state_name(states, self.state), event), state_name(states, self.state))

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
        if before in (states.ENDED, states.BOTH_ENDED):
            try:
                self.transport.write(b"x" * 60)
            except RuntimeError:
                return
            raise AssertionError("written behind its end")
        self.transport.write(b"x" * 60)
        if before in (states.OPEN, states.PEER_ENDED) and self.state is before:
            self.written += b"x" * 60
        is_bad = self.kernel.is_reset or self.poller.is_full
        assert self.state is before or (is_bad and self.state == states.CLOSED)

    def end(self) -> None:
        expected = self.expect("end")
        self.transport.write_eof()
        assert state_name(states, self.state) == expected

    def close(self) -> None:
        expected = self.expect("close")
        if expected == "CLOSING" and not self.transport.get_write_buffer_size():
            expected = TABLE["CLOSING", "finish"]
        self.transport.close()
        assert state_name(states, self.state) == expected

    def abort(self) -> None:
        expected = self.expect("finish")
        self.was_aborted = self.was_aborted or self.state not in OVER
        self.transport.abort()
        assert state_name(states, self.state) == expected

    def no_memory(self) -> None:
        self.poller.is_full = True

    def pause(self) -> None:
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()

    def turn(self) -> None:
        before, was_reading, heard = self.state, self.transport.is_reading(), self.protocol.data
        self.poller.turn()
        if not was_reading:
            assert self.protocol.data == heard
        if before == states.CLOSED:
            assert state_name(states, self.state) == TABLE["CLOSED", "told"]


NO_ACTIONS = ("state", "expect")
ACTIONS = [act for name, act in vars(World).items() if not name.startswith("_") and name not in NO_ACTIONS]


@settings(max_examples=examples(600))
@given(lists(sampled_from(ACTIONS), max_size=25), booleans())
def test_whatever_happens_in_whatever_order_is_in_the_table(actions: list[Callable[[World], None]], keeps: bool):
    world = World(keeps=keeps)
    for action in actions:
        action(world)
        state, kernel, transport = world.state, world.kernel, world.transport
        assert transport.is_closing() == (state in (states.CLOSING, *OVER))
        assert not (transport.is_reading() and "eof" in world.protocol.heard)
        assert world.protocol.heard.count("lost") == (state == states.GONE) == kernel.is_closed
        assert bool(world.poller.ending) == (state == states.CLOSED)
        assert world.said.startswith(world.protocol.data)
    world.resume()
    world.close()
    world.kernel.room = 1 << 20
    for _ in range(3):
        world.poller.turn()
    assert world.state == states.GONE
    if not world.was_aborted and not world.kernel.is_reset and not world.poller.is_full:
        assert world.kernel.sent == world.written


@settings(max_examples=examples(200))
@given(lists(sampled_from([World.peer_says, World.peer_ends, World.write, World.end, World.turn]), max_size=10))
def test_who_is_given_the_socket_has_all_that_was_unsent(actions: list[Callable[[World], None]]):
    world = World(keeps=True)
    for action in actions:
        action(world)
    expected = world.expect("detach")
    kernel, unsent, watched = world.transport.detach()
    assert state_name(states, world.state) == expected == "GONE"
    assert kernel is world.kernel  # type: ignore[comparison-overlap]
    assert world.kernel.sent + bytes(unsent or b"") == world.written
    assert watched == world.kernel.mask
    for act in (World.abort, World.close, World.resume):
        act(world)
    assert world.protocol.heard.count("lost") == 0
    assert not world.kernel.is_closed
    assert READABLE & world.kernel.mask == READABLE or "eof" in world.protocol.heard
