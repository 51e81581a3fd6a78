"""H2StateMachine: an HTTP/2 connection without I/O, for both ends. Frames go in; what they mean goes to the stream that
they are for, or back to the caller; answers stand in `frames`.

What breaks a rule of the connection raises RemoteProtocolError. What breaks a rule of one stream raises StreamError,
and the caller resets that stream. Fields are decoded in every case, since the tables of both ends have to agree.
What a message may contain is the business of `heads`.

Sources: RFC 9113 sections 4 to 6. Priorities mean nothing any more (section 5.3.2); only those that were errors in
RFC 7540 still are.
"""

from __future__ import annotations

from typing import Final

from h2.errors import ErrorCodes

from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import FieldDecoder
from egressproxy.protocols.http2.frame_writer import FrameWriter
from egressproxy.protocols.http2.frames import (
    ACK,
    CLIENT_PREFACE,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER_SIZE,
    MAX_FRAME,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_SIZE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    RemoteProtocolError,
    StreamError,
    check_size,
    frame_header,
    uint31,
    without_padding,
)
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.settings import MAX_WINDOW, local_settings
from egressproxy.protocols.http2.stream_state import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    OPEN,
    RESET_BY_PEER,
    RESET_BY_US,
    H2StreamState,
)

#: A list of fields beyond so many times the limits of a message ends the connection, not the stream.
HARD_LIMIT: Final = 2
#: Frames of one head.
MAX_HEAD_FRAMES: Final = 64

#: Results of `receive_control_frame`: the work that is left to the caller.
NOTHING: Final = 0
SETTINGS_CHANGED: Final = 1  # windows may have grown, and the peer may take more streams
WINDOW_OPENED: Final = 2  # of the connection
STREAM_WINDOW_OPENED: Final = 3
STREAM_RESET: Final = 4  # by the peer; the payload is the code
PING_ANSWERED: Final = 5
PEER_LEAVES: Final = 6  # the payload begins with the last stream that it looks at

_CONTROL: Final = (SETTINGS, PING, GOAWAY)


