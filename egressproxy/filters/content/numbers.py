"""Numbers: what is written in digits with separators: cards; others hand in what finds their kinds.

Every digit that no digit stands before is where a number may begin, and each kind looks from there. Blanks, hyphens,
dots and the like may part the digits of those kinds that people write so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from egressproxy.filters.content.check_digits import is_card
from egressproxy.filters.content.spans import Detector, Span

__all__ = ["NumberKind", "Numbers", "card_at", "digits_of", "stands_alone"]

#: Characters, with separators.
MAX_LENGTH: Final = 64

#: Seven digits, or six behind a sign.
_START = re.compile(r"[0-9+(](?<![0-9].)(?:[ ./()\-]{0,2}[0-9]){6}")
#: Backwards. A letter at the end may be that of a DNI; 2A and 2B are in numbers of Corsicans.
_OPEN = re.compile(rf"[A-Za-z]?(?:[0-9 ./()+\-]|[ABab](?=2)){{1,{MAX_LENGTH}}}")
_FIRST = re.compile(r"[0-9+(]")
_CARD = re.compile(r"[2-689][0-9]{0,18}(?:[ .-][0-9]{1,18}){0,6}(?![0-9])")
_SEPARATORS: Final = dict.fromkeys(map(ord, "+ ./()-"))

#: From a text and the index of a first character to the end of what begins there; 0: nothing does.
NumberKind = Callable[[str, int], int]


class Numbers(Detector):
    """`kinds` are pairs of an entity and what finds its end."""

    __slots__ = ("_kinds",)

    needs = "0-9"

    def __init__(self, kinds: Sequence[tuple[str, NumberKind]]) -> None:
        self._kinds = tuple(kinds)

    def find(self, text: str, start: int, found: list[Span]) -> None:
        """As `Detector.find`."""
        match = _START.search(text, start)
        while match is not None:
            at = match.start()
            for entity, end_of in self._kinds:
                end = end_of(text, at)
                if end:
                    found.append(Span(at, end, entity, at))
            match = _START.search(text, at + 1)

    def open_end(self, text: str, tail: str) -> int:
        """As `Detector.open_end`."""
        run = _OPEN.match(tail)
        if run is None:
            return 0
        begin = len(text) - run.end()
        first = _FIRST.search(text, begin)
        return 0 if first is None else len(text) - first.start()


def digits_of(text: str) -> str:
    """The digits of a number, without what parts them."""
    return text.translate(_SEPARATORS)


def card_at(text: str, at: int) -> int:
    """CARD: 13 to 19 digits, in up to seven groups, with prefix, length and checksum of a network.

    What follows may be a year or a code: groups at the end are left out until the rest is a card.
    """
    match = _CARD.match(text, at)
    if match is None:
        return 0
    candidate = match[0]
    while len(digits := digits_of(candidate)) >= 13:
        if is_card(digits):
            return at + len(candidate)
        candidate = candidate.rstrip("0123456789")[:-1]
    return 0


def stands_alone(text: str, at: int) -> bool:
    """Whether no letter or digit stands before this place."""
    return at == 0 or not text[at - 1].isalnum()
