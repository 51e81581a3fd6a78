"""The upstream call: take or dial a connection, run the backend's filters, send, read the head, and decide whether the
request may go again. For requests of clients, their mirrored copies, and questions to authorization servers.
"""

from __future__ import annotations

from time import monotonic
from typing import ClassVar, Final, Protocol

from egressproxy.errors import GatewayError, GatewayFault, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.chain import Chain, run, run_to_end
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.parent_connect import absolute_form, identity_line, refused_credentials
from egressproxy.gateway.backends.replayable_body import ReplayableBody, filtered_backend_body
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import SENT_BODY, Exchange
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.per_client_quota import client_of
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.protocols.grpc.statuses import failure_status
from egressproxy.protocols.upstream import Upstream
from egressproxy.upstream.pool import PoolTicket

#: RFC 9110 section 9.2.2, without the methods that are never forwarded.
IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
#: Stale connections are replaced, and other endpoints tried, until there were this many attempts.
MAX_ATTEMPTS: Final = 3


class Repeat:
    """Which calls `call_upstream` makes again by itself.

    NEVER: the caller counts every attempt. IF_STALE: an idempotent request without a body, when an idle connection has
    died under it. ALWAYS: any request, then or when another endpoint can take it.
    """

    NEVER: Final = 0
    IF_STALE: Final = 1
    ALWAYS: Final = 2


class AttemptCounter:
    """The cluster of a parent, held for a request that counts at its own target (see HostMonitor)."""

    __slots__ = ("_target", "_ticket", "_via", "behind", "network")

    def __init__(self, via: Cluster, target: UpstreamHost, client: str) -> None:
        self._via = via
        self._target = target
        self._ticket: PoolTicket[Upstream] = PoolTicket(client)
        self.behind = via.behind
        self.network = via.network
        target.pool.count(self._ticket)

    def release(self, target: UpstreamHost, connection: Upstream, *, reusable: bool) -> None:
        """Give the connection back and its place among the attempts, too."""
        self._target.pool.lost(self._ticket)
        self._via.release(target, connection, reusable=reusable)


