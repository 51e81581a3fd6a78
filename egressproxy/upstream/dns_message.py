"""DNS messages: the query that is sent, and the reply, of which only what was asked for is read, within bounds. Pure.

An answer comes from whoever owns a name, and is read on the loop: bytes, records and steps through names are counted,
a compression pointer leads backwards alone, and a name that is pointed at is read once. The worst answer within the
bounds takes a few milliseconds. Hand-made: dnspython's `resolve_chaining` follows CNAME records in a message that its
parser has made objects of, all records and all names, which takes six times as long for an answer of a thousand records
and seconds for some.

Sources: RFC 1035 section 4, RFC 2308 section 5 (negative answers), RFC 5452 section 4 (what belongs to a question),
RFC 6891 (EDNS), RFC 2181 sections 8 and 9 (TTLs, truncation), RFC 7830 and RFC 8467 (padding).
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

from egressproxy.model.authority import IPAddress

A, AAAA, PTR = 1, 28, 12
_CNAME, _SOA, _OPT = 5, 6, 41
_IN = 1
_AD = 0x20  # in the second byte of the flags
NOERROR, _FORMERR, SERVFAIL, NXDOMAIN, _NOTIMP, _REFUSED = range(6)
#: The names of response codes (IANA, DNS RCODEs).
_CODES = (
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "YXDOMAIN", "YXRRSET", "NXRRSET", "NOTAUTH",
    "NOTZONE",
)  # fmt: skip
_EXTENDED_CODES = {16: "BADVERS", 23: "BADCOOKIE"}
_RECURSION_DESIRED = 0x0100
_PADDING = 12
#: Bytes that a UDP answer may have, so that it is not fragmented (DNS flag day 2020).
UDP_PAYLOAD = 1232

#: The longest answer that is read: a thousand addresses and their names.
MAX_REPLY_BYTES = 32 * 1024
#: The records of all sections together.
MAX_RECORDS = 1024
#: Labels and pointers that are followed, in all names together.
MAX_STEPS = 16 * 1024
#: A name may lead through so many CNAME records.
MAX_LINKS = 16
#: More addresses of one name, or names of one address, are not used.
MAX_ADDRESSES = 32
_MAX_NAME = 255
#: Labels that are written as they are.
_PLAIN = re.compile(rb"[a-z0-9_-]*").fullmatch

_HEADER = struct.Struct("!HHHHHH")  # id, flags, and the records of the four sections
_RECORD = struct.Struct("!HHIH")  # type, class, TTL, length of the data


class BadReply(ValueError):
    """The bytes are no answer, or one that is beyond the bounds; the message says why."""


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """`addresses` empty: the name has none of this family, or (`is_nxdomain`) does not exist. `ttl_s` as it came. To a
    question of type PTR the answer is `names`, as in `through`. `is_authentic`: the server has set the AD bit.
    `unheard`, of an answer for both families: the version of IP of which nothing was heard, or 0. `through`: the names
    that CNAME records led through, in lower case, without trailing dot, as RFC 1035 section 5.1 writes them: a byte of
    a label that is no letter, digit, hyphen or underscore is an escape, so that nothing in a name is another name, two
    of them, or the end of a line.

    For a negative answer `ttl_s` follows RFC 2308 section 5, and is 0 where the server gave no SOA record.
    """

    addresses: tuple[IPAddress, ...]
    ttl_s: float
    is_nxdomain: bool = False
    unheard: int = 0
    through: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_authentic: bool = False


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A query that was sent: its bytes, its `name` in wire form and lower case, and its type (A, AAAA or PTR)."""

    wire: bytes
    name: bytes
    kind: int

    @property
    def section(self) -> bytes:
        """The question section."""
        return self.name + struct.pack("!HH", self.kind, _IN)


def encode_name(host: str) -> bytes:
    """The wire form of an absolute name, without trailing dot; nothing in it is an escape. Raises ValueError for what
    DNS cannot carry (RFC 1035 section 3.1).
    """
    labels = host.encode("ascii").split(b".")
    name = b"".join(bytes((len(label),)) + label for label in labels if len(label) < 64) + b"\0"
    if len(name) != len(host) + 2 or b"" in labels or len(name) > _MAX_NAME:
        raise ValueError("a label has 1 to 63 bytes, and a name 255")
    return name


