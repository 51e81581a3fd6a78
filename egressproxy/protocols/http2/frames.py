"""Splits what comes on an HTTP/2 connection into whole frames, so that one can be looked at before h2 is: h2 takes a
GOAWAY as the end of everything, while the streams that it spares go on (RFC 9113 section 6.8).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from h2.errors import ErrorCodes

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
#: Flags (RFC 9113 sections 6.1 and 6.2).
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20
#: The longest payload that a peer may send unless we have said more (RFC 9113 section 4.2).
MAX_FRAME: Final = 16384
HEADER_SIZE: Final = 9
_header = Struct(">LBL")  # length and type, flags, stream
_pack, _unpack_from = _header.pack, _header.unpack_from
#: What stands in the place of a type for the first bytes of a client.
PREFACE: Final = -1
PREFACE_SIZE: Final = 24
_PREFACE_BYTES: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Types whose payload has one length (RFC 9113 section 6).
_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
#: The payload of a WINDOW_UPDATE that gives nothing, with and without the reserved bit.
_NO_INCREMENT: Final = (bytes(4), b"\x80" + bytes(3))


#: A frame: type, flags, the number of its stream with the reserved bit, and its bytes with the header.
Frame = tuple[int, int, int, bytes]


class FrameError(ValueError):
    """A frame ends the connection. `code` says why (RFC 9113 section 7)."""

    def __init__(self, message: str, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class FrameSplitter:
    """Bytes in, whole frames out."""

    __slots__ = ("_awaits_preface", "_awaits_settings", "_buffer")

    def __init__(self, *, has_preface: bool = False) -> None:
        """`has_preface`: what a client says begins with 24 bytes that are no frame (RFC 9113 section 3.4)."""
        self._buffer = bytearray()
        self._awaits_preface = has_preface
        self._awaits_settings = True

    @property
    def has_partial_head(self) -> bool:
        """The last bytes are the begin of a HEADERS or CONTINUATION frame."""
        return len(self._buffer) > 3 and self._buffer[3] in (HEADERS, CONTINUATION) and not self._awaits_preface

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now, the preface as PREFACE. Raises FrameError for a frame that is too long, and
        where a client's first one is not SETTINGS.
        """
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[Frame] = []
        add = frames.append
        at, size = 0, len(data)
        if self._awaits_preface:
            if not _PREFACE_BYTES.startswith(data[:PREFACE_SIZE]):
                raise FrameError("the client's first bytes are not the preface of HTTP/2")
            if size < PREFACE_SIZE:
                self._buffer += data
                return frames
            add((PREFACE, 0, 0, data[:PREFACE_SIZE]))
            at = PREFACE_SIZE
            self._awaits_preface = False
        if self._awaits_settings and size - at >= HEADER_SIZE:
            if data[at + 3] != SETTINGS:
                raise FrameError("the first frame is not SETTINGS")
            self._awaits_settings = False
        while size - at >= HEADER_SIZE:
            word, flags, number = _unpack_from(data, at)
            length = word >> 8
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes", ErrorCodes.FRAME_SIZE_ERROR)
            end = at + HEADER_SIZE + length
            if end > size:
                break
            add((word & 0xFF, flags, number, data[at:end]))
            at = end
        if at < size:
            self._buffer += data[at:]
        return frames


def frame_header(kind: int, flags: int, number: int, size: int) -> bytes:
    """What stands before a payload of so many bytes (RFC 9113 section 4.1)."""
    return _pack(size << 8 | kind, flags, number)


def stream_of(frame: bytes) -> int:
    """The number of the stream that a frame is for; 0: for the connection."""
    return int.from_bytes(frame[5:HEADER_SIZE], "big") & 0x7FFF_FFFF


def check_control_frame(kind: int, frame: bytes) -> None:
    """Raises FrameError for a payload whose length is not that of its type. h2 would call it another error."""
    length = len(frame) - HEADER_SIZE
    wanted = _SIZES.get(kind)
    if wanted is not None:
        is_wrong = length != wanted
    else:
        is_wrong = kind == SETTINGS and (length % 6 != 0 or (frame[4] & 1 == 1 and length != 0))
    if is_wrong:
        raise FrameError(f"a frame of type {kind} with {length} bytes", ErrorCodes.FRAME_SIZE_ERROR)