class HeldConnection:
    """The upstream connection of a call, and the cluster to give it back to; None while there is none."""

    __slots__ = ("cluster", "target", "upstream")

    cluster: Cluster | AttemptCounter | None
    target: UpstreamHost | None
    upstream: Upstream | None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hold nothing any more."""
        self.cluster = None
        self.target = None
        self.upstream = None

    def hold(self, cluster: Cluster | AttemptCounter, target: UpstreamHost, upstream: Upstream) -> None:
        self.cluster = cluster
        self.target = target
        self.upstream = upstream

    def release(self, *, reusable: bool) -> None:
        """Give the upstream connection back, if there is one. One that is not `reusable` is closed."""
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            self.cluster.release(self.target, upstream, reusable=reusable)  # type: ignore[union-attr, arg-type]  # held with it

    def fail(self, exchange: Exchange, error: GatewayError) -> None:
        """This exchange has failed behind the head of its response: close its connection, and tell of the endpoint."""
        target = self.target
        if self.upstream is not None and target is not None and target.monitor is not None:
            target.monitor.failed(target, error, exchange, self.upstream)
        self.release(reusable=False)

    def check_credentials(self, exchange: Exchange) -> None:
        """Raises UpstreamFault where a parent has answered 407, and not the backend."""
        via = self.cluster
        if exchange.response.status == 407 and via is not None and via.behind is not None:
            raise refused_credentials(via.behind)

    def give_away(self) -> Upstream:
        """Return the upstream connection and hold it no more: it belongs to a tunnel now."""
        upstream, self.upstream = self.upstream, None
        assert upstream is not None
        return upstream


class UpstreamCaller(Protocol):
    """Who calls an upstream: the driver, and what is done at each step of a call."""

    __slots__ = ()

    may_flow: ClassVar[bool]  # `send_request` sends bodies through `streaming_backend_filters`
    driver: Driver

    def start_attempt(self) -> None:
        """Called when an attempt begins: start its clock."""

    def count_attempt(self, result: str) -> None:
        """Called when an attempt has ended without an answer; `result` is the reason of its failure."""

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        """Called when an attempt has its answer, the final head, so many seconds after it began."""

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        """Send the head of `exchange.request`, and begin its body. `pseudonym`: our name in Via."""

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        """Called for each interim response (RFC 9110 section 15.2)."""


async def call_upstream(
    caller: UpstreamCaller,
    held: HeldConnection,
    exchange: Exchange,
    cluster: Cluster,
    target: UpstreamHost,
    chain: Chain,
    body: bytes | ReplayableBody | None,
    repeat: int = Repeat.IF_STALE,
) -> Upstream | LocalResponse:
    """Send `exchange.request` to a target of this cluster, until `exchange.response` is there: its final head.

    Returns the connection, which is in `held` and has to be released; or the response of a backend-request filter,
    and nothing is held. Raises GatewayError; one with RetrySafety.IF_REUSED says that an idle connection had died.
    """
    head = exchange.request
    block, path, host = head.fields.block, head.path, exchange.upstream_host
    while True:
        exchange.attempts += 1
        began = monotonic()
        trace: ExchangeTrace | None = exchange.trace
        span_id = b"" if trace is None else trace.start_attempt(exchange)
        caller.start_attempt()
        exchange.backend_is_secure = target.tls is not None
        if not host:
            exchange.upstream_host = cluster.host_field(exchange, target)
        via, next_hop = cluster, target
        if not cluster.is_simple:
            if target.monitor is not None:
                target.monitor.admit(target)
            via, next_hop = cluster.next_hop(exchange, target)
            if via.behind is not None:
                exchange.upstream_host = target.host_field  # filters see what will be sent
        try:
            if via.network.wheel.now < next_hop.name.fresh_until or via.refresh_name(exchange, next_hop):
                upstream = next_hop.pool.take()
            else:
                upstream = None
            if upstream is None:
                if cluster.parents is None:
                    upstream = await via.acquire(exchange, next_hop, chain.connect)
                else:
                    via, next_hop, upstream = await cluster.acquire_by_any_way(exchange, target, chain.connect)
                    by_route = host or cluster.host_field(exchange, target)
                    exchange.upstream_host = target.host_field if via.behind is not None else by_route
            held.cluster, held.target, held.upstream = via, next_hop, upstream
            exchange.upstream = upstream.address
            if via.is_unverified:
                via.note_unverified(exchange, next_hop)
            if chain.backend_request is not None:
                exchange.backend_origin = target.origin
                if chain.takes_body:
                    given = body
                    if chain.backend_request_body is not None:
                        body = await filtered_backend_body(exchange, chain, body, may_flow=caller.may_flow)
                    if chain.needs_body >= 0:
                        exchange.keep(SENT_BODY, whole_body(exchange, body))
                answer = run(chain.backend_request, exchange)
                if answer is not None and not isinstance(answer, LocalResponse):
                    answer = await answer
                if chain.takes_body:
                    exchange.keep(SENT_BODY, None)  # the answer may take long
                if answer is not None:
                    held.release(reusable=not upstream.is_last)
                    return answer
            if via.behind is None:
                caller.send_request(exchange, upstream, body, via.network.pseudonym)
            else:
                send_to_parent(caller, held, exchange, upstream, body, via, target)
            response = upstream.next_head() if upstream.is_lost else None  # it left while a filter waited
            while response is None:
                await PAUSE
                response = upstream.next_head()
            if response.status < 200:
                response = await final_head(caller, exchange, upstream, response)
            exchange.response = response
        except GatewayError as error:
            if trace is not None:
                trace.end_attempt(exchange, span_id, began, error.reason.value)
            caller.count_attempt(error.reason.value)
            failed = held.upstream
            if target.monitor is not None:
                target.monitor.failed(target, error, exchange, failed)
            held.release(reusable=False)
            was_reused = failed is not None and failed.was_reused
            if failed is not None and not was_reused and error.retry is RetrySafety.IF_REUSED:
                error.retry = RetrySafety.IF_IDEMPOTENT
            is_unseen = failed is not None and (exchange.request.body == 0 or isinstance(body, bytes))
            if not may_repeat(exchange, cluster, error, repeat, was_reused=was_reused, is_unseen=is_unseen):
                raise
            if chain.takes_body and failed is not None:
                body = given  # set behind `held.hold`
            # Each attempt starts from the client's request: it gets its own credential and no other.
            head.fields.block, head.path, exchange.upstream_host = block, path, host
            if repeat == Repeat.ALWAYS:
                target = cluster.another_target(exchange, (target,))
            continue
        took_s = monotonic() - began
        if trace is not None:
            trace.answer_attempt(exchange, span_id, began, took_s)
        caller.count_answer(exchange, took_s)
        if cluster.host_set is not None:
            status = response.status
            if status == 200 and response.body == 0:  # trailers alone, maybe
                status = failure_status(response.fields.block)
            target.monitor.answered(target, upstream.address, status)  # type: ignore[union-attr]  # it has one
        return upstream


def whole_body(exchange: Exchange, body: bytes | ReplayableBody | None) -> bytes:
    """The whole body, for filters that need it. Raises GatewayFault (502) where it is to come, as for a mirror."""
    if isinstance(body, ReplayableBody):
        body = body.given
    if body is None:
        if exchange.request.body != 0:
            message = f"a filter of backend {exchange.backend} needs the whole body, which is not here"
            raise GatewayFault(Reason.FILTER_FAILED, message, status=502)
        return b""
    return body


async def filtered_answer(
    held: HeldConnection, exchange: Exchange, chain: Chain, found: Upstream | LocalResponse
) -> Upstream | LocalResponse:
    """What has come of an attempt, as the backend-response filters leave it; with the response of one of them, nothing
    is held. Raises what they refuse with: NextAttempt, too. A 407 is not for clients, and no filter makes it another.
    """
    if chain.backend_response is None or isinstance(found, LocalResponse) or exchange.response.status == 407:
        return found
    answer = await run_to_end(chain.backend_response, exchange)
    if answer is None:
        return found
    held.release(reusable=False)
    return answer


def proxy_credentials_fault(via: Cluster | AttemptCounter | None) -> UpstreamFault:
    """The error in place of a 407, after which the client would send what is meant for us. `via` has given the
    connection: a parent answers plain http itself; any other upstream that asks for proxy credentials is no proxy of
    ours.
    """
    if via is not None and via.behind is not None:
        return refused_credentials(via.behind)
    return UpstreamFault(Reason.BAD_RESPONSE, "the upstream asked for proxy credentials (407)")


def may_repeat(
    exchange: Exchange,
    cluster: Cluster,
    error: GatewayError,
    repeat: int,
    *,
    was_reused: bool,
    is_unseen: bool = False,
) -> bool:
    """Whether a call that failed like this is made again, where its caller allows `repeat`.

    `was_reused`: its connection had served another request before (RFC 9110 section 9.2.2). `is_unseen`: it had a
    connection, and all of it can be sent again: a stream that was refused may begin anew (RFC 9113 section 8.7).
    """
    if repeat == Repeat.NEVER or exchange.attempts >= MAX_ATTEMPTS:
        return False
    if is_unseen and error.retry is RetrySafety.SAFE:
        return True
    is_stale = was_reused and error.retry is RetrySafety.IF_REUSED
    if repeat == Repeat.ALWAYS:
        return is_stale or (error.retry is RetrySafety.SAFE and len(cluster.endpoints) > 1)
    return is_stale and exchange.request.method in IDEMPOTENT and exchange.request.body == 0


def send_to_parent(
    caller: UpstreamCaller,
    held: HeldConnection,
    exchange: Exchange,
    upstream: Upstream,
    body: bytes | ReplayableBody | None,
    parent: Cluster,
    target: UpstreamHost,
) -> None:
    """Send plain http in absolute-form (RFC 9112 section 3.2.2). Filters never see the parent's credential. The request
    counts at its target, though the connection is the parent's: raises LimitExceeded (503) of its circuit breaker.
    """
    if target.monitor is not None:
        target.monitor.admit(target)
        held.cluster = AttemptCounter(parent, target, client_of(exchange))
    fields = exchange.request.fields
    block = fields.block
    exchange.upstream_host = target.host_field
    exchange.request.path = absolute_form(target.host_field, exchange.request.path)
    if parent.proxy_authorization is not None:
        fields.block = block + parent.proxy_authorization.reveal()
    if parent.behind is not None and parent.behind.parent_identity_key is not None:
        authority = Authority(target.host, target.port).text
        fields.block += identity_line(parent.behind, exchange, exchange.request.method, authority, is_of_client=True)
    try:
        caller.send_request(exchange, upstream, body, parent.network.pseudonym)
    finally:
        fields.block = block


async def final_head(
    caller: UpstreamCaller, exchange: Exchange, upstream: Upstream, head: ResponseHead
) -> ResponseHead:
    """The final head, after interim ones (RFC 9110 section 15.2). Raises UpstreamFault for a 101 not asked for."""
    while head.is_interim:
        caller.pass_interim(head, exchange)
        following = upstream.next_head()
        while following is None:
            await PAUSE
            following = upstream.next_head()
        head = following
    if head.status == 101:
        check_switch(exchange.request, head)
    return head


def check_switch(request: RequestHead, response: ResponseHead) -> None:
    """Raise UpstreamFault unless the 101 names a protocol that was asked for (RFC 9110 section 7.8)."""
    wanted = {token.strip().lower() for token in request.upgrade.split(b",")} if request.upgrade else set()
    if not response.upgrade or response.upgrade.strip().lower() not in wanted:
        raise UpstreamFault(Reason.BAD_RESPONSE, "the upstream switched to a protocol that was not asked for")
