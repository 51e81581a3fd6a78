"""AwsFraming: Amazon's binary event streams (`application/vnd.amazon.eventstream`), read, checked, and written again. A
message: its length, that of its headers, the CRC-32 of both, headers, payload, the CRC-32 of all (big endian).
Bedrock's `chunk` has the model's own event in base64: our payload. Source: Smithy, Amazon Event Stream specification.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from egressproxy.ai.apis.framing import MAX_EVENT_BYTES, AddedEvent, BrokenStream, Frame
from egressproxy.ai.apis.splice import spliced
from egressproxy.model.strict_json import Unreadable, loads

_PRELUDE = struct.Struct(">III")
_SUM = struct.Struct(">I")
#: Bytes of the value of a header by its type; -1: two bytes before it tell.
_VALUE_SIZES: Final = (0, 0, 1, 2, 4, 8, -1, -1, 8, 16)
_STRING: Final = 7
_CHUNK: Final = "chunk"


def aws_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """A message with these headers, all of type string."""
    block = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _STRING, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    return _written(block, payload)


class AwsFraming:
    """Messages of one stream."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Framing: messages. Raises BrokenStream for a wrong checksum, too."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        begin = 0
        try:
            while len(buffer) - begin >= _PRELUDE.size:
                length, headers, checksum = _PRELUDE.unpack_from(buffer, begin)
                if zlib.crc32(buffer[begin : begin + 8]) != checksum or length < headers + 16:
                    raise Unreadable("an event of the stream has a wrong checksum")
                if length > MAX_EVENT_BYTES:
                    raise Unreadable(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")
                if len(buffer) - begin < length:
                    break
                frames.append(_frame(bytes(buffer[begin : begin + length]), headers))
                begin += length
        except Unreadable as error:
            raise BrokenStream(str(error), frames, bytes(buffer[begin:])) from None
        del buffer[:begin]
        return frames

    def rest(self) -> Frame | None:
        """Framing: a message that is not whole cannot be read."""
        return None

    def write(self, frame: Frame | None, payload: bytes | None, added: Sequence[AddedEvent]) -> bytes:
        """Framing: with the headers as they were, and new checksums."""
        pieces = [_rewritten(event.like, event.payload) for event in added]
        if frame is not None:
            pieces.append(frame.raw if payload is None else _rewritten(frame, payload))
        return b"".join(pieces)


def _frame(raw: bytes, headers: int) -> Frame:
    if zlib.crc32(raw[:-4]) != _SUM.unpack_from(raw, len(raw) - 4)[0]:
        raise Unreadable("an event of the stream has a wrong checksum")
    found = _headers(raw[12 : 12 + headers])
    name = found.get(":event-type") or found.get(":exception-type") or found.get(":error-code") or ""
    payload = raw[12 + headers : -4]
    if name == _CHUNK:
        wrapped = _chunk(payload)
        if wrapped is not None:
            payload = wrapped
    return Frame(raw, name, payload)


def _headers(block: bytes) -> dict[str, str]:
    """The headers that are strings. Raises Unreadable for a block that breaks off."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(block):
            end = at + 1 + block[at]
            name, type_, at = block[at + 1 : end], block[end], end + 1
            size = _VALUE_SIZES[type_]
            if size < 0:
                (size,) = struct.unpack_from(">H", block, at)
                at += 2
            if type_ == _STRING:
                found[name.decode()] = block[at : at + size].decode()
            at += size
    except (LookupError, ValueError, struct.error):
        raise Unreadable("an event of the stream has headers that cannot be read") from None
    return found


def _chunk(payload: bytes) -> bytes | None:
    try:
        value: Any = loads(payload)
        return b64decode(value["bytes"], validate=True)
    except (Unreadable, LookupError, TypeError, binascii.Error):
        return None


def _rewritten(frame: Frame, payload: bytes) -> bytes:
    (headers,) = _SUM.unpack_from(frame.raw, 4)
    before = frame.raw[12 + headers : -4]
    if frame.name == _CHUNK and _chunk(before) is not None:
        payload = spliced(before.decode(), {("bytes",): b64encode(payload).decode()}).encode()
    return _written(frame.raw[12 : 12 + headers], payload)


def _written(headers: bytes, payload: bytes) -> bytes:
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + _SUM.pack(zlib.crc32(prelude)) + headers + payload
    return message + _SUM.pack(zlib.crc32(message))
