"""Diagnostics as JSON, one object per line: `time` (RFC 3339, UTC), `level`, `logger`, `message`; `process` where
several write; `error` and `traceback` of an exception; and what it is about: `object`, `file`, `line` and others (a
record's `fields`).
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

log = logging.getLogger("python")

#: Keeps the threads of one process apart: a stream without a buffer takes a long line in pieces.
OF_THREADS: Final = threading.RLock()
#: The most characters of an unfinished line: a program that prints dots must not fill the memory.
MAX_UNENDED: Final = 16 * 1024


class JsonFormatter(logging.Formatter):
    """`origin` names the process where several write to one stream."""

    def __init__(self, origin: str = "") -> None:
        super().__init__()
        self._origin = {"process": origin} if origin else {}

    def format(self, record: logging.LogRecord) -> str:
        """The JSON of a prepared record, whose message and traceback are text already."""
        more: dict[str, object] = dict(self._origin)
        if record.exc_text:
            more |= {"error": record.exc_text.rstrip().rpartition("\n")[2], "traceback": record.exc_text}
        fields: Mapping[str, object] = getattr(record, "fields", {})
        more |= {name: value for name, value in fields.items() if value not in ("", 0, None)}
        return _line(record.created, record.levelname.lower(), record.name, str(record.msg), more)


class JsonStream(io.TextIOBase):
    """In place of standard error: each written line becomes an object with the level `warning`. `turn` is entered
    around each write where several processes write; otherwise OF_THREADS.
    """

    def __init__(self, stream: TextIO, origin: str = "", turn: AbstractContextManager[object] | None = None) -> None:
        self.stream = stream
        self._turn = turn or OF_THREADS
        self._more: dict[str, object] = {"process": origin} if origin else {}
        self._rest = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Write the complete lines of `text` as objects; keeps the rest. Returns the number of characters."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > MAX_UNENDED:
                lines.append(self._rest)
                self._rest = ""
            written = [_line(time.time(), "warning", "stderr", line, self._more) for line in lines if line.strip()]
            if written:
                with self._turn:
                    self.stream.write("\n".join((*written, "")))
                    self.stream.flush()
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True


def beneath(stream: TextIO) -> TextIO:
    """The stream below a JsonStream; any other stream is returned as it is."""
    return stream.stream if isinstance(stream, JsonStream) else stream


def take_over(origin: str = "", turn: AbstractContextManager[object] | None = None) -> None:
    """Make everything on standard error JSON, for the life of the process: warnings of Python and uncaught exceptions
    become records, printed text is wrapped line by line.
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
    """Like `logging.captureWarnings`, which loses warnings before there is a handler."""
    log.warning("%s: %s", category.__name__, message, extra={"fields": {"file": filename, "line": lineno}})


def _uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if not issubclass(kind, SystemExit):  # SystemExit ends a thread silently
        log.error("uncaught %s", kind.__name__, exc_info=(kind, error or kind(), traceback))


def _line(created_s: float, level: str, logger: str, message: str, more: Mapping[str, Any]) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
    when = f"{moment}.{int(created_s % 1 * 1000):03d}Z"
    head = {"time": when, "level": level, "logger": logger, "message": message}
    values = {**head, **{name: value for name, value in more.items() if name not in head}}
    return json.dumps({name: _text(value) for name, value in values.items()}, default=str)


def _text(value: object) -> object:
    """Escape the bytes of a file name that are not UTF-8: a lone surrogate is not valid JSON (RFC 8259 section 8.2)."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
