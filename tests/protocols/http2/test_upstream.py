"""Streams of one connection to a backend, against the h2 library as the server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED, RequestHead
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import HIGH_WATER
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.settings import MAX_STREAMS, STREAM_WINDOW
from egressproxy.protocols.http2.upstream import DOUBT_S, PING_AGAIN_S, PING_ANSWER_S, SILENCE_S, Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from tests.net.test_flow_control import Transport
from tests.support.http2 import Http2Server

OK = [(b":status", b"200")]
FOREVER = 10**6


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Wire(Transport):
    """What is written goes to the server; closing is told to the connection."""

    connection: Http2Upstream

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class Call:
    """Somebody who asks, and a sink for the answer."""

    def __init__(self, talk: Talk, request: RequestHead) -> None:
        self.talk = talk
        self.request = request
        self.stream = UpstreamStream(talk.connection)
        self.driver = Driver()
        self.interim: list[int] = []
        self.status = 0
        self.fields = Fields()
        self.body = b""
        self.trailers: bytes | None = None
        self.error: GatewayError | None = None
        self.is_slow = False
        self.is_paused = False
        self.has_first_byte: bool | None = None  # None: it is not waited for

    def start(self, body: bytes | None = None) -> Call:
        self.stream.begin(self.driver, self.request)
        self.stream.send_head(self.request, b"a.example", b"gw")
        if body is not None:
            self.stream.send_body(body)
            self.stream.end_body(b"")
        self.driver.start(self._live())
        return self

    async def _live(self) -> None:
        try:
            while True:
                head = self.stream.next_head()
                if head is None:
                    await PAUSE
                    continue
                if not head.is_interim:
                    break
                self.interim.append(head.status)
            self.status, self.fields = head.status, head.fields
            while self.is_slow:
                await PAUSE
            if self.has_first_byte is False:
                await self.stream.first_byte()
                self.has_first_byte = True
            whole = b"" if self.stream.has_ended else self.stream.whole_body()
            if whole is None:
                self.stream.send_response_body_to(self)
                await self.stream.response_end()
            else:
                self.body = whole
        except GatewayError as error:
            self.error = error
        self.stream.finish()

    def send_body(self, data: bytes) -> None:
        self.body += data

    def end_body(self, trailers: bytes) -> None:
        self.trailers = trailers

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def fault(self) -> GatewayError:
        assert self.error is not None
        return self.error


class Talk:
    def __init__(self, server: Http2Server | None = None, **more: Any) -> None:
        self.server = server or Http2Server()
        self.wheel = TimerWheel()
        self.wire = Wire()
        settings = {"is_secure": False, "idle_s": 30.0, **more}
        self.connection = Http2Upstream(self.wheel, HeadLimits(), **settings)
        self.wire.connection = self.connection
        self.connection.connection_made(cast(asyncio.Transport, self.wire))

    async def settle(self) -> None:
        """Until neither side has anything to say."""
        quiet = 0
        for _ in range(2000):
            await asyncio.sleep(0)
            self.connection.flush()
            said, self.wire.written = self.wire.written, b""
            if said and not self.server.is_gone:
                self.server.take(said)
            answer = self.server.outgoing()
            if answer and not self.connection.is_lost:
                self.connection.data_received(answer)
            quiet = 0 if said or answer else quiet + 1
            if quiet > 3:
                return
        raise AssertionError("the two do not come to an end")

    async def ask(self, method: bytes = b"GET", body: bytes | None = None, fields: bytes = b"") -> Call:
        head = RequestHead(method, b"/path?q", Fields(fields))
        head.body = len(body) if body is not None else 0
        call = Call(self, head).start(body)
        await self.settle()
        return call

    async def later(self, seconds: float) -> None:
        self.wheel.advance(self.wheel.now + seconds)
        await self.settle()


async def test_a_request_and_its_response():
    talk = Talk()
    call = await talk.ask(fields=b"\r\nX-One: 1\r\nConnection: x\r\nCookie: a=1")
    (seen,) = talk.server.calls.values()
    assert seen.is_whole
    assert seen.headers == {
        b":method": b"GET", b":scheme": b"http", b":path": b"/path?q", b":authority": b"a.example",
        b"x-one": b"1", b"cookie": b"a=1", b"via": b"1.1 gw",
    }  # fmt: skip
    talk.server.respond(seen.stream, [*OK, (b"x-two", b"2")], b"hello")
    await talk.settle()
    assert (call.status, call.body, call.fields.get(b"x-two"), call.error) == (200, b"hello", b"2", None)
    assert talk.connection.active == 0
    assert not talk.connection.streams


async def test_a_short_response_is_seen_whole_and_has_a_length():
    talk = Talk()
    call = await talk.ask()
    talk.server.respond(1, OK, b"hello")
    head: list[int] = []
    finish = UpstreamStream.finish

    def look(stream: UpstreamStream) -> None:
        assert stream.head is not None
        head.append(stream.head.body)
        finish(stream)

    UpstreamStream.finish = look  # type: ignore[method-assign]
    try:
        await talk.settle()
    finally:
        UpstreamStream.finish = finish  # type: ignore[method-assign]
    assert (head, call.trailers) == ([5], None)


async def waits_for_first_byte() -> tuple[Talk, Call]:
    """A call whose server has sent a head alone."""
    talk = Talk()
    call = await talk.ask()
    call.has_first_byte = False
    talk.server.respond(1, OK, None, is_last=False)
    await talk.settle()
    assert (call.status, call.has_first_byte) == (200, False)
    return talk, call


async def test_the_first_byte_of_a_body_is_waited_for_and_kept():
    talk, call = await waits_for_first_byte()
    talk.server.h2.send_data(1, b"one")
    await talk.settle()
    assert call.has_first_byte is True
    talk.server.h2.send_data(1, b"two", end_stream=True)
    await talk.settle()
    assert (call.body, call.error) == (b"onetwo", None)


async def test_the_end_of_an_empty_body_is_as_good_as_its_first_byte():
    talk, call = await waits_for_first_byte()
    talk.server.h2.end_stream(1)
    await talk.settle()
    assert (call.has_first_byte, call.body, call.error) == (True, b"", None)


async def test_a_reset_before_the_first_byte_is_told():
    talk, call = await waits_for_first_byte()
    talk.server.h2.reset_stream(1)
    await talk.settle()
    assert call.has_first_byte is False
    assert call.fault().reason is Reason.UPSTREAM_INCOMPLETE


async def test_a_body_its_length_and_trailers_go_to_the_server():
    talk = Talk()
    await talk.ask(b"POST", b"question")
    assert talk.server.calls[1].headers[b"content-length"] == b"8"
    assert bytes(talk.server.calls[1].data) == b"question"
    head = RequestHead(b"POST", b"/", Fields())
    head.body = CHUNKED
    call = Call(talk, head).start()
    call.stream.send_body(b"more")
    call.stream.end_body(b"\r\nX-Sum: 1")
    await talk.settle()
    seen = talk.server.calls[3]
    assert b"content-length" not in seen.headers
    assert (bytes(seen.data), seen.trailers, call.stream.has_sent_all) == (b"more", {b"x-sum": b"1"}, True)


async def test_trailers_of_a_response_go_on_but_for_those_that_must_come_early():
    talk = Talk()
    call = await talk.ask()
    talk.server.respond(1, OK, b"x", trailers=[(b"grpc-status", b"0"), (b"set-cookie", b"a=b")])
    await talk.settle()
    assert (call.body, call.trailers) == (b"x", b"\r\ngrpc-status: 0")


async def test_interim_responses_come_before_the_final_one():
    talk = Talk()
    call = await talk.ask()
    talk.server.h2.send_headers(1, [(b":status", b"103"), (b"link", b"x")])
    talk.server.respond(1, [(b":status", b"204")], None)
    await talk.settle()
    assert (call.interim, call.status) == ([103], 204)


async def test_too_many_interim_responses_end_the_stream():
    talk = Talk()
    call = await talk.ask()
    for _ in range(17):
        talk.server.h2.send_headers(1, [(b":status", b"103")])
    await talk.settle()
    assert call.fault().reason is Reason.BAD_RESPONSE
    assert not talk.connection.is_lost


@pytest.mark.parametrize(
    "fields",
    [
        [(b":status", b"20")],
        [(b":status", b"101")],
        [(b"x", b"1")],
        [*OK, (b"connection", b"close")],
        [*OK, (b"X-Upper", b"1")],
        [*OK, (b"x", b"a\r\nb: c")],
        [*OK, (b"content-length", b"+5")],
        [*OK, (b"content-length", b"5"), (b"content-length", b"6")],
        [*OK, (b":path", b"/")],
    ],
)
async def test_a_response_that_breaks_a_rule_ends_its_stream_alone(fields: list[tuple[bytes, bytes]]):
    talk = Talk()
    bad, good = await talk.ask(), await talk.ask()
    talk.server.respond(1, fields, None, is_last=False)
    talk.server.respond(3, OK, b"fine")
    await talk.settle()
    assert bad.fault().reason is Reason.BAD_RESPONSE
    assert talk.server.calls[1].reset == ErrorCodes.PROTOCOL_ERROR
    assert (good.body, good.error) == (b"fine", None)


@pytest.mark.parametrize(
    ("said", "body", "reason"),
    [(b"3", b"hello", Reason.BAD_RESPONSE), (b"9", b"hello", Reason.UPSTREAM_INCOMPLETE)],
)
async def test_content_is_as_long_as_its_head_says(said: bytes, body: bytes, reason: Reason):
    talk = Talk()
    call = await talk.ask()
    talk.server.respond(1, [*OK, (b"content-length", said)], body)
    await talk.settle()
    assert call.fault().reason is reason


async def test_no_content_behind_a_head_request():
    talk = Talk()
    call = await talk.ask(b"HEAD")
    talk.server.respond(1, [*OK, (b"content-length", b"5")], b"hello")
    await talk.settle()
    assert call.fault().reason is Reason.BAD_RESPONSE
    call = await talk.ask(b"HEAD")
    talk.server.respond(3, [*OK, (b"content-length", b"5")], None)
    await talk.settle()
    assert (call.status, call.fields.get(b"content-length")) == (200, b"5")


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        (ErrorCodes.REFUSED_STREAM, RetrySafety.SAFE),
        (ErrorCodes.INTERNAL_ERROR, RetrySafety.IF_IDEMPOTENT),
        (ErrorCodes.CANCEL, RetrySafety.IF_IDEMPOTENT),
    ],
)
async def test_a_reset_says_whether_the_request_may_go_again(code: ErrorCodes, retry: RetrySafety):
    talk = Talk()
    call = await talk.ask()
    talk.server.h2.reset_stream(1, code)
    await talk.settle()
    assert (call.fault().reason, call.fault().retry) == (Reason.UPSTREAM_RESET, retry)
    assert talk.connection.room > 0


async def test_a_reset_in_the_middle_of_a_response_is_an_incomplete_one():
    talk = Talk()
    call = await talk.ask()
    talk.server.h2.send_headers(1, OK)
    talk.server.h2.send_data(1, b"half")
    await talk.settle()
    talk.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    await talk.settle()
    assert (call.body, call.fault().reason) == (b"half", Reason.UPSTREAM_INCOMPLETE)


async def test_a_reset_behind_a_whole_response_leaves_it_whole():
    talk = Talk()
    head = RequestHead(b"POST", b"/", Fields())
    head.body = CHUNKED
    call = Call(talk, head).start()
    call.stream.send_body(b"some")
    await talk.settle()
    talk.server.respond(1, [(b":status", b"413")], b"no")
    talk.server.h2.reset_stream(1, ErrorCodes.NO_ERROR)
    await talk.settle()
    assert (call.status, call.body, call.error) == (413, b"no", None)


async def test_streams_above_the_last_of_a_goaway_were_not_seen_and_the_others_go_on():
    talk = Talk()
    first, second = await talk.ask(), await talk.ask()
    late = Call(talk, RequestHead(b"GET", b"/", Fields()))
    talk.connection.data_received(frame(7, 0, 0, (1).to_bytes(4, "big") + bytes(4)))
    assert (second.fault().reason, second.fault().retry) == (Reason.UPSTREAM_RESET, RetrySafety.SAFE)
    assert talk.connection.room == 0
    late.start()
    assert late.fault().retry is RetrySafety.SAFE
    talk.server.respond(1, OK, b"still")
    await talk.settle()
    assert (first.body, first.error) == (b"still", None)
    assert talk.connection.is_lost


async def test_a_caller_that_leaves_resets_its_stream_and_keeps_the_connection():
    talk = Talk()
    call = await talk.ask()
    call.driver.throw(UpstreamFault(Reason.RESPONSE_TIMEOUT, "late"))
    await talk.settle()
    assert talk.server.calls[1].reset == ErrorCodes.CANCEL
    assert (talk.connection.active, talk.connection.is_leaving) == (0, False)
    talk.server.h2.ping(b"12345678")
    other = await talk.ask()
    talk.server.respond(3, OK, b"yes")
    await talk.settle()
    assert other.body == b"yes"


async def test_a_connection_that_was_silent_meanwhile_gets_no_other():
    talk = Talk()
    await talk.settle()
    talk.wheel.advance(talk.wheel.now + 1)
    call = await talk.ask()
    talk.wheel.advance(talk.wheel.now + DOUBT_S + 0.2)
    talk.connection.last_frame_at = call.stream._begun_at - 1
    call.driver.throw(UpstreamFault(Reason.RESPONSE_TIMEOUT, "late"))
    assert talk.connection.is_leaving


@pytest.mark.parametrize("heard", [frame(6, 1, 0, bytes(8)), b"", b"\0"], ids=["a frame", "nothing", "a byte"])
async def test_short_attempts_that_are_all_in_vain_add_up_until_a_frame_is_heard(heard: bytes):
    talk = Talk()
    await talk.settle()

    async def gives_up_after(seconds: float) -> None:
        call = await talk.ask()
        talk.wheel.advance(talk.wheel.now + seconds)
        call.driver.throw(UpstreamFault(Reason.RESPONSE_TIMEOUT, "late"))

    await gives_up_after(DOUBT_S * 0.6)
    talk.connection.data_received(heard)
    for _ in range(2 if len(heard) > 1 else 1):
        assert not talk.connection.is_leaving
        await gives_up_after(DOUBT_S * 0.6)
    assert talk.connection.is_leaving


async def test_one_exchange_until_the_server_has_said_how_many_it_takes():
    talk = Talk(Http2Server(max_streams=3))
    assert talk.connection.room == 1
    told: list[int] = []
    talk.connection.on_room = lambda: told.append(talk.connection.room)
    await talk.ask()
    assert told == [2]
    assert Talk(Http2Server(max_streams=10_000)).connection.room == 1
    talk = Talk(Http2Server(max_streams=10_000))
    await talk.settle()
    assert talk.connection.room == MAX_STREAMS


async def test_a_connection_serves_so_many_requests():
    talk = Talk(max_requests=2)
    await talk.ask()
    await talk.ask()
    assert (talk.connection.room, talk.connection.is_lost) == (0, False)
    for number in (1, 3):
        talk.server.respond(number, OK, None)
    await talk.settle()
    assert talk.connection.is_lost


async def test_an_idle_connection_closes_in_time():
    talk = Talk()
    await talk.ask()
    await talk.later(31)
    assert not talk.connection.is_lost
    talk.server.respond(1, OK, None)
    await talk.settle()
    await talk.later(31)
    assert talk.connection.is_lost


async def test_a_server_that_is_silent_is_asked_and_given_up():
    talk = Talk()
    first, second = await talk.ask(), await talk.ask()
    await talk.later(SILENCE_S + 1)  # it answers the ping
    assert not talk.connection.is_lost
    await talk.later(PING_AGAIN_S - 10)
    assert talk.server.pings == 1
    await talk.later(20)
    assert talk.server.pings == 2
    talk.server.is_gone = True
    await talk.later(PING_AGAIN_S + 1)
    assert first.error is None
    await talk.later(PING_ANSWER_S + 1)
    assert first.fault().reason is second.fault().reason is Reason.BAD_RESPONSE
    assert "does not answer" in first.fault().message
    assert talk.connection.is_lost


async def test_bytes_of_a_frame_that_does_not_end_are_no_answer_to_a_ping():
    talk = Talk()
    call = await talk.ask()
    talk.server.is_gone = True
    await talk.later(SILENCE_S + 1)
    talk.connection.data_received(b"\0")
    await talk.later(PING_ANSWER_S + 1)
    assert "does not answer" in call.fault().message


async def test_a_lost_connection_fails_its_streams():
    talk = Talk()
    first, unused = await talk.ask(), Call(talk, RequestHead(b"GET", b"/", Fields()))
    talk.connection.connection_lost(None)
    assert (first.fault().reason, first.fault().retry) == (Reason.UPSTREAM_CLOSED, RetrySafety.IF_REUSED)
    unused.start()
    assert unused.fault().retry is RetrySafety.SAFE


async def test_a_slow_reader_gets_a_window_and_no_more_and_keeps_nobody_else():
    talk = Talk()
    slow = Call(talk, RequestHead(b"GET", b"/", Fields()))
    slow.is_slow = True
    slow.start()
    await talk.settle()
    talk.server.h2.send_headers(1, OK)
    talk.server.send_all(1, 4 * STREAM_WINDOW)
    await talk.settle()
    held = sum(map(len, slow.stream._pieces))
    assert 0 < held <= STREAM_WINDOW
    quick = await talk.ask()
    talk.server.h2.send_headers(3, OK)
    talk.server.send_all(3, 4 * STREAM_WINDOW)
    await talk.settle()
    assert len(quick.body) == 4 * STREAM_WINDOW
    slow.is_slow = False
    slow.driver.resume()
    await talk.settle()
    assert (len(slow.body), slow.error) == (4 * STREAM_WINDOW, None)


async def test_a_server_that_does_not_read_pauses_who_sends():
    talk = Talk()
    talk.server.opens_windows = False
    head = RequestHead(b"POST", b"/", Fields())
    head.body = CHUNKED
    call = Call(talk, head).start()
    call.stream.feed_from(call)
    sent = 0
    while not call.is_paused and sent < FOREVER:
        call.stream.send_body(bytes(16000))
        sent += 16000
        await talk.settle()
    assert sent < 65535 + HIGH_WATER + 32000
    seen = talk.server.calls[1]
    assert len(seen.data) == 65535
    talk.server.opens_windows = True
    talk.server.h2.increment_flow_control_window(FOREVER)
    talk.server.h2.increment_flow_control_window(FOREVER, 1)
    await talk.settle()
    assert not call.is_paused
    call.stream.end_body(b"")
    await talk.settle()
    assert (len(seen.data), seen.is_whole) == (sent, True)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(0, 0, 9, b"data"),
        frame(4, 0, 0, b"123"),
        frame(1, 4, 2, b"\x88"),
        frame(1, 4, 1, b"\xff\xff\xff\xff\xff"),
        frame(5, 4, 1, (2).to_bytes(4, "big") + b"\x88"),  # PUSH_PROMISE
    ],
)
async def test_a_server_that_breaks_the_rules_is_left(nonsense: bytes):
    talk = Talk()
    call = await talk.ask()
    talk.connection.data_received(nonsense)
    assert call.fault().reason is Reason.BAD_RESPONSE
    assert talk.connection.is_lost
    assert talk.wire.closing


@pytest.mark.parametrize("kind", [6, 4])
async def test_a_server_that_floods_is_left(kind: int):
    talk = Talk()
    call = await talk.ask()
    piece = frame(6, 0, 0, bytes(8)) if kind == 6 else frame(4, 0, 0, b"")
    for _ in range(2000):
        talk.connection.data_received(piece)
    assert call.fault().reason is Reason.BAD_RESPONSE
    assert "too many" in call.fault().message


async def test_a_connection_that_is_retired_waits_for_its_streams():
    talk = Talk()
    call, reserved = await talk.ask(), Call(talk, RequestHead(b"GET", b"/", Fields()))
    talk.connection.retire()
    reserved.start()  # its place was given before
    await talk.settle()
    for number in (1, 3):
        talk.server.respond(number, OK, b"late")
    assert not talk.wire.closing
    await talk.settle()
    assert (call.body, reserved.body) == (b"late", b"late")
    assert talk.wire.closing
