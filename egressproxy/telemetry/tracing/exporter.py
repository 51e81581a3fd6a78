"""BatchExporter: the bounded queue of what ended exchanges leave, and its way to a collector in batches.

Nothing here waits on the path of a request: what has no room is dropped, and counted. A batch goes out every
INTERVAL_S, or when there are BATCH of them or MAX_BATCH_SIZE bytes. What the collector cannot take now is sent again,
with growing pauses, up to RETRY_S. Source: OpenTelemetry protocol, "Failures" and "OTLP/HTTP Throttling".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from egressproxy.telemetry.counters import ExportCounts
from egressproxy.telemetry.tracing.otlp import EncodedSpans, Encoder
from egressproxy.telemetry.tracing.span import ExchangeSpans

log = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
#: Log records in one request.
BATCH: Final = 512
#: Exchanges whose spans are encoded at a time, some 0.1 ms. One alone costs twice as much, since code and data of the
#: encoder have left the processor's cache meanwhile; a thread would take the lock of the interpreter from the loop.
SLICE: Final = 32
#: Spans of one exchange that are longer, in bytes, are queued alone, so that a request stays short.
LONG: Final = 16 * 1024
#: Log records, or slices of spans, that wait for a slow collector.
MAX_WAITING: Final = 8192
#: Bytes that wait, and those in one request: clients choose paths, and collectors read messages of gRPC up to 4 MiB.
MAX_SIZE: Final = 8 * 1024 * 1024
MAX_BATCH_SIZE: Final = 512 * 1024
RETRY_S: Final = 60.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0
#: The least time between two warnings.
WARN_INTERVAL_S: Final = 60.0


class Counted(Protocol):
    """What waits for export: `count` says how many spans or log records it becomes, `size` is in bytes, about."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Counted)
T_contra = TypeVar("T_contra", bound=Counted, contravariant=True)


class BatchEncoder(Protocol[T_contra]):
    """Encodes a batch."""

    def request(self, batch: Sequence[T_contra]) -> tuple[bytes, int]:
        """A request of OTLP, and the count in it."""


class NotTaken(Exception):
    """The collector has not taken a batch. `after_s`: the time to wait before the next try, at least; None: no more."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


#: Sends a request, and returns how much of it the collector has refused, and why. Raises NotTaken.
Send = Callable[[bytes], Awaitable[tuple[int, str]]]


class BatchExporter(Generic[T]):
    """One for each collector, signal and process. All methods belong to the loop's thread."""

    __slots__ = (
        "_counts", "_encoder", "_handle", "_is_draining", "_name", "_queue", "_send", "_signal", "_size", "_task",
        "_warned_at",
    )  # fmt: skip

    def __init__(
        self, name: str, send: Send, encoder: BatchEncoder[T], counts: ExportCounts, signal: str = "traces"
    ) -> None:
        """`name` is that of the collector, for messages, as `signal` is."""
        self._name = name
        self._signal = signal
        self._send = send
        self._encoder = encoder
        self._counts = counts
        self._queue: list[T] = []
        self._size = 0
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_draining = False
        self._warned_at = -WARN_INTERVAL_S

    def put(self, item: T) -> None:
        """Export this. Never blocks."""
        if len(self._queue) >= MAX_WAITING or self._size + item.size > MAX_SIZE:
            self._counts.dropped["queue_full"] += item.count
            return
        self._queue.append(item)
        self._size += item.size
        self._schedule()

    def _schedule(self) -> None:
        if self._task is None:
            if len(self._queue) >= BATCH or self._size >= MAX_BATCH_SIZE:
                self._begin()
            elif self._handle is None:
                self._handle = asyncio.get_running_loop().call_later(INTERVAL_S, self._begin)

    @property
    def _has_more(self) -> bool:
        """Whether `encode` would put something into the queue."""
        return False

    def encode(self) -> None:
        """Put into the queue what is not there yet."""

    async def _request(self, batch: Sequence[T]) -> tuple[bytes, int]:
        """Beside the loop."""
        return await asyncio.to_thread(self._encoder.request, batch)

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
        self.encode()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._task is None and self._queue:
            self._task = asyncio.get_running_loop().create_task(self._export())

    async def _export(self) -> None:
        try:
            is_first = True
            while self._queue and (
                is_first or self._is_draining or len(self._queue) >= BATCH or self._size >= MAX_BATCH_SIZE
            ):
                is_first = False
                batch = self._taken()
                data, count = await self._request(batch)
                del batch
                await self._deliver(data, count)
        except Exception:
            log.exception("internal error in the export of %s to %s", self._signal, self._name)
        finally:
            self._task = None
            if (self._queue or self._has_more) and not self._is_draining:
                self._handle = asyncio.get_running_loop().call_later(INTERVAL_S, self._begin)

    def _taken(self) -> list[T]:
        """The next batch, out of the queue."""
        size = taken = 0
        for each in self._queue[:BATCH]:
            if taken and size + each.size > MAX_BATCH_SIZE:
                break
            size += each.size
            taken += 1
        batch, self._queue[:taken] = self._queue[:taken], []
        self._size -= size
        return batch

    async def _deliver(self, data: bytes, count: int) -> None:
        counts, pause_s, ends_at = self._counts, FIRST_PAUSE_S, monotonic() + RETRY_S
        while True:
            try:
                refused, why = await self._send(data)
                refused = min(refused, count)
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
                self._note(f"the collector refused {refused} of {count}: {why}")
            return

    def _note(self, message: str) -> None:
        self._counts.last_error = message
        if monotonic() - self._warned_at >= WARN_INTERVAL_S:
            self._warned_at = monotonic()
            log.warning("%s: %s: %s", self._signal, self._name, message)


class SpanExporter(BatchExporter[EncodedSpans]):
    """Encodes spans on the loop, SLICE exchanges at a time."""

    __slots__ = ("_ended", "_spans")

    def __init__(self, name: str, send: Send, encoder: Encoder, counts: ExportCounts) -> None:
        super().__init__(name, send, encoder, counts)
        self._spans = encoder
        self._ended: list[ExchangeSpans] = []

    def put_exchange(self, exchange: ExchangeSpans) -> None:
        """Export the spans of an exchange that has ended. Never blocks."""
        ended = self._ended
        ended.append(exchange)
        if len(ended) >= SLICE:
            self.encode()
        elif len(ended) == 1:
            self._schedule()

    @property
    def _has_more(self) -> bool:
        return bool(self._ended)

    def encode(self) -> None:
        """Encode what has ended. An exchange whose spans cannot be encoded takes no other along."""
        ended, self._ended = self._ended, []
        parts, count = [], 0
        for exchange in ended:
            try:
                encoded = self._spans.encoded(exchange)
            except Exception as error:
                self._counts.dropped["internal"] += exchange.count
                # Its text may be a client's.
                self._note(f"internal error: spans cannot be encoded ({type(error).__name__})")
                continue
            if len(encoded.data) > LONG:
                self.put(encoded)
            else:
                parts.append(encoded.data)
                count += encoded.count
        if parts:
            self.put(EncodedSpans(b"".join(parts), count))

    async def _request(self, batch: Sequence[EncodedSpans]) -> tuple[bytes, int]:
        return self._encoder.request(batch)