class H2StateMachine(FrameWriter):
    """A connection. `head_size`: bytes of the head that is coming or has just come, frames and all."""

    __slots__ = (
        "_block", "_decoder", "_depends_on_itself", "_head_flags", "_max_head", "_open_head", "_settings", "head_size",
    )  # fmt: skip

    def __init__(self, limits: HeadLimits, *, client_side: bool, extended_connect: bool = False) -> None:
        """`extended_connect`: the peer may ask for another protocol on a stream (RFC 8441 section 3)."""
        super().__init__(client_side=client_side)
        size = limits.max_head_bytes + 32 * limits.max_fields
        self._decoder = FieldDecoder(HARD_LIMIT * limits.max_fields, HARD_LIMIT * size)
        self._settings = local_settings(client_side=client_side, max_list_size=size, extended_connect=extended_connect)
        self._max_head = HARD_LIMIT * size + MAX_FRAME
        self._open_head = 0  # the stream of a head whose CONTINUATION has not come; 0: none
        self._head_flags = 0
        self._depends_on_itself = False
        self._block: list[bytes] = []
        self.head_size = 0

    def begin(self, window: int) -> None:
        """Write what an endpoint says first (RFC 9113 section 3.4). `window`: as of `open_window`."""
        self.write(CLIENT_PREFACE + self._settings if self.client_side else self._settings)
        self.open_window(window)

    @property
    def is_head_open(self) -> bool:
        """A head has begun, and its CONTINUATION has not come."""
        return self._open_head != 0

    @property
    def ends_stream(self) -> bool:
        """The latest head came with END_STREAM."""
        return self._head_flags & END_STREAM != 0

    # --- content -------------------------------------------------------------------------------------------------
    def receive_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """DATA goes to its stream, with its end. Raises RemoteProtocolError, StreamError."""
        if self._open_head:
            raise RemoteProtocolError("DATA within a head")
        size = len(payload)
        if flags & PADDED:
            payload = without_padding(flags & PADDED, payload)
        stream = self.streams.get(stream_id)
        if stream is None or (stream.stream_state != OPEN and stream.stream_state != HALF_CLOSED_LOCAL):
            self._receive_late_data(stream_id, size, stream)
            return
        if not stream.is_head_received:
            raise RemoteProtocolError("content before the head of its message")
        self._use_window(size)
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise RemoteProtocolError("more content than its stream has room for", ErrorCodes.FLOW_CONTROL_ERROR)
        if flags & END_STREAM:
            stream.stream_state = HALF_CLOSED_REMOTE if stream.stream_state == OPEN else CLOSED
            stream.receive_data(payload, size)
            if not stream.is_over:
                stream.take_end()
        else:
            stream.receive_data(payload, size)

    def _use_window(self, size: int) -> None:
        self.receive_window -= size
        if self.receive_window < 0:
            raise RemoteProtocolError("more content than the connection has room for", ErrorCodes.FLOW_CONTROL_ERROR)

    def _receive_late_data(self, stream_id: int, size: int, stream: H2StreamState | None) -> None:
        """DATA that no stream waits for. What was under way when we reset the stream is dropped (section 5.1)."""
        if not self.has_begun(stream_id):
            raise RemoteProtocolError("DATA on a stream that has not begun")
        state = stream.stream_state if stream is not None else self._closed.state(stream_id)
        if state == CLOSED:
            raise RemoteProtocolError("DATA behind the end of its stream", ErrorCodes.STREAM_CLOSED)
        self._use_window(size)
        self.give_back_of_connection(size)
        if state != RESET_BY_US:
            raise StreamError("DATA behind the end of its stream", stream_id, ErrorCodes.STREAM_CLOSED)

    # --- heads and trailers --------------------------------------------------------------------------------------
    def receive_headers(self, flags: int, stream_id: int, payload: bytes) -> FieldList | None:
        """A response, or trailers, go to their stream. Returns the fields of a new request, for which the caller opens
        a stream (`open_request`) or refuses it. Raises RemoteProtocolError, StreamError.
        """
        if self._open_head:
            raise RemoteProtocolError("HEADERS within a head")
        if stream_id == 0:
            raise RemoteProtocolError("HEADERS on stream 0")
        self.head_size = HEADER_SIZE + len(payload)
        self._head_flags = flags
        self._depends_on_itself = False
        if flags & (PADDED | WITH_PRIORITY):
            payload = self._plain_block(flags, stream_id, payload)
        if flags & END_HEADERS:
            return self._take_head(stream_id, payload)
        self._open_head = stream_id
        self._block.append(payload)
        return None

    def _plain_block(self, flags: int, stream_id: int, payload: bytes) -> bytes:
        """A HEADERS frame's part of the block, without padding and priority."""
        if flags & PADDED:
            payload = without_padding(flags, payload)
        if flags & WITH_PRIORITY:
            if len(payload) < PRIORITY_SIZE:
                raise RemoteProtocolError("a priority that is cut short", ErrorCodes.FRAME_SIZE_ERROR)
            self._depends_on_itself = uint31(payload) == stream_id
            payload = payload[PRIORITY_SIZE:]
        return payload

    def receive_continuation(self, flags: int, stream_id: int, payload: bytes) -> FieldList | None:
        """As `receive_headers`, for the frames behind HEADERS (RFC 9113 section 6.10)."""
        if not self._open_head or stream_id != self._open_head:
            raise RemoteProtocolError("CONTINUATION of no head")
        self.head_size += HEADER_SIZE + len(payload)
        if self.head_size > self._max_head or len(self._block) == MAX_HEAD_FRAMES:
            raise RemoteProtocolError("a head that has no end", ErrorCodes.ENHANCE_YOUR_CALM)
        self._block.append(payload)
        if not flags & END_HEADERS:
            return None
        block = b"".join(self._block)
        self._block.clear()
        self._open_head = 0
        return self._take_head(stream_id, block)

    def _take_head(self, stream_id: int, block: bytes) -> FieldList | None:
        fields = self._decoder.decode(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.client_side or stream_id <= self.last_of_peer or not stream_id & 1:
                self._check_late_head(stream_id)
                return None
            self.last_of_peer = stream_id
            if self._depends_on_itself:
                raise StreamError("a stream that depends on itself", stream_id)
            return fields
        state = stream.stream_state
        if state != OPEN and state != HALF_CLOSED_LOCAL:
            if state == CLOSED:
                raise RemoteProtocolError("HEADERS behind the end of their stream", ErrorCodes.STREAM_CLOSED)
            raise StreamError("HEADERS behind the end of their stream", stream_id, ErrorCodes.STREAM_CLOSED)
        ends_stream = self._head_flags & END_STREAM == END_STREAM
        is_interim = self.client_side and bool(fields) and fields[0][1][:1] == b"1" and fields[0][0] == b":status"
        are_trailers = stream.is_head_received
        if self._depends_on_itself or (
            (is_interim or not ends_stream) if are_trailers else (is_interim and ends_stream)
        ):
            raise StreamError("fields where there can be none", stream_id)
        stream.bytes_in += self.head_size
        if ends_stream:
            stream.stream_state = HALF_CLOSED_REMOTE if state == OPEN else CLOSED
        if are_trailers:
            stream.take_trailers(fields)
        else:
            stream.is_head_received = not is_interim
            stream.take_response(fields, ends_stream=ends_stream)
        if ends_stream and not stream.is_over:
            stream.take_end()
        return None

    def _check_late_head(self, stream_id: int) -> None:
        """HEADERS that no stream waits for. What was under way when we reset the stream is dropped (section 5.1)."""
        if not self.has_begun(stream_id):
            raise RemoteProtocolError("HEADERS on a stream that the peer may not begin")
        state = self._closed.state(stream_id)
        if state == CLOSED:
            raise RemoteProtocolError("HEADERS behind the end of their stream", ErrorCodes.STREAM_CLOSED)
        if state == RESET_BY_PEER:
            raise StreamError("HEADERS behind the end of their stream", stream_id, ErrorCodes.STREAM_CLOSED)
        if state != RESET_BY_US:
            raise RemoteProtocolError("HEADERS on a stream that is older than the latest")

    def open_request(self, stream: H2StreamState) -> None:
        """The stream of the request whose head has just come."""
        self.open_stream(stream)
        stream.is_head_received = True
        stream.bytes_in = self.head_size
        if self._head_flags & END_STREAM:
            stream.stream_state = HALF_CLOSED_REMOTE

    # --- all other frames ----------------------------------------------------------------------------------------
    def receive_control_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> int:
        """Returns what is left to do. Raises RemoteProtocolError, StreamError."""
        if self._open_head:
            raise RemoteProtocolError(f"a frame of type {kind} within a head")
        if kind == PRIORITY:
            self._check_priority(stream_id, payload)
            return NOTHING
        if kind == WINDOW_UPDATE:
            return self._receive_window_update(stream_id, payload)
        check_size(kind, flags, payload)
        if kind == RST_STREAM:
            return self._receive_reset(stream_id)
        if kind == PUSH_PROMISE:
            raise RemoteProtocolError("PUSH_PROMISE")
        if kind not in _CONTROL:
            return NOTHING  # of an unknown type (RFC 9113 section 5.5)
        if stream_id:
            raise RemoteProtocolError(f"a frame of type {kind} on a stream")
        if kind == GOAWAY:
            return PEER_LEAVES
        if kind == PING:
            if flags & ACK:
                return PING_ANSWERED
            self.write(frame_header(PING, ACK, 0, 8) + payload)
            return NOTHING
        return NOTHING if flags & ACK else self._receive_settings(payload)

    def _receive_settings(self, payload: bytes) -> int:
        before = self.peer.initial_window
        self.peer.apply(payload, is_server=self.client_side)
        change = self.peer.initial_window - before
        if change:
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise RemoteProtocolError("a setting makes a window overflow", ErrorCodes.FLOW_CONTROL_ERROR)
        self.write(frame_header(SETTINGS, ACK, 0, 0))
        return SETTINGS_CHANGED

    def _check_priority(self, stream_id: int, payload: bytes) -> None:
        """A priority that is wrong is an error of its stream, and none where that is over (RFC 7540 section 5.3.1)."""
        if stream_id == 0:
            raise RemoteProtocolError("PRIORITY on stream 0")
        if len(payload) != PRIORITY_SIZE:
            self._fail(stream_id, "a PRIORITY of another size", ErrorCodes.FRAME_SIZE_ERROR)
        elif uint31(payload) == stream_id:
            self._fail(stream_id, "a stream that depends on itself", ErrorCodes.PROTOCOL_ERROR)

    def _fail(self, stream_id: int, why: str, code: ErrorCodes) -> None:
        if not self.has_begun(stream_id):
            raise RemoteProtocolError(why, code)
        stream = self.streams.get(stream_id)
        if stream is not None and stream.stream_state < CLOSED:
            raise StreamError(why, stream_id, code)

    def _receive_window_update(self, stream_id: int, payload: bytes) -> int:
        check_size(WINDOW_UPDATE, 0, payload)
        increment = uint31(payload)
        if stream_id == 0:
            self.send_window += increment
            if not increment:
                raise RemoteProtocolError("a WINDOW_UPDATE of 0")
            if self.send_window > MAX_WINDOW:
                raise RemoteProtocolError("the window of the connection overflows", ErrorCodes.FLOW_CONTROL_ERROR)
            return WINDOW_OPENED
        if not self.has_begun(stream_id):
            raise RemoteProtocolError("a WINDOW_UPDATE of a stream that has not begun")
        stream = self.streams.get(stream_id)
        if stream is None or stream.stream_state >= CLOSED:
            return NOTHING
        if not increment:
            raise StreamError("a WINDOW_UPDATE of 0", stream_id)
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise StreamError("the window of a stream overflows", stream_id, ErrorCodes.FLOW_CONTROL_ERROR)
        return STREAM_WINDOW_OPENED

    def _receive_reset(self, stream_id: int) -> int:
        """A reset; of a stream that is over already, nothing (RFC 9113 section 6.4)."""
        if not self.has_begun(stream_id):
            raise RemoteProtocolError("a reset of a stream that has not begun")
        stream = self.streams.get(stream_id)
        if stream is None or stream.stream_state >= CLOSED:
            return NOTHING
        stream.stream_state = RESET_BY_PEER
        return STREAM_RESET
