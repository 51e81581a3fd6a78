"""The states of a client's connection, in every order of events: what happens is what the table says, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import booleans, lists, sampled_from

from egressproxy.errors import GatewayError
from egressproxy.model.message import RequestHead
from egressproxy.model.states import state_name
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1 import downstream_states as states
from egressproxy.protocols.http1.downstream import LINGER_SIZE, DownstreamConnection
from egressproxy.protocols.http1.framing import HeadLimits
from tests.support.properties import examples
from tests.support.states import tables

(TABLE,) = tables(states)
OVER = (states.LINGERING, states.CLOSING, states.LOST)

GET = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 6\r\n\r\nabc"
PIECES = [GET, GET + GET, POST, b"def", b"GET / HT", b"not a request\r\n\r\n", b"x" * (LINGER_SIZE + 1)]


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closing = self.aborted = self.has_end = False
        self.unsent = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.closing
        self.has_end = True

    def pause_reading(self) -> None:
        assert not self.closing

    def resume_reading(self) -> None:
        assert not self.closing


class World:
    """A connection, whose exchanges are what the test makes of them."""

    def __init__(self) -> None:
        self.wheel = TimerWheel()
        self.transport = FakeTransport()
        self.open = 0  # exchanges that have begun and are not over
        self.is_request = False  # what the last of them began with
        self.lost = 0
        self.body = b""
        self.has_fin = False
        self.connection = DownstreamConnection(self, self.wheel, HeadLimits(), 10.0, 60.0)
        self.connection.connection_made(self.transport)

    @property
    def state(self) -> int:
        return self.connection._state

    def after(self, *events: str) -> str:
        """The state behind these events, by the table; an event that it does not have in a state changes nothing."""
        state = state_name(states, self.state)
        for event in events:
            state = TABLE.get((state, event), state)
        return state

    # --- what the connection asks of the gateway ---------------------------------------------------------------------
    def on_request(self, client: DownstreamConnection, head: RequestHead) -> None:
        assert self.state is (states.RECEIVING if head.body else states.RESPONDING)
        self.begins()
        self.is_request = True

    def on_bad_request(self, client: DownstreamConnection, error: GatewayError) -> None:
        assert self.state is states.RECEIVING
        self.begins()
        self.is_request = False

    def begins(self) -> None:
        assert not self.open, "one at a time"
        self.open += 1

    def on_deadline(self, client: DownstreamConnection) -> None:
        raise AssertionError("an exchange has set none")

    def on_lost(self, client: DownstreamConnection) -> None:
        self.lost += 1

    def send_body(self, data: bytes) -> None:
        assert self.state is states.RECEIVING
        self.body += data

    def end_body(self, trailers: bytes) -> None:
        assert self.state is states.RESPONDING

    # --- what may happen ---------------------------------------------------------------------------------------------
    def fin(self) -> None:
        if not self.has_fin and not self.transport.closing:
            self.has_fin = True
            if not self.connection.eof_received():
                self.transport.close()

    def loss(self) -> None:
        expected = self.after("loss")
        self.transport.closing = True
        self.connection.connection_lost(None)
        assert state_name(states, self.state) == expected

    def time(self) -> None:
        if self.state is states.IDLE or self.state in OVER:
            for _ in range(3):
                self.wheel.advance(self.wheel.now + 25.0)

    def stall(self) -> None:
        self.transport.unsent += 1

    def block(self) -> None:
        self.connection.pause_writing()

    def unblock(self) -> None:
        self.connection.resume_writing()

    def close_idle(self) -> None:
        if self.connection.is_idle:
            expected = self.after("close")
            self.connection.close(lingers=False)
            assert state_name(states, self.state) == expected

    # by an exchange
    def take_body(self) -> None:
        if self.open and self.is_request:
            self.connection.send_request_body_to(self)

    def listen(self) -> None:
        if self.open:
            expected = self.after("listen")
            self.connection.listen()
            assert state_name(states, self.state) == expected

    def stop(self) -> None:
        if self.open:
            expected = self.after("heard")
            self.connection.stop_listening()
            assert state_name(states, self.state) == expected

    def finish(self) -> None:
        self.ends(close=False)

    def finish_last(self) -> None:
        self.ends(close=True)

    def ends(self, *, close: bool) -> None:
        if not self.open:
            return
        self.open -= 1
        before, is_last = self.state, close or self.connection.is_last
        self.connection.finish(close=close)
        if before in OVER:
            assert self.state is before
        elif is_last or before is not states.RESPONDING:
            is_silent = self.has_fin or (before is not states.RECEIVING and not self.connection.reader.buffered())
            assert self.state is (states.CLOSING if is_silent else states.LINGERING)
        else:
            assert self.state is states.IDLE

    def detach(self) -> None:
        if self.open and self.state not in OVER and not self.transport.closing:
            self.open -= 1
            expected = self.after("detach")
            self.connection.detach()
            assert state_name(states, self.state) == expected == "DETACHED"
            self.connection.tunnel_ended()
            assert self.connection.is_lost
            self.transport.closing = True


NO_ACTIONS = ("state", "after", "on_request", "on_bad_request", "begins", "on_deadline", "on_lost", "send_body", "ends")
ACTIONS = [
    act
    for name, act in vars(World).items()
    if not name.startswith("_") and name not in (*NO_ACTIONS, "end_body")
]  # fmt: skip


@settings(max_examples=examples(600))
@given(lists(sampled_from([*PIECES, *PIECES[:3], *ACTIONS]), max_size=20), booleans())
def test_whatever_happens_in_whatever_order_is_in_the_table(
    steps: list[bytes | Callable[[World], None]], takes_bodies: bool
):
    async def main() -> None:
        world = World()
        for step in steps:
            if not isinstance(step, bytes):
                step(world)
            elif not world.has_fin and not world.transport.closing:
                world.connection.data_received(step)
            if takes_bodies:
                world.take_body()
            await asyncio.sleep(0)
            state, connection = world.state, world.connection
            assert not (state is states.IDLE and world.open)
            assert world.open or state not in (states.RECEIVING, states.RESPONDING, states.LISTENING)
            assert connection.is_idle == (state in (states.IDLE, states.LISTENING))
            assert connection.is_request_read == (state is not states.RECEIVING)
            assert (state is states.LOST) == connection.is_lost
            assert state not in (states.CLOSING, states.DETACHED) or world.transport.closing
            assert (state is states.LINGERING) <= world.transport.has_end
            assert world.lost <= 1
        world.loss()
        assert world.state is states.LOST

    asyncio.run(main())
