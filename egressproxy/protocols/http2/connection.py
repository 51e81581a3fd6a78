"""Http2Connection: what both ends of HTTP/2 share. Frames come in and are handed to streams; streams say bodies, which
go out as the peer's windows and the transport allow.

h2 keeps the states of streams and windows, and makes the frames. Its checks of messages are ours (`heads`): one message
that breaks a rule ends its stream, and only what breaks the connection ends that. Source: RFC 9113.

Back-pressure: a stream that may not send pauses who feeds it; a stream that nobody reads gives no window back.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import Any

from h2.config import H2Configuration
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
from h2.exceptions import H2Error, StreamClosedError
from h2.settings import SettingCodes
from h2.stream import H2Stream, StreamClosedBy
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, RstStreamFrame

from egressproxy.net.flow_control import COPY_LIMIT, HIGH_WATER, FlowControl, Reads
from egressproxy.net.loop import poller
from egressproxy.net.pieces import keep
from egressproxy.net.timers import Deadline, TimerWheel
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.compact import ClosedStreams, CompactSettings
from egressproxy.protocols.http2.field_coding import FieldDecoder, FieldEncoder, FieldList
from egressproxy.protocols.http2.flood_guard import Flood, FloodGuard
from egressproxy.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MAX_FRAME,
    PREFACE,
    RST_STREAM,
    FrameError,
    FrameSplitter,
    check_control_frame,
    goaway_last_stream,
    stream_of,
)
from egressproxy.protocols.http2.usual_frames import UsualFrames

__all__ = ["MAX_STREAMS", "Http2Connection", "Http2Stream"]

log = logging.getLogger(__name__)

#: Streams that a peer may have open at a time.
MAX_STREAMS = 100
#: Bytes that a client may send on a stream, and on all of them, before somebody has read them.
STREAM_WINDOW = 256 * 1024
CONNECTION_WINDOW = 1024 * 1024
#: A list of fields beyond so many times the limits of a message ends the connection, not the stream.
HARD_LIMIT = 2
#: Heads in one turn: each may begin an exchange, and a thousand that came in one read keep nobody else waiting.
MAX_AT_ONCE = 16
#: Frames in one turn: one read may hold 6,500 with a byte of content each.
MAX_FRAMES_AT_ONCE = 1024
#: Bytes that a peer leaves untaken of what we have to say beside bodies, before we hear no more of it.
MAX_UNTAKEN = 4 * HIGH_WATER
#: A frame that is shorter and not the last of what there was has a tiny window to go through.
LONG_PIECE = 1024
#: How long a peer may take to read our last word.
CLOSE_S = 10.0

_OF_HEADS = (HEADERS, CONTINUATION)
_HEADS = (RequestReceived, ResponseReceived, TrailersReceived, InformationalResponseReceived)


class _StreamState(H2Stream):
    """h2 would end the connection where content and Content-Length differ: `Http2Stream` ends the stream."""

    def _initialize_content_length(self, headers: Any) -> None:
        pass

    def _track_content_length(self, length: int, end_stream: bool) -> None:
        pass


class _States(UsualFrames):
    """h2's state machines, with our coding of fields."""

    stream_class = _StreamState

    def __init__(self, *, client_side: bool, limits: HeadLimits, extended_connect: bool) -> None:
        config = H2Configuration(
            client_side=client_side,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            split_outbound_cookies=False,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
        )
        super().__init__(config)
        size = limits.max_head_bytes + 32 * limits.max_fields
        self.decoder = FieldDecoder(HARD_LIMIT * limits.max_fields, HARD_LIMIT * size)  # type: ignore[assignment]
        self.encoder = FieldEncoder()
        values: dict[int, int] = {
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: size,
        }
        if extended_connect:
            values[SettingCodes.ENABLE_CONNECT_PROTOCOL] = 1
        if client_side:
            values[SettingCodes.ENABLE_PUSH] = 0
            del values[SettingCodes.MAX_CONCURRENT_STREAMS]
        self.local_settings = CompactSettings(client=client_side, initial_values=values)
        self.remote_settings = CompactSettings(client=not client_side)
        self._closed_streams = ClosedStreams()  # type: ignore[assignment]

    def _begin_new_stream(self, stream_id: int, allowed_ids: Any) -> H2Stream:
        stream = super()._begin_new_stream(stream_id, allowed_ids)
        stream.__class__ = _StreamState
        return stream

    # h2 would end the connection over one stream too many, and count all of them for each that begins.
    @property
    def open_inbound_streams(self) -> int:
        return 0

    @property
    def open_outbound_streams(self) -> int:
        return len(self.streams)

    def _handle_data_on_closed_stream(
        self, events: list[Event], exc: StreamClosedError, frame: DataFrame
    ) -> tuple[list[Frame], list[Event]]:
        """What was on its way when we reset a stream is not answered by another reset (RFC 9113 section 5.1)."""
        frames, events = super()._handle_data_on_closed_stream(events, exc, frame)
        if self._stream_closed_by(frame.stream_id) is StreamClosedBy.SEND_RST_STREAM:
            frames = [each for each in frames if not isinstance(each, RstStreamFrame)]
        return frames, events

    def let_go(self, number: int) -> None:
        """A stream is over. h2 would find out when it counts."""
        stream = self.streams.get(number)
        if stream is not None and stream.closed:
            del self.streams[number]
            self._closed_streams[number] = stream.closed_by


