"""UpstreamHosts: the destinations of one cluster, each with its pool. Their number is bounded, because clients of a
forward proxy name as many as they like. A DialTarget is what is dialled, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

from egressproxy.errors import GatewayError, LimitExceeded, Reason
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.dns_tracked_host import UNTRACKED, DnsTrackedHost
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.caller_identity import tenant_of
from egressproxy.model.exchange import BackendOrigin, Exchange
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls_resumption import TlsResumption
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.upstream import Upstream
from egressproxy.upstream.pool import Pool, TenantPool
from egressproxy.upstream.resolver import Resolver

#: Beyond so many destinations of a cluster, or of one client there, those without a connection are forgotten.
MAX_TARGETS: Final = 4096
MAX_TARGETS_OF_CLIENT: Final = 1024
#: How many are freed at one time.
FREED_TARGETS: Final = 64
#: TLS sessions of all tenants and targets of a cluster, some kilobytes each: what is forgotten costs a handshake.
MAX_SESSIONS: Final = 4096
Key = tuple[str, int, bool]  # host, port, whether over TLS
Partition = Callable[[Exchange], str]  # whom a connection serves alone
TenantSessions = Callable[[tuple[str, int], Exchange], TlsResumption]  # by host and port, of the client's partition


class HostMonitor(Protocol):
    """Is asked before an attempt at a target, and told what became of it (see `endpoints`). It holds no target."""

    __slots__ = ()

    def admit(self, target: UpstreamHost) -> None:
        """An attempt begins. Raises LimitExceeded, or UpstreamFault, (503) where there may be none."""

    def answered(self, target: DialTarget, upstream: str, status: int) -> None:
        """The endpoint at this address ("host:port") gave a final status; 0: a connection, for a tunnel."""

    def failed(self, target: DialTarget, error: GatewayError, exchange: Exchange, upstream: Upstream | None) -> None:
        """An attempt failed, on this connection or before there was one."""

    def order(self, target: DialTarget, addresses: Sequence[IPAddress]) -> Sequence[IPAddress]:
        """Those of the addresses of a name that may be dialled now."""


class CreatesMonitors(Protocol):
    """Makes the monitor of each new target."""

    __slots__ = ()

    def new_monitor(self, target: UpstreamHost) -> HostMonitor:
        """The monitor of a new target. It may change the limits of the target's pool."""


