"""OwnPattern: an expression of the operator's, for google-re2: its time is linear in the text.

A match begins where the expression matches the next `max_length` characters, and takes no more: so a stream holds back
that many, and the result does not depend on where it was cut.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.filters.content.spans import Detector, Span

__all__ = ["OwnPattern", "compiled", "searched_in"]

#: Bytes of memory for the automaton of one expression.
_MAX_MEMORY: Final = 8 << 20
_MAX_PATTERN: Final = 2048


def compiled(text: str, *, ignores_case: bool = False) -> Any:
    """An RE2 expression for text (Unicode). Raises ValueError with what is wrong."""
    if len(text) > _MAX_PATTERN:
        raise ValueError(f"the expression has {len(text)} characters; at most {_MAX_PATTERN} are allowed")
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


class OwnPattern(Detector):
    """Raises ValueError for an expression that RE2 does not take, or that matches nothing at all."""

    __slots__ = ("_entity", "_expression", "_max_length")

    def __init__(self, entity: str, text: str, max_length: int) -> None:
        self._entity = entity
        self._expression = compiled(text)
        self._max_length = max_length

    def find(self, text: str, start: int, found: list[Span]) -> None:
        """As `Detector.find`."""
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

    def open_end(self, text: str, tail: str) -> int:
        """As `Detector.open_end`: a match may begin at each of the last characters."""
        return min(len(text), self._max_length)


def searched_in(expression: Any, text: str) -> bool:
    """Whether an expression matches somewhere in a text, be there half a surrogate pair or not."""
    return expression.search(_encodable(text)) is not None


def _encodable(text: str) -> str:
    """Half a surrogate pair, which JSON may hold, is no character that can be encoded: another stands for it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text
