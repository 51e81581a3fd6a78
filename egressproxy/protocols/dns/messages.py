"""DnsQuery: a query of a client, and the response to it, as bytes. Pure.

A query is one question, of which the name is never compressed; of further records only OPT is read. Whatever else the
bytes are, the result is a query or an error with the response code to send. Hand-made as `upstream/dns_message` is:
nothing here is worth the memory of a library.

Sources: RFC 1035 section 4, RFC 6891 (EDNS), RFC 8482 (ANY), RFC 8914 (Extended DNS Errors), RFC 9619 (one question).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.model.authority import IPAddress

A: Final = 1
PTR: Final = 12
HINFO: Final = 13
AAAA: Final = 28
OPT: Final = 41
SVCB: Final = 64
HTTPS: Final = 65
IXFR: Final = 251
AXFR: Final = 252
ANY: Final = 255
#: The names of types, for people; others are named as RFC 3597 section 5 does.
TYPES: Final = {
    A: "A", 2: "NS", 5: "CNAME", 6: "SOA", PTR: "PTR", HINFO: "HINFO", 15: "MX", 16: "TXT", AAAA: "AAAA", 33: "SRV",
    SVCB: "SVCB", HTTPS: "HTTPS", IXFR: "IXFR", AXFR: "AXFR", ANY: "ANY",
}  # fmt: skip
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
BADVERS: Final = 16
#: Extended DNS Errors (RFC 8914 section 4).
OTHER, NOT_READY, BLOCKED, PROHIBITED, NOT_SUPPORTED, NO_REACHABLE_AUTHORITY = 0, 14, 15, 18, 21, 22

#: The least and the most bytes of an answer over UDP: what every client takes (RFC 1035), and what passes unfragmented.
LEAST_UDP: Final = 512
MOST_UDP: Final = 1232
#: The longest query that is read. A question with its name takes 272 bytes; the rest is for options, padding above all.
MAX_QUERY: Final = 1232
#: Further records of a query that are read: OPT, and a signature behind it.
_MAX_EXTRA: Final = 2
#: The most addresses of an answer, so that it is no more than a few times as long as its query.
MAX_ADDRESSES: Final = 8
#: The most bytes of EXTRA-TEXT over UDP and over TCP.
MAX_TEXT_UDP: Final = 256
MAX_TEXT_TCP: Final = 1024

_HEADER: Final = struct.Struct("!HHHHHH")
_FIXED: Final = struct.Struct("!HHIH")  # of a record behind its name: type, class, TTL, length of the data
_QUESTION: Final = struct.Struct("!HH")
_IN: Final = 1
_MAX_NAME: Final = 255
_QR, _TC, _RD, _RA, _CD = 0x8000, 0x0200, 0x0100, 0x0080, 0x0010
_EXTENDED_ERROR: Final = 15
#: Bytes of an OPT record without options, and of an extended error without its text.
_OPT_BYTES, _ERROR_BYTES = 1 + _FIXED.size, 6
#: The name of the question, as a pointer to it: so that it keeps its letters (draft-vixie-dnsext-dns0x20).
_TO_QUESTION: Final = b"\xc0\x0c"
#: CPU "RFC8482", OS "" (RFC 8482 section 4.2).
_MINIMAL: Final = b"\x07RFC8482\x00"
_LABELS: Final = re.compile(rb"[A-Za-z0-9_-]+")


class BadQuery(Exception):
    """No query that can be answered. `response`: what is sent, with this code; b"" for nothing."""

    def __init__(self, code: int | None, response: bytes = b"") -> None:
        super().__init__(code)
        self.code = code
        self.response = response


@dataclass(frozen=True, slots=True)
class DnsQuery:
    """`host` is the name in lower case without trailing dot; "" for the root, and for labels that no host has.
    `question` has the bytes of its section. `payload`: the bytes that the client takes over UDP; 0: it has no EDNS.
    """

    identifier: int
    flags: int
    question: bytes
    host: str
    kind: int
    is_internet: bool = True  # class IN
    payload: int = 0
    wants_dnssec: bool = False

    @property
    def type_name(self) -> str:
        return TYPES.get(self.kind) or f"TYPE{self.kind}"

    @property
    def has_edns(self) -> bool:
        return self.payload > 0


@dataclass(frozen=True, slots=True)
class ExtendedError:
    """An option of a response (RFC 8914): a code of its registry, and a text for people."""

    code: int
    text: str = ""


def read_query(wire: bytes) -> DnsQuery:
    """Raises BadQuery: without an answer for what is shorter than a header, or is itself an answer, so that two servers
    never answer each other.
    """
    if len(wire) < _HEADER.size or wire[2] & 0x80:
        raise BadQuery(None)
    identifier, flags, questions, answers, authorities, more = _HEADER.unpack_from(wire)
    opcode = flags & 0x7800
    if opcode:
        raise BadQuery(NOTIMP, _bare(identifier, flags, NOTIMP))
    malformed = BadQuery(FORMERR, _bare(identifier, flags, FORMERR))
    if questions != 1 or answers or authorities or more > _MAX_EXTRA or len(wire) > MAX_QUERY:
        raise malformed
    try:
        host, at = _name(wire, _HEADER.size)
        kind, class_ = _QUESTION.unpack_from(wire, at)
        at += _QUESTION.size
        question = wire[_HEADER.size : at]
        query = DnsQuery(identifier, flags, question, host, kind, class_ == _IN)
        return _with_edns(query, wire, at, more)
    except (IndexError, struct.error, _Malformed):
        raise malformed from None


def write_response(
    query: DnsQuery,
    code: int,
    *,
    addresses: Iterable[IPAddress] = (),
    ttl_s: int = 0,
    error: ExtendedError | None = None,
    is_tcp: bool,
) -> bytes:
    """The response: of these addresses the first MAX_ADDRESSES of the asked family, which every client takes over UDP.
    `error` is told to a client with EDNS alone; over UDP as much of its text as fits.
    """
    records = b""
    count = 0
    if query.kind == ANY and code == NOERROR:
        records = _record(HINFO, ttl_s, _MINIMAL)
        count = 1
    version = {A: 4, AAAA: 6}.get(query.kind, 0)
    for address in addresses:
        if address.version == version and count < MAX_ADDRESSES:
            records += _record(query.kind, ttl_s, address.packed)
            count += 1
    options = b""
    if error is not None and query.has_edns:
        room = min(query.payload, MOST_UDP) - _HEADER.size - len(query.question) - _OPT_BYTES - _ERROR_BYTES
        options = _options(error, MAX_TEXT_TCP if is_tcp else min(MAX_TEXT_UDP, room))
    flags = _QR | query.flags & (_RD | _CD) | _RA | code & 0x0F
    head = _HEADER.pack(query.identifier, flags, 1, count, 0, int(query.has_edns))
    return head + query.question + records + _opt(query, code, options)


def truncated(query: DnsQuery) -> bytes:
    """A response without records, by which a client that is whom it says asks again over TCP."""
    flags = _QR | query.flags & (_RD | _CD) | _RA | _TC
    return _HEADER.pack(query.identifier, flags, 1, 0, 0, int(query.has_edns)) + query.question + _opt(query, 0, b"")


# --- reading -------------------------------------------------------------------------------------------------------


class _Malformed(Exception):
    """A name, or an OPT record, that breaks the rules."""


def _name(wire: bytes, at: int) -> tuple[str, int]:
    """The name at this place as `DnsQuery.host` has it, and where it ends. The first name of a message has nothing to
    point at, so that a pointer is malformed. Raises _Malformed, IndexError.
    """
    labels = []
    begin, is_host = at, True
    while size := wire[at]:
        if size > 63:
            raise _Malformed
        label = wire[at + 1 : at + 1 + size]
        at += 1 + size
        if len(label) != size or at - begin >= _MAX_NAME:
            raise _Malformed
        is_host = is_host and _LABELS.fullmatch(label) is not None
        labels.append(label)
    return (b".".join(labels).decode().lower() if is_host else ""), at + 1


def _skipped(wire: bytes, at: int) -> int:
    """Where the name of a further record ends: of OPT it is the root, of others it may be a pointer, not followed."""
    while size := wire[at]:
        if size >= 0xC0:
            return at + 2
        if size > 63:
            raise _Malformed
        at += 1 + size
    return at + 1


def _with_edns(query: DnsQuery, wire: bytes, at: int, more: int) -> DnsQuery:
    """The query with what its OPT record says. Raises BadQuery for another version (RFC 6891 section 6.1.3)."""
    found = query
    for _ in range(more):
        begin = at
        at = _skipped(wire, at)
        kind, payload, ttl, length = _FIXED.unpack_from(wire, at)
        at += _FIXED.size + length
        if at > len(wire):
            raise _Malformed
        if kind != OPT:
            continue
        if found is not query or wire[begin]:
            raise _Malformed  # two of them, or with a name
        found = DnsQuery(
            query.identifier, query.flags, query.question, query.host, query.kind, query.is_internet,
            max(payload, LEAST_UDP), bool(ttl & 0x8000),
        )  # fmt: skip
        if ttl >> 16 & 0xFF:
            raise BadQuery(BADVERS, write_response(found, BADVERS, is_tcp=False))
    return found


# --- writing -------------------------------------------------------------------------------------------------------


def _bare(identifier: int, flags: int, code: int) -> bytes:
    """A header alone: what the question is, is not known."""
    return _HEADER.pack(identifier, _QR | flags & (0x7800 | _RD) | _RA | code, 0, 0, 0, 0)


def _record(kind: int, ttl_s: int, data: bytes) -> bytes:
    return _TO_QUESTION + _FIXED.pack(kind, _IN, ttl_s, len(data)) + data


def _options(error: ExtendedError, most: int) -> bytes:
    text = error.text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore").encode()
    return struct.pack("!HHH", _EXTENDED_ERROR, 2 + len(text), error.code) + text


def _opt(query: DnsQuery, code: int, options: bytes) -> bytes:
    if not query.has_edns:
        return b""
    ttl = code >> 4 << 24 | (0x8000 if query.wants_dnssec else 0)
    return b"\0" + _FIXED.pack(OPT, MOST_UDP, ttl, len(options)) + options
