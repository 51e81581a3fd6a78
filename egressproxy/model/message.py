"""Message heads and how bodies end. Pure values: the codec makes them, filters change them, the writer renders them."""

from __future__ import annotations

import re
from typing import Final

from egressproxy.model.authority import Authority
from egressproxy.model.fields import Fields

#: How a body ends: a byte count of 0 or more, or one of the two below.
BodyLength = int
CHUNKED: Final[BodyLength] = -1
UNTIL_CLOSE: Final[BodyLength] = -2


class Hop:
    """The hop-by-hop and framing fields of a request, parsed. Shared by heads, and never changed.

    `authority` is that of Host, with port 80 where it names none; None without Host. `named` are the names (lower-case)
    that Connection listed beyond the usual ones. `proxy_authorization` is a credential for us: never forwarded, never
    logged; repeated ones are joined by ", ".
    """

    __slots__ = (
        "authority", "body", "connection_close", "egress_identity", "expects_continue", "host", "http_1_0", "named",
        "proxy_authorization", "te_trailers", "upgrade", "via",
    )  # fmt: skip

    def __init__(
        self,
        authority: Authority | None = None,
        body: BodyLength = 0,
        connection_close: bool = False,
        egress_identity: bytes = b"",
        expects_continue: bool = False,
        host: bytes = b"",
        http_1_0: bool = False,
        named: frozenset[bytes] = frozenset(),
        proxy_authorization: bytes = b"",
        te_trailers: bool = False,
        upgrade: bytes = b"",
        via: bytes = b"",
    ) -> None:
        self.authority = authority
        self.body = body
        self.connection_close = connection_close
        self.egress_identity = egress_identity  # X-Egress-Identity, of a request that has come through another proxy
        self.expects_continue = expects_continue
        self.host = host
        self.http_1_0 = http_1_0
        self.named = named
        self.proxy_authorization = proxy_authorization
        self.te_trailers = te_trailers
        self.upgrade = upgrade  # protocols asked for with a Connection: upgrade token, else b""
        self.via = via  # received Via values, joined by ", "

    def __repr__(self) -> str:
        return f"Hop(body={self.body})"  # no values: one is a credential


NOTHING_SAID: Final = Hop()


class RequestHead:
    """A validated request head.

    `path` is the origin-form target, query included (`*` for OPTIONS); `target` is the raw target as it came.
    `scheme` and `host` are those of an absolute-form target (RFC 9112 section 3.2.2), else b"" and the Host field's
    value (b"" for none in 1.0); for CONNECT `host` is the target, whatever Host said. `authority` is that of `host`
    where the port is 80 unless it names one; None where it is not known yet. `fields` is without the hop-by-hop
    fields, which `hop` has.
    """

    __slots__ = (
        "authority", "body", "connection_close", "expect_continue", "fields", "hop", "host", "http_1_0",
        "max_forwards", "method", "path", "scheme", "target", "te_trailers", "upgrade", "via",
    )  # fmt: skip

    def __init__(self, method: bytes, target: bytes, fields: Fields, hop: Hop = NOTHING_SAID) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.scheme = b""
        self.host = hop.host
        self.authority = hop.authority
        self.path = target
        self.http_1_0 = hop.http_1_0
        self.body = hop.body
        self.connection_close = hop.connection_close
        self.expect_continue = False
        self.te_trailers = hop.te_trailers
        self.upgrade = hop.upgrade
        self.via = hop.via
        self.max_forwards = -1  # of TRACE and OPTIONS; the field itself is gone
        self.hop = hop  # shared

    @property
    def proxy_authorization(self) -> bytes:
        """The credential for the gateway; see Hop."""
        return self.hop.proxy_authorization

    def copy(self) -> RequestHead:
        """The same head with fields of its own, to be changed for another receiver."""
        made = RequestHead(self.method, self.target, Fields(self.fields.block), self.hop)
        made.scheme = self.scheme
        made.host = self.host
        made.authority = self.authority
        made.path = self.path
        made.http_1_0 = self.http_1_0
        made.body = self.body
        made.connection_close = self.connection_close
        made.expect_continue = self.expect_continue
        made.te_trailers = self.te_trailers
        made.upgrade = self.upgrade
        made.via = self.via
        made.max_forwards = self.max_forwards
        return made

    def forget(self) -> None:
        """Release the fields and the query, which may be long, while a tunnel keeps the head."""
        self.hop = NOTHING_SAID
        self.fields.forget()
        self.upgrade = self.via = b""
        self.path = self.target = self.path.partition(b"?")[0]

    def __repr__(self) -> str:
        return f"RequestHead({self.method.decode('latin-1')}, body={self.body})"


class ResponseHead:
    """A validated response head, hop-by-hop fields removed. `body` already follows RFC 9112 section 6.3."""

    __slots__ = ("body", "connection_close", "fields", "http_1_0", "phrase", "status", "upgrade", "via")

    def __init__(self, status: int, phrase: bytes, fields: Fields) -> None:
        self.status, self.phrase, self.fields = status, phrase, fields
        self.http_1_0 = self.connection_close = False
        self.body: BodyLength = 0
        self.upgrade = self.via = b""

    @property
    def is_interim(self) -> bool:
        """Whether another response follows: every 1xx but 101 (RFC 9110 section 15.2)."""
        return self.status < 200 and self.status != 101

    def forget(self) -> None:
        """The same of a response."""
        self.fields.forget()
        self.phrase = self.upgrade = self.via = b""

    def __repr__(self) -> str:
        return f"ResponseHead({self.status}, body={self.body})"


#: The request target (pattern source): visible ASCII without a fragment. In a path a backslash is a slash for some
#: parsers and none for others; in a query it is itself for all, and browsers, Node, Go and httpx send it as it is.
TARGET: Final = rb'[!"$->@-\[\]-~]++(?:\?[!"$-~]*+)?'
#: A slash as some origin may read it: plain, a backslash, or either in percent-encoding, once or more often.
_SLASH: Final = rb"(?:/|\\|%(?:25)*(?:2[fF]|5[cC]))"
#: One or two dots, plain or encoded, that end at a slash, at the end, or at a ";" (path parameters).
_DOT_SEGMENT: Final = re.compile(rb"%s(?:\.|%%(?:25)*2[eE]){1,2}(?:\Z|;|%%(?:25)*3[bB]|(?=%s))" % (_SLASH, _SLASH))

#: The search for a byte is fastest by number: `in` checks the type of other operands first.
_PERCENT: Final = 0x25
_BACKSLASH: Final = 0x5C


def has_dot_segment(path: bytes) -> bool:
    """Whether some origin may read a segment of this path (without query) as `.` or `..` (RFC 3986 section 5.2.4), in
    the spellings that have tricked origins: `%2e`, `%252e`, `..%2f`, `..;` and backslashes.
    """
    if path.find(b"/.") < 0 and _PERCENT not in path and _BACKSLASH not in path:
        return False
    return _DOT_SEGMENT.search(path) is not None
