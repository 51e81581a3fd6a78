"""Message heads and how bodies end. Pure values: the codec makes them, filters change them, the writer renders them."""

from __future__ import annotations

from enum import IntEnum

from egressproxy.model.fields import Fields

__all__ = ["CHUNKED", "UNTIL_CLOSE", "BodyLength", "RequestHead", "ResponseHead", "TargetForm"]

#: How a body ends: a byte count of 0 or more, or one of the two below.
BodyLength = int
CHUNKED: BodyLength = -1
UNTIL_CLOSE: BodyLength = -2


class TargetForm(IntEnum):
    """RFC 9112 section 3.2."""

    ORIGIN = 1
    ABSOLUTE = 2
    AUTHORITY = 3
    ASTERISK = 4


class RequestHead:
    """A validated request head.

    `path` is the origin-form target, query included (`*` for OPTIONS); `target` is the raw target as it came.
    `scheme` and `host` are those of an absolute-form target, else b"" and the Host field's value (b"" for none in 1.0);
    for CONNECT `host` is the target, whatever Host said.
    `fields` has lost the hop-by-hop fields; what they said stands in the attributes.
    """

    __slots__ = (
        "body",
        "connection_close",
        "expect_continue",
        "fields",
        "form",
        "host",
        "http_1_0",
        "max_forwards",
        "method",
        "path",
        "proxy_authorization",
        "scheme",
        "target",
        "te_trailers",
        "upgrade",
        "via",
    )

    def __init__(self, method: bytes, target: bytes, fields: Fields) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.form = TargetForm.ORIGIN
        self.scheme = b""
        self.host = b""
        self.path = target
        self.http_1_0 = False
        self.body: BodyLength = 0
        self.connection_close = False
        self.expect_continue = False
        self.te_trailers = False
        self.upgrade = b""  # protocols asked for with a Connection: upgrade token, else b""
        self.via = b""  # received Via values, joined by ", "
        self.max_forwards = -1  # of TRACE and OPTIONS; the field itself is gone
        self.proxy_authorization = (
            b""  # a credential for us: never forwarded, never logged; repeated ones joined by ", "
        )

    def __repr__(self) -> str:
        return f"RequestHead({self.method.decode('latin-1')}, {self.form.name}, body={self.body})"


class ResponseHead:
    """A validated response head, hop-by-hop fields removed. `body` already follows RFC 9112 section 6.3."""

    __slots__ = ("body", "connection_close", "fields", "http_1_0", "phrase", "status", "upgrade", "via")

    def __init__(self, status: int, phrase: bytes, fields: Fields) -> None:
        self.status = status
        self.phrase = phrase
        self.fields = fields
        self.http_1_0 = False
        self.body: BodyLength = 0
        self.connection_close = False
        self.upgrade = b""
        self.via = b""

    @property
    def is_interim(self) -> bool:
        return self.status < 200 and self.status != 101

    def __repr__(self) -> str:
        return f"ResponseHead({self.status}, body={self.body})"
