"""Opener: opens connections to one backend.

The way of a connection: name → addresses → address policy → connect filters → one of *these* addresses → (the parent's
CONNECT, or SOCKS5) → TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from time import monotonic
from typing import Final, NamedTuple, Protocol

from egressproxy.errors import GatewayFault, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.chain import run_to_end
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.parent_connect import (
    ConnectHandshake,
    ParentHandshake,
    SocksHandshake,
    fault_at_parent,
    identity_line,
    is_socks,
)
from egressproxy.gateway.backends.reverse_check import check_addresses
from egressproxy.gateway.backends.upstream_hosts import DialTarget, UpstreamHost
from egressproxy.ir.backend import BackendTlsIR, ConnectionIR, Destination
from egressproxy.ir.backend import Protocol as BackendProtocol
from egressproxy.ir.policy import ReverseCheck
from egressproxy.model.addresses import Resolved
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.exchange import LOGGED, Exchange
from egressproxy.model.exchange_trace import add_wait
from egressproxy.model.per_client_quota import client_of, identity_of
from egressproxy.net.flow_control import peer_name
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_contexts.contexts import HTTP_1_1, client_tls
from egressproxy.net.tls_failures import TlsExpectation, tls_fault
from egressproxy.protocols.http1.writer import via_line
from egressproxy.upstream.address_policy import AddressPolicy
from egressproxy.upstream.dialer import abandon
from egressproxy.upstream.source_address import SourceChooser

#: Their protocol is not ours to name, or has no name.
NOT_HTTP: Final = (BackendProtocol.TCP, BackendProtocol.SOCKS5)
NO_ALPN: Final[tuple[str, ...]] = ()
#: Backends whose addresses the configuration names.
OPERATOR: Final = (Destination.IP, Destination.SERVICE)
_NO_CHECK: Final[ReverseCheck] = ReverseCheck.OFF
LOOPBACK: Final[tuple[IPAddress, ...]] = (ip_address("127.0.0.1"), ip_address("::1"))


class Parent(Protocol):
    """The cluster of a parent: which of its endpoints is next, and how it is reached."""

    opener: ConnectionOpener

    def target(self, exchange: Exchange) -> UpstreamHost:
        """As `Cluster.target`."""


class TlsFailure(NamedTuple):
    """The latest handshake with a backend, where it failed; for `explain`. `at` is on the wheel's clock."""

    at: float
    host: str
    message: str
    remedy: str
    detail: str


def is_unverified(tls: BackendTlsIR | None) -> bool:
    """Whether TLS is spoken, and the server's certificate does not say who it is."""
    return tls is not None and not tls.is_verified


def note_unverified(exchange: Exchange, who: str) -> None:
    """Have the access log say that the certificate of this hop was not verified."""
    sentence = f"certificate of {who} not verified"
    known: list[str] = (exchange.state.get(LOGGED) or {}).get("insecure", [])
    if sentence not in known:
        exchange.add_log_fields({"insecure": [*known, sentence]})


