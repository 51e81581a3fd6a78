"""Framing: splits a stream into events with their original bytes, and writes events.
Server-sent events, and Gemini's array of JSON without `alt=sse`; Amazon's are in `aws_event_stream`. No event is beyond
MAX_EVENT_BYTES. Sources: HTML, section 9.2 (server-sent events); RFC 8259.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from egressproxy.model.strict_json import Unreadable

#: The longest event. The last one of a response repeats the whole answer, and the tools of the request.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024

#: Lines of an event: comments, too, until an empty line.
MAX_LINES: Final = 20_000
_TOO_MANY_LINES: Final = f"an event of the stream has more than {MAX_LINES} lines"

#: Events longer than this are first checked for the plain form, which needs no splitting into lines.
_LONG_EVENT: Final = 16 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_TOO_LONG: Final = f"an event of the stream has more than {MAX_EVENT_BYTES} bytes"
#: An event as nearly all are: a name, one line of data, and line feeds behind them.
_PLAIN_EVENT = re.compile(rb"(?:event: ([!-~]*+)\n)?data: ?+([^\n\r]*+)\n\n")
#: The end of a line, and an empty line behind it.
_END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")


class Frame(NamedTuple):
    """An event: the bytes including surrounding blanks, the name, and the data (b"" for none)."""

    raw: bytes
    name: str
    payload: bytes


class BrokenStream(Unreadable):
    """The framing is broken, or an event too long. `frames`: the complete events before the error. `rest`: the bytes
    after these.
    """

    def __init__(self, message: str, frames: list[Frame], rest: bytes) -> None:
        super().__init__(message)
        self.frames = frames
        self.rest = rest


class AddedEvent(NamedTuple):
    """An event to insert: its name and data, and the event whose form it copies."""

    name: str
    payload: bytes
    like: Frame


def _has_too_many_lines(raw: bytes) -> bool:
    return len(raw) > MAX_LINES and raw.count(b"\n") + raw.count(b"\r") > MAX_LINES


class Framing(Protocol):
    """Bytes to events, and back. One for each stream."""

    @property
    def held(self) -> int:
        """The bytes of the incomplete event."""

    def feed(self, data: bytes) -> list[Frame]:
        """The events that are complete with these bytes. Raises BrokenStream; do not feed again then."""

    def rest(self) -> Frame | None:
        """At the end of the stream: the event that lacks only its terminator, or None."""

    def write(self, frame: Frame | None, payload: bytes | None, added: Sequence[AddedEvent]) -> bytes:
        """The added events, then this one with new data, or unchanged if `payload` is None."""


class SseFraming:
    """Server-sent events. Comments, ids and times to reconnect stay where they are."""

    __slots__ = ("_buffer", "_ended_in_cr", "_has_begun", "_searched")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._ended_in_cr = False
        self._has_begun = False

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Framing: events with any line ends."""
        buffer = self._buffer
        frames: list[Frame] = []
        begin = 0
        if not buffer and self._has_begun and not self._ended_in_cr:
            while (match := _PLAIN_EVENT.match(data, begin)) is not None:  # the usual form
                name, payload = match.groups()
                begin, at = match.end(), begin
                frames.append(Frame(data[at:begin], "" if name is None else name.decode("ascii"), payload))
            if begin == len(data):
                return frames
            data, begin = data[begin:], 0
        if self._ended_in_cr and data:
            self._ended_in_cr = False
            if data[:1] == b"\n":  # second half of a CRLF
                frames.append(Frame(b"\n", "", b""))
                data = data[1:]
        buffer += data
        while (match := _END_OF_EVENT.search(buffer, max(begin, self._searched))) is not None:
            raw = bytes(buffer[begin : match.end()])
            if _has_too_many_lines(raw):
                raise BrokenStream(_TOO_MANY_LINES, frames, bytes(buffer[begin:]))
            frames.append(self._frame(raw))
            begin = self._searched = match.end()
            self._ended_in_cr = begin == len(buffer) and buffer[-1] == 13
        del buffer[:begin]
        self._searched = max(0, len(buffer) - 2)
        if len(buffer) > MAX_EVENT_BYTES:
            raise BrokenStream(_TOO_LONG, frames, bytes(buffer))
        return frames

    def _frame(self, raw: bytes) -> Frame:
        text = raw
        if not self._has_begun:
            self._has_begun = True
            text = raw.removeprefix(_BYTE_ORDER_MARK)
        is_plain = len(text) > _LONG_EVENT and text.startswith(b"data:") and text.find(b"\n") == len(text) - 2
        if is_plain and b"\r" not in text:  # in one line, as nearly all are
            return Frame(raw, "", text[6 if text.startswith(b"data: ") else 5 : -2])
        name, data = "", []
        for line in text.splitlines():
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line.startswith(b"event:"):
                name = line[6:].strip().decode("utf-8", "replace")
        return Frame(raw, name, data[0] if len(data) == 1 else b"\n".join(data))

    def rest(self) -> Frame | None:
        """Framing: an event without its final empty line."""
        raw = bytes(self._buffer)
        self._buffer.clear()
        if not raw.strip():
            return Frame(raw, "", b"")
        return None if _has_too_many_lines(raw) else self._frame(raw + b"\n\n")

    def write(self, frame: Frame | None, payload: bytes | None, added: Sequence[AddedEvent]) -> bytes:
        """Framing: new data replaces the old at its first line."""
        if not added:
            if frame is None:
                return b""
            if payload is None:
                return frame.raw
        pieces: list[bytes] = []
        for event in added:
            if event.like.name:
                pieces.append(b"event: " + event.name.encode() + b"\n")
            pieces.append(b"data: " + event.payload + b"\n\n")
        if frame is not None:
            pieces.append(frame.raw if payload is None else _with_data(frame.raw, payload))
        return b"".join(pieces)


