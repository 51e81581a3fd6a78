"""Interception: a tunnel whose TLS ends with us, since a policy names its host (EgressPolicy `intercept`).

First the server is verified, where all requests have the same; then the client is shown a certificate for
the host that it asked for, and what it says inside is served like any other request. What is wrong is told inside, in
HTTP: clients show nothing of a CONNECT that is refused.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic

from egressproxy.errors import ClientGone, Denied, GatewayError, GatewayFault, Reason
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.admission import check_destination_policy, default_route, of_client
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.client_connection import ClientConnection, is_connection
from egressproxy.gateway.exchange.client_stream import ClientHttp2, OpenedHttp2
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.served_tls import ServedTls
from egressproxy.gateway.identity.authenticator import copy_identity
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache
from egressproxy.gateway.leaf_certificates.distrust import DISTRUST, distrust, handshake_denial
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import client_of
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.tls import TlsStream


async def intercept(
    accounting: Accounting,
    exchange: Exchange,
    client: Client,
    authority: Authority,
    listener: ActiveListener,
    certificate_cache: CertificateCache,
) -> None:
    """Verify the server, answer 200 unless that was said already, and end the client's TLS. This exchange is over with
    the handshake, and requests inside are exchanges of their own. The tunnel counts with `listener`, that of the
    client, until its connection ends. Raises GatewayError before that.
    """
    client.pipeline.when_complete(client.state.take_tunnel(listener, client_of(exchange)))
    exchange.scheme = b"https"  # of what is asked inside: that is what the server is verified for
    context = certificate_cache.known(authority.host)
    if context is None:
        signing = certificate_cache.begin(authority.host, client_of(exchange))  # while the server is verified
        try:
            fault = await verified(exchange, client, authority)
            context = await signing
        finally:
            signing.cancel()
    else:
        fault = await verified(exchange, client, authority)
    client.state.check_open()
    certificate_cache.check_in_force()
    if not exchange.status:
        client.accept_tunnel()
        exchange.status, exchange.first_byte_at = 200, monotonic()
    tunnel = OpenedTunnel(authority, b"https", fault)
    results = accounting.metrics.interceptions.results
    try:
        if await end_tls(context, accounting, exchange, client, tunnel, certificate_cache):
            results["ok"] += 1
        else:
            results["unused"] += 1
            exchange.detail = "the client left without a word inside: it may not trust the CA, or pin a key"
    except GatewayError as error:  # the client has its alert, and reads nothing else
        if isinstance(error, Denied):
            error.rule = f"EgressPolicy {certificate_cache.policy}"
            results[error.reason.value] += 1
        accounting.record_error(exchange, client.pipeline, error)
    finally:
        client.continued()


def is_tunnel(client: Client) -> bool:
    """Whether the connection is an opened tunnel, which counts already: an upgrade inside makes it no second one."""
    return is_connection(client) and isinstance(client.transport, OpenedTls)


async def verified(exchange: Exchange, client: Client, authority: Authority) -> GatewayError | None:
    """Connect to the server, and keep the connection for what the client asks. Returns why that cannot be.

    No connection is made where the request decides who serves it, where filters look at its head first, or where policy
    denies the destination. Each request then fails by itself, and so it is where the rule has retries.
    """
    held, may_go_again = Pipeline(), False
    try:
        route = route_of_all(of_client(exchange, client.listener), authority)
        if route is None or len(route.choices) > 1 or route.chain.request_headers is not None:
            return None
        may_go_again = route.retries is not None
        backend = route.choose()
        cluster = backend.cluster
        assert cluster is not None  # `choose` gives none without
        target = cluster.target(exchange)
        if not target.is_secure:
            return None
        via, next_hop = cluster.next_hop(exchange, target)
        if via.network.wheel.now < next_hop.name.fresh_until or via.refresh_name(exchange, next_hop):
            held.upstream = next_hop.pool.take()
        if held.upstream is not None:
            held.hold(via, next_hop, held.upstream)
        elif cluster.parents is None:
            held.hold(via, next_hop, await via.acquire(exchange, next_hop, backend.chain.connect))
        else:
            held.hold(*await cluster.acquire_by_any_way(exchange, target, backend.chain.connect))
        assert held.upstream is not None
        held.release(reusable=not held.upstream.is_last)
    except ClientGone:
        raise
    except Denied as denied:
        # By its name: each request is denied by itself. By its address: that is seen once, and told of each.
        return None if denied.reason is not Reason.ADDRESS_DENIED else as_fault(denied)
    except GatewayError as error:
        return None if may_go_again else as_fault(error)
    return None


def route_of_all(listener: ActiveListener, authority: Authority) -> Route | None:
    """What serves every request in the tunnel; None where that depends on the request. Raises Denied."""
    route = listener.http.sole(authority.host)
    if route is not None:
        check_destination_policy(route, authority)
        return route if route.serves(authority.host, authority.port) else None
    if next(listener.http.rules_of(authority.host), None) is not None:
        return None
    return default_route(listener, authority)[0]


def as_fault(error: GatewayError) -> GatewayError:
    """The error for the requests of this tunnel. With the answer its connection ends, and the next one tries again."""
    error.close = True
    error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
    return error


async def end_tls(
    context: ssl.SSLContext,
    accounting: Accounting,
    exchange: Exchange,
    client: Client,
    tunnel: OpenedTunnel,
    certificate_cache: CertificateCache,
) -> bool:
    """The handshake with the client. Returns when it has said something inside; False where it leaves before, as
    libraries do that verify behind the handshake. Raises Denied, ClientGone, BadRequest (CLIENT_TIMEOUT).
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()
    rest = client.detach()
    tls = OpenedTls(context, accounting, exchange, client, tunnel, certificate_cache, done)
    timer = loop.call_later(client.listener.timeouts.tls_handshake_s or 60.0, tls.abort_handshake)
    parked = PendingProtocol()
    parked.transport = client.transport
    parked.hand_over(tls)
    if rest and not client.transport.is_closing():
        tls.data_received(rest)
    if client.has_ended and not tls.eof_received():
        client.transport.close()
    try:
        return await done
    finally:
        timer.cancel()
        del done, tls  # an error's traceback holds this frame: no cycle


