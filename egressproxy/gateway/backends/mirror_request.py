"""MirrorRequest: one request on its way to a mirror, whose answer is thrown away.

A copy begins when the request itself goes to its backend, and from there on has a life of its own: its own connection,
driver and clock. It never holds the request up: what the mirror does not take at once is kept up to a bound, and beyond
that the copy is dropped. It carries what the request was when its backend was chosen, without what filters of that
backend add (credentials); the connect and backend-request filters of its own backend run for it.
Source: Gateway API v1 HTTPRequestMirrorFilter, GEP-3171.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.filters.chain import finish, run_to_end
from egressproxy.gateway.backends.mirror import MAX_HELD, Mirror
from egressproxy.gateway.backends.own_caller import OwnCaller
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.upstream_call import HeldConnection, call_upstream
from egressproxy.gateway.enforcement import enforce
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED, BodyLength, RequestHead
from egressproxy.model.per_client_quota import client_of
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import BodySink
from egressproxy.net.timers import Deadline
from egressproxy.protocols.upstream import Upstream

log = logging.getLogger(__name__)

#: What is read of an answer before its connection is closed.
MAX_ANSWER: Final = 1024 * 1024

DROPPED: Final = "dropped"


def mirror_requests_of(mirrors: Sequence[Mirror], exchange: Exchange) -> MirrorRequests | None:
    """The copies to make of a request, as it is now; None where no mirror is due. An upgrade is not copied."""
    if exchange.request.upgrade:
        return None
    made = [MirrorRequest(mirror, exchange) for mirror in mirrors if mirror.count_request()]
    return MirrorRequests(made) if made else None


class MirrorRequests:
    """The copies of one request. They are a sink for its body, which hands every piece to the real sink first."""

    __slots__ = ("_copies", "_sink")

    def __init__(self, mirror_requests: Sequence[MirrorRequest]) -> None:
        self._copies = mirror_requests
        self._sink: BodySink | None = None

    def begin(self, head: RequestHead, sink: BodySink) -> None:
        """Start every copy. The request itself goes to its backend with this head, and its body into this sink."""
        self._sink = sink
        for each in self._copies:
            each.begin(head.body)

    def begin_whole(self, body: bytes, trailers: bytes) -> None:
        """Send every copy this body and the trailers behind it; the request itself has others."""
        for each in self._copies:
            each.begin(CHUNKED if trailers else len(body))
            if body:
                each.send_body(body)
            each.end_body(trailers)

    def send_body(self, data: bytes) -> None:
        assert self._sink is not None
        self._sink.send_body(data)
        for each in self._copies:
            each.send_body(data)

    def end_body(self, trailers: bytes) -> None:
        assert self._sink is not None
        self._sink.end_body(trailers)
        for each in self._copies:
            each.end_body(trailers)

    def end(self) -> None:
        self._sink = None
        for each in self._copies:
            each.end()


class MirrorRequest(OwnCaller):
    """One copy of one request: a sink for its body, and the source for its connection."""

    __slots__ = (
        "_bytes", "_client", "_deadline", "_exchange", "_held", "_held_bytes", "_is_over", "_is_whole", "_mirror",
        "_trailers", "_upstream", "connection", "driver",
    )  # fmt: skip

    _client: str
    _deadline: Deadline

    def __init__(self, mirror: Mirror, original: Exchange) -> None:
        self._mirror = mirror
        self.connection = HeldConnection()
        self._upstream: Upstream | None = None  # takes the body
        self._held = ByteQueue()  # wait
        self._held_bytes = 0
        self._bytes = 0
        self._trailers: bytes | None = None  # None: more may come
        self._is_whole = False  # all of the body has gone out
        self._is_over = False
        self._exchange = own = original.copy()
        own.request = original.request.copy()
        own.request.fields.remove(b"expect")  # we do not wait for a 100
        own.request.expect_continue = False
        own.backend = mirror.backend
        own.series = mirror.series
        own.forget_state(original.state)  # the original keeps its own state
        own.max_body_bytes, own.attempts, own.trace = -1, 0, None

    # --- the request's side ----------------------------------------------------------------------------------------
    def begin(self, length: BodyLength) -> None:
        """Start, with a body of this length; or drop the copy where there are too many."""
        mirror = self._mirror
        self._exchange.request.body = length
        if length == 0:
            self._trailers = b""
        network = mirror.cluster.network
        client = self._client = client_of(self._exchange)
        is_counted = mirror.in_progress.take(client)
        if not is_counted or not network.mirror_requests.take(client):
            if is_counted:
                mirror.in_progress.give_back(client)
            self._is_over = True
            mirror.series.mirror(DROPPED)
            return
        self.driver = Driver()
        self._deadline = Deadline(network.wheel, self._rested)
        self._deadline.after(mirror.rest_s)
        self.driver.start(self._live())

    def send_body(self, data: bytes) -> None:
        """BodySink: send a piece on, or keep it until the mirror takes it. A copy that keeps too much is dropped."""
        if self._is_over:
            return
        self._bytes += len(data)
        limit = self._exchange.max_body_bytes
        if 0 <= limit < self._bytes:
            self.driver.throw(UpstreamFault(Reason.BODY_TOO_LARGE, "the body is too long for its mirror"))
            return
        upstream = self._upstream
        if upstream is not None and not self._held and not upstream.is_write_blocked:
            upstream.send_body(data)
            self._deadline.after(self._mirror.rest_s)
            return
        self._held.append(data)
        self._count(len(data))
        mirror = self._mirror
        if (
            self._held_bytes > MAX_HELD
            or mirror.held.is_exceeded(self._client)
            or mirror.cluster.network.copied_bytes.is_exceeded(self._client)
        ):
            self.driver.throw(_Dropped())

    def end_body(self, trailers: bytes) -> None:
        """BodySink: the body is whole. Where filters of the mirror look at the head, they have not seen trailers."""
        self._trailers = trailers if self._mirror.chain.backend_request is None else b""
        self.resume_reading()

    def end(self) -> None:
        if not self._is_over and self._trailers is None:
            self.driver.throw(_Dropped())

    # --- Reads: the connection asks ----------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        """Reads: nothing to do, since pieces that come are held."""

    def resume_reading(self) -> None:
        upstream = self._upstream
        if upstream is None or self._is_over:
            return
        while self._held and not upstream.is_write_blocked:
            data = self._held.popleft()
            upstream.send_body(data)
            self._uncount(len(data))
        if self._trailers is not None and not self._held and not self._is_whole:
            self._is_whole = True
            upstream.end_body(self._trailers)
        self._deadline.after(self._mirror.rest_s)

    # --- its life ----------------------------------------------------------------------------------------------------
    async def _live(self) -> None:
        result = Reason.INTERNAL.value
        try:
            await self._reach()
            result = "ok"
        except GatewayError as error:
            result = error.reason.value
        except _Dropped:
            result = DROPPED
        except GeneratorExit:
            raise  # the process ends
        except BaseException as error:  # also what a filter may raise to end more than itself
            log.error("internal error in a mirror of exchange %s", self._exchange.request_id, exc_info=error)
        finally:
            self._is_over = True
            self._upstream = None
            self.connection.release(reusable=False)
            self._deadline.close()
            self._held.clear()
            if self._held_bytes:
                self._uncount(self._held_bytes)
            self._mirror.in_progress.give_back(self._client)
            self._mirror.cluster.network.mirror_requests.give_back(self._client)
            self._mirror.series.mirror(result)
            finish(self._mirror.chain.complete, self._exchange)
            self._exchange.forget_state()

    async def _reach(self) -> None:
        exchange, mirror = self._exchange, self._mirror
        if mirror.destinations.denies and exchange.authority is not None:
            enforce(exchange, mirror.mode, mirror.destinations.explicit_deny(exchange.authority))
            if mirror.denied is not None:
                enforce(exchange, mirror.mode, mirror.denied.error())
        if mirror.permission is not None and exchange.authority is not None:
            enforce(exchange, mirror.permission.mode, mirror.permission.decide(exchange.authority))
        if await run_to_end(mirror.limits, exchange) is not None:
            raise _Dropped  # a filter has answered
        cluster = mirror.cluster
        upstream = await call_upstream(
            self, self.connection, exchange, cluster, cluster.target(exchange), mirror.chain, None
        )
        if isinstance(upstream, LocalResponse):
            raise _Dropped
        if not upstream.has_ended:
            upstream.send_response_body_to(_Waste())
            with suppress(GatewayError):  # how its body ends does not matter
                await upstream.response_end()
        self._upstream = None
        self.connection.release(reusable=upstream.is_reusable())
        self.connection.check_credentials(exchange)

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        super().send_request(exchange, upstream, body, pseudonym)
        if exchange.request.body != 0:
            self._upstream = upstream
            upstream.feed_from(self)
            self.resume_reading()

    def _rested(self) -> None:
        self.driver.throw(UpstreamFault(Reason.RESPONSE_TIMEOUT, "the mirror took too long"))

    def _count(self, amount: int) -> None:
        self._held_bytes += amount
        self._mirror.held.add(self._client, amount)
        self._mirror.cluster.network.copied_bytes.add(self._client, amount)

    def _uncount(self, amount: int) -> None:
        self._held_bytes -= amount
        self._mirror.held.give_back(self._client, amount)
        self._mirror.cluster.network.copied_bytes.give_back(self._client, amount)


class _Dropped(Exception):
    """A copy is not worth going on with."""


@dataclass(slots=True, eq=False, repr=False)
class _Waste:
    """Where answers of mirrors go."""

    _bytes: int = 0

    def send_body(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > MAX_ANSWER:
            raise UpstreamFault(Reason.BODY_TOO_LARGE, "the answer of a mirror is longer than we read")

    def end_body(self, trailers: bytes) -> None:
        pass
