"""MetricExport: metrics to a collector, from time to time.

What could not be sent is not sent again: the next export has all that was counted since.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic, time_ns
from typing import Final

from prometheus_client.metrics_core import Metric

from egressproxy.errors import NotAnswered
from egressproxy.telemetry.counters import ExportCounts
from egressproxy.telemetry.otlp.metrics import MetricEncoder

log = logging.getLogger(__name__)

#: The least time between two warnings.
WARN_INTERVAL_S: Final = 60.0
#: The most time for an export at the end, in seconds.
LAST_S: Final = 2.0

#: Returns all metrics as they are now.
Read = Callable[[], Awaitable[Sequence[Metric]]]
#: Sends a request. Returns JSON: `refused` is a number of data points, -1 for all, -2 if they are not wanted; `why`.
#: Raises NotAnswered.
Send = Callable[[bytes], Awaitable[bytes]]


class MetricExport:
    """One for each process that answers scrapes."""

    def __init__(self, read: Read, send: Send, encoder: MetricEncoder, counts: ExportCounts, interval_s: float) -> None:
        self._read = read
        self._send = send
        self._encoder = encoder
        self._counts = counts
        self._interval_s = interval_s
        self._warned_at = -WARN_INTERVAL_S

    async def run(self) -> None:
        """Export until this is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.export()
            except Exception:
                log.exception("internal error in the export of metrics")

    async def finish(self) -> None:
        """Export once more, for LAST_S at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self.export()

    async def export(self) -> None:
        """Send all metrics."""
        families = await self._read()
        requests = await asyncio.to_thread(lambda: list(self._encoder.requests(families, time_ns())))
        refused, why = 0, ""
        for request, count in requests:
            if refused == -1:  # it is away: the next one would wait as long
                self._note(refused, why, count)
                continue
            try:
                answer = json.loads(await self._send(request))
                refused, why = int(answer["refused"]), str(answer["why"])
            except NotAnswered as error:
                refused, why = -1, str(error)
            except (ValueError, KeyError, TypeError):
                refused, why = -1, "the worker's answer makes no sense"
            self._note(refused, why, count)

    def _note(self, refused: int, why: str, count: int) -> None:
        counts = self._counts
        lost = count if refused < 0 else min(refused, count)
        counts.exported += count - lost
        counts.last_error = why if lost else ""
        if lost:
            counts.dropped["unreachable" if refused == -1 else "refused"] += lost
            if monotonic() - self._warned_at >= WARN_INTERVAL_S:
                self._warned_at = monotonic()
                log.warning("metrics: %d of %d data points were not taken: %s", lost, count, why)