class DialTarget:
    """What is dialled, and how. `only`: of the addresses of a name, for health checks."""

    __slots__ = ("host", "monitor", "name", "only", "port", "resumption", "sessions", "tls")

    def __init__(
        self,
        host: str,
        port: int,
        tls: BackendTlsIR | None = None,
        name: DnsTrackedHost = UNTRACKED,
        monitor: HostMonitor | None = None,
        only: IPAddress | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.name = name
        self.monitor = monitor
        self.only = only
        self.resumption: TlsResumption | None = None  # each handshake is a whole one, unless `sessions` has some
        self.sessions: TenantSessions | None = None  # in place of `resumption`, where clients are kept apart

    def resumption_of(self, exchange: Exchange) -> TlsResumption | None:
        """What a handshake for this exchange may be resumed with; None for a whole one."""
        if self.sessions is None:
            return self.resumption
        return self.sessions((self.host, self.port), exchange)


class SharedConnections(Protocol):
    """Connections to a target that carry many exchanges at a time (HTTP/2), and are in no Pool."""

    __slots__ = ()

    async def acquire(
        self, exchange: Exchange, connect: FilterSteps | None, alpn: tuple[str, ...]
    ) -> Upstream | PendingProtocol:
        """A place for this exchange; or a connection that was just opened, where the server has chosen HTTP/1.1 of the
        `alpn` that may be offered. Raises UpstreamFault, Denied, LimitExceeded.
        """

    def adopt(self, parked: PendingProtocol, exchange: Exchange, version: int) -> Upstream:
        """Take over a connection that speaks HTTP/2, opened when the name had this version: a place on it."""

    def retire(self) -> None:
        """No connection takes another exchange; idle ones close now."""

    def counts(self) -> tuple[int, int]:
        """Connections (active, idle)."""

    @property
    def waiting(self) -> int:
        """Exchanges that wait for a connection."""

    @property
    def in_flight(self) -> int:
        """Exchanges that are there now."""

    @property
    def is_empty(self) -> bool:
        """Whether no connection is open and no exchange waits."""

    @property
    def is_all_idle(self) -> bool:
        """Whether no connection is in use and no exchange waits."""


class UpstreamHost(DialTarget):
    """One destination of a cluster, and the connections to it. `client` has named it first, or "": the operator.

    `pool` has connections of HTTP/1, `shared` those of HTTP/2, where the destination is known to speak it.
    """

    __slots__ = ("client", "host_field", "origin", "pool", "shared", "wants_http_1")

    def __init__(
        self, host: str, port: int, tls: BackendTlsIR | None, name: DnsTrackedHost, pool: Pool[Upstream], client: str
    ) -> None:
        super().__init__(host, port, tls, name)
        self.pool = pool
        self.client = client
        self.shared: SharedConnections | None = None
        self.wants_http_1 = False  # it has said so over HTTP/2 (RFC 9113 section 7: HTTP_1_1_REQUIRED)
        self.origin = backend_origin(host, port, tls)
        self.host_field = Authority(host, port).host_field(443 if tls is not None else 80)

    @property
    def is_secure(self) -> bool:
        return self.tls is not None

    @property
    def in_flight(self) -> int:
        """Requests that are there now, and those that wait for a connection."""
        pool = self.pool
        count = pool.open - pool.idle_count + len(pool.waiting)
        return count if self.shared is None else count + self.shared.in_flight + self.shared.waiting

    @property
    def key(self) -> Key:
        return self.host, self.port, self.is_secure

    @property
    def is_empty(self) -> bool:
        return self.pool.is_empty and (self.shared is None or self.shared.is_empty)

    @property
    def is_all_idle(self) -> bool:
        return self.pool.is_all_idle and (self.shared is None or self.shared.is_all_idle)

    def counts(self) -> tuple[int, int]:
        idle = self.pool.idle_count
        active = self.pool.open - idle
        if self.shared is None:
            return active, idle
        more_active, more_idle = self.shared.counts()
        return active + more_active, idle + more_idle

    @property
    def waiting(self) -> int:
        return len(self.pool.waiting) + (self.shared.waiting if self.shared is not None else 0)

    def use_http_1(self) -> None:
        self.wants_http_1 = True

    def close_idle(self) -> None:
        """Close the idle connections of HTTP/1: of those of HTTP/2 a backend has few."""
        for connection in self.pool.take_idle():
            connection.close()

    def retire(self) -> None:
        for connection in self.pool.retire():
            connection.close()
        if self.shared is not None:
            self.shared.retire()

    def lost(self, connection: UpstreamConnection) -> None:
        """Forget a connection of the pool that is gone."""
        self.name.forget(connection)
        if connection.age is not None:
            connection.age.close()
        self.pool.lost(connection)


def tenant_of_client(exchange: Exchange) -> str:
    """The tenant that a connection for this exchange serves."""
    return tenant_of(exchange.identity)


def backend_origin(host: str, port: int, tls: BackendTlsIR | None) -> BackendOrigin:
    """What backend-request filters are told of a destination."""
    names: tuple[str, ...] = ()
    if tls is not None and tls.is_verified:
        names = tls.names or (tls.sni or host,)
    return BackendOrigin(host, port, tls is not None, names)


def _new_sessions(_target: tuple[str, int], _tenant: str) -> TlsResumption:
    """A session is no more another tenant's than its connection: by either a server may know whom it serves."""
    return TlsResumption()


class UpstreamHosts:
    """The destinations of one cluster, each with its pool. `known` is for reading.

    `name` is that of the backend. `first_hop` is what is dialled for all of them where there is a parent: connections
    are kept to its name. `partition`: no connection and no TLS session serves several of these; None: any.
    """

    __slots__ = (
        "_first_hop", "_name", "_new_pool", "_of_client", "_resolver", "_sessions", "_wheel", "is_retired", "known",
        "monitors",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        resolver: Resolver,
        wheel: TimerWheel,
        first_hop: DnsTrackedHost | None,
        *,
        partition: Partition | None = None,
    ) -> None:
        self.known: dict[Key, UpstreamHost] = {}
        self._of_client: dict[str, dict[Key, UpstreamHost]] = {}  # of each client that has named some first
        self.is_retired = False
        self._name = name
        self._new_pool: Callable[[str], Pool[Upstream]] = TenantPool if partition is not None else Pool
        self._sessions: TenantSessions | None = None
        if partition is not None:
            kept = lru_cache(MAX_SESSIONS)(_new_sessions)
            self._sessions = lambda place, exchange: kept(place, partition(exchange))
        self._resolver = resolver
        self._wheel = wheel
        self._first_hop = first_hop
        self.monitors: CreatesMonitors | None = None

    def configured(self, host: str, port: int, tls: BackendTlsIR | None, *, is_name: bool = False) -> UpstreamHost:
        """The target of a destination that the configuration names. `is_name`: the host is resolved."""
        target = self.known.get((host, port, tls is not None))
        return target if target is not None else self._add(host, port, tls, is_name)

    def named(self, client: str, authority: Authority, tls: BackendTlsIR | None) -> UpstreamHost:
        """A new target, which this client names. Raises LimitExceeded (503) where connections lead to too many
        destinations.
        """
        for targets, limit, have in (
            (self._of_client.get(client, {}), MAX_TARGETS_OF_CLIENT, "this client has"),
            (self.known, MAX_TARGETS, "there are"),
        ):
            if len(targets) >= limit:
                self._forget_unused(targets, limit)
            if len(targets) >= limit:
                message = f"{have} connections to too many destinations"
                raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        target = self._add(authority.host, authority.port, tls, authority.address is None, client)
        self._of_client.setdefault(client, {})[target.key] = target
        return target

    def keep(self, places: Collection[tuple[str, int]]) -> None:
        """Forget the targets of all other hosts and ports; their connections end after the exchange that they have."""
        self._forget([key for key in self.known if key[:2] not in places])

    def retire(self) -> None:
        self.is_retired = True
        for target in self.known.values():
            target.retire()

    def counts(self) -> tuple[int, int]:
        counts = [target.counts() for target in self.known.values()]
        return sum(active for active, _ in counts), sum(idle for _, idle in counts)

    @property
    def waiting(self) -> int:
        return sum(target.waiting for target in self.known.values())

    def _add(self, host: str, port: int, tls: BackendTlsIR | None, is_name: bool, client: str = "") -> UpstreamHost:
        """A new target. Its `name` says whether connections to it may be used: behind a parent, that of the parent."""
        own = DnsTrackedHost(host, port, self._resolver, self._wheel) if is_name else UNTRACKED
        target = UpstreamHost(host, port, tls, self._first_hop or own, self._new_pool(self._name), client)
        if tls is not None and not tls.crl_pem:
            target.sessions = self._sessions
            target.resumption = TlsResumption() if self._sessions is None else None
        if self.monitors is not None:
            target.monitor = self.monitors.new_monitor(target)
        self.known[target.key] = target
        target.pool.is_retired = self.is_retired
        return target

    def _forget_unused(self, targets: Mapping[Key, UpstreamHost], limit: int) -> None:
        """Those without a connection; then idle ones, oldest first, until there is room below the limit."""
        self._forget([key for key, target in targets.items() if target.is_empty])
        idle = [key for key, target in targets.items() if target.is_all_idle]
        count = max(0, len(targets) - limit + FREED_TARGETS)
        self._forget(idle[:count])

    def _forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            target = self.known.pop(key)
            own = self._of_client.get(target.client)
            if own is not None:
                del own[key]
                if not own:
                    del self._of_client[target.client]
            target.retire()
