"""Cluster: how one backend is reached, under one set of DNS, address and TLS rules. Says which target an exchange
goes to, gives connections and takes them back; `opener` opens new ones.

A pool lives as long as its ConnectionIR is in the configuration, whatever else is reloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from egressproxy.errors import GatewayFault, Reason, UpstreamFault
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.dns_tracked_host import UNTRACKED, retire
from egressproxy.gateway.backends.endpoints import HostSet, host_set_of
from egressproxy.gateway.backends.health_checks.health_checks import HTTP_2_PROTOCOLS, HealthChecks
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.opener import ConnectionOpener, TlsFailure, is_http2, is_unverified, note_unverified
from egressproxy.gateway.backends.parent_connect import is_socks, proxy_authorization
from egressproxy.gateway.backends.parent_selection import (
    ParentSelector,
    SelectingOpener,
    candidate_specs,
    direct_spec,
    parent_spec,
)
from egressproxy.gateway.backends.passive_health import PassiveHealth
from egressproxy.gateway.backends.upstream_hosts import (
    DialTarget,
    Partition,
    SharedConnections,
    UpstreamHost,
    UpstreamHosts,
    tenant_of_client,
)
from egressproxy.ir.backend import BackendIR, BackendTlsIR, ConnectionIR, Destination, EndpointAddress, Protocol
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import client_of, identity_of
from egressproxy.net.flow_control import peer_address
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.timers import Deadline
from egressproxy.net.tls_contexts.contexts import HTTP_1_1
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.upstream import Upstream
from egressproxy.upstream.pool import Pool, PoolTicket

#: Response heads: 64 KiB and 256 fields.
UPSTREAM_LIMITS: Final = HeadLimits(max_fields=256)
DEFAULT_TLS: Final = BackendTlsIR()

_FQDN: Final[Destination] = Destination.FQDN
_DYNAMIC: Final[Destination] = Destination.DYNAMIC
#: What is offered by ALPN to a backend that speaks HTTP/2 alone, and to one of which nothing is known.
ONLY_HTTP_2: Final = ("h2",)
ANY_HTTP: Final = ("h2", "http/1.1")


class Cluster:
    """Gives connections to a backend. One per ConnectionIR."""

    def __init__(self, spec: ConnectionIR, network: Network, *, behind: BackendIR | None = None) -> None:
        """`behind`: this is a parent, and the way to that backend."""
        is_parent = behind is not None
        self.behind = behind
        self.spec = spec
        self.name = spec.backend.label
        self.network = network
        self.parent: Cluster | None = None
        self.parents: ParentSelector[Cluster] | None = None  # where there is more than one
        if spec.backend.other_parents or spec.backend.no_proxy:
            self.parents = _parent_selector(spec, network)
            self.parent = self.parents.clusters[0].parent
        elif spec.backend.parent is not None:
            self.parent = Cluster(parent_spec(spec), network, behind=spec.backend)
        self.proxy_authorization = proxy_authorization(behind) if behind is not None else None  # with plain http
        self.opener = ConnectionOpener(spec, network, self.parent, is_parent=is_parent)
        self.checks: HealthChecks | None = None
        self._max_requests = spec.kept.max_requests
        self._partition: Partition | None = None
        if spec.is_per_identity:
            self._partition = _identity_of_tenant if spec.kept.is_per_tenant else identity_of
        elif spec.kept.is_per_tenant:
            self._partition = tenant_of_client
        # A parent is asked in HTTP/1.
        self.speaks_http2_alone = spec.backend.protocol in HTTP_2_PROTOCOLS and not is_parent
        self._tunnels_only = self.speaks_http2_alone or is_socks(spec.backend.parent)
        self._alpn: tuple[str, ...] = HTTP_1_1
        if self.speaks_http2_alone:
            self._alpn = ONLY_HTTP_2
        elif spec.backend.protocol is Protocol.HTTP and not is_parent:
            self._alpn = ANY_HTTP
        self.health = PassiveHealth()  # of attempts that could go elsewhere
        backend = spec.backend
        policy = self.opener.address_policy()
        self.endpoints = policy.open_endpoints(backend.endpoints)  # but for those that a deny closes
        self._turn = 0
        first_name = None
        if self.parent is not None:
            *_, first = self.parent.hops()
            first_name = first.fixed.name if first.fixed is not None else UNTRACKED
        self.targets = UpstreamHosts(
            self.name, self.opener.resolver, network.wheel, first_name, partition=self._partition
        )
        self.host_set: HostSet | None = host_set_of(spec, network, self.targets, self.endpoints)
        #: Whether it has no host set, and its targets are not behind a parent.
        self.is_simple = self.parent is None and self.host_set is None
        #: Whether TLS to it, or to a parent on the way, is not verified.
        self.is_unverified = any(is_unverified(hop.spec.backend.tls) for hop in self.hops())
        self._find = self.targets.known.get  # on the path of each request to a Dynamic backend
        self._is_dynamic = backend.destination is Destination.DYNAMIC
        self.fixed: UpstreamHost | None = None
        if backend.destination is Destination.FQDN:
            self.fixed = self.targets.configured(backend.hostname, backend.port, backend.tls, is_name=True)

    # --- where to ----------------------------------------------------------------------------------------------
    def target(self, exchange: Exchange) -> UpstreamHost:
        """The target of this exchange. Raises UpstreamFault (503) without an endpoint, LimitExceeded, Denied."""
        if self.fixed is not None:
            return self.fixed
        if self._is_dynamic:
            authority = exchange.authority
            if authority is None:
                raise GatewayFault(Reason.INTERNAL, "the request names no destination")
            is_secure = exchange.scheme == b"https"
            find = self._find
            found = find((authority.host, authority.port, is_secure))
            if found is not None:
                return found
            tls = (self.spec.backend.tls or DEFAULT_TLS) if is_secure else None
            return self.targets.named(client_of(exchange), authority, tls)
        return self.endpoint_target(self._next_endpoint(exchange))

    def another_target(self, exchange: Exchange, avoid: Collection[UpstreamHost]) -> UpstreamHost:
        """As `target`; one of `avoid` only where there is no other that may be used."""
        if self.host_set is None or self.fixed is not None or not self.endpoints:
            return self.target(exchange)
        return self.endpoint_target(self._next_endpoint(exchange, avoid))

    def endpoint_target(self, endpoint: EndpointAddress) -> UpstreamHost:
        return self.targets.configured(str(endpoint.address), endpoint.port, self.spec.backend.tls)

    def next_hop(self, exchange: Exchange, target: UpstreamHost) -> tuple[Cluster, UpstreamHost]:
        """The cluster and target whose connection carries a request to this target: the parent's for plain http
        (absolute-form; a SOCKS5 proxy has none), else our own. An upgrade goes through a tunnel (RFC 6455 section 4.1):
        after a 101 the client could ask a parent that reads on for anything.

        Raises Denied or LimitExceeded for a target that no parent may be asked for.
        """
        if self.parents is not None:
            present = self.parents.present(target.host, target.port)
            return present.next_hop(exchange, present.same_target(exchange, target))
        if self.parent is None or self._tunnels_only or target.is_secure or exchange.request.upgrade:
            return self, target
        self.opener.ask_parent_for(exchange, target)
        return self.parent, self.parent.target(exchange)  # a parent may have a parent of its own

    def same_target(self, exchange: Exchange, target: UpstreamHost) -> UpstreamHost:
        """The target here that has the destination of a target of another cluster to the same backend."""
        if self.fixed is not None or self._is_dynamic:
            return self.target(exchange)
        return self.targets.configured(target.host, target.port, target.tls)

    def goes_through_parent(self, exchange: Exchange) -> bool:
        """Whether a parent is on the way to the destination of this exchange."""
        if self.parents is None or exchange.authority is None:
            return self.parent is not None
        return not self.parents.is_direct(exchange.authority.host, exchange.authority.port)

    def tunnel_target(self, exchange: Exchange) -> DialTarget:
        """What is dialled for a tunnel, without TLS and pool: its bytes are the client's. Raises as `target`."""
        backend = self.spec.backend
        if backend.destination is _FQDN:
            monitor = self.fixed.monitor if self.fixed is not None else None
            return DialTarget(backend.hostname, backend.port, monitor=monitor)
        if backend.destination is _DYNAMIC:
            if exchange.authority is None:
                raise GatewayFault(Reason.INTERNAL, "the request names no destination")
            return DialTarget(exchange.authority.host, exchange.authority.port)
        endpoint = self._next_endpoint(exchange)
        monitor = self.endpoint_target(endpoint).monitor if self.host_set is not None else None
        return DialTarget(str(endpoint.address), endpoint.port, monitor=monitor)

    def counting_target(self, exchange: Exchange, target: DialTarget) -> UpstreamHost | None:
        """The target that a tunnel to this one counts at; None where no circuit breaker counts it."""
        if self.host_set is None or not self.host_set.counts_tunnels:
            return None
        if isinstance(target, UpstreamHost):
            return target
        if self.fixed is not None or self._is_dynamic:
            return self.target(exchange)
        return self.targets.configured(target.host, target.port, self.spec.backend.tls)

    def host_field(self, exchange: Exchange, target: UpstreamHost) -> bytes:
        """The Host value for this backend, unless the route rewrote it."""
        authority = exchange.authority
        if self.fixed is not None or self._is_dynamic or authority is None:
            return target.host_field  # a Dynamic one is the destination of the exchange
        is_https = exchange.scheme == b"https"
        if is_https is (target.tls is not None) and authority.host == target.host and authority.port == target.port:
            return target.host_field
        return authority.host_field(443 if is_https else 80)

    def _next_endpoint(self, exchange: Exchange, avoid: Collection[UpstreamHost] = ()) -> EndpointAddress:
        endpoints = self.endpoints
        if not endpoints:
            denied = self.opener.address_policy().explicit_deny_of(self.spec.backend.endpoints)
            if denied is not None:
                try:
                    raise denied
                finally:
                    del denied  # its traceback holds this frame: no cycle
            raise UpstreamFault(Reason.NO_ENDPOINT, f"backend {self.name} has no ready endpoint", status=503)
        if self.host_set is not None:
            return self.host_set.next(exchange, avoid)
        self._turn = (self._turn + 1) % len(endpoints)
        return endpoints[self._turn]

    def hops(self) -> Iterator[Cluster]:
        """This cluster, then those of its parents. The addresses of the last one are dialled."""
        hop: Cluster | None = self
        while hop is not None:
            yield hop
            hop = hop.parent

    def note_unverified(self, exchange: Exchange, target: DialTarget) -> None:
        """Have the log say which certificates on the way to this target of ours were not verified."""
        for hop in self.hops():
            if is_unverified(target.tls if hop is self else hop.spec.backend.tls):
                note_unverified(exchange, hop.opener.who)

    def all_hops(self) -> Iterator[Cluster]:
        """The clusters of every way."""
        if self.parents is None:
            yield from self.hops()
            return
        yield self
        for cluster in self.parents.clusters:
            yield from cluster.hops()

    # --- by the first way whose parent can be connected to -----------------------------------------------------
    async def open(
        self,
        exchange: Exchange,
        target: UpstreamHost,
        connect: FilterSteps | None,
        protocol: asyncio.Protocol,
        alpn: tuple[str, ...] = HTTP_1_1,
    ) -> asyncio.Transport:
        if self.parents is None:
            return await self.opener.open(exchange, target, connect, protocol, alpn)
        return await self.parents.reach(
            target.host,
            target.port,
            lambda cluster: cluster.opener.open(
                exchange, cluster.same_target(exchange, target), connect, protocol, alpn
            ),
        )

    async def park(self, exchange: Exchange, target: DialTarget, connect: FilterSteps | None) -> PendingProtocol:
        """As `ConnectionOpener.park`."""
        if self.parents is None:
            return await self.opener.park(exchange, target, connect)
        return await self.parents.reach(
            target.host, target.port, lambda cluster: cluster.opener.park(exchange, target, connect)
        )

    async def acquire_by_any_way(
        self, exchange: Exchange, target: UpstreamHost, connect: FilterSteps | None
    ) -> tuple[Cluster, UpstreamHost, Upstream]:
        """As `next_hop` and then `acquire`."""
        assert self.parents is not None

        async def attempt(cluster: Cluster) -> tuple[Cluster, UpstreamHost, Upstream]:
            via, next_hop = cluster.next_hop(exchange, cluster.same_target(exchange, target))
            return via, next_hop, await via.acquire(exchange, next_hop, connect)

        return await self.parents.reach(target.host, target.port, attempt)

    # --- pooled HTTP connections -------------------------------------------------------------------------------
    def refresh_name(self, exchange: Exchange, target: UpstreamHost) -> bool:
        """Ask DNS again: the answer has ended. Returns whether idle connections may be used; else `acquire` waits."""
        return target.name.refresh(self.opener.first_hop().address_policy(), client_of(exchange))

    async def catch_up(self, exchange: Exchange, target: UpstreamHost) -> None:
        """Wait for the present answer of DNS. Connections to addresses that left it take no further exchange."""
        await target.name.catch_up(self.opener.first_hop().address_policy(), client_of(exchange))

    async def acquire(self, exchange: Exchange, target: UpstreamHost, connect: FilterSteps | None) -> Upstream:
        """A new connection, one that becomes free while we wait, or a place on one of HTTP/2; `release` it. An upgrade
        gets HTTP/1, where that is spoken (RFC 6455 section 4.1). Raises UpstreamFault, Denied, LimitExceeded.
        """
        name = target.name
        is_overdue = name.is_overdue
        if is_overdue:
            await self.catch_up(exchange, target)
            is_overdue = name.is_overdue
        needs_http_1 = exchange.request.upgrade or target.wants_http_1
        if self.speaks_http2_alone or (target.shared is not None and not needs_http_1):
            return await self._acquire_shared(exchange, target, connect)
        pool = target.pool
        ticket: PoolTicket[Upstream] = PoolTicket(client_of(exchange), self._partition_of(exchange))
        if not is_overdue:
            idle = pool.take() or pool.take_kept(ticket)
            if idle is not None:
                return idle
        while not pool.may_open(ticket):
            given = await self._wait(pool, ticket)
            if given is None:
                break  # the right to open one, counted already
            if not given.is_lost:
                return given
        connection = UpstreamConnection(self.network.wheel, UPSTREAM_LIMITS)
        version = name.version
        try:
            if target.tls is None or self._alpn is HTTP_1_1 or needs_http_1:
                await self.opener.open(exchange, target, connect, connection)
            else:
                parked = PendingProtocol()
                await self.opener.open(exchange, target, connect, parked, self._alpn)
                if is_http2(parked):
                    pool.lost(ticket)
                    return self._shared(target).adopt(parked, exchange, version)
                parked.hand_over(connection)
        except BaseException:
            connection.deadline.close()  # it holds the connection, which has no other end
            pool.lost(ticket)
            raise
        return self._opened(target, ticket, connection, version)

    async def _acquire_shared(self, exchange: Exchange, target: UpstreamHost, connect: FilterSteps | None) -> Upstream:
        """A place on a connection of HTTP/2; or a connection of HTTP/1, where another server answers by now."""
        version = target.name.version
        found = await self._shared(target).acquire(exchange, connect, self._alpn)
        if not isinstance(found, PendingProtocol):
            return found
        if target.shared is not None and target.shared.is_empty:
            target.shared = None
        connection = UpstreamConnection(self.network.wheel, UPSTREAM_LIMITS)
        found.hand_over(connection)
        ticket: PoolTicket[Upstream] = PoolTicket(client_of(exchange), self._partition_of(exchange))
        target.pool.count(ticket)
        return self._opened(target, ticket, connection, version)

    def _opened(
        self, target: UpstreamHost, ticket: PoolTicket[Upstream], connection: UpstreamConnection, version: int
    ) -> UpstreamConnection:
        """A connection of HTTP/1 is open: keep it. Raises UpstreamFault where it is gone already."""
        pool, name = target.pool, target.name
        pool.opened(ticket, connection)
        if connection.is_lost:  # gone between the handshake and here
            pool.lost(connection)
            raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the upstream closed its connection")
        opened = self.network.opened
        if not opened.take(ticket.client):
            opened.add(ticket.client)
            connection.retire()  # it is not kept: what one client leaves behind does not use the descriptors up
        connection.on_lost = partial(self._lost, target, ticket.client)
        name.keep(connection, peer_address(connection.transport), pool, version)
        if self.spec.kept.max_age_s:
            connection.age = Deadline(self.network.wheel, partial(retire, connection, pool))
            connection.age.after(self.spec.kept.max_age_s)
        return connection

    def _partition_of(self, exchange: Exchange) -> str:
        """Whom a connection for this exchange serves alone; "-" where it may serve any."""
        return "-" if self._partition is None else self._partition(exchange)

    def _shared(self, target: UpstreamHost) -> SharedConnections:
        if target.shared is None:
            # Here, since HTTP/2 takes memory, and not everybody has a backend that speaks it.
            from egressproxy.gateway.backends.http2_connections import Http2Connections, TenantConnections

            make = partial(Http2Connections, self.spec, target, self.network, self.opener, UPSTREAM_LIMITS)
            target.shared = TenantConnections(make, self._partition) if self._partition is not None else make()
        return target.shared

    def _lost(self, target: UpstreamHost, client: str, connection: UpstreamConnection) -> None:
        self.network.opened.give_back(client)
        target.lost(connection)

    def release(self, target: UpstreamHost, connection: Upstream, *, reusable: bool) -> None:
        """Take a connection back after its exchange. One that is not `reusable` is closed; a stream never is."""
        connection.finish()
        if self._max_requests and connection.served >= self._max_requests:
            connection.close()
        surplus = target.pool.release(connection, reusable=reusable)
        if surplus is not None:
            if reusable:
                surplus.close()
            else:
                surplus.abort()
        elif connection.is_idle:
            connection.deadline.after(self.spec.idle_s)  # type: ignore[union-attr]  # a stream is kept by no pool

    async def _wait(self, pool: Pool[Upstream], ticket: PoolTicket[Upstream]) -> Upstream | None:
        """As `Pool.wait`, for the time that there is to connect (as HAProxy's `timeout queue`)."""
        future = pool.wait(ticket, self.network.loop)
        surplus = pool.make_room()
        if surplus is not None:
            surplus.close()
        deadline = Deadline(self.network.wheel, partial(pool.too_late, ticket))
        deadline.after(self.spec.connect_s)
        try:
            return await future
        except BaseException:
            given = pool.leave(ticket)
            if given is not None:
                surplus = pool.release(given, reusable=not (given.is_lost or given.is_last))
                if surplus is not None:
                    surplus.close()
            raise
        finally:
            deadline.close()
            del future  # its error's traceback holds this frame: no cycle

    def replace_endpoints(self, endpoints: tuple[EndpointAddress, ...]) -> bool:
        """Lead to these addresses of its Service from now on; connections to those that stay are kept. Returns False,
        and changes nothing, where a configuration has to be built for that: a deny closes one of them.
        """
        is_open = self.opener.address_policy().open_endpoints(endpoints) == endpoints
        if not is_open or self.endpoints != self.spec.backend.endpoints or self.parents is not None:
            return False
        if self.checks is not None:
            self.checks.stop()
            self.checks = None
        self.spec = replace(self.spec, backend=replace(self.spec.backend, endpoints=endpoints))
        self.opener.spec = self.spec
        self.endpoints = endpoints
        self.targets.keep({(str(each.address), each.port) for each in endpoints})
        self.host_set = host_set_of(self.spec, self.network, self.targets, endpoints)
        self.is_simple = self.parent is None and self.host_set is None
        self.start()
        return True

    def start(self) -> None:
        """The cluster is in service: ask its endpoints whether they are well, where that is configured."""
        if self.checks is None and self.host_set is not None and self.spec.resilience.check is not None:
            opener = self.opener
            if self.parents is not None:
                opener = SelectingOpener(self.spec, self.network, self.parent, self.parents)
            self.checks = HealthChecks(self.spec, self.network, opener, self.host_set)
            self.checks.start()

    # --- the end -----------------------------------------------------------------------------------------------
    def retire(self) -> None:
        """Close idle connections now, busy ones after their exchange: the configuration has no such backend now."""
        if self.checks is not None:
            self.checks.stop()
        for hop in self.all_hops():
            hop.targets.retire()

    def close_idle(self) -> None:
        """Close what is idle: memory is short. What is asked for next opens connections anew."""
        for hop in self.all_hops():
            for target in hop.targets.known.values():
                target.close_idle()

    def tls_failure(self, host: str) -> TlsFailure | None:
        """Why the latest handshake with this host ("": any) failed, by whichever way; None where it has not."""
        clusters: list[Cluster] = [self] if self.parents is None else [self, *self.parents.clusters]
        failures = [failure for each in clusters if (failure := each.opener.tls_failure) and host in ("", failure.host)]
        return max(failures, default=None)

    def counts(self) -> tuple[int, int]:
        """Connections (active, idle), for metrics."""
        active, idle = self.targets.counts()
        if self.parents is not None:
            counts = [each.counts() for each in self.parents.clusters]
            return active + sum(each for each, _ in counts), idle + sum(each for _, each in counts)
        return active, idle

    @property
    def waiting(self) -> int:
        """Exchanges that wait for a connection, to the backend or its parent, for metrics."""
        return sum(hop.targets.waiting for hop in self.all_hops())


def _identity_of_tenant(exchange: Exchange) -> str:
    """The identity, which may have the same name in another tenant."""
    return f"{tenant_of_client(exchange)} {identity_of(exchange)}"


def _parent_selector(spec: ConnectionIR, network: Network) -> ParentSelector[Cluster]:
    parents = [(parent, Cluster(each, network)) for parent, each in candidate_specs(spec)]
    no_proxy = spec.backend.no_proxy
    direct = Cluster(direct_spec(spec), network) if no_proxy else None
    return ParentSelector(parents, direct, no_proxy, lambda: network.wheel.now, network.reports.parent)
