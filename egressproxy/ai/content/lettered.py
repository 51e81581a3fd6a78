"""Lettered: what begins with letters and goes on with digits: IBANs, and national identifiers that others hand in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from egressproxy.ai.content.check_digits import IBAN_LENGTHS, is_iban
from egressproxy.ai.content.numbers import NumberKind, stands_alone
from egressproxy.ai.content.spans import Detector, Span

#: Letters to "a", digits to "0"; blanks and hyphens stay, and every other character is "x".
_SHAPE_OF: Final = bytes(
    97 if chr(byte).isalpha() and byte < 128 else 48 if 48 <= byte <= 57 else byte if byte in b" -" else 120
    for byte in range(256)
)
#: How an IBAN begins.
IBAN_SHAPES: Final = (b"aa00",)
_IBAN = re.compile(r"[A-Za-z]{2}[0-9]{2}(?:[ -]?[0-9A-Za-z]){11,30}")
_SEPARATORS = re.compile(r"[ -]")

#: What may go on, backwards: a short word; one of two letters at most and a blank or hyphen; letters and digits with
#: little behind; an IBAN.
_OPEN_WORD = re.compile(r"[A-Za-z]{1,6}(?![0-9A-Za-z])|[ -][A-Za-z]{1,2}(?![0-9A-Za-z])")
_OPEN_SHORT = re.compile(r"[ -]?(?:[0-9A-Za-z][ -]?){0,15}[0-9][ -]?[A-Za-z]{1,6}(?![0-9A-Za-z])")
_OPEN_IBAN = re.compile(r"[ -]?(?:[0-9A-Za-z][ -]?){0,32}[0-9]{2}[A-Za-z]{2}(?![0-9A-Za-z])")
_DIGIT = re.compile("[0-9]")
_MAX_LENGTH: Final = 72


def iban_at(text: str, at: int) -> int:
    """IBAN: of the length of its country, in groups if need be, with its checksum."""
    length = IBAN_LENGTHS.get(text[at : at + 2].upper(), 0)
    match = _IBAN.match(text, at) if length else None
    if match is None:
        return 0
    end = at
    for character in match[0]:
        end += 1
        length -= character not in " -"
        if not length:
            break
    if length or text[end : end + 1].isalnum():
        return 0
    return end if is_iban(_SEPARATORS.sub("", text[at:end]).upper()) else 0


def _ends(shape: bytes) -> tuple[Callable[[bytes, int], Iterator[re.Match[bytes]]], int]:
    """What finds the digits at the end of a shape where all of it is, and the number of characters before them."""
    digits = shape[len(shape.rstrip(b"0")) :]
    return re.compile(digits + b"(?<=" + re.escape(shape) + b")").finditer, len(shape) - len(digits)


class Lettered(Detector):
    """Finds what begins with one to six letters, with digits soon after. Each of `kinds` is an entity, the expression
    for its end, and the shapes of its beginning: "a" for a letter, "0" for a digit, blanks and hyphens.
    """

    __slots__ = ("_kinds",)

    needs = "0-9"

    def __init__(self, kinds: list[tuple[str, NumberKind, tuple[bytes, ...]]]) -> None:
        each = [(entity, end_of, shape) for entity, end_of, shapes in kinds for shape in shapes]
        #: And how many characters are before the digits at the end of a shape, which are looked for: there are fewer.
        self._kinds = tuple((entity, end_of, *_ends(shape)) for entity, end_of, shape in each)

    def find(self, text: str, start: int, found: list[Span]) -> None:
        shapes = text.encode("latin-1", "replace").translate(_SHAPE_OF)
        for entity, end_of, digits_of, before in self._kinds:
            for digits in digits_of(shapes, start + before):
                at = digits.start() - before
                if stands_alone(text, at):
                    end = end_of(text, at)
                    if end:
                        found.append(Span(at, end, entity, at))

    def open_end(self, text: str, tail: str) -> int:
        word = _OPEN_WORD.match(tail)
        length = 0 if word is None else word.end()
        if _DIGIT.search(tail, 0, _MAX_LENGTH) is not None:
            for pattern in (_OPEN_SHORT, _OPEN_IBAN):
                match = pattern.match(tail)
                if match is not None and match.end() > length:
                    length = match.end()
        return length
