"""Numbers: what is written in digits with separators: cards; others hand in what finds their kinds.

Every digit that no digit stands before is where a number may begin. One expression tells of each such place which
kinds have a form that begins there, and only these look closer. Blanks, hyphens, dots and the like may part the digits
of those kinds that people write so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from egressproxy.ai.content.check_digits import is_card
from egressproxy.ai.content.spans import Detector, Span

#: Characters, with separators.
MAX_LENGTH: Final = 64

#: Seven digits, or six behind a sign.
_START: Final = (
    r"[0-9+(](?<![0-9].)(?=" + r"[ ./()\-]{0,2}+[0-9]" * 6 + ")"
)  # written out: a loop takes half as long again
#: All of its characters to "0", every other one to "x".
_IN_NUMBERS: Final = bytes(ord("0") if chr(byte) in "0123456789 ./()+-" else ord("x") for byte in range(256))
#: The first character and six digits.
_RUN: Final = b"0000000"
#: Backwards. A letter at the end may be that of a DNI; 2A and 2B are in numbers of Corsicans.
_OPEN = re.compile(rf"[A-Za-z]?(?:[0-9 ./()+\-]|[ABab](?=2)){{1,{MAX_LENGTH}}}")
_FIRST = re.compile(r"[0-9+(]")
_CARD = re.compile(r"[2-689][0-9]{0,18}(?:[ .-][0-9]{1,18}){0,6}(?![0-9])")
_CARD_SEPARATORS = re.compile("[ .-]")
#: Behind the first character of a card: at least 13 digits, the first ones as those of a network.
CARD_FORM: Final = (
    r"(?:(?<=[468])[ .-]?[0-9]|(?<=2)[ .-]?[2-7]|(?<=3)[ .-]?[04-9]|(?<=5)[ .-]?[0-8])(?:[ .-]?[0-9]){11}"
)
#: Digits of cards.
_SHORTEST: Final = 13
_LONGEST: Final = 19

#: From a text and the index of a first character to the end of what begins there; 0: nothing does.
NumberKind = Callable[[str, int], int]


class Numbers(Detector):
    """`kinds`: an entity, what finds its end, its form: an expression, without groups, of what follows its start."""

    __slots__ = ("_formed", "_kinds", "_starts")

    needs = "0-9"

    def __init__(self, kinds: Sequence[tuple[str, NumberKind, str]]) -> None:
        self._kinds = tuple((entity, end_of) for entity, end_of, _ in kinds)
        #: The kinds by the groups that have matched: few of their combinations are possible.
        self._formed: dict[tuple[str | None, ...], list[tuple[str, NumberKind]]] = {}
        forms = "".join(f"(?=(?:{form})()|)" for _, _, form in kinds)  # a group has matched where its form holds
        of_any = "(?!)"
        for group in range(len(kinds), 0, -1):
            of_any = f"(?({group})|{of_any})"
        self._starts = re.compile(f"{_START}{forms}{of_any}")

    def find(self, text: str, start: int, found: list[Span]) -> None:
        runs = text.encode("latin-1", "replace").translate(_IN_NUMBERS)
        first = runs.find(_RUN, start)
        if first < 0:
            return
        last = runs.find(b"x", runs.rfind(_RUN))
        for match in self._starts.finditer(text, first, len(text) if last < 0 else last + MAX_LENGTH):
            at = match.start()
            formed = match.groups()
            kinds = self._formed.get(formed)
            if kinds is None:
                each = zip(self._kinds, formed, strict=True)
                kinds = self._formed[formed] = [kind for kind, is_formed in each if is_formed is not None]
            for entity, end_of in kinds:
                end = end_of(text, at)
                if end:
                    found.append(Span(at, end, entity, at))

    def open_end(self, text: str, tail: str) -> int:
        run = _OPEN.match(tail)
        if run is None:
            return 0
        begin = len(text) - run.end()
        first = _FIRST.search(text, begin)
        return 0 if first is None else len(text) - first.start()


def card_at(text: str, at: int) -> int:
    """CARD: 13 to 19 digits of a network, with their checksum, in groups; those behind it (a year) are left out."""
    match = _CARD.match(text, at)
    if match is None:
        return 0
    number, end = match[0], match.end()
    digits = number.replace(" ", "").replace("-", "").replace(".", "")
    size = len(digits)
    if size <= _LONGEST and is_card(digits):
        return end
    groups = _CARD_SEPARATORS.split(number)
    while True:
        last = len(groups.pop())
        size -= last
        end -= last + 1
        if size < _SHORTEST:
            return 0
        if size <= _LONGEST and is_card(digits[:size]):
            return end


def stands_alone(text: str, at: int) -> bool:
    """Whether no letter or digit stands before this place."""
    return at == 0 or not text[at - 1].isalnum()
