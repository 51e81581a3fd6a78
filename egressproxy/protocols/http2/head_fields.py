"""Writing heads of HTTP/2, as fields or in HPACK. Host, framing, Via and Date are always generated here, as in HTTP/1's
writer. Sources: RFC 9113 sections 8.2.2 and 8.3, RFC 9110 sections 6.6.1, 7.6.3 and 8.6; RFC 8441 section 5, RFC 6455
sections 4.1 and 4.2.2.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from hashlib import sha1
from typing import Final

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.protocols.http1.head_grammar import MAX_REMEMBERED
from egressproxy.protocols.http1.writer import CR, LF, WITH_CONTENT, check_method, http_date, line_break, via_line
from egressproxy.protocols.http2.field_coding import EncodedLines, encoded, encoded_once
from egressproxy.protocols.http2.heads import CONNECTION_SPECIFIC
from egressproxy.protocols.http2.remembered_fields import FieldList

#: What HTTP/2 says otherwise, or not at all; a filter may have written one of them.
_NEVER_IN_REQUEST: Final = CONNECTION_SPECIFIC | {b"host", b"te", b"content-length"}
_request_line: Final = EncodedLines(_NEVER_IN_REQUEST).__getitem__
#: An extended CONNECT needs no proof that it was understood (RFC 8441 section 5).
_connect_line: Final = EncodedLines(_NEVER_IN_REQUEST | {b"sec-websocket-key"}).__getitem__
#: Methods whose code is kept.
MAX_METHODS: Final = 64


def block_fields(block: bytes) -> FieldList:
    """The lines of a block of HTTP/1 (model/fields) as fields with lower-case names, in order."""
    fields: FieldList = []
    for line in block.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        fields.append((name.lower(), value.strip(b" \t")))
    return fields


def request_code(head: RequestHead, host: bytes, pseudonym: bytes, *, is_secure: bool) -> bytes:
    """The head as it goes to a backend, in HPACK: `host` becomes :authority, `pseudonym` is our name in Via.

    A head with an `upgrade` is an extended CONNECT for that protocol (RFC 8441 section 4), if its caller has seen that
    this is allowed. The content has to follow in the length that `head.body` says.
    """
    method, body, path = head.method, head.body, head.path
    if LF in path or CR in path or LF in host or CR in host:
        raise line_break()
    lines = head.fields.block.split(b"\r\n")
    lines[0] = via_line(head.via, head.http_1_0, pseudonym)[2:]
    codes = [
        _CONNECT if head.upgrade else _METHODS[method],
        _HTTPS if is_secure else _HTTP,
        encoded_once(b":path", path),
        encoded_once(b":authority", host),
    ]
    if head.upgrade:
        codes.append(encoded(b":protocol", head.upgrade.lower()))
        codes += map(_connect_line, lines)
    else:
        codes += map(_request_line, lines)
        if body != CHUNKED and (body or method in WITH_CONTENT):
            codes.append(encoded_once(b"content-length", b"%d" % body))
    if head.te_trailers:
        codes.append(_TE_TRAILERS)
    if head.max_forwards >= 0:
        codes.append(encoded(b"max-forwards", b"%d" % head.max_forwards))
    return b"".join(codes)


class _Methods(dict[bytes, bytes]):
    """The code of :method."""

    def __missing__(self, method: bytes) -> bytes:
        check_method(method)
        code = encoded(b":method", method)
        if len(self) < MAX_METHODS:
            self[method] = code
        return code


_METHODS: Final = _Methods()
_CONNECT: Final = encoded(b":method", b"CONNECT")
_TE_TRAILERS: Final = encoded(b"te", b"trailers")
_HTTP: Final = encoded(b":scheme", b"http")
_HTTPS: Final = encoded(b":scheme", b"https")


CONTINUE: Final[FieldList] = [(b":status", b"100")]
TUNNEL_ESTABLISHED: Final[FieldList] = [(b":status", b"200")]

_VIA: Final = len(b"\r\nVia: ")
_STATUSES: Final = tuple((b":status", b"%d" % status) for status in range(1000))
_STATUS_CODES: Final = tuple(encoded(*field) for field in _STATUSES)
_response_line: Final = EncodedLines(CONNECTION_SPECIFIC).__getitem__


class ResponseHeads:
    """Final heads of the responses on one connection, in HPACK. The latest fields are kept with their code, since a
    client often gets the same again.
    """

    __slots__ = ("_block", "_code", "_has_date", "_via")

    def __init__(self) -> None:
        self._block = b""
        self._via = b""
        self._code = b""  # of both
        self._has_date = False

    def code(self, head: ResponseHead, pseudonym: bytes, *, has_body: bool) -> bytes:
        """The final head as it goes to the client. `has_body`: as in HTTP/1's `response_bytes`."""
        block, via = head.fields.block, via_line(head.via, head.http_1_0, pseudonym)
        if block == self._block and via == self._via:
            code, has_date = self._code, self._has_date
        else:
            code = b"".join(map(_response_line, (via + block).split(b"\r\n")[1:]))
            has_date = b"\r\nDate:" in block or b"\r\ndate:" in block or b"date" in head.fields
            if len(block) + len(via) <= MAX_REMEMBERED:
                self._block, self._via, self._code, self._has_date = block, via, code, has_date
        code = _STATUS_CODES[head.status] + code
        if has_body and head.body >= 0:
            code += _response_line(b"content-length:%d" % head.body)
        return code if has_date else code + _response_line(b"date:" + http_date())


def interim_fields(head: ResponseHead, pseudonym: bytes) -> FieldList:
    """An interim head (RFC 9110 section 15.2)."""
    fields = [_STATUSES[head.status]]
    fields += [field for field in block_fields(head.fields.block) if field[0] not in CONNECTION_SPECIFIC]
    fields.append((b"via", via_line(head.via, head.http_1_0, pseudonym)[_VIA:]))
    return fields


def answer_fields(answer: LocalResponse) -> FieldList:
    """The head of a response of our own."""
    fields = [_STATUSES[answer.status]]
    for name, value in answer.fields:
        lower = name.lower()
        if lower not in CONNECTION_SPECIFIC:
            fields.append((lower, value))
    if answer.status not in (204, 304):
        fields.append((b"content-length", b"%d" % len(answer.body)))
    fields.append((b"date", http_date()))
    return fields


_KEY: Final = b"sec-websocket-key"
_ACCEPT: Final = b"sec-websocket-accept"


def websocket_accept(key: bytes) -> bytes:
    """The value of Sec-WebSocket-Accept for this key (RFC 6455 section 4.2.2)."""
    return b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest())


class Handshake:
    """A WebSocket of HTTP/2 toward an upstream of HTTP/1: puts a key into the request, and looks for its answer."""

    __slots__ = ("_expected",)

    def __init__(self, head: RequestHead) -> None:
        key = b64encode(secrets.token_bytes(16))
        head.fields.set(_KEY, key)
        self._expected = websocket_accept(key)

    def check(self, head: ResponseHead) -> None:
        """Take the answer out of a 101. Raises UpstreamFault for one that answers something else."""
        if head.fields.get_all(_ACCEPT) != [self._expected]:
            raise UpstreamFault(Reason.BAD_RESPONSE, "the upstream's 101 does not answer the WebSocket's key")
        head.fields.remove(_ACCEPT)
