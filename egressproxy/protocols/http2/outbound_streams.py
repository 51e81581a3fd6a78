"""OutboundStreams: the sending side of an HTTP/2 connection on its transport. Streams send as the peer's windows and
the transport allow; one that may not send pauses who feeds it (back-pressure). Source: RFC 9113 sections 5.2 and 6.9.
"""

from __future__ import annotations

from typing import Final

from h2.errors import ErrorCodes

from egressproxy.net.flow_control import COPY_LIMIT, FlowControl
from egressproxy.net.loop import poller
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import encoded_block
from egressproxy.protocols.http2.frames import FloodGuard
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.state_machine import H2StateMachine
from egressproxy.protocols.http2.stream_state import H2StreamState

#: A frame that is shorter and not the last of what there was has a tiny window to go through.
LONG_PIECE: Final = 1024


class OutboundStreams(FlowControl):
    """The streams of a connection, and what they send. `Http2Connection` adds the receiving side."""

    __slots__ = ("_guard", "_is_dirty", "_machine", "_waiting", "is_lost", "limits", "streams", "wheel")

    def __init__(self, wheel: TimerWheel, limits: HeadLimits, *, client_side: bool, extended_connect: bool) -> None:
        super().__init__()
        self.wheel = wheel
        self.limits = limits
        self.is_lost = False  # nothing more is sent or received; the transport may still be closing
        self._machine = H2StateMachine(limits, client_side=client_side, extended_connect=extended_connect)
        self.streams = self._machine.streams
        self._guard = FloodGuard(wheel.now)
        self._is_dirty = False  # there may be frames to send at the end of this turn
        self._waiting: dict[int, H2StreamState] = {}  # those that have more to send than the windows allow

    def send_fields(self, stream: H2StreamState, fields: FieldList, *, is_last: bool) -> None:
        """The head of a response, final or interim."""
        block = encoded_block(fields)
        if fields[0][1][:1] == b"1":
            self._machine.send_interim_headers(stream, block)
            self._guard.frame_sent()
            self._touch()
        else:
            self.send_headers(stream, block, is_last=is_last)

    def send_request_headers(self, stream: H2StreamState, block: bytes, *, is_last: bool) -> None:
        """The head of a request, in HPACK: the stream begins. Raises LocalProtocolError where it cannot."""
        self._machine.begin_stream(stream)
        self.send_headers(stream, block, is_last=is_last)

    def send_headers(self, stream: H2StreamState, block: bytes, *, is_last: bool) -> None:
        """The head of a request, or the final one of a response, in HPACK."""
        self._machine.send_headers(stream, block, is_last=is_last)
        self._guard.frame_sent()
        self._touch()
        if is_last:
            stream.was_sent()

    def send_at_once(self, stream: H2StreamState, data: bytes, *, is_last: bool) -> bool:
        """A piece of a body before which nothing waits. False: it has to wait, at least in part."""
        machine = self._machine
        if self.is_write_blocked or len(data) > machine.room_for(stream):
            return False
        machine.send_data(stream, data, is_last=is_last)
        self._guard.frame_sent()
        self._touch()
        if machine.size > COPY_LIMIT:
            self.flush()
        if is_last:
            stream.was_sent()
        return True

    def send_waiting(self, stream: H2StreamState) -> None:
        """Send what the windows allow of what this stream has to send."""
        machine = self._machine
        while stream.unsent and not self.is_write_blocked:
            room = machine.room_for(stream)
            if room <= 0:
                break
            piece = stream.take_unsent(room)
            is_last = stream.is_ending and not stream.unsent and stream.trailers is None
            machine.send_data(stream, piece, is_last=is_last)
            if len(piece) >= LONG_PIECE or not stream.unsent:  # else it is the window that is tiny (CVE-2019-9511)
                self._guard.frame_sent()
            self._touch()
            if machine.size > COPY_LIMIT:
                self.flush()
        if stream.unsent:
            self._waiting[stream.stream_id] = stream
            return
        if stream.is_ending and not stream.has_sent_all:
            if stream.trailers is not None:
                machine.send_trailers(stream, stream.trailers)
            else:
                machine.send_data(stream, b"", is_last=True)
            self._touch()
        self._waiting.pop(stream.stream_id, None)
        if stream.has_sent_all:
            stream.was_sent()

    def _send_more(self, stream: H2StreamState) -> None:
        self.send_waiting(stream)
        stream.unsent_shrank()

    def _send_all_waiting(self) -> None:
        """Each in turn, so that none waits for the windows of another for ever."""
        for stream in list(self._waiting.values()):
            if self.is_write_blocked or self._machine.send_window <= 0:
                return
            if self._waiting.pop(stream.stream_id, None) is not None:  # behind the others, if it has to wait again
                self._send_more(stream)

    def give_back(self, stream: H2StreamState, size: int) -> None:
        """What was read makes room for more (RFC 9113 section 6.9)."""
        if size and not self.is_lost:
            self._machine.give_back(stream, size)
            self._touch_frames()

    def give_back_to_others(self, size: int) -> None:
        """The same of the window of the connection alone."""
        if not self.is_lost:
            self._machine.give_back_of_connection(size)
            self._touch_frames()

    def give_back_alone(self, stream: H2StreamState, size: int) -> None:
        """The same of the window of this stream alone."""
        if not self.is_lost:
            self._machine.give_back_of_stream(stream, size)
            self._touch_frames()

    def reset(self, stream: H2StreamState, code: ErrorCodes) -> None:
        """Tell the peer that the stream is given up."""
        if not stream.is_over:
            self.reset_by_id(stream.stream_id, code)
            self.forget(stream)

    def reset_by_id(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset a stream that may not be one of ours."""
        if not self.is_lost:
            self._machine.reset_stream(stream_id, code)
            self._touch()

    @property
    def last_begun(self) -> int:
        """The highest stream that the peer has begun."""
        return self._machine.last_of_peer

    def stream_failed(self) -> None:
        """A stream was reset because of what the peer did. Raises Flood."""
        self._guard.stream_failed(self.wheel.now)

    def forget(self, stream: H2StreamState) -> bool:
        """The stream is over. False where it was so before."""
        if stream.is_over:
            return False
        self._machine.forget_stream(stream)
        if self._waiting:
            self._waiting.pop(stream.stream_id, None)
        if stream.kept_size:
            self.give_back_to_others(stream.kept_size)
            stream.kept_size = 0
        return True

    def ping(self) -> None:
        """Ask the peer to answer: it has then read all that was sent before, and what went out with it."""
        self._machine.ping()
        self._touch()

    def go_away(self, last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Say that streams above this one are not looked at; the others go on."""
        self._machine.go_away(last_stream, code)
        self._touch()

    def _touch_frames(self) -> None:
        if self._machine.size:
            self._touch()

    def _touch(self) -> None:
        """What there is to send goes out at the end of this turn."""
        if not self._is_dirty and not self.is_lost:
            self._is_dirty = True
            if self._poller is None:
                self._poller = poller()
            self._poller.flush_later(self)

    def flush(self) -> None:
        self._is_dirty = False
        if self._machine.size:
            self.transport.write(self._machine.take_frames())
