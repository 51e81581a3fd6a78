"""Relay: the two sides of a tunnel, joined and accounted for, once everything was decided.

Two plain sockets are taken from their transports, and the exchange goes with them; otherwise the exchange's coroutine
waits for the end. Decides nothing: what may go where is said in `connect`, and for TLS and TCP listeners in
`gateway/listeners/stream_connection`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from egressproxy.errors import Reason
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.open_connections import Connection, OpenConnections
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.net.driver import Driver
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.sockets import SocketTransport
from egressproxy.protocols.tunnel.guard import SniGuard
from egressproxy.protocols.tunnel.socket_tunnel import SocketTunnel
from egressproxy.protocols.tunnel.transport_tunnel import TransportTunnel

log = logging.getLogger(__name__)


class TunnelClient(Protocol):
    """What a client's connection, of whatever kind, has when it becomes one end of a tunnel."""

    driver: Driver
    transport: asyncio.Transport
    bytes_in: int
    bytes_out: int
    request_headers_s: float
    has_ended: bool

    def tunnel_ended(self) -> None:
        """The tunnel that was given the transport has ended, and the transport with it."""


class PlainClient(TunnelClient, Connection, Protocol):
    """A client's connection that counts with its listener, and may be replaced there by a tunnel."""

    pipeline: Pipeline
    state: OpenConnections


def hand_over(
    accounting: Accounting, exchange: Exchange, client: PlainClient, upstream: PendingProtocol, rest: bytes,
    guard: SniGuard | None, idle_s: float, *, through_parent: bool = False,
) -> bool:  # fmt: skip
    """Let a SocketTunnel have both sockets, where both are plain, and the exchange with them: nothing of the client's
    connection is kept. False, and nothing is changed, otherwise.
    """
    one, other = client.transport, upstream.transport
    if not isinstance(one, SocketTransport) or not isinstance(other, SocketTransport):
        return False
    if one.is_closing() or other.is_closing():
        return False
    exchange.bytes_in, exchange.bytes_out = client.bytes_in - len(rest), client.bytes_out
    exchange.series.tunnel_opened()
    tunnel = ServedTunnel(
        accounting, exchange, client, idle_s, guard, holds_upstream=holds_upstream(guard, through_parent=through_parent)
    )
    client.pipeline.is_handed_over = True
    client.pipeline.listener = None  # a tunnel may outlive the configuration: do not keep its tables
    client.state.replace(client, tunnel)
    exchange.forget_heads()
    if not exchange.state:
        exchange.drop_request()  # no filter asks for it any more
    try:
        tunnel.start(one, rest, upstream, client_has_ended=client.has_ended)
    except Exception as error:
        log.error("internal error in tunnel %s", exchange.request_id, exc_info=error)
        tunnel.cut(Reason.INTERNAL)
    return True


def holds_upstream(guard: SniGuard | None, *, through_parent: bool) -> bool:
    """Whether the upstream is not heard before a ClientHello that a TLSRoute asks for; a parent answers for itself."""
    return guard is not None and guard.must_be_tls and not guard.only_reports and not through_parent


class ServedTunnel(SocketTunnel):
    """A tunnel between two plain sockets, with what is needed to account for it in the end."""

    __slots__ = ("accounting", "exchange", "pipeline", "state", "tls_guard")

    def __init__(
        self, accounting: Accounting, exchange: Exchange, client: PlainClient, idle_s: float, guard: SniGuard | None, *,
        holds_upstream: bool,
    ) -> None:  # fmt: skip
        super().__init__(accounting.wheel, idle_s, guard, client.request_headers_s, holds_upstream=holds_upstream)
        self.accounting = accounting
        self.exchange = exchange
        self.pipeline = client.pipeline
        self.state = client.state
        self.tls_guard = guard if guard is not None and guard.only_reports else None  # asked in the end

    def close_if_idle(self) -> bool:
        return False

    @property
    def identity(self) -> CallerIdentity:
        return self.exchange.identity

    def serving(self) -> tuple[Pipeline, ...]:
        return (self.pipeline,)

    def over(self) -> None:
        exchange, error, guard = self.exchange, self.error, self.tls_guard
        self.state.leave(self)
        exchange.series.tunnel_ended()
        exchange.bytes_in += self.bytes_in
        exchange.bytes_out += self.bytes_out
        exchange.reason = self.reason
        if error is not None:
            self.accounting.record_error(exchange, self.pipeline, error)
        if guard is not None and guard.would_deny is not None:
            exchange.note_denials(guard.would_deny)
            if guard.ech_outer_name is not None:
                self.accounting.note_ech(exchange, guard.ech_outer_name)
        self.accounting.account(exchange, self.pipeline)


async def relay(
    accounting: Accounting, exchange: Exchange, client: TunnelClient, upstream: PendingProtocol, client_rest: bytes,
    upstream_rest: bytes, guard: SniGuard | None, idle_s: float, *, through_parent: bool = False,
) -> None:  # fmt: skip
    """Bytes both ways until both ends are gone. Raises Denied where the guard refuses."""
    series = exchange.series
    tunnel = TransportTunnel(
        client.driver, accounting.wheel, idle_s, guard, client.request_headers_s,
        holds_upstream=holds_upstream(guard, through_parent=through_parent),
    )  # fmt: skip
    head_in, head_out = client.bytes_in - len(client_rest), client.bytes_out
    series.tunnel_opened()
    exchange.forget_heads()
    try:
        try:
            tunnel.start(client.transport, client_rest, upstream, upstream_rest, client_has_ended=client.has_ended)
        except BaseException:
            upstream.transport.abort()
            raise
        client_rest = upstream_rest = b""  # a tunnel may last for days
        await tunnel.ended()
        exchange.reason = tunnel.reason
    finally:
        if guard is not None and guard.would_deny is not None:
            exchange.note_denials(guard.would_deny)
            if guard.ech_outer_name is not None:
                accounting.note_ech(exchange, guard.ech_outer_name)
        series.tunnel_ended()
        client.tunnel_ended()
        exchange.bytes_in = head_in + tunnel.bytes_in
        exchange.bytes_out = head_out + tunnel.bytes_out
        if not exchange.bytes_in:  # a silent client: its connection has the counts
            client.bytes_out = exchange.bytes_out
