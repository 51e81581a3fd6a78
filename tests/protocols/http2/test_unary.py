"""Unary calls on one connection, against the h2 library as the server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import LimitExceeded, RetrySafety, UpstreamFault
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.grpc.framing import call_headers, framed, reply
from egressproxy.protocols.http2 import unary
from egressproxy.protocols.http2.unary import UnaryAnswer, UnaryConnection
from tests.net.test_flow_control import Transport
from tests.protocols.http2.test_frames import frame
from tests.support.http2 import Http2Server


class Wire(Transport):
    """What is written goes to the server; closing is told to the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: UnaryConnection | None = None

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            assert self.connection is not None
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Talk:
    def __init__(self, server: Http2Server | None = None, idle_s: float = 60.0, **more: Any) -> None:
        self.server = server or Http2Server()
        self.wheel = TimerWheel()
        self.wire = Wire()
        self.connection = self.wire.connection = UnaryConnection(self.wheel, idle_s, **more)
        self.connection.connection_made(cast(asyncio.Transport, self.wire))

    def call(self, message: bytes = b"hello", client: str = "c") -> asyncio.Future[UnaryAnswer]:
        return self.connection.call(call_headers(b"/s/M", b"h", b"http", 5.0, []), framed(message), client)

    async def settle(self) -> None:
        """Until neither side has anything to say."""
        for _ in range(200):
            await asyncio.sleep(0)
            self.connection.flush()
            said, self.wire.written = self.wire.written, b""
            if said:
                self.server.take(said)
            answer = self.server.outgoing()
            if answer and not self.connection.is_lost:
                self.connection.data_received(answer)
            if not said and not answer:
                return


async def over(talk: Talk, result: asyncio.Future[UnaryAnswer]) -> bytes:
    await talk.settle()
    return reply(*result.result())


async def test_a_call_and_its_reply():
    talk = Talk()
    result = talk.call(b"question")
    await talk.settle()
    (seen,) = talk.server.calls.values()
    assert (seen.message, seen.is_whole, seen.headers[b":path"]) == (b"question", True, b"/s/M")
    talk.server.answer(seen.stream, b"answer")
    assert await over(talk, result) == b"answer"
    assert talk.connection.active == 0


async def test_calls_do_not_wait_for_each_other():
    talk = Talk()
    results = [talk.call(b"%d" % number) for number in range(5)]
    await talk.settle()
    for stream, seen in reversed(list(talk.server.calls.items())):
        talk.server.answer(stream, seen.message)
    await talk.settle()
    assert [reply(*r.result()) for r in results] == [
        b"0", b"1", b"2", b"3", b"4",
    ]  # fmt: skip


async def test_what_the_server_does_not_allow_at_once_waits_its_turn():
    talk = Talk(Http2Server(max_streams=2))
    await talk.settle()
    results = [talk.call() for _ in range(3)]
    await talk.settle()
    assert sorted(talk.server.calls) == [1, 3]
    talk.server.answer(1, b"one")
    await talk.settle()
    assert sorted(talk.server.calls) == [1, 3, 5]
    assert [result.done() for result in results] == [True, False, False]
    results[1].cancel()
    results[2].cancel()


async def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unary, "MAX_WAITING", 1)
    talk = Talk(Http2Server(max_streams=1))
    await talk.settle()
    kept = [talk.call(), talk.call()]
    with pytest.raises(LimitExceeded):
        talk.call()
    for result in kept:
        result.cancel()


async def test_clients_take_turns_however_many_calls_of_one_wait():
    talk = Talk(Http2Server(max_streams=1))
    await talk.settle()
    many = [talk.call(b"%d" % number, "greedy") for number in range(4)]
    other = talk.call(b"other", "other")
    seen = []
    for stream in (1, 3, 5, 7, 9):
        await talk.settle()
        seen.append(bytes(talk.server.calls[stream].message))
        talk.server.answer(stream, b"")
    await talk.settle()
    assert seen == [b"0", b"1", b"other", b"2", b"3"]
    assert all(result.done() for result in (*many, other))


