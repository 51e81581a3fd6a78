"""Conductor: the life of an exchange, written as the list of its phases. It only calls; the hard things are elsewhere.

Runs on the client connection's Driver (ARCHITECTURE.md, the conductor): an await here is a pause of this exchange
alone, and
costs nothing where nothing has to be waited for. Every way out of `serve` passes `rescue` (errors to answers) and
`complete`.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
from collections import deque
from time import monotonic, time

from egressproxy.errors import ClientGone, GatewayError, GatewayFault, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.chain import HeaderStep, Outcome, finish, run
from egressproxy.gateway.backends.connector import Connector
from egressproxy.gateway.backends.dial_targets import Target
from egressproxy.gateway.backends.mirror import copies_of
from egressproxy.gateway.backends.parent_connect import absolute_form, refused_credentials
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.exchange.admission import check_switch, name_destination, refuse_loops, route_request
from egressproxy.gateway.exchange.body_filter import BodyFilter, Collector
from egressproxy.gateway.exchange.buffered_body import HELD, BufferedRequest, invite_body
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.exchange.connect import serve_connect, switch_protocols
from egressproxy.gateway.exchange.error_responses import ALLOW, answer_for, is_denial, is_told
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.gateway.exchange.recent_decisions import KEPT, PATH, Remembered
from egressproxy.gateway.snapshot import ActiveListener, Route, RouteBackend
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.model.shares import Shares
from egressproxy.net.descriptors import descriptors
from egressproxy.net.driver import pause
from egressproxy.net.flow_control import BodySink
from egressproxy.net.timers import TimerWheel
from egressproxy.protocols.http1.downstream import DownstreamConnection
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http1.writer import CONTINUE, answer_bytes, interim_bytes, request_bytes, response_bytes
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics

__all__ = ["Conductor"]

log = logging.getLogger(__name__)

#: RFC 9110 section 9.2.2: a request of these methods may go again if an idle connection died under it.
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
#: Stale connections are replaced this many times before the failure is believed.
MAX_ATTEMPTS = 3


class Conductor:
    """Serves every exchange of this process. Implements RequestHandler for its client connections."""

    def __init__(self, wheel: TimerWheel, access_log: AccessLog, pseudonym: bytes, metrics: Metrics) -> None:
        self.wheel = wheel
        self.access_log = access_log
        self.recent: Remembered = deque(maxlen=KEPT)
        self.pseudonym = pseudonym
        self.metrics = metrics
        self.notices = metrics.notices
        # Connections of clients to all listeners. With an upstream connection for each, one client has three quarters
        # of the descriptors, where no limit says anything.
        self.clients = Shares(sys.maxsize, descriptors() * 3 // 8)
        self.is_draining = False
        self.is_cutting = False  # the time of the drain is over: what ends now was ended by us
        self._id_prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    # --- called by client connections ----------------------------------------------------------------------------
    def on_request(self, client: DownstreamConnection, head: RequestHead) -> None:
        assert isinstance(client, ClientConnection)
        client.driver.start(self.serve(client, head))

    def on_bad_request(self, client: DownstreamConnection, error: GatewayError) -> None:
        """What came is no request: it is answered, counted and logged like one."""
        assert isinstance(client, ClientConnection)
        x = self.new_exchange(client.client, client.listener)
        self.rescue(x, client, error)
        self.complete(x, client)

    def on_deadline(self, client: DownstreamConnection) -> None:
        assert isinstance(client, ClientConnection)
        fault = client.look_at_clock()
        if fault is not None:
            client.driver.throw(fault)

    def on_lost(self, client: DownstreamConnection) -> None:
        assert isinstance(client, ClientConnection)
        client.state.leave(client)

    # --- the life of an exchange ---------------------------------------------------------------------------------
    async def serve(self, client: ClientConnection, head: RequestHead) -> None:
        """Name, decide, filter, choose, exchange, answer."""
        listener = client.state.port.first
        life = client.life
        x = self.new_exchange(client.client, listener)
        x.request = head
        x.method = head.method
        is_handed_over = False
        try:
            if head.method == b"CONNECT":
                is_handed_over = await serve_connect(self, x, client, head)
                return
            listener = name_destination(x, client, head, listener)
            if head.via or head.method == b"TRACE":
                refuse_loops(head, self.pseudonym)
            route = life.route = route_request(x, listener)
            client.start_clock(route.clock_s, route.idle_s)
            if head.max_forwards >= 0 and self.is_last_hop(x, client, head):
                return
            steps = route.chain.request_headers
            if steps is not None:
                if route.auth is not None:
                    x.note(HELD, BufferedRequest(client, head))
                outcome = run(steps, x)
                if outcome is not None and await self.is_answered(outcome, steps, x, client):
                    return
            client.body_limit = x.max_body_bytes
            body = None
            if route.buffers_request and head.body != 0:
                body = await self.collect_body(x, client, head, route)
            if route.attempts is None:
                choice = life.choice = route.choose()
                x.backend = choice.backend
                x.series = choice.series
                if choice.mirrors is not None:
                    life.copies = copies_of(choice.mirrors, x)  # before filters of this backend add its credential
                upstream = await self.reach_backend(
                    x,
                    client,
                    choice,
                    choice.connector.target(x),  # type: ignore[union-attr]  # `choose` gives none without
                    body,
                )
            else:
                upstream = await route.attempts.reach(self, x, client, route, body)
                choice = life.choice  # type: ignore[assignment]  # that of the last attempt
            if upstream is None:
                return
            if x.response.status == 407:
                raise wanted_credentials(x, choice)
            for steps in choice.chain.response_phases:
                outcome = run(steps, x)
                if outcome is not None and await self.is_answered(outcome, steps, x, client):
                    return
            if x.response.status == 101:
                await switch_protocols(self, x, client)
            elif not self.begin_response(x, client, choice, upstream):
                await self.relay_response(x, client, choice, upstream)
        except GatewayError as error:
            self.rescue(x, client, error)
        except BaseException as error:  # also what a filter may raise to end more than itself
            log.error("internal error in exchange %s", x.request_id, exc_info=error)
            self.rescue(x, client, GatewayFault(Reason.INTERNAL, "internal error", detail=type(error).__name__))
        finally:
            if not is_handed_over:
                self.complete(x, client)

    def is_last_hop(self, x: Exchange, client: ClientConnection, head: RequestHead) -> bool:
        """Count Max-Forwards down; where it is 0 already, the request ends here (RFC 9110 section 7.6.2)."""
        if head.max_forwards == 0:
            self.answer(x, client, LocalResponse(200, ((b"Allow", ALLOW),)))
            return True
        head.max_forwards -= 1
        return False

    async def reach_backend(
        self,
        x: Exchange,
        client: ClientConnection,
        choice: RouteBackend,
        target: Target,
        body: bytes | ReplayableBody | None,
    ) -> UpstreamConnection | None:
        """The attempts at one place, until `x.response` is there. None: a filter has answered.

        Raises GatewayError; one with Retry.IF_REUSED says that an idle connection had died.
        """
        connector: Connector = choice.connector  # type: ignore[assignment]  # the target is of it
        chain, head, life = choice.chain, x.request, client.life
        block, path, host = head.fields.block, head.path, x.upstream_host
        while True:
            x.attempts += 1
            client.start_attempt(choice.clock_s)
            x.backend_is_secure = target.tls is not None
            if not host:
                x.upstream_host = connector.host_field(x, target)
            via, way = connector, target
            if connector.parent is not None:
                via, way = connector.way(x, target)
                if via is not connector:
                    x.upstream_host = target.host_field  # filters see what will be sent
            try:
                if self.wheel.now < way.name.fresh_until or via.may_take(x, way):
                    upstream = way.pool.take()
                else:
                    upstream = None
                if upstream is None:
                    upstream = await via.acquire(x, way, chain.connect)
                life.hold(via, way, upstream)
                x.upstream = upstream.address
                if chain.backend_request is not None:
                    outcome = run(chain.backend_request, x)
                    if outcome is not None and await self.is_answered(outcome, chain.backend_request, x, client):
                        life.release(reusable=not upstream.is_last)
                        return None
                if via is connector:
                    self.send_request(x, client, upstream, body)
                else:
                    self.send_to_parent(x, client, upstream, body, connector, target)
                response = upstream.next_head() if upstream.is_lost else None  # it left while a filter waited
                while response is None:
                    await pause()
                    response = upstream.next_head()
                if response.status < 200:
                    response = await self.final_head(response, x, client, choice, upstream)
                x.response = response
            except GatewayError as error:
                choice.series.attempt(error.reason.value)
                held = life.upstream
                life.release(reusable=False)
                if held is not None and not held.was_reused and error.retry is RetrySafety.IF_REUSED:
                    error.retry = RetrySafety.IF_IDEMPOTENT
                if held is None or not may_retry(x, life, error):
                    raise
                # Each attempt starts from the client's request: it gets its own credential and no other.
                head.fields.block, head.path, x.upstream_host = block, path, host
                continue
            choice.series.attempt("ok")
            return upstream

    def send_to_parent(
        self, x: Exchange, client: ClientConnection, upstream: UpstreamConnection, body: bytes | ReplayableBody | None,
        connector: Connector, target: Target,
    ) -> None:  # fmt: skip
        """Plain http in absolute-form. No filter sees what the parent is shown, not even afterwards."""
        fields = x.request.fields
        block = fields.block
        x.upstream_host = target.host_field
        x.request.path = absolute_form(target.host_field, x.request.path)
        if connector.proxy_authorization is not None:
            fields.block = block + connector.proxy_authorization.reveal()
        try:
            self.send_request(x, client, upstream, body)
        finally:
            fields.block = block

    def send_request(
        self, x: Exchange, client: ClientConnection, upstream: UpstreamConnection, body: bytes | ReplayableBody | None
    ) -> None:
        """The head, and the body: at once where we have it, else as the client sends it."""
        head, life = x.request, client.life
        plan = None
        if body is not None:
            head.body = len(body) if isinstance(body, bytes) else body.length
        elif head.body != 0 and life.route is not None:
            plan = life.route.chain.request_body
            if plan is not None and not plan.keeps_length:
                head.body = CHUNKED
        has_body = head.body != 0
        upstream.begin(client.driver, head)
        upstream.send(request_bytes(head, x.upstream_host, self.pseudonym))
        sink: BodySink = upstream
        if life.copies is not None:
            sink, life.copies = life.copies, None
            sink.begin(head, body if isinstance(body, ReplayableBody) else upstream)
            if has_body:
                life.on_complete = sink.end
        if not has_body:
            return
        if body is not None:
            if isinstance(body, bytes):
                sink.send_body(body)
                sink.end_body(b"")
            else:
                body.send_to(upstream, body if sink is upstream else sink)
            return
        if plan is None:
            upstream.feed_from(client)
            client.send_request_body_to(sink)
        else:
            body_filter = life.request_filter = BodyFilter(x, plan.begin(x), sink, client, client.driver)
            upstream.feed_from(body_filter)
            client.send_request_body_to(body_filter)

    async def final_head(
        self,
        head: ResponseHead,
        x: Exchange,
        client: ClientConnection,
        choice: RouteBackend,
        upstream: UpstreamConnection,
    ) -> ResponseHead:
        """The head behind interim ones, which are passed on to 1.1 clients (RFC 9110 section 15.2)."""
        while head.is_interim:
            if x.request.http_1_0 or (head.status == 100 and not x.request.expect_continue):
                pass
            elif choice.chain.backend_response is None and choice.chain.response_headers is None:
                client.send(interim_bytes(head, self.pseudonym))
            elif head.status == 100:
                client.send(CONTINUE)  # without its fields, which no filter would have seen
            following = upstream.next_head()
            while following is None:
                await pause()
                following = upstream.next_head()
            head = following
        if head.status == 101:
            check_switch(x.request, head)
        return head

    def begin_response(
        self, x: Exchange, client: ClientConnection, choice: RouteBackend, upstream: UpstreamConnection
    ) -> bool:
        """Send the head. True if the response is complete with that: no body, or all of it was here, and is sent."""
        response, request, life = x.response, x.request, client.life
        plan = choice.chain.response_body
        if plan is not None and response.body != 0 and not plan.keeps_length:
            response.body = CHUNKED
        close = life.close = (
            life.close
            or request.connection_close
            or self.is_draining
            or client.state.is_closed
            or (client.has_ended and client.is_last)
        )
        status = response.status
        has_body = status != 204 and status != 304 and request.method != b"HEAD"
        http_1_0 = request.http_1_0
        head = response_bytes(response, self.pseudonym, close=close, http_1_0=http_1_0, has_body=has_body)
        client.sends_chunked = response.body < 0 and not http_1_0
        x.status = status
        if upstream.has_ended:
            client.send(head)
        else:
            body = upstream.whole_body() if plan is None else None
            if body is None:
                client.send(head)
                return False
            client.send(head + body)
        if not client.is_request_read:
            life.close = True  # answered before the request was whole: nothing can follow
        life.release(reusable=upstream.is_reusable)
        return True

    async def relay_response(
        self, x: Exchange, client: ClientConnection, choice: RouteBackend, upstream: UpstreamConnection
    ) -> None:
        """The body. With no body filter the two connections are joined, and this coroutine waits for the end."""
        life, plan = client.life, choice.chain.response_body
        if plan is None:
            upstream.send_response_body_to(client)
            client.feed_from(upstream)
            await upstream.response_end()
        else:
            body_filter = life.response_filter = BodyFilter(x, plan.begin(x), client, upstream, client.driver)
            upstream.send_response_body_to(body_filter)
            client.feed_from(body_filter)
            await upstream.response_end()
            while not body_filter.is_over:
                await pause()
        if not client.is_request_read:
            life.close = True  # answered before the request was whole: nothing can follow
        life.release(reusable=upstream.is_reusable)

    # --- filters and bodies --------------------------------------------------------------------------------------
    async def is_answered(
        self, outcome: Outcome, steps: tuple[HeaderStep, ...], x: Exchange, client: ClientConnection
    ) -> bool:
        """Wait for a phase whose filters did not end at once; true if one has answered (the answer is sent then)."""
        answer = outcome if isinstance(outcome, LocalResponse) else await outcome
        if answer is None:
            return False
        self.answer(x, client, await self.dressed(answer, steps, x, client))
        return True

    async def dressed(
        self, answer: LocalResponse, steps: tuple[HeaderStep, ...], x: Exchange, client: ClientConnection
    ) -> LocalResponse:
        """A filter's answer as the response-headers filters leave it: they see all that a client gets."""
        place = client.life.choice or client.life.route
        dressing = place.chain.response_headers if place is not None else None
        if dressing is None or dressing is steps:
            return answer
        x.response = ResponseHead(answer.status, answer.phrase, Fields.of(answer.fields))
        outcome = run(dressing, x)
        if outcome is not None and not isinstance(outcome, LocalResponse):
            outcome = await outcome
        if outcome is not None:
            return outcome
        return LocalResponse(x.response.status, tuple(x.response.fields), answer.body, x.response.phrase)

    async def collect_body(
        self, x: Exchange, client: ClientConnection, head: RequestHead, route: Route
    ) -> bytes | None:
        """The whole request body, through the body filters; a filter of the head may have collected it already."""
        plan = route.chain.request_body
        held: BufferedRequest | None = x.notes.pop(HELD, None) if x.notes is not None else None
        early = held.body if held is not None else None
        if plan is None:
            return early
        collector = Collector(client.driver)
        body_filter = client.life.request_filter = BodyFilter(x, plan.begin(x), collector, client, client.driver)
        if early is None:
            invite_body(client, head)
            client.send_request_body_to(body_filter)
        else:
            body_filter.send_body(early)
            body_filter.end_body(b"")
        while not collector.is_whole:
            await pause()
        return collector.body

    # --- the end -------------------------------------------------------------------------------------------------
    def new_exchange(self, client: str, listener: ActiveListener) -> Exchange:
        x = Exchange(client, listener.gateway, listener.name, monotonic())
        x.started_wall = time()
        x.request_id = f"{self._id_prefix}-{next(self._numbers):x}"
        x.series = listener.series
        return x

    def answer(self, x: Exchange, client: ClientConnection, answer: LocalResponse) -> None:
        """A response that a filter or we ourselves have made."""
        close = client.life.close or self.must_close(client, x.request) or not client.is_request_read
        client.life.close = close or has_stray_octets(x, client)
        x.status = answer.status
        client.send(answer_bytes(answer, close=client.life.close, with_body=x.method != b"HEAD"))

    def rescue(self, x: Exchange, client: ClientConnection, error: GatewayError) -> None:
        """An error ends the exchange: an answer where none has begun, else a connection that breaks off visibly."""
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
        life = client.life
        self.blame(x, life, error)
        life.release(reusable=False)
        if client.is_lost or isinstance(error, ClientGone) or x.status:
            life.close = True
            client.abort()
            return
        life.close = life.close or error.close or x.request is None or not client.is_request_read
        self.answer(x, client, answer_for(error, x.request_id))

    def blame(self, x: Exchange, life: HeldResources, error: GatewayError) -> None:
        """Say what ended the exchange, and tell of it where an operator should hear of it."""
        x.reason = error.reason
        x.rule = error.rule
        x.detail = error.detail
        x.denied = is_denial(error)
        if x.denied or is_told(error):
            self.notices.refused(x.series, error, "" if life.route is None else life.route.kind)
        if error.policy != "-":
            x.series = self.metrics.denied_by(x.series, error.policy, error.entry)

    def complete(self, x: Exchange, client: ClientConnection) -> None:
        """Always, once: filters, slots, metrics, log; then the connection goes on or closes."""
        request, life = x.request, client.life
        try:
            if not x.bytes_in:  # a tunnel has counted for itself
                # What is buffered belongs to the next request; behind a malformed one there is none.
                x.bytes_in = client.octets_in - (client.reader.buffered if request is not None else 0)
                x.bytes_out = client.octets_out
            self.account(x, life)
        finally:
            close = life.close or self.is_draining or client.state.is_closed
            life.reset()  # what waits for its next request holds nothing of the last
            if client.is_lost:
                client.state.leave(client)
            else:
                if request is None or request.upgrade or x.is_tunnel:
                    close = close or (client.tunnel_authority is None and has_stray_octets(x, client))
                client.finish(close=close)

    def account(self, x: Exchange, life: HeldResources) -> None:
        """Give back what the exchange holds, and say what it was."""
        if life.upstream is not None:
            life.release(reusable=False)
        if life.request_filter is not None or life.response_filter is not None:
            life.end_filters()
        if x.notes is not None:
            for place in (life.choice, life.route):
                if place is not None and place.chain.complete is not None:
                    finish(place.chain.complete, x)
        if life.on_complete is not None:
            life.on_complete()
        if self.is_cutting and x.reason in (Reason.OK, Reason.CLIENT_GONE):
            x.reason = Reason.DRAINED
        x.ended_at = monotonic()
        x.series.observe(x)
        self.access_log.record(x)
        self.recent.append(
            (
                x.started_wall, x.method, x.scheme, x.authority, x.path[PATH], x.gateway, x.listener, x.identity,
                x.reason,
            )
        )  # fmt: skip

    def must_close(self, client: ClientConnection, head: RequestHead | None) -> bool:
        """Whether this answer is the last on its connection (RFC 9112 section 9.6)."""
        return head is None or head.connection_close or self.is_draining or client.state.is_closed or client.is_last

    def __repr__(self) -> str:
        return f"Conductor({'draining' if self.is_draining else 'serving'})"


