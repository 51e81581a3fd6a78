"""Folding: text as detectors look at it, with each character's place in the text that came.

What looks like an ASCII character to a reader and to a program that tidies text becomes that character: digits of other
scripts, full-width and mathematical letters, blanks and dashes of typography. Characters that nobody sees (zero width,
direction marks, variation selectors, fillers, marks over and around other characters) are left out. Letters of other
scripts that merely resemble (Cyrillic "а") stay.
"""

from __future__ import annotations

import re
from functools import cache
from unicodedata import decimal, normalize

#: A longer run of characters that nobody sees parts what stands around it: what is held back of a stream has a bound.
MAX_UNSEEN = 8
_UNSEEN = (
    "\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20d0-\u20f0"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
)
_OTHERS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u2024\u3002\uff61", "."),
    "\u2044": "/",
    "\u2215": "/",
}
#: Beyond this there is no digit, and nothing that folds to ASCII.
_END = 0x1FBFA

_SEEN_PART = re.compile(f"[{_UNSEEN}]+")
_ESCAPED_PART = re.compile(rf"[{_UNSEEN}]+|\\u[0-9A-Fa-f]{{4}}|\\[^u]")
_SHORT_ESCAPES = {"\\b": "\b", "\\f": "\f", "\\n": "\n", "\\r": "\r", "\\t": "\t"}
_OPEN_UNSEEN = re.compile(f"[{_UNSEEN}]+\\Z")
_OPEN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9A-Fa-f]{0,3})?)\Z")


_ASCII = bytes(range(128))
#: Two classes, because `re` finds a character in one that has some of beyond the first plane ten times slower.
_UNSEEN_THERE = re.compile(f"[{_UNSEEN[:-3]}]|[{_UNSEEN[-3:]}]")
_BEYOND = re.compile("[\U00010000-\U0001fbfa]")


@cache
def _table() -> tuple[dict[str, str], re.Pattern[str], re.Pattern[str]]:
    """What folds to what, and patterns of those characters: in the first plane, and all. Made once, in 20 ms."""
    table: dict[str, str] = dict(_OTHERS)
    for code in range(0x80, _END):
        character = chr(code)
        digit = decimal(character, None)
        if digit is not None:
            table[character] = str(digit)
        elif len(plain := normalize("NFKC", character)) == 1 and plain.isascii():
            table[character] = plain
    first = "".join(re.escape(character) for character in table if character <= "\uffff")
    return table, re.compile(f"[{first}]"), re.compile(f"[{''.join(map(re.escape, table))}]")


class Folder:
    """Folds text. With `has_escapes` it is JSON as it is written (the arguments of a call that are streamed): what its
    escapes stand for is seen, and a quotation mark that ends a string is a character of no text.
    """

    __slots__ = ("_has_escapes", "_parts")

    def __init__(self, has_escapes: bool = False) -> None:
        self._has_escapes = has_escapes
        self._parts = _ESCAPED_PART if has_escapes else _SEEN_PART

    def fold(self, text: str) -> tuple[str, list[int] | None]:
        """The folded text, and for each of its characters, and for its end, the index in `text`; None: the same."""
        has_unseen = False
        if text.isascii():
            if not self._has_escapes:
                return text, None
            if "\\" not in text:
                return text.replace('"', "\0"), None
        else:
            table, first, every = _table()
            others = _beyond_ascii(text)
            foldable = first if _BEYOND.search(others) is None else every
            if foldable.search(others) is not None:
                text = foldable.sub(lambda match: table[match[0]], text)
            has_unseen = _UNSEEN_THERE.search(others) is not None
        if not has_unseen and not (self._has_escapes and "\\" in text):
            return text.replace('"', "\0") if self._has_escapes else text, None
        parts: list[str] = []
        index: list[int] = []
        at = 0
        for match in self._parts.finditer(text):
            begin, end = match.span()
            parts.append(text[at:begin].replace('"', "\0") if self._has_escapes else text[at:begin])
            index.extend(range(at, begin))
            at = end
            part = match[0]
            if part[0] == "\\":
                parts.append(_unescaped(part))
                index.append(begin)
            elif end - begin > MAX_UNSEEN:
                parts.append("\n")
                index.append(begin)
        parts.append(text[at:].replace('"', "\0") if self._has_escapes else text[at:])
        index.extend(range(at, len(text) + 1))
        return "".join(parts), index

    def open_end(self, text: str) -> int:
        """How many characters at the end of `text` may fold to something else when more text comes."""
        if not text.isascii():
            match = _OPEN_UNSEEN.search(text, max(0, len(text) - MAX_UNSEEN - 1))
            if match is not None and len(match[0]) <= MAX_UNSEEN:
                return len(match[0])
        if self._has_escapes and "\\" in text[-5:]:
            match = _OPEN_ESCAPE.search(text)
            if match is not None:
                return len(match[1])
        return 0


def _beyond_ascii(text: str) -> str:
    """The characters of a text that are not ASCII; where there are many, the text itself. `re` takes ten times as long
    to look at each character.
    """
    data = text.encode("utf-8", "surrogatepass")
    return text if 2 * len(data) > 3 * len(text) else data.translate(None, _ASCII).decode("utf-8", "surrogatepass")


def _unescaped(escape: str) -> str:
    """What an escape of JSON stands for, folded; one that nobody sees is a character of its own: a part ends there."""
    if escape[1] != "u":
        return _SHORT_ESCAPES.get(escape, escape[1])
    character = chr(int(escape[2:], 16))
    return character if character.isascii() else _table()[0].get(character, character)
