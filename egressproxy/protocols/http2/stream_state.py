"""H2StreamState: a stream as its connection sees it, with a state, two windows, and what waits to be sent. Its methods
receive what the peer sends.

    state               END_STREAM sent     END_STREAM received  RST_STREAM sent  RST_STREAM received
    ------------------  ------------------  -------------------  ---------------  -------------------
    IDLE                (a head leads to OPEN)
    OPEN                HALF_CLOSED_LOCAL   HALF_CLOSED_REMOTE   RESET_BY_US      RESET_BY_PEER
    HALF_CLOSED_LOCAL   an error            CLOSED               RESET_BY_US      RESET_BY_PEER
    HALF_CLOSED_REMOTE  CLOSED              an error             RESET_BY_US      RESET_BY_PEER

The last three are RFC 9113's "closed", told apart because what comes late is another error in each of them. Source:
RFC 9113 section 5.1.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from typing import Final

from egressproxy.protocols.http2.frames import RemoteProtocolError
from egressproxy.protocols.http2.remembered_fields import FieldList

IDLE: Final = 0
OPEN: Final = 1
HALF_CLOSED_LOCAL: Final = 2
HALF_CLOSED_REMOTE: Final = 3
CLOSED: Final = 4
RESET_BY_US: Final = 5
RESET_BY_PEER: Final = 6

#: Streams whose end is remembered: what comes late is for one of the last few.
MAX_CLOSED: Final = 256


class H2StreamState:
    """State, windows and unsent bytes of a stream. `receive_window` and `send_window` are bytes that the peer and we
    may still send; `read_size` bytes were read, and the peer has not been told.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "has_sent_all", "is_ending", "is_head_received", "is_head_sent", "is_over",
        "kept_size", "read_size", "receive_window", "send_window", "stream_id", "stream_state", "trailers", "unsent",
        "unsent_size",
    )  # fmt: skip

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.stream_state = IDLE
        self.is_over = True  # neither side sends more, or the connection is gone: what is sent goes nowhere
        self.is_head_received = False  # the final head of a message
        self.is_head_sent = False
        self.receive_window = 0
        self.read_size = 0
        self.kept_size = 0  # bytes that were received, and are read when reading goes on
        self.send_window = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.unsent: list[bytes] = []
        self.unsent_size = 0  # bytes of body that wait for a window
        self.is_ending = False  # END_STREAM goes out behind what is unsent, or has gone
        self.trailers: bytes | None = None  # in HPACK
        self.has_sent_all = False  # END_STREAM is on its way

    def take_unsent(self, most: int) -> bytes:
        """At most so many bytes of what is to be sent."""
        piece = self.unsent[0]
        if len(piece) > most:
            self.unsent[0] = piece[most:]
            piece = piece[:most]
        else:
            del self.unsent[0]
        self.unsent_size -= len(piece)
        return piece

    @abstractmethod
    def receive_data(self, data: bytes, size: int) -> None:
        """Content, perhaps none; with its padding it has used `size` bytes of the window."""

    def take_request(self, fields: FieldList, *, ends_stream: bool) -> None:
        """The head of a request, which has opened this stream. Raises RemoteProtocolError where we are the client."""
        raise RemoteProtocolError("a request to a client")

    def take_response(self, fields: FieldList, *, ends_stream: bool) -> None:
        """The head of a response, also an interim one. Raises RemoteProtocolError where the peer began the stream."""
        raise RemoteProtocolError("a response to no request")

    @abstractmethod
    def take_trailers(self, fields: FieldList) -> None:
        """Fields behind the peer's content."""

    @abstractmethod
    def take_end(self) -> None:
        """The peer's message is whole."""

    @abstractmethod
    def was_reset(self, code: int) -> None:
        """The peer has given the stream up, or made us do so (RFC 9113 section 7: the error code)."""

    def was_not_seen(self) -> None:
        """A GOAWAY says that the peer has not looked at this stream of ours."""

    @abstractmethod
    def connection_is_lost(self) -> None:
        """The connection is gone, and the stream with it."""

    @abstractmethod
    def was_sent(self) -> None:
        """END_STREAM is on its way, behind all that was to be sent."""

    @abstractmethod
    def unsent_shrank(self) -> None:
        """Called when a part of the waiting data was sent."""


class ClosedStreams:
    """The states in which the latest streams were left, by identifier."""

    __slots__ = ("_at", "_ring")

    def __init__(self) -> None:
        self._ring = array("Q")  # identifiers, and states in the lowest three bits
        self._at = 0  # the oldest, when there are MAX_CLOSED

    def add(self, stream_id: int, state: int) -> None:
        """Remember how this stream ended."""
        entry = stream_id << 3 | state
        if len(self._ring) < MAX_CLOSED:
            self._ring.append(entry)
        else:
            self._ring[self._at] = entry
            self._at = (self._at + 1) % MAX_CLOSED

    def state(self, stream_id: int) -> int:
        """CLOSED, RESET_BY_US or RESET_BY_PEER; IDLE for one that is not remembered."""
        for entry in self._ring:
            if entry >> 3 == stream_id:
                return entry & 7
        return IDLE

    def __len__(self) -> int:
        return len(self._ring)


def window_increment(limit: int, left: int, read: int) -> int:
    """Bytes that a WINDOW_UPDATE gives back now; 0: none is due yet. `limit` is the window at its largest, `left` what
    the peer may still send, `read` what was read since the last one. Half of a window is due, and less in an empty one.
    """
    if read >= limit // 2 or (left == 0 and read > min(1024, limit // 4)):
        return min(read, limit - left)
    return 0
