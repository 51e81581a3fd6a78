"""Spans: where a text says what is looked for, and the same for text that comes in pieces.

Whether a match begins at a character depends on a bounded number of characters before and behind it, so a stream holds
back as much and no more, and what is found is the same however the text is cut.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from egressproxy.ai.content.folding import Folder

#: Folded characters before a place that detectors may look at.
_CONTEXT: Final = 4
_start: Final = itemgetter(0)
_UNESCAPED = re.compile(r"\\.", re.DOTALL)
#: Characters at the end that every detector gets, backwards, to see whether something may begin there.
TAIL: Final = 320

#: Where so many characters are undecided, a stream waits for as many more as this before it looks again; and for a
#: quarter of them where these are more, so that a long run is not looked at more than a few times.
_LONG: Final = 96
_STEP: Final = 64


class Span(NamedTuple):
    """`text[start:end]` is an `entity`, or the rest of one that began at `began`, inside of the span before."""

    start: int
    end: int
    entity: str
    began: int


#: What stands instead of a value: called with the entity and the value as it came.
Replace = Callable[[str, str], str]


class Detector(ABC):
    """Finds entities of one family in folded text, also inside of what it has found. Keeps nothing between calls."""

    __slots__ = ()

    #: Characters of which at least one is in whatever it finds, as the inside of a class of `re`; "": it cannot tell.
    needs: str = ""
    #: Whether control characters part what it finds, as the end of a text does.
    stays_in_strings: bool = True

    @abstractmethod
    def find(self, text: str, start: int, found: list[Span]) -> None:
        """Append what begins at `start` or later, as if the text ended where it ends. Characters before are context."""

    @abstractmethod
    def open_end(self, text: str, tail: str) -> int:
        """How many characters at the end are undecided. `tail`: the end backwards, at most TAIL characters."""


class Scanner:
    """Several detectors. `sees_digits`: numbers are among what they find; `stays_in_strings`: as Detector, of all.

    Where spans overlap, the one that begins first has the characters. If several begin at one place, the longest has
    them. Of equally long ones, that of the first detector has them. What is left of another one stays a span.
    """

    __slots__ = ("_detectors", "_needed", "escaped", "plain", "sees_digits", "stays_in_strings")

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._detectors = tuple(detectors)
        needs = [detector.needs for detector in detectors]
        #: Finds a character that something may be found at; anything where nothing is known of some detector.
        self._needed = re.compile(f"[{''.join(needs)}]" if needs and all(needs) else "").search
        self.sees_digits = any("0-9" in each for each in needs)
        self.stays_in_strings = all(detector.stays_in_strings for detector in detectors)
        self.plain = Folder()
        self.escaped = Folder(has_escapes=True)

    def spans(self, text: str, folder: Folder | None = None) -> list[Span]:
        """What a whole text says, in order, without overlaps."""
        if folder is None and text.isascii():
            return self.scan(text, 0, [])  # nothing is folded
        folded, index = (folder or self.plain).fold(text)
        found = self.scan(folded, 0, [])
        if index is None:
            return found
        return [Span(index[s], index[e], entity, index[began]) for s, e, entity, began in found]

    def replaced(self, text: str, replace: Replace) -> str:
        """The text with every span replaced; the same object if there is none."""
        found = self.spans(text)
        return replaced(text, found, replace) if found else text

    def stream(self, replace: Replace, *, has_escapes: bool = False) -> TextStream:
        """For a text that comes in pieces; `has_escapes`: it is JSON as it is written."""
        return EscapedTextStream(self, self.escaped, replace) if has_escapes else TextStream(self, self.plain, replace)

    def scan(self, folded: str, start: int, kept: list[Span]) -> list[Span]:
        """The spans of folded text from `start`; what came before is context, and `kept` began there."""
        if self._needed(folded, start) is None:
            return kept  # detectors look at folded text, and each asks for one of these characters
        found: list[Span] = []
        for detector in self._detectors:
            detector.find(folded, start, found)
        return found if not kept and len(found) < 2 else apart(found, start, kept)

    def open_end(self, folded: str) -> int:
        """How many characters at the end are not decided yet."""
        tail = folded[: -TAIL - 1 : -1]
        longest = 0
        for detector in self._detectors:
            length = detector.open_end(folded, tail)
            if length > longest:
                longest = length
        return longest


def apart(found: list[Span], start: int, kept: list[Span]) -> list[Span]:
    """`kept`, and behind it what `found` has besides: in order, without overlaps, from `start`. See Scanner."""
    at = kept[-1].end if kept else start
    found.sort(key=_start)
    end = at
    for span in found:
        if span[0] < end:
            break
        end = span[1]
    else:  # no two begin at one place, and nothing has to be cut
        kept += found
        return kept
    found.sort(key=lambda span: (span[0], -span[1]))  # stable: the order of the detectors decides the rest
    for span in found:
        begin, end, entity, _ = span
        if end > at:
            kept.append(span if begin >= at else Span(at, end, entity, begin))
            at = end
    return kept


def replaced(text: str, found: list[Span], replace: Replace) -> str:
    """The text with these spans, which are in order, replaced."""
    parts: list[str] = []
    at = 0
    for start, end, entity, _ in found:
        parts += (text[at:start], replace(entity, text[start:end]))
        at = end
    parts.append(text[at:])
    return "".join(parts)


class SpanStream:
    """A text that comes in pieces: what is in it, as far as that is decided; an undecided end is held back."""

    __slots__ = ("_begun", "_context", "_enough", "_folder", "_held", "_scanner")

    def __init__(self, scanner: Scanner, folder: Folder) -> None:
        self._scanner = scanner
        self._folder = folder
        self._context = ""  # folded
        self._held = ""
        self._enough = 0  # characters, held ones included, before which nothing is looked at
        self._begun: list[Span] = []  # at the beginning of what is held: spans that began in what was sent

    def take(self, text: str, last: bool) -> tuple[str, list[Span]]:
        """Take a piece, "" too; returns the text that is decided now (with `last` all of it), and the spans in it."""
        text = self._held + text if self._held else text
        if not text:
            return "", []
        if len(text) < self._enough and not last:
            self._held = text
            return "", []
        self._enough = 0
        folder, context = self._folder, self._context
        unsettled = 0 if last else folder.open_end(text)
        folded, index = folder.fold(text[:-unsettled] if unsettled else text)
        before = len(context)
        whole = context + folded if before else folded
        end = len(whole)
        if not last:
            end -= self._scanner.open_end(whole)
            cut = 0 if end <= before else end - before if index is None else index[end - before]
            held = len(text) - cut
            step = 0 if held < _LONG else max(_STEP, held >> 2)
            if end <= before or cut < step:
                self._held = text
                if step:  # a run without an end: it is not looked at anew for each character
                    self._enough = len(text) + step - cut
                return "", []
        found = self._scanner.scan(whole, before, self._begun)
        if not last:
            for span in found:
                if span.end > end:
                    end = min(end, span.start)
                    break
        cut = end - before if index is None else index[end - before]
        self._held = text[cut:]
        self._context = whole[max(0, end - _CONTEXT) : end]
        if not found:
            return text[:cut], found
        shift = end - len(self._context)
        self._begun = [
            Span(s - shift, e - shift, entity, began - shift) for s, e, entity, began in found if began < end <= s
        ]
        if index is None:
            spans = [Span(s - before, e - before, entity, 0) for s, e, entity, _ in found if s < end]
        else:
            spans = [Span(index[s - before], index[e - before], entity, 0) for s, e, entity, _ in found if s < end]
        return text[:cut], spans


class TextStream(SpanStream):
    """A TextFunction: what is fed goes out with every span replaced."""

    __slots__ = ("_replace",)

    def __init__(self, scanner: Scanner, folder: Folder, replace: Replace) -> None:
        super().__init__(scanner, folder)
        self._replace = replace

    def feed(self, text: str, last: bool = False) -> str:
        """Take a piece and return what can go out now; with `last` all of it. Raises what `replace` raises."""
        text, found = self.take(text, last)
        return replaced(text, found, self._replace) if found else text

    def flush(self) -> str:
        return self.feed("", last=True)


class EscapedTextStream(TextStream):
    """A TextStream of JSON as it is written: what stands instead of a number is a string."""

    __slots__ = ("_is_in_string",)

    def __init__(self, scanner: Scanner, folder: Folder, replace: Replace) -> None:
        super().__init__(scanner, folder, replace)
        self._is_in_string = False

    def feed(self, text: str, last: bool = False) -> str:
        text, found = self.take(text, last)
        parts: list[str] = []
        at = 0
        for start, end, entity, _ in found:
            parts.append(self._passed(text[at:start]))
            value = text[start:end]
            made = self._replace(entity, value)
            parts.append(made if self._is_in_string or made == value else f'"{made}"')
            at = end
        parts.append(self._passed(text[at:]))
        return "".join(parts)

    def _passed(self, text: str) -> str:
        if '"' in text:
            marks = text.count('"') if "\\" not in text else _UNESCAPED.sub("", text).count('"')
            self._is_in_string ^= marks % 2 == 1
        return text
