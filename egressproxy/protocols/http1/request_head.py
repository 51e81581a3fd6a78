"""Reads one complete request head: bytes in, RequestHead out.

The head is checked by one expression (start line, names, values, line ends, number of fields) before anything is
looked at. Then one split of the field block takes out every field that concerns this hop or the framing, and leaves the
rest of the bytes as they came. Measured, head of 12 fields and 600 octets: the check, which also finds the end, 0.9 us;
the split 0.85 us; all of it 4.4 us. llhttp would add 0.55 us, checks less than the expression does, and knows no
extension methods.

Sources: RFC 9112 sections 3, 6 and 9, RFC 9110 sections 7 and 10.1.
"""

from __future__ import annotations

import re
from functools import lru_cache

from egressproxy.errors import Reason
from egressproxy.model.authority import AuthorityError, parse_authority
from egressproxy.model.fields import TOKEN, Fields, finder
from egressproxy.model.message import RequestHead, TargetForm
from egressproxy.protocols.http1.framing import (
    FIELD_LINE,
    FIELD_VALUE,
    TCHAR,
    HeadLimits,
    Malformed,
    any_case,
    connection_options,
    field_section_fault,
    read_content_length,
    read_transfer_encoding,
    without_fields,
)

__all__ = [
    "REQUEST_LINE",
    "head_fault",
    "plain_request_pattern",
    "read_request_head",
    "request_line_fault",
    "request_pattern",
    "without_twins",
]

#: Source text: method, target, minor version. A target is visible ASCII; a fragment is never part of it, and a
#: backslash is a slash for some parsers and none for others.
_LINE = rb"(" + TCHAR + rb'{1,32}+) ([!"$-\[\]-~]++) HTTP/1\.([01])'

#: A token without an underscore (source text).
_PLAIN_NAME = rb"[!#$%&'*+\-.^`|~0-9A-Za-z]++"

REQUEST_LINE = re.compile(_LINE + rb"\r\n")

_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_ABSOLUTE = re.compile(rb"(https?)://([^/?]*)(.*)", re.IGNORECASE)
_DIGITS = re.compile(rb"[0-9]{1,9}")


#: Fields that would speak for a client's identity: gateways make them, so none that a client sends is passed on.
_IDENTITY = (
    "x-forwarded-client-cert x-gateway-role x-gateway-user x-gateway-identity x-egress-identity x-smokescreen-role"
)

#: Fields of this hop, of the framing, and of identity; group 1 the name, group 2 the value. The look-ahead spares the
#: alternation for most lines.
_HOP = re.compile(
    rb"\r\n(?=[cehkptuvCEHKPTUV]|[xX]-[fgesFGES])("
    + any_case(
        "host connection content-length transfer-encoding proxy-connection proxy-authorization keep-alive te "
        "upgrade expect via http2-settings " + _IDENTITY
    )
    + rb"):([^\r]*)"
)

#: Spellings with an underscore that some origins read as the field with a hyphen. Others pass: real clients use them.
_TWINS = re.compile(
    rb"\r\n(?=[0-9A-Za-z-]*_)(?:authorization|connection|host|cookie|(?:proxy[-_])?authorization|"
    rb"transfer[-_]encoding|content[-_](?:length|type|encoding)|proxy[-_]connection|keep[-_]alive|http2[-_]settings|"
    rb"max[-_]forwards|x[-_]forwarded[-_][0-9A-Za-z_-]+|x[-_]real[-_]ip|(?:x[-_])?(?:goog[-_])?api[-_]key)_*:[^\r]*",
    re.IGNORECASE,
)

#: Options of Connection whose fields are taken out anyway, or that name no field.
_KNOWN_OPTIONS = frozenset(
    b"close keep-alive upgrade te host content-length transfer-encoding proxy-connection proxy-authorization expect "
    b"via http2-settings".split()
)

_NOTHING: frozenset[bytes] = frozenset()


@lru_cache(maxsize=16)
def request_pattern(max_fields: int) -> re.Pattern[bytes]:
    """The whole grammar of a head: method, target, minor version, field block (groups 1 to 4), and its end."""
    return re.compile(_LINE + rb"((?:" + FIELD_LINE + rb"){0,%d}+)\r\n\r\n" % max_fields)


@lru_cache(maxsize=16)
def plain_request_pattern(max_fields: int) -> re.Pattern[bytes]:
    """`request_pattern` for heads with no underscore in a field's name: nearly all, and they need no look for twins."""
    return re.compile(_LINE + rb"((?:\r\n" + _PLAIN_NAME + FIELD_VALUE + rb"){0,%d}+)\r\n\r\n" % max_fields)


def without_twins(block: bytes) -> bytes:
    """The block without the fields whose names read like sensitive ones where "_" and "-" are taken for the same."""
    return _TWINS.sub(b"", block)


