"""LiveLines: the lines of the access log for those who watch a running gateway.

They are kept from the first question on, until nobody has asked for a while: without it nothing of an exchange or of
the log is different.
"""

from __future__ import annotations

import asyncio
from typing import Final

from egressproxy.telemetry.access_log import AccessLog

#: The most bytes that wait for the next question; further lines are counted.
MAX_BYTES: Final = 1024 * 1024
#: Seconds without a question after which nobody watches.
LEASE_S: Final = 5.0


class LiveLines:
    """Belongs to the event loop."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log
        self._chunks: list[bytes] = []
        self._size = self._lost = self._suppressed = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self) -> bytes:
        """A line with the number of lost lines, then the lines since the last call."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LEASE_S, self._end)
        self._log.flush()
        suppressed, self._suppressed = self._suppressed, self._log.suppressed
        lost = self._lost + self._suppressed - suppressed if self._log.tap is not None else 0
        self._log.tap = self._keep
        taken = b"%d\n%b" % (lost, b"".join(self._chunks))
        self._clear()
        return taken

    def _keep(self, chunk: bytes, lines: int) -> None:
        """A chunk is kept where nothing waits, even above the bound."""
        if self._size and self._size + len(chunk) > MAX_BYTES:
            self._lost += lines
        else:
            self._chunks.append(chunk)
            self._size += len(chunk)

    def _end(self) -> None:
        self._log.flush()
        self._log.tap = None
        self._clear()

    def _clear(self) -> None:
        self._chunks.clear()
        self._size = self._lost = 0
