"""FormDocument: the replaceable texts of a form or query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus, unquote_to_bytes

from egressproxy.ai.apis.texts import TextKind, TextRole
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work, at_once

#: The most names and values of a form together.
MAX_FORM_PARTS: Final = 50_000
#: The most bytes of a name or value to decode without a pause.
_DECODED: Final = 16 * 1024


class FormDocument:
    """`name=value&…` of a form or query. Names and values are texts; all other bytes stay unchanged."""

    __slots__ = ("_body", "_changed", "_parts")

    def __init__(self, body: bytes, parts: list[FormPart]) -> None:
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
            document._parts.append(FormPart(document, begin, end, text))
            yield
        return document

    def texts(self) -> Iterator[FormPart]:
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
class FormPart:
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
