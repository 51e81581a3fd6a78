"""Http2Connections: the HTTP/2 connections to one target, and the exchanges on them.

They live and end as those of HTTP/1 do: kept to the answer of DNS, to their age and number of requests, and to what one
client may leave behind. A connection belongs to one target under one ConnectionIR, and serves no other name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from egressproxy.errors import LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.opener import ConnectionOpener, is_http2
from egressproxy.gateway.backends.upstream_hosts import Partition, UpstreamHost
from egressproxy.ir.backend import ConnectionIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import client_of
from egressproxy.net.flow_control import peer_address
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.timers import Deadline
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.upstream import Http2Upstream
from egressproxy.protocols.http2.upstream_stream import UpstreamStream
from egressproxy.protocols.upstream import Upstream
from egressproxy.upstream.pool import PoolTicket
from egressproxy.upstream.shared_pool import SharedPool

#: Tenants with connections to one target.
MAX_TENANTS: Final = 1024
#: Those whose last connection has closed are forgotten when there are twice as many as the last time, from here on.
LEAST: Final = 16


class Http2Connections:
    """Gives places on connections to one target. A place is given back by its stream's `finish`."""

    __slots__ = ("_limits", "_network", "_opener", "_pool", "_spec", "_target")

    def __init__(
        self, spec: ConnectionIR, target: UpstreamHost, network: Network, opener: ConnectionOpener, limits: HeadLimits
    ) -> None:
        self._spec = spec
        self._target = target
        self._network = network
        self._opener = opener
        self._limits = limits
        self._pool: SharedPool[UpstreamStream] = SharedPool(target.pool.place, UpstreamStream)
        self._pool.max_connections = target.pool.limit  # those of a circuit breaker
        self._pool.waiting.limit = target.pool.waiting.limit
        self._pool.waiting.share = target.pool.waiting.share

    async def acquire(
        self, exchange: Exchange, connect: FilterSteps | None, alpn: tuple[str, ...]
    ) -> UpstreamStream | PendingProtocol:
        pool = self._pool
        ticket: PoolTicket[UpstreamStream] = PoolTicket(client_of(exchange))
        found = pool.take(ticket)
        while found is None and not pool.may_open(ticket):
            found = await self._wait(ticket)
            if found is None:
                break  # the right to open one, counted already
            if found.upstream.begins_nothing:  # it has left meanwhile
                found.finish()
                found = pool.take(ticket)
        if found is not None:
            return await self._settled(exchange, found)
        version = self._target.name.version
        try:
            opened = await self._open(exchange, connect, alpn)
        except UpstreamFault as error:
            if not pool.connections:
                pool.fail_all(error)
            pool.failed()
            raise
        except BaseException:
            pool.failed()
            raise
        if isinstance(opened, PendingProtocol):
            pool.let_all_open()
            pool.failed()
            return opened
        pool.opened(opened)
        return await self._settled(exchange, self._place_on(opened, ticket, version))

    def adopt(self, parked: PendingProtocol, exchange: Exchange, version: int) -> UpstreamStream:
        ticket = PoolTicket[UpstreamStream](client_of(exchange))
        found = self._pool.take(ticket)
        if found is not None:  # another dial was faster
            parked.transport.close()
            return found
        connection = self._new()
        parked.hand_over(connection)
        self._pool.opening += 1
        self._pool.opened(connection)
        return self._place_on(connection, ticket, version)

    async def _settled(self, exchange: Exchange, place: UpstreamStream) -> UpstreamStream:
        """Whether a server takes an upgrade stands in its settings (RFC 8441 section 3)."""
        if exchange.request.upgrade and place.upstream.is_new:
            try:
                await place.upstream.settings()
            except BaseException:
                place.finish()
                raise
        return place

    # --- as a part of its target -----------------------------------------------------------------------------------
    def retire(self) -> None:
        for connection in list(self._pool.connections):
            assert isinstance(connection, Http2Upstream)
            connection.retire()

    def counts(self) -> tuple[int, int]:
        return self._pool.counts()

    @property
    def waiting(self) -> int:
        return len(self._pool.waiting)

    @property
    def in_flight(self) -> int:
        return sum(connection.active for connection in self._pool.connections) + self._pool.opening

    @property
    def is_empty(self) -> bool:
        return self._pool.is_empty

    @property
    def is_all_idle(self) -> bool:
        return not self._pool.waiting and not self._pool.counts()[0]

    # --- connections -----------------------------------------------------------------------------------------------
    def _new(self) -> Http2Upstream:
        spec = self._spec
        return Http2Upstream(
            self._network.wheel, self._limits, is_secure=self._target.is_secure, idle_s=spec.idle_s,
            max_requests=spec.kept.max_requests,
        )  # fmt: skip

    async def _open(
        self, exchange: Exchange, connect: FilterSteps | None, alpn: tuple[str, ...]
    ) -> Http2Upstream | PendingProtocol:
        target = self._target
        if target.tls is None:  # by prior knowledge (RFC 9113 section 3.3)
            connection = self._new()
            await self._opener.open(exchange, target, connect, connection)
            return connection
        parked = PendingProtocol()
        await self._opener.open(exchange, target, connect, parked, alpn)
        if is_http2(parked):
            connection = self._new()
            parked.hand_over(connection)
            return connection
        if len(alpn) > 1:
            return parked
        parked.transport.abort()
        raise UpstreamFault(Reason.TLS_PROTOCOL, "the upstream does not speak HTTP/2 (ALPN h2)")

    def _place_on(self, connection: Http2Upstream, ticket: PoolTicket[UpstreamStream], version: int) -> UpstreamStream:
        """The first place on a new connection, which is kept as far as its client and its target may keep one."""
        pool, target, opened = self._pool, self._target, self._network.opened
        if connection.is_lost or not connection.room:
            pool.lost(connection)
            raise UpstreamFault(Reason.UPSTREAM_CLOSED, "the upstream closed its connection")
        connection.on_room = pool.settle
        connection.on_free = pool.given_back
        connection.on_http_1 = target.use_http_1
        connection.on_lost = partial(self._lost, ticket.client)
        is_kept = opened.take(ticket.client)
        if not is_kept:
            opened.add(ticket.client)
        place = pool.reserve(connection, ticket)
        target.name.keep(connection, peer_address(connection.transport), None, version)
        connection.age.after(self._spec.kept.max_age_s)
        if not is_kept or target.pool.is_retired:
            connection.retire()
        pool.settle()
        return place

    def _lost(self, client: str, connection: Http2Upstream) -> None:
        self._network.opened.give_back(client)
        self._target.name.forget(connection)
        self._pool.lost(connection)

    async def _wait(self, ticket: PoolTicket[UpstreamStream]) -> UpstreamStream | None:
        """As `SharedPool.wait`, for the time that there is to connect."""
        future = self._pool.wait(ticket, self._network.loop)
        deadline = Deadline(self._network.wheel, partial(self._pool.too_late, ticket))
        deadline.after(self._spec.connect_s)
        try:
            return await future
        except BaseException:
            given = self._pool.leave(ticket)
            if given is not None:
                given.finish()
            raise
        finally:
            deadline.close()
            del future  # its error's traceback holds this frame: no cycle


