"""CONNECT and upgraded connections, from the decision to the tunnel; `relay` takes over from there.

TLS and TCP listeners (`gateway/listeners/stream_connection`) dial, and count their tunnels, with the functions here.

In a tunnel to port 80 the first bytes decide what it is, since clients tunnel both there: TLS goes by a TLSRoute or
the policy, HTTP is read, and each request goes by the HTTPRoutes or the policy.

Source: RFC 9110 section 9.3.6.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from egressproxy.errors import Denied, GatewayError, Reason, UpstreamFault
from egressproxy.filters.chain import run, run_to_end
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.filters.messages import MESSAGES
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_hosts import DialTarget
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import started_clock
from egressproxy.gateway.exchange.filter_answers import answer_of
from egressproxy.gateway.exchange.identification import identify
from egressproxy.gateway.exchange.interception import intercept, is_tunnel
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel
from egressproxy.gateway.exchange.pipeline import (
    ACCEPT,
    ADMIT_AGAIN,
    ENTER_GATE,
    FILTER,
    IDENTIFY,
    INTERCEPT,
    READ_HTTP,
    REFUSE_TLS,
    START_CLOCK,
    TUNNEL,
    Pipeline,
)
from egressproxy.gateway.exchange.readmission import admit_again
from egressproxy.gateway.exchange.relay import hand_over, relay
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.policy import SniCheck
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead
from egressproxy.model.per_client_quota import client_of
from egressproxy.model.websocket_extensions import UnknownExtension, agrees_on_deflate
from egressproxy.net.driver import PAUSE
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.protocols.tls.client_hello import ACCESS_DENIED, may_start_tls
from egressproxy.protocols.tunnel.guard import SniGuard

_MATCH: Final[SniCheck] = SniCheck.MATCH


async def serve_connect(
    accounting: Accounting, exchange: Exchange, client: Client, head: RequestHead
) -> LocalResponse | None:
    """A CONNECT, as `Pipeline.tunnel` has it. Returns the response of a filter instead of a tunnel. Where
    `client.pipeline.is_handed_over` then, the tunnel has the exchange and completes it. Raises GatewayError.
    """
    pipeline = client.pipeline
    for action in pipeline.tunnel(exchange, head, client.listener, is_inside=client.tunnel is not None):
        route, listener = pipeline.route, pipeline.listener
        assert listener is not None
        if action == ENTER_GATE:
            if accounting.gate is not None:
                priority = route.priority if route is not None else listener.spec.policy.priority
                pipeline.tenant = accounting.gate.admit(exchange, priority)
            if route is not None:
                client.clock = started_clock(client, route.clock_s, route.idle_s)
        elif action == START_CLOCK:
            assert route is not None
            client.clock = started_clock(client, route.clock_s, route.idle_s)
        elif action == TUNNEL:
            await open_tunnel(accounting, exchange, client)
        elif action == FILTER:
            assert pipeline.steps is not None
            pipeline.answer = await filter_tunnel(pipeline.steps, exchange, pipeline)
        elif action == IDENTIFY:
            await identify(accounting, exchange, client, listener, head)
        elif action == INTERCEPT:
            assert pipeline.certificates is not None
            assert exchange.authority is not None
            await intercept(accounting, exchange, client, exchange.authority, listener, pipeline.certificates)
        elif action == ADMIT_AGAIN:
            assert route is not None
            pipeline.route, pipeline.listener = await admit_again(exchange, client, route, listener)
        elif action == ACCEPT:
            client.accept_tunnel()
            exchange.status, exchange.first_byte_at = 200, monotonic()
            pipeline.listener = await first_bytes(client)
            first = client.first_byte
            pipeline.speaks_http = not first or not may_start_tls(first)
        elif action == READ_HTTP:
            assert exchange.authority is not None
            client.identity = exchange.identity
            client.enter_tunnel(OpenedTunnel(exchange.authority), client.state.port.head_limits)
        elif action == REFUSE_TLS:
            denied, pipeline.denied = pipeline.denied, None
            assert denied is not None
            accounting.record_error(exchange, pipeline, denied)
            client.send(ACCESS_DENIED)
            pipeline.close = True
    return pipeline.answer


async def first_bytes(client: Client) -> ActiveListener:
    """Wait for the client's first bytes, or end. Returns its listener of then. Raises BadRequest (CLIENT_TIMEOUT)."""
    client.deadline.after(client.request_headers_s or client.idle_s)
    while not client.unread() and not client.has_ended:
        client.listen()
        await PAUSE
    client.stop_listening()
    client.deadline.clear()
    client.state.check_open()
    return client.listener


async def filter_tunnel(steps: FilterSteps, exchange: Exchange, pipeline: Pipeline) -> LocalResponse | None:
    """FILTER: the response of a filter. Raises Denied for one that answers when none can be sent any more."""
    if exchange.status:
        await refuse_answer(steps, exchange)
        return None
    outcome = run(steps, exchange)
    return None if outcome is None else await answer_of(outcome, steps, exchange, pipeline)


