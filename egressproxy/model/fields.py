"""Fields: the header section of a message, kept as the bytes it came in.

A block holds every field line *preceded* by CRLF (`\\r\\nName: value\\r\\nOther: value`), already validated by the
codec.
Looking a field up is one precompiled regular expression over the block; cutting and adding splice bytes. Most heads
pass through without ever being taken apart (measured: one regex costs half of rebuilding a list of 12 fields).
Source of the grammar: RFC 9110 section 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

#: RFC 9110 section 5.6.2.
TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: RFC 9110 section 5.5: visible bytes, with spaces and tabs inside.
VALUE: Final = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t \x21-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
#: The fields in which clients of common APIs send their keys.
CREDENTIAL_FIELDS: Final = (
    "authorization", "x-api-key", "api-key", "x-goog-api-key", "xi-api-key", "ocp-apim-subscription-key",
    "x-auth-token", "private-token", "job-token", "x-vault-token", "x-amz-security-token",
)  # fmt: skip


@lru_cache(maxsize=2048)
def finder(name: bytes) -> re.Pattern[bytes]:
    """The pattern of a field by its lower-case name; group 1 is its value, without the blanks around it."""
    value = rb"[ \t]*+([^\r]*[^\r \t]|)"
    return re.compile(rb"\r\n%s:%s" % (re.escape(name), value), re.IGNORECASE)


@lru_cache(maxsize=1024)
def every_spelling(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """For `Fields.cut`: these fields in every case, with "_" for "-", and with either around (CVE-2025-64484): origins
    behind CGI and WSGI read `X_A` as `X-A` (RFC 3875 section 4.1.18), so that both have to go.
    """
    bare = {name.lower().strip("-_").replace("_", "-") for name in names}
    forms = sorted(re.escape(name).replace(r"\-", "[-_]") for name in bare)
    # Most lines are passed over by their first character, in a third of the time.
    firsts = "".join(sorted({re.escape(name[:1]) for name in bare}))
    ahead = f"(?=[-_{firsts}])" if all(bare) and bare else ""
    whole = rf"\r\n{ahead}[-_]*+(?:{'|'.join(forms)})[-_]*+:[^\r]*"
    return re.compile(whole.encode(), re.IGNORECASE)


#: Pattern number -> the pattern, a block, and that block without the matching lines.
CutLines = dict[int, tuple[re.Pattern[bytes], bytes, bytes]]

#: Patterns for which `CutLines` hold something: as many as there are filters that edit, in nearly all configurations.
MAX_CUTS: Final = 4


class Fields:
    """A header or trailer section that filters may read and change.

    Names are given in lower case (`b"content-type"`); matching ignores case. Values written are checked: a name that is
    no token or a value with CR, LF, NUL or other control bytes raises ValueError. Reading matches the exact name;
    removing and replacing match every spelling (see `every_spelling`).
    """

    __slots__ = ("_cut_lines", "_rest", "block")

    def __init__(self, block: bytes = b"", cut_lines: CutLines | None = None) -> None:
        """`cut_lines` caches the cuts of earlier sections, for equal blocks. Values that filters have written, which
        may be secret, are never in the cache.
        """
        self.block = block
        self._rest = block  # the received block without the lines cut since; valid while `block` is this object
        self._cut_lines = cut_lines

    @classmethod
    def of(cls, lines: Iterable[tuple[bytes, bytes]]) -> Fields:
        """Build from pairs of name and value. Raises ValueError as `add` does."""
        made = cls()
        for name, value in lines:
            made.add(name, value)
        return made

    def get(self, name: bytes) -> bytes | None:
        """The first value of this field, or None."""
        found = finder(name).search(self.block)
        return found.group(1) if found else None

    def get_all(self, name: bytes) -> list[bytes]:
        """All values of this field, in order."""
        return finder(name).findall(self.block)

    def __contains__(self, name: bytes) -> bool:
        return finder(name).search(self.block) is not None

    def add(self, name: bytes, value: bytes) -> None:
        """Append a line. Raises ValueError for a name or value that a field cannot have."""
        if not TOKEN.fullmatch(name):
            raise ValueError(f"not a field name: {name!r}")
        if not VALUE.fullmatch(value):
            raise ValueError(f"the value of {name.decode()} holds a byte that a field cannot carry")
        self.block += b"\r\n%s: %s" % (name, value)

    def set(self, name: bytes, value: bytes) -> None:
        """Replace every line of this name, in every spelling, by one. Raises ValueError as `add` does."""
        self.remove(name)
        self.add(name, value)

    def remove(self, name: bytes) -> None:
        """Remove every line of this name, in every spelling."""
        self.cut(every_spelling((name.decode("latin-1"),)))

    def cut(self, pattern: re.Pattern[bytes]) -> None:
        """Remove every line that the pattern (see `every_spelling`) matches."""
        before, known = self.block, self._cut_lines
        if known is None or before is not self._rest:
            self.block = pattern.sub(b"", before)
            return
        number = id(pattern)
        entry = known.get(number)
        if entry is not None and entry[0] is pattern and entry[1] is before:
            after = entry[2]
        else:
            after = pattern.sub(b"", before)
            if len(known) >= MAX_CUTS:
                known.clear()
            known[number] = (pattern, before, after)
        self.block = self._rest = after

    def forget(self) -> None:
        """Release all fields, and the values cached from them."""
        self.block = self._rest = b""
        self._cut_lines = None

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Name (lower case) and value of every line, in order."""
        for line in self.block.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            yield name.lower(), value.strip(b" \t")

    def __len__(self) -> int:
        return self.block.count(b"\r\n")

    def __repr__(self) -> str:
        return f"Fields({len(self)} lines)"  # never the values: they may be credentials


#: The media type of server-sent events.
EVENT_STREAM: Final = b"text/event-stream"


def media_type(fields: Fields) -> bytes:
    """The type of a body (RFC 9110 section 8.3.1), lower case, no parameters; b"" if none. Of several the first."""
    return (fields.get(b"content-type") or b"").partition(b";")[0].strip().lower()
