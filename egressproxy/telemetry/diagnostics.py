"""Diagnostics: logging to stderr from a thread of its own, so that a blocked stderr does not block the loop.

One line is `time level logger message`, with the worker in front of the message where there are several. Control
characters in a message are escaped, so that a client cannot forge a line. Or each line is a JSON object
(`telemetry.json_lines`); then a record may say what it is about: `extra={"fields": {...}}`.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, TextIO

from egressproxy.telemetry.json_lines import OF_THREADS, JsonFormatter, beneath

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

MAX_WAITING: Final = 10_000
STOP_TIMEOUT_S: Final = 1.0


def escaped(text: str, kept: str = "") -> str:
    """The text with an escape for each character that is not printable, but for those of `kept`. Marks that change the
    direction of text are not printable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)


class Diagnostics:
    """Takes over the root logger from `start` to `stop`. `dropped` counts records for which there was no room;
    the log is told how many when there is room again.

    `origin` names the process where several write to one stream; `turn` is entered around each message
    then, since a pipe takes a long one in pieces. `log_format` is "text" or "json", `level` a name of the
    module logging in any case.
    """

    def __init__(
        self,
        level: str = "info",
        stream: TextIO | None = None,
        origin: str = "",
        log_format: str = "text",
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._turn = turn or OF_THREADS
        self._level = getattr(logging, level.upper())
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_WAITING)
        self._handler = _Enqueue(self._queue)
        self._output = logging.StreamHandler(stream or beneath(sys.stderr))
        self._output.setFormatter(JsonFormatter(origin) if log_format == "json" else _Formatter(origin))
        self._thread = threading.Thread(target=self._run, name="diagnostics", daemon=True)
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)
        self._unraisable = sys.unraisablehook

    @property
    def dropped(self) -> int:
        return self._handler.dropped

    def start(self) -> None:
        """Take over the root logger, and start the writing thread."""
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = partial(_unless_said_by_client, self._unraisable)
        root = logging.getLogger()
        self._before = (root.handlers[:], root.level)
        root.handlers[:] = [self._handler]
        root.setLevel(self._level)
        # At debug level libraries log a lot; our own messages must stay readable.
        for noisy in ("asyncio", "aiohttp"):
            logging.getLogger(noisy).setLevel(max(self._level, logging.INFO))
        # It logs every changed file: a log file in a watched folder would cause messages without end.
        logging.getLogger("watchfiles").setLevel(max(self._level, logging.WARNING))
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting records, for at most a second, and restore the root logger."""
        sys.unraisablehook = self._unraisable
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)
        try:
            self._queue.put(None, timeout=STOP_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        reported = 0
        while True:
            record = self._queue.get()
            if reported != self.dropped and (record is None or self._queue.empty()):
                reported, lost = self.dropped, self.dropped - reported
                message = f"{lost} records were not logged: standard error is read too slowly"
                self._write(logging.LogRecord("egressproxy", logging.WARNING, "", 0, message, None, None))
            if record is None:
                return
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        with self._turn:
            self._output.handle(record)


def _unless_said_by_client(tell: Callable[[UnraisableHookArgs], object], args: UnraisableHookArgs) -> None:
    """A client whose server name (SNI) is no ASCII is refused by the module ssl before our callback hears of it, and a
    traceback told: whoever can connect could fill the log with them, and stop a loop whose standard error is full.
    """
    if not (isinstance(args.exc_value, UnicodeDecodeError) and isinstance(args.object, bytes)):
        tell(args)


class _Enqueue(logging.handlers.QueueHandler):
    def __init__(self, waiting: queue.Queue[logging.LogRecord | None]) -> None:
        super().__init__(waiting)
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format the text and the traceback now: the arguments may change later."""
        message = record.getMessage()
        record.exc_text = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        record.msg, record.args, record.exc_info = message, None, None
        return record


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, origin: str) -> None:
        super().__init__()
        self._origin = f"{origin}: " if origin else ""

    def format(self, record: logging.LogRecord) -> str:
        message = escaped(str(record.msg), "\t\n").replace("\n", "\\n")
        line = f"{self.formatTime(record)} {record.levelname.lower()} {record.name} {self._origin}{message}"
        if record.exc_text:
            line += "\n" + "\n".join(f"  {escaped(part)}" for part in record.exc_text.split("\n"))
        return line
