"""Bodies as texts: the replaceable texts of a whole body."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from egressproxy.ai.apis.message import MAX_COMMAS, MAX_PARTS, JsonMessage, TextPart
from egressproxy.ai.apis.shared import answer_view, operation, request_view, view_ahead
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.texts import Found, TextKind, TextRole, where
from egressproxy.ai.content.binary_text import finding_binary, may_be_binary
from egressproxy.ai.content.body_kinds import BodyKind
from egressproxy.ai.content.form_document import FormDocument, FormPart
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable, has_too_many_parts, loads_strictly
from egressproxy.model.work import Work, at_once

_JSON: Final = BodyKind.JSON  # faster than a lookup on the class
#: The most JSON values to skip without a pause.
_PASSED: Final = 1024
#: A text of a document, with its role, its kind, and its location `where`, for people. An `is_signed` text must not be
#: replaced.
BodyText: TypeAlias = "TextPart | _String | _TextDocument | FormPart"
#: A whole body: its `texts`, which may be replaced during the iteration, and the resulting `body` (`writing`: as
#: cooperative work), the same object if no text was replaced.
BodyTexts: TypeAlias = "JsonDocument | _LinesDocument | FormDocument | _TextDocument"


def reading_document(exchange: Exchange, body: bytes, kind: BodyKind, *, is_request: bool) -> Work[BodyTexts]:
    """The texts of a whole body, read as cooperative work. A body that looks like JSON is read as JSON, as servers do.
    Raises Unreadable.
    """
    if kind is _JSON:
        return (yield from _json_document(exchange, body, is_request))
    if kind is BodyKind.LINES:
        return (yield from _LinesDocument.reading(body))
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return (yield from _json_document(exchange, body, is_request))
        except Unreadable:
            if kind is BodyKind.UNKNOWN or b"\\u" in body:
                raise
    return (yield from FormDocument.reading(body)) if kind is BodyKind.FORM else _TextDocument(body)


def _json_document(exchange: Exchange, body: bytes, is_request: bool) -> Work[BodyTexts]:
    """The JSON document of a body. Member names matter only on the paths of AI providers."""
    is_ai = operation(exchange) is not None
    if is_request and is_ai and body[:1] == b"{":
        yield from view_ahead(exchange, body, is_request=True)
        return JsonDocument(request_view(exchange, body), True)
    if body.lstrip()[:1] != b"{" or (is_request and not is_ai):
        message = JsonMessage(body, (yield from JsonMessage.parsing(body)))
    else:
        yield from view_ahead(exchange, body, is_request=is_request)
        message = request_view(exchange, body) if is_request else answer_view(exchange, body)
    if not is_ai and type(message.value) is dict:
        is_ai = message.value.get("jsonrpc") == "2.0"
    return JsonDocument(message, is_ai)


class _String:
    """A JSON string or member name outside of the conversation."""

    __slots__ = ("_message", "is_signed", "path", "text")

    kind = TextKind.TEXT
    role = TextRole.NONE

    def __init__(self, message: JsonMessage, path: Path, text: str, *, is_name: bool) -> None:
        self._message = message
        self.path = path
        self.text = text
        self.is_signed = is_name

    @property
    def where(self) -> str:
        return where(self.path) or "the body"

    def replace(self, text: str) -> None:
        if self.is_signed:
            raise ValueError(f"{self.where} has a name that cannot be replaced")
        self._message.put(self.path, text)


@dataclass(slots=True, eq=False, repr=False)
class JsonDocument:
    """`is_ai`: a message of an AI provider or of MCP, in which some members hold binary data."""

    message: JsonMessage
    is_ai: bool
    _passed: int = 0  # values without a text of their own

    def texts(self) -> Iterator[BodyText]:
        """The texts of the conversation, if any; then all other strings and member names. An empty text marks a place
        to yield.
        """
        told: set[Path] = set()
        outer: dict[Path, str] = {}  # strings of JSON, such as arguments of calls
        if self.is_ai:
            for part in self.message.texts():
                found = part.found
                told.add(found.path)
                if found.inner:
                    outer.setdefault(found.path, "")
                elif found.path[-1] in ("arguments", "input") and "\\u" in found.text and _looks_like_json(found.text):
                    raise Unreadable(f"`{where(found.path)}` is no JSON that can be read here")
                yield part
        for path in outer:
            yield from self._inner_names(path)
        yield from self._strings(self.message.value, (), told)

    def _inner_names(self, path: Path) -> Iterator[BodyText]:
        """The names and long numbers in a string of JSON, beside its texts. Raises Unreadable."""
        text = self.message.at(path)
        value = loads_strictly(text)
        for inner, said, is_name in _names_and_numbers(value, ()):
            if is_name:
                yield _String(self.message, path, said, is_name=True)
            else:
                yield TextPart(self.message, Found(path, inner, TextRole.ASSISTANT, TextKind.ARGUMENTS, said))

    def _strings(self, value: Any, path: Path, told: set[Path]) -> Iterator[BodyText]:
        if type(value) is dict:
            for key, each in list(value.items()):
                yield _String(self.message, path, key, is_name=True)
                if self.is_ai and type(each) is str and may_be_binary(key, each):
                    is_binary = yield from self._meanwhile(finding_binary(key, each), path)
                    if is_binary:
                        continue
                yield from self._strings(each, (*path, key), told)
        elif type(value) is list:
            for index, each in enumerate(value):
                yield from self._strings(each, (*path, index), told)
        elif path in told:
            told.discard(path)  # each path occurs once; freed one at a time
        elif type(value) is str and value:
            if path:
                yield _String(self.message, path, value, is_name=False)
            else:
                raise Unreadable("it is a string alone")
        elif digits := _digits(value):
            # A replaced number becomes a string.
            yield _String(self.message, path, digits, is_name=False)
        self._passed += 1
        if self._passed % _PASSED == 0:
            yield _String(self.message, path, "", is_name=True)

    def _meanwhile(self, work: Work[bool], path: Path) -> Generator[BodyText, None, bool]:
        """The result of this work; an empty text marks each place to yield."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                return bool(end.value)
            yield _String(self.message, path, "", is_name=True)

    def writing(self) -> Work[bytes]:
        return self.message.writing()

    def body(self) -> bytes:
        return self.message.body()


