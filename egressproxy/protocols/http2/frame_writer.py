"""FrameWriter: what an HTTP/2 connection sends. It checks the states of streams and the peer's windows, and collects
frames in `frames`; it does no I/O.

A caller that breaks a rule gets LocalProtocolError, and nothing is sent. Field blocks come coded (`field_coding`).
Sources: RFC 9113 sections 4.3, 5.1 and 5.2.
"""

from __future__ import annotations

from h2.errors import ErrorCodes

from egressproxy.protocols.http2.field_coding import NO_TABLE
from egressproxy.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MAX_FRAME,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    LocalProtocolError,
    frame_header,
)
from egressproxy.protocols.http2.settings import DEFAULT_WINDOW, MAX_WINDOW, STREAM_WINDOW, PeerSettings
from egressproxy.protocols.http2.stream_state import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    IDLE,
    OPEN,
    RESET_BY_US,
    ClosedStreams,
    H2StreamState,
    window_increment,
)


class FrameWriter:
    """The sending half of a connection. `streams`: those that are not forgotten yet, by stream identifier."""

    __slots__ = (
        "_closed", "_connection_limit", "_connection_read", "_has_sent_block", "_last_of_ours", "client_side", "frames",
        "last_of_peer", "peer", "receive_window", "send_window", "size", "streams",
    )  # fmt: skip

    def __init__(self, *, client_side: bool) -> None:
        self.client_side = client_side
        self.streams: dict[int, H2StreamState] = {}
        self.peer = PeerSettings()
        self.frames: list[bytes] = []  # to be sent, in order
        self.size = 0  # bytes of them
        self.send_window = DEFAULT_WINDOW  # of the connection, as that of a H2StreamState
        self.receive_window = DEFAULT_WINDOW
        self.last_of_peer = 0  # the highest stream that the peer has begun
        self._connection_limit = DEFAULT_WINDOW
        self._connection_read = 0
        self._last_of_ours = 0
        self._has_sent_block = False
        self._closed = ClosedStreams()

    def take_frames(self) -> bytes:
        """All that is to be sent now."""
        frames, self.frames, self.size = self.frames, [], 0
        return b"".join(frames)

    def write(self, frame: bytes) -> None:
        """Queue a frame behind the frames that wait."""
        self.frames.append(frame)
        self.size += len(frame)

    # --- streams -------------------------------------------------------------------------------------------------
    def begin_stream(self, stream: H2StreamState) -> None:
        """Give a new stream of ours its identifier. Raises LocalProtocolError where the peer takes no more of them."""
        if len(self.streams) >= self.peer.max_streams:
            raise LocalProtocolError("the peer takes no more streams")
        stream_id = self._last_of_ours + 2 if self._last_of_ours else 1 if self.client_side else 2
        if stream_id > MAX_WINDOW:
            raise LocalProtocolError("all stream identifiers are used up")
        self._last_of_ours = stream_id
        stream.stream_id = stream_id
        self.open_stream(stream)

    def open_stream(self, stream: H2StreamState) -> None:
        """From now on frames with this identifier go to the stream."""
        stream.stream_state = OPEN
        stream.is_over = False
        stream.receive_window = STREAM_WINDOW
        stream.send_window = self.peer.initial_window
        self.streams[stream.stream_id] = stream

    def forget_stream(self, stream: H2StreamState) -> None:
        """The stream is over, or nobody wants to know more of it."""
        del self.streams[stream.stream_id]
        stream.is_over = True
        self._closed.add(stream.stream_id, stream.stream_state if stream.stream_state >= CLOSED else RESET_BY_US)

    def reset_stream(self, stream_id: int, code: ErrorCodes) -> None:
        """Send RST_STREAM. Its caller forgets the stream, where there is one."""
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._closed.state(stream_id) == IDLE:
                self._closed.add(stream_id, RESET_BY_US)
        elif stream.stream_state < CLOSED:
            stream.stream_state = RESET_BY_US
        self.write(frame_header(RST_STREAM, 0, stream_id, 4) + int(code).to_bytes(4, "big"))

    # --- heads ---------------------------------------------------------------------------------------------------
    def send_headers(self, stream: H2StreamState, block: bytes, *, is_last: bool) -> None:
        """The head of a request, on a stream that `begin_stream` has opened, or the final one of a response."""
        self._check_head(stream)
        stream.is_head_sent = True
        if is_last:
            self._end(stream)
        self._write_block(stream, self._begun(block), END_STREAM if is_last else 0)

    def send_interim_headers(self, stream: H2StreamState, block: bytes) -> None:
        """The head of an interim response."""
        self._check_head(stream)
        self._write_block(stream, self._begun(block), 0)

    def send_trailers(self, stream: H2StreamState, block: bytes) -> None:
        """The trailers of a message, which end it."""
        if not stream.is_head_sent:
            raise LocalProtocolError("trailers of no message")
        self._end(stream)
        self._write_block(stream, block, END_STREAM)

    def _check_head(self, stream: H2StreamState) -> None:
        if stream.is_head_sent or (stream.stream_state != HALF_CLOSED_REMOTE and stream.stream_state != OPEN):
            raise LocalProtocolError("a head where there can be none")

    def _begun(self, block: bytes) -> bytes:
        if self._has_sent_block:
            return block
        self._has_sent_block = True
        return NO_TABLE + block

    def _write_block(self, stream: H2StreamState, block: bytes, flags: int) -> None:
        """HEADERS, and CONTINUATION where that is not enough."""
        stream_id, kind, before = stream.stream_id, HEADERS, self.size
        while len(block) > MAX_FRAME:
            self.write(frame_header(kind, flags, stream_id, MAX_FRAME) + block[:MAX_FRAME])
            kind, flags, block = CONTINUATION, 0, block[MAX_FRAME:]
        self.write(frame_header(kind, flags | END_HEADERS, stream_id, len(block)) + block)
        stream.bytes_out += self.size - before

    # --- content -------------------------------------------------------------------------------------------------
    def room_for(self, stream: H2StreamState) -> int:
        """Bytes that one frame of DATA on this stream may hold; 0 or less: none."""
        return min(min(stream.send_window, self.send_window), MAX_FRAME)  # of three, min is slow in compiled code

    def send_data(self, stream: H2StreamState, data: bytes, *, is_last: bool) -> None:
        """One frame of DATA, for which the windows have room."""
        size = len(data)
        if size and size > self.room_for(stream):
            raise LocalProtocolError("more content than there is room for")
        if not stream.is_head_sent or (stream.stream_state != HALF_CLOSED_REMOTE and stream.stream_state != OPEN):
            raise LocalProtocolError("content where there can be none")
        if is_last:
            self._end(stream)
        self.send_window -= size
        stream.send_window -= size
        frames = self.frames
        frames.append(frame_header(DATA, END_STREAM if is_last else 0, stream.stream_id, size))
        frames.append(data)
        self.size += HEADER_SIZE + size

    def _end(self, stream: H2StreamState) -> None:
        """END_STREAM is on its way."""
        if stream.stream_state == HALF_CLOSED_REMOTE:
            stream.stream_state = CLOSED
        elif stream.stream_state == OPEN:
            stream.stream_state = HALF_CLOSED_LOCAL
        else:
            raise LocalProtocolError("the end of a message that has ended")
        stream.is_ending = stream.has_sent_all = True

    # --- windows, and the connection -------------------------------------------------------------------------------
    def open_window(self, limit: int) -> None:
        """Let the peer send so many bytes at most on all streams, more than the default."""
        self.receive_window += limit - self._connection_limit
        self._write_window(0, limit - self._connection_limit)
        self._connection_limit = limit

    def give_back(self, stream: H2StreamState, size: int) -> None:
        """So many bytes of a stream were read: they may be sent again, on the stream and on the connection."""
        self.give_back_of_connection(size)
        self.give_back_of_stream(stream, size)

    def give_back_of_connection(self, size: int) -> None:
        """The same for the window of the connection alone."""
        self._connection_read += size
        increment = window_increment(self._connection_limit, self.receive_window, self._connection_read)
        if increment > 0:
            self._connection_read = 0
            self.receive_window += increment
            self._write_window(0, increment)

    def give_back_of_stream(self, stream: H2StreamState, size: int) -> None:
        """The same for the window of the stream alone. After END_STREAM of the peer no update is sent."""
        if stream.stream_state != OPEN and stream.stream_state != HALF_CLOSED_LOCAL:
            return
        stream.read_size += size
        increment = window_increment(STREAM_WINDOW, stream.receive_window, stream.read_size)
        if increment > 0:
            stream.read_size = 0
            stream.receive_window += increment
            self._write_window(stream.stream_id, increment)

    def _write_window(self, stream_id: int, increment: int) -> None:
        self.write(frame_header(WINDOW_UPDATE, 0, stream_id, 4) + increment.to_bytes(4, "big"))

    def ping(self) -> None:
        """Ask the peer to answer: it has then read all that was sent before, and what went out with it."""
        self.write(frame_header(PING, 0, 0, 8) + bytes(8))

    def go_away(self, last_stream: int, code: ErrorCodes) -> None:
        """Say that streams of the peer above this one are not looked at; the others go on."""
        payload = last_stream.to_bytes(4, "big") + int(code).to_bytes(4, "big")
        self.write(frame_header(GOAWAY, 0, 0, 8) + payload)

    def has_begun(self, stream_id: int) -> bool:
        """Whether a stream with this identifier has begun, by either side."""
        is_ours = stream_id & 1 == (1 if self.client_side else 0)
        return 0 < stream_id <= (self._last_of_ours if is_ours else self.last_of_peer)
