"""Reads one complete request head: bytes in, RequestHead out.

The head is checked by one expression (start line, names, values, line ends, number of fields) before anything is
looked at. With up to three fields that concern this hop or the framing, the same expression has taken them out and left
the rest of the bytes as they came; with more, or with an underscore in a name, a second pass does. llhttp would check
less than the expression does, and knows no extension methods.

Sources: RFC 9112 sections 3, 6 and 9, RFC 9110 sections 7 and 10.1.
"""

from __future__ import annotations

import re
from typing import Final

from egressproxy.errors import Reason
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.fields import TOKEN, Fields, finder
from egressproxy.model.message import TARGET, Hop, RequestHead
from egressproxy.protocols.http1.framing import (
    IDENTITY_FIELDS,
    MAX_NAME,
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

#: Source text: method, target, minor version.
_LINE: Final = rb"(" + TCHAR + rb"{1,32}+) (" + TARGET + rb") HTTP/1\.([01])"

#: A token without an underscore (source text).
_PLAIN_NAME: Final = rb"[!#$%%&'*+\-.^`|~0-9A-Za-z]{1,%d}+" % MAX_NAME

REQUEST_LINE: Final = re.compile(_LINE + rb"\r\n")

#: A line of three words that names no version of HTTP: of a broken preface of HTTP/2, for one.
NOT_HTTP: Final = "the connection does not speak HTTP"
_NO_FORM: Final = "the target is neither a path nor an http or https URI"
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_ABSOLUTE: Final = re.compile(rb"(https?)://([^/?]*)(.*)", re.IGNORECASE)
_DIGITS: Final = re.compile(rb"[0-9]{1,9}")


#: Fields of this hop, of the framing, and of identity.
_HOP_FIELDS: Final = (
    "host connection content-length transfer-encoding proxy-connection proxy-authorization keep-alive te "
    "upgrade expect via http2-settings x-forwarded-client-cert " + IDENTITY_FIELDS
)
#: The look-ahead spares the alternatives for most lines.
_HOP_NAMES: Final = rb"(?=[cehkptuvxCEHKPTUVX])" + any_case(_HOP_FIELDS)
_HOP: Final = re.compile(rb"\r\n(" + _HOP_NAMES + rb"):([^\r]*)")

#: Spellings with an underscore that some origins read as the field with a hyphen. Other underscores pass: real clients
#: use them. Possessive: a name of 60,000 underscores that turns out to be another is looked at once.
_TWINS: Final = re.compile(
    rb"\r\n(?=[0-9A-Za-z-]*_)(?:authorization|connection|host|cookie|(?:proxy[-_])?authorization|"
    rb"transfer[-_]encoding|content[-_](?:length|type|encoding)|proxy[-_]connection|keep[-_]alive|http2[-_]settings|"
    rb"max[-_]forwards|x[-_]forwarded[-_][0-9A-Za-z_-]++|x[-_]real[-_]ip|(?:x[-_])?(?:goog[-_])?api[-_]key|"
    rb"x[-_](?:gateway[-_](?:role|user|identity)|egress[-_]identity|smokescreen[-_]role))_*+:[^\r]*",
    re.IGNORECASE,
)

#: Those of the framing: what is behind the head may be the body for one reader, and the next request for another.
_FRAMING_TWIN: Final = re.compile(rb"\r\n(?=[A-Za-z-]*_)(?:content[-_]length|transfer[-_]encoding)_*+:", re.IGNORECASE)

#: Without one of these names (lower case), and without "_" in a name, `split_hop_fields` finds nothing.
HOP_NAMES: Final = frozenset(_HOP_FIELDS.encode().split())
#: Options of Connection whose fields are taken out anyway, or that name no field.
_KNOWN_OPTIONS: Final = HOP_NAMES | {b"close"}

#: Protocols that a request may offer to upgrade to: to look at 30,000 of them would take 10 ms.
_MAX_PROTOCOLS: Final = 64

#: Fields that stand there once at the most, and what their repetition is told as.
_ONCE: Final = {
    b"host": (Reason.BAD_HOST, "more than one Host field"),
    b"content-length": (Reason.BAD_FRAMING, "more than one Content-Length field"),
    b"transfer-encoding": (Reason.BAD_FRAMING, "more than one Transfer-Encoding field"),
}


def new_request_grammar(limits: HeadLimits) -> HeadGrammar[Hop]:
    """A grammar of requests that shares nothing. Names with an underscore, which few have, may have a twin."""
    plain = plain_section_pattern(_HOP_NAMES, _PLAIN_NAME, limits.max_fields)
    whole = any_section_pattern(limits.max_fields)
    return HeadGrammar(limits, REQUEST_LINE, plain, whole, split_hop_fields, read_hop_fields)


_grammars: Final[Grammars[Hop]] = Grammars(new_request_grammar)


def request_grammar(limits: HeadLimits) -> HeadGrammar[Hop]:
    """The grammar of all requests under these limits."""
    return _grammars.of(limits)


def split_hop_fields(block: bytes) -> tuple[bytes, HopFields]:
    """The field block without the fields of this hop, nor those whose names read like sensitive ones where "_" and "-"
    are taken for the same; and the fields of this hop, with such a name of the framing among them.
    """
    found, hop_fields = split_fields(_HOP, _TWINS.sub(b"", block))
    return found, (*hop_fields, b"content_length", b"") if _FRAMING_TWIN.search(block) else hop_fields


def read_hop_fields(hop_fields: HopFields, minor: bytes) -> Hop:
    """What the fields of this hop say, in a request of this minor version of HTTP/1. Raises Malformed."""
    values, repeated = joined_by_name(hop_fields)
    for name in repeated:
        if name in _ONCE:
            raise Malformed(*_ONCE[name])
    if b"content_length" in values:
        raise Malformed(Reason.BAD_FRAMING, "a field of the framing is spelled with an underscore")
    hop = Hop()
    hop.http_1_0 = is_1_0 = minor == b"0"
    hop.body = _body_length(values.get(b"content-length"), values.get(b"transfer-encoding"), is_1_0)
    hop.proxy_authorization = values.get(b"proxy-authorization", b"")
    if via := values.get(b"via"):
        hop.via = via
        hop.egress_identity = values.get(b"x-egress-identity", b"")
    if connection := values.get(b"connection"):
        _read_connection(hop, connection_options(connection), values.get(b"upgrade"), values.get(b"te"))
    host = values.get(b"host")
    if is_1_0:
        hop.connection_close = True
    elif host is None:
        raise Malformed(Reason.BAD_HOST, "the Host field is missing")
    if host:  # empty where the target has no host, or says it (RFC 9112 section 3.2)
        hop.authority = _authority(host, 80, Reason.BAD_HOST, "invalid Host")
        hop.host = host
    # A second line makes it something else than the one expectation there is.
    expects = b"expect" not in repeated and values.get(b"expect", b"").lower() == b"100-continue"
    hop.expects_continue = expects and bool(hop.body) and not is_1_0
    return hop


def read_request_head(method: bytes, target: bytes, fields: Fields, hop: Hop, limits: HeadLimits) -> RequestHead:
    """The head from its parts, as a grammar gave them and `read_hop_fields` read them. Raises Malformed."""
    if len(target) > limits.max_target_bytes:
        raise Malformed(Reason.TARGET_TOO_LONG, f"the target is longer than {limits.max_target_bytes} bytes", 414)
    head = RequestHead(method, target, fields, hop)
    if method == b"CONNECT":
        _read_connect(head)
    elif target[0] != 0x2F:  # "/": origin-form, path and target are the same
        slash = target.find(b"/", 7)
        if slash > 7 and target[:7] == b"http://" and target[7:slash] == hop.host:
            # the usual spelling of absolute-form, and the host that Host named
            head.scheme = b"http"
            head.path = target[slash:]
        else:
            _read_other_form(head)
    if hop.named:
        head.fields.block = without_fields(fields.block, hop.named)
    if hop.expects_continue:
        head.expect_continue = True
        head.fields.block += b"\r\nExpect: 100-continue"
    if method == b"OPTIONS" or method == b"TRACE":
        _read_max_forwards(head)
    return head


def request_line_fault(line: bytes, limits: HeadLimits) -> Malformed:
    """Why this request line (up to its LF) is refused. Source: RFC 9112 section 3."""
    if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
        return Malformed(Reason.BAD_REQUEST_LINE, "the request line ends in a bare CR or LF, or holds one")
    words = line[:-2].split(b" ")
    if not TOKEN.fullmatch(words[0]) or len(words[0]) > 32:
        return Malformed(Reason.BAD_REQUEST_LINE, "the method is not a token of at most 32 bytes")
    if len(words) == 2 and words[1] and not words[1].startswith(b"HTTP/"):
        return Malformed(Reason.BAD_VERSION, "HTTP/0.9 is not supported", 505)
    if words[0] == b"PROXY" and len(words) == 6:
        return Malformed(
            Reason.BAD_REQUEST_LINE,
            "a PROXY header of a sender that is not in identity.proxyProtocol.from, or the second of a connection",
        )
    if len(words) != 3 or not words[1]:
        return Malformed(Reason.BAD_REQUEST_LINE, "a request line is method, target and version, one space between")
    target, version = words[1:]
    if version[:5].upper() != b"HTTP/":
        return Malformed(Reason.BAD_REQUEST_LINE, NOT_HTTP)
    if not _VERSION.fullmatch(version):
        return Malformed(Reason.BAD_REQUEST_LINE, "malformed HTTP version")
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        return Malformed(Reason.BAD_VERSION, "only HTTP/1.1 and HTTP/1.0 are spoken here", 505)
    if len(target) > limits.max_target_bytes:
        return Malformed(Reason.TARGET_TOO_LONG, f"the target is longer than {limits.max_target_bytes} bytes", 414)
    if b"#" in target:
        return Malformed(Reason.BAD_TARGET, "a target has no fragment")
    if target[0] == 0x3F:  # "?"
        return Malformed(Reason.BAD_TARGET, _NO_FORM)
    return Malformed(Reason.BAD_TARGET, "the target holds a byte that has to be percent-encoded")


def _body_length(length: bytes | None, coding: bytes | None, is_1_0: bool) -> int:
    """RFC 9112 section 6.3."""
    if coding is None:
        return read_content_length(length) if length is not None else 0
    if length is not None:
        raise Malformed(Reason.BAD_FRAMING, "both Content-Length and Transfer-Encoding")
    if is_1_0:
        raise Malformed(Reason.BAD_FRAMING, "Transfer-Encoding in an HTTP/1.0 request")
    return read_transfer_encoding(coding)


def _read_connection(hop: Hop, options: frozenset[bytes], upgrade: bytes | None, te: bytes | None) -> None:
    """Apply the options of Connection, and the fields that hold only if it names them."""
    hop.connection_close = b"close" in options
    if upgrade and b"upgrade" in options and hop.body == 0 and not hop.http_1_0:
        hop.upgrade = b", ".join(_wanted_protocols(upgrade))
    if te and b"te" in options:
        hop.te_trailers = b"trailers" in [coding.strip(b" \t").lower() for coding in te.split(b",")]
    hop.named = options - _KNOWN_OPTIONS


def _wanted_protocols(value: bytes) -> list[bytes]:
    """Protocols to upgrade to. Other versions of HTTP and TLS are never switched to: RFC 9113 took `h2c` back."""
    if value.count(b",") >= _MAX_PROTOCOLS:
        raise Malformed(Reason.BAD_FIELD, f"more than {_MAX_PROTOCOLS} protocols in Upgrade")
    protocols = [protocol.strip(b" \t") for protocol in value.split(b",")]
    for protocol in protocols:
        name, slash, version = protocol.partition(b"/")
        if protocol and (not TOKEN.fullmatch(name) or (slash and not TOKEN.fullmatch(version))):
            raise Malformed(Reason.BAD_FIELD, "malformed Upgrade")
    return [p for p in protocols if p and not p.lower().startswith((b"h2", b"h3", b"http", b"tls"))]


def _authority(text: bytes, default_port: int | None, reason: Reason, fault: str) -> Authority:
    try:
        return parse_authority(text, default_port)
    except AuthorityError as error:
        raise Malformed(reason, f"{fault}: {error}") from None


def _read_connect(head: RequestHead) -> None:
    """RFC 9112 section 3.2.3. The target alone is the authority: some clients have their proxy's name in Host."""
    if head.body:  # RFC 9110 section 9.3.6: content could not be told from the tunnel's bytes
        raise Malformed(Reason.BAD_FRAMING, "a CONNECT request has no content")
    head.authority = _authority(head.target, None, Reason.BAD_TARGET, "the target of CONNECT has to be host:port")
    head.host = head.target


def _read_other_form(head: RequestHead) -> None:
    """RFC 9112 sections 3.2.2 and 3.2.4. In absolute-form the received Host counts for nothing."""
    target = head.target
    if target == b"*":
        if head.method != b"OPTIONS":
            raise Malformed(Reason.BAD_TARGET, "the target * belongs to OPTIONS")
        return
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Malformed(Reason.BAD_TARGET, _NO_FORM)
    scheme, authority, rest = absolute.groups()
    scheme = scheme.lower()
    if b"@" in authority:
        raise Malformed(Reason.BAD_TARGET, "credentials in a URI are refused")
    head.authority = _authority(authority, 80, Reason.BAD_TARGET, "invalid host in the target")
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