@dataclass(slots=True, eq=False, repr=False)
class TenantConnections:
    """The connections to one target, where each serves one tenant alone, or one of another `partition`. `make`: those
    of a tenant without any.
    """

    _make: Callable[[], Http2Connections]
    _partition: Partition
    _of: dict[str, Http2Connections] = field(default_factory=dict)
    _room: int = LEAST

    async def acquire(
        self, exchange: Exchange, connect: FilterSteps | None, alpn: tuple[str, ...]
    ) -> Upstream | PendingProtocol:
        """As of SharedConnections, among those of the tenant. Raises LimitExceeded (503) where too many have some."""
        return await self._of_tenant(exchange).acquire(exchange, connect, alpn)

    def adopt(self, parked: PendingProtocol, exchange: Exchange, version: int) -> Upstream:
        """As of SharedConnections. Raises LimitExceeded (503) where too many tenants have some."""
        return self._of_tenant(exchange).adopt(parked, exchange, version)

    def _of_tenant(self, exchange: Exchange) -> Http2Connections:
        tenant = self._partition(exchange)
        found = self._of.get(tenant)
        if found is None:
            if len(self._of) >= self._room:
                self._make_room()
            found = self._of[tenant] = self._make()
        return found

    def _make_room(self) -> None:
        """Forget who has no connection; else close those of one tenant that uses none."""
        self._of = {tenant: each for tenant, each in self._of.items() if not each.is_empty}
        self._room = min(MAX_TENANTS, max(LEAST, 2 * len(self._of)))
        if len(self._of) < MAX_TENANTS:
            return
        idle = next((tenant for tenant, each in self._of.items() if each.is_all_idle), None)
        if idle is None:
            message = "too many tenants have connections to this destination"
            raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        self._of.pop(idle).retire()

    def retire(self) -> None:
        for each in list(self._of.values()):
            each.retire()

    def counts(self) -> tuple[int, int]:
        counts = [each.counts() for each in self._of.values()]
        return sum(active for active, _ in counts), sum(idle for _, idle in counts)

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self._of.values())

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self._of.values())

    @property
    def is_empty(self) -> bool:
        return all(each.is_empty for each in self._of.values())

    @property
    def is_all_idle(self) -> bool:
        return all(each.is_all_idle for each in self._of.values())
