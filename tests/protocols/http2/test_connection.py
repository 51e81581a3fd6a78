"""What both ends of HTTP/2 share, against h2's client, on a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from h2.errors import ErrorCodes

from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.connection import (
    CONNECTION_WINDOW,
    LINGER_SIZE,
    MAX_AT_ONCE,
    MAX_CONTROL_FRAMES_AT_ONCE,
    MAX_FRAMES_AT_ONCE,
    Http2Connection,
)
from egressproxy.protocols.http2.frames import BURST
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.settings import STREAM_WINDOW
from egressproxy.protocols.http2.stream import Http2Stream
from tests.support.builds import skip_where_compiled
from tests.support.http2_client import Http2Client, head, raw_frame

skip_where_compiled()

OK: FieldList = [(b":status", b"200")]


class Wire(asyncio.Transport):
    """Takes everything, unless `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = self.is_paused = self.is_aborted = False
        self.can_linger = self.has_ended = False
        self.untaken = 0

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return self.can_linger

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Stream(Http2Stream):
    __slots__ = ("data", "has_ended", "is_lost", "reset_code", "trailers")

    def __init__(self, connection: Http2Connection, number: int) -> None:
        super().__init__(connection, number)
        self.data = b""
        self.has_ended = self.is_lost = False
        self.reset_code: int | None = None
        self.trailers: FieldList | None = None

    def take_data(self, data: bytes) -> None:
        self.data += data

    def take_trailers(self, fields: FieldList) -> None:
        self.trailers = fields

    def take_end(self) -> None:
        self.has_ended = True

    def was_reset(self, code: int) -> None:
        self.reset_code = code

    def connection_is_lost(self) -> None:
        self.is_lost = True


class Server(Http2Connection):
    __slots__ = ("began", "last_allowed", "why")

    def __init__(self) -> None:
        super().__init__(TimerWheel(), HeadLimits(), client_side=False)
        self.began: list[Stream] = []
        self.why: tuple[ErrorCodes, str] | None = None

    def take_request(self, stream_id: int, fields: FieldList, *, ends_stream: bool) -> None:
        made = Stream(self, stream_id)
        self._machine.open_request(made)
        self.began.append(made)

    def peer_goes_away(self, last_stream: int) -> None:
        self.last_allowed = last_stream

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        self.why = (code, why)


class Talk:
    """A server's connection, and a client of it."""

    def __init__(self, window: int = 65535) -> None:
        self.wire = Wire()
        self.server = Server()
        self.client = Http2Client(window)
        self.server.connection_made(self.wire)

    def settle(self) -> None:
        """Until nobody has anything to say."""
        while True:
            asyncio.get_running_loop()
            self.server.flush()
            said, self.wire.written = bytes(self.wire.written), bytearray()
            self.client.take(said)
            answer = self.client.outgoing()
            if not said and not answer:
                return
            if answer:
                self.server.data_received(answer)

    def say(self, data: bytes) -> None:
        """Bytes that h2 would not say, behind all that it has."""
        self.settle()
        self.server.data_received(data)
        self.settle()

    def begun(self) -> Stream:
        self.settle()
        return self.server.began[-1]


@pytest.fixture
def talk() -> Iterator[Talk]:
    async def made() -> Talk:
        return Talk()

    with asyncio.Runner() as runner:
        talk = runner.run(made())
        asyncio.events._set_running_loop(runner.get_loop())
        try:
            talk.settle()
            yield talk
        finally:
            asyncio.events._set_running_loop(None)
            talk.server.connection_lost(None)


POST = head(b"POST", b"/", b"a.example")


def test_a_request_and_its_answer(talk: Talk):
    number = talk.client.request(POST, b"content")
    stream = talk.begun()
    assert (stream.data, stream.has_ended) == (b"content", True)
    stream.send_fields(OK, is_last=False)
    stream.send_body(b"answer")
    stream.end([(b"x-sum", b"1")])
    assert stream.has_sent_all
    talk.settle()
    answer = talk.client.of(number)
    assert (answer.status, bytes(answer.data), answer.trailers, answer.is_whole) == (
        200, b"answer", [(b"x-sum", b"1")], True,
    )  # fmt: skip
    assert talk.server.forget(stream)
    assert not talk.server.streams


def test_a_long_head_takes_several_frames(talk: Talk):
    number = talk.client.request(POST)
    stream = talk.begun()
    stream.send_fields([*OK, (b"x-long", 40_000 * b"x")], is_last=False)
    stream.send_body(b"answer")
    stream.end([(b"x-long", 20_000 * b"y")])
    talk.settle()
    answer = talk.client.of(number)
    assert len(answer[b"x-long"]) == 40_000
    assert (bytes(answer.data), answer.trailers) == (b"answer", [(b"x-long", 20_000 * b"y")])


def test_padding_and_priority_are_read_past(talk: Talk):
    head_of_one = talk.client.h2.encoder.encode(POST)
    talk.say(raw_frame(1, b"\2" + bytes(5) + head_of_one + bytes(2), 1, 0x2C))
    talk.say(raw_frame(0, b"\3abc" + bytes(3), 1, 0x8))
    talk.say(raw_frame(0, b"def", 1, 1))
    (stream,) = talk.server.began
    assert (stream.data, stream.has_ended) == (b"abcdef", True)


def test_a_stream_sends_what_the_window_allows_and_pauses_who_feeds_it(talk: Talk):
    paused: list[bool] = []

    class Feeder:
        def pause_reading(self) -> None:
            paused.append(True)

        def resume_reading(self) -> None:
            paused.append(False)

    talk.client.opens_windows = False
    number = talk.client.request(POST)
    stream = talk.begun()
    stream.feed_from(Feeder())
    stream.send_fields(OK, is_last=False)
    stream.send_body(bytes(200_000))
    stream.end(None)
    talk.settle()
    assert len(talk.client.of(number).data) == 65535
    assert paused == [True]
    talk.client.h2.acknowledge_received_data(65535, number)
    talk.settle()
    assert len(talk.client.of(number).data) == 131_070
    assert not stream.has_sent_all
    talk.client.h2.acknowledge_received_data(65535, number)
    talk.settle()
    talk.client.h2.acknowledge_received_data(65535, number)
    talk.settle()
    assert len(talk.client.of(number).data) == 200_000
    assert talk.client.of(number).is_whole
    assert paused == [True, False]


def test_a_stream_that_nobody_reads_gives_no_window_back_until_it_is_read(talk: Talk):
    number = talk.client.request(POST, b"", ends=False)
    stream = talk.begun()
    stream.pause_reading()
    talk.settle()
    for _ in range(STREAM_WINDOW // 16384):
        talk.client.h2.send_data(number, bytes(16384))
        talk.settle()
    assert talk.client.h2.local_flow_control_window(number) == 0
    stream.resume_reading()
    talk.settle()
    assert talk.client.h2.local_flow_control_window(number) > 0


def test_a_stream_that_is_given_up_gives_the_window_of_the_connection_back(talk: Talk):
    for _ in range(3 * CONNECTION_WINDOW // STREAM_WINDOW):
        number = talk.client.request(POST, b"", ends=False)
        stream = talk.begun()
        stream.pause_reading()
        for _ in range(STREAM_WINDOW // 16384):
            talk.client.h2.send_data(number, bytes(16384))
            talk.settle()
        stream.reset()
        talk.settle()
    assert talk.client.h2.outbound_flow_control_window > 0


def test_a_stream_that_is_over_says_nothing(talk: Talk):
    number = talk.client.request(POST, b"", ends=False)
    stream = talk.begun()
    talk.client.h2.reset_stream(number, ErrorCodes.CANCEL)
    talk.settle()
    assert stream.reset_code == ErrorCodes.CANCEL
    assert stream.is_over
    stream.send_fields(OK, is_last=False)
    stream.send_body(b"x")
    stream.end(None)
    stream.reset()
    talk.settle()
    assert not talk.server.is_lost
    assert not talk.client.of(number).fields


def test_many_heads_of_one_read_take_several_turns(talk: Talk):
    for _ in range(3 * MAX_AT_ONCE):
        talk.client.get()
    talk.server.data_received(talk.client.outgoing())
    assert len(talk.server.began) == MAX_AT_ONCE
    assert talk.wire.is_paused, "the next read waits, too"
    talk.server._go_on()
    talk.server._go_on()
    assert len(talk.server.began) == 3 * MAX_AT_ONCE
    assert not talk.wire.is_paused


def test_many_tiny_frames_of_one_read_take_several_turns(talk: Talk):
    number = talk.client.request(POST, b"", ends=False)
    stream = talk.begun()
    size = 2 * MAX_FRAMES_AT_ONCE + 1
    talk.server.data_received(raw_frame(0, b"x", number) * size)
    assert len(stream.data) == MAX_FRAMES_AT_ONCE
    assert talk.wire.is_paused
    talk.server._go_on()
    talk.server._go_on()
    assert len(stream.data) == size
    assert not talk.wire.is_paused


def hear_all(talk: Talk) -> None:
    """The turns of the loop that what has come takes."""
    while talk.server._is_unfinished and not talk.server.is_lost:
        talk.server._go_on()


@pytest.mark.parametrize("frame", [(6, bytes(8)), (8, b"\0\0\0\1")], ids=["PING", "window"])
def test_control_frames_take_more_turns(talk: Talk, frame: tuple[int, bytes]):
    kind, payload = frame
    number = talk.client.request(POST, b"", ends=False)
    talk.begun()
    taken: list[int] = []
    take = talk.server._take_control_frame
    with mock.patch.object(type(talk.server), "_take_control_frame", lambda _, *frame: (taken.append(1), take(*frame))):
        frames = raw_frame(kind, payload, 0 if kind == 6 else number) * (3 * MAX_CONTROL_FRAMES_AT_ONCE)
        talk.server.data_received(frames)
        assert len(taken) == MAX_CONTROL_FRAMES_AT_ONCE
        hear_all(talk)
    assert len(taken) == 3 * MAX_CONTROL_FRAMES_AT_ONCE


def test_a_goaway_of_the_peer_ends_nothing(talk: Talk):
    number = talk.client.get()
    stream = talk.begun()
    talk.say(raw_frame(7, bytes(8)))
    assert talk.server.last_allowed == 0
    stream.send_fields(OK, is_last=True)
    talk.settle()
    assert talk.client.of(number).is_whole


def test_a_goaway_of_ours_spares_the_streams_that_run(talk: Talk):
    number = talk.client.get()
    stream = talk.begun()
    talk.server.go_away(number)
    talk.settle()
    assert talk.client.goaways == [(number, 0, b"")]
    stream.send_fields(OK, is_last=True)
    talk.settle()
    assert talk.client.of(number).is_whole


def test_what_a_peer_does_not_take_is_not_heaped_up(talk: Talk):
    talk.server.pause_writing()
    talk.wire.untaken = 1 << 20
    talk.server.data_received(raw_frame(6, bytes(8)))
    assert talk.wire.is_paused
    talk.wire.untaken = 0
    talk.server.resume_writing()
    assert not talk.wire.is_paused


def test_a_head_without_end_is_cut(talk: Talk):
    talk.server.data_received(raw_frame(1, b"\x82" * 16384, 1))
    for _ in range(9):
        talk.server.data_received(raw_frame(9, b"\x82" * 16384, 1))
    assert talk.server.why == (ErrorCodes.ENHANCE_YOUR_CALM, "a head that has no end")


def test_bytes_that_were_said_one_by_one_wait_in_few_pieces(talk: Talk):
    """Else each that goes out would move thousands of others."""
    number = talk.client.request(POST)
    stream = talk.begun()
    stream.send_fields(OK, is_last=False)
    stream.send_body(bytes(65535))  # all of the window
    said = bytes(n & 0xFF for n in range(20_000))
    for n in range(len(said)):
        stream.send_body(said[n : n + 1])
    assert stream.unsent_size == len(said)
    assert len(stream.unsent) <= 6
    stream.end(None)
    talk.settle()
    assert bytes(talk.client.of(number).data) == bytes(65535) + said


def test_a_frame_that_we_may_not_send_ends_the_connection(talk: Talk):
    talk.client.request(POST, b"", ends=False)
    stream = talk.begun()
    stream.send_fields(OK, is_last=False)
    with mock.patch.object(Stream, "take_data", lambda stream, _: stream.send_fields(OK, is_last=False)):
        talk.say(raw_frame(0, b"x", stream.stream_id))
    assert talk.server.why == (ErrorCodes.INTERNAL_ERROR, "a head where there can be none")


def test_tiny_windows_are_counted(talk: Talk):
    talk.client.opens_windows = False
    number = talk.client.request(POST)
    stream = talk.begun()
    stream.send_fields(OK, is_last=False)
    stream.send_body(bytes(100_000))
    talk.settle()
    talk.server.data_received(raw_frame(8, b"\0\0\xff\xff"))
    for _ in range(int(BURST) + 100):
        talk.server.data_received(raw_frame(8, b"\0\0\0\1", number))
    assert talk.server.why is not None
    assert talk.server.why[0] is ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("kind", "payload", "stream", "name"), [
    (6, bytes(8), 0, "PING"), (4, b"", 0, "SETTINGS"), (2, bytes(5), 3, "PRIORITY"), (0, b"", 1, "empty DATA"),
    (8, b"\0\0\0\1", 1, "WINDOW_UPDATE"), (11, b"x", 0, "unknown"),
])  # fmt: skip
def test_frames_that_bring_nothing_are_counted(talk: Talk, kind: int, payload: bytes, stream: int, name: str):
    talk.client.request(POST, b"", ends=False)
    talk.begun()
    talk.server.data_received(raw_frame(kind, payload, stream) * (int(BURST) + 100))
    hear_all(talk)
    assert talk.server.why is not None
    assert talk.server.why[0] is ErrorCodes.ENHANCE_YOUR_CALM
    assert name in talk.server.why[1]
    assert talk.wire.is_closed
    assert talk.server.began[0].is_lost
    talk.client.take(bytes(talk.wire.written))
    assert talk.client.goaways[-1][1] == ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("data", "code"), [
    (raw_frame(4, bytes(5)), ErrorCodes.FRAME_SIZE_ERROR),
    (raw_frame(1, b"\x82", 3, 1) + raw_frame(7, bytes(8)), ErrorCodes.PROTOCOL_ERROR),
])  # fmt: skip
def test_what_breaks_the_connection_is_told_by_its_code(talk: Talk, data: bytes, code: ErrorCodes):
    talk.client.request(POST, b"", ends=False)
    talk.begun()
    talk.server.data_received(data)
    assert talk.server.why is not None
    assert talk.server.why[0] is code
    talk.client.take(bytes(talk.wire.written))
    assert talk.client.goaways[-1][:2] == (1, code)
    assert talk.wire.is_closed


def test_what_is_said_behind_our_last_word_is_dropped_and_bounded(talk: Talk):
    talk.wire.can_linger = True
    talk.server.data_received(raw_frame(6, bytes(8), 3))
    assert (talk.wire.has_ended, talk.wire.is_closed) == (True, False), "the client reads our GOAWAY, and ends"
    talk.server.data_received(bytes(LINGER_SIZE))
    assert not talk.wire.is_closed
    talk.server.data_received(b"x")
    assert talk.wire.is_aborted


def test_a_flood_is_not_listened_to_behind_our_last_word(talk: Talk):
    talk.wire.can_linger = True
    talk.server.data_received(raw_frame(6, bytes(8)) * (int(BURST) + 1))
    hear_all(talk)
    assert (talk.wire.has_ended, talk.wire.is_closed) == (False, True)