async def open_tunnel(accounting: Accounting, exchange: Exchange, client: Client) -> None:
    """TUNNEL: dial, answer 200 unless that was said already, relay. Raises GatewayError."""
    pipeline = client.pipeline
    backend, route, listener, authority = pipeline.backend, pipeline.route, pipeline.listener, exchange.authority
    assert backend is not None
    assert route is not None
    assert listener is not None
    assert authority is not None
    pipeline.when_complete(client.state.take_tunnel(listener, client_of(exchange)))
    guard = None
    is_tls, checks_name = route.is_tls_only, listener.destinations.sni_check(authority) is _MATCH
    opened = listener.certificate_caches
    if is_tls or checks_name or exchange.status or opened is not None:
        guard = SniGuard(
            authority, must_be_tls=is_tls or exchange.status != 0, only_reports=route.only_reports,
            checks_name=is_tls or checks_name, is_opened=None if opened is None else opened.match,
        )  # fmt: skip
    upstream = await dial(exchange, backend, pipeline)
    if not exchange.status:
        client.accept_tunnel()
        exchange.status, exchange.first_byte_at = 200, monotonic()
    rest, idle_s, through_parent = client.detach(), route.tunnel_idle_s, backend.goes_through_parent(exchange)
    if not hand_over(accounting, exchange, client, upstream, rest, guard, idle_s, through_parent=through_parent):
        relaying = relay(
            accounting, exchange, client, upstream, rest, b"", guard, idle_s, through_parent=through_parent
        )
        del rest
        await relaying


async def refuse_answer(steps: FilterSteps, exchange: Exchange) -> None:
    """Run filters where no response can be sent any more. Raises Denied if one of them answers."""
    if await run_to_end(steps, exchange) is not None:
        raise Denied(Reason.FILTER_REJECTED, "a filter answered, which a stream cannot pass on")


async def dial(
    exchange: Exchange, backend: RouteBackend, pipeline: Pipeline, *, terminated: bool = False
) -> PendingProtocol:
    """A transport to this backend, which counts in its circuit breaker. `terminated`: the client's TLS ends with us."""
    cluster = backend.cluster
    assert cluster is not None
    exchange.attempts += 1
    began = monotonic()
    target: DialTarget | None = None
    try:
        if cluster.fixed is not None and cluster.fixed.monitor is not None:
            cluster.fixed.monitor.admit(cluster.fixed)  # other targets are chosen among those that may be used
        if terminated:
            target = secure = cluster.target(exchange)
            count_tunnel(exchange, cluster, target, pipeline)
            parked = PendingProtocol()
            await cluster.open(exchange, secure, backend.chain.connect, parked)
        else:
            target = cluster.tunnel_target(exchange)
            count_tunnel(exchange, cluster, target, pipeline)
            parked = await cluster.park(exchange, target, backend.chain.connect)
    except GatewayError as error:
        backend.series.attempt(error.reason.value)
        if target is not None and target.monitor is not None:
            target.monitor.failed(target, error, exchange, None)
        raise
    backend.series.answered(monotonic() - began)
    if target.monitor is not None:
        target.monitor.answered(target, exchange.upstream, 0)
    return parked


def count_tunnel(exchange: Exchange, cluster: Cluster, target: DialTarget, pipeline: Pipeline) -> None:
    """Count a tunnel where a circuit breaker asks for it. Raises LimitExceeded (503)."""
    counting = cluster.counting_target(exchange, target)
    if counting is not None and cluster.host_set is not None:
        pipeline.when_complete(cluster.host_set.count_tunnel(counting, client_of(exchange)))


async def switch_protocols(accounting: Accounting, exchange: Exchange, client: Client) -> None:
    """After a 101 the connection is the upgraded protocol's (RFC 9110 section 7.8)."""
    pipeline = client.pipeline
    assert pipeline.route is not None
    assert pipeline.upstream is not None
    if pipeline.upstream.is_leaving():  # a filter has waited meanwhile
        raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the upstream closed its connection")
    messages = exchange.state.get(MESSAGES)
    are_read, deflates = messages is not None and messages.api is not None, False
    if are_read:
        from egressproxy.gateway.exchange.message_relay import relay_messages  # few WebSockets have filters

        deflates = _agrees_on_deflate(exchange)
    if not is_tunnel(client):
        listener = client.listener
        if listener.is_stream and exchange.authority is not None:
            listener = client.state.port.opened_stream(exchange.authority.host)
        elif not listener.is_forward and exchange.authority is not None:
            listener = client.state.port.listener_for(exchange.authority.host, client.server_name)
        pipeline.when_complete(client.state.take_tunnel(listener, client_of(exchange)))
    client.send_interim(exchange.response, accounting.pseudonym)
    exchange.status, exchange.first_byte_at = 101, monotonic()
    upstream = pipeline.give_away()
    upstream_rest = upstream.detach()
    parked = PendingProtocol()
    assert upstream.transport is not None
    parked.transport = upstream.transport
    try:
        if messages is not None and are_read:
            await relay_messages(
                accounting, exchange, client, parked, client.detach(), upstream_rest, messages, deflates=deflates
            )
            return
        relaying = relay(
            accounting, exchange, client, parked, client.detach(), upstream_rest, None, pipeline.route.tunnel_idle_s
        )
        del upstream_rest
        await relaying
    finally:
        upstream.gone()


def _agrees_on_deflate(exchange: Exchange) -> bool:
    """Whether the sides of this WebSocket compress messages. Raises UpstreamFault (502) for another extension, whose
    frames the gateway could not read.
    """
    try:
        return agrees_on_deflate(exchange.request.fields, exchange.response.fields)
    except UnknownExtension as error:
        raise UpstreamFault(Reason.BAD_RESPONSE, str(error)) from None
