"""Reads one complete response head: bytes in, ResponseHead out.

As for requests: one expression checks the whole head and takes out what concerns this hop or the framing, and only a
head with more than three such fields is looked at twice.
Where RFC 9112 lets a proxy repair a response (folding, a blank before the colon, both framing fields) it is refused.

Sources: RFC 9112 sections 4 and 6.3, RFC 9110 sections 7.6.1, 7.8, 8.6 and 11.7.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import Reason
from egressproxy.model.fields import Fields
from egressproxy.model.message import UNTIL_CLOSE, ResponseHead
from egressproxy.protocols.http1.framing import (
    FIELD_NAME,
    TCHAR,
    HeadLimits,
    HopFields,
    Malformed,
    any_case,
    any_section_pattern,
    connection_options,
    joined_by_name,
    plain_section_pattern,
    read_content_length,
    read_transfer_encoding,
    split_fields,
    without_fields,
)
from egressproxy.protocols.http1.head_grammar import Grammars, HeadGrammar

#: Source text: minor version, status, phrase. The space behind the status may be missing (we send it, section 4).
_LINE: Final = rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*+))?"

STATUS_LINE: Final = re.compile(_LINE + rb"\r\n")

#: Fields of this hop and of the framing. Proxy-Authenticate goes too: an origin must not make clients send the
#: credentials that are meant for us. Persistent-Auth says that the connection is now that of the user who has logged in
#: (MS-N2HT section 2.2).
_HOP_FIELDS: Final = (
    "connection content-length transfer-encoding keep-alive upgrade via proxy-connection te proxy-authenticate "
    "proxy-authentication-info persistent-auth"
)
#: A step of a login that is about the connection: NTLM, and Negotiate (RFC 4559 sections 4 and 6), whose last step
#: comes with any status. Further clients would be the user who has logged in: nothing follows on the connection.
_BOUND_LOGIN: Final = (
    rb"[wW][wW][wW]-[aA][uU][tT][hH][eE][nN][tT][iI][cC][aA][tT][eE]"
    rb"(?=:[^\r]*(?:[nN][tT][lL][mM]|[nN][eE][gG][oO][tT][iI][aA][tT][eE])[ \t]++[A-Za-z0-9+/])"
)
#: So does X-Egress-…, in either spelling: with these we speak to clients ourselves.
_HOP_NAMES: Final = rb"(?=[ckptuvwxCKPTUVWX])" + any_case(
    _HOP_FIELDS, also=rb"[xX][-_][eE][gG][rR][eE][sS][sS][-_]" + TCHAR + rb"*+|" + _BOUND_LOGIN
)
_HOP: Final = re.compile(rb"\r\n(" + _HOP_NAMES + rb"):([^\r]*)")

#: Options of Connection whose fields are taken out anyway, or that name no field.
_KNOWN_OPTIONS: Final = frozenset((b"close", *_HOP_FIELDS.encode().split()))


def new_response_grammar(limits: HeadLimits) -> HeadGrammar[ResponseHop]:
    """A grammar of responses that shares nothing."""
    plain = plain_section_pattern(_HOP_NAMES, FIELD_NAME, limits.max_fields)
    whole = any_section_pattern(limits.max_fields)
    return HeadGrammar(limits, STATUS_LINE, plain, whole, split_hop_fields, read_hop_fields)


_grammars: Final[Grammars[ResponseHop]] = Grammars(new_response_grammar)


def response_grammar(limits: HeadLimits) -> HeadGrammar[ResponseHop]:
    """The grammar of all responses under these limits."""
    return _grammars.of(limits)


def split_hop_fields(block: bytes) -> tuple[bytes, HopFields]:
    """The field block without the fields of this hop, and those fields."""
    return split_fields(_HOP, block)


@dataclass(slots=True, eq=False)
class ResponseHop:
    """What a response's fields of this hop and of the framing said, read together. Shared by heads."""

    http_1_0: bool
    connection_close: bool
    coding: bytes | None  # Transfer-Encoding
    length: bytes | None  # Content-Length
    is_framing_repeated: bool
    via: bytes  # received Via values, joined by ", "
    upgrade: bytes
    named: frozenset[bytes]  # names (lower-case) that Connection listed beyond the usual ones
    login: bytes = b""  # lines of WWW-Authenticate with a step of a login, which go on all the same
    body_size: int = -1  # what `length` says, once somebody has asked


def read_hop_fields(hop_fields: HopFields, minor: bytes) -> ResponseHop:
    """What the fields of this hop say, in a response of this minor version of HTTP/1. Raises Malformed."""
    values, repeated = joined_by_name(hop_fields)
    is_1_0 = minor == b"0"
    options = connection_options(values.get(b"connection", b""))
    is_bound = b"persistent-auth" in values or b"www-authenticate" in values
    return ResponseHop(
        http_1_0=is_1_0,
        connection_close=b"close" in options or (is_1_0 and b"keep-alive" not in options) or is_bound,
        coding=values.get(b"transfer-encoding"),
        length=values.get(b"content-length"),
        is_framing_repeated=b"content-length" in repeated or b"transfer-encoding" in repeated,
        via=values.get(b"via", b""),
        upgrade=values.get(b"upgrade", b"") if b"upgrade" in options and not is_1_0 else b"",
        named=options - _KNOWN_OPTIONS,
        login=_login(hop_fields) if b"www-authenticate" in values else b"",
    )


def _login(hop_fields: HopFields) -> bytes:
    pairs = zip(hop_fields[::2], hop_fields[1::2], strict=True)
    return b"".join([b"\r\n%b:%b" % pair for pair in pairs if pair[0].lower() == b"www-authenticate"])


def read_response_head(code: bytes, phrase: bytes, fields: Fields, hop: ResponseHop, method: bytes) -> ResponseHead:
    """The head from its parts, answering this method. Content-Length stays among the fields where it describes a body
    that is not sent (HEAD, 304). Raises Malformed.
    """
    status = int(code)
    if hop.login:
        fields.block += hop.login
    if hop.named:
        fields.block = without_fields(fields.block, hop.named)
    head = ResponseHead(status, phrase, fields)
    head.http_1_0 = hop.http_1_0
    head.connection_close = hop.connection_close
    head.upgrade = hop.upgrade
    head.via = hop.via
    length, coding = hop.length, hop.coding
    if status < 200 or status == 204 or (method == b"CONNECT" and status < 300):
        pass  # no body, and what the framing fields say is void
    elif hop.is_framing_repeated:
        raise Malformed(Reason.BAD_FRAMING, "a framing field is repeated")
    elif method == b"HEAD" or status == 304:
        if length is not None and coding is None:
            head.fields.block += b"\r\nContent-Length: %d" % read_content_length(length)
    elif coding is not None:
        if length is not None or hop.http_1_0:
            raise Malformed(Reason.BAD_FRAMING, "Transfer-Encoding beside Content-Length, or in HTTP/1.0")
        head.body = read_transfer_encoding(coding)
    elif length is not None:
        if hop.body_size < 0:
            hop.body_size = read_content_length(length)
        head.body = hop.body_size
    else:
        head.body = UNTIL_CLOSE
        head.connection_close = True
    return head


def status_line_fault(_line: bytes, _limits: HeadLimits) -> Malformed:
    """Why this status line is refused."""
    return Malformed(Reason.BAD_RESPONSE, "malformed status line")
