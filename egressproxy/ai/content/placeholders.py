"""Placeholders: what stands for a value on the way to a backend, and is put back on the way to the client.

`<EMAIL_1>` is the first address of one exchange, wherever that says it again. Numbers that the client itself has
written are passed over, so that its own text is never taken for a placeholder; that of another exchange is only text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from egressproxy.model.work import Work

#: Characters of a name: an entity of at most 32, and a number.
_MAX_NAME: Final = 48
_NAME: Final = rf"[A-Z][A-Z0-9_]{{0,{_MAX_NAME}}}"
#: As it was written; as HTML; and, inside of JSON, as some libraries write the brackets.
_PLAIN = re.compile(rf"<({_NAME})>|&lt;({_NAME})&gt;")
_ESCAPED = re.compile(rf"(?:<|(?<!\\)\\u003[cC])({_NAME})(?:>|\\u003[eE])|&lt;({_NAME})&gt;")
_OPEN = re.compile(rf"(?:<{_NAME}|<|&(?:l(?:t(?:;(?:{_NAME}(?:&(?:g(?:t)?)?)?)?)?)?)?)\Z")
_OPEN_ESCAPED = re.compile(
    rf"(?:(?:<|(?<!\\)\\u003[cC])(?:{_NAME})?(?:\\(?:u(?:0(?:0(?:3)?)?)?)?)?|(?<!\\)\\{{1,64}}(?:u(?:0(?:0(?:3)?)?)?)?"
    rf"|&(?:l(?:t(?:;(?:{_NAME}(?:&(?:g(?:t)?)?)?)?)?)?)?)\Z"
)
#: Placeholders of an entity, or escapes of ASCII, that are read of a client. If it writes more, ours begin at _FAR.
_MAX_WRITTEN: Final = 10_000
_FAR: Final = 1_000_000_000
#: Bytes that are looked at in one go, and those of the longest placeholder: it has escapes alone.
_LOOKED_AT: Final = 64 * 1024
_LONGEST: Final = 6 * _MAX_NAME
_ESCAPED_ASCII = re.compile(rb"\\u00([2-7][0-9A-Fa-f])")


class Placeholders:
    """Those of one exchange. `values` are the values by name, without brackets."""

    __slots__ = ("_names", "_numbers", "values")

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}  # the last one of each entity

    def avoiding(self, written: bytes, entities: Iterable[str]) -> Work[None]:
        """Begin with these entities behind the numbers that the client has written here, be it escaped as JSON."""
        escapes, read = 0, dict.fromkeys(entities, 0)
        for begin in range(0, len(written), _LOOKED_AT):
            yield
            piece = written[begin : begin + _LOOKED_AT + _LONGEST]
            if b"\\u00" in piece:
                escapes += piece.count(b"\\u00")
                if escapes > _MAX_WRITTEN:
                    self._numbers.update(dict.fromkeys(entities, _FAR))
                    return
                piece = _ESCAPED_ASCII.sub(lambda match: bytes((int(match[1], 16),)), piece)
            for entity in entities:
                name = entity.encode() + b"_"
                if name not in piece or read[entity] > _MAX_WRITTEN:
                    continue
                last = self._numbers.get(entity, 0)
                for match in re.finditer(name + rb"([0-9]{1,9})", piece):
                    read[entity] += 1
                    if read[entity] > _MAX_WRITTEN:
                        last = _FAR
                        break
                    last = max(last, int(match[1]))
                self._numbers[entity] = last

    def name(self, entity: str, value: str) -> str:
        """The placeholder of this value, with brackets."""
        key = (entity, value)
        if key not in self._names:
            number = self._numbers.get(entity, 0) + 1
            self._numbers[entity] = number
            self._names[key] = f"{entity}_{number}"
            self.values[self._names[key]] = value
        return f"<{self._names[key]}>"

    def restored(self, text: str) -> str:
        """The text with the values of this exchange; the same object if it has no placeholder."""
        if "<" not in text and "&lt;" not in text:
            return text
        return _PLAIN.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        return self.values.get(match[1] or match[2], match[0])


class Restorer:
    """Puts values back into a text that comes in pieces: a TextFunction. `has_escapes`: it is the inside of JSON."""

    __slots__ = ("_has_escapes", "_held", "_open", "_pattern", "_values")

    def __init__(self, placeholders: Placeholders, *, has_escapes: bool = False) -> None:
        self._values = placeholders.values
        self._has_escapes = has_escapes
        self._pattern, self._open = (_ESCAPED, _OPEN_ESCAPED) if has_escapes else (_PLAIN, _OPEN)
        self._held = ""

    def feed(self, text: str) -> str:
        """What can go out; what may be the beginning of a placeholder is held back."""
        text = self._held + text if self._held else text
        if "<" not in text and "&" not in text and not (self._has_escapes and "\\" in text):
            self._held = ""
            return text
        match = self._open.search(text, max(0, len(text) - 2 * _MAX_NAME))
        cut = len(text) if match is None else match.start()
        self._held = text[cut:]
        return self._pattern.sub(self._value, text[:cut])

    def flush(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._pattern.sub(self._value, held)

    def _value(self, match: re.Match[str]) -> str:
        value = self._values.get(match[1] or match[2])
        if value is None:
            return match[0]
        return json.dumps(value, ensure_ascii=False)[1:-1] if self._has_escapes else value
