"""GatewayServer: the snapshot in service, the sockets, and the swap from one configuration to the next.

A new configuration is built beside the old one; sockets that it needs are bound before anything changes; then the
ports of all bound sockets are swapped at once. A failure before that leaves everything as it was.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.builders.route_updates import updating
from egressproxy.gateway.builders.snapshot_builder import SnapshotBuilder
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.identity.killed_identities import KilledIdentities
from egressproxy.gateway.identity.seen_values import SharedSeenValues
from egressproxy.gateway.listeners.bound_port import BoundPort
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.overload.memory_pressure import OverloadState
from egressproxy.gateway.overload.process_limits import NO_LIMITS, ProcessLimits
from egressproxy.gateway.server.endpoint_reports import reports_to
from egressproxy.gateway.server.overload_manager import OverloadManager
from egressproxy.gateway.snapshot import Port, Snapshot, replace_endpoints
from egressproxy.ir.backend import EndpointAddress
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.authority import IPAddress
from egressproxy.model.exchange import Exchange
from egressproxy.model.listening_place import is_connection, is_datagram
from egressproxy.model.own_names import new_pseudonym
from egressproxy.net.cooperative import in_turns
from egressproxy.net.listening import BindError, bind, bind_error
from egressproxy.net.loop import poller
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls_contexts.contexts import make_ready
from egressproxy.net.tls_contexts.system_roots import in_force, put_in_force
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.event_aggregator import FilterStats
from egressproxy.telemetry.metrics import Metrics
from egressproxy.telemetry.series import Labels
from egressproxy.upstream.endpoint_health import HealthState
from egressproxy.upstream.own_sockets import OwnSockets

if TYPE_CHECKING:
    from egressproxy.gateway.listeners.dns_transports import DnsTransports

log = logging.getLogger(__name__)

#: How often a drain looks whether everybody has gone.
DRAIN_POLL_S = 0.05
#: For requests that are on their way when a drain begins: so long it waits before it closes idle connections.
ARRIVE_S = 0.1
#: How long the end of a drain waits for a collector of spans.
EXPORT_S = 2.0


class GatewayServer:
    """The data plane of one process."""

    def __init__(
        self, catalog: Catalog, metrics: Metrics, access_log: AccessLog, pseudonym: bytes = b"",
        bind: Callable[[str, int], socket.socket] = bind, session_key: bytes = b"", zone: str = "",
        limits: ProcessLimits = NO_LIMITS,
    ) -> None:  # fmt: skip
        """`pseudonym` is the name in Via; `session_key`, `zone`: see Network; `limits` are those of this process;
        `bind` gives the listening socket of an address and port, or raises OSError.
        """
        loop = asyncio.get_running_loop()
        pseudonym = pseudonym or new_pseudonym()
        self.catalog = catalog
        self.metrics = metrics
        self.wheel = TimerWheel()
        self.wheel.start(loop)
        self.network = Network(loop, self.wheel, pseudonym, reports_to(metrics), session_key, zone, catalog.keyed)
        accounting = Accounting(self.wheel, access_log, pseudonym, metrics)
        if catalog.counters is not None:  # there are several workers
            accounting.seen = SharedSeenValues(catalog.keyed)
        self.connection_manager = HttpConnectionManager(accounting, limits.connections)
        self.snapshot: Snapshot | None = None
        self.binds_ports = True  # False: the snapshot is for somebody else's traffic (ext_proc_server)
        self._prepared: FilterInstances | None = None  # of a configuration that is not in service yet
        self._first: Snapshot | None = None  # what was prepared, while nothing is in service
        self._updating = asyncio.Lock()  # each update is built upon the one before
        self._bind = bind
        self._bound: dict[tuple[str, int], BoundPort] = {}
        self._closing: set[BoundPort] = set()
        self._is_hurried = False
        self._dns: DnsTransports | None = None
        self.overload = OverloadManager(
            limits, self.connection_manager, self._ports, self._clusters, self.network.mirror_requests
        )
        clients = self.connection_manager.clients
        metrics.add_gauge(
            "egress_buffered_bytes", "Bytes of bodies that are held for clients.", lambda: clients.held_bytes
        )
        metrics.add_counter(
            "egress_buffered_bodies_waited",
            "Bodies that had to wait, since their client or connection held as much as limits.bufferedBytesPerClient "
            "or bufferedBytesPerConnection allows.",
            lambda: clients.bodies_waited,
        )
        metrics.upstream_sources.append(self._upstream_counts)
        metrics.downstream_sources.append(self._downstream_counts)
        metrics.request_sources.append(self._requests)
        metrics.filter_sources.append(self._filter_counts)
        metrics.endpoint_sources.append(self._endpoint_states)
        metrics.circuit_sources.append(self._open_circuits)
        metrics.parent_sources.append(self._parents_aside)

    # --- configuration -------------------------------------------------------------------------------------------
    async def apply(self, config: ConfigIR, own: Iterable[tuple[str, int]] = ()) -> Snapshot:
        """Put a configuration into service. `own`: the admin and metrics addresses, closed to clients. Raises
        BindError, FilterBuildError, ssl.SSLError or ValueError; then nothing has changed.
        """
        fresh = await self.prepare(config)
        await self.put_into_service(fresh, own)
        return fresh

    async def prepare(self, config: ConfigIR) -> Snapshot:
        """Build a configuration between turns of the loop. Raises FilterBuildError, ssl.SSLError or ValueError."""
        self._forget_prepared()
        builder = SnapshotBuilder(self.catalog, self.network, self.metrics, self.snapshot)
        self._prepared = builder.filters
        try:
            if config.system_roots != in_force():
                await asyncio.to_thread(make_ready, config.system_roots)
                put_in_force(config.system_roots)
            fresh = await in_turns(builder.snapshot(config))
        except BaseException:
            self._forget_prepared()
            self._forget_resolvers()
            raise
        if self.snapshot is None:
            self._first = fresh
        return fresh

    def _forget_prepared(self) -> None:
        prepared, self._prepared, self._first = self._prepared, None, None
        if prepared is not None:
            prepared.close()

    async def put_into_service(self, fresh: Snapshot, own: Iterable[tuple[str, int]] = ()) -> None:
        """Bind new sockets, and swap. Raises BindError; then nothing has changed. `own` as in `apply`."""
        await asyncio.sleep(0)  # what building left to free was freed in a turn of its own
        new: dict[tuple[str, int], BoundPort] = {}
        failed: list[BindError] = []
        try:
            for key, port in fresh.ports.items() if self.binds_ports else ():
                if key not in self._bound:
                    try:
                        new[key] = self._bind_port(port)
                    except BindError as error:
                        failed.append(error)
            if failed:
                raise BindError.of(failed)
            for bound in new.values():
                bound.start()
                if self.overload.state is OverloadState.REFUSING:
                    bound.pause_accepting()
        except BaseException:
            for bound in new.values():
                bound.stop_accepting()
            raise
        old = self._swap(fresh, new, own)
        await asyncio.sleep(0)
        del old  # ten thousand routes take as long as a slice or ten

    def _bind_port(self, port: Port) -> BoundPort:
        try:
            sock = self._bind(port.address, port.number)
            receive = self._dns_transports().datagrams(sock) if is_datagram(port.address) else None
            return BoundPort(sock, port, self.connection_manager, self.metrics, self._dns_connection, receive)
        except OSError as error:
            listeners = ", ".join(f"{live.gateway}/{live.name}" for live in port.listeners)
            raise bind_error(listeners, port.address, port.number, error) from None

    def _dns_transports(self) -> DnsTransports:
        """What answers queries of DNS."""
        if self._dns is None:
            # Here, since few gateways have such a listener.
            from egressproxy.gateway.listeners.dns_transports import DnsTransports

            tables = self.catalog.keyed
            self._dns = DnsTransports(self.connection_manager.accounting, self.network, self.metrics, tables)
        return self._dns

    def _dns_connection(self, state: OpenConnections) -> asyncio.BaseProtocol:
        return self._dns_transports().connection(state)

    def _swap(
        self, fresh: Snapshot, new: dict[tuple[str, int], BoundPort], own: Iterable[tuple[str, int]]
    ) -> Snapshot | None:
        """Make the new configuration hold, all at once: nothing is awaited. Returns the old one."""
        old, self.snapshot = self.snapshot, fresh
        self.connection_manager.accounting.access_log.exporter = fresh.line_exporter
        self._bound.update(new)
        for key, bound in list(self._bound.items()):
            port = fresh.ports.get(key)
            if port is not None:
                bound.serve(port)
            else:
                del self._bound[key]
                bound.stop_accepting()
                bound.close_idle()
                self._closing.add(bound)
        self._closing = {bound for bound in self._closing if bound.open_connections}
        if self._dns is not None:
            self._dns.forget()
        places = (place for place in self._bound if is_connection(place[0]))
        self.network.own = OwnSockets(map(_socket, places), map(_socket, own))
        if old is not None:
            old.leaf_caches.replaced_by(fresh.leaf_caches, self.metrics.interceptions)
            for spec, cluster in old.clusters.items():
                if spec not in fresh.clusters:
                    cluster.retire()
        for cluster in fresh.clusters.values():
            cluster.start()
        self._forget_resolvers()
        fresh.filters.seal()
        self._prepared = self._first = None
        self.overload.start()
        return old

    def _forget_resolvers(self) -> None:
        """Keep those of the snapshot in service."""
        self.network.keep_resolvers(hop.spec for cluster in self._clusters() for hop in cluster.all_hops())

    def replace_endpoints(self, updates: Mapping[tuple[str, int], tuple[EndpointAddress, ...]]) -> bool:
        """As `snapshot.replace_endpoints`, in what is in service."""
        return self.snapshot is None or replace_endpoints(self.snapshot.clusters, updates)

    async def update_routes(self, config: ConfigIR, names: Collection[str]) -> bool:
        """Have the configuration in service, or the first one that is prepared, serve these HTTPRoutes (namespace/name)
        as `config`, of its generation, has them. Returns False where a whole one has to be built. Raises as `prepare`;
        nothing has changed then.
        """
        async with self._updating:
            snapshot = self.snapshot or self._first
            if snapshot is None or snapshot.generation != config.generation or not self.binds_ports:
                return False
            if config.system_roots != in_force():
                return False
            builder = SnapshotBuilder(self.catalog, self.network, self.metrics, snapshot)
            is_done = False
            try:
                update = await in_turns(updating(builder, snapshot, config, names))
                if update is not None and snapshot is (self.snapshot or self._first):
                    update.put_into_service(snapshot)
                    is_done = True
            finally:
                if not is_done:
                    builder.filters.close()
            return is_done

    # --- the end ---------------------------------------------------------------------------------------------------
    def end_connections(self) -> None:
        """From now on each connection ends with its exchange; new ones are accepted, and served."""
        self.connection_manager.is_draining = self.connection_manager.ends_connections = True

    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        """Stop accepting, let exchanges and tunnels end, then cut what is left. Returns how many connections it cut.

        `elsewhere` are the addresses and ports on which another process accepts what waits. A connection that is idle
        may ask once more within `idle_s`.
        """
        self.end_connections()
        ports = {*self._bound.values(), *self._closing}
        for place, port in self._bound.items():
            port.begin_drain(takes_waiting=place not in elsewhere)
        if self.snapshot is not None:
            self.snapshot.filters.drain()
        waited, asks_s = min(ARRIVE_S, timeout_s), min(max(ARRIVE_S, idle_s), timeout_s)
        self.connection_manager.last_idle_s = asks_s
        await asyncio.sleep(waited)
        has_closed_idle = False
        while True:
            if not has_closed_idle and (waited >= asks_s or self._is_hurried):
                has_closed_idle = True
                for port in ports:
                    port.close_idle()
            if waited >= timeout_s or self._is_hurried or not any(port.open_connections for port in ports):
                break
            await asyncio.sleep(DRAIN_POLL_S)
            waited += DRAIN_POLL_S
        cut = sum(port.open_connections for port in ports)
        self.connection_manager.accounting.is_cutting = True
        for port in ports:
            port.abort_all()
        if self.snapshot is not None:
            await asyncio.gather(*(each.drain(EXPORT_S) for each in self.snapshot.exporters.values()))
            for cluster in self.snapshot.clusters.values():
                cluster.retire()
            self.snapshot.filters.close()
        self._forget_prepared()
        await asyncio.sleep(0)
        await poller().all_ended()
        self.overload.stop()
        self.wheel.stop()
        return cut

    def _ports(self) -> Iterable[BoundPort]:
        return (*self._closing, *self._bound.values())

    def _clusters(self) -> Iterable[Cluster]:
        return self.snapshot.clusters.values() if self.snapshot is not None else ()

    @property
    def killed(self) -> KilledIdentities:
        return self.overload.gate.killed

    def kill(self, killed: KilledIdentities, new: KilledIdentities) -> int:
        """Put these clients out of service, and no others; what is under way for `new` ones breaks off. Returns how
        much.
        """
        self.overload.refuse_identities(killed)
        if not new:
            return 0
        return sum(state.cut(new) for port in self._ports() for state in port.states)

    def hurry(self) -> None:
        """End a drain under way: cut what is left without further waiting."""
        self._is_hurried = True

    # --- metrics -----------------------------------------------------------------------------------------------------
    def _upstream_counts(self) -> Iterator[tuple[str, int, int, int]]:
        totals: dict[str, tuple[int, int, int]] = {}
        for cluster in self._clusters():
            active, idle = cluster.counts()
            known = totals.get(cluster.name, (0, 0, 0))
            totals[cluster.name] = (known[0] + active, known[1] + idle, known[2] + cluster.waiting)
        for name, numbers in totals.items():
            yield name, *numbers

    def _downstream_counts(self) -> Iterator[tuple[str, str, int]]:
        for port in self._bound.values():
            first = port.state.port.first
            yield first.gateway, first.name, port.open_connections

    def _requests(self) -> Iterator[Labels]:
        return (exchange.series.labels for exchange in self.requests())

    def requests(self) -> Iterator[Exchange]:
        """The requests in progress, and the tunnels that are not open yet."""
        return (exchange for port in self._ports() for state in port.states for exchange in state.requests())

    def _endpoint_states(self) -> Iterator[tuple[str, str, str]]:
        """By backend and endpoint. One that several routes reach under different policies has its worst state."""
        found: dict[tuple[str, str], HealthState] = {}
        for cluster in self._clusters():
            for health in cluster.host_set.healths() if cluster.host_set is not None else ():
                key = cluster.name, health.address
                if found.get(key, HealthState.HEALTHY) is HealthState.HEALTHY:
                    found[key] = health.state
        return ((*key, state.value) for key, state in found.items())

    def _open_circuits(self) -> Iterator[tuple[str, str]]:
        for cluster in self._clusters():
            if cluster.host_set is not None:
                for limit in cluster.host_set.open_circuits():
                    yield cluster.name, limit

    def _parents_aside(self) -> Iterable[tuple[str, bool]]:
        """By parent: whether one of the backends behind it has it put aside."""
        found: dict[str, bool] = {}
        for cluster in self._clusters():
            for parent, left_s in cluster.parents.put_aside() if cluster.parents is not None else ():
                found[parent] = found.get(parent, False) or left_s > 0
        return found.items()

    def _filter_counts(self) -> Iterable[FilterStats]:
        return self.snapshot.filters.stats() if self.snapshot is not None else ()


def _socket(place: tuple[str, int]) -> tuple[IPAddress, int]:
    return ipaddress.ip_address(place[0]), place[1]
