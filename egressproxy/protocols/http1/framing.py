"""The common parts of both directions of HTTP/1.1: limits, field sections, Connection options, body lengths. Pure;
messages never repeat the peer's bytes. Sources: RFC 9110 sections 5 and 7.6.1, RFC 9112 sections 2.2, 5, 6 and 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from egressproxy.errors import Reason
from egressproxy.model.fields import TOKEN
from egressproxy.model.message import CHUNKED

#: Lengths above this cannot be told apart by peers that count in doubles; nobody sends 8 PiB.
MAX_LENGTH: Final = 2**53

#: One byte of a token, RFC 9110 section 5.6.2 (source text of a pattern).
TCHAR: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"

#: Bytes of a field's name. Nobody's are a tenth of that; what reads them behind us may have a bound of its own.
MAX_NAME: Final = 1024

#: A field's name (source text).
FIELD_NAME: Final = TCHAR + rb"{1,%d}+" % MAX_NAME

#: The part after a field's name: an immediate colon, then no control byte except HTAB (source text).
FIELD_VALUE: Final = rb":[\t\x20-\x7e\x80-\xff]*+"

#: One field line *preceded* by its CRLF (source text). Its parts are possessive and share no bytes: a line can be
#: read in one way, so a run of lines that turns out to be wrong is given back line by line, at once. The run itself is
#: never possessive: CPython before 3.11.5 matches possessive and atomic groups wrongly (gh-106052).
FIELD_LINE: Final = rb"\r\n" + FIELD_NAME + FIELD_VALUE

#: A CR that is not followed by LF, or the reverse; a CR at the very end may still get its LF.
BARE_CR_OR_LF: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")

#: Fields that would speak for a client's identity: gateways make them, so none that a client sends is passed on.
IDENTITY_FIELDS: Final = "x-gateway-role x-gateway-user x-gateway-identity x-egress-identity x-smokescreen-role"

#: The usual values of Connection.
_COMMON_OPTIONS: Final = {
    spelling: frozenset((spelling.lower(),)) for spelling in (b"keep-alive", b"Keep-Alive", b"close", b"Close")
}

#: The fields that concern this hop or the framing, in order, as they came: name, value, name, value … Names of
#: b"" are none, and stand at the end.
HopFields = tuple[bytes, ...]

_VALUE_BYTES: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Bounds of one head, and of one trailer section: bytes in all, field lines, bytes of the request target."""

    max_head_bytes: int = 65536
    max_fields: int = 128
    max_target_bytes: int = 8192


