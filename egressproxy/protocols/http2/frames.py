"""Frames of HTTP/2 (RFC 9113 sections 4 and 6): bytes into frames, their errors, and how many a peer may send."""

from __future__ import annotations

from typing import Final

from h2.errors import ErrorCodes

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
#: Flags (RFC 9113 sections 6.1, 6.2, 6.5 and 6.7).
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20
#: The longest payload that a peer may send unless we have announced more (RFC 9113 section 4.2).
MAX_FRAME: Final = 16384
HEADER_SIZE: Final = 9
#: Bytes of a priority in a HEADERS frame (RFC 9113 section 6.2).
PRIORITY_SIZE: Final = 5
_PREFACE_SIZE: Final = 24
#: The first bytes of a client (RFC 9113 section 3.4).
CLIENT_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Types whose payload has one length (RFC 9113 section 6).
_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}


class RemoteProtocolError(Exception):
    """The peer has broken a rule, and the connection ends. `code` says why (RFC 9113 sections 5.4.1 and 7)."""

    def __init__(self, message: str, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class StreamError(Exception):
    """The peer has broken a rule on the stream `stream_id`, which is reset with `code` (RFC 9113 section 5.4.2)."""

    def __init__(self, message: str, stream_id: int, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code


class LocalProtocolError(Exception):
    """A frame that we may not send: nothing of it was sent."""


class FrameReader:
    """Bytes in, frames out: `next` sets `kind`, `flags`, `stream_id` and `payload`."""

    __slots__ = ("_at", "_awaits_preface", "_awaits_settings", "_data", "flags", "kind", "payload", "stream_id")

    def __init__(self, *, has_preface: bool = False) -> None:
        """`has_preface`: what a client says begins with 24 bytes that are no frame (RFC 9113 section 3.4)."""
        self._data = b""
        self._at = 0
        self._awaits_preface = has_preface
        self._awaits_settings = True
        self.kind = self.flags = self.stream_id = 0
        self.payload = b""

    @property
    def unread(self) -> int:
        """Bytes that were fed and not read."""
        return len(self._data) - self._at

    @property
    def has_partial_head(self) -> bool:
        """The last bytes are the begin of a HEADERS or CONTINUATION frame."""
        if self._awaits_preface or self.unread < 4:
            return False
        kind = self._data[self._at + 3]
        return kind in (HEADERS, CONTINUATION)

    def feed(self, data: bytes) -> None:
        """Add what has come."""
        if self._data:
            data = self._data[self._at :] + data
            self._at = 0
        self._data = data

    def next(self) -> bool:
        """Read the next frame; False: it is not whole yet. Raises RemoteProtocolError for a frame that is too long, for
        a client's first bytes that are not the preface, and for a first frame that is not SETTINGS.
        """
        if self._awaits_preface and not self._read_preface():
            return False
        data, at = self._data, self._at
        start = at + HEADER_SIZE
        if start > len(data):
            self._keep_rest()
            return False
        kind = data[at + 3]
        if self._awaits_settings:
            if kind != SETTINGS:
                raise RemoteProtocolError("the first frame is not SETTINGS")
            self._awaits_settings = False
        length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
        if length > MAX_FRAME:
            raise RemoteProtocolError(f"a frame of {length} bytes", ErrorCodes.FRAME_SIZE_ERROR)
        end = start + length
        if end > len(data):
            self._keep_rest()
            return False
        self.kind = kind
        self.flags = data[at + 4]
        self.stream_id = (data[at + 5] & 0x7F) << 24 | data[at + 6] << 16 | data[at + 7] << 8 | data[at + 8]
        self.payload = data[start:end]
        self._at = end
        return True

    def _read_preface(self) -> bool:
        if not CLIENT_PREFACE.startswith(self._data[:_PREFACE_SIZE]):
            raise RemoteProtocolError("the client's first bytes are not the preface of HTTP/2")
        if len(self._data) < _PREFACE_SIZE:
            return False
        self._at = _PREFACE_SIZE
        self._awaits_preface = False
        return True

    def _keep_rest(self) -> None:
        self._data = self._data[self._at :]
        self._at = 0
        self.payload = b""


def frame_header(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """What stands before a payload of so many bytes (RFC 9113 section 4.1)."""
    return (size << 16 | kind << 8 | flags).to_bytes(5, "big") + stream_id.to_bytes(4, "big")


def check_size(kind: int, flags: int, payload: bytes) -> None:
    """Raises RemoteProtocolError for a payload whose length is not that of its type (RFC 9113 section 6)."""
    length = len(payload)
    wanted = _SIZES.get(kind)
    if wanted is not None:
        is_wrong = length != wanted
    elif kind == SETTINGS:
        is_wrong = length % 6 != 0 or (flags & ACK == ACK and length != 0)
    else:
        is_wrong = kind == GOAWAY and length < 8
    if is_wrong:
        raise RemoteProtocolError(f"a frame of type {kind} with {length} bytes", ErrorCodes.FRAME_SIZE_ERROR)


def uint31(payload: bytes) -> int:
    """The first 31 bits: a stream, or the increment of a window."""
    return int.from_bytes(payload[:4], "big") & 0x7FFF_FFFF


def without_padding(flags: int, payload: bytes) -> bytes:
    """The payload of a padded frame, without the length of the padding and the padding itself (RFC 9113 sections 6.1
    and 6.2). Raises RemoteProtocolError where that is longer than the frame.
    """
    if not payload or (flags & WITH_PRIORITY and len(payload) < 1 + PRIORITY_SIZE):
        raise RemoteProtocolError("a padded frame that is cut short", ErrorCodes.FRAME_SIZE_ERROR)
    end = len(payload) - payload[0]
    if end < (1 + PRIORITY_SIZE if flags & WITH_PRIORITY else 1):
        raise RemoteProtocolError("more padding than there is frame")
    return payload[1:end]


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

    These are resets (CVE-2023-44487, CVE-2025-8671), pings, settings, empty frames, tiny windows. A peer that sends
    more than its allowance, which grows with time and with what it lets us do, is told ENHANCE_YOUR_CALM.
    """

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = BURST
        self._at = now

    def frame_came(self, kind: int, now: float) -> None:
        """A frame of this type has come that brings no content and no head. Raises Flood."""
        self._left -= 1.0
        if self._left >= 0.0:
            return
        self._left = min(self._left + (now - self._at) * PER_SECOND, BURST)
        self._at = now
        if self._left < 0.0:
            raise Flood(f"too many {_NAMES.get(kind, 'frames of unknown types')}")

    def stream_failed(self, now: float) -> None:
        """We had to reset a stream, since the peer broke a rule on it. Raises Flood."""
        self.frame_came(RST_STREAM, now)

    def frame_sent(self) -> None:
        """We have sent a frame with content."""
        if self._left < BURST:
            self._left += PER_FRAME_SENT
