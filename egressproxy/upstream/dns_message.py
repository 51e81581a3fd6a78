"""DNS messages as octets: one question to send, and what answers it, read strictly. Opens no socket.

Names are uncompressed, in lower case, as they stand in a message. Sources: RFC 1035 section 4 (messages, compression),
RFC 2181 section 8 (times), RFC 3596 (AAAA), RFC 6891 (EDNS).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = ["Code", "Kind", "Record", "Reply", "encode_name", "encode_query", "read_reply"]

#: RFC 6891 section 6.2.5, and the DNS flag day of 2020: no fragmentation.
UDP_PAYLOAD: Final = 1232
_MAX_LABEL: Final = 63
_MAX_NAME: Final = 255
#: Of compression in one name; what honest servers write has one or two.
_MAX_POINTERS: Final = 16
_POINTER: Final = 0xC0
_HEADER: Final = struct.Struct("!HHHHHH")
_QUESTION: Final = struct.Struct("!HH")
_RECORD: Final = struct.Struct("!HHIH")
_IN: Final = 1
_OPT: Final = 41
_IS_RESPONSE: Final = 0x8000
_OPCODE: Final = 0x7800
_TRUNCATED: Final = 0x0200
_RECURSION_DESIRED: Final = 0x0100
_SOA_NUMBERS: Final = struct.Struct("!IIIII")


class Kind(IntEnum):
    """Types of records."""

    A = 1
    CNAME = 5
    SOA = 6
    AAAA = 28


class Code(IntEnum):
    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5


#: These may come without the question: the server did not understand it, or did not care.
_WITHOUT_QUESTION: Final = frozenset((Code.FORMERR, Code.SERVFAIL, Code.NOTIMP, Code.REFUSED))


class Record(NamedTuple):
    """`data`: the octets of an address, the name that a CNAME leads to, or the last number of a SOA."""

    name: bytes
    kind: int
    ttl_s: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """`code` may be one that `Code` does not have. Records are those of class IN and a known `Kind`; of a truncated
    message there are none.
    """

    number: int
    flags: int
    question: bytes
    code: int
    answer: tuple[Record, ...] = ()
    authority: tuple[Record, ...] = ()

    @property
    def is_truncated(self) -> bool:
        return bool(self.flags & _TRUNCATED)

    def answers(self, query: bytes) -> bool:
        """Whether it is for this query of `encode_query`: the same number and the same question (RFC 5452)."""
        if self.number != int.from_bytes(query[:2], "big") or self.flags & (_IS_RESPONSE | _OPCODE) != _IS_RESPONSE:
            return False
        asked = query[_HEADER.size : _HEADER.size + len(self.question)]
        return asked == self.question if self.question else self.code in _WITHOUT_QUESTION


def encode_name(host: str) -> bytes:
    """The absolute name, label by label: nothing in it is an escape. Raises ValueError."""
    labels = [label.encode("ascii").lower() for label in host.split(".")]
    if not all(0 < len(label) <= _MAX_LABEL for label in labels):
        raise ValueError("a label is empty or too long")
    name = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    if len(name) > _MAX_NAME:
        raise ValueError("the name is too long")
    return name


def encode_query(number: int, name: bytes, kind: Kind) -> bytes:
    """One question with recursion desired; `number` (16 bits) has to be random."""
    opt = b"\0" + _RECORD.pack(_OPT, UDP_PAYLOAD, 0, 0)
    return _HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 1) + name + _QUESTION.pack(kind, _IN) + opt


def read_reply(message: bytes) -> Reply:
    """What stands after the records is ignored. Raises ValueError."""
    try:
        return _reply(message)
    except (IndexError, struct.error):
        raise ValueError("it ends too early") from None


def _reply(message: bytes) -> Reply:
    number, flags, questions, *counts = _HEADER.unpack_from(message)
    if questions > 1:
        raise ValueError("more than one question")
    at = _HEADER.size
    question, code = b"", flags & 0xF
    if questions:
        name, at = _name(message, at)
        question = name + _QUESTION.pack(*_QUESTION.unpack_from(message, at))
        at += _QUESTION.size
    if flags & _TRUNCATED:
        return Reply(number, flags, question, code)
    sections: list[tuple[Record, ...]] = []
    for count in counts:
        records = []
        for _ in range(count):
            name, at = _name(message, at)
            kind, kind_of_class, ttl_s, size = _RECORD.unpack_from(message, at)
            at += _RECORD.size
            if at + size > len(message):
                raise ValueError("a record is longer than the message")
            if kind == _OPT:
                code |= ttl_s >> 24 << 4  # RFC 6891 section 6.1.3: the upper bits of the code
            elif kind_of_class == _IN and kind in _READERS:
                data = _READERS[kind](message, at, at + size)
                records.append(Record(name, kind, ttl_s if ttl_s < 1 << 31 else 0, data))
            at += size
        sections.append(tuple(records))
    return Reply(number, flags, question, code, sections[0], sections[1])


def _name(message: bytes, at: int) -> tuple[bytes, int]:
    """The name that begins here, and where the next thing does. Pointers lead back only, so that there is an end."""
    name = bytearray()
    start, end, pointers = at, 0, 0
    while True:
        length = message[at]
        if length >= _POINTER:
            target = (length & ~_POINTER) << 8 | message[at + 1]
            end = end or at + 2
            pointers += 1
            if target >= start or pointers > _MAX_POINTERS:
                raise ValueError("a name leads forwards, or too far")
            start = at = target
            continue
        if length > _MAX_LABEL:
            raise ValueError("a label of an unknown form")
        name += message[at : at + 1 + length]
        at += 1 + length
        if len(name) > _MAX_NAME or at > len(message):
            raise ValueError("a name is too long")
        if not length:
            return bytes(name).lower(), end or at  # no length is that of a letter


def _address(message: bytes, at: int, end: int, size: int) -> bytes:
    if end - at != size:
        raise ValueError("an address of another size")
    return message[at:end]


def _target(message: bytes, at: int, end: int) -> bytes:
    name, at = _name(message, at)
    if at != end:
        raise ValueError("a CNAME of another size")
    return name


def _minimum(message: bytes, at: int, end: int) -> bytes:
    _, at = _name(message, at)
    _, at = _name(message, at)
    if end - at != _SOA_NUMBERS.size:
        raise ValueError("a SOA of another size")
    return message[end - 4 : end]


_READERS: Final = {
    Kind.A: lambda message, at, end: _address(message, at, end, 4),
    Kind.AAAA: lambda message, at, end: _address(message, at, end, 16),
    Kind.CNAME: _target,
    Kind.SOA: _minimum,
}