class Malformed(Exception):
    """A broken rule, of which the readers make a GatewayError. `status` is for a client; the message is fixed text."""

    def __init__(self, reason: Reason, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status


def any_case(names: str, also: bytes = b"") -> bytes:
    """Source text of a pattern: one of these lower-case names, in any case, or what matches the source text `also`.

    Explicit sets, because under IGNORECASE no alternative can be ruled out by its first byte; and what names have in
    common stands there once, so that no byte is looked at twice.
    """
    alternatives = [each.encode() for each in _alternatives(names.split())]
    return b"(?:%b)" % b"|".join([*alternatives, also] if also else alternatives)


def _alternatives(ends: list[str]) -> list[str]:
    """One for each first letter."""
    alternatives = []
    for first in dict.fromkeys(end[0] for end in ends if end):
        letter = f"[{first}{first.upper()}]" if first.isalpha() else re.escape(first)
        alternatives.append(letter + _any_of([end[1:] for end in ends if end.startswith(first)]))
    return alternatives


def _any_of(ends: list[str]) -> str:
    alternatives = _alternatives(ends)
    if not alternatives:
        return ""
    source = alternatives[0] if len(alternatives) == 1 else f"(?:{'|'.join(alternatives)})"
    return f"(?:{source})?" if "" in ends else source


@lru_cache(maxsize=16)
def any_section_pattern(max_fields: int) -> re.Pattern[bytes]:
    """The grammar after a start line: the block of fields (group 1), and the end of the head."""
    return re.compile(rb"((?:" + FIELD_LINE + rb"){0,%d})\r\n\r\n" % max_fields)


@lru_cache(maxsize=32)
def plain_section_pattern(hop_names: bytes, name: bytes, max_fields: int) -> re.Pattern[bytes]:
    """The same with at most three hop fields, as nearly all are: checked and taken apart in one pass.

    Source texts: `hop_names` the alternatives of a hop field's name (with any look-ahead that spares them), `name` one
    field name. Groups: the lines up to the first hop field, then up to three times name, value, and the lines behind
    (None where there are fewer). The number of fields is bounded for each run alone: the reader counts the lines of
    long heads.
    """
    run = rb"((?:\r\n(?!(?:%b):)%b%b){0,%d})" % (hop_names, name, FIELD_VALUE, max_fields)
    rest = rb"\r\n\r\n"
    for _ in range(3):  # one in the other: a hop field is the first, the second or the third, and nothing else
        rest = rb"\r\n(?:\r\n|(%b):([\t\x20-\x7e\x80-\xff]*+)%b%b)" % (hop_names, run, rest)
    return re.compile(run + rest)


def split_fields(hop_field: re.Pattern[bytes], block: bytes) -> tuple[bytes, HopFields]:
    """The field block without the fields that this pattern finds (groups: name, value), and those fields."""
    parts = hop_field.split(block)  # text, name, value, text, name, value, ... text
    block = b"".join(parts[::3])
    del parts[::3]
    return block, tuple(parts)


def joined_by_name(hop_fields: HopFields) -> tuple[dict[bytes, bytes], list[bytes]]:
    """The values by lower-case name, those of several lines joined by ", "; and the repeated names, in order."""
    values: dict[bytes, bytes] = {}
    repeated = []
    for name, value in zip(hop_fields[::2], hop_fields[1::2], strict=True):
        if not name:
            break
        name = name.lower()
        value = value.strip(b" \t")
        if name in values:
            repeated.append(name)
            value = values[name] + b", " + value if values[name] else value
        values[name] = value
    return values, repeated


def connection_options(value: bytes) -> frozenset[bytes]:
    """The lower-case options of a Connection value (several lines joined by commas), without empty elements. Raises
    Malformed if one is no token. Source: RFC 9110 sections 5.6.1 and 7.6.1.
    """
    known = _COMMON_OPTIONS.get(value)
    if known is not None:
        return known
    options = frozenset(option.strip(b" \t") for option in value.lower().split(b",")) - {b""}
    for option in options:
        if not TOKEN.fullmatch(option):
            raise Malformed(Reason.BAD_FIELD, "an option of Connection is not a token")
    return options


def without_fields(block: bytes, names: Collection[bytes]) -> bytes:
    """The block without the lines of these (lower-case) names, which a peer chose. No pattern is compiled for them: a
    client could buy CPU and cache space with it.
    """
    lines = block.split(b"\r\n")
    return b"\r\n".join([line for line in lines if line.partition(b":")[0].lower() not in names])


def read_content_length(value: bytes) -> int:
    """The length that a Content-Length states. Raises Malformed unless 1*DIGIT, up to MAX_LENGTH (RFC 9110 8.6)."""
    # bytes.isdigit is ASCII only, unlike str.isdigit; the length check keeps int() from chewing on 60 KB of digits
    if not value.isdigit():
        raise Malformed(Reason.BAD_FRAMING, "Content-Length is not a number")
    if len(value) > 20 or int(value) > MAX_LENGTH:
        raise Malformed(Reason.BAD_FRAMING, "Content-Length is too large")
    return int(value)


def read_transfer_encoding(value: bytes) -> int:
    """CHUNKED. Raises Malformed: 501 for another coding, 400 for what is no list of codings (RFC 9112 section 6.1)."""
    if value.lower() == b"chunked":
        return CHUNKED
    codings = [coding.strip(b" \t") for coding in value.split(b",")]
    if all(TOKEN.fullmatch(coding) for coding in codings) and b"chunked" not in [c.lower() for c in codings[:-1]]:
        raise Malformed(Reason.UNKNOWN_CODING, "the only transfer coding understood is chunked", 501)
    raise Malformed(Reason.BAD_FRAMING, "malformed Transfer-Encoding")


def head_fault(
    head: bytes,
    limits: HeadLimits,
    start_line: re.Pattern[bytes],
    line_fault: Callable[[bytes, HeadLimits], Malformed],
) -> Malformed:
    """Why a complete head is refused. `line_fault` explains a start line that `start_line` does not match."""
    end = head.find(b"\n") + 1
    line = head[:end]
    if not start_line.fullmatch(line):
        return line_fault(line, limits)
    return field_section_fault(head[end - 2 : -4], limits.max_fields)


def field_section_fault(section: bytes, max_fields: int) -> Malformed:
    """Why a field section (every line preceded by CRLF, none at the end) is refused. Only for refused sections."""
    if BARE_CR_OR_LF.search(section) or section.endswith(b"\r"):
        return Malformed(Reason.BAD_FIELD, "a line ends in a bare CR or LF, or holds one")
    lines = section.split(b"\r\n")[1:]
    if len(lines) > max_fields:
        return Malformed(Reason.HEAD_TOO_LARGE, f"more than {max_fields} fields", 431)
    for line in lines:
        name, colon, value = line.partition(b":")
        if line[:1] in (b" ", b"\t"):
            return Malformed(Reason.BAD_FIELD, "folded field lines are refused")
        if not colon:
            return Malformed(Reason.BAD_FIELD, "a field line has no colon")
        if name[-1:] in (b" ", b"\t"):
            return Malformed(Reason.BAD_FIELD, "a blank stands between a field's name and its colon")
        if not TOKEN.fullmatch(name):
            return Malformed(Reason.BAD_FIELD, "a field's name is not a token")
        if len(name) > MAX_NAME:
            return Malformed(Reason.BAD_FIELD, f"a field's name is longer than {MAX_NAME} bytes")
        if not _VALUE_BYTES.fullmatch(value):
            return Malformed(Reason.BAD_FIELD, "a field's value holds a control character")
    return Malformed(Reason.BAD_FIELD, "malformed field section")
