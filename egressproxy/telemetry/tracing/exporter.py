"""SpanExporter: the bounded queue of ended exchanges, and the way of their spans to a collector in batches.

Nothing here waits on the path of a request: what has no room is dropped, and counted. A batch goes out every
INTERVAL_S, or when there are BATCH of them. What the collector cannot take now is sent again,
with growing pauses, up to RETRY_S. Source: OpenTelemetry protocol, "Failures" and "OTLP/HTTP Throttling".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from egressproxy.telemetry.counters import SpanCounts
from egressproxy.telemetry.tracing.otlp import EncodedSpans, Encoder
from egressproxy.telemetry.tracing.span import ExchangeSpans

log = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
#: Exchanges in one request: some 300 KB.
BATCH: Final = 512
#: Exchanges that are encoded at a time, some 0.1 ms. One alone costs twice as much, since code and data of the encoder
#: have left the processor's cache meanwhile; a thread would take the lock of the interpreter from the loop.
SLICE: Final = 32
#: Exchanges that wait for a slow collector, some 1 KB each.
MAX_WAITING: Final = 8192
RETRY_S: Final = 60.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
#: The least time between two warnings.
WARN_INTERVAL_S: Final = 60.0


class NotTaken(Exception):
    """The collector has not taken a batch. `after_s`: the time to wait before the next try, at least; None: no more."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


#: Sends a request, and returns how many spans of it the collector has refused, and why. Raises NotTaken.
Send = Callable[[bytes], Awaitable[tuple[int, str]]]


class SpanExporter:
    """One for each collector and process. All methods belong to the loop's thread."""

    __slots__ = (
        "_counts", "_encoder", "_ended", "_handle", "_is_draining", "_name", "_queue", "_send", "_task", "_warned_at",
    )  # fmt: skip

    def __init__(self, name: str, send: Send, encoder: Encoder, counts: SpanCounts) -> None:
        """`name` is that of the collector, for messages."""
        self._name = name
        self._send = send
        self._encoder = encoder
        self._ended: list[ExchangeSpans] = []
        self._counts = counts
        self._queue: list[EncodedSpans] = []
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_draining = False
        self._warned_at = -WARN_INTERVAL_S

    def put(self, spans: ExchangeSpans) -> None:
        """Export the spans of an exchange that has ended. Never blocks."""
        queue, ended = self._queue, self._ended
        if len(queue) + len(ended) >= MAX_WAITING:
            self._counts.dropped["queue_full"] += spans.count
            return
        ended.append(spans)
        if len(ended) >= SLICE:
            self.encode()
        if self._task is None:
            if len(queue) >= BATCH:
                self._begin()
            elif self._handle is None:
                self._handle = asyncio.get_running_loop().call_later(INTERVAL_S, self._begin)

    def encode(self) -> None:
        """Encode what has been put. An exchange whose spans cannot be encoded takes no other along."""
        ended, self._ended = self._ended, []
        for spans in ended:
            try:
                self._queue.append(self._encoder.encoded(spans))
            except Exception as error:
                self._counts.dropped["internal"] += spans.count
                self._note(
                    f"internal error: spans cannot be encoded ({type(error).__name__})"
                )  # its text may be a client's

    async def drain(self, timeout_s: float) -> None:
        """As of Exporter. What fails meanwhile is not sent again."""
        self._is_draining = True
        self.encode()
        if self._queue and self._task is None:
            self._begin()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout_s)
            if self._task is not None:
                self._task.cancel()
        self._is_draining = False

    def _begin(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.encode()
        if self._task is None and self._queue:
            self._task = asyncio.get_running_loop().create_task(self._export())

    async def _export(self) -> None:
        try:
            is_first = True
            while self._queue and (is_first or self._is_draining or len(self._queue) >= BATCH):
                is_first = False
                batch, self._queue[:BATCH] = self._queue[:BATCH], []
                data, count = self._encoder.request(batch)
                del batch
                await self._deliver(data, count)
        except Exception:
            log.exception("internal error in the export of spans to %s", self._name)
        finally:
            self._task = None
            if (self._queue or self._ended) and not self._is_draining:
                self._handle = asyncio.get_running_loop().call_later(INTERVAL_S, self._begin)

    async def _deliver(self, data: bytes, count: int) -> None:
        counts, pause_s, ends_at = self._counts, FIRST_PAUSE_S, monotonic() + RETRY_S
        while True:
            try:
                refused, why = await self._send(data)
            except asyncio.CancelledError:
                counts.dropped["unreachable"] += count
                raise
            except NotTaken as error:
                after_s = error.after_s
                self._note(str(error))
                if after_s is None:
                    counts.dropped["refused"] += count
                    return
                wait_s = max(after_s, pause_s * random.uniform(0.5, 1.0))  # noqa: S311
                if self._is_draining or monotonic() + wait_s > ends_at:
                    counts.dropped["unreachable"] += count
                    return
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            except Exception:
                counts.dropped["internal"] += count
                raise
            counts.exported += count - refused
            counts.last_error = ""
            if refused:
                counts.dropped["refused"] += refused
                self._note(f"the collector refused {refused} of {count} spans: {why}")
            return

    def _note(self, message: str) -> None:
        self._counts.last_error = message
        if monotonic() - self._warned_at >= WARN_INTERVAL_S:
            self._warned_at = monotonic()
            log.warning("traces: %s: %s", self._name, message)
