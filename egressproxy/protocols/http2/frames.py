"""Splits what comes on an HTTP/2 connection into whole frames, so that one of them can be looked at before h2 is.

h2 takes a GOAWAY as the end of everything, while the streams that it spares go on (RFC 9113 section 6.8).
"""

from __future__ import annotations

__all__ = ["GOAWAY", "MAX_FRAME", "PREFACE", "FrameSplitter", "goaway_last_stream"]

GOAWAY = 7
#: The longest payload that a peer may send unless we have said more (RFC 9113 section 4.2).
MAX_FRAME = 16384
_HEADER = 9
#: What stands in the place of a type for the first bytes of a client.
PREFACE = -1
PREFACE_SIZE = 24


class FrameSplitter:
    """Bytes in, whole frames out."""

    __slots__ = ("_awaits_preface", "_buffer")

    def __init__(self, *, has_preface: bool = False) -> None:
        """`has_preface`: what a client says begins with 24 bytes that are no frame (RFC 9113 section 3.4)."""
        self._buffer = bytearray()
        self._awaits_preface = has_preface

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are whole now: type, and the bytes with the header. The preface has the type PREFACE.

        Raises ValueError for a frame that is longer than allowed.
        """
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, bytes]] = []
        at = 0
        if self._awaits_preface:
            if len(buffer) < PREFACE_SIZE:
                return frames
            frames.append((PREFACE, bytes(buffer[:PREFACE_SIZE])))
            at = PREFACE_SIZE
            self._awaits_preface = False
        while len(buffer) - at >= _HEADER:
            length = int.from_bytes(buffer[at : at + 3], "big")
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = at + _HEADER + length
            if end > len(buffer):
                break
            frames.append((buffer[at + 3], bytes(buffer[at:end])))
            at = end
        del buffer[:at]
        return frames


def goaway_last_stream(frame: bytes) -> int:
    """The last stream that the peer still answers. Raises ValueError for a frame that is cut short."""
    if len(frame) < _HEADER + 8 or frame[5:_HEADER] != bytes(4):
        raise ValueError("a GOAWAY that is none")
    return int.from_bytes(frame[_HEADER : _HEADER + 4], "big") & 0x7FFF_FFFF
