"""W3C contexts as values: `traceparent` and `tracestate`.

Reading is strict. A malformed `traceparent` counts as none, so that a new trace begins; a malformed `tracestate` is
dropped alone. Source: W3C Trace Context, level 2, sections 3.2, 3.3 and 4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from egressproxy.telemetry.tracing.sampling import Ratio

#: Version 00 is exactly this; a later one may go on behind a dash (section 3.2.4).
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16
#: A key and its value (section 3.3.2, and level 2 of the specification).
_MEMBER: Final = re.compile(
    rb"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
#: Section 3.3.1.1.
MAX_MEMBERS: Final = 32
#: Section 3.3.1.5: at least so many bytes are passed on. Members that are longer than _LONG_MEMBER go first.
MAX_TRACESTATE: Final = 512
_LONG_MEMBER: Final = 128
#: Flags: a caller may have recorded the trace; at least 7 bytes of its id are random (section 3.2.2.5). Others are 0.
SAMPLED: Final = 1
_RANDOM: Final = 2
#: These flags by the last digit of a field, and what a line ends with.
FLAGS_OF: Final = bytes(int(chr(each), 16) & 3 if chr(each) in "0123456789abcdef" else 0 for each in range(128))
_ENDS: Final = (b"-00", b"-01", b"-02", b"-03")
_AHEAD: Final = 64
IS_SAMPLED: Final = ord("3")  # the last byte of a line of NewContexts
#: Finds every line that may be of a context, in any spelling, in one pass. The parts are those of a valid `traceparent`
#: of version 00: all that is behind CRLF, trace id, span id and flags. Of any other line all are b"".
find_lines: Final = re.compile(
    rb"\r\n(?=[-_Tt])(?:"
    rb"((?i:traceparent):[ \t]*+00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2}))(?![^\r])"
    rb"|[-_]*+(?i:trace[-_]?(?:parent|state))[-_]*+:)"
).findall


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A context that came in: ids in lower-case hexadecimal, and `tracestate` as it is passed on (b"": none)."""

    trace_id: bytes
    span_id: bytes
    flags: int
    tracestate: bytes = b""


def read_context(traceparents: Sequence[bytes], tracestates: Sequence[bytes] = ()) -> TraceContext | None:
    """The context in these field values, or None for none and for an invalid one."""
    found = _TRACEPARENT.fullmatch(traceparents[0]) if len(traceparents) == 1 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, FLAGS_OF[flags[1]], read_tracestate(tracestates))


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


class NewContexts:
    """Contexts of new traces, and ids of spans. They are made _AHEAD at a time: a call of the kernel for each would
    cost more than all else that is done for most requests.

    The first half of a trace id is random once for this object, and the second half for each trace (section 3.2.2.3
    asks for 7 bytes). A span id is random for each trace that is sampled; those of the others, which have no span,
    share one.
    """

    __slots__ = ("_before", "_bound", "_span_ids")

    def __init__(self, ratio: Ratio) -> None:
        """`ratio`: the traces that are sampled."""
        self._before = b"\r\ntraceparent: 00-" + _random_ids()[0]
        self._bound = self._before + ratio.bound
        self._span_ids: list[bytes] = []

    def span_id(self) -> bytes:
        """16 hexadecimal digits."""
        if not self._span_ids:
            self._span_ids = _random_ids()
        return self._span_ids.pop()

    def lines(self) -> list[bytes]:
        """CRLF and a field `traceparent` each: line[18:50] is the trace id, line[51:67] the span id. The last byte is
        IS_SAMPLED for some.
        """
        before, after = self._before, b"-" + self.span_id() + _ENDS[_RANDOM]
        # All at once: a format for each takes three times as long.
        lines = (before + (after + b"," + before).join(_random_ids()) + after).split(b",")
        if min(lines) < self._bound:
            bound = self._bound
            lines = [line if line >= bound else line[:51] + self.span_id() + _ENDS[_RANDOM | SAMPLED] for line in lines]
        return lines


def traceparent(trace_id: bytes, span_id: bytes, flags: int) -> bytes:
    """As one of `NewContexts.lines`."""
    return b"\r\ntraceparent: 00-" + trace_id + b"-" + span_id + _ENDS[flags]


def _random_ids() -> list[bytes]:
    """16 hexadecimal digits each, _AHEAD of them; none is all zero (section 3.2.2.3)."""
    found = os.urandom(8 * _AHEAD).hex(",", 8).encode().split(b",")
    return found if _NO_SPAN not in found else _random_ids()
