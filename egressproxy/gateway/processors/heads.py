"""Heads of an exchange as a processor is shown them: pseudo-headers first, as in HTTP/2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.ext_proc.messages import ImmediateResponse
from egressproxy.protocols.grpc.statuses import encoded_message, is_grpc

Lines = tuple[tuple[bytes, bytes], ...]


def request_lines(x: Exchange, pattern: re.Pattern[bytes] | None) -> Lines:
    """The head of the request; `pattern` matches the names that are shown, None: all."""
    request = x.request
    host = x.upstream_host or request.host or (str(x.authority).encode() if x.authority is not None else b"")
    lines = [(b":method", request.method), (b":authority", host)]
    if request.method != b"CONNECT":
        lines += [(b":scheme", x.scheme), (b":path", request.path)]
    lines += request.fields
    if request.body > 0:
        lines.append((b"content-length", b"%d" % request.body))
    return shown(lines, pattern)


def response_lines(x: Exchange, pattern: re.Pattern[bytes] | None) -> Lines:
    """The head of the response."""
    response = x.response
    lines = [(b":status", b"%d" % response.status), *response.fields]
    if response.body > 0:
        lines.append((b"content-length", b"%d" % response.body))
    return shown(lines, pattern)


def shown(lines: Iterable[tuple[bytes, bytes]], pattern: re.Pattern[bytes] | None) -> Lines:
    return tuple(lines) if pattern is None else tuple(line for line in lines if pattern.fullmatch(line[0]))


def local_response(immediate: ImmediateResponse, status: int, fields: Fields, x: Exchange) -> LocalResponse:
    """The response that a processor wants a client to have, with these fields; in the words of gRPC for a call."""
    if immediate.grpc_status is not None and is_grpc(x.request.fields.get(b"content-type")):
        fields.set(b"content-type", b"application/grpc")
        fields.set(b"grpc-status", b"%d" % immediate.grpc_status)
        if immediate.body:
            fields.set(b"grpc-message", encoded_message(immediate.body.decode("utf-8", "replace")))
        return LocalResponse(200, tuple(fields))
    return LocalResponse(status, tuple(fields), b"" if status in (204, 205, 304) else immediate.body)
