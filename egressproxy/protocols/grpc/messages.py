"""The messages of a gRPC stream, out of the pieces of a body as they come. Pure.

Source: grpc.io, gRPC over HTTP2 (Length-Prefixed-Message).
"""

from __future__ import annotations

#: Flag (compressed or not) and length in front of a message.
_PREFIX = 5


class MessageTooLong(ValueError):
    """A message is longer than the bound."""


class GrpcMessageReader:
    """Takes pieces of a body and gives the messages in it. `max_bytes` is the longest message that is read."""

    __slots__ = ("_buffer", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    @property
    def is_between(self) -> bool:
        """No message has begun that has not ended: the stream may end here."""
        return not self._buffer

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole with this piece. Raises MessageTooLong as soon as the length is known, and
        ValueError for a compressed message, which nobody has offered to read.
        """
        buffer = self._buffer
        buffer += data
        found = []
        at = 0
        while len(buffer) - at >= _PREFIX:
            size = int.from_bytes(buffer[at + 1 : at + _PREFIX], "big")
            if buffer[at]:
                raise ValueError("the message is compressed, which was not offered")
            if size > self._max_bytes:
                raise MessageTooLong(f"the message has {size} bytes; at most {self._max_bytes} are read")
            end = at + _PREFIX + size
            if end > len(buffer):
                break
            found.append(bytes(buffer[at + _PREFIX : end]))
            at = end
        if at:
            del buffer[:at]
        return found
