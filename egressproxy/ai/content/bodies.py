"""Bodies as texts: the kind of a body, and the replaceable texts of a whole body."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias
from urllib.parse import quote_plus, unquote_to_bytes

from egressproxy.ai.apis.message import MAX_COMMAS, MAX_PARTS, JsonMessage, TextPart
from egressproxy.ai.apis.shared import answer_view, operation, request_view, view_ahead
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.texts import Found, TextKind, TextRole, where
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields, finder
from egressproxy.model.strict_json import Unreadable, has_too_many_parts, loads_strictly
from egressproxy.model.work import Work, at_once


class BodyKind(Enum):
    """The format of the texts in a body."""

    JSON = "json"
    LINES = "lines"  # of JSON
    TEXT = "text"
    FORM = "form"
    EVENTS = "events"  # a stream whose framing an editor of streams knows
    UNKNOWN = "unknown"  # no Content-Type
    OTHER = "other"  # without readable texts


_JSON: Final = BodyKind.JSON  # faster than a lookup on the class
_KINDS: Final = {
    b"": BodyKind.UNKNOWN,
    b"application/json": BodyKind.JSON,
    b"application/x-www-form-urlencoded": BodyKind.FORM,
    **dict.fromkeys((b"application/x-ndjson", b"application/jsonl", b"application/x-jsonlines"), BodyKind.LINES),
    **dict.fromkeys((b"text/event-stream", b"application/vnd.amazon.eventstream"), BodyKind.EVENTS),
    **dict.fromkeys((b"application/xml", b"application/javascript", b"application/yaml"), BodyKind.TEXT),
    b"application/graphql": BodyKind.TEXT,
}
#: Messages in envelopes, which may be compressed or in base64, with any suffix after the plus sign.
_ENVELOPES: Final = (b"application/grpc", b"application/connect+")
_content_types: Final = finder(b"content-type").findall
#: The most names and values of a form together.
MAX_FORM_PARTS: Final = 50_000
#: The most JSON values to skip without a pause.
_PASSED: Final = 1024
#: The most bytes of a name or value to decode without a pause.
_DECODED: Final = 16 * 1024
_CHARSET = re.compile(rb';\s*charset\s*=\s*"?([^\s";,]*)', re.IGNORECASE)
_READ_CHARSETS: Final = frozenset((b"", b"utf-8", b"utf8", b"us-ascii", b"ascii"))


#: A text of a document, with its role, its kind, and its location `where`, for people. An `is_signed` text must not be
#: replaced.
BodyText: TypeAlias = "TextPart | _String | _TextDocument | _FormPart"
#: A whole body: its `texts`, which may be replaced during the iteration, and the resulting `body` (`writing`: as
#: cooperative work), the same object if no text was replaced.
BodyTexts: TypeAlias = "JsonDocument | _LinesDocument | FormDocument | _TextDocument"


def media_type_of(fields: Fields) -> bytes:
    """The type of Content-Type, in lower case, without parameters; b"" for none, b"?" for several lines."""
    return type_and_kind_of(fields)[0]


def kind_of(fields: Fields) -> BodyKind:
    """The kind of a body, by its Content-Type. Text in an unsupported charset is OTHER."""
    return type_and_kind_of(fields)[1]


def type_and_kind_of(fields: Fields) -> tuple[bytes, BodyKind]:
    """`media_type_of` and `kind_of` together."""
    lines = tuple(_content_types(fields.block))
    return _known_types.get(lines) or _type_of_lines(lines)


def _type_of_lines(lines: tuple[bytes, ...]) -> tuple[bytes, BodyKind]:
    if len(lines) != 1:
        return (b"?", BodyKind.OTHER) if lines else (b"", BodyKind.UNKNOWN)
    known = _kind_of_line(lines[0])
    if len(lines[0]) <= _MAX_KNOWN:
        if len(_known_types) >= _MAX_TYPES:
            _known_types.clear()
        _known_types[lines] = known
    return known


def _kind_of_line(line: bytes) -> tuple[bytes, BodyKind]:
    media_type = line.partition(b";")[0].strip().lower()
    charset = _CHARSET.search(line)
    is_read = charset is None or charset[1].lower() in _READ_CHARSETS
    kind = _KINDS.get(media_type, BodyKind.OTHER)
    if media_type and (not is_read or media_type.startswith(_ENVELOPES)):
        kind = BodyKind.OTHER
    elif media_type not in _KINDS and media_type.endswith(b"+json"):
        kind = BodyKind.JSON
    elif media_type not in _KINDS and (media_type.startswith(b"text/") or media_type.endswith(b"+xml")):
        kind = BodyKind.TEXT
    return media_type, kind


#: A cache for frequent values: the most entries, and the most bytes of an entry.
_known_types: Final[dict[tuple[bytes, ...], tuple[bytes, BodyKind]]] = {}
_MAX_TYPES: Final = 256
_MAX_KNOWN: Final = 128


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


#: Members that hold binary data in messages of AI providers.
_BINARY: Final = frozenset(
    (
        "b64_json",
        "bytes",
        "data",
        "encrypted_content",
        "file_data",
        "signature",
        "thoughtSignature",
        "thought_signature",
    )
)
#: The alphabets of RFC 4648 sections 4 and 5. A string with blanks or long numbers is text, not base64.
_ALPHABETS: Final = (re.compile(r"[0-9A-Za-z+/\r\n]*"), re.compile(r"[0-9A-Za-z_\r\n-]*"))
_LONG_NUMBER = re.compile(r"[0-9-]{13}")
_OVERLAP: Final = 12
#: The most characters of base64 to check without a pause, and the most before the end of `;base64,` in a data URL.
_LOOKED_AT: Final = 32 * 1024
_DATA_HEAD: Final = 107
_MIN_BINARY: Final = 64


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


def may_be_binary(key: str, text: str) -> bool:
    """Whether the beginning of a string alone does not rule out binary data."""
    return key in _BINARY or text.startswith("data:")


def finding_binary(key: str, text: str) -> Work[bool]:
    """Whether a string in a conversation, the member `key`, is base64 such as an image, as cooperative work."""
    begin = 0
    if key in _BINARY:
        if len(text) < _MIN_BINARY:
            return False
    else:
        mark = text.find(";base64,", 0, _DATA_HEAD) if text.startswith("data:") else -1
        if mark < 0 or " " in text[:mark]:
            return False
        begin = mark + len(";base64,")
    end = len(text.rstrip("\r\n="))
    alphabets: tuple[re.Pattern[str], ...] = _ALPHABETS
    for start in range(begin, end, _LOOKED_AT):
        yield
        piece = text[max(begin, start - _OVERLAP) : min(start + _LOOKED_AT, end)]
        alphabets = tuple(each for each in alphabets if each.fullmatch(piece) is not None)
        if not alphabets or _LONG_NUMBER.search(piece) is not None:
            return False
    return begin < end


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


class FormDocument:
    """`name=value&…` of a form or query. Names and values are texts; all other bytes stay unchanged."""

    __slots__ = ("_body", "_changed", "_parts")

    def __init__(self, body: bytes, parts: list[_FormPart]) -> None:
        self._body = body
        self._parts = parts
        self._changed: dict[int, tuple[int, bytes]] = {}  # start -> end, replacement

    @classmethod
    def reading(cls, body: bytes) -> Work[FormDocument]:
        """The document of this body or query. Raises Unreadable."""
        if b"\0" in body:
            raise Unreadable("it has NUL characters: it is no form, or not UTF-8")
        if body.count(b"&") + body.count(b";") + body.count(b"=") > MAX_FORM_PARTS:
            raise Unreadable(f"it has more than {MAX_FORM_PARTS} names and values")
        document = cls(body, [])
        for begin, end in _between_marks(body):
            text = yield from _decoded(body[begin:end])
            document._parts.append(_FormPart(document, begin, end, text))
            yield
        return document

    def texts(self) -> Iterator[BodyText]:
        """Each name and each value, decoded."""
        return iter(self._parts)

    def put(self, begin: int, end: int, text: str) -> None:
        """Replace the name or value at this range."""
        self._changed[begin] = end, quote_plus(text).encode()

    def writing(self) -> Work[bytes]:
        """`body` as cooperative work."""
        if not self._changed:
            return self._body
        pieces, done = list[bytes](), 0
        for begin, (end, written) in sorted(self._changed.items()):
            pieces += (self._body[done:begin], written)
            done = end
            yield
        return b"".join((*pieces, self._body[done:]))

    def body(self) -> bytes:
        return at_once(self.writing())


def _between_marks(body: bytes) -> Iterator[tuple[int, int]]:
    """The start and end of each non-empty name and value of a form."""
    at, size = 0, len(body)
    following = dict.fromkeys(b"&;=", -1)  # the next position of each mark
    while at < size:
        for mark, found in following.items():
            if found < at:
                found = body.find(mark, at)
                following[mark] = size if found < 0 else found
        end = min(following.values())
        if end > at:
            yield at, end
        at = end + 1


def _decoded(piece: bytes) -> Work[str]:
    if b"%" in piece or b"+" in piece:
        made, at = list[bytes](), 0
        while at < len(piece):
            end = at + _DECODED
            if b"%" in piece[end - 2 : end]:
                end -= 2 if piece[end - 2 : end - 1] == b"%" else 1
            made.append(unquote_to_bytes(piece[at:end].replace(b"+", b" ")))
            at = end
            yield
        piece = b"".join(made)
    return piece.decode("utf-8", "replace")


@dataclass(slots=True, eq=False, repr=False)
class _FormPart:
    _document: FormDocument
    _begin: int
    _end: int
    text: str

    is_signed = False
    kind = TextKind.TEXT
    role = TextRole.NONE
    where = "a form or query"

    def replace(self, text: str) -> None:
        self._document.put(self._begin, self._end, text)
