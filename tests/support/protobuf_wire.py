"""The wire format of protocol buffers, as far as a few known messages need it. Pure, strict: what is odd is refused.

Source: protobuf.dev, Encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A varint, or the octets of everything that has a length. Fixed-size values come as their octets.
Value = int | bytes

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: A varint holds 64 bits in seven each.
_LONGEST_VARINT = 10


class WireError(ValueError):
    """These octets are no message."""


def number(tag: int, value: int) -> bytes:
    """A field that is a number; 0 is what a missing one means, and is not written."""
    return _varint(tag << 3 | _VARINT) + _varint(value) if value else b""


def field(tag: int, value: bytes) -> bytes:
    """A field of octets, or an embedded message; written also where it is empty."""
    return _varint(tag << 3 | _LENGTH) + _varint(len(value)) + value


def text(tag: int, value: bytes) -> bytes:
    """A string; an empty one is what a missing one means. What is no UTF-8 becomes "?", since parsers refuse it."""
    return field(tag, value.decode("utf-8", "replace").replace("\ufffd", "?").encode()) if value else b""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Every field of a message, in its order: tag and value. Raises WireError."""
    at, end = 0, len(data)
    while at < end:
        key, at = _read_varint(data, at)
        tag, kind = key >> 3, key & 7
        if not tag:
            raise WireError("a field has the number 0")
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield tag, value
            continue
        if kind == _LENGTH:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise WireError(f"field {tag} has the wire type {kind}, which nobody writes")
        if size > end - at:
            raise WireError(f"field {tag} ends behind its message")
        yield tag, data[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count, octet in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (octet & 0x7F) << 7 * count
        if octet < 0x80:
            if value >> 64:
                break
            return value, at + count + 1
    raise WireError("a number is cut short, or too large")
