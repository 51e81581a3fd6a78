"""What an authorization server of the cases says, asked in gRPC (Envoy's ext_authz): its path decides.

Paths with `/denied` are denied, all others are allowed. What it was asked comes back in fields of the answer.
"""

from __future__ import annotations

from tests.support.protobuf_wire import Value, field, fields, number, text

CHECK = "/envoy.service.auth.v3.Authorization/Check"
DENIAL = "not you"


def check(message: bytes) -> bytes:
    """A CheckRequest; its CheckResponse."""
    http = dict(fields(_inner(message, 1, 4, 2)))
    headers = dict(_entry(value) for tag, value in fields(_inner(message, 1, 4, 2)) if tag == 3)
    path, body = _bytes(http.get(4, b"")), _bytes(http.get(11, http.get(12, b"")))
    said = [_header(b"x-auth-body", b"%d" % len(body)), _header(b"x-auth-saw", headers.get(b"x-test-header", b""))]
    if b"/denied" not in path:
        return field(1, b"") + field(3, b"".join(field(2, each) for each in [*said, _header(b"x-user-id", b"42")]))
    denied = field(1, number(1, 403)) + b"".join(field(2, each) for each in said) + text(3, DENIAL.encode())
    return field(1, number(1, 7)) + field(2, denied)


def _inner(message: bytes, *tags: int) -> bytes:
    for tag in tags:
        message = _bytes(dict(fields(message)).get(tag, b""))
    return message


def _entry(value: Value) -> tuple[bytes, bytes]:
    entry = dict(fields(_bytes(value)))
    return _bytes(entry.get(1, b"")), _bytes(entry.get(2, b""))


def _bytes(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value


def _header(name: bytes, value: bytes) -> bytes:
    return field(1, text(1, name) + text(2, value))
