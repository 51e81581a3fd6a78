"""Response heads as fields of HTTP/2. Framing, Via and Date are always generated here, as in HTTP/1's writer.

Sources: RFC 9113 sections 8.2.2 and 8.3.2, RFC 9110 sections 6.6.1 (Date) and 7.6.3 (Via).
"""

from __future__ import annotations

from typing import Final

from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.protocols.http1.writer import http_date, via_line
from egressproxy.protocols.http2.field_coding import EncodedLines, FieldList, encoded
from egressproxy.protocols.http2.request_fields import block_fields

CONTINUE: Final[FieldList] = [(b":status", b"100")]
TUNNEL_ESTABLISHED: Final[FieldList] = [(b":status", b"200")]

#: What HTTP/2 says otherwise, or not at all; a filter may have written one of them.
_NEVER = frozenset(b"connection proxy-connection keep-alive transfer-encoding upgrade".split())
_VIA = len(b"\r\nVia: ")
_STATUSES = tuple((b":status", b"%d" % status) for status in range(1000))
_STATUS_CODES = tuple(encoded(*field) for field in _STATUSES)
_LINES = EncodedLines(_NEVER)
_code = _LINES.__getitem__


def response_code(head: ResponseHead, pseudonym: bytes, *, has_body: bool) -> bytes:
    """The final head as it goes to the client, in HPACK. `has_body`: as in HTTP/1's `response_bytes`."""
    block = head.fields.block
    lines = block.split(b"\r\n")
    lines[0] = via_line(head.via, head.http_1_0, pseudonym)[2:]
    if has_body and head.body >= 0:
        lines.append(b"content-length:%d" % head.body)
    if b"\r\nDate:" not in block and b"\r\ndate:" not in block and b"date" not in head.fields:
        lines.append(b"date:" + http_date())
    return _STATUS_CODES[head.status] + b"".join(map(_code, lines))


def interim_fields(head: ResponseHead, pseudonym: bytes) -> FieldList:
    """An interim head (RFC 9110 section 15.2)."""
    return _fields_of(head, pseudonym)


def answer_fields(answer: LocalResponse) -> FieldList:
    """The head of a response of our own."""
    fields = [_STATUSES[answer.status]]
    for name, value in answer.fields:
        lower = name.lower()
        if lower not in _NEVER:
            fields.append((lower, value))
    if answer.status not in (204, 304):
        fields.append((b"content-length", b"%d" % len(answer.body)))
    fields.append((b"date", http_date()))
    return fields


def _fields_of(head: ResponseHead, pseudonym: bytes) -> FieldList:
    fields = [_STATUSES[head.status]]
    fields += [field for field in block_fields(head.fields.block) if field[0] not in _NEVER]
    fields.append((b"via", via_line(head.via, head.http_1_0, pseudonym)[_VIA:]))
    return fields
