"""Http2Connection: what both ends of HTTP/2 share. Frames come in and are handed to streams; what these say goes out by
`sending`.

h2 keeps the states of streams and windows, and makes the frames. Its checks of messages are ours (`heads`): one message
that breaks a rule ends its stream, and only what breaks the connection ends that. Source: RFC 9113.

Back-pressure: a stream that nobody reads gives no window back.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from itertools import islice
from typing import ClassVar, Final

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error

from egressproxy.net.flow_control import HIGH_WATER
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import FieldList
from egressproxy.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MAX_FRAME,
    PADDED,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Flood,
    Frame,
    FrameError,
    FrameSplitter,
    check_control_frame,
    depends_on,
    goaway_last_stream,
    stream_fault,
    stream_of,
    without_priority,
)
from egressproxy.protocols.http2.sending import SendingSide
from egressproxy.protocols.http2.states import HARD_LIMIT
from egressproxy.protocols.http2.stream import Http2Stream

log = logging.getLogger(__name__)

#: Bytes that a client may send on all streams before somebody has read them.
CONNECTION_WINDOW: Final = 1024 * 1024
#: Heads in one turn: each may begin an exchange, and a thousand that came in one read keep nobody else waiting.
MAX_AT_ONCE: Final = 16
#: Frames in one turn: one read may hold 6,500 with a byte of content each, which filters may look at one by one. And
#: those that h2 takes, padded ones for instance: it needs ten times as long as we do.
MAX_FRAMES_AT_ONCE: Final = 256
MAX_SLOW_AT_ONCE: Final = 64
#: Bytes that a peer leaves untaken of what we have to say beside bodies, before we hear no more of it.
MAX_UNTAKEN: Final = 4 * HIGH_WATER
#: How long a peer may take to read our last word.
CLOSE_S: Final = 10.0
#: What a peer that has broken a rule still says is dropped for so long, and so many bytes of it.
LINGER_S: Final = 2.0
LINGER_SIZE: Final = 1024 * 1024

_OF_HEADS: Final = (HEADERS, CONTINUATION)
#: Types of which a frame may be an error of its stream alone.
_MAY_FAIL_ALONE: Final = (PRIORITY, WINDOW_UPDATE)
_PRIORITY_SHAPE: Final = PADDED | WITH_PRIORITY
_HEADS: Final = (RequestReceived, ResponseReceived, TrailersReceived, InformationalResponseReceived)


class Http2Connection(SendingSide):
    """A connection and its streams. The two sides say what a head that comes means."""

    __slots__ = (
        "_closing", "_frames", "_later", "_most_head", "head_size",
    )  # fmt: skip

    #: Bytes that the peer may send on all streams before somebody has read them.
    window: ClassVar[int] = CONNECTION_WINDOW

    def __init__(
        self, wheel: TimerWheel, limits: HeadLimits, *, client_side: bool, extended_connect: bool = False
    ) -> None:
        """`extended_connect`: the peer may ask for another protocol on a stream (RFC 8441 section 3)."""
        super().__init__(wheel, limits, client_side=client_side, extended_connect=extended_connect)
        self._frames = FrameSplitter(has_preface=not client_side)
        self._most_head = HARD_LIMIT * (limits.max_head_bytes + 32 * limits.max_fields) + MAX_FRAME
        self.head_size = 0  # bytes of the head that is coming, frames and all
        self._later: list[Frame] = []  # frames of the next turn
        self._closing: Deadline | None = None

    # --- asyncio's callbacks -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The preface and the settings go out (RFC 9113 section 3.4)."""
        super().connection_made(transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(self.window - 65535)
        self._touch()

    def data_received(self, data: bytes) -> None:
        if self.is_lost:
            self.head_size += len(data)
            if self.head_size > LINGER_SIZE:
                self.transport.abort()
            return
        try:
            frames = self._frames.feed(data)
        except FrameError as error:
            self.break_off(error.code, str(error))
            return
        if self._later:
            self._later += frames
        else:
            self._take_frames(frames)

    def _take_frames(self, frames: list[Frame]) -> None:
        now, heads, slow, coming = self.wheel.now, 0, 0, iter(frames)
        try:
            for kind, flags, number, frame in islice(coming, MAX_FRAMES_AT_ONCE):
                if kind == DATA:
                    if len(frame) <= HEADER_SIZE:
                        self._guard.frame_came(kind, 0, now)
                    if not self._take_data(flags, number, frame):
                        self._take_frame(kind, frame)
                        slow += 1
                elif kind == HEADERS:
                    if len(frame) <= HEADER_SIZE:
                        self._guard.frame_came(kind, 0, now)
                    if not (self._take_request(flags, number, frame) or self._take_fields(flags, number, frame)):
                        self._take_frame(kind, frame)
                    heads += 1
                    if heads == MAX_AT_ONCE:
                        break
                else:
                    if kind != PREFACE:
                        self._guard.frame_came(kind, len(frame) - HEADER_SIZE, now)
                    self._take_frame(kind, frame)
                    slow += 1
                if self.is_lost:
                    return
                if slow == MAX_SLOW_AT_ONCE:
                    break
        except Flood as flood:
            self.break_off(ErrorCodes.ENHANCE_YOUR_CALM, str(flood))
        except FrameError as error:
            self.break_off(error.code, str(error))
        except H2Error as error:
            code = getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR)
            self.break_off(code, f"a rule of HTTP/2 is broken: {type(error).__name__}", is_told=True)
        else:
            if self.is_lost:
                return
            self._later = list(coming)
            if self._later:
                asyncio.get_running_loop().call_soon(self._go_on)
            if not self._is_dirty:
                self._touch()
            self._look_whether_to_read()

    def _take_request(self, flags: int, number: int, frame: bytes) -> bool:
        """A HEADERS frame, if it is the head of a request, and the usual one."""
        found = self._h2.new_request(flags, number, frame)
        if found is None:
            return False
        fields, has_ended = found
        self.head_size = len(frame)
        self.take_request(number, fields, has_ended=has_ended)
        self.head_size = 0
        if has_ended:
            stream = self.streams.get(number)
            if stream is not None:
                stream.take_end()
        return True

    def _take_fields(self, flags: int, number: int, frame: bytes) -> bool:
        """A HEADERS frame, if it is the head of a response, or trailers, and the usual one."""
        found = self._h2.new_fields(flags, number, frame)
        if found is None:
            return False
        fields, has_ended, are_trailers = found
        stream = self.streams.get(number)
        if stream is not None:
            stream.bytes_in += len(frame)
            if are_trailers:
                stream.take_trailers(fields)
            else:
                stream.take_response(fields, has_ended=has_ended)
            if has_ended and self.streams.get(number) is stream:
                stream.take_end()
        return True

    def _take_data(self, flags: int, number: int, frame: bytes) -> bool:
        """A DATA frame, if it is the usual one."""
        found = self._h2.new_data(flags, number, frame)
        if found is None:
            return False
        data, has_ended = found
        size = len(data)
        stream = self.streams.get(number)
        if stream is not None:
            stream.data_came(data, size)
        elif self._h2.give_back(number, size):  # given up meanwhile
            self._touch()
        if has_ended:
            stream = self.streams.get(number)
            if stream is not None:
                stream.take_end()
        return True

    def _take_frame(self, kind: int, frame: bytes) -> None:
        """One whole frame."""
        h2 = self._h2
        if kind in _OF_HEADS:
            self.head_size += len(frame)
            if self.head_size > self._most_head:
                raise Flood("a head that has no end")
        if kind > HEADERS:
            if kind in _MAY_FAIL_ALONE and not self.is_head_open and self._stream_fails(kind, frame):
                return
            check_control_frame(kind, frame)
            if kind == CONTINUATION and not self.is_head_open:
                raise FrameError("CONTINUATION of no head")
            if kind == GOAWAY and not self.is_head_open:
                self.peer_goes_away(goaway_last_stream(frame))
                return
            if kind == RST_STREAM and not self.is_head_open:
                self._take_reset(stream_of(frame), int.from_bytes(frame[HEADER_SIZE:], "big"))
                return
        elif kind == HEADERS and frame[4] & _PRIORITY_SHAPE == WITH_PRIORITY and self._take_prioritized(frame):
            self.head_size = 0
            return
        for event in h2.hear(kind, frame):
            self._take(event)

    def _stream_fails(self, kind: int, frame: bytes) -> bool:
        """Whether a frame is an error of its stream alone, which is reset; h2 would end the connection. A stream that
        is over has none: the frame may have been under way (RFC 9113 section 5.1).
        """
        code = stream_fault(kind, frame)
        number = stream_of(frame)
        if code is None or number == 0 or not self._h2.has_begun(number):
            return False
        if number in self._h2.streams:
            self.refuse(number, code)
            stream = self.streams.get(number)
            if stream is not None:
                self.forget(stream)
                stream.was_reset(int(code))
        return True

    def _take_prioritized(self, frame: bytes) -> bool:
        """HEADERS with a priority: as without. A stream that depends on itself is reset (RFC 7540 section 5.3.1)."""
        if len(frame) < HEADER_SIZE + 5:
            return False
        number, plain = stream_of(frame), without_priority(frame)
        flags = plain[4]
        if depends_on(frame) != number:
            return self._take_request(flags, number, plain) or self._take_fields(flags, number, plain)
        if self._h2.new_request(flags, number, plain) is None:
            return False
        self.refuse(number, ErrorCodes.PROTOCOL_ERROR)
        return True

    def _take_reset(self, number: int, code: int) -> None:
        """A reset; of a stream that is over already, nothing (RFC 9113 section 6.4)."""
        h2 = self._h2
        if number == 0 or not h2.has_begun(number):
            raise FrameError("a reset of a stream that has not begun")
        if not h2.heard_reset(number):
            return
        stream = self.streams.get(number)
        if stream is not None:
            self.forget(stream)
            stream.was_reset(code)
        else:
            h2.let_go(number)

    def _go_on(self) -> None:
        frames, self._later = self._later, []
        if not self.is_lost:
            self._take_frames(frames)

    def _look_whether_to_read(self) -> None:
        """Hear nothing more while the last read is not used up, or our answers to pings and settings are not taken."""
        is_full = self.is_write_blocked and self.transport.get_write_buffer_size() > MAX_UNTAKEN
        if self._later or is_full:
            self.pause_reading()
        elif self.is_reading_paused:
            self.resume_reading()

    @property
    def is_head_open(self) -> bool:
        """A head has begun, and its CONTINUATION has not come."""
        return bool(self._h2.incoming_buffer._headers_buffer)

    @property
    def awaits_head(self) -> bool:
        """A head has begun and is not whole."""
        return self.is_head_open or self._frames.has_partial_head

    def eof_received(self) -> bool:
        """The peer says no more, and hears no more: HTTP/2 has no half of a connection. Its streams do not wait until
        it takes what is unsent.
        """
        if self.streams and self.transport.get_write_buffer_size():
            self.transport.abort()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end_all()
        if self._closing is not None:
            self._closing.close()

    def _end_all(self) -> None:
        """Nothing more is said or heard."""
        if self.is_lost:
            return
        self.is_lost = True
        streams, self.streams = list(self.streams.values()), {}
        self._waiting.clear()
        self._later = []
        self._h2._frame_dispatch_table.clear()  # else it would hold itself
        for stream in streams:
            stream.connection_is_lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_lost:
            self._send_all_waiting()
            self._look_whether_to_read()

    # --- what comes ------------------------------------------------------------------------------------------------
    def _take(self, event: Event) -> None:
        if isinstance(event, _HEADS):
            self.take_head(event, self.streams.get(event.stream_id))
            self.head_size = 0
        elif isinstance(event, DataReceived):
            stream = self.streams.get(event.stream_id)
            size = event.flow_controlled_length
            if stream is None:  # given up meanwhile
                self._h2.acknowledge_received_data(size, event.stream_id)
            else:
                stream.data_came(event.data, size)
        elif isinstance(event, StreamEnded):
            stream = self.streams.get(event.stream_id)
            if stream is not None:
                stream.take_end()
        elif isinstance(event, WindowUpdated):
            if event.stream_id == 0:
                self._send_all_waiting()
            elif event.stream_id in self._waiting:
                self._send_more(self._waiting[event.stream_id])
        elif isinstance(event, RemoteSettingsChanged):
            self._send_all_waiting()
            self.settings_changed()
        elif isinstance(event, StreamReset):
            if not event.remote_reset:  # what the peer sent made h2 reset it (CVE-2025-8671)
                self._guard.stream_failed(self.wheel.now)
            stream = self.streams.get(event.stream_id)
            if stream is not None:
                self.forget(stream)
                stream.was_reset(int(event.error_code))
            else:
                self._h2.let_go(event.stream_id)
        elif isinstance(event, PingAckReceived):
            self.ping_answered()

    def settings_changed(self) -> None:
        """The peer has said what it allows (RFC 9113 section 6.5)."""

    def ping_answered(self) -> None:
        """An answer to a `ping` of ours is here."""

    @abstractmethod
    def take_head(self, event: Event, stream: Http2Stream | None) -> None:
        """A list of fields has come: a head, or trailers. `stream` None: it is a new one, or was given up."""

    def take_request(self, number: int, fields: FieldList, *, has_ended: bool) -> None:
        """A request has come, on a new stream of a client. Raises FrameError where the peer is a server."""
        raise FrameError("a request of a server")

    @abstractmethod
    def peer_goes_away(self, last_stream: int) -> None:
        """GOAWAY: streams of ours above this one were not looked at (RFC 9113 section 6.8)."""

    # --- the end ---------------------------------------------------------------------------------------------------
    def break_off(self, code: ErrorCodes, why: str, *, is_told: bool = False) -> None:
        """End the connection, and everything on it. `is_told`: h2 has made the GOAWAY already."""
        self.was_broken_off(code, why)
        if not is_told:
            self.go_away(self._h2.highest_inbound_stream_id, code)
        self.close(lingers=code is not ErrorCodes.ENHANCE_YOUR_CALM)

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        """The connection ends because of what the peer did."""
        log.debug("HTTP/2 connection with %s: %s: %s", self.peer_name(), code.name, why)

    def close(self, *, lingers: bool = False) -> None:
        """Say what was to be said, close, and end what is under way. `lingers`: what still comes is dropped for a
        moment: unread, it would make the kernel reset the connection before the peer has read why it ends.
        """
        if self.is_lost:
            return
        self.flush()
        self._closing = Deadline(self.wheel, self._close_now)
        if lingers and self.transport.can_write_eof() and not self.transport.is_closing():
            self.head_size = 0
            self._closing.after(LINGER_S)
            self.transport.write_eof()
            self.resume_reading()
        else:
            self._close_now()
        self._end_all()

    def _close_now(self) -> None:
        assert self._closing is not None
        self._closing.callback = self.transport.abort
        self._closing.after(CLOSE_S)
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()
