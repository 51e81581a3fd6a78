"""TextEditor: a body of text in pieces of bytes, for a function of text; as StreamEditor does it for events."""

from __future__ import annotations

from codecs import getincrementaldecoder

from egressproxy.ai_apis.streams import TextFunction
from egressproxy.ai_apis.strict_json import Unreadable

__all__ = ["Chained", "TextEditor"]

_DECODER = getincrementaldecoder("utf-8")


class TextEditor:
    """Edits one body of text in UTF-8, cut anywhere. Raises Unreadable for other bytes."""

    __slots__ = ("_decode", "_function")

    def __init__(self, function: TextFunction) -> None:
        self._decode = _DECODER().decode
        self._function = function

    def feed(self, data: bytes) -> bytes:
        """What is sent for these bytes."""
        return self._function.feed(self._text(data, False)).encode()

    def end(self) -> bytes:
        """The body is over: what is left of it."""
        return (self._function.feed(self._text(b"", True)) + self._function.flush()).encode()

    def _text(self, data: bytes, last: bool) -> str:
        try:
            return self._decode(data, last)
        except UnicodeDecodeError:
            raise Unreadable("it is not UTF-8") from None


class Chained:
    """One function of text behind another."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: TextFunction, second: TextFunction) -> None:
        self._first = first
        self._second = second

    def feed(self, text: str) -> str:
        """As TextFunction."""
        return self._second.feed(self._first.feed(text))

    def flush(self) -> str:
        """As TextFunction."""
        return self._second.feed(self._first.flush()) + self._second.flush()
