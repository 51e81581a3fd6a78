"""A filter for the gateway under measurement: says from inside how late its event loop is, and what it holds.

Lies beside the manifests. Answers every request of the listener on which it is placed with one line of JSON about the
time since it was last asked. A timer asks every 5 ms how late it is; one that was late by more counts once for each
timer that should have run meanwhile, so that a percentile is that of the time and not of the timers.

`busy` is the part of a delay in which the process was computing: the rest was not given to it by the machine (or it was
blocked in a system call, which `late`, the whole delay, shows as well).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections import Counter

from egressproxy.filters import Exchange, Filter, FilterContext
from egressproxy.model.local_response import LocalResponse

INTERVAL_S = 0.005


class Probe(Filter):
    """Delays are counted by their whole milliseconds."""

    def __init__(self, _context: FilterContext) -> None:
        self._is_running = False
        self._garbage = 0  # objects in cycles, which the collector had to find
        self._due = 0.0
        self._cpu_s = 0.0
        self._late = Delays()
        self._busy = Delays()

    def request_headers(self, x: Exchange) -> LocalResponse:
        if not self._is_running:
            self._is_running = True
            gc.callbacks.append(self._collected)
            self._arm()
        if x.request.target == b"/collect":
            gc.unfreeze()  # what a reload has frozen for good, and is garbage, is to be found, too
            gc.collect()
            gc.freeze()
        report = {
            "pid": os.getpid(),
            "late": self._late.report(),
            "busy": self._busy.report(),
            "tasks": len(asyncio.all_tasks(asyncio.get_running_loop())),
            "garbage": self._garbage,
        }
        body = json.dumps(report).encode()
        self._late, self._busy = Delays(), Delays()
        return LocalResponse(200, ((b"Content-Type", b"application/json"),), body)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self._garbage += info["collected"]

    def _arm(self) -> None:
        # The clock, not loop.time(): uvloop's stands still during one turn of the loop.
        self._due = time.monotonic() + INTERVAL_S
        self._cpu_s = time.process_time()
        asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        late = max(time.monotonic() - self._due, 0.0)
        self._late.add(late)
        self._busy.add(min(late, time.process_time() - self._cpu_s))
        self._arm()


class Delays:
    """How often the loop was how late."""

    def __init__(self) -> None:
        self._by_ms: Counter[int] = Counter()
        self._worst_s = 0.0

    def add(self, late_s: float) -> None:
        self._worst_s = max(self._worst_s, late_s)
        while True:
            self._by_ms[int(late_s * 1000)] += 1
            late_s -= INTERVAL_S
            if late_s < 0:
                break

    def report(self) -> dict[str, object]:
        return {"by_ms": self._by_ms, "worst_ms": round(self._worst_s * 1000, 3)}


filter_class = Probe
