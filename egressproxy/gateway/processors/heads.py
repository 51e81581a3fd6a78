"""Heads of an exchange as a processor is shown them: pseudo-headers first, as in HTTP/2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from egressproxy.model.exchange import Exchange

__all__ = ["request_lines", "response_lines", "shown"]

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
    """The lines whose names are shown."""
    return tuple(lines) if pattern is None else tuple(line for line in lines if pattern.fullmatch(line[0]))
