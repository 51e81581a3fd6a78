"""Http2Connection: what both ends of HTTP/2 share. Frames that come in go through `state_machine` to their streams;
what streams send goes out by `outbound_streams`.

One message that breaks a rule ends its stream, and only what breaks the connection ends that. Back-pressure: a stream
that nobody reads gives no window back. Source: RFC 9113.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import ClassVar, Final

from h2.errors import ErrorCodes

from egressproxy.net.flow_control import HIGH_WATER
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    HEADERS,
    Flood,
    FrameReader,
    LocalProtocolError,
    RemoteProtocolError,
    StreamError,
    uint31,
)
from egressproxy.protocols.http2.outbound_streams import OutboundStreams
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.state_machine import (
    PEER_LEAVES,
    PING_ANSWERED,
    SETTINGS_CHANGED,
    STREAM_RESET,
    STREAM_WINDOW_OPENED,
    WINDOW_OPENED,
)

log = logging.getLogger(__name__)

#: Bytes that a client may send on all streams before somebody has read them.
CONNECTION_WINDOW: Final = 1024 * 1024
#: Heads in one turn: each may begin an exchange, and a thousand that came in one read keep nobody else waiting.
MAX_AT_ONCE: Final = 16
#: Frames in one turn: one read may hold 6,500 with a byte of content each, which filters may look at one by one. And
#: those that are neither heads nor content: one that opens a window may make a hundred streams send.
MAX_FRAMES_AT_ONCE: Final = 256
MAX_CONTROL_FRAMES_AT_ONCE: Final = 64
#: Bytes that a peer leaves untaken of what we have to send beside bodies, before we read no more of it.
MAX_UNTAKEN: Final = 4 * HIGH_WATER
#: How long a peer may take to read our last frame.
CLOSE_S: Final = 10.0
#: What a peer that has broken a rule still sends is dropped for so long, and so many bytes of it.
LINGER_S: Final = 2.0
LINGER_SIZE: Final = 1024 * 1024


class Http2Connection(OutboundStreams):
    """A connection and its streams. The two sides say what a new stream of the peer means."""

    __slots__ = ("_closing", "_dropped", "_is_unfinished", "_reader", "last_frame_at")

    #: Bytes that the peer may send on all streams before somebody has read them.
    window: ClassVar[int] = CONNECTION_WINDOW

    def __init__(
        self, wheel: TimerWheel, limits: HeadLimits, *, client_side: bool, extended_connect: bool = False
    ) -> None:
        """`extended_connect`: the peer may ask for another protocol on a stream (RFC 8441 section 3)."""
        super().__init__(wheel, limits, client_side=client_side, extended_connect=extended_connect)
        self._reader = FrameReader(has_preface=not client_side)
        self._is_unfinished = False  # the next turn reads more frames
        self.last_frame_at = 0.0  # on the wheel's clock: the last whole frame; one may come byte by byte, without end
        self._dropped = 0  # bytes that came behind our last frame
        self._closing: Deadline | None = None

    # --- asyncio's callbacks -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The preface and the settings go out (RFC 9113 section 3.4)."""
        super().connection_made(transport)
        self._machine.begin(self.window)
        self._touch()

    def data_received(self, data: bytes) -> None:
        if self.is_lost:
            self._dropped += len(data)
            if self._dropped > LINGER_SIZE:
                self.transport.abort()
            return
        self._reader.feed(data)
        if not self._is_unfinished:
            self._take_frames()

    def _take_frames(self) -> None:
        reader, machine, now = self._reader, self._machine, self.wheel.now
        frames = heads = controls = 0
        self._is_unfinished = False
        try:
            while reader.next():
                frames += 1
                self.last_frame_at = now
                kind, stream_id, payload = reader.kind, reader.stream_id, reader.payload
                if not payload or (kind != DATA and kind != HEADERS):
                    self._guard.frame_came(kind, now)
                try:
                    if kind == DATA:
                        machine.receive_data(reader.flags, stream_id, payload)
                    elif kind == HEADERS:
                        heads += 1
                        self._take_request(stream_id, machine.receive_headers(reader.flags, stream_id, payload))
                    elif kind == CONTINUATION:
                        self._take_request(stream_id, machine.receive_continuation(reader.flags, stream_id, payload))
                    else:
                        controls += 1
                        self._take_control_frame(kind, reader.flags, stream_id, payload)
                except StreamError as fault:
                    self._fail_stream(fault)
                if self.is_lost:
                    return
                if frames == MAX_FRAMES_AT_ONCE or heads == MAX_AT_ONCE or controls == MAX_CONTROL_FRAMES_AT_ONCE:
                    self._is_unfinished = reader.unread > 0
                    break
        except Flood as flood:
            self.break_off(ErrorCodes.ENHANCE_YOUR_CALM, str(flood))
        except RemoteProtocolError as error:
            self.break_off(error.code, str(error))
        except LocalProtocolError as mistake:  # ours: the other streams cannot trust the connection any more
            self.break_off(ErrorCodes.INTERNAL_ERROR, str(mistake))
        else:
            if self._is_unfinished:
                asyncio.get_running_loop().call_soon(self._go_on)
            self._touch_frames()
            self._look_whether_to_read()

    def _take_request(self, stream_id: int, fields: FieldList | None) -> None:
        if fields is None:
            return
        ends_stream = self._machine.ends_stream
        self.take_request(stream_id, fields, ends_stream=ends_stream)
        if ends_stream:
            stream = self.streams.get(stream_id)
            if stream is not None:
                stream.take_end()

    def _take_control_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        effect = self._machine.receive_control_frame(kind, flags, stream_id, payload)
        if effect == STREAM_WINDOW_OPENED:
            waiting = self._waiting.get(stream_id)
            if waiting is not None:
                self._send_more(waiting)
        elif effect == WINDOW_OPENED:
            self._send_all_waiting()
        elif effect == STREAM_RESET:
            stream = self.streams[stream_id]
            self.forget(stream)
            stream.was_reset(int.from_bytes(payload, "big"))
        elif effect == SETTINGS_CHANGED:
            self._send_all_waiting()
            self.settings_changed()
        elif effect == PING_ANSWERED:
            self.ping_answered()
        elif effect == PEER_LEAVES:
            self.peer_goes_away(uint31(payload))

    def _fail_stream(self, error: StreamError) -> None:
        """What the peer sent makes us reset a stream, which counts against it (CVE-2025-8671). Raises Flood."""
        self.refuse(error.stream_id, error.code)
        stream = self.streams.get(error.stream_id)
        if stream is not None:
            self.forget(stream)
            stream.was_reset(int(error.code))

    def refuse(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset a stream that breaks a rule or is one too many, which counts against the peer. Raises Flood."""
        self.reset_by_id(stream_id, code)
        self.stream_failed()

    def _go_on(self) -> None:
        if not self.is_lost:
            self._take_frames()

    def _look_whether_to_read(self) -> None:
        """Read nothing more while the last read is not used up, or our answers to pings and settings are not taken."""
        is_full = self.is_write_blocked and self.transport.get_write_buffer_size() > MAX_UNTAKEN
        if self._is_unfinished or is_full:
            self.pause_reading()
        elif self.is_reading_paused:
            self.resume_reading()

    @property
    def awaits_head(self) -> bool:
        """A head has begun and is not whole."""
        return self._machine.is_head_open or self._reader.has_partial_head

    def eof_received(self) -> bool:
        """The peer sends no more, and reads no more: HTTP/2 has no half of a connection. Its streams do not wait until
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
        """Nothing more is sent or received."""
        if self.is_lost:
            return
        self.is_lost = True
        streams = list(self.streams.values())
        self.streams.clear()
        self._waiting.clear()
        self._is_unfinished = False
        for stream in streams:
            stream.is_over = True
        for stream in streams:
            stream.connection_is_lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_lost:
            self._send_all_waiting()
            self._look_whether_to_read()

    # --- what comes ------------------------------------------------------------------------------------------------
    def settings_changed(self) -> None:
        """The peer has announced what it allows (RFC 9113 section 6.5)."""

    def ping_answered(self) -> None:
        """An answer to a `ping` of ours is here."""

    @abstractmethod
    def take_request(self, stream_id: int, fields: FieldList, *, ends_stream: bool) -> None:
        """A stream that the peer begins. It is opened (`H2StateMachine.open_request`), or reset."""

    @abstractmethod
    def peer_goes_away(self, last_stream: int) -> None:
        """GOAWAY: streams of ours above this one were not looked at (RFC 9113 section 6.8)."""

    # --- the end ---------------------------------------------------------------------------------------------------
    def break_off(self, code: ErrorCodes, why: str) -> None:
        """End the connection, and everything on it."""
        self.was_broken_off(code, why)
        self.go_away(self.last_begun, code)
        self.close(lingers=code is not ErrorCodes.ENHANCE_YOUR_CALM)

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        """The connection ends because of what the peer did."""
        log.debug("HTTP/2 connection with %s: %s: %s", self.peer_name(), code.name, why)

    def close(self, *, lingers: bool = False) -> None:
        """Send what is unsent, close, and end what is under way. `lingers`: what still comes is dropped for a
        moment: unread, it would make the kernel reset the connection before the peer has read why it ends.
        """
        if self.is_lost:
            return
        self.flush()
        self._closing = Deadline(self.wheel, self._close_now)
        if lingers and self.transport.can_write_eof() and not self.transport.is_closing():
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
