"""LiveLines: the lines of the access log for those who watch a running gateway.

It is made when somebody begins to watch, and stands in front of the log's writer until nobody has asked for a while:
without it nothing of an exchange or of the log is different.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from egressproxy.telemetry.access_log import AccessLog, Batches

#: The most bytes that wait for the next question; further lines are counted.
MAX_BYTES: Final = 1024 * 1024
#: Seconds without a question after which nobody watches.
LEASE_S: Final = 5.0


class LiveLines:
    """Implements Batches: passes lines on to the writer of `log`, if there is one, and keeps them until they are taken.
    Belongs to the event loop. `on_end` is called when it is in front of the writer no more.
    """

    def __init__(self, log: AccessLog, on_end: Callable[[], None]) -> None:
        self._log = log
        self._on_end = on_end
        self._writer: Batches | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._lost = 0
        self._suppressed = log.suppressed
        self._timer: asyncio.TimerHandle | None = None
        log.divert(self._stand_before)

    def take(self) -> bytes:
        """A line with the number of lost lines, then the lines since the last call."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(LEASE_S, self._end)
        self._log.flush()
        suppressed, self._suppressed = self._log.suppressed - self._suppressed, self._log.suppressed
        taken = b"%d\n%b" % (self._lost + suppressed, b"".join(self._chunks))
        self._chunks.clear()
        self._size = self._lost = 0
        return taken

    def _stand_before(self, writer: Batches | None) -> Batches:
        self._writer = writer
        return self

    def _end(self) -> None:
        self._log.divert(lambda _mine: self._writer)
        self._on_end()

    # --- Batches ---------------------------------------------------------------------------------------------------
    @property
    def dropped(self) -> int:
        return self._writer.dropped if self._writer is not None else 0

    @property
    def written(self) -> int:
        return self._writer.written if self._writer is not None else 0

    def put(self, chunk: bytes, lines: int) -> None:
        """`Batches.put`; a chunk is kept where nothing waits, even above the bound."""
        if self._writer is not None:
            self._writer.put(chunk, lines)
        if self._size and self._size + len(chunk) > MAX_BYTES:
            self._lost += lines
            return
        self._chunks.append(chunk)
        self._size += len(chunk)

    def reopen(self) -> None:
        if self._writer is not None:
            self._writer.reopen()

    def close(self, timeout_s: float) -> None:
        """`Batches.close`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.close(timeout_s)