def read_request_head(
    method: bytes, target: bytes, minor: bytes, block: bytes, limits: HeadLimits
) -> tuple[RequestHead, frozenset[bytes]]:
    """The head from its parts, as `request_pattern` matched them, and the names (lower-case) that Connection listed.

    Raises Malformed.
    """
    if len(target) > limits.max_target_bytes:
        raise Malformed(Reason.TARGET_TOO_LONG, f"the target is longer than {limits.max_target_bytes} octets", 414)
    # text, name, value, text, name, value, ... text
    parts = _HOP.split(block)
    head = RequestHead(method, target, Fields(b"".join(parts[::3])))
    head.http_1_0 = is_1_0 = minor == b"0"
    host: bytes | None = None
    length: bytes | None = None
    coding: bytes | None = None
    connection = upgrade = te = b""
    expect: bytes | None = None
    for at in range(1, len(parts), 3):
        name = parts[at].lower()
        value = parts[at + 1].strip(b" \t")
        if name == b"host":
            if host is not None:
                raise Malformed(Reason.BAD_HOST, "more than one Host field")
            host = value
        elif name == b"connection":
            connection = connection + b"," + value if connection else value
        elif name == b"content-length":
            if length is not None:
                raise Malformed(Reason.BAD_FRAMING, "more than one Content-Length field")
            length = value
        elif name == b"transfer-encoding":
            if coding is not None:
                raise Malformed(Reason.BAD_FRAMING, "more than one Transfer-Encoding field")
            coding = value
        elif name == b"proxy-authorization":
            known = head.proxy_authorization
            head.proxy_authorization = known + b", " + value if known else value
        elif name == b"via":
            head.via = head.via + b", " + value if head.via else value
        elif name == b"upgrade":
            upgrade = upgrade + b"," + value if upgrade else value
        elif name == b"te":
            te = te + b"," + value if te else value
        elif name == b"expect":
            # a second line makes it something else than the one expectation there is
            expect = value if expect is None else b"?"

    if length is not None or coding is not None:
        _read_body_length(head, length, coding)
    named = _read_connection(head, connection, upgrade, te) if connection else _NOTHING
    if is_1_0:
        head.connection_close = True
    if host is not None:
        try:
            parse_authority(host, 80)
        except AuthorityError as error:
            raise Malformed(Reason.BAD_HOST, f"invalid Host: {error}") from None
    elif not is_1_0:
        raise Malformed(Reason.BAD_HOST, "the Host field is missing")

    if method == b"CONNECT":
        _read_connect(head, host)
    elif target[0] == 0x2F:  # "/": origin-form, path and target are the same
        head.host = host or b""
    else:
        _read_other_form(head, host or b"")
    if expect is not None and head.body and not is_1_0 and expect.lower() == b"100-continue":
        head.expect_continue = True
        head.fields.block += b"\r\nExpect: 100-continue"
    if method == b"OPTIONS" or method == b"TRACE":
        _read_max_forwards(head)
    return head, named


def head_fault(head: bytes, limits: HeadLimits) -> Malformed:
    """Why a complete head does not match `request_pattern`. Runs only for those that do not."""
    end = head.find(b"\n") + 1
    line = head[:end]
    if not REQUEST_LINE.fullmatch(line):
        return request_line_fault(line, limits)
    return field_section_fault(head[end - 2 : -4], limits.max_fields)


def request_line_fault(line: bytes, limits: HeadLimits) -> Malformed:
    """Why this request line (up to its LF) is refused. Source: RFC 9112 section 3."""
    if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
        return Malformed(Reason.BAD_REQUEST_LINE, "the request line ends in a bare CR or LF, or holds one")
    words = line[:-2].split(b" ")
    if not TOKEN.fullmatch(words[0]) or len(words[0]) > 32:
        return Malformed(Reason.BAD_REQUEST_LINE, "the method is not a token of at most 32 octets")
    if len(words) == 2 and words[1] and not words[1].startswith(b"HTTP/"):
        return Malformed(Reason.BAD_VERSION, "HTTP/0.9 is not supported", 505)
    if len(words) != 3 or not words[1]:
        return Malformed(Reason.BAD_REQUEST_LINE, "a request line is method, target and version, one space between")
    target, version = words[1:]
    if not _VERSION.fullmatch(version):
        return Malformed(Reason.BAD_REQUEST_LINE, "malformed HTTP version")
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        return Malformed(Reason.BAD_VERSION, "only HTTP/1.1 and HTTP/1.0 are spoken here", 505)
    if len(target) > limits.max_target_bytes:
        return Malformed(Reason.TARGET_TOO_LONG, f"the target is longer than {limits.max_target_bytes} octets", 414)
    if b"#" in target:
        return Malformed(Reason.BAD_TARGET, "a target has no fragment")
    return Malformed(Reason.BAD_TARGET, "the target holds an octet that has to be percent-encoded")