class Http2Stream:
    """One stream: what it has to send, what it has got and not handed on, and who feeds it."""

    __slots__ = (
        "_given_back",
        "_is_ending",
        "_trailers",
        "_unsent",
        "_unsent_size",
        "connection",
        "feeder",
        "has_said_all",
        "is_reading_paused",
        "is_write_blocked",
        "number",
        "octets_in",
        "octets_out",
    )

    def __init__(self, connection: Http2Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.feeder: Reads | None = None
        self.is_write_blocked = False
        self.is_reading_paused = False
        self.has_said_all = False  # END_STREAM is on its way
        self.octets_in = 0
        self.octets_out = 0
        self._given_back = 0  # bytes of the window that are given back when reading goes on
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._is_ending = False  # END_STREAM goes out behind what is unsent
        self._trailers: FieldList | None = None

    # --- writing -------------------------------------------------------------------------------------------------
    def feed_from(self, feeder: Reads | None) -> None:
        """From now on this source fills us; it is paused at once if we are blocked."""
        self.feeder = feeder
        if self.is_write_blocked and feeder is not None:
            feeder.pause_reading()

    @property
    def is_over(self) -> bool:
        """Neither side says more, or the connection is gone: what is said now goes nowhere."""
        return self.connection.streams.get(self.number) is not self

    def send_fields(self, fields: FieldList, *, is_last: bool) -> None:
        """A head. `is_last`: nothing follows."""
        if not self.is_over:
            self.connection.send_fields(self, fields, is_last=is_last)

    def send_body(self, data: bytes) -> None:
        """One piece of body, never empty."""
        if self.is_over:
            return
        self.octets_out += len(data)
        if not self._unsent and not self._is_ending and self.connection.send_at_once(self, data):
            return
        keep(self._unsent, data)
        self._unsent_size += len(data)
        self.connection.send_waiting(self)
        self._look_whether_blocked()

    def send_last(self, data: bytes) -> None:
        """The whole body, never empty, and the end behind it."""
        self._is_ending = not self.is_over
        self.send_body(data)

    def end(self, trailers: FieldList | None) -> None:
        """Nothing more is said on this stream."""
        if self.is_over:
            return
        self._is_ending = True
        self._trailers = trailers
        self.connection.send_waiting(self)

    def _look_whether_blocked(self) -> None:
        is_blocked = self._unsent_size > HIGH_WATER
        if is_blocked is not self.is_write_blocked:
            self.is_write_blocked = is_blocked
            if self.feeder is not None:
                if is_blocked:
                    self.feeder.pause_reading()
                else:
                    self.feeder.resume_reading()

    def take_unsent(self, most: int) -> bytes:
        """At most so many bytes of what is to be sent."""
        piece = self._unsent[0]
        if len(piece) > most:
            self._unsent[0] = piece[most:]
            piece = piece[:most]
        else:
            del self._unsent[0]
        self._unsent_size -= len(piece)
        return piece

    @property
    def has_unsent(self) -> bool:
        """Bytes of body, or the end, wait for a window."""
        return bool(self._unsent) or self._is_ending

    @property
    def is_ending(self) -> bool:
        """The end was said, whether or not it is on its way."""
        return self._is_ending or self.has_said_all

    @property
    def unsent_size(self) -> int:
        """Bytes of body that wait for a window."""
        return self._unsent_size

    # --- reading -------------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        """Give no window back: the peer stops when it is used up."""
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        """Give back what was kept meanwhile."""
        self.is_reading_paused = False
        if self._given_back:
            size, self._given_back = self._given_back, 0
            self.connection.give_back(self, size)

    def data_came(self, data: bytes, size: int) -> None:
        """`size` bytes of the window were used, for this data."""
        self.octets_in += len(data)
        if self.is_reading_paused:
            self._given_back += size
        else:
            self.connection.give_back(self, size)
        if data:
            self.take_data(data)

    # --- for the two sides -----------------------------------------------------------------------------------------
    @abstractmethod
    def take_data(self, data: bytes) -> None:
        """A piece of the peer's message."""

    @abstractmethod
    def take_trailers(self, fields: FieldList) -> None:
        """Fields behind the peer's content."""

    @abstractmethod
    def take_end(self) -> None:
        """The peer's message is whole."""

    @abstractmethod
    def was_reset(self, code: int) -> None:
        """The peer has given the stream up (RFC 9113 section 7: the error code)."""

    @abstractmethod
    def connection_is_lost(self) -> None:
        """The connection is gone, and the stream with it."""

    def was_sent(self) -> None:
        """END_STREAM is on its way, behind all that was to be said."""

    def reset(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Give the stream up. What was to be sent goes nowhere."""
        self._unsent.clear()
        self._unsent_size = 0
        self._is_ending = False
        self.connection.reset(self, code)


class Http2Connection(FlowControl):
    """A connection and its streams. The two sides say what a head that comes means."""

    __slots__ = (
        "_closing",
        "_frames",
        "_guard",
        "_h2",
        "_is_dirty",
        "_later",
        "_most_head",
        "_waiting",
        "head_size",
        "is_lost",
        "limits",
        "streams",
        "wheel",
    )

    #: Bytes that the peer may send on all streams before somebody has read them.
    window = CONNECTION_WINDOW

    def __init__(
        self, wheel: TimerWheel, limits: HeadLimits, *, client_side: bool, extended_connect: bool = False
    ) -> None:
        """`extended_connect`: the peer may ask for another protocol on a stream (RFC 8441 section 3)."""
        super().__init__()
        self.wheel = wheel
        self.limits = limits
        self.streams: dict[int, Http2Stream] = {}
        self.is_lost = False  # nothing more is said or heard; the transport may still be closing
        self._h2 = _States(client_side=client_side, limits=limits, extended_connect=extended_connect)
        self._frames = FrameSplitter(has_preface=not client_side)
        self._guard = FloodGuard(wheel.now)
        self._most_head = HARD_LIMIT * (limits.max_head_bytes + 32 * limits.max_fields) + MAX_FRAME
        self.head_size = 0  # bytes of the head that is coming, frames and all
        self._is_dirty = False  # h2 may have something to send at the end of this turn
        self._waiting: dict[int, Http2Stream] = {}  # those that have more to say than the windows allow
        self._later: list[tuple[int, bytes]] = []  # frames of the next turn
        self._closing: Deadline | None = None

    # --- asyncio's callbacks -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The preface and the settings go out (RFC 9113 section 3.4)."""
        super().connection_made(transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(self.window - 65535)
        self._touch()

    def data_received(self, data: bytes) -> None:
        """Frames of the peer."""
        if self.is_lost:
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

    def _take_frames(self, frames: list[tuple[int, bytes]]) -> None:
        now, heads, last = self.wheel.now, 0, MAX_FRAMES_AT_ONCE - 1
        try:
            for at, (kind, frame) in enumerate(frames):
                if kind == HEADERS:
                    if len(frame) <= HEADER_SIZE:
                        self._guard.frame_came(kind, 0, now)
                    if not self._take_request(frame):
                        self._take_frame(kind, frame)
                else:
                    if kind != PREFACE:
                        self._guard.frame_came(kind, len(frame) - HEADER_SIZE, now)
                    if kind != DATA or not self._take_data(frame):
                        self._take_frame(kind, frame)
                if self.is_lost:
                    return
                if kind == HEADERS:
                    heads += 1
                    if heads == MAX_AT_ONCE:
                        last = at
                if at == last and at + 1 < len(frames):
                    self._later = frames[at + 1 :]
                    asyncio.get_running_loop().call_soon(self._go_on)
                    break
        except Flood as flood:
            self.break_off(ErrorCodes.ENHANCE_YOUR_CALM, str(flood))
        except FrameError as error:
            self.break_off(error.code, str(error))
        except H2Error as error:
            code = getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR)
            self.break_off(code, f"a rule of HTTP/2 is broken: {type(error).__name__}", is_told=True)
        else:
            self._touch()
            self._look_whether_to_read()

    def _take_request(self, frame: bytes) -> bool:
        """A HEADERS frame, if it is the head of a request, and the usual one."""
        found = self._h2.new_request(frame)
        if found is None:
            return False
        number, fields, has_ended = found
        self.head_size = len(frame)
        self.take_request(number, fields, has_ended=has_ended)
        self.head_size = 0
        if has_ended:
            stream = self.streams.get(number)
            if stream is not None:
                stream.take_end()
        return True

    def _take_data(self, frame: bytes) -> bool:
        """A DATA frame, if it is the usual one."""
        found = self._h2.new_data(frame)
        if found is None:
            return False
        number, data, has_ended = found
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
            check_control_frame(kind, frame)
            if kind == GOAWAY and not self.is_head_open:
                self.peer_goes_away(goaway_last_stream(frame))
                return
            if kind == RST_STREAM and stream_of(frame) > max(
                h2.highest_inbound_stream_id, h2.highest_outbound_stream_id
            ):
                raise FrameError("a reset of a stream that has not begun")
        for event in h2.hear(kind, frame):
            self._take(event)

    def _go_on(self) -> None:
        """The next turn: frames that were left."""
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
        """The peer says no more, and hears no more: HTTP/2 has no half of a connection."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Every stream ends."""
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
        """The transport has drained: what waits goes out."""
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

    # --- what goes -------------------------------------------------------------------------------------------------
    def send_fields(self, stream: Http2Stream, fields: FieldList, *, is_last: bool) -> None:
        """A head or trailers of this stream."""
        before = len(self._h2._data_to_send)
        self._h2.say_fields(stream.number, fields, is_last=is_last)
        stream.octets_out += len(self._h2._data_to_send) - before
        self._guard.frame_sent()
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
            stream.octets_out += HEADER_SIZE + len(block) + len(body)
            stream.has_said_all = True
            if len(h2._data_to_send) > COPY_LIMIT:
                self.flush()
            stream.was_sent()
            return
        before = len(h2._data_to_send)
        h2.say_response(number, block, is_last=body == b"")
        stream.octets_out += len(h2._data_to_send) - before
        self._guard.frame_sent()
        if body:
            stream.send_last(body)
        elif body is not None:
            stream.has_said_all = True
            stream.was_sent()

    def send_at_once(self, stream: Http2Stream, data: bytes) -> bool:
        """A piece of a body before which nothing waits. False: it has to wait, at least in part."""
        h2 = self._h2
        if self.is_write_blocked or len(data) > h2.room_for(stream.number):
            return False
        h2.say_data(stream.number, data, is_last=False)
        self._guard.frame_sent()
        if not self._is_dirty:
            self._touch()
        if len(h2._data_to_send) > COPY_LIMIT:
            self.flush()
        return True

    def send_waiting(self, stream: Http2Stream) -> None:
        """Send what the windows allow of what this stream has to say; the rest waits."""
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
                h2.say_fields(stream.number, stream._trailers, is_last=True)
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
        """What was read makes room for more (RFC 9113 section 6.9)."""
        if size and not self.is_lost and self._h2.give_back(stream.number, size):
            self._touch()

    def reset(self, stream: Http2Stream, code: ErrorCodes) -> None:
        """Tell the peer that the stream is given up; nothing where it is over."""
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
        """A peer has broken a rule on a stream. Raises Flood where it does so all the time."""
        self._guard.stream_failed(self.wheel.now)

    def forget(self, stream: Http2Stream) -> bool:
        """The stream is over. False where it was so before."""
        if self.streams.pop(stream.number, None) is None:
            return False
        self._waiting.pop(stream.number, None)
        kept, stream._given_back = stream._given_back, 0
        self.give_back(stream, kept)  # of the window of the connection
        self._h2.let_go(stream.number)
        return True

    def ping(self) -> None:
        """Ask the peer to answer: it has then read all that was said before."""
        self._h2.ping(bytes(8))
        self._touch()

    def go_away(self, last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Say that streams above this one are not looked at; the others go on. h2 would end the connection."""
        frame = GoAwayFrame(0, last_stream_id=last_stream, error_code=int(code))
        self._h2._data_to_send += frame.serialize()
        self._touch()

    def break_off(self, code: ErrorCodes, why: str, *, is_told: bool = False) -> None:
        """End the connection, and everything on it. `is_told`: h2 has made the GOAWAY already."""
        self.was_broken_off(code, why)
        if not is_told:
            self.go_away(self._h2.highest_inbound_stream_id, code)
        self.close()

    def was_broken_off(self, code: ErrorCodes, why: str) -> None:
        """The connection ends because of what the peer did."""
        log.debug("HTTP/2 connection with %s: %s: %s", self.peer_name(), code.name, why)

    def close(self) -> None:
        """Say what was to be said, then close, and end what is still under way."""
        if self.is_lost:
            return
        self.flush()
        if self._closing is None:
            self._closing = Deadline(self.wheel, self.transport.abort)
            self._closing.after(CLOSE_S)
        self.transport.close()
        self._end_all()

    def abort(self) -> None:
        """Close now; what is unsent goes nowhere."""
        self.transport.abort()

    def _touch(self) -> None:
        """What h2 has made goes out at the end of this turn."""
        if not self._is_dirty and not self.is_lost:
            self._is_dirty = True
            if self._poller is None:
                self._poller = poller()
            self._poller.flush_later(self)

    def flush(self) -> None:
        """Hand to the transport what h2 has made."""
        self._is_dirty = False
        data = self._h2._data_to_send
        if data:
            self._h2._data_to_send = bytearray()
            self.transport.write(data)