def _with_data(raw: bytes, payload: bytes) -> bytes:
    pieces: list[bytes] = []
    is_written = False
    for line in raw.removeprefix(_BYTE_ORDER_MARK).splitlines(keepends=True):
        if not line.startswith(b"data:"):
            pieces.append(line)
        elif not is_written:
            is_written = True
            end = line[len(line.rstrip(b"\r\n")) :]
            pieces += [b"data: " + each + end for each in payload.splitlines() or (b"",)]
    return b"".join(pieces)


#: The characters that decide about the end of an array element.
_MARKS = re.compile(rb'["\\\[\]{}]')
_BETWEEN: Final = b" \t\r\n,[]"


class JsonArrayFraming:
    """An array of objects, or one object alone, as Gemini tells an error. Bytes between elements belong to the next
    element.
    """

    __slots__ = ("_begin", "_buffer", "_depth", "_in_string", "_level", "_scanned")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._begin = -1  # of the current element
        self._depth = 0
        self._level = -1  # the depth of elements: 1 inside of the array, 0 of an object alone
        self._in_string = False

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Framing: elements, and at last the end of the array, without data."""
        self._buffer += data
        frames: list[Frame] = []
        try:
            self._scan(frames)
        except Unreadable as error:
            raise BrokenStream(str(error), frames, bytes(self._buffer)) from None
        return frames

    def _scan(self, frames: list[Frame]) -> None:
        buffer = self._buffer
        at = self._scanned
        while (match := _MARKS.search(buffer, at)) is not None:
            mark, at = match[0], match.end()
            if self._in_string:
                if mark == b"\\":
                    if at == len(buffer):
                        at -= 1
                        break
                    at += 1
                elif mark == b'"':
                    self._in_string = False
            elif mark == b'"':
                self._in_string = True
            elif mark in (b"{", b"["):
                if self._level < 0:
                    self._level = int(mark == b"[")
                elif self._level == self._depth == 0:
                    raise Unreadable("the stream goes on behind its only object")
                self._depth += 1
                if self._depth == self._level + 1 and mark == b"{" and self._begin < 0:
                    self._begin = match.start()
            elif mark in (b"}", b"]"):
                self._depth -= 1
                if self._depth == self._level and self._begin >= 0:
                    frames.append(self._cut(at, bytes(buffer[self._begin : at])))
                    at = 0
                elif self._depth == 0 and mark == b"]":
                    frames.append(self._cut(at, b""))
                    at = 0
        else:
            at = len(buffer)
        self._scanned = at
        if self._begin < 0 and buffer.strip(_BETWEEN):
            raise Unreadable("the stream is not an array of objects")
        if len(buffer) > MAX_EVENT_BYTES:
            raise Unreadable(_TOO_LONG)

    def _cut(self, end: int, payload: bytes) -> Frame:
        raw = bytes(self._buffer[:end])
        if raw[: len(raw) - len(payload)].strip(_BETWEEN):
            raise Unreadable("the stream is not an array of objects")
        del self._buffer[:end]
        self._begin = -1
        return Frame(raw, "", payload)

    def rest(self) -> Frame | None:
        """Framing: an incomplete element is unreadable."""
        return None

    def write(self, frame: Frame | None, payload: bytes | None, added: Sequence[AddedEvent]) -> bytes:
        """Framing: the added event takes the element's prefix, and the element gets a comma."""
        between = b"" if frame is None else frame.raw[: len(frame.raw) - len(frame.payload)]
        if frame is None or not frame.payload:  # the end of the array: there is an element, or nothing would be added
            return b"".join(b",\r\n" + event.payload for event in added) + between
        element = frame.payload if payload is None else payload
        return between + b"".join(event.payload + b",\r\n" for event in added) + element
