"""The wire format of protocol buffers, as far as OTLP and kubectl need it: values to bytes, without generated code.

A span made of objects of `opentelemetry-proto` takes 18 us, a third of a request. Written like this it takes 1.5 us,
since the part that many spans share is encoded once: messages in a row are merged. Tests read what is written here with
`opentelemetry-proto`. Source: protobuf.dev, Encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

#: Longer text is cut, as in the access log: a client must not be able to fill a collector with one request.
MAX_TEXT: Final = 8192

#: The field of a Span that holds its attributes.
ATTRIBUTES: Final = 9

_VARINT: Final = 0
_FIXED_64: Final = 1
_SIZED: Final = 2
_FIXED_32: Final = 5
_BITS: Final = (1 << 64) - 1
_SIGNED_BITS: Final = 63
_DOUBLE: Final = struct.Struct("<Bd")
_WIDTHS: Final = {_FIXED_64: 8, _FIXED_32: 4}


def varint(number: int) -> bytes:
    """A number from 0 to 2**64 - 1."""
    if number < 128:
        return b"%c" % number
    if number < 16384:
        return b"%c%c" % (number & 127 | 128, number >> 7)
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def sized(field: int, data: bytes) -> bytes:
    """A field that holds text, bytes or a message. `field`: from 1 to 15."""
    size = len(data)
    if size < 128:
        return b"%c%c%b" % (field << 3 | _SIZED, size, data)
    return b"%c%b%b" % (field << 3 | _SIZED, varint(size), data)


def number(field: int, value: int) -> bytes:
    """A field that holds an integer or an enum."""
    return b"%c%b" % (field << 3 | _VARINT, varint(value))


@lru_cache(maxsize=512)
def key_of(name: str) -> bytes:
    """The field `key` of a KeyValue."""
    return sized(1, name.encode())


def utf8(data: bytes) -> bytes:
    """The bytes of a string, at most MAX_TEXT, with U+FFFD in place of what is no UTF-8: parsers refuse it."""
    if len(data) > MAX_TEXT:
        data = data[:MAX_TEXT]
    return data if data.isascii() else data.decode("utf-8", "replace").encode()


def text_attribute(key: bytes, data: bytes) -> bytes:
    """A KeyValue in the field `attributes` of a span, with a string. `key`: as of `key_of`."""
    data = utf8(data)
    size, length = len(data), len(key)
    if length + size < 124:
        return b"\x4a%c%b\x12%c\x0a%c%b" % (length + size + 4, key, size + 2, size, data)
    return sized(ATTRIBUTES, key + sized(2, sized(1, data)))


def list_attribute(key: bytes, data: bytes) -> bytes:
    """As `text_attribute`, with a list that holds this string."""
    data = utf8(data)
    size, length = len(data), len(key)
    if length + size < 120:
        return b"\x4a%c%b\x12%c\x2a%c\x0a%c\x0a%c%b" % (
            length + size + 8, key, size + 6, size + 4, size + 2, size, data,
        )  # fmt: skip
    return sized(ATTRIBUTES, key + sized(2, sized(5, sized(1, sized(1, data)))))


def attribute(name: str, value: Any) -> bytes:
    """As `text_attribute`, with a value of any kind. (Of `float`, mypyc would make a double of an integer.)"""
    if isinstance(value, str):
        return text_attribute(key_of(name), value.encode("utf-8", "replace"))
    return sized(ATTRIBUTES, key_of(name) + sized(2, any_value(value)))


def any_value(value: Any) -> bytes:
    """An AnyValue with this value, which JSON can have. Long text is cut; an integer beyond 64 bits is a text."""
    if isinstance(value, str):
        return sized(1, utf8(value.encode("utf-8", "replace")))
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, int):
        return number(3, value & _BITS) if value.bit_length() <= _SIGNED_BITS else any_value(str(value))
    if isinstance(value, float):
        return _DOUBLE.pack(4 << 3 | _FIXED_64, value)
    if isinstance(value, Mapping):
        return sized(
            6,
            b"".join(
                sized(1, sized(1, name.encode("utf-8", "replace")) + sized(2, any_value(each)))
                for name, each in value.items()
            ),
        )
    return b"" if value is None else sized(5, b"".join(sized(1, any_value(each)) for each in value))


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value, which is an integer or the bytes of a text, a message or a fixed
    number. Raises ValueError for bytes that are no message.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == _SIZED:
            size, at = read_varint(data, at)
        else:
            size = _WIDTHS.get(kind, len(data) + 1)
        if at + size > len(data):
            raise ValueError("no message of protocol buffers")
        yield key >> 3, data[at : at + size]
        at += size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at this index, and the index behind it. Raises ValueError where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("no message of protocol buffers")
