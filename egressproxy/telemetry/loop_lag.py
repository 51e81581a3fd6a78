"""How late the event loop is: a timer asks twice a second, and the worst answer since the last scrape is the gauge."""

from __future__ import annotations

import asyncio
import time
from typing import Final

__all__ = ["LoopLag"]

INTERVAL_S: Final = 0.5


class LoopLag:
    """`start` on the loop to watch; `take` gives the longest delay in seconds since it was last asked."""

    __slots__ = ("_due", "_loop", "_timer", "_worst_s")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._worst_s = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> float:
        worst, self._worst_s = self._worst_s, 0.0
        return worst

    def _arm(self) -> None:
        assert self._loop is not None
        # The clock, not loop.time(): uvloop's stands still during one turn of the loop.
        self._due = time.monotonic() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._worst_s = max(self._worst_s, time.monotonic() - self._due)
        self._arm()