async def test_two_thousand_requests_of_one_client_may_wait_for_the_same_server():
    """A sidecar has one client: what it asks at one time is not refused for being asked by one."""
    talk = Talk()
    results = [talk.call() for _ in range(2000)]
    await talk.settle()
    assert talk.connection.active == 75
    for result in results:
        result.cancel()


async def test_one_client_leaves_calls_for_others_under_way_and_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unary, "MAX_WAITING", 4)
    talk = Talk(Http2Server(max_streams=4))
    await talk.settle()
    results = [talk.call(client="greedy") for _ in range(6)]
    with pytest.raises(LimitExceeded):
        talk.call(client="greedy")
    await talk.settle()
    assert sorted(talk.server.calls) == [1, 3, 5]
    results.append(talk.call(b"other", "other"))
    await talk.settle()
    assert talk.server.calls[7].message == b"other"
    talk.server.answer(7, b"")
    talk.server.answer(1, b"")
    await talk.settle()
    assert sorted(talk.server.calls) == [1, 3, 5, 7, 9]
    for result in results:
        result.cancel()


async def test_a_long_message_waits_for_the_window_of_the_server():
    talk = Talk(Http2Server(window=1000))
    await talk.settle()
    talk.server.opens_windows = False
    result = talk.call(b"x" * 5000)
    await talk.settle()
    seen = talk.server.calls[1]
    assert (len(seen.data), seen.is_whole) == (1000, False)
    talk.server.h2.increment_flow_control_window(10_000, 1)
    await talk.settle()
    assert (seen.message, seen.is_whole) == (b"x" * 5000, True)
    talk.server.answer(1, b"")
    assert await over(talk, result) == b""


async def test_a_long_reply_is_taken_as_the_window_opens():
    talk = Talk()
    result = talk.call()
    await talk.settle()
    for _ in range(3):  # more than one window in all
        talk.server.answer(max(talk.server.calls), b"y" * 40_000)
        assert await over(talk, result) == b"y" * 40_000
        result = talk.call()
        await talk.settle()
    result.cancel()


async def test_a_reply_beyond_the_bound_ends_the_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unary, "MAX_MESSAGE_SIZE", 1000)
    talk = Talk()
    result = talk.call()
    await talk.settle()
    talk.server.answer(1, b"z" * 2000)
    await talk.settle()
    with pytest.raises(UpstreamFault, match="longer"):
        result.result()
    await talk.settle()
    assert not talk.connection.is_leaving


async def test_a_call_that_is_given_up_is_reset_and_the_others_go_on():
    talk = Talk()
    given_up, kept = talk.call(b"a"), talk.call(b"b")
    await talk.settle()
    given_up.cancel()
    await talk.settle()
    assert talk.server.calls[1].reset == ErrorCodes.CANCEL
    talk.server.answer(3, b"b")
    assert await over(talk, kept) == b"b"
    assert not talk.connection.is_leaving


async def test_a_call_that_was_given_up_in_silence_is_the_last_of_its_connection():
    talk = Talk()
    await talk.settle()
    talk.wheel.now += 1
    result = talk.call()
    await asyncio.sleep(0)
    talk.wheel.now += 5
    result.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert talk.connection.is_leaving


@pytest.mark.parametrize(
    ("code", "retry"), [(ErrorCodes.REFUSED_STREAM, RetrySafety.SAFE), (ErrorCodes.CANCEL, RetrySafety.NEVER)]
)
async def test_a_reset_says_whether_the_call_was_looked_at(code: ErrorCodes, retry: RetrySafety):
    talk = Talk()
    result = talk.call()
    await talk.settle()
    talk.server.h2.reset_stream(1, code)
    await talk.settle()
    error = result.exception()
    assert isinstance(error, UpstreamFault)
    assert error.retry is retry