def _digits(value: Any) -> str:
    """The digits of a long integer in any notation; "" for another value."""
    if type(value) is float and value.is_integer() and abs(value) < 2**63:
        value = int(value)
    return str(value) if type(value) is int and not -(10**8) < value < 10**8 else ""


def _names_and_numbers(value: Any, path: Path) -> Iterator[tuple[Path, str, bool]]:
    """The member names and long numbers of a value: path, text, and whether it is a name."""
    if type(value) is dict:
        for key, each in value.items():
            yield path, key, True
            yield from _names_and_numbers(each, (*path, key))
    elif type(value) is list:
        for index, each in enumerate(value):
            if type(each) is not str:
                yield from _names_and_numbers(each, (*path, index))
    elif digits := _digits(value):
        yield path, digits, False


def _looks_like_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


class _TextDocument:
    """A body that is one text."""

    __slots__ = ("_body", "text")

    is_signed = False
    kind = TextKind.TEXT
    role = TextRole.NONE
    where = "the body"

    def __init__(self, body: bytes) -> None:
        self._body = body
        try:
            self.text = body.decode()
        except UnicodeDecodeError as error:
            raise Unreadable(f"it is not UTF-8, at byte {error.start}") from None
        if "\0" in self.text:  # UTF-16 looks like UTF-8 with NUL, and Python's `json.loads` reads it
            raise Unreadable("it has NUL characters: it is no text, or not UTF-8")

    def texts(self) -> Iterator[BodyText]:
        yield self

    def replace(self, text: str) -> None:
        self.text = text
        self._body = text.encode()

    def writing(self) -> Work[bytes]:
        yield
        return self._body

    def body(self) -> bytes:
        return self._body


class _LinesDocument:
    """A JSON text on each line."""

    __slots__ = ("_lines",)

    def __init__(self, lines: list[JsonDocument | bytes]) -> None:
        self._lines = lines

    @classmethod
    def reading(cls, body: bytes) -> Work[_LinesDocument]:
        """The document of this body. Raises Unreadable."""
        if body.count(b"\n") > MAX_PARTS or has_too_many_parts(body, MAX_PARTS, MAX_COMMAS):
            raise Unreadable("it has too many parts to be read here")
        lines: list[JsonDocument | bytes] = []
        for line in body.split(b"\n"):
            if line.strip():
                lines.append(JsonDocument(JsonMessage(line, (yield from JsonMessage.parsing(line))), False))
                yield
            else:
                lines.append(line)
                yield
        return cls(lines)

    def texts(self) -> Iterator[BodyText]:
        for line in self._lines:
            if isinstance(line, JsonDocument):
                yield from line.texts()

    def writing(self) -> Work[bytes]:
        made = []
        for line in self._lines:
            made.append((yield from line.writing()) if isinstance(line, JsonDocument) else line)
            yield
        return b"\n".join(made)

    def body(self) -> bytes:
        return at_once(self.writing())
