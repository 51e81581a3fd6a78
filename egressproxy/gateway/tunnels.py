"""Tunnels: CONNECT, upgraded connections, and TLS or TCP listeners, from the decision to the last octet.

Source: RFC 9110 section 9.3.6; security.md; clients.md (a CONNECT to port 80 is parsed).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.gateway.admission import HTTP_PORT, default_route, enforce, read_authority, refuse_loops
from egressproxy.gateway.life import Life
from egressproxy.gateway.listener_state import ListenerState
from egressproxy.gateway.live import Choice, Listener, Route
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead
from egressproxy.protocols.http1.writer import TUNNEL_ESTABLISHED, switching_bytes
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.protocols.tunnel.relay import Tunnel
from egressproxy.spec.policy import Mode, SniCheck
from egressproxy.transport.driver import Driver
from egressproxy.transport.parked import Parked

if TYPE_CHECKING:
    from egressproxy.gateway.client import ClientConnection
    from egressproxy.gateway.conductor import Conductor

__all__ = ["dial", "relay", "serve_connect", "switch_protocols", "take_tunnel_slot"]


class TunnelClient(Protocol):
    """What a client's connection, of whatever kind, has when it becomes one end of a tunnel."""

    driver: Driver
    transport: asyncio.Transport
    tunnel: Tunnel | None
    octets_in: int
    octets_out: int
    request_headers_s: float
    has_ended: bool
    is_lost: bool


async def serve_connect(conductor: Conductor, x: Exchange, client: ClientConnection, head: RequestHead) -> None:
    """A CONNECT: decide, dial, answer 200, relay. A tunnel to port 80 is read as HTTP instead."""
    listener, life = client.listener, client.life
    x.is_tunnel = True
    x.kind = "tunnel"
    if not listener.is_forward or client.tunnel_authority is not None:
        raise GatewayFault(Reason.METHOD_NOT_ALLOWED, "CONNECT is served by forward-proxy listeners alone", status=405)
    authority = x.authority = read_authority(head.target, None)
    refuse_loops(head, conductor.pseudonym)
    route = route_tunnel(x, listener, authority)
    if route is None:
        speak_http_inside(x, client, authority)
        return
    life.route = route
    x.route = route.name
    x.series = route.series
    client.start_clock(route.request_s, route.idle_s)
    if route.chain.request_headers is not None and await conductor.answered_by(route.chain.request_headers, x, client):
        return
    choice = life.choice = route.choose()
    x.backend = choice.backend
    x.series = choice.series
    take_tunnel_slot(client.state, life, listener)
    guard = None
    if route.is_tls_only or listener.destinations.sni_check(authority) is SniCheck.MATCH:
        guard = SniGuard(authority, must_be_tls=route.is_tls_only, only_reports=route.mode is Mode.REPORT)
    upstream = await dial(x, choice)
    through_parent = choice.connector is not None and choice.connector.parent is not None
    client.send(TUNNEL_ESTABLISHED)
    x.status = 200
    await relay(
        conductor, x, client, upstream, client.detach(), b"", guard, route.tunnel_idle_s, through_parent=through_parent
    )


def route_tunnel(x: Exchange, listener: Listener, authority: Authority) -> Route | None:
    """The route of a tunnel, or None for one that we read HTTP in. Raises Denied."""
    route = listener.streams.match(authority.host)
    if route is not None and route.serves(authority.host, authority.port):
        enforce(x, route.mode, route.destinations.denial(authority))
        return route
    if authority.port != HTTP_PORT:
        return default_route(x, listener, authority)
    if listener.hosts.match(authority.host):
        enforce(x, listener.mode, listener.destinations.denial(authority))
    else:
        default_route(x, listener, authority)
    return None


def speak_http_inside(x: Exchange, client: ClientConnection, authority: Authority) -> None:
    """Answer 200 and read requests from now on; each is routed, filtered and decided like an absolute-form one."""
    client.send(TUNNEL_ESTABLISHED)
    x.status = 200
    client.tunnel_authority = authority
    client.enter_tunnel(client.listener.head_limits)


async def dial(x: Exchange, choice: Choice, *, terminated: bool = False) -> Parked:
    """A transport to this backend, with whatever it has said already. `terminated`: the client's TLS ends with us."""
    connector = choice.connector
    assert connector is not None
    x.attempts += 1
    parked = Parked()
    try:
        target = connector.target(x) if terminated else connector.tunnel_target(x)
        await connector.open(x, target, choice.chain.connect, parked)
    except GatewayError as error:
        choice.series.attempt(error.reason.value)
        raise
    choice.series.attempt("ok")
    return parked


async def relay(
    conductor: Conductor, x: Exchange, client: TunnelClient, upstream: Parked, client_rest: bytes, upstream_rest: bytes,
    guard: SniGuard | None, idle_s: float, *, through_parent: bool = False,
) -> None:  # fmt: skip
    """Octets both ways until both ends are gone. Raises Denied where the guard refuses.

    What the upstream says before the ClientHello that a TLSRoute asks for is held back; a parent answers for itself.
    """
    series = x.series
    tunnel = Tunnel(
        client.driver, conductor.wheel, idle_s=idle_s, guard=guard, guard_s=client.request_headers_s,
        holds_upstream=guard is not None and guard.must_be_tls and not guard.only_reports and not through_parent,
    )  # fmt: skip
    head_in, head_out = client.octets_in - len(client_rest), client.octets_out
    client.tunnel = tunnel
    series.tunnels_active += 1
    try:
        try:
            tunnel.start(client.transport, client_rest, upstream, upstream_rest, client_has_ended=client.has_ended)
        except BaseException:
            upstream.transport.abort()
            raise
        await tunnel.ended()
        x.reason = tunnel.reason
    finally:
        if guard is not None and guard.would_deny is not None:
            x.would_deny = [*(x.would_deny or ()), guard.would_deny]
        series.tunnels_active -= 1
        client.tunnel = None
        client.is_lost = True
        x.bytes_in = head_in + tunnel.octets_in
        x.bytes_out = head_out + tunnel.octets_out


async def switch_protocols(conductor: Conductor, x: Exchange, client: ClientConnection) -> None:
    """After a 101 the connection is the upgraded protocol's (RFC 9110 section 7.8)."""
    life = client.life
    assert life.route is not None
    assert life.upstream is not None
    if life.upstream.is_leaving:  # a filter has waited meanwhile
        raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the upstream closed its connection")
    take_tunnel_slot(client.state, life, client.listener)
    client.send(switching_bytes(x.response, conductor.pseudonym))
    x.status = 101
    upstream = life.give_away()
    upstream_rest = upstream.detach()
    parked = Parked()
    parked.transport = upstream.transport
    try:
        await relay(conductor, x, client, parked, client.detach(), upstream_rest, None, life.route.tunnel_idle_s)
    finally:
        upstream.gone()


def take_tunnel_slot(state: ListenerState, life: Life, listener: Listener) -> None:
    """`limits.tunnels` of this listener. Raises LimitExceeded (503)."""
    limit = listener.spec.policy.limits.tunnels
    if limit and state.tunnels >= limit:
        message = f"this listener already has {limit} tunnel{'s' if limit > 1 else ''}"
        raise LimitExceeded(Reason.TUNNEL_LIMIT, message, status=503, retry_after_s=1)
    state.tunnels += 1

    def give_back() -> None:
        state.tunnels -= 1

    life.on_complete = give_back