def write_query(
    name: bytes, kind: int, identifier: int, *, asks_authentic: bool, block: int, with_edns: bool = True
) -> DnsQuestion:
    """A query for this name (`encode_name`) and type. `asks_authentic` sets AD (RFC 6840 section 5.7). With `block` its
    length is padded to a multiple of so many bytes (RFC 8467), which takes EDNS.
    """
    flags = _RECURSION_DESIRED | (_AD if asks_authentic else 0)
    wire = _HEADER.pack(identifier, flags, 1, 0, 0, int(with_edns)) + name + struct.pack("!HH", kind, _IN)
    if not with_edns:
        return DnsQuestion(wire, name.lower(), kind)
    options = b""
    if block:
        padding = -(len(wire) + 1 + _RECORD.size + 4) % block
        options = struct.pack("!HH", _PADDING, padding) + bytes(padding)
    wire += b"\0" + _RECORD.pack(_OPT, UDP_PAYLOAD, 0, len(options)) + options
    return DnsQuestion(wire, name.lower(), kind)


def code_name(code: int) -> str:
    """The name of a response code, such as NXDOMAIN; its number where it has none that a resolver would send."""
    return _CODES[code] if code < len(_CODES) else _EXTENDED_CODES.get(code, str(code))


def is_reply(wire: bytes, question: DnsQuestion) -> bool:
    """Whether this belongs to the query: id, opcode and question. Its sender may leave the question out of an error."""
    if len(wire) < _HEADER.size or wire[:2] != question.wire[:2] or wire[2] & 0xF8 != 0x80:
        return False
    if wire[4:6] == b"\x00\x00":
        return wire[3] & 0x0F in (_FORMERR, SERVFAIL, _NOTIMP, _REFUSED)
    section = question.section
    return wire[4:6] == b"\x00\x01" and wire[_HEADER.size : _HEADER.size + len(section)].lower() == section


def may_refuse_edns(wire: bytes) -> bool:
    """Whether a reply may be the error of a server that does not know EDNS (RFC 6891 section 7). One that knows it puts
    an OPT record among the additional records; a FORMERR may have that of the query, of which it is a copy.
    """
    code = wire[3] & 0x0F
    return code in (_FORMERR, _NOTIMP) or (code == SERVFAIL and wire[10:12] == b"\x00\x00")


def is_truncated(wire: bytes) -> bool:
    """Whether a reply says that it is not whole: nothing else in it counts."""
    return bool(wire[2] & 0x02)


def read(wire: bytes, question: DnsQuestion) -> tuple[int, DnsAnswer]:
    """Follow the CNAME records from the asked name to its addresses (none where the chain leads to none). Gives the
    code with its extension (RFC 6891 section 6.1.3), and the answer, which says nothing with any code but NOERROR and
    NXDOMAIN.

    Raises BadReply for what is malformed or beyond the bounds, and for a chain that is a loop or too long.
    """
    if len(wire) > MAX_REPLY_BYTES:
        raise BadReply(f"{len(wire)} bytes: more than {MAX_REPLY_BYTES} are not read")
    try:
        code, answer = _Reading(wire, question).reply()
    except (IndexError, struct.error):
        raise BadReply("it ends within a record") from None
    return code, replace(answer, is_authentic=True) if wire[3] & _AD else answer


