"""Calls of the gateway's own: requests that it makes for itself, to authorization servers and for its filters.

Each goes through the filters of the backend that is asked, over that backend's pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Final, NamedTuple

from egressproxy.errors import GatewayError, Reason, UpstreamFault
from egressproxy.filters.calls import CallAnswer, CallFailed, StreamReceiver
from egressproxy.filters.chain import Chain, finish
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.own_caller import OwnCaller
from egressproxy.gateway.backends.upstream_call import HeldConnection
from egressproxy.gateway.own_calls.bidirectional_call import BidirectionalCall
from egressproxy.gateway.own_calls.own_call import begin_own_call
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import Driver, driven
from egressproxy.telemetry.counters import CallCounts

#: The longest answer that is read: a page that tells people where to log in.
MAX_ANSWER_BYTES: Final = 1024 * 1024


@dataclass(slots=True, eq=False, repr=False)
class BackendCall:
    """Implements `filters.calls.FilterCall`. `cluster` None: every call fails with `fault`."""

    _filter: str  # its name
    backend: str
    _cluster: Cluster | None
    _chain: Chain
    _fault: GatewayError | None
    _counts: CallCounts

    @property
    def is_verified(self) -> bool:
        tls = self._cluster.spec.backend.tls if self._cluster is not None else None
        return tls is not None and tls.is_verified

    async def request(
        self,
        method: bytes,
        path: bytes,
        fields: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        timeout_s: float,
        x: Exchange | None = None,
    ) -> CallAnswer:
        message = f"backend {self.backend} did not answer within {timeout_s:g} s"
        async with self._counted(timeout_s, CallFailed(Reason.RESPONSE_TIMEOUT, message), "asked"):
            return await self._answer(method, path, Fields.of(fields), body, x)

    async def open(self, protocol: asyncio.Protocol, *, timeout_s: float) -> asyncio.Transport:
        inner = self._own_exchange(RequestHead(b"CONNECT", b"/", Fields()), None)
        message = f"backend {self.backend} could not be reached within {timeout_s:g} s"
        async with self._counted(timeout_s, CallFailed(Reason.CONNECT_TIMEOUT, message), "reached"):
            cluster = self._cluster
            if cluster is None:
                assert self._fault is not None
                raise self._fault
            return await cluster.open(inner, cluster.target(inner), self._chain.connect, protocol, ())

    @asynccontextmanager
    async def _counted(self, timeout_s: float, late: CallFailed, done: str) -> AsyncIterator[None]:
        """A context that bounds a call and counts it. Raises CallFailed: `late` when its time is over."""
        started = monotonic()
        result = "cancelled"  # the client has left, or the filter's time is over
        try:
            async with asyncio.timeout(timeout_s):
                yield
            result = "ok"
        except TimeoutError:
            result = late.reason.value
            raise late from None
        except GatewayError as error:
            result = error.reason.value
            raise CallFailed(error.reason, f"backend {self.backend} could not be {done}: {error.message}") from None
        finally:
            self._counts.count(self._filter, self.backend, result, monotonic() - started)

    def open_stream(
        self,
        path: bytes,
        receiver: StreamReceiver,
        fields: Iterable[tuple[bytes, bytes]] = (),
        *,
        max_message_bytes: int,
        x: Exchange | None = None,
    ) -> BidirectionalCall:
        inner = self._own_exchange(RequestHead(b"POST", path, Fields.of(fields)), x)
        counted = partial(self._counts.count, self._filter, self.backend)
        return BidirectionalCall(self._cluster, self._chain, inner, self._fault, receiver, max_message_bytes, counted)

    async def _answer(
        self, method: bytes, path: bytes, fields: Fields, body: bytes, exchange: Exchange | None
    ) -> CallAnswer:
        cluster, chain = self._cluster, self._chain
        if cluster is None:
            assert self._fault is not None
            raise self._fault
        head = RequestHead(method, path, fields)
        head.body = len(body)
        answer = await unary_call(self._own_exchange(head, exchange), cluster, chain, body, _plain)
        return CallAnswer(answer.head.status, answer.head.fields, answer.body)

    def _own_exchange(self, head: RequestHead, exchange: Exchange | None) -> Exchange:
        cluster = self._cluster
        inner = own_exchange(exchange or Exchange("-", "-", "-", monotonic()), head, self.backend)
        inner.path = head.path.partition(b"?")[0]
        inner.backend_is_secure = cluster is not None and cluster.spec.backend.tls is not None
        return inner


class CallResponse(NamedTuple):
    """What a server has answered. `trailers` are field lines, or b""."""

    head: ResponseHead
    body: bytes
    trailers: bytes


def _plain(answer: CallResponse) -> bytes:
    """The body of an answer. Raises UpstreamFault where a content coding hides the bytes."""
    coding = answer.head.fields.get(b"content-encoding")
    if answer.body and coding is not None and coding.lower() != b"identity":
        raise UpstreamFault(Reason.BAD_RESPONSE, "the answer has a content coding, and none was asked for")
    return answer.body


async def unary_call(
    inner: Exchange, cluster: Cluster, chain: Chain, body: bytes,
    content: Callable[[CallResponse], bytes] = attrgetter("body"),
) -> CallResponse:  # fmt: skip
    """Call the server through its filters, from a task. `content` reads the body of the answer for the body filters.
    Raises GatewayError.
    """
    try:
        answer = await driven(lambda driver: _respond(driver, inner, cluster, chain, body))
        plan, passed = chain.response_body, content(answer)
        filters = plan.begin(inner) if plan is not None else None
        return answer._replace(body=passed if filters is None else await filters.feed_to_end(inner, passed, True))
    finally:
        finish(chain.complete, inner)


async def _respond(driver: Driver, inner: Exchange, cluster: Cluster, chain: Chain, body: bytes) -> CallResponse:
    """The answer of the server, before its body filters."""
    caller = _UnaryCaller(driver)
    try:
        upstream = await begin_own_call(caller, caller.connection, inner, cluster, chain, body or None)
        response = inner.response
        if not upstream.has_ended:
            upstream.send_response_body_to(caller)
            await upstream.response_end()
        caller.connection.release(reusable=upstream.is_reusable())
        return CallResponse(response, caller.answer.joined(), caller.trailers)
    except GatewayError as error:
        caller.connection.fail(inner, error)
        raise
    finally:
        caller.connection.release(reusable=False)


class _UnaryCaller(OwnCaller):
    """A caller with a driver of its own. `answer` collects the body of the response, up to a bound."""

    __slots__ = ("_size", "answer", "connection", "driver", "trailers")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.connection = HeldConnection()
        self.answer = ByteQueue()
        self.trailers = b""
        self._size = 0

    def send_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        self.answer.append(data)

    def end_body(self, trailers: bytes) -> None:
        self.trailers = trailers


def own_exchange(exchange: Exchange, head: RequestHead, backend: str) -> Exchange:
    """An exchange of our own with the server, for the filters that run for it as a backend."""
    own = Exchange(
        exchange.client,
        exchange.gateway,
        exchange.listener,
        exchange.started_at,
        exchange.identity,
        request_id=exchange.request_id,
        backend=backend,
    )
    own.route = exchange.route
    own.request = head
    own.method = head.method
    own.path = exchange.path
    return own


def asked_host(exchange: Exchange) -> bytes:
    """The Host that the client has asked for; b"" if it has named none."""
    return exchange.request.host or (exchange.authority.host_field(80) if exchange.authority is not None else b"")
