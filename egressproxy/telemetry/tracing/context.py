"""W3C contexts as values: `traceparent` and `tracestate`.

Reading is strict. A malformed `traceparent` counts as none, so that a new trace begins; a malformed `tracestate` is
dropped alone. Source: W3C Trace Context, sections 3.2, 3.3 and 4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Version 00 is exactly this; a later one may go on behind a dash (section 3.2.4).
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
#: A key and its value (section 3.3.2, and level 2 of the specification).
_MEMBER: Final = re.compile(
    rb"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
#: Section 3.3.1.1.
MAX_MEMBERS: Final = 32
#: Section 3.3.1.5: at least so many bytes are passed on. Members that are longer than _LONG_MEMBER go first.
MAX_TRACESTATE: Final = 512
_LONG_MEMBER: Final = 128
#: Ids that one call of the kernel makes: a call for each trace would cost more than all else that is done for it.
_IDS: Final = 256
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A context that came in: ids in lower-case hexadecimal, and `tracestate` as it is passed on (b"": none)."""

    trace_id: str
    span_id: str
    is_sampled: bool
    tracestate: bytes = b""


def read_context(traceparents: Sequence[bytes], tracestates: Sequence[bytes] = ()) -> TraceContext | None:
    """The context in these field values, or None for none and for an invalid one."""
    found = _TRACEPARENT.fullmatch(traceparents[0]) if len(traceparents) == 1 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace, span = trace_id.decode(), span_id.decode()
    if trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED), read_tracestate(tracestates))


def read_tracestate(values: Sequence[bytes]) -> bytes:
    """The list members to pass on, in their order; b"" where a member is malformed, or its key stands there twice."""
    members = [member for value in values for each in value.split(b",") if (member := each.strip(b" \t"))]
    keys = {member.partition(b"=")[0] for member in members}
    if len(members) > MAX_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return b""
    if _length(members) > MAX_TRACESTATE:
        members = [member for member in members if len(member) <= _LONG_MEMBER]
    while _length(members) > MAX_TRACESTATE:
        members.pop()
    return b",".join(members)


def _length(members: Sequence[bytes]) -> int:
    return sum(map(len, members)) + len(members) - 1


class RandomIds:
    """Ids of traces and spans: random, and never all zero (section 3.2.2.3)."""

    __slots__ = ("_at", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0

    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self._take(32)

    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self._take(16)

    def _take(self, digits: int) -> str:
        at = self._at
        self._at = end = at + digits
        taken = self._text[at:end]
        if len(taken) < digits or not taken.strip("0"):
            self._text = os.urandom(16 * _IDS).hex()
            self._at = 0
            return self._take(digits)
        return taken