class _Reading:
    """One answer while it is read."""

    __slots__ = ("_at", "_known", "_question", "_steps", "_wire")

    def __init__(self, wire: bytes, question: DnsQuestion) -> None:
        self._wire = wire
        self._question = question
        self._at = _HEADER.size
        self._known: dict[int, bytes] = {}  # names that were pointed at, by their place
        self._steps = 0

    def reply(self) -> tuple[int, DnsAnswer]:
        """The code and the answer: see `read`. Raises BadReply, IndexError or struct.error."""
        _, flags, questions, answers, authorities, more = _HEADER.unpack_from(self._wire)
        records = answers + authorities + more
        if records > MAX_RECORDS:
            raise BadReply(f"{records} records: more than {MAX_RECORDS} are not read")
        if questions:
            self._at += len(self._question.section)  # it is ours: `is_reply`
        code = flags & 0x0F
        links: dict[bytes, tuple[int, float]] = {}
        found: dict[bytes, tuple[dict[bytes, None], float]] = {}
        wanted = self._question.kind
        for _ in range(answers):
            owner, kind, ttl_s, data, end = self._record()
            if kind == wanted:
                addresses, least_s = found.get(owner) or ({}, ttl_s)
                if kind == PTR:
                    value, _ = self._name(data)
                else:
                    value = self._wire[data:end]
                    if len(value) != (4 if kind == A else 16):
                        raise BadReply("an address of the wrong length")
                if len(addresses) < MAX_ADDRESSES:
                    addresses[value] = None
                found[owner] = addresses, min(least_s, ttl_s)
            elif kind == _CNAME:
                links.setdefault(owner, (data, ttl_s))
        negative_s: float | None = None  # of the first SOA record; the others, if any, say nothing
        for _ in range(authorities):
            _, kind, ttl_s, data, end = self._record()
            if kind == _SOA and negative_s is None:
                if end - data < 22:
                    raise BadReply("an SOA record that is too short")
                negative_s = min(ttl_s, float(int.from_bytes(self._wire[end - 4 : end], "big")))
        for _ in range(more):
            _, kind, _, data, _ = self._record()
            if kind == _OPT:
                code |= self._wire[data - 6] << 4  # the first byte of what is a TTL elsewhere
        if code == NXDOMAIN:
            return code, DnsAnswer((), negative_s or 0.0, is_nxdomain=True)
        return code, self._follow(links, found, negative_s or 0.0)

    def _follow(
        self,
        links: dict[bytes, tuple[int, float]],
        found: dict[bytes, tuple[dict[bytes, None], float]],
        negative_s: float,
    ) -> DnsAnswer:
        name, ttl_s = self._question.name, math.inf
        through: list[str] = []
        for _ in range(MAX_LINKS + 1):
            known = found.get(name)
            if known is not None:
                least_s = min(ttl_s, known[1])
                if self._question.kind == PTR:
                    return DnsAnswer((), least_s, names=tuple(map(_text, known[0])))
                return DnsAnswer(tuple(map(_address, known[0])), least_s, through=tuple(through))
            link = links.get(name)
            if link is None:
                return DnsAnswer((), negative_s)
            name, _ = self._name(link[0])
            through.append(_text(name))
            ttl_s = min(ttl_s, link[1])
        raise BadReply(f"more than {MAX_LINKS} CNAME records, or a loop")

    def _record(self) -> tuple[bytes, int, float, int, int]:
        """The next record: its owner, its type (0 for another class than IN), its TTL, and where its data is."""
        owner, at = self._name(self._at)
        kind, class_, ttl, length = _RECORD.unpack_from(self._wire, at)
        data = at + _RECORD.size
        self._at = end = data + length
        if end > len(self._wire):
            raise BadReply("it ends within a record")
        if class_ != _IN and kind != _OPT:
            kind = 0
        return owner, kind, 0.0 if ttl >> 31 else float(ttl), data, end

    def _name(self, at: int) -> tuple[bytes, int]:
        """The name at this place, in wire form and lower case, and where it ends there."""
        wire = self._wire
        parts: list[bytes] = []
        targets: list[tuple[int, int]] = []  # places that are pointed at, and where in `parts` their names begin
        length, end, before = 0, -1, at
        while True:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise BadReply(f"more than {MAX_STEPS} labels and pointers in its names")
            size = wire[at]
            if size >= 0xC0:
                if end < 0:
                    end = at + 2
                at = (size & 0x3F) << 8 | wire[at + 1]
                if at >= before:
                    raise BadReply("a compression pointer that does not lead backwards")
                before = at
                known = self._known.get(at)
                if known is None:
                    targets.append((at, len(parts)))
                    continue
                parts.append(known)
                length += len(known)
            elif size > 63:
                raise BadReply("a label of an unknown type")
            else:
                label = wire[at : at + size + 1]
                if len(label) != size + 1:
                    raise BadReply("it ends within a name")
                parts.append(label)
                length += size + 1
                at += size + 1
            if length > _MAX_NAME:
                raise BadReply(f"a name of more than {_MAX_NAME} bytes")
            if size == 0 or size >= 0xC0:
                break
        if end < 0:
            end = at
        for place, first in targets:
            self._known[place] = b"".join(parts[first:]).lower()
        return b"".join(parts).lower(), end


def _text(name: bytes) -> str:
    """A name in wire form as text: labels with dots between them, escaped."""
    labels: list[str] = []
    at = 0
    while name[at]:
        end = at + 1 + name[at]
        label = name[at + 1 : end]
        labels.append(label.decode() if _PLAIN(label) else "".join(map(_escaped, label)))
        at = end
    return ".".join(labels)


def _escaped(byte: int) -> str:
    return chr(byte) if _PLAIN(bytes((byte,))) else f"\\{byte:03}"


def _address(packed: bytes) -> IPAddress:
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
