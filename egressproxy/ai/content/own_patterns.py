"""OwnPatterns: expressions of the operator's, for google-re2: their time is linear in the text.

A match begins where the expression matches the next `max_length` characters, and takes no more: so a stream holds back
that many, and the result does not depend on where it was cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

from egressproxy.ai.content.spans import Detector, Span
from egressproxy.filters.settings import Checked, Within
from egressproxy.ir.policy import FieldFault

#: The name of a rule of the operator's, which stands in metrics and messages as it is written.
RuleName = Annotated[str, Within(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]

#: Bytes of memory for the automaton of one expression.
_MAX_MEMORY: Final = 8 << 20
_MAX_PATTERN: Final = 2048
#: Parts of an expression: an escape, a class, or a character.
_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|.", re.DOTALL)
#: Parts that match no character, and depend on what stands around them.
_ASSERTIONS: Final = frozenset(("^", "$", r"\b", r"\B", r"\A", r"\z"))


def check_names(names: Iterable[str], others: Iterable[str]) -> None:
    """Raises FieldFault (at `deny[N].name`) for a name that another rule, or one of `others`, has in any case."""
    taken = {name.casefold(): name for name in others}
    for index, name in enumerate(names):
        other = taken.get(name.casefold())
        if other is not None:
            why = f"`deny` has a rule {name}, and {other} is another rule: metrics would not tell them apart"
            raise FieldFault(why, "deny", index, "name")
        taken[name.casefold()] = name


def _checked(text: str) -> str:
    compiled(text)
    return text


#: In a config: an expression, which is compiled where the configuration is read.
Expression = Annotated[str, Within(min_length=1), Checked(_checked)]


def compiled(text: str, *, ignores_case: bool = False, max_length: int = _MAX_PATTERN) -> Any:
    """An RE2 expression for text, of at most `max_length` characters (0: any number). Raises ValueError."""
    if 0 < max_length < len(text):
        raise ValueError(f"the expression has {len(text)} characters; at most {max_length} are allowed")
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    options.never_capture = True
    options.case_sensitive = not ignores_case
    try:
        expression = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0]
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        raise ValueError(f"{text!r} is not an expression of RE2: {reason}") from None
    if expression.search("") is not None:
        raise ValueError(f"{text!r} matches the empty text, which is everywhere: ask for one character at least")
    return expression


class _OwnPattern:
    __slots__ = ("_entity", "_expression", "_max_length")

    def __init__(self, entity: str, text: str, max_length: int) -> None:
        self._entity = entity
        self._expression = compiled(text)
        self._max_length = max_length

    def find(self, text: str, start: int, found: list[Span]) -> None:
        longest = self._max_length
        search = self._expression.search
        block, length = start, len(text)
        while block < length:
            # Slices, because the library encodes the whole of what it is given at every call.
            before = max(0, block - 1)
            piece = _encodable(text[before : block + 2 * longest + 1])
            at, end_of_block = block - before, min(longest, length - block) + block - before
            while at < end_of_block:
                match = search(piece, at)
                if match is None or match.start() >= end_of_block:
                    break
                begin, end = match.span()
                if end - begin > longest:
                    match = self._expression.match(piece, begin, begin + longest)
                    end = begin if match is None else match.end()
                if end > begin:
                    found.append(Span(before + begin, before + end, self._entity, before + begin))
                at = begin + 1
            block += longest


class OwnPatterns(Detector):
    """`patterns`: entity, expression, and the longest match in characters. Raises ValueError as `compiled`."""

    __slots__ = ("_longest", "_patterns", "glance")

    stays_in_strings = False

    def __init__(self, patterns: Sequence[tuple[str, str, int]]) -> None:
        self._patterns = [_OwnPattern(*pattern) for pattern in patterns]
        self._longest = max(longest for _, _, longest in patterns)
        self.glance = Glance.of([(text, False) for _, text, _ in patterns])

    def find(self, text: str, start: int, found: list[Span]) -> None:
        if self.glance is not None and not self.glance(text[start:] if start else text):
            return
        for pattern in self._patterns:
            pattern.find(text, start, found)

    def open_end(self, text: str, tail: str) -> int:
        return min(len(text), self._longest)


class Glance:
    """Whether any of several expressions may match in a text: one search for all of them, and nearly always no.

    The search leaves out assertions (`^`, `\\b`). A match in a part of a text is then found in the whole text, so that
    many texts may be searched as one.
    """

    __slots__ = ("_search",)

    def __init__(self, expression: str) -> None:
        self._search = compiled(expression, max_length=0).search

    @classmethod
    def of(cls, expressions: Sequence[tuple[str, bool]]) -> Glance | None:
        """For these expressions of RE2, each with whether it ignores case. None where they cannot be joined."""
        try:
            freed = [(_without_assertions(text), ignores_case) for text, ignores_case in expressions]
            return cls("|".join(f"(?{'i' if ignores_case else ''}:{text})" for text, ignores_case in freed))
        except ValueError:  # two groups of one name, or nothing is left
            return None

    def __call__(self, text: str) -> bool:
        """Whether an expression may match in this folded text, or in a part of it."""
        try:
            return self._search(text.encode()) is not None
        except UnicodeEncodeError:
            return self._search(_encodable(text).encode()) is not None


def searched_in(expression: Any, text: str) -> bool:
    """Whether an expression matches somewhere in a text, be there half a surrogate pair or not."""
    return expression.search(_encodable(text)) is not None


def _without_assertions(expression: str) -> str:
    """An expression that matches whatever this one does, wherever that stands. Raises ValueError for `\\Q`."""
    if r"\Q" in expression:
        raise ValueError("it has a quotation")
    return "".join("(?:)" if part in _ASSERTIONS else part for part in _PART.findall(expression))


def _encodable(text: str) -> str:
    """Half a surrogate pair, which JSON may hold, is no character that can be encoded: another stands for it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text
