"""Request heads as field lists of HTTP/2. Host, framing and Via are always generated here, as in HTTP/1's writer.

Sources: RFC 9113 sections 8.2.2 and 8.3.1, RFC 9110 sections 7.6.3 (Via) and 8.6 (Content-Length).
"""

from __future__ import annotations

from egressproxy.model.message import CHUNKED, RequestHead
from egressproxy.protocols.http1.writer import WITH_CONTENT, via_line
from egressproxy.protocols.http2.field_coding import FieldList

__all__ = ["block_fields", "request_fields"]

#: What HTTP/2 says otherwise, or not at all; a filter may have written one of them.
_NEVER = frozenset(b"connection proxy-connection keep-alive transfer-encoding upgrade host te content-length".split())
#: An extended CONNECT needs no proof that it was understood (RFC 8441 section 5).
_NEVER_IN_CONNECT = _NEVER | {b"sec-websocket-key"}
_VIA = len(b"\r\nVia: ")


def block_fields(block: bytes) -> FieldList:
    """The lines of a block of HTTP/1 (model/fields) as fields with lower-case names, in order."""
    fields: FieldList = []
    for line in block.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        fields.append((name.lower(), value.strip(b" \t")))
    return fields


def request_fields(head: RequestHead, host: bytes, pseudonym: bytes, *, is_secure: bool) -> FieldList:
    """The head as it goes to a backend: `host` becomes :authority, `pseudonym` is our name in Via.

    A head with an `upgrade` is an extended CONNECT for that protocol (RFC 8441 section 4), if its caller has seen that
    this is allowed. The content has to follow in the length that `head.body` says.
    """
    method = head.method
    fields = [(b":method", method), (b":scheme", b"https" if is_secure else b"http"), (b":path", head.path)]
    fields.append((b":authority", host))
    if head.upgrade:
        fields[0] = (b":method", b"CONNECT")
        fields.append((b":protocol", head.upgrade.lower()))
    never = _NEVER_IN_CONNECT if head.upgrade else _NEVER
    for field in block_fields(head.fields.block):
        if field[0] not in never:
            fields.append(field)
    fields.append((b"via", via_line(head.via, head.http_1_0, pseudonym)[_VIA:]))
    body = head.body
    if body != CHUNKED and not head.upgrade and (body or method in WITH_CONTENT):
        fields.append((b"content-length", b"%d" % body))
    if head.te_trailers:
        fields.append((b"te", b"trailers"))
    if head.max_forwards >= 0:
        fields.append((b"max-forwards", b"%d" % head.max_forwards))
    return fields