class ConnectionOpener:
    """Opens connections to a backend, under one set of DNS, address and TLS rules."""

    __slots__ = (
        "_connect_s", "_is_operators", "_is_parent", "_network", "_parent", "_policy", "_policy_own", "_source",
        "resolver", "reverse_check", "spec", "tls_failure", "who",
    )  # fmt: skip

    def __init__(self, spec: ConnectionIR, network: Network, parent: Parent | None, *, is_parent: bool = False) -> None:
        """`is_parent`: the backend is a proxy on the way to another, and what fails there says so."""
        self._is_parent = is_parent
        self.spec = spec
        self._connect_s = spec.connect_s
        self._is_operators = spec.backend.destination in OPERATOR  # the configuration names the addresses
        is_named = spec.backend.destination is not Destination.DYNAMIC
        self.who = f"backend {spec.backend.label}" if is_named else "the destination"
        self.tls_failure: TlsFailure | None = None
        self._network = network
        self._parent = parent
        self.resolver = network.resolver(spec)
        self._policy = AddressPolicy(spec.addresses, network.own)
        self._policy_own = network.own
        self.reverse_check = spec.dns.reverse_check
        self._source = SourceChooser(spec.source_address) if spec.source_address is not None else None

    async def open(
        self,
        exchange: Exchange,
        target: DialTarget,
        connect: FilterSteps | None,
        protocol: asyncio.Protocol,
        alpn: tuple[str, ...] = HTTP_1_1,
    ) -> asyncio.Transport:
        """Dial, by a parent and with TLS where configured, for this protocol. Raises UpstreamFault, Denied or
        GatewayFault.
        """
        try:
            parked = await self.park(exchange, target, connect)
            if target.tls is None:
                parked.hand_over(protocol)
                return parked.transport
            return await self._handshake(exchange, parked, target, target.tls, protocol, alpn)
        except UpstreamFault as error:
            if not self._is_parent:
                raise
            raise fault_at_parent(error, self.spec.backend.name) from None

    async def park(self, exchange: Exchange, target: DialTarget, connect: FilterSteps | None) -> PendingProtocol:
        """As `open`, without TLS to the target: the connection keeps what comes on it. Raises as that."""
        if self._parent is not None:
            parked = await self._open_through_parent(exchange, target, connect)
        else:
            endpoints = await self._endpoints(exchange, target, connect)
            source = self._source.choose(identity_of(exchange)) if self._source is not None else None
            began = monotonic() if exchange.trace is not None else 0.0
            dial = self._network.dialer.dial(endpoints, PendingProtocol, timeout_s=self._connect_s, source=source)
            try:
                _, parked, _ = await dial
            except BaseException:
                abandon(dial)  # the client may leave in the moment in which the connection is made
                raise
            finally:
                del dial  # its error's traceback holds this frame: no cycle
                if began:
                    add_wait(exchange, "connect", began)
            exchange.upstream = peer_name(parked.transport)
        if parked.is_lost:
            raise UpstreamFault(Reason.UPSTREAM_RESET, "the upstream closed its new connection", retry=RetrySafety.SAFE)
        return parked

    async def _endpoints(
        self, exchange: Exchange, target: DialTarget, connect: FilterSteps | None
    ) -> list[tuple[IPAddress, int]]:
        """The addresses that may be dialled: resolved, checked, and shown to the connect filters."""
        policy = self.address_policy()
        is_named = False  # the client has named an address, about which `destinations` has decided
        resolved: Sequence[IPAddress] = ()
        if self._is_operators:
            address = ip_address(target.host)
            policy.check_operator(address, target.port)
            addresses: tuple[IPAddress, ...] = (address,)
        else:
            literal = named_address(exchange, target)
            if literal is not None:
                is_named = True
                resolved = (literal,)
            else:
                known = self.resolver.cached(target.host)
                if known is None:
                    began = monotonic() if exchange.trace is not None else 0.0
                    try:
                        resolved = await self.resolver.resolve(target.host, client_of(exchange), identity_of(exchange))
                    finally:
                        if began:
                            add_wait(exchange, "dns", began)
                else:
                    resolved = known
            addresses = policy.check(target.host, resolved, target.port)
            target.name.learn(addresses)
            if self.reverse_check is not _NO_CHECK and not is_named:
                addresses = await self._reverse_checked(exchange, target, resolved, addresses)
            if target.only is not None:
                addresses = tuple(address for address in addresses if address == target.only)
            elif target.monitor is not None:
                addresses = tuple(target.monitor.order(target, addresses))
        if policy.reports and not is_named and policy.would_deny(addresses, target.port, resolved):
            exchange.note_denials(Reason.ADDRESS_DENIED)
        exchange.addresses = addresses
        if connect is not None and await run_to_end(connect, exchange) is not None:
            raise GatewayFault(Reason.FILTER_FAILED, "a filter answered in the connect phase", status=502)
        return [(address, target.port) for address in addresses]

    async def _reverse_checked(
        self, exchange: Exchange, target: DialTarget, resolved: Sequence[IPAddress], addresses: tuple[IPAddress, ...]
    ) -> tuple[IPAddress, ...]:
        """Those of the addresses that `dns.reverseCheck` lets be dialled. Raises Denied, UpstreamFault."""
        if self.resolver.why_not_asked(target.host):
            return addresses  # an operator wrote them
        through = resolved.through if isinstance(resolved, Resolved) else ()
        authority, count = Authority(target.host, target.port), self._network.reports.reverse_check
        return await check_addresses(exchange, self.reverse_check, self.resolver, authority, addresses, through, count)

    async def _open_through_parent(
        self, exchange: Exchange, target: DialTarget, connect: FilterSteps | None
    ) -> PendingProtocol:
        """Reach the parent, and have it connect us to the target (RFC 9110 section 9.3.6, RFC 1928)."""
        assert self._parent is not None
        self.ask_parent_for(exchange, target)
        parent_target = self._parent.target(exchange)
        handshake = self._parent_handshake(exchange, target)
        transport = await self._parent.opener.open(exchange, parent_target, connect, handshake)
        timer = self._network.loop.call_later(self.spec.connect_s or 60.0, handshake.timed_out)
        try:
            return await handshake.established
        except BaseException:
            transport.abort()
            raise
        finally:
            timer.cancel()

    def _parent_handshake(self, exchange: Exchange, target: DialTarget) -> ParentHandshake:
        backend = self.spec.backend
        # Of a tunnel that a client asked for. Other connections outlive the request that they are opened for.
        received = exchange.request.via if exchange.is_tunnel else b""
        lines = via_line(received, exchange.request.http_1_0 and bool(received), self._network.pseudonym)
        if is_socks(backend.parent):
            authority = Authority(target.host, target.port, _literal(target.host))
            return SocksHandshake(authority, lines.removeprefix(b"\r\nVia: "), backend)
        authority = Authority(target.host, target.port)
        lines += identity_line(backend, exchange, b"CONNECT", authority.text, is_of_client=exchange.is_tunnel)
        return ConnectHandshake(authority, lines, backend)

    async def _handshake(
        self,
        exchange: Exchange,
        parked: PendingProtocol,
        target: DialTarget,
        tls: BackendTlsIR,
        protocol: asyncio.Protocol,
        alpn: tuple[str, ...],
    ) -> asyncio.Transport:
        host = target.host
        done: asyncio.Future[None] = self._network.loop.create_future()
        waiting = [done]
        expected = TlsExpectation(self.who, host, tls)
        if not tls.is_verified:
            note_unverified(exchange, self.who)

        def on_handshake(stream: TlsStream, error: Exception | None) -> None:
            if not waiting or waiting[0].done():
                return
            if error is None:
                if self.tls_failure is not None and self.tls_failure.host == host:
                    self.tls_failure = None
                waiting[0].set_result(None)
            else:
                peer = stream.get_extra_info("ssl_object")
                fault = tls_fault(error, RetrySafety.SAFE, expected=expected, peer=peer)
                now = self._network.wheel.now
                self.tls_failure = TlsFailure(now, host, fault.message, fault.remedy, fault.detail)
                waiting[0].set_exception(fault)

        try:
            client = client_tls(tls, host, NO_ALPN if self.spec.backend.protocol in NOT_HTTP else alpn)
        except (ssl.SSLError, ValueError) as error:
            parked.transport.abort()
            message = f"the TLS settings of backend {self.spec.backend.name} cannot be used"
            raise GatewayFault(Reason.BACKEND_INVALID, message, detail=str(error)) from None
        stream = TlsStream(
            client.context, server_side=False, server_hostname=client.server_hostname, inner=protocol,
            on_handshake=on_handshake, verify=client.verify, expected=expected,
            resumption=target.resumption_of(exchange),
        )  # fmt: skip
        timer = self._network.loop.call_later(self.spec.tls_handshake_s or 60.0, stream.abort_handshake)
        began = monotonic() if exchange.trace is not None else 0.0
        try:
            parked.hand_over(stream)
            await done
        except BaseException:
            parked.transport.abort()
            raise
        finally:
            timer.cancel()
            waiting.clear()
            del done  # its error's traceback holds this frame: no cycle
            if began:
                add_wait(exchange, "tls", began)
        return stream

    # --- what may be dialled ------------------------------------------------------------------------------------
    def address_policy(self) -> AddressPolicy:
        """The address rules, with the sockets that are ours at this moment."""
        if self._policy_own is not self._network.own:
            self._policy = AddressPolicy(self.spec.addresses, self._network.own)
            self._policy_own = self._network.own
        return self._policy

    def first_hop(self) -> ConnectionOpener:
        """The opener whose addresses are dialled: that of the parent nearest to us, or this one."""
        return self if self._parent is None else self._parent.opener.first_hop()

    def ask_parent_for(self, exchange: Exchange, target: DialTarget) -> None:
        """Raises Denied where no parent may be asked for this, LimitExceeded where its client has no new name left."""
        self.check_for_parent(target)
        if self.spec.dns.new_names and self.spec.backend.destination not in OPERATOR and not _literal(target.host):
            self.resolver.count_for_parent(target.host, identity_of(exchange))

    def check_for_parent(self, target: DialTarget) -> None:
        """A parent resolves names. What is an address, or this machine by its name, is judged here, for clients and
        operators alike. Raises Denied. Source: RFC 6761 section 6.3 (localhost).
        """
        policy, host = self.address_policy(), target.host
        if self.spec.backend.destination in OPERATOR:
            policy.check_operator(ip_address(host), target.port)
        elif host == "localhost" or host.endswith(".localhost"):
            policy.check(host, LOOPBACK, target.port)
            for address in LOOPBACK:  # the parent may take either
                policy.check_operator(address, target.port)
        elif (literal := _literal(host)) is not None:
            policy.check(host, (literal,), target.port)
        elif (
            self._network.own.has_admin_port(target.port)
            and self._parent is not None
            and self._parent.opener.may_be_here()
        ):
            policy.check_local_parent(host, target.port)

    def may_be_here(self) -> bool:
        """Whether this backend is on this machine, as far as is known; where nothing is known, it may be."""
        backend = self.spec.backend
        if self._parent is not None:
            return True
        if backend.destination in OPERATOR:
            addresses: Iterable[IPAddress] | None = [endpoint.address for endpoint in backend.endpoints]
        else:
            addresses = self.resolver.known(backend.hostname)
        return addresses is None or self._network.own.are_on_this_machine(addresses)


def _literal(host: str) -> IPAddress | None:
    """The address that a host is, None for a name: no name is read so (`model.authority`)."""
    return ip_address(host) if ":" in host or host.rpartition(".")[2].isdigit() else None


def named_address(exchange: Exchange, target: DialTarget) -> IPAddress | None:
    """The address of the target where the client has named an address, so that nothing is resolved; else None."""
    authority = exchange.authority
    return authority.address if authority is not None and authority.host == target.host else None


def is_http2(parked: PendingProtocol) -> bool:
    """Whether that was agreed on by ALPN."""
    peer = parked.transport.get_extra_info("ssl_object")
    return peer is not None and peer.selected_alpn_protocol() == "h2"
