"""Regular expressions in route matches, kept to those whose cost is bounded.

`RegularExpression` matches use Python's syntax and have to match the whole value. Python's engine backtracks, so a
careless expression lets one request occupy a worker for seconds. What could is refused when the table is built:
backreferences, lookaround, repeated groups, too many alternatives, and more than one open-ended repeat that does not
end where its own characters end. What remains is at worst quadratic, and a value longer than MAX_SUBJECT is refused.
Source of the match type: Gateway API HTTPPathMatch, HTTPHeaderMatch, HTTPQueryParamMatch (RegularExpression is
implementation-specific).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["MAX_PATTERN", "MAX_SUBJECT", "PatternError", "compile_pattern"]

#: Characters of an expression. Gateway API allows 1024 for a path, 4096 for a header value.
MAX_PATTERN = 1024
#: Octets of a value that an expression is tried on. Quadratic, that is about 30 ms; the worst of 60,000 random
#: expressions that were accepted took 0.2 s on the values that are worst for it.
MAX_SUBJECT = 2048
#: Ways through the alternatives and options of one expression.
MAX_WAYS = 64
#: Copies of a group that a fixed count such as `{4}` may make.
MAX_COPIES = 16

_EVERY = frozenset(range(256))
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGIT = frozenset(b"0123456789")
_SPACE = frozenset(b" \t\n\r\f\v")
_CATEGORIES = {
    op.CATEGORY_DIGIT: _DIGIT, op.CATEGORY_NOT_DIGIT: _EVERY - _DIGIT,
    op.CATEGORY_SPACE: _SPACE, op.CATEGORY_NOT_SPACE: _EVERY - _SPACE,
    op.CATEGORY_WORD: _WORD, op.CATEGORY_NOT_WORD: _EVERY - _WORD,
}  # fmt: skip

#: One character class with how often it may occur (least, most).
_Item = tuple[frozenset[int], int, int]


class PatternError(ValueError):
    """The expression is malformed or its cost is not bounded; the message says why and what to write instead."""


@lru_cache(maxsize=4096)
def compile_pattern(text: str) -> re.Pattern[bytes]:
    """Compile an expression for `fullmatch` on octets. Raises PatternError."""
    if len(text) > MAX_PATTERN:
        raise PatternError(f"the expression has {len(text)} characters; at most {MAX_PATTERN} are allowed")
    raw = text.encode()
    try:
        tree = parser.parse(raw)
        compiled = re.compile(raw)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"the expression {text!r} is malformed: {error}") from None
    fold = bool(tree.state.flags & re.IGNORECASE)
    for way in _ways(list(tree), fold, text):
        _check_way(way, text)
    return compiled


def _check_way(way: Sequence[_Item], text: str) -> None:
    """Refuse a second open-ended repeat that can give back characters to what follows it."""
    ambiguous = 0
    for index, (own, least, most) in enumerate(way):
        if most - least <= 1:
            continue
        for other, least_after, _ in way[index + 1 :]:
            if own & other:
                ambiguous += 1
                break
            if least_after:
                break
    if ambiguous > 1:
        raise PatternError(
            f"the expression {text!r} has {ambiguous} open-ended repeats that run into what follows them, which "
            "can take quadratic time or worse; end each with a character that it cannot match, as in '/[^/]+/'"
        )


def _ways(tree: Sequence[Any], fold: bool, text: str) -> list[tuple[_Item, ...]]:
    """Every way through the alternatives of a parsed expression, each a flat sequence of character classes."""
    ways: list[tuple[_Item, ...]] = [()]
    for code, argument in tree:
        tails = _tails(code, argument, fold, text)
        ways = [way + tail for way in ways for tail in tails]
        if len(ways) > MAX_WAYS:
            raise PatternError(f"the expression {text!r} has more than {MAX_WAYS} alternatives; write several matches")
    return ways


def _tails(code: Any, argument: Any, fold: bool, text: str) -> list[tuple[_Item, ...]]:
    if code is op.AT:
        return [()]
    if code is op.SUBPATTERN:
        _group, added, _removed, inner = argument
        return _ways(list(inner), fold or bool(added & re.IGNORECASE), text)
    if code is op.BRANCH:
        return [way for alternative in argument[1] for way in _ways(list(alternative), fold, text)]
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        least, most, body = argument
        return _repeated(least, int(most), body, fold, text)
    return [((_characters(code, argument, fold, text), 1, 1),)]


def _repeated(least: int, most: int, body: Any, fold: bool, text: str) -> list[tuple[_Item, ...]]:
    inner = list(body)
    while len(inner) == 1 and inner[0][0] is op.SUBPATTERN:
        inner = list(inner[0][1][3])
    if len(inner) == 1 and inner[0][0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
        characters = _characters(inner[0][0], inner[0][1], fold, text)
        if (least, most) == (0, 1):
            return [(), ((characters, 1, 1),)]
        return [((characters, least, most),)]
    if most > MAX_COPIES or most - least > 1:
        raise PatternError(
            f"the expression {text!r} repeats a group, which can take exponential time; repeat a character class, "
            f"or a group a fixed number of times (at most {MAX_COPIES})"
        )
    ways: list[tuple[_Item, ...]] = []
    for count in range(least, most + 1):
        ways += _ways(inner * count, fold, text)
    return ways


def _characters(code: Any, argument: Any, fold: bool, text: str) -> frozenset[int]:
    """The octets that a single-character item matches."""
    if code is op.LITERAL:
        found = frozenset((argument,))
    elif code is op.NOT_LITERAL:
        return _EVERY - _folded(frozenset((argument,)), fold)
    elif code is op.ANY:
        return _EVERY
    elif code is op.IN:
        found = frozenset()
        negated = False
        for kind, value in argument:
            if kind is op.NEGATE:
                negated = True
            elif kind is op.LITERAL:
                found |= {value}
            elif kind is op.RANGE:
                found |= frozenset(range(value[0], value[1] + 1))
            else:
                found |= _CATEGORIES[value]
        return _EVERY - _folded(found, fold) if negated else _folded(found, fold)
    else:
        raise PatternError(
            f"the expression {text!r} uses {str(code).lower()}, whose cost is not bounded (lookaround, "
            "backreferences and conditionals are refused)"
        )
    return _folded(found, fold)


def _folded(characters: frozenset[int], fold: bool) -> frozenset[int]:
    if not fold:
        return characters
    raw = bytes(characters)
    return characters | frozenset(raw.lower()) | frozenset(raw.upper())
