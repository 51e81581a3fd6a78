"""BodyFilter: a body chain between the connection that reads a body and the one that sends it. Collector: its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason
from egressproxy.filters.base import MORE
from egressproxy.filters.body import BodyChain, ChosenSteps
from egressproxy.filters.body_plan import SHORT_BODY
from egressproxy.gateway.backends.buffered_body import BodyClient
from egressproxy.gateway.backends.replayable_body import forwarded_trailers
from egressproxy.model.exchange import Exchange
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.flow_control import BodySink, Reads

#: Bytes of a streamed body after which it is counted again what its filters have kept.
COUNTED_SIZE: Final = 16 * 1024


class _Nobody:
    """Stands on either side of a filter whose exchange is over."""

    __slots__ = ()

    def send_body(self, data: bytes) -> None: ...

    def end_body(self, trailers: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


_NOBODY: Final = _Nobody()


class BodyFilter:
    """A sink that filters a body and hands it on to another sink, whose source it is. Its own source is paused while a
    filter waits or the next sink is full; what still comes is kept in order.
    """

    __slots__ = (
        "_client", "_exchange", "_held", "_is_sink_full", "_more", "_passed", "_sink", "_source", "_task", "_waiting",
        "chain", "has_failed", "is_over", "tail",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, chain: BodyChain, sink: BodySink, source: Reads, client: BodyClient) -> None:
        self._exchange = exchange
        self.chain = chain
        self._sink = sink
        self._source = source
        self._client = client
        self._task: asyncio.Task[bytes] | None = None
        self._waiting: list[tuple[bytes, bytes | None]] = []  # (data, trailers); trailers None: not the last
        self._is_sink_full = False
        self._held = 0  # bytes that the chain holds, as far as the client was told
        self._passed = 0  # bytes since it was told, where a filter keeps some of them
        self._more: tuple[object, ...] = ()  # filters that have more to send
        if chain.sends_more:
            MORE.set(exchange, self.more)
        self.is_over = False
        self.has_failed = False  # it has ended the exchange: who waits for its end is told the next time that he waits
        self.tail = b""  # of what was handed on

    @property
    def is_write_blocked(self) -> bool:
        return self._is_sink_full

    def feed_from(self, source: Reads) -> None:
        """From now on this source fills us; it is paused at once if the sink is full."""
        self._source = source
        if self._is_sink_full:
            source.pause_reading()

    def pause_reading(self) -> None:
        self._is_sink_full = True
        self._source.pause_reading()

    def resume_reading(self) -> None:
        self._is_sink_full = False
        if self._more:
            self._take_more()
        if self._task is None:
            self._resume_source()

    def more(self, own: object) -> None:
        """This filter has more to send: it goes on as soon as nothing waits before it."""
        if own not in self._more:
            self._more += (own,)
        self._take_more()

    def send_body(self, data: bytes) -> None:
        if self._task is not None or self.chain.holds or self.is_over:
            self._take(data, None)
            return
        try:
            outcome = self.chain.feed(self._exchange, data, False)
        except GatewayError as error:
            self._fail(error)
            return
        if not isinstance(outcome, bytes):
            self._wait(outcome, None)
        elif outcome:
            self.tail = outcome[-4:]
            self._sink.send_body(outcome)
        if self.chain.keeps:
            self._passed += len(data)
            if self._passed >= COUNTED_SIZE:
                self._passed = 0
                self._count_held()

    def end_body(self, trailers: bytes) -> None:
        self._take(b"", trailers)

    def cancel(self) -> None:
        self.is_over = True
        self._forget_more()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def release(self) -> None:
        """Cancel, and forget those on either side: they know this one, too, and none would ever be freed."""
        self.cancel()
        self._sink = self._source = _NOBODY

    def _take(self, data: bytes, trailers: bytes | None) -> None:
        if self.is_over:
            return
        if self._task is not None:
            self._waiting.append((data, trailers))
            self._source.pause_reading()  # again: `Hold.go_on` resumes where there is room, whatever a filter does
            return
        try:
            if trailers:
                self.chain.expect_trailers(self._exchange, trailers)
            outcome = self.chain.feed(self._exchange, data, trailers is not None)
        except GatewayError as error:
            self._fail(error)
            return
        if self.chain.holds:
            self._client.note_progress()  # nothing is sent on, and yet something has moved
            self._count_held()
        elif self.chain.keeps:
            self._count_held()
        if isinstance(outcome, bytes):
            self._hand_on(outcome, trailers)
            return
        self._wait(outcome, trailers)

    def _count_held(self) -> None:
        held = self.chain.held(self._exchange)
        more, self._held = held - self._held, held
        if more:
            self._client.hold_bytes(more, None if self.chain.is_of_request else self)

    def _wait(self, outcome: asyncio.Task[bytes], trailers: bytes | None) -> None:
        self._task = outcome
        self._source.pause_reading()
        outcome.add_done_callback(lambda task: self._done(task, trailers))

    def _take_more(self) -> None:
        while self._more and self._task is None and not self._is_sink_full and not self.is_over:
            own, *others = self._more
            self._more = tuple(others)
            try:
                outcome = self.chain.feed_more(self._exchange, own)
            except GatewayError as error:
                self._fail(error)
                return
            if isinstance(outcome, bytes):
                self._hand_on(outcome, None)
            else:
                self._wait(outcome, None)

    def _forget_more(self) -> None:
        self._more = ()
        if self.chain.sends_more:
            MORE.pop(self._exchange)  # what calls us would hold us

    def _result(self, task: asyncio.Task[bytes]) -> bytes | None:
        """What the filters have returned; None where the exchange does not go on with it."""
        if self._task is not task:
            if not task.cancelled():
                task.exception()  # seen, and too late to matter
            return None
        self._task = None
        if task.cancelled():
            self._fail(GatewayFault(Reason.FILTER_FAILED, "a body filter was cancelled", status=502))
            return None
        error = task.exception()
        if error is not None:
            self._fail(error)
            return None
        return task.result()

    def _done(self, task: asyncio.Task[bytes], trailers: bytes | None) -> None:
        data = self._result(task)
        if data is None:
            return
        if self._held:
            self._count_held()  # before the sink counts it
        self._hand_on(data, trailers)
        while self._waiting and self._task is None and not self.is_over:
            self._take(*self._waiting.pop(0))
        if self._more:
            self._take_more()
        if self._task is None and not self._is_sink_full:
            self._resume_source()

    def _resume_source(self) -> None:
        if not (self.chain.is_of_request and self._client.is_paused_for_room):
            self._source.resume_reading()

    def _hand_on(self, data: bytes, trailers: bytes | None) -> None:
        if data:
            self.tail = data[-4:]
            self._sink.send_body(data)
        if trailers:
            self._show(trailers)
        elif trailers is not None:
            self._end(b"")

    def _show(self, trailers: bytes) -> None:
        try:
            outcome = self.chain.run_trailers(self._exchange, trailers)
        except GatewayError as error:
            self._fail(error)
            return
        if isinstance(outcome, bytes):
            self._end(forwarded_trailers(self.chain, trailers, outcome))
            return
        self._task = outcome
        self._source.pause_reading()
        outcome.add_done_callback(lambda task: self._shown(task, trailers))

    def _shown(self, task: asyncio.Task[bytes], trailers: bytes) -> None:
        left = self._result(task)
        if left is not None:
            self._end(forwarded_trailers(self.chain, trailers, left))

    def _end(self, trailers: bytes) -> None:
        self.is_over = True
        self._forget_more()
        self._sink.end_body(trailers)
        self._client.driver.resume()

    def _fail(self, error: BaseException) -> None:
        self.cancel()
        self.has_failed = True
        self._client.driver.throw(error)


@dataclass(slots=True, eq=False, repr=False)
class Collector:
    """Keeps a whole (filtered) body, of `_limit` bytes at most (-1: filters bound it), and the `trailers` behind it. It
    is that of a request, or comes from `_source`. A body of few bytes has no `_client` to hold them for.
    """

    _driver: Driver
    _client: BodyClient | None = None
    _limit: int = -1
    _source: Reads | None = None
    _size: int = 0
    _is_whole: bool = False
    _parts: ByteQueue = field(default_factory=ByteQueue)
    trailers: bytes = b""

    async def whole(self) -> bytes:
        """The body, once its end is here. It is kept no longer."""
        while not self._is_whole:
            await PAUSE
        body = self._parts.joined()
        self._parts.clear()
        return body

    def send_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if 0 <= self._limit < self._size:
            message = f"the body is longer than the {self._limit} bytes that a filter of the backend takes"
            self._driver.throw(LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True))
        elif self._client is not None:
            self._client.hold_bytes(len(data), self._source)

    def end_body(self, trailers: bytes) -> None:
        self._is_whole = True
        self.trailers = trailers
        self._driver.resume()


def pass_whole(
    client: BodyClient, exchange: Exchange, chosen: ChosenSteps, body: bytes, source: Reads | None = None
) -> bytes | asyncio.Task[bytes]:
    """What these filters make of a body in one piece, of a request or from `source`. Raises as `BodyChain.feed`."""
    if len(body) > SHORT_BODY:
        client.hold_bytes(len(body), source, waits=False)
    return chosen.pass_whole(exchange, body)


async def finished(outcome: asyncio.Task[bytes]) -> bytes:
    """What the filters of a whole body have made of it. Raises as `BodyChain.feed`."""
    try:
        return await outcome
    except asyncio.CancelledError:
        raise GatewayFault(Reason.FILTER_FAILED, "a body filter was cancelled", status=502) from None
