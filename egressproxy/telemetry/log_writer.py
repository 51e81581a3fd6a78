"""The thread that writes a log, and the bounded queue in front of it. Only the thread may block."""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import Final

logger = logging.getLogger(__name__)

WARN_INTERVAL_S: Final = 60.0


class LogWriter:
    """Writes to `target`: None or "-" is standard output, an int a descriptor, else a path (or OSError). `turn` is
    entered around each write, for processes that share it. At most `max_waiting_bytes` wait for a slow reader. `close`
    comes last. `log_format`: "json" takes the lines as they are, "text" makes lines for people, "auto" on a terminal.
    """

    __slots__ = (
        "_closing", "_descriptor", "_lock", "_max_waiting", "_path", "_queue", "_render", "_thread", "_torn", "_turn",
        "_waiting", "_warned_at", "dropped", "written",
    )  # fmt: skip

    def __init__(
        self, target: str | int | None, max_waiting_bytes: int, turn: AbstractContextManager[object],
        log_format: str = "json",
    ) -> None:  # fmt: skip
        self._turn = turn
        self._path: Path | None = None
        if isinstance(target, int):
            self._descriptor = target
        elif target is None or target == "-":
            self._descriptor = 1
        else:
            self._path = Path(target)
            self._descriptor = _open(self._path)
        self._render = _renderer(self._descriptor, log_format)
        self._max_waiting = max_waiting_bytes
        self._waiting = 0
        # Bytes and the number of their lines; no bytes: open the path again; None: the end.
        self._queue: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._lock = threading.Lock()  # for the counters, which both threads change
        self._closing = False
        self._torn = False  # the last line was written partly
        self._warned_at = -WARN_INTERVAL_S
        self.dropped = 0  # lines that could not be written
        self.written = 0
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes, lines: int) -> None:
        """Write these bytes, which are so many lines, when those before them are written. Never blocks."""
        with self._lock:
            # A chunk is always accepted when the queue is empty, even above the bound.
            if self._closing or (self._waiting and self._waiting + len(chunk) > self._max_waiting):
                self.dropped += lines
                return
            self._waiting += len(chunk)
        self._queue.put((chunk, lines))

    def reopen(self) -> None:
        if self._path is not None:
            self._queue.put((b"", 0))

    def close(self, timeout_s: float) -> None:
        """Write what waits. Waits at most `timeout_s` for a slow reader."""
        self._closing = True
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            chunk, lines = entry
            if not chunk:
                self._open_again()
                continue
            text = chunk if self._render is None else self._render(chunk)
            with self._turn:
                done = self._write(text)
            with self._lock:
                self._waiting -= len(chunk)
                if done:
                    self.written += lines
                else:
                    self.dropped += lines
        if self._path is not None:
            os.close(self._descriptor)

    def _write(self, chunk: bytes) -> bool:
        rest = memoryview(b"\n" + chunk if self._torn else chunk)
        size = len(rest)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # the other side has made the pipe non-blocking
                _wait_writable(self._descriptor)
            except OSError as error:
                self._torn = self._torn or len(rest) < size
                self._warn(error)
                return False
        self._torn = False
        return True

    def _open_again(self) -> None:
        assert self._path is not None
        try:
            fresh = _open(self._path)
        except OSError as error:
            logger.warning(
                "access log %s cannot be opened again: %s; the old file goes on until another SIGHUP",
                self._path, error.strerror,
            )  # fmt: skip
            return
        os.close(self._descriptor)
        self._descriptor = fresh
        self._torn = False

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= WARN_INTERVAL_S:
            self._warned_at = now
            name = errno.errorcode.get(error.errno or 0, "?")
            logger.warning(
                "access log %s cannot be written: %s (%s); lines are dropped and counted",
                self._path or "-",
                error,
                name,
            )


def _renderer(descriptor: int, log_format: str) -> Callable[[bytes], bytes] | None:
    """What makes lines for people; None where they stay JSON."""
    if log_format == "json" or (log_format == "auto" and not os.isatty(descriptor)):
        return None
    from egressproxy.telemetry.text_log import TextLines  # only here: most logs are JSON

    return TextLines.for_descriptor(descriptor).render


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(1000)
