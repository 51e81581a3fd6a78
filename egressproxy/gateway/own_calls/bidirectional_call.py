"""BidirectionalCall: a call of gRPC that the gateway makes itself, in which both sides send messages at any time.

It runs on a driver of its own; whoever sends and receives is a task. What was sent before the answer has begun is kept,
for another connection where the first one turns out to be dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.filters.calls import CallFailed, StreamReceiver
from egressproxy.filters.chain import Chain, finish
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.own_caller import OwnCaller
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.upstream_call import HeldConnection
from egressproxy.gateway.own_calls.own_call import begin_own_call
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED
from egressproxy.net.driver import Driver, driven
from egressproxy.net.flow_control import HIGH_WATER
from egressproxy.protocols.grpc.framing import STREAM_FIELDS, GrpcMessageReader, check_end, check_head, framed
from egressproxy.protocols.upstream import Upstream

#: So many bytes of what was sent are kept until the answer begins; a call that has sent more is not made again.
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024


class BidirectionalCall(OwnCaller):
    """Implements `filters.calls.MessageStream`."""

    __slots__ = (
        "_backend", "_chain", "_cluster", "_counted", "_has_ended", "_inner", "_is_blocked", "_is_over",
        "_is_reading_paused", "_kept", "_kept_bytes", "_life", "_linger", "_reader", "_receiver", "_started",
        "_trailers", "_upstream", "_waiting", "connection", "driver",
    )  # fmt: skip

    def __init__(
        self,
        cluster: Cluster | None,
        chain: Chain,
        inner: Exchange,
        fault: GatewayError | None,
        receiver: StreamReceiver,
        max_message_bytes: int,
        counted: Callable[[str, float], None],
    ) -> None:
        """Begin the call of `inner.request`. `cluster` None: it fails with `fault`. `counted`: of result, seconds."""
        self.connection = HeldConnection()
        self._cluster = cluster
        self._chain = chain
        self._inner = inner
        self._counted = counted
        self._started = monotonic()
        self._backend = inner.backend
        self._reader = GrpcMessageReader(max_message_bytes)
        self._receiver: StreamReceiver | None = receiver  # None: nobody is told any more
        self._is_reading_paused = False
        self._kept: list[bytes] | None = []  # None: no more is kept
        self._kept_bytes = 0
        self._upstream: Upstream | None = None  # what is sent goes there
        self._trailers = b""
        self._waiting: list[asyncio.Future[None]] = []
        self._has_ended = False  # we say no more
        self._is_blocked = False
        self._is_over = False
        self._linger: asyncio.TimerHandle | None = None
        self._life: asyncio.Future[None] | None = None
        inner.request.body = CHUNKED
        inner.request.te_trailers = True
        for name, value in STREAM_FIELDS:
            inner.request.fields.set(name, value)
        if cluster is None:
            assert fault is not None
            self._over(fault)
        else:
            life = driven(self._live)
            if not self._is_over:
                self._life = life

    # --- for filters -----------------------------------------------------------------------------------------------
    @property
    def unsent_bytes(self) -> int:
        if self._upstream is None:
            return self._kept_bytes
        unsent: int = getattr(self._upstream, "unsent_size", 0)
        return unsent

    def send(self, message: bytes) -> None:
        if self._is_over or self._has_ended:
            return
        data = framed(message)
        if self._kept is not None:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes > MAX_KEPT_BYTES and self._upstream is not None:
                self._kept = None
        if self._upstream is not None:
            self._upstream.send_body(data)

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if self._upstream is not None:
            self._upstream.resume_reading()

    async def drained(self) -> None:
        while not self._is_over and (self._is_blocked if self._upstream is not None else self._kept_bytes > HIGH_WATER):
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def end(self, linger_s: float) -> None:
        if self._is_over or self._has_ended:
            return
        self._has_ended = True
        self._receiver = None
        if self._upstream is not None:
            self._upstream.end_body(b"")
            self._upstream.resume_reading()
        if not self._is_over:
            self._linger = asyncio.get_running_loop().call_later(linger_s, self.close)

    def close(self) -> None:
        self._receiver = None
        if self._life is not None:
            self._life.cancel()

    # --- for the call ------------------------------------------------------------------------------------------------
    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        if self._kept is None:
            raise UpstreamFault(Reason.UPSTREAM_RESET, "too much was sent to be sent again")
        super().send_request(exchange, upstream, None, pseudonym)
        self._upstream = upstream
        self._is_blocked = False
        upstream.feed_from(_Feeder(self))
        for data in self._kept:
            upstream.send_body(data)
        if self._has_ended:
            upstream.end_body(b"")
        self._wake()

    def connection_is_full(self, *, is_full: bool) -> None:
        """Senders wait, or wait no more."""
        self._is_blocked = is_full
        if not is_full:
            self._wake()

    def send_body(self, data: bytes) -> None:
        """Take a piece of the answer. Raises UpstreamFault for a message that is too long, or compressed."""
        try:
            messages = self._reader.feed(data)
        except ValueError as error:
            raise UpstreamFault(Reason.BAD_RESPONSE, str(error)) from None
        for message in messages:
            if self._receiver is not None:
                self._receiver.message_came(message)

    def end_body(self, trailers: bytes) -> None:
        self._trailers = trailers

    async def _live(self, driver: Driver) -> None:
        self.driver = driver
        cluster, chain, inner, held = self._cluster, self._chain, self._inner, self.connection
        assert cluster is not None
        error: GatewayError | None = None
        is_whole = False
        try:
            upstream = await begin_own_call(self, held, inner, cluster, chain, b"")
            self._kept = None
            check_head(inner.response.status, inner.response.fields)
            if not upstream.has_ended:
                upstream.send_response_body_to(self)
                if self._is_reading_paused:
                    upstream.pause_reading()
                await upstream.response_end()
            check_end({**dict(inner.response.fields), **dict(Fields(self._trailers))})
            if not self._reader.is_between:
                raise UpstreamFault(Reason.UPSTREAM_INCOMPLETE, "the stream ended within a message")
            held.release(reusable=upstream.is_reusable())
            is_whole = True
        except GatewayError as caught:
            error = caught
            held.fail(inner, caught)
        finally:
            held.release(reusable=False)
            finish(chain.complete, inner)
            self._over(error, is_cut=not (is_whole or self._has_ended))
            del error

    def _over(self, error: GatewayError | None, *, is_cut: bool = False) -> None:
        """`is_cut`: it was closed before either side had ended it."""
        receiver, self._receiver = self._receiver, None
        self._is_over = True
        self._upstream = self._life = None
        self._kept = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        result = "cancelled" if is_cut else "ok"
        self._counted(error.reason.value if error is not None else result, monotonic() - self._started)
        self._wake()
        if receiver is not None:
            failure = None
            if error is not None:
                failure = CallFailed(error.reason, f"backend {self._backend} could not be asked: {error.message}")
            receiver.stream_ended(failure)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class _Feeder:
    """What the connection pauses and resumes: whoever sends on this stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: BidirectionalCall) -> None:
        self._stream = stream

    def pause_reading(self) -> None:
        self._stream.connection_is_full(is_full=True)

    def resume_reading(self) -> None:
        self._stream.connection_is_full(is_full=False)
