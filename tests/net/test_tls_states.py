"""The states of TLS, in every order of events on both sides: what happens is what the table says, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis.strategies import booleans, lists, sampled_from, tuples

from egressproxy.model.states import state_name
from egressproxy.net import tls_states as states
from egressproxy.net.tls import TlsStream
from tests.net.test_tls import Inner, Pair, Wire
from tests.support.properties import examples
from tests.support.states import tables

(TABLE,) = tables(states)
OVER = (states.FAILED, states.CLOSED)
EARLY = (states.HANDSHAKE, states.JOINING)


def expected(stream: TlsStream, *events: str) -> str:
    """The state after the first of these events that the table has in this state; else the same one."""
    state = state_name(states, stream._state)
    return next((TABLE[state, event] for event in events if (state, event) in TABLE), state)


class Side:
    """One of the two streams."""

    def __init__(self, pair: Pair, stream: TlsStream, wire: Wire, inner: Inner) -> None:
        self.pair, self.stream, self.wire, self.inner = pair, stream, wire, inner

    def write(self) -> None:
        before = self.stream._state
        try:
            self.stream.write(b"x" * 100)
        except RuntimeError:
            assert before in EARLY
        assert self.stream._state is before

    def end(self) -> None:
        following = expected(self.stream, "wait" if self.stream._in.pending else "end", "end")
        self.stream.write_eof()
        assert state_name(states, self.stream._state) == following

    def close(self) -> None:
        following = (
            state_name(states, self.stream._state)
            if self.stream._state in OVER
            else expected(self.stream, "close", "fail")
        )
        self.stream.close()
        assert state_name(states, self.stream._state) == following

    def abort(self) -> None:
        following = (
            state_name(states, self.stream._state)
            if self.stream._state in OVER
            else expected(self.stream, "close", "fail")
        )
        self.stream.abort()
        assert state_name(states, self.stream._state) == following

    def is_late(self) -> None:
        following = expected(self.stream, "fail") if self.stream._state == states.HANDSHAKE else None
        self.stream.abort_handshake()
        assert following in (None, state_name(states, self.stream._state))

    def pause(self) -> None:
        self.stream.pause_reading()

    def resume(self) -> None:
        self.stream.resume_reading()

    def fin(self) -> None:
        """TCP's end arrives, with or without a close_notify before it."""
        if not self.wire.closing and not self.wire.paused and not self.wire.has_fin:
            self.wire.has_fin = True
            Pair.end(self.wire)

    def loss(self) -> None:
        self.wire.lose(ConnectionResetError())


class OneEndWire(Wire):
    """TCP's end comes once."""

    has_fin = False


ACTIONS = [act for name, act in vars(Side).items() if not name.startswith("_")]


def carry(pair: Pair, size: int) -> None:
    """So many bytes each way; who has closed reports that."""
    wires = pair.client_wire, pair.server_wire
    for source, target in (wires, wires[::-1]):
        if source.sent and not target.paused and not getattr(target, "has_fin", False):
            data, source.sent[:] = bytes(source.sent[:size]), source.sent[size:]
            if not target.closing:
                target.protocol.data_received(data)
        if source.closing and not source.sent:
            source.lose()


STEPS = lists(tuples(booleans(), sampled_from(ACTIONS), sampled_from([0, 300, 1 << 20])), max_size=15)


@settings(max_examples=examples(300))
@given(STEPS, booleans(), booleans())
def test_whatever_happens_in_whatever_order_is_in_the_table(
    steps: list[tuple[bool, Callable[[Side], None], int]], is_open: bool, keeps_open: bool
):
    async def main() -> None:
        pair = Pair(keeps_open=keeps_open)
        pair.client_wire, pair.server_wire = OneEndWire(pair.client), OneEndWire(pair.server)
        pair.start()
        if is_open:
            pair.carry()
        client = Side(pair, pair.client, pair.client_wire, pair.client_inner)
        server = Side(pair, pair.server, pair.server_wire, pair.server_inner)
        for is_client, act, size in steps:
            act(client if is_client else server)
            carry(pair, size)
            await asyncio.sleep(0)
            for side in (client, server):
                state, heard = side.stream._state, side.inner.heard
                assert (("made" in heard) and state not in (*EARLY, states.FAILED)) or not heard
                assert heard.count("made") <= 1
                assert sum(isinstance(one, tuple) for one in heard) == (side.wire.lost and "made" in heard)
                assert state in OVER or not side.wire.lost
                assert not (side.stream.is_reading() and "eof" in heard)
                assert state not in OVER or side.stream.is_closing()
        assert len(pair.told) == len({side for side, _ in pair.told}), "a handshake ends once"
        for wire in (pair.client_wire, pair.server_wire):
            wire.lose()
        assert len(pair.told) == 2

    asyncio.run(main())
