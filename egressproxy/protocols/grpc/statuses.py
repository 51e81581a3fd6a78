"""The status of a gRPC call: what other signs of failure mean, how it is written and read; and its deadline. Pure.
Sources: grpc.io, gRPC over HTTP2; Status codes and their use in gRPC; HTTP to gRPC Status Code Mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote_from_bytes

from egressproxy.errors import Reason
from egressproxy.model.fields import finder
from egressproxy.model.grpc_status import GrpcStatus

#: HTTP to gRPC Status Code Mapping; every other status is UNKNOWN.
_OF_HTTP: Final[Mapping[int, GrpcStatus]] = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}

#: Where our reason says more than the HTTP status.
_OF_REASON: Final[Mapping[Reason, GrpcStatus]] = {
    Reason.BACKEND_INVALID: GrpcStatus.UNAVAILABLE,  # Gateway API, GRPCRouteRule.backendRefs
    Reason.UNKNOWN_EXTENSION: GrpcStatus.UNAVAILABLE,
    Reason.FILTER_UNUSABLE: GrpcStatus.UNAVAILABLE,
    Reason.CREDENTIALS_REQUIRED: GrpcStatus.UNAUTHENTICATED,
    Reason.CREDENTIALS_REFUSED: GrpcStatus.UNAUTHENTICATED,
    Reason.REQUEST_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Reason.RESPONSE_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Reason.CLIENT_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Reason.REQUEST_RATE: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.TOKEN_RATE: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.BYTE_RATE: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.COST_LIMIT: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.NEW_NAMES: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.CONCURRENCY: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.BODY_TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.HEAD_TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.TARGET_TOO_LONG: GrpcStatus.RESOURCE_EXHAUSTED,
    Reason.CREDENTIAL_MISSING: GrpcStatus.INTERNAL,
    Reason.FILTER_FAILED: GrpcStatus.INTERNAL,
    Reason.INTERNAL: GrpcStatus.INTERNAL,
    Reason.CLIENT_GONE: GrpcStatus.CANCELLED,
}

#: What a server says of itself, as the HTTP status that Envoy has for it. Not what a client can bring about: a method
#: that is not there, or too little time.
_FAILURES: Final[Mapping[int, int]] = {
    GrpcStatus.UNKNOWN: 500,
    GrpcStatus.INTERNAL: 500,
    GrpcStatus.UNAVAILABLE: 503,
    GrpcStatus.DATA_LOSS: 500,
}

#: gRPC over HTTP2, Errors: the codes of RST_STREAM (RFC 9113 section 7); every other code is INTERNAL.
_OF_RESET: Final[Mapping[int, GrpcStatus]] = {
    0x7: GrpcStatus.UNAVAILABLE,  # REFUSED_STREAM
    0x8: GrpcStatus.CANCELLED,  # CANCEL
    0xB: GrpcStatus.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    0xC: GrpcStatus.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}

#: The longest message that is sent, in bytes before it is encoded: it counts among the fields of the client.
MAX_MESSAGE: Final = 1024
#: What stands for itself in a message: printable ASCII without "%".
_PLAIN: Final = bytes(byte for byte in range(0x20, 0x7F) if byte != 0x25).decode()

_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE | re.DOTALL)
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final[Mapping[bytes, float]] = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TRAILERS: Final = re.compile(rb"\r\ngrpc-(?:status|message|status-details-bin):[^\r]*", re.IGNORECASE)
_STATUS: Final = re.compile(rb"\r\ngrpc-status:[ \t]*(?:[0-9]|1[0-6])(?=\r|\Z)", re.IGNORECASE)
_PUSHBACK: Final = re.compile(rb"0|[1-9][0-9]{0,9}")
_CODE: Final = re.compile(rb"[0-9]|1[0-6]")


class MalformedTimeout(ValueError):
    """A grpc-timeout that says no time."""


def is_grpc(content_type: bytes | None) -> bool:
    """Whether content of this type is gRPC: application/grpc, +proto and the like. Not gRPC-Web, which is HTTP/1's."""
    return content_type is not None and _CONTENT_TYPE.fullmatch(content_type) is not None


def status_of(reason: Reason, http_status: int, reset_code: int = -1) -> GrpcStatus:
    """What a call is told of a failure: by the code of the RST_STREAM that the backend has sent (-1: none), by our
    reason, else by the status that HTTP has for it.
    """
    if reset_code >= 0:
        return status_of_reset(reset_code)
    known = _OF_REASON.get(reason)
    return known if known is not None else _OF_HTTP.get(http_status, GrpcStatus.UNKNOWN)


def status_of_reset(code: int) -> GrpcStatus:
    """What a stream that was reset with this code means for its call."""
    return _OF_RESET.get(code, GrpcStatus.INTERNAL)


def parsed_status(block: bytes) -> int:
    """The grpc-status among these fields (model/fields): 0 to 16, 2 (UNKNOWN) for another value, -1 for none."""
    found = finder(b"grpc-status").search(block)
    if found is None:
        return -1
    value: bytes = found.group(1)
    return int(value) if _CODE.fullmatch(value) else GrpcStatus.UNKNOWN


def failure_status(block: bytes) -> int:
    """The HTTP status that says the same of a server as this grpc-status; 200: no failure of it, or no status."""
    return _FAILURES.get(parsed_status(block), 200)


def retry_pushback_s(block: bytes) -> float | None:
    """The seconds after which a server wants a call again (grpc-retry-pushback-ms among these fields); negative where
    it wants no retry, None where it says nothing. What cannot be read is such a wish, too. Source: gRFC A6.
    """
    found = finder(b"grpc-retry-pushback-ms").search(block)
    if found is None:
        return None
    value: bytes = found.group(1)
    return int(value) / 1000 if _PUSHBACK.fullmatch(value) else -1.0


def grpc_trailers(block: bytes, *, with_text: bool) -> bytes:
    """Of these trailers those in which gRPC says how a call has ended: the status, and `with_text` its text."""
    return b"".join((_TRAILERS if with_text else _STATUS).findall(block))


def encoded_message(text: str) -> bytes:
    """The value of grpc-message: percent-encoded UTF-8, of MAX_MESSAGE bytes at most before that."""
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_MESSAGE:
        data = data[:MAX_MESSAGE].decode("utf-8", "ignore").encode()
    return quote_from_bytes(data, _PLAIN).strip(" ").encode()


def parsed_timeout(value: bytes) -> float:
    """The seconds of a grpc-timeout: at most 8 digits and a unit; 0 has passed (grpc-go). Raises MalformedTimeout."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise MalformedTimeout("grpc-timeout is at most 8 digits and one of H, M, S, m, u and n")
    return int(found.group(1)) * _SECONDS[found.group(2)]


def timeout_value(seconds: float) -> bytes:
    """A grpc-timeout of so many seconds, in the finest of the units that has room for it; at least a nanosecond."""
    if seconds < 0.1:
        return b"%dn" % max(int(seconds * 1e9), 1)
    if seconds < 100.0:
        return b"%du" % int(seconds * 1e6)
    if seconds < 100_000.0:
        return b"%dm" % int(seconds * 1e3)
    return b"%dS" % min(int(seconds), 99_999_999)
