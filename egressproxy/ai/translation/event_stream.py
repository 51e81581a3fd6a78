"""EventStream: server-sent events (HTML, section 9.2) in bounded memory, read from bytes cut anywhere, and written."""

from __future__ import annotations

import io
from typing import Final

from egressproxy.ai.translation.errors import BadAnswer

#: The longest event. The last one of a response repeats the whole answer, and the tools of the request.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
#: The name of a comment, which keeps connections open.
COMMENT: Final = b":"

#: The memory of a line beside its bytes.
_LINE_BYTES: Final = 64
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventStream:
    """Gives (name, data) of each event. The name is empty where the stream has none."""

    __slots__ = ("_begun", "_data", "_ends_in_cr", "_name", "_rest", "_rest_size", "_size")

    def __init__(self) -> None:
        self._rest = io.BytesIO()  # the incomplete line: pieces may have two bytes
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0  # of complete lines
        self._rest_size = 0  # of the incomplete line
        self._begun = False
        self._ends_in_cr = False  # a line end that a line feed may complete

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The events that end in these bytes. Raises BadAnswer for an event that is too long."""
        if self._ends_in_cr:
            self._ends_in_cr = False
            if data[:1] == b"\n":
                data = data[1:]
        if b"\r" in data:
            self._ends_in_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        events: list[tuple[bytes, bytes]] = []
        if lines:
            if self._rest_size:
                lines[0] = self._rest.getvalue() + lines[0]
                self._rest = io.BytesIO()
                self._rest_size = 0
            if not self._begun:
                self._begun = True
                lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
            self._read(lines, events)
        if rest:
            self._rest.write(rest)
            self._rest_size += len(rest)
        if self._size + self._rest_size > MAX_EVENT_BYTES:
            raise BadAnswer(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")
        return events

    def end(self) -> list[tuple[bytes, bytes]]:
        """The last event of a stream that lacks the empty line behind it."""
        return self.feed(b"\n\n")

    def _read(self, lines: list[bytes], events: list[tuple[bytes, bytes]]) -> None:
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append((self._name, data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                self._name = b""
                self._size = 0
            elif line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._size += len(line) + _LINE_BYTES
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line.startswith(b":") and (not events or events[-1][0] != COMMENT):  # several say no more than one
                events.append((COMMENT, b""))


def event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


def event_of_data(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