async def test_a_goaway_lets_the_calls_end_that_it_spares():
    talk = Talk()
    first, second = talk.call(b"a"), talk.call(b"b")
    await talk.settle()
    talk.connection.data_received(frame(7, (1).to_bytes(4, "big") + bytes(4)))
    error = second.exception()
    assert isinstance(error, UpstreamFault)
    assert error.retry is RetrySafety.SAFE
    assert talk.connection.is_leaving
    with pytest.raises(UpstreamFault):
        talk.call()
    talk.server.answer(1, b"a")
    assert await over(talk, first) == b"a"
    assert talk.wire.closing


async def test_a_lost_connection_fails_what_was_on_it():
    talk = Talk(Http2Server(max_streams=1))
    await talk.settle()
    begun, waiting = talk.call(), talk.call()
    lost: list[UnaryConnection] = []
    talk.connection.on_lost = lost.append
    talk.connection.connection_lost(None)
    for result, retry in ((begun, RetrySafety.IF_REUSED), (waiting, RetrySafety.SAFE)):
        error = result.exception()
        assert isinstance(error, UpstreamFault)
        assert error.retry is retry
    assert lost == [talk.connection]


@pytest.mark.parametrize(
    "nonsense",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame(0, b"data", stream=9), frame(4, b"123"), frame(5, bytes(8), stream=1)],
)
async def test_a_server_that_breaks_the_rules_is_left(nonsense: bytes):
    talk = Talk()
    result = talk.call()
    await talk.settle()
    talk.connection.data_received(nonsense)
    assert isinstance(result.exception(), UpstreamFault)
    assert talk.wire.closing


async def test_a_connection_without_calls_closes_after_a_while():
    talk = Talk(idle_s=5.0)
    await talk.settle()
    talk.wheel.advance(talk.wheel.now + 4)
    assert not talk.wire.closing
    result = talk.call()
    await talk.settle()
    talk.wheel.advance(talk.wheel.now + 60)
    assert not talk.wire.closing
    talk.server.answer(1, b"")
    await over(talk, result)
    talk.wheel.advance(talk.wheel.now + 6)
    assert talk.wire.closing


async def test_a_connection_that_leaves_waits_for_its_calls():
    talk = Talk()
    result = talk.call()
    await talk.settle()
    talk.connection.leave()
    assert not talk.wire.closing
    talk.server.answer(1, b"late")
    assert await over(talk, result) == b"late"
    assert talk.wire.closing


async def test_what_waits_on_a_connection_that_leaves_may_go_elsewhere():
    talk = Talk(Http2Server(max_streams=1))
    await talk.settle()
    begun, waiting = talk.call(), talk.call()
    await talk.settle()
    talk.connection.leave()
    fault = waiting.exception()
    assert isinstance(fault, UpstreamFault)
    assert fault.retry is RetrySafety.SAFE
    talk.server.answer(1, b"ok")
    assert await over(talk, begun) == b"ok"


async def test_a_connection_takes_so_many_calls_and_no_more():
    talk = Talk(max_calls=2)
    results = [talk.call(), talk.call()]
    await talk.settle()
    assert talk.connection.is_leaving
    for stream in (1, 3):
        talk.server.answer(stream, b"ok")
    assert [await over(talk, result) for result in results] == [b"ok", b"ok"]
    assert talk.wire.closing


async def test_a_connection_takes_calls_up_to_an_age():
    talk = Talk(max_age_s=10)
    result = talk.call()
    await talk.settle()
    talk.wheel.advance(talk.wheel.now + 11)
    assert talk.connection.is_leaving
    talk.server.answer(1, b"ok")
    assert await over(talk, result) == b"ok"
    assert talk.wire.closing


async def test_few_of_the_calls_that_are_over_are_remembered():
    talk = Talk()
    for number in range(1000):
        result = talk.call()
        await talk.settle()
        talk.server.answer(2 * number + 1, b"ok")
        await talk.settle()
        assert result.done()
    assert talk.connection.served == 1000
    assert len(talk.connection._h2._closed_streams) <= 256
    assert len(talk.connection._h2.streams) <= 2
