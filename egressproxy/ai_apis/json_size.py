"""How many parts JSON has, counted before it is read: that is what reading it costs, more than its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Objects and arrays of a body that is translated, and its commas: a tenth of a second.
MAX_PARTS: Final = 20_000
MAX_COMMAS: Final = 100_000
#: Strings of whatever is read.
MAX_STRINGS: Final = 400_000

_COUNTED: Final = b'{[,"'


def has_too_many_parts(
    text: bytes, parts: int = MAX_PARTS, commas: int = MAX_COMMAS, strings: int = MAX_STRINGS
) -> bool:
    """Whether this JSON has more objects and arrays than `parts`, or more commas or strings than those. What stands
    inside of strings does not count.
    """
    if len(text) - len(text.translate(None, _COUNTED)) <= min(parts, commas, strings):  # one look for all of them
        return False
    if text.count(b"{") + text.count(b"[") <= parts and text.count(b'"') <= strings and text.count(b",") <= commas:
        return False
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 2 * strings:
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return outside.count(b"{") + outside.count(b"[") > parts or outside.count(b",") > commas


def are_too_many(texts: Iterable[str]) -> bool:
    """Whether these texts of JSON have too many parts together: arguments of calls are JSON inside of strings."""
    together = list(texts)
    if sum(map(len, together)) <= MAX_PARTS:
        return False
    return has_too_many_parts("\n".join(together).encode("utf-8", "surrogatepass"))
