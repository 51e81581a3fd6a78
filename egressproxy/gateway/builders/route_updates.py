"""Route updates: changed HTTPRoutes in a snapshot that is in service, without building the other ones again."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final, NamedTuple

from egressproxy.gateway.builders.snapshot_builder import SnapshotBuilder, placeholders, without_routes
from egressproxy.gateway.exchange.admission import HTTP_PORT
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener, Snapshot
from egressproxy.ir.backend import Destination
from egressproxy.ir.gateway import ConfigIR, ListenerIR
from egressproxy.model.authority import Authority
from egressproxy.model.work import BlockingWork, Work
from egressproxy.routing.hosts import HostMap
from egressproxy.routing.table import HttpTable

_KIND: Final = "HTTPRoute"


class _ChangedListener(NamedTuple):
    listener: ActiveListener
    http: HttpTable[Route]
    hosts: HostMap[bool]


class RouteUpdate(NamedTuple):
    """What was built for a snapshot. It makes no socket, and changes nothing before it is put into service."""

    builder: SnapshotBuilder
    listeners: tuple[_ChangedListener, ...]

    def put_into_service(self, snapshot: Snapshot) -> None:
        """Have the next requests meet the changed routes, on all listeners at once."""
        for cluster in self.builder.parts.clusters.values():
            if cluster.spec not in snapshot.clusters:
                snapshot.clusters[cluster.spec] = cluster
                cluster.start()
        snapshot.filters.adopt(self.builder.filters)
        for each in self.listeners:
            each.listener.http, each.listener.hosts = each.http, each.hosts


def updating(
    builder: SnapshotBuilder, snapshot: Snapshot, config: ConfigIR, names: Collection[str]
) -> BlockingWork[RouteUpdate | None]:
    """Build the HTTPRoutes of these names (namespace/name) as `config` has them; one that it does not have is gone.

    `config` has the listeners of the snapshot. None: something else would have to be another one, too, so that a whole
    configuration has to be built. Raises as `snapshot_builder.build`.
    """
    listeners = {id(each): each for port in snapshot.ports.values() for each in port.listeners}.values()
    active = {(each.gateway, each.name): each for each in listeners}
    fresh = {(spec.gateway, spec.name): spec for spec in config.listeners}
    if active.keys() != fresh.keys() or len(active) < len(listeners) or len(fresh) < len(config.listeners):
        return None
    for key, spec in fresh.items():
        if not _differs_in_routes_alone(active[key], spec):
            return None
        yield None
    found = yield from placeholders(config)
    if found and (snapshot.watches is None or not found.keys() <= snapshot.watches.specs):
        return None
    builder.parts.watches = snapshot.watches
    builder.parts.system_roots = config.system_roots
    for number, cluster in enumerate(list(snapshot.clusters.values())):
        backend = cluster.spec.backend
        if backend.destination is Destination.SERVICE:  # other addresses come by themselves (`replace_endpoints`)
            builder.parts.services.setdefault((backend.name, backend.port), []).append(cluster)
        if not number % 512:
            yield None
    pairs = [(active[key], spec) for key, spec in fresh.items()]
    return RouteUpdate(builder, (yield from builder.with_code(partial(_changed, builder, pairs, names))))


def _differs_in_routes_alone(active: ActiveListener, spec: ListenerIR) -> bool:
    """Whether this is the listener in service. With policies for some clients there are variants of each route, a
    GRPCRoute may have to give way to an HTTPRoute, and filters of the listener are in each rule: such a listener is
    built as a whole.
    """
    if active.variants is not None or spec.subjects or spec.pre_routing is not None:
        return False
    if any(route.kind != _KIND for route in spec.http_routes):
        return False
    return without_routes(spec) == active.spec


def _changed(
    builder: SnapshotBuilder, pairs: list[tuple[ActiveListener, ListenerIR]], names: Collection[str]
) -> BlockingWork[tuple[_ChangedListener, ...]]:
    made = []
    for active, spec in pairs:
        routes = []
        for route in spec.http_routes:
            if route.name in names:
                routes.append((route, (yield from builder.rules_of(spec, route))))
        table, hostnames = yield from active.http.replacing(_KIND, names, routes)
        if hostnames:
            hosts = yield from _hosts(active.hosts, table, hostnames)
            made.append(_ChangedListener(active, table, hosts))
    return tuple(made)


def _hosts(before: HostMap[bool], table: HttpTable[Route], hostnames: Collection[str]) -> Work[HostMap[bool]]:
    """As `snapshot_builder.permitted_by`, where these hostnames may have other routes than before."""
    changes: dict[str, bool | None] = {}
    for hostname in hostnames:
        place = Authority(hostname, HTTP_PORT)
        permissions = (route.permission for route in table.at(hostname))
        is_named = any(each is None or (hostname != "" and each.names(place)) for each in permissions)
        changes[hostname] = is_named or None
        yield None
    return before.replaced(changes)