def stream_fault(kind: int, frame: bytes) -> ErrorCodes | None:
    """What is wrong with a PRIORITY or WINDOW_UPDATE frame of a stream, where that is the error of the stream alone;
    None: nothing is, or h2 says it. Sources: RFC 9113 sections 6.3 and 6.9, RFC 7540 section 5.3.1.
    """
    payload = frame[HEADER_SIZE:]
    if kind == WINDOW_UPDATE:
        return ErrorCodes.PROTOCOL_ERROR if payload in _NO_INCREMENT else None
    if len(payload) != _SIZES[PRIORITY]:
        return ErrorCodes.FRAME_SIZE_ERROR
    return ErrorCodes.PROTOCOL_ERROR if depends_on(frame) == stream_of(frame) else None


def depends_on(frame: bytes) -> int:
    """The number of the stream on which a PRIORITY frame, or a HEADERS frame with that flag, makes its own depend."""
    return int.from_bytes(frame[HEADER_SIZE : HEADER_SIZE + 4], "big") & 0x7FFF_FFFF


def without_priority(frame: bytes) -> bytes:
    """A HEADERS frame, not padded, without its priority, which means nothing any more (RFC 9113 section 5.3.2)."""
    flags = frame[4] & ~WITH_PRIORITY
    return b"%b%c%b%b" % (frame[:4], flags, frame[5:HEADER_SIZE], frame[HEADER_SIZE + _SIZES[PRIORITY] :])


def goaway_last_stream(frame: bytes) -> int:
    """The last stream that the peer still answers. Raises FrameError for a frame that is cut short."""
    if stream_of(frame):
        raise FrameError("a GOAWAY of a stream")
    if len(frame) < HEADER_SIZE + 8:
        raise FrameError("a GOAWAY that is cut short", ErrorCodes.FRAME_SIZE_ERROR)
    return int.from_bytes(frame[HEADER_SIZE : HEADER_SIZE + 4], "big") & 0x7FFF_FFFF


#: Frames at once, and in a second on the average.
BURST: Final = 1000.0
PER_SECOND: Final = 100.0
#: What each frame that we send lets a peer send: it answers each with a window, or two.
PER_FRAME_SENT: Final = 2.0

_NAMES: Final = {
    DATA: "empty DATA frames",
    HEADERS: "empty HEADERS frames",
    PRIORITY: "PRIORITY frames",
    RST_STREAM: "resets",
    SETTINGS: "SETTINGS frames",
    PING: "PING frames",
    WINDOW_UPDATE: "WINDOW_UPDATE frames",
    CONTINUATION: "CONTINUATION frames",
}


class Flood(Exception):
    """A peer has used its allowance up."""


class FloodGuard:
    """How many frames that cost us something, and bring nothing, a peer may send. One for each connection; `now` is
    monotonic seconds.

    h2 bounds none of them: resets (CVE-2023-44487, CVE-2025-8671), pings, settings, empty frames, tiny windows. A peer
    that sends more than its allowance, which grows with time and with what it lets us do, is told ENHANCE_YOUR_CALM.
    """

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = BURST
        self._at = now

    def frame_came(self, kind: int, size: int, now: float) -> None:
        """A frame of this type, with `size` bytes behind its header, has come. Raises Flood."""
        if size and kind in (DATA, HEADERS):
            return
        self._left -= 1.0
        if self._left >= 0.0:
            return
        self._left = min(self._left + (now - self._at) * PER_SECOND, BURST)
        self._at = now
        if self._left < 0.0:
            raise Flood(f"too many {_NAMES.get(kind, 'frames of unknown types')}")

    def stream_failed(self, now: float) -> None:
        """We had to reset a stream, since the peer broke a rule on it. Raises Flood."""
        self.frame_came(RST_STREAM, 0, now)

    def frame_sent(self) -> None:
        """We have sent a frame with content."""
        if self._left < BURST:
            self._left += PER_FRAME_SENT