class OpenedTls(ServedTls):
    """TLS with a client inside its tunnel, in front of what serves it, in place of the connection that it continues.

    `begun` is set when the client has said something inside (True), or has left without (False), or has refused TLS.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        accounting: Accounting,
        exchange: Exchange,
        outer: Client,
        tunnel: OpenedTunnel,
        certificate_cache: CertificateCache,
        begun: asyncio.Future[bool],
    ) -> None:
        self._outer: Client | None = outer
        self._begun: asyncio.Future[bool] | None = begun
        self._series = exchange.series
        self._give_slot_back: Callable[[], None] | None = None  # the place of the tunnel, from the handshake on
        self._tunnel = tunnel
        self._certificate_cache = certificate_cache
        client = ClientConnection(outer.request_handler, outer.wheel, outer.state)
        client.tunnel = tunnel
        copy_identity(client, outer)
        client.identity = exchange.identity
        super().__init__(context, client, accounting.metrics)
        self._read = self._read_first

    def _handshake_ended(self, _stream: TlsStream, error: Exception | None) -> None:
        client, outer = self._client, self._outer
        self._outer = None
        assert not isinstance(client, ClientHttp2)
        assert outer is not None
        peer = self.get_extra_info("ssl_object")
        if error is not None:
            client.discard()
            self._settle(handshake_denial(error, peer, self._tunnel.authority))
            return
        try:
            outer.state.check_open()  # a reload may have come while the client took its time
            self._certificate_cache.check_in_force()
        except (Denied, GatewayFault) as fault:
            client.discard()
            self.abort()
            self._settle(fault)
            return
        self._speak(peer, partial(OpenedHttp2, tunnel=self._tunnel))
        outer.state.replace(outer.counted, self)
        self._certificate_cache.add_connection(self)
        pipeline = outer.pipeline
        self._give_slot_back, pipeline.on_complete = pipeline.on_complete, None
        self._series.tunnel_opened()
        if pipeline.tenant is not None:  # each request asks for itself
            pipeline.tenant.leave()
            pipeline.tenant = None

    def _read_first(self, size: int) -> bytes:
        """As `read` of TLS, until the client has said something."""
        plain = self.get_extra_info("ssl_object").read(size)
        if plain:
            self._settle(True)
        return bytes(plain)

    def _settle(self, outcome: bool | GatewayError) -> None:
        begun, self._begun = self._begun, None
        self._read = self.get_extra_info("ssl_object").read
        if begun is None or begun.done():
            return
        if isinstance(outcome, GatewayError):
            begun.set_exception(outcome)
        else:
            begun.set_result(outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._certificate_cache.remove_connection(self)
        if self._give_slot_back is not None:
            self._give_slot_back()
            self._series.tunnel_ended()
        if self._begun is not None:
            reason = getattr(self._error, "reason", None)
            self._settle(distrust(self._tunnel.authority, self._error) if reason in DISTRUST else False)
