"""The messages of envoy.service.auth.v3.Authorization/Check: a question about a request, and what was decided.

Sources: Envoy API v3, service/auth/v3/external_auth.proto and attribute_context.proto, config/core/v3/base.proto and
address.proto, google/rpc/status.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from egressproxy.protocols.grpc.wire import Value, WireError, field, fields, number, text

__all__ = ["CHECK", "Action", "CheckAnswer", "HeaderOption", "HttpAttributes", "check_answer", "check_request"]

#: The path of the method.
CHECK = b"/envoy.service.auth.v3.Authorization/Check"

Address = tuple[str, int]


class Action(IntEnum):
    """What is done with a header: Envoy's HeaderAppendAction, but that 0 sets: that is the default of `append` here."""

    SET = 0
    ADD_IF_ABSENT = 1
    OVERWRITE = 2
    OVERWRITE_IF_EXISTS = 3
    APPEND = 4  # `append: true`


@dataclass(frozen=True, slots=True)
class HttpAttributes:
    """AttributeContext.HttpRequest; `started` in seconds since 1970. `headers` by lower-case name."""

    id: str
    method: bytes
    headers: Mapping[bytes, bytes]
    path: bytes
    host: bytes
    scheme: bytes
    protocol: bytes
    started: float
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HeaderOption:
    """`name` in lower case."""

    name: bytes
    value: bytes
    action: Action


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """`status` is that of a denial. `headers` are for the request or, of a denial, for the client; `remove` are taken
    from the request; `response_headers` are added to what the client is answered in the end.
    """

    is_allowed: bool
    status: int = 0
    headers: tuple[HeaderOption, ...] = ()
    remove: tuple[bytes, ...] = ()
    response_headers: tuple[HeaderOption, ...] = ()
    body: bytes = b""


def check_request(http: HttpAttributes, source: Address, destination: Address) -> bytes:
    """A CheckRequest. An address without a host is left out."""
    request = field(1, _timestamp(http.started)) + field(2, _http(http))
    attributes = _peer(1, source) + _peer(2, destination) + field(4, request)
    return field(1, attributes)


def check_answer(data: bytes) -> CheckAnswer:
    """Read a CheckResponse. Raises WireError, also for an answer that says neither yes nor no, or asks for what we do
    not do.
    """
    code = denied = ok = None
    for tag, value in fields(data):
        if tag == 1:
            code = _code(_message(tag, value))
        elif tag == 2:
            denied, ok = _message(tag, value), None
        elif tag == 3:
            denied, ok = None, _message(tag, value)
        elif tag == 5:
            raise WireError("the service answers with an error of its own")
    if denied is not None or code:
        return _denied(denied or b"")
    if ok is None and code is None:
        raise WireError("the answer is empty: neither a status nor a response")
    return _allowed(ok or b"")


def _http(http: HttpAttributes) -> bytes:
    headers = b"".join(field(3, text(1, name) + text(2, value)) for name, value in http.headers.items())
    parts = (
        text(1, http.id.encode()), text(2, http.method), headers, text(4, http.path), text(5, http.host),
        text(6, http.scheme), number(9, len(http.body)), text(10, http.protocol), _body(http.body),
    )  # fmt: skip
    return b"".join(parts)


def _body(body: bytes) -> bytes:
    """`body` is a string; what is none goes as `raw_body`."""
    if not body:
        return b""
    try:
        body.decode()
    except UnicodeDecodeError:
        return field(12, body)
    return field(11, body)


def _timestamp(seconds: float) -> bytes:
    whole = int(seconds)
    return number(1, whole) + number(2, int((seconds - whole) * 1_000_000_000))


def _peer(tag: int, address: Address) -> bytes:
    host, port = address
    if not host:
        return b""
    return field(tag, field(1, field(1, text(2, host.encode()) + number(3, port))))


def _code(status: bytes) -> int:
    """google.rpc.Status.code; 0 is OK."""
    code: Value = 0
    for tag, value in fields(status):
        if tag == 1:
            code = value
    return _number(1, code)


def _denied(data: bytes) -> CheckAnswer:
    status, headers, body = 0, [], b""
    for tag, value in fields(data):
        if tag == 1:
            status = _code(_message(tag, value))
        elif tag == 2:
            headers.append(_header_option(_message(tag, value)))
        elif tag == 3:
            body = _message(tag, value)
    return CheckAnswer(False, status or 403, tuple(headers), body=body)


def _allowed(data: bytes) -> CheckAnswer:
    headers, remove, response = [], [], []
    for tag, value in fields(data):
        if tag == 2:
            headers.append(_header_option(_message(tag, value)))
        elif tag == 5:
            remove.append(_message(tag, value).lower())
        elif tag == 6:
            response.append(_header_option(_message(tag, value)))
        elif tag in (7, 8):
            raise WireError("the service wants to change query parameters, which is not supported")
    return CheckAnswer(True, headers=tuple(headers), remove=tuple(remove), response_headers=tuple(response))


def _header_option(data: bytes) -> HeaderOption:
    header, action, append = b"", 0, None
    for tag, value in fields(data):
        if tag == 1:
            header = _message(tag, value)
        elif tag == 2:
            append = _code(_message(tag, value))  # a BoolValue has its value where a Status has its code
        elif tag == 3:
            action = _number(tag, value)
    name = text_value = raw = b""
    for tag, value in fields(header):
        if tag == 1:
            name = _message(tag, value).lower()
        elif tag == 2:
            text_value = _message(tag, value)
        elif tag == 3:
            raw = _message(tag, value)
    if append is not None:
        return HeaderOption(name, text_value or raw, Action.APPEND if append else Action.SET)
    if action > Action.OVERWRITE_IF_EXISTS:
        raise WireError(f"nobody knows the append_action {action}")
    return HeaderOption(name, text_value or raw, Action(action))


def _message(tag: int, value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise WireError(f"field {tag} is a number, and has to be a message or a string")
    return value


def _number(tag: int, value: Value) -> int:
    if not isinstance(value, int):
        raise WireError(f"field {tag} has to be a number")
    return value