def _read_body_length(head: RequestHead, length: bytes | None, coding: bytes | None) -> None:
    """RFC 9112 section 6.3, and 9110 section 9.3.6: content of a CONNECT cannot be told from the tunnel's bytes."""
    if coding is not None:
        if length is not None:
            raise Malformed(Reason.BAD_FRAMING, "both Content-Length and Transfer-Encoding")
        if head.http_1_0:
            raise Malformed(Reason.BAD_FRAMING, "Transfer-Encoding in an HTTP/1.0 request")
        head.body = read_transfer_encoding(coding)
    elif length is not None:
        head.body = read_content_length(length)
    if head.body and head.method == b"CONNECT":
        raise Malformed(Reason.BAD_FRAMING, "a CONNECT request has no content")


def _read_connection(head: RequestHead, value: bytes, upgrade: bytes, te: bytes) -> frozenset[bytes]:
    """Apply the Connection field; the names it lists beyond the usual ones."""
    lower = value.lower()
    if lower == b"keep-alive":
        return _NOTHING
    if lower == b"close":
        head.connection_close = True
        return _NOTHING
    options = connection_options(value)
    head.connection_close = b"close" in options
    if upgrade and b"upgrade" in options and head.body == 0 and not head.http_1_0:
        head.upgrade = b", ".join(_wanted_protocols(upgrade))
    if te and b"te" in options:
        head.te_trailers = b"trailers" in [coding.strip(b" \t").lower() for coding in te.split(b",")]
    named = frozenset(options - _KNOWN_OPTIONS)
    if named:
        head.fields.block = without_fields(head.fields.block, named)
    return named


def _wanted_protocols(value: bytes) -> list[bytes]:
    """Protocols to upgrade to. Other versions of HTTP and TLS are never switched to: RFC 9113 took `h2c` back."""
    protocols = [protocol.strip(b" \t") for protocol in value.split(b",")]
    for protocol in protocols:
        name, slash, version = protocol.partition(b"/")
        if protocol and (not TOKEN.fullmatch(name) or (slash and not TOKEN.fullmatch(version))):
            raise Malformed(Reason.BAD_FIELD, "malformed Upgrade")
    return [p for p in protocols if p and not p.lower().startswith((b"h2", b"h3", b"http", b"tls"))]


def _read_connect(head: RequestHead, host: bytes | None) -> None:
    """RFC 9112 section 3.2.3. The target alone is the authority; Host may lack the port, but not name another host."""
    head.form = TargetForm.AUTHORITY
    head.host = head.target
    try:
        authority = parse_authority(head.target, None)
    except AuthorityError as error:
        raise Malformed(Reason.BAD_TARGET, f"the target of CONNECT has to be host:port: {error}") from None
    if host is not None and parse_authority(host, 80).host != authority.host:
        raise Malformed(Reason.BAD_HOST, "the Host field names another host than the target of CONNECT")


def _read_other_form(head: RequestHead, host: bytes) -> None:
    """RFC 9112 sections 3.2.2 and 3.2.4. In absolute-form the received Host counts for nothing."""
    if head.target == b"*":
        if head.method != b"OPTIONS":
            raise Malformed(Reason.BAD_TARGET, "the target * belongs to OPTIONS")
        head.form = TargetForm.ASTERISK
        head.host = host
        return
    head.form = TargetForm.ABSOLUTE
    target = head.target
    slash = target.find(b"/", 7)
    if slash > 0 and target.startswith(b"http://"):
        # the usual spelling, and half the price of the expression
        authority = target[7:slash]
        try:
            parse_authority(authority, 80)
        except AuthorityError:
            pass
        else:
            head.scheme = b"http"
            head.host = authority
            head.path = target[slash:]
            return
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Malformed(Reason.BAD_TARGET, "the target is neither a path nor an http or https URI")
    scheme, authority, rest = absolute.groups()
    scheme = scheme.lower()
    if b"@" in authority:
        raise Malformed(Reason.BAD_TARGET, "credentials in a URI are refused")
    try:
        parse_authority(authority, 80 if scheme == b"http" else 443)
    except AuthorityError as error:
        raise Malformed(Reason.BAD_TARGET, f"invalid host in the target: {error}") from None
    head.scheme = scheme
    head.host = authority
    if not rest:
        head.path = b"*" if head.method == b"OPTIONS" else b"/"
    else:
        head.path = rest if rest[0] == 0x2F else b"/" + rest


def _read_max_forwards(head: RequestHead) -> None:
    """RFC 9110 section 7.6.2: who forwards the request writes the lower number."""
    values = finder(b"max-forwards").findall(head.fields.block)
    if not values:
        return
    if len(values) > 1 or not _DIGITS.fullmatch(values[0]):
        raise Malformed(Reason.BAD_FIELD, "malformed Max-Forwards")
    head.max_forwards = int(values[0])
    head.fields.remove(b"max-forwards")