def wanted_credentials(x: Exchange, choice: RouteBackend) -> UpstreamFault:
    """Why a 407 does not reach the client: it would send what is meant for us. Plain http to a parent is answered by
    that; whatever else asks for proxy credentials is no proxy of ours.
    """
    connector = choice.connector
    if connector is not None and connector.parent is not None and not (x.backend_is_secure or x.request.upgrade):
        return refused_credentials(connector.spec.backend)
    return UpstreamFault(Reason.BAD_RESPONSE, "the upstream asked for proxy credentials (407)")


def may_retry(x: Exchange, life: HeldResources, error: GatewayError) -> bool:
    """An idle connection that died under the request: an idempotent request without a body goes again, unless the
    rule's own attempts count it.
    """
    attempts = life.route.attempts if life.route is not None else None
    return (
        error.retry is RetrySafety.IF_REUSED and x.attempts < MAX_ATTEMPTS
        and x.request.method in IDEMPOTENT and x.request.body == 0
        and (attempts is None or not attempts.counts_stale)
    )  # fmt: skip


def has_stray_octets(x: Exchange, client: ClientConnection) -> bool:
    """Octets behind a CONNECT or an upgrade; where that does not come about, they were never meant as a request."""
    request = x.request
    if request is None or not (request.upgrade or x.method == b"CONNECT"):
        return False
    return client.reader.buffered > 0
