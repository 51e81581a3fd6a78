"""SendingSide: what an HTTP/2 connection says, as the peer's windows and the transport allow. A stream that may not
send pauses who feeds it (back-pressure). Source: RFC 9113 sections 5.2, 6.4 and 6.9.
"""

from __future__ import annotations

from typing import Final

from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from egressproxy.net.flow_control import COPY_LIMIT, FlowControl
from egressproxy.net.loop import poller
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import FieldList
from egressproxy.protocols.http2.frames import HEADER_SIZE, FloodGuard
from egressproxy.protocols.http2.states import ConnectionStates
from egressproxy.protocols.http2.stream import Http2Stream

#: A frame that is shorter and not the last of what there was has a tiny window to go through.
LONG_PIECE: Final = 1024


class SendingSide(FlowControl):
    """The streams of a connection, and what they say. `Http2Connection` adds what they hear."""

    __slots__ = ("_guard", "_h2", "_is_dirty", "_waiting", "is_lost", "limits", "streams", "wheel")

    def __init__(self, wheel: TimerWheel, limits: HeadLimits, *, client_side: bool, extended_connect: bool) -> None:
        super().__init__()
        self.wheel = wheel
        self.limits = limits
        self.streams: dict[int, Http2Stream] = {}
        self.is_lost = False  # nothing more is said or heard; the transport may still be closing
        self._h2 = ConnectionStates(client_side=client_side, limits=limits, extended_connect=extended_connect)
        self._guard = FloodGuard(wheel.now)
        self._is_dirty = False  # h2 may have something to send at the end of this turn
        self._waiting: dict[int, Http2Stream] = {}  # those that have more to say than the windows allow

    def send_fields(self, stream: Http2Stream, fields: FieldList, *, is_last: bool) -> None:
        before = len(self._h2._data_to_send)
        self._h2.say_fields(stream.number, fields, is_last=is_last)
        stream.bytes_out += len(self._h2._data_to_send) - before
        self._guard.frame_sent()
        self._touch()
        if is_last:
            stream.has_said_all = True
            stream.was_sent()

    def send_request(self, stream: Http2Stream, block: bytes, *, is_last: bool) -> None:
        """The head of a request, in HPACK: the stream begins. Raises H2Error where it cannot."""
        self._h2.say_request(stream.number, block, is_last=is_last)
        stream.bytes_out += HEADER_SIZE + len(block)
        self._guard.frame_sent()
        if not self._is_dirty:
            self._touch()
        if is_last:
            stream.has_said_all = True
            stream.was_sent()

    def send_block(self, stream: Http2Stream, block: bytes, body: bytes | None) -> None:
        """The final head of a response, in HPACK, and its body, if that is here: None is a body that follows."""
        h2, number = self._h2, stream.number
        if not self._is_dirty:
            self._touch()
        if body and not self.is_write_blocked and h2.say_whole_response(number, block, body):
            self._guard.frame_sent()
            self._guard.frame_sent()
            stream.bytes_out += HEADER_SIZE + len(block) + len(body)
            stream.has_said_all = True
            if len(h2._data_to_send) > COPY_LIMIT:
                self.flush()
            stream.was_sent()
            return
        before = len(h2._data_to_send)
        h2.say_response(number, block, is_last=body == b"")
        stream.bytes_out += len(h2._data_to_send) - before
        self._guard.frame_sent()
        if body:
            stream.send_last(body)
        elif body is not None:
            stream.has_said_all = True
            stream.was_sent()

    def send_at_once(self, stream: Http2Stream, data: bytes) -> bool:
        """A piece of a body before which nothing waits. False: it has to wait, at least in part."""
        h2 = self._h2
        if self.is_write_blocked or not h2.say_at_once(stream.number, data):
            return False
        self._guard.frame_sent()
        if not self._is_dirty:
            self._touch()
        if len(h2._data_to_send) > COPY_LIMIT:
            self.flush()
        return True

    def send_waiting(self, stream: Http2Stream) -> None:
        h2 = self._h2
        while stream._unsent and not self.is_write_blocked:
            room = h2.room_for(stream.number)
            if room <= 0:
                break
            piece = stream.take_unsent(room)
            is_last = stream._is_ending and not stream._unsent and stream._trailers is None
            h2.say_data(stream.number, piece, is_last=is_last)
            if len(piece) >= LONG_PIECE or not stream._unsent:  # else it is the window that is tiny (CVE-2019-9511)
                self._guard.frame_sent()
            if is_last:
                stream._is_ending = False
                stream.has_said_all = True
            self._touch()
            if len(h2._data_to_send) > COPY_LIMIT:
                self.flush()
        if stream._unsent:
            self._waiting[stream.number] = stream
            return
        if stream._is_ending:
            stream._is_ending = False
            stream.has_said_all = True
            if stream._trailers is not None:
                h2.say_trailers(stream.number, stream._trailers)
            else:
                h2.say_data(stream.number, b"", is_last=True)
            self._touch()
        self._waiting.pop(stream.number, None)
        if stream.has_said_all:
            stream.was_sent()

    def _send_more(self, stream: Http2Stream) -> None:
        self.send_waiting(stream)
        stream._look_whether_blocked()

    def _send_all_waiting(self) -> None:
        """Each in turn, so that none waits for the windows of another for ever."""
        for stream in list(self._waiting.values()):
            if self.is_write_blocked or self._h2.outbound_flow_control_window <= 0:
                return
            if self._waiting.pop(stream.number, None) is not None:  # behind the others, if it has to wait again
                self._send_more(stream)

    def give_back(self, stream: Http2Stream, size: int) -> None:
        if size and not self.is_lost and self._h2.give_back(stream.number, size):
            self._touch()

    def give_back_to_others(self, size: int) -> None:
        if not self.is_lost and self._h2.give_back_of_connection(size):
            self._touch()

    def give_back_alone(self, stream: Http2Stream, size: int) -> None:
        if not self.is_lost and self._h2.give_back_of_stream(stream.number, size):
            self._touch()

    def reset(self, stream: Http2Stream, code: ErrorCodes) -> None:
        if self.streams.get(stream.number) is stream:
            self.reset_number(stream.number, code)
            self.forget(stream)

    def reset_number(self, number: int, code: ErrorCodes) -> None:
        """Reset a stream that may not be one of ours."""
        if self.is_lost:
            return
        h2 = self._h2
        try:
            h2.reset_stream(number, code)
        except H2Error:
            if number in h2.streams:  # both sides have said all, and the request was none for all that
                h2._data_to_send += RstStreamFrame(number, error_code=int(code)).serialize()
        self._touch()
        h2.let_go(number)

    @property
    def last_begun(self) -> int:
        """The highest stream that the peer has begun."""
        return self._h2.highest_inbound_stream_id

    def refuse(self, number: int, code: ErrorCodes) -> None:
        """Reset a stream whose head we do not take, which counts against the peer. Raises Flood."""
        self.reset_number(number, code)
        self.stream_failed()

    def stream_failed(self) -> None:
        self._guard.stream_failed(self.wheel.now)

    def forget(self, stream: Http2Stream) -> bool:
        if self.streams.pop(stream.number, None) is None:
            return False
        self._waiting.pop(stream.number, None)
        kept, stream._given_back = stream._given_back, 0
        self.give_back(stream, kept)  # of the window of the connection
        self._h2.let_go(stream.number)
        return True

    def ping(self) -> None:
        """Ask the peer to answer: it has then read all that was said before, and what went out with it."""
        self._h2.ping(bytes(8))
        self._touch()

    def go_away(self, last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Say that streams above this one are not looked at; the others go on. h2 would end the connection."""
        frame = GoAwayFrame(0, last_stream_id=last_stream, error_code=int(code))
        self._h2._data_to_send += frame.serialize()
        self._touch()

    def _touch(self) -> None:
        """What h2 has made goes out at the end of this turn."""
        if not self._is_dirty and not self.is_lost:
            self._is_dirty = True
            if self._poller is None:
                self._poller = poller()
            self._poller.flush_later(self)

    def flush(self) -> None:
        self._is_dirty = False
        data = self._h2._data_to_send
        if data:
            self._h2._data_to_send = bytearray()
            self.transport.write(data)
