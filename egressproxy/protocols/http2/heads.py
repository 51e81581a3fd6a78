"""Reading heads of HTTP/2: lists of fields become the heads of `model/message`.

The state machine checks frames; messages are checked here, also for what would be two requests in HTTP/1. One message
that breaks a rule is one stream's error. Sources: RFC 9113 sections 8.1 to 8.5, RFC 9110 section 7.6.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from egressproxy.errors import Reason
from egressproxy.model.fields import TOKEN, CutLines, Fields
from egressproxy.model.message import CHUNKED, TARGET, UNTIL_CLOSE, Hop, RequestHead, ResponseHead
from egressproxy.protocols.http1 import request_head, response_head
from egressproxy.protocols.http1.chunked import late_fields
from egressproxy.protocols.http1.framing import MAX_NAME, HeadLimits, HopFields, Malformed
from egressproxy.protocols.http1.head_grammar import MAX_REMEMBERED
from egressproxy.protocols.http1.writer import PHRASES
from egressproxy.protocols.http2.remembered_fields import FieldList, RememberedFields

#: Fields that HTTP/2 says in frames, or not at all (RFC 9113 section 8.2.2).
CONNECTION_SPECIFIC: Final = frozenset(b"connection proxy-connection keep-alive transfer-encoding upgrade".split())
_REQUEST_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_EXTENDED_PSEUDO: Final = _REQUEST_PSEUDO | {b":protocol"}

_NAME_BYTES: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz\n"
_VALUE_BYTES: Final = bytes((9, 10, *range(0x20, 0x7F), *range(0x80, 0x100)))
#: Methods whose heads say more than `_Meaning` keeps.
_UNUSUAL: Final = frozenset((b"CONNECT", b"OPTIONS", b"TRACE"))
#: Methods to which a head may mean something else.
_ANSWERED_OTHERWISE: Final = frozenset((b"CONNECT", b"HEAD"))
_PATH: Final = re.compile(TARGET)


def checked_block(fields: FieldList, limits: HeadLimits) -> bytes:
    """Fields as a block of HTTP/1. Raises Malformed for what is no name or value, and for too many. All names are
    looked at together, then all values: the line feed that joins them is a byte that neither may hold.
    """
    if not fields:
        return b""
    count = len(fields)
    if count > limits.max_fields:
        raise Malformed(Reason.HEAD_TOO_LARGE, f"more than {limits.max_fields} fields", 431)
    all_names, all_values = zip(*fields, strict=True)
    names = b"\n%b\n" % b"\n".join(all_names)
    if names.translate(None, _NAME_BYTES) or names.count(b"\n") != count + 1 or b"\n\n" in names:
        raise Malformed(
            Reason.BAD_FIELD, "a field's name is no token of lower case, or a pseudo-field stands behind others"
        )
    if len(names) > MAX_NAME and max(map(len, all_names)) > MAX_NAME:
        raise Malformed(Reason.BAD_FIELD, f"a field's name is longer than {MAX_NAME} bytes")
    values = b"\n%b\n" % b"\n".join(all_values)
    if values.translate(None, _VALUE_BYTES) or values.count(b"\n") != count + 1:
        raise Malformed(Reason.BAD_FIELD, "a field's value holds a control character")
    if sum(map(len, map(bytes.strip, all_values))) != len(values) - count - 1:
        raise Malformed(Reason.BAD_FIELD, "a field's value begins or ends with a blank")
    if len(names) + len(values) + 2 * count > limits.max_head_bytes:
        raise Malformed(Reason.HEAD_TOO_LARGE, f"the head is longer than {limits.max_head_bytes} bytes", 431)
    return b"".join([b"\r\n%b: %b" % (name, value) for name, value in fields])


def taken_apart(fields: FieldList) -> tuple[dict[bytes, bytes], FieldList]:
    """The pseudo-fields by name, and the fields behind them. Raises Malformed for one that stands twice."""
    count = 0
    for name, _ in fields:
        if name[:1] != b":":
            break
        count += 1
    pseudo = dict(fields[:count])
    if len(pseudo) != count:
        raise Malformed(Reason.BAD_FIELD, "a pseudo-field stands twice")
    return pseudo, fields[count:]


class _Meaning:
    """What was read from a list of fields, for the next head of the same list."""

    __slots__ = (
        "block", "body", "cut_lines", "ends_stream", "hop", "is_forward", "method", "scheme", "target", "te_trailers",
    )  # fmt: skip

    def __init__(self, head: RequestHead, hop: Hop, *, ends_stream: bool) -> None:
        self.ends_stream = ends_stream
        self.is_forward = bool(head.scheme)
        self.method = head.method
        self.target = head.target
        self.scheme = head.scheme
        self.block = head.fields.block
        self.cut_lines: CutLines = {}
        self.hop = hop
        self.body = head.body
        self.te_trailers = head.te_trailers


class RequestFieldsReader:
    """Reads the request heads of one connection. What a client says of its hop it says again: read once."""

    __slots__ = ("_hop", "_hop_fields", "_limits", "_pseudo", "is_forward")

    def __init__(self, limits: HeadLimits, *, is_forward: bool, extended_connect: bool = False) -> None:
        """`is_forward`: a request names any host, as the absolute-form of HTTP/1 does. `extended_connect`: clients were
        told that they may ask for a protocol (RFC 8441).
        """
        self._limits = limits
        self._pseudo = _EXTENDED_PSEUDO if extended_connect else _REQUEST_PSEUDO
        self.is_forward = is_forward
        self._hop = Hop()
        self._hop_fields: HopFields = ()

    def read(self, fields: FieldList, *, ends_stream: bool) -> RequestHead:
        """A request head; `ends_stream`: it has END_STREAM. Remembered fields are checked once. Raises Malformed."""
        if type(fields) is not RememberedFields:
            return self._read(fields, ends_stream)
        known = fields.meaning
        if type(known) is _Meaning and known.ends_stream is ends_stream and known.is_forward is self.is_forward:
            head = RequestHead(known.method, known.target, Fields(known.block, known.cut_lines), known.hop)
            head.body = known.body
            head.te_trailers = known.te_trailers
            if self.is_forward:
                head.scheme = known.scheme
            return head
        head = self._read(fields, ends_stream)
        if head.method not in _UNUSUAL and not head.upgrade and not head.expect_continue:
            fields.meaning = _Meaning(head, head.hop, ends_stream=ends_stream)
        return head

    def _read(self, fields: FieldList, ends_stream: bool) -> RequestHead:
        pseudo, plain = taken_apart(fields)
        if not pseudo.keys() <= self._pseudo:
            raise Malformed(Reason.BAD_FIELD, "a pseudo-field is unknown, or belongs to responses")
        method = pseudo.get(b":method", b"")
        if not TOKEN.fullmatch(method) or len(method) > 32:
            raise Malformed(Reason.BAD_REQUEST_LINE, "the method is not a token of at most 32 bytes")
        protocol = pseudo.get(b":protocol")
        if protocol is not None:
            method = protocol_method(method, protocol, pseudo)
        names = dict(plain)
        block = checked_block(
            self._one_cookie(plain) if b"cookie" in names and len(names) < len(plain) else plain, self._limits
        )
        if not CONNECTION_SPECIFIC.isdisjoint(names):
            raise Malformed(Reason.BAD_FIELD, "a field that HTTP/2 does not have")
        authority = self._authority(pseudo, plain, names)
        hop_fields: HopFields = (b"host", authority)
        if b"_" in b"".join(names) or not request_head.HOP_NAMES.isdisjoint(names):
            block, found = request_head.split_hop_fields(block)
            hop_fields = (*hop_fields, *without_host(found))
        hop = self._hop
        if hop_fields != self._hop_fields:
            hop = request_head.read_hop_fields(hop_fields, b"1")
            if sum(map(len, hop_fields)) <= MAX_REMEMBERED:
                self._hop = hop
                self._hop_fields = hop_fields
        if ends_stream and hop.body:
            raise Malformed(Reason.BAD_FRAMING, "a Content-Length, and no content")  # CVE-2026-33555
        target = self._target(method, pseudo, authority)
        head = request_head.read_request_head(method, target, Fields(block), hop, self._limits)
        head.body = 0 if ends_stream or (not hop.body and b"content-length" in names) else hop.body or CHUNKED
        if method == b"CONNECT":
            head.body = 0  # what follows is the tunnel's
        elif head.body == CHUNKED and b"expect" in names:
            values = [value.lower() for name, value in plain if name == b"expect"]
            if values == [b"100-continue"]:
                head.expect_continue = True
                head.fields.block += b"\r\nExpect: 100-continue"
        if self.is_forward and method != b"CONNECT":
            head.scheme = pseudo[b":scheme"]
        if protocol is not None:
            head.upgrade = protocol
            head.body = 0  # what follows is the protocol's
        if b"te" in names:
            if any(name == b"te" and value.lower() != b"trailers" for name, value in plain):
                raise Malformed(Reason.BAD_FIELD, "the one value of TE in HTTP/2 is trailers")
            head.te_trailers = True
        return head

    def _target(self, method: bytes, pseudo: dict[bytes, bytes], authority: bytes) -> bytes:
        scheme, path = pseudo.get(b":scheme"), pseudo.get(b":path")
        if method == b"CONNECT":
            if scheme is not None or path is not None or b":authority" not in pseudo:
                raise Malformed(Reason.BAD_TARGET, "CONNECT has :method and :authority, and no other pseudo-field")
            return authority
        if scheme not in (b"http", b"https"):
            raise Malformed(Reason.BAD_TARGET, "the scheme is neither http nor https")
        if (
            path is None
            or not _PATH.fullmatch(path)
            or not (path[0] == 0x2F or (path == b"*" and method == b"OPTIONS"))
        ):
            raise Malformed(Reason.BAD_TARGET, "the path is none")
        return path

    def _authority(self, pseudo: dict[bytes, bytes], plain: FieldList, names: Container[bytes]) -> bytes:
        """RFC 9113 section 8.3.1: :authority, else Host; both may stand there if they say the same."""
        authority = pseudo.get(b":authority")
        hosts = [value for name, value in plain if name == b"host"] if b"host" in names else []
        if len(hosts) > 1:
            raise Malformed(Reason.BAD_HOST, "more than one Host field")
        if authority is None:
            if not hosts:
                raise Malformed(Reason.BAD_HOST, "neither :authority nor Host is there")
            authority = hosts[0]
        elif hosts and hosts[0].lower() != authority.lower():
            raise Malformed(Reason.BAD_HOST, "Host is not what :authority says")
        if not authority:
            raise Malformed(Reason.BAD_HOST, "the authority is empty")
        return authority

    def _one_cookie(self, plain: FieldList) -> FieldList:
        """Crumbs of a cookie in one field, where the first stood (RFC 9113 section 8.2.3)."""
        crumbs = [value for name, value in plain if name == b"cookie"]
        if len(crumbs) < 2:
            return plain
        rest = [field for field in plain if field[0] != b"cookie"]
        at = next(at for at, (name, _) in enumerate(plain) if name == b"cookie")
        return [*rest[:at], (b"cookie", b"; ".join(crumbs)), *rest[at:]]


def protocol_method(method: bytes, protocol: bytes, pseudo: dict[bytes, bytes]) -> bytes:
    """The method with which HTTP/1 asks for this protocol. Raises Malformed. Source: RFC 8441 sections 4 and 5."""
    if method != b"CONNECT" or not (pseudo.keys() >= _EXTENDED_PSEUDO):
        raise Malformed(Reason.BAD_TARGET, "an extended CONNECT has :scheme, :authority, :path and :protocol")
    if protocol != b"websocket":
        raise Malformed(Reason.BAD_TARGET, "the one protocol that is understood is websocket", 501)
    return b"GET"


def without_host(hop_fields: HopFields) -> HopFields:
    """Names and values in turn, but for Host."""
    pairs = zip(hop_fields[::2], hop_fields[1::2], strict=True)
    return tuple(part for name, value in pairs if name != b"host" for part in (name, value))


class _Answer:
    """What was read from a list of fields, for the next response of the same list."""

    __slots__ = ("block", "body", "cut_lines", "ends_stream", "phrase", "status", "via")

    def __init__(self, head: ResponseHead, *, ends_stream: bool) -> None:
        self.ends_stream = ends_stream
        self.status = head.status
        self.phrase = head.phrase
        self.block = head.fields.block
        self.cut_lines: CutLines = {}
        self.body = head.body
        self.via = head.via


def read_response_fields(fields: FieldList, limits: HeadLimits, method: bytes, *, ends_stream: bool) -> ResponseHead:
    """The head of a response to this method. Remembered fields are checked once, as of requests. Raises Malformed."""
    if type(fields) is not RememberedFields or method in _ANSWERED_OTHERWISE:
        return _read_response(fields, limits, method, ends_stream)
    known = fields.meaning
    if type(known) is _Answer and known.ends_stream is ends_stream:
        head = ResponseHead(known.status, known.phrase, Fields(known.block, known.cut_lines))
        head.body = known.body
        head.via = known.via
        return head
    head = _read_response(fields, limits, method, ends_stream)
    fields.meaning = _Answer(head, ends_stream=ends_stream)
    return head


def _read_response(fields: FieldList, limits: HeadLimits, method: bytes, ends_stream: bool) -> ResponseHead:
    pseudo, plain = taken_apart(fields)
    status = pseudo.get(b":status", b"")
    if len(pseudo) != 1 or len(status) != 3 or not status.isdigit() or status < b"100" or status == b"101":
        raise Malformed(Reason.BAD_RESPONSE, "a response has :status with three digits, and no other pseudo-field")
    block = checked_block(plain, limits)
    if {name for name, _ in plain} & CONNECTION_SPECIFIC:
        raise Malformed(Reason.BAD_FIELD, "a field that HTTP/2 does not have")
    block, hop_fields = response_head.split_hop_fields(block)
    hop = response_head.read_hop_fields(hop_fields, b"1")
    head = response_head.read_response_head(status, PHRASES.get(int(status), b""), Fields(block), hop, method)
    head.connection_close = False
    if ends_stream:
        if head.is_interim:
            raise Malformed(Reason.BAD_RESPONSE, "an interim response that ends the stream")
        if head.body > 0:
            raise Malformed(Reason.BAD_FRAMING, "a Content-Length, and no content")
        head.body = 0
    elif head.body == UNTIL_CLOSE:
        head.body = CHUNKED
    return head


def read_trailers(fields: FieldList, limits: HeadLimits) -> bytes:
    """The block of those trailers that may be passed on. Raises Malformed. Source: RFC 9113 section 8.1."""
    if type(fields) is not RememberedFields:
        return _read_trailers(fields, limits)
    known = fields.meaning
    if type(known) is not bytes:
        known = fields.meaning = _read_trailers(fields, limits)
    return known


def _read_trailers(fields: FieldList, limits: HeadLimits) -> bytes:
    block = checked_block(fields, limits)
    if {name for name, _ in fields} & CONNECTION_SPECIFIC:
        raise Malformed(Reason.BAD_FIELD, "a field that HTTP/2 does not have")
    return late_fields(block)
