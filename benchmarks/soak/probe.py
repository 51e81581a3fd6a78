"""A filter for the gateway under measurement: says from inside how late its event loop is, and what it holds.

Lies beside the manifests. Answers every request of the listener on which it is placed with one line of JSON about the
time since it was last asked. A timer asks every 5 ms how late it is; one that was late by more counts once for each
timer that should have run meanwhile, so that a percentile is that of the time and not of the timers.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter

from egressproxy.filters import Exchange, Filter, FilterContext
from egressproxy.model.exchange import Answer

INTERVAL_S = 0.005


class Probe(Filter):
    """`late_ms` counts delays by their whole milliseconds."""

    def __init__(self, _context: FilterContext) -> None:
        self._is_running = False
        self._due = 0.0
        self._late_ms: Counter[int] = Counter()
        self._worst_s = 0.0

    def request_headers(self, x: Exchange) -> Answer:
        if not self._is_running:
            self._is_running = True
            self._arm()
        report = {
            "pid": os.getpid(),
            "late_ms": self._late_ms,
            "worst_ms": round(self._worst_s * 1000, 3),
            "tasks": len(asyncio.all_tasks(asyncio.get_running_loop())),
            "threads": threading.active_count(),
        }
        body = json.dumps(report).encode()
        self._late_ms = Counter()
        self._worst_s = 0.0
        return Answer(200, ((b"Content-Type", b"application/json"),), body)

    def _arm(self) -> None:
        # The clock, not loop.time(): uvloop's stands still during one turn of the loop.
        self._due = time.monotonic() + INTERVAL_S
        asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        late = max(time.monotonic() - self._due, 0.0)
        self._worst_s = max(self._worst_s, late)
        while True:
            self._late_ms[int(late * 1000)] += 1
            late -= INTERVAL_S
            if late < 0:
                break
        self._arm()
