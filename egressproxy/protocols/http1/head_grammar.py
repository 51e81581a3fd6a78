"""HeadGrammar: the grammar of heads of one direction, under the limits of one listener or of backends. All readers with
these limits share it, and a cache of their last sections, since peers repeat them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from egressproxy.model.fields import CutLines
from egressproxy.protocols.http1.framing import HeadLimits, HopFields

#: The most bytes of a cached section, or of cached hop fields.
MAX_REMEMBERED: Final = 1024

#: Hop fields without credentials or identity, whose parsed form is cached for all readers.
_SHARED_NAMES: Final = frozenset((b"", b"connection", b"content-length", b"host", b"keep-alive", b"transfer-encoding"))

#: The most cached combinations of these, and the most bytes of one.
MAX_SHARED: Final = 256
MAX_SHARED_BYTES: Final = 256

#: The most cached sections of a grammar. With more readers, some share a slot, and the later section wins.
PLACES: Final = 256

H = TypeVar("H")  # Hop or ResponseHop


class FieldSection:
    """The fields of a head: `text` is all that came, from the end of the start line to the end of the head; `block` is
    what of it goes on, `hop_fields` the rest. `cut_lines` is for `Fields`, once the same has come a second time.
    """

    __slots__ = ("block", "cut_lines", "hop_fields", "text")

    def __init__(self, text: bytes, block: bytes, hop_fields: HopFields) -> None:
        self.text = text
        self.block = block
        self.hop_fields = hop_fields
        self.cut_lines: CutLines | None = None

    def __repr__(self) -> str:
        return f"FieldSection({len(self.text)} bytes)"  # never the values: they may be credentials


def _is_shared(hop_fields: HopFields) -> bool:
    """Whether the parsed form of these fields may be cached for all readers: few bytes, and no secrets."""
    if sum(map(len, hop_fields)) > MAX_SHARED_BYTES:
        return False
    return _SHARED_NAMES.issuperset(map(bytes.lower, hop_fields[::2]))


#: How many limits have a grammar that is kept: there are as many as listeners, and kinds of backends.
MAX_GRAMMARS: Final = 64
#: The place of readers that remember nothing: always unused.
NOWHERE: Final = PLACES

#: In a place that nobody has used: no section begins like this.
_NOTHING: Final = FieldSection(b"-", b"", ())


class HeadGrammar(Generic[H]):
    """The expressions of heads, and what is known of sections that they have matched.

    `start_line` matches a start line and its CRLF. `plain` reads nearly all sections (`plain_section_pattern`);
    `whole`, and `split` for its field block, the others. `read_hop_fields` says what fields of this hop mean.
    """

    __slots__ = (
        "_at_places", "_hops", "_next_place", "_plain", "_read_hop_fields", "_split", "_whole", "limits",
        "match_start_line",
    )  # fmt: skip

    def __init__(
        self,
        limits: HeadLimits,
        start_line: re.Pattern[bytes],
        plain: re.Pattern[bytes],
        whole: re.Pattern[bytes],
        split: Callable[[bytes], tuple[bytes, HopFields]],
        read_hop_fields: Callable[[HopFields, bytes], H],
    ) -> None:
        self.limits = limits
        self.match_start_line = start_line.match
        self._plain = plain.match
        self._whole = whole.match
        self._split = split
        self._read_hop_fields = read_hop_fields
        self._hops: dict[tuple[HopFields, bytes], H] = {}
        self._at_places = [_NOTHING] * (PLACES + 1)
        self._next_place = 0

    def new_place(self) -> int:
        """The cache slot of a new reader."""
        place = self._next_place
        self._next_place = (place + 1) % PLACES
        return place

    def forget(self, place: int) -> None:
        """Clear a cache slot."""
        self._at_places[place] = _NOTHING

    def hop(self, hop_fields: HopFields, minor: bytes) -> H:
        """The parsed hop fields of a head of HTTP/1.`minor`. Raises Malformed."""
        key = (hop_fields, minor)
        hop = self._hops.get(key)
        if hop is None:
            hop = self._read_hop_fields(hop_fields, minor)
            if _is_shared(hop_fields):
                if len(self._hops) >= MAX_SHARED:
                    self._hops.clear()
                self._hops[key] = hop
        return hop

    def section(self, buffer: bytes, start: int, place: int) -> tuple[FieldSection, int] | None:
        """The section that begins with the CRLF at `start`, and where it ends. None: unfinished, or against a rule."""
        known = self._at_places[place]
        text = known.text
        if buffer.startswith(text, start):
            if known.cut_lines is None:
                known.cut_lines = {}
            return known, start + len(text)
        match = self._plain(buffer, start)
        if match is None:
            return self._read_by_two(buffer, start)
        end = match.end()
        size = end - start
        # Each run of fields has the bound for itself. A line takes four bytes, so that short heads need no count.
        most = self.limits.max_fields
        if size > 4 * most and buffer.count(b"\n", start, end) > most + 2:
            return self._read_by_two(buffer, start)
        block, name, value, more, name2, value2, more2, name3, value3, more3 = match.groups(b"")
        block += more + more2 + more3
        if size > MAX_REMEMBERED or place == NOWHERE:
            return FieldSection(b"", block, (name, value, name2, value2, name3, value3)), end
        made = FieldSection(buffer[start:end], block, (name, value, name2, value2, name3, value3))
        self._at_places[place] = made
        return made, end

    def _read_by_two(self, buffer: bytes, start: int) -> tuple[FieldSection, int] | None:
        """The same for what the quick expression does not know: it is checked first, and taken apart then."""
        match = self._whole(buffer, start)
        if match is None:
            return None
        block, hop_fields = self._split(match.group(1))
        return FieldSection(b"", block, hop_fields), match.end()


class Grammars(Generic[H]):
    """The grammars of all heads of one kind, made by `make`: one for equal limits."""

    __slots__ = ("_by_identity", "_by_limits", "_make")

    def __init__(self, make: Callable[[HeadLimits], HeadGrammar[H]]) -> None:
        self._make = make
        self._by_limits: dict[HeadLimits, HeadGrammar[H]] = {}
        #: By the identity of the limits, which every new connection asks with: a hash of their values takes longer.
        self._by_identity: dict[int, tuple[HeadLimits, HeadGrammar[H]]] = {}

    def of(self, limits: HeadLimits) -> HeadGrammar[H]:
        """The grammar under these limits."""
        known = self._by_identity.get(id(limits))
        if known is not None and known[0] is limits:
            return known[1]
        if len(self._by_identity) >= MAX_GRAMMARS:
            self._by_identity.clear()
        if len(self._by_limits) >= MAX_GRAMMARS:
            self._by_limits.clear()
        found = self._by_limits.get(limits)
        if found is None:
            found = self._by_limits[limits] = self._make(limits)
        self._by_identity[id(limits)] = limits, found
        return found
