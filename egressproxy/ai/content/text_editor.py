"""TextEditor: edits a body of text that comes in pieces of bytes; as StreamEditor does it for events."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass

from egressproxy.ai.apis.streams import SLICE, TextFunction
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work

_DECODER = getincrementaldecoder("utf-8")


class TextEditor:
    """Edits text in UTF-8, cut anywhere. Raises Unreadable for other bytes; `is_lenient`: they and the rest pass."""

    __slots__ = ("_decoder", "_function", "_is_broken", "_is_lenient")

    def __init__(self, function: TextFunction, *, is_lenient: bool = False) -> None:
        self._decoder = _DECODER()
        self._function = function
        self._is_lenient = is_lenient
        self._is_broken = False

    def feed(self, data: bytes) -> bytes:
        if self._is_broken:
            return data
        half = self._decoder.getstate()[0] if self._is_lenient else b""
        try:
            return self._function.feed(self._text(data, False)).encode()
        except Unreadable:
            if not self._is_lenient:
                raise
            self._is_broken = True
            return self._function.flush().encode() + half + data

    def feeding(self, data: bytes) -> Work[bytes]:
        """`feed` in turns."""
        made = []
        for begin in range(0, len(data), SLICE):
            made.append(self.feed(data[begin : begin + SLICE]))
            yield
        return b"".join(made)

    held = 0  # a few characters

    def takes_long(self, data: bytes) -> bool:
        """Whether these bytes are more than are edited in one go."""
        return len(data) > SLICE

    def end(self) -> bytes:
        """The body is over: what is left of it."""
        if self._is_broken:
            return b""
        half = self._decoder.getstate()[0] if self._is_lenient else b""
        if half:
            return self._function.flush().encode() + half
        return (self._function.feed(self._text(b"", True)) + self._function.flush()).encode()

    def _text(self, data: bytes, last: bool) -> str:
        try:
            return self._decoder.decode(data, last)
        except UnicodeDecodeError:
            raise Unreadable("it is not UTF-8") from None


@dataclass(slots=True, eq=False)
class Chained:
    """One function of text behind another."""

    _first: TextFunction
    _second: TextFunction

    def feed(self, text: str) -> str:
        return self._second.feed(self._first.feed(text))

    def flush(self) -> str:
        return self._second.feed(self._first.flush()) + self._second.flush()
