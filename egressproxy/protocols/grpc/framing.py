"""A gRPC call on HTTP/2: heads, messages out of a body's pieces, its end. Pure. Source: grpc.io, gRPC over HTTP2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from egressproxy.errors import Reason, UpstreamFault

#: Flag (compressed or not) and length in front of a message.
_PREFIX = 5
#: The longest text of a service that is kept.
_MAX_TEXT = 200
_DEADLINE_EXCEEDED, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 4, 8, 14


#: What every call says of itself, beside `te: trailers`.
STREAM_FIELDS: Final = ((b"content-type", b"application/grpc"), (b"user-agent", b"egressproxy"))


def call_fields(timeout_s: float) -> list[tuple[bytes, bytes]]:
    """STREAM_FIELDS, and `timeout_s` (seconds, at least a millisecond), so that the server can give up as well."""
    milliseconds = min(max(int(timeout_s * 1000), 1), 99_999_999)
    return [*STREAM_FIELDS, (b"grpc-timeout", b"%dm" % milliseconds)]


def framed(message: bytes, *, is_compressed: bool = False) -> bytes:
    """The message with its prefix: whether it is compressed, and its length."""
    return b"%c%b%b" % (is_compressed, len(message).to_bytes(4, "big"), message)


def reply(
    status: int, head: Iterable[tuple[bytes, bytes]], data: bytes, trailers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """The message of a call that is over: status and fields of its head, its data with the prefix, and its trailers
    (none for Trailers-Only). Raises UpstreamFault if the call failed, or if this is no answer of gRPC: RESPONSE_TIMEOUT
    (504) or BAD_RESPONSE (503 where the service is not available).
    """
    check_head(status, head)
    check_end({**dict(head), **dict(trailers)})
    if len(data) < _PREFIX or int.from_bytes(data[1:_PREFIX], "big") != len(data) - _PREFIX:
        raise _bad("the answer is not one message")
    if data[0]:
        raise _bad("the message is compressed, which was not offered")
    return data[_PREFIX:]


def check_head(status: int, head: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises UpstreamFault(BAD_RESPONSE) unless this head begins an answer of gRPC."""
    if status != 200 or not dict(head).get(b"content-type", b"").startswith(b"application/grpc"):
        raise _bad(f"the server does not speak gRPC: status {status}")


def check_end(last: Mapping[bytes, bytes]) -> None:
    """Raises UpstreamFault, as `reply`, unless these trailers (or fields of a head that is all) say OK."""
    code = last.get(b"grpc-status", b"")
    if code != b"0":
        raise _failure(code, last.get(b"grpc-message", b""))


def _failure(code: bytes, message: bytes) -> UpstreamFault:
    number = int(code) if code.isdigit() and len(code) < 3 else -1
    text = unquote_to_bytes(message[: 3 * _MAX_TEXT])[:_MAX_TEXT].decode("utf-8", "replace")
    detail = f"grpc-status {number if number >= 0 else 'missing'}: {text}"
    if number == _DEADLINE_EXCEEDED:
        return UpstreamFault(Reason.RESPONSE_TIMEOUT, "the call took too long", status=504, detail=detail)
    if number in (_UNAVAILABLE, _RESOURCE_EXHAUSTED):
        return UpstreamFault(Reason.BAD_RESPONSE, "the service is not available", status=503, detail=detail)
    return UpstreamFault(Reason.BAD_RESPONSE, "the call failed", detail=detail)


def _bad(message: str) -> UpstreamFault:
    return UpstreamFault(Reason.BAD_RESPONSE, message)


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
        """The messages that are whole. Raises MessageTooLong by the length alone, ValueError for a compressed one."""
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
