"""Diagnostics as JSON: one object a line, whatever it is that is written to standard error.

`time` (RFC 3339, UTC), `level`, `logger` and `message` are always there; `process` where several write; `error`
and `traceback` of an exception; and what a message is about: `object`, `file`, `line` and others (a record's `fields`).
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, TextIO

__all__ = ["OF_THREADS", "JsonFormatter", "JsonStream", "beneath", "take_over"]

log = logging.getLogger("python")

#: The turn of what the threads of one process write: a stream without a buffer takes a long line in pieces.
OF_THREADS: Final = threading.RLock()
#: Characters of a line without an end: who prints dots must not fill the memory.
MAX_UNENDED: Final = 16 * 1024


class JsonFormatter(logging.Formatter):
    """`origin`: whose records they are, where several processes write to one stream."""

    def __init__(self, origin: str = "") -> None:
        super().__init__()
        self._origin = {"process": origin} if origin else {}

    def format(self, record: logging.LogRecord) -> str:
        """A record that was prepared: its text is made, its traceback, if any, is text."""
        more: dict[str, object] = dict(self._origin)
        if record.exc_text:
            more |= {"error": record.exc_text.rstrip().rpartition("\n")[2], "traceback": record.exc_text}
        fields: Mapping[str, object] = getattr(record, "fields", {})
        more |= {name: value for name, value in fields.items() if value not in ("", 0, None)}
        return _line(record.created, record.levelname.lower(), record.name, str(record.msg), more)


class JsonStream(io.TextIOBase):
    """Stands for standard error: each line that anybody writes there becomes an object, with the level `warning`.

    `turn` is entered around what is written, where several processes write there; else OF_THREADS.
    """

    def __init__(self, stream: TextIO, origin: str = "", turn: AbstractContextManager[object] | None = None) -> None:
        self.stream = stream
        self._turn = turn or OF_THREADS
        self._more: dict[str, object] = {"process": origin} if origin else {}
        self._rest = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > MAX_UNENDED:
                lines.append(self._rest)
                self._rest = ""
            said = [_line(time.time(), "warning", "stderr", line, self._more) for line in lines if line.strip()]
            if said:
                with self._turn:
                    self.stream.write("\n".join((*said, "")))
                    self.stream.flush()
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True


def beneath(stream: TextIO) -> TextIO:
    """What a JsonStream writes to; any other stream is itself."""
    return stream.stream if isinstance(stream, JsonStream) else stream


def take_over(origin: str = "", turn: AbstractContextManager[object] | None = None) -> None:
    """From here on all that goes to standard error is JSON: warnings of Python and uncaught exceptions are records, and
    what is printed there is wrapped line by line. For the life of the process.
    """
    sys.stderr = JsonStream(beneath(sys.stderr), origin, turn)
    warnings.showwarning = _warned
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    """As `logging.captureWarnings`, which says nothing before there is a handler."""
    log.warning("%s: %s", category.__name__, message, extra={"fields": {"file": filename, "line": lineno}})


def _uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if not issubclass(kind, SystemExit):  # a thread that ends like this has nothing to say
        log.error("uncaught %s", kind.__name__, exc_info=(kind, error or kind(), traceback))


def _line(created_s: float, level: str, logger: str, message: str, more: Mapping[str, Any]) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
    when = f"{moment}.{int(created_s % 1 * 1000):03d}Z"
    head = {"time": when, "level": level, "logger": logger, "message": message}
    values = {**head, **{name: value for name, value in more.items() if name not in head}}
    return json.dumps({name: _text(value) for name, value in values.items()}, default=str)


def _text(value: object) -> object:
    """Bytes that are no UTF-8, of a file's name, as an escape: half a surrogate pair is no JSON (RFC 8259, 8.2)."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
