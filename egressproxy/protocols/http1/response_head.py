"""Reads one complete response head: bytes in, ResponseHead out.

As for requests: one expression checks the whole head and takes out what concerns this hop or the framing, and only a
head with more than three such fields is looked at twice.
Where RFC 9112 lets a proxy repair a response (folding, a blank before the colon, both framing fields) it is refused.

Sources: RFC 9112 sections 4 and 6.3, RFC 9110 sections 7.6.1, 7.8, 8.6 and 11.7.
"""

from __future__ import annotations

import re
from functools import lru_cache

from egressproxy.errors import Reason
from egressproxy.model.fields import Fields
from egressproxy.model.message import UNTIL_CLOSE, ResponseHead
from egressproxy.protocols.http1.framing import (
    FIELD_LINE,
    TCHAR,
    HeadLimits,
    HopFields,
    Malformed,
    any_case,
    connection_options,
    field_section_fault,
    head_pattern,
    read_content_length,
    read_transfer_encoding,
    without_fields,
)

__all__ = [
    "STATUS_LINE",
    "head_fault",
    "plain_response_pattern",
    "read_response_head",
    "response_pattern",
    "split_hop_fields",
]

#: Source text: minor version, status, phrase. The space behind the status may be missing (we send it, section 4).
_LINE = rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*+))?"

STATUS_LINE = re.compile(_LINE + rb"\r\n")


#: Proxy-Authenticate goes too: an origin must not make clients send the credentials that are meant for us.
_HOP_NAMES = (
    rb"(?=[ckptuvCKPTUV])(?:"
    + any_case(
        "connection content-length transfer-encoding keep-alive upgrade via proxy-connection te proxy-authenticate "
        "proxy-authentication-info"
    )
    + rb")"
)
_HOP = re.compile(rb"\r\n(" + _HOP_NAMES + rb"):([^\r]*)")

_KNOWN_OPTIONS = frozenset(b"close keep-alive upgrade te content-length transfer-encoding proxy-connection via".split())

_NOTHING: frozenset[bytes] = frozenset()


@lru_cache(maxsize=16)
def response_pattern(max_fields: int) -> re.Pattern[bytes]:
    """The whole grammar of a head: minor version, status, phrase, field block (groups 1 to 4), and its end."""
    return re.compile(_LINE + rb"((?:" + FIELD_LINE + rb"){0,%d}+)\r\n\r\n" % max_fields)


@lru_cache(maxsize=16)
def plain_response_pattern(max_fields: int) -> re.Pattern[bytes]:
    """`head_pattern` of responses; groups 1 to 3 are minor version, status, phrase."""
    return head_pattern(_LINE, _HOP_NAMES, TCHAR + rb"++", max_fields)


def split_hop_fields(block: bytes) -> tuple[bytes, HopFields]:
    """The field block without the fields of this hop, and those fields."""
    parts = _HOP.split(block)  # text, name, value, text, name, value, ... text
    return b"".join(parts[::3]), list(zip(parts[1::3], parts[2::3], strict=True))


def read_response_head(
    minor: bytes, code: bytes, phrase: bytes | None, block: bytes, hop_fields: HopFields, method: bytes
) -> tuple[ResponseHead, frozenset[bytes]]:
    """The head from its parts, as a pattern matched them, answering this method; and the names that Connection listed.

    Content-Length stays among the fields where it describes a body that is not sent (HEAD, 304). Raises Malformed.
    """
    status = int(code)
    head = ResponseHead(status, phrase or b"", Fields(block))
    is_1_0 = minor == b"0"
    length = coding = None
    is_framing_repeated = False
    connection = upgrade = b""
    for name, value in hop_fields:
        name = name.lower()
        value = value.strip(b" \t")
        if name == b"content-length":
            is_framing_repeated = is_framing_repeated or length is not None
            length = value
        elif name == b"transfer-encoding":
            is_framing_repeated = is_framing_repeated or coding is not None
            coding = value
        elif name == b"connection":
            connection = connection + b"," + value if connection else value
        elif name == b"via":
            head.via = head.via + b", " + value if head.via else value
        elif name == b"upgrade":
            upgrade = upgrade + b", " + value if upgrade else value

    named = _NOTHING
    is_kept = not is_1_0
    if connection == b"keep-alive" or connection == b"Keep-Alive":  # the usual value, and no option to look for
        is_kept = True
    elif connection:
        options = connection_options(connection)
        if b"close" in options:
            is_kept = False
        elif is_1_0:
            is_kept = b"keep-alive" in options
        if b"upgrade" in options and not is_1_0:
            head.upgrade = upgrade
        named = frozenset(options - _KNOWN_OPTIONS)
        if named:
            head.fields.block = without_fields(head.fields.block, named)
    head.http_1_0 = is_1_0

    if status < 200 or status == 204 or (method == b"CONNECT" and status < 300):
        pass  # no body, and what the framing fields say is void
    elif is_framing_repeated:
        raise Malformed(Reason.BAD_FRAMING, "a framing field is repeated")
    elif method == b"HEAD" or status == 304:
        if length is not None and coding is None:
            head.fields.block += b"\r\nContent-Length: %d" % read_content_length(length)
    elif coding is not None:
        if length is not None or is_1_0:
            raise Malformed(Reason.BAD_FRAMING, "Transfer-Encoding beside Content-Length, or in HTTP/1.0")
        head.body = read_transfer_encoding(coding)
    elif length is not None:
        head.body = read_content_length(length)
    else:
        head.body = UNTIL_CLOSE
        is_kept = False
    head.connection_close = not is_kept
    return head, named


def head_fault(head: bytes, limits: HeadLimits) -> Malformed:
    """Why a complete head does not match `response_pattern`. Runs only for those that do not."""
    end = head.find(b"\n") + 1
    if not STATUS_LINE.fullmatch(head[:end]):
        return Malformed(Reason.BAD_RESPONSE, "malformed status line")
    return field_section_fault(head[end - 2 : -4], limits.max_fields)
