"""Build: ConfigSpec → Snapshot. Everything that configuration alone decides is decided here, so that a request looks
up nothing.

What has an equal spec in the snapshot before is kept: connectors with their pools, filters with their buckets, series
with
their counts. Makes no socket and changes nothing of what is in service; may run in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from egressproxy.filters.catalog import Catalog, FilterInstances
from egressproxy.filters.chain import Chain, compile_chain
from egressproxy.gateway.connector import Connector, Network
from egressproxy.gateway.live import Choice, Listener, Port, Route, Snapshot
from egressproxy.routing.destinations import DestinationPolicy
from egressproxy.routing.hosts import HostEntry, HostTable
from egressproxy.routing.table import HttpTable
from egressproxy.spec.backend import ConnectionSpec
from egressproxy.spec.gateway import ConfigSpec, ListenerProtocol, ListenerSpec, ListenerTlsSpec, TlsMode
from egressproxy.spec.policy import DestinationsSpec, ExtensionSpec, PolicySpec
from egressproxy.spec.route import HttpRouteSpec, HttpRuleSpec, StreamRouteSpec, WeightedBackend
from egressproxy.telemetry.metrics import Metrics
from egressproxy.transport.tls_contexts import server_context

__all__ = ["build"]

STREAM_PROTOCOLS = (ListenerProtocol.TLS, ListenerProtocol.TCP)
NO_FILTERS = Chain()


def build(
    config: ConfigSpec, catalog: Catalog, network: Network, metrics: Metrics, previous: Snapshot | None
) -> Snapshot:
    """The live form of a configuration. Raises FilterBuildError, ssl.SSLError or ValueError where a part cannot be
    built.
    """
    return _Builder(catalog, network, metrics, previous).snapshot(config)


class _Builder:
    def __init__(self, catalog: Catalog, network: Network, metrics: Metrics, previous: Snapshot | None) -> None:
        self.network = network
        self.metrics = metrics
        self.known = previous.connectors if previous is not None else {}
        self.connectors: dict[ConnectionSpec, Connector] = {}
        self.filters = FilterInstances(catalog, previous.filters if previous is not None else None)
        self.chains: dict[tuple[ExtensionSpec, ...], Chain] = {}
        self.destinations: dict[tuple[DestinationsSpec, tuple[str, ...]], DestinationPolicy] = {}

    def snapshot(self, config: ConfigSpec) -> Snapshot:
        shared: dict[tuple[str, int], list[ListenerSpec]] = {}
        for spec in config.listeners:
            for address in spec.addresses:
                shared.setdefault((address, spec.port), []).append(spec)
        live = {id(spec): self.listener(spec) for spec in config.listeners}
        ports = {key: self.port(key, [live[id(spec)] for spec in specs]) for key, specs in shared.items()}
        return Snapshot(config.generation, ports, self.connectors, self.filters)

    def port(self, key: tuple[str, int], listeners: Sequence[Listener]) -> Port:
        first = listeners[0].spec
        is_stream = first.protocol in STREAM_PROTOCOLS
        tls = None
        if not is_stream and first.tls is not None:
            certificates = tuple(
                c for listener in listeners if listener.spec.tls for c in listener.spec.tls.certificates
            )
            tls = server_context(ListenerTlsSpec(TlsMode.TERMINATE, certificates))
        by_host = HostTable.build(HostEntry((listener.spec.hostname,), listener) for listener in listeners)
        return Port(key[0], key[1], listeners, by_host, tls=tls, is_stream=is_stream)

    def listener(self, spec: ListenerSpec) -> Listener:
        http = [(route, [self.rule(spec, route, rule) for rule in route.rules]) for route in spec.http_routes]
        hosts = HostTable.build(
            HostEntry(route.hostnames, True, route.created, route.name) for route in spec.http_routes
        )
        streams = HostTable.build(
            HostEntry(route.hostnames, self.stream(spec, route), route.created, route.name)
            for route in (*spec.tls_routes, *spec.tcp_routes)
        )
        destinations = self.destination_policy(spec.policy)
        default = None
        if spec.default_backend is not None:
            default = self.route(
                spec, "-", spec.extensions, (spec.default_backend,), spec.policy, spec.policy.timeouts.request_s, None
            )
        terminate = None
        if spec.protocol is ListenerProtocol.TLS and spec.tls is not None and spec.tls.mode is TlsMode.TERMINATE:
            terminate = server_context(spec.tls)
        return Listener(
            spec, HttpTable.build(http), hosts, streams, default, destinations,
            self.metrics.series(spec.gateway, "-", "-"),
            is_forward=spec.protocol is ListenerProtocol.FORWARD_PROXY,
            scheme=b"https" if spec.protocol is ListenerProtocol.HTTPS else b"http", terminate=terminate,
        )  # fmt: skip

    def rule(self, listener: ListenerSpec, route: HttpRouteSpec, rule: HttpRuleSpec) -> Route:
        request_s = rule.policy.timeouts.request_s if rule.request_s is None else rule.request_s
        return self.route(
            listener, route.name, rule.extensions, rule.backends, rule.policy, request_s, rule.backend_request_s
        )

    def stream(self, listener: ListenerSpec, route: StreamRouteSpec) -> Route:
        made = self.route(listener, route.name, route.extensions, route.backends, route.policy, 0.0, None)
        made.is_tls_only = route.kind == "TLSRoute"
        return made

    def route(
        self, listener: ListenerSpec, name: str, extensions: tuple[ExtensionSpec, ...], backends:
        Sequence[WeightedBackend],
        policy: PolicySpec, request_s: float, backend_request_s: float | None,
    ) -> Route:  # fmt: skip
        choices = [self.choice(listener, name, extensions, backend, backend_request_s) for backend in backends]
        series = self.metrics.series(listener.gateway, name, "-")
        return Route(
            name, self.chain(extensions), choices, series, policy, self.destination_policy(policy), request_s=request_s
        )

    def choice(
        self, listener: ListenerSpec, route: str, extensions: tuple[ExtensionSpec, ...], backend: WeightedBackend,
        backend_request_s: float | None,
    ) -> Choice:  # fmt: skip
        name = backend.backend.name if backend.backend is not None else "-"
        policy = backend.policy
        if backend_request_s is None:
            backend_request_s = policy.timeouts.backend_request_s
        return Choice(
            name, self.connector(backend), self.chain(extensions + backend.extensions),
            self.metrics.series(listener.gateway, route, name),
            weight=backend.weight, error=backend.error, backend_request_s=backend_request_s,
        )  # fmt: skip

    def connector(self, weighted: WeightedBackend) -> Connector | None:
        if weighted.backend is None:
            return None
        policy = weighted.policy
        times = policy.timeouts
        spec = ConnectionSpec(
            weighted.backend, policy.dns, policy.addresses, times.connect_s, times.tls_handshake_s, times.idle_s
        )
        found = self.connectors.get(spec)
        if found is None:
            found = self.known.get(spec) or Connector(spec, self.network)
            self.connectors[spec] = found
        return found

    def chain(self, extensions: tuple[ExtensionSpec, ...]) -> Chain:
        if not extensions:
            return NO_FILTERS
        found = self.chains.get(extensions)
        if found is None:
            found = self.chains[extensions] = compile_chain(extensions, self.filters.place)
        return found

    def destination_policy(self, policy: PolicySpec) -> DestinationPolicy:
        key = (policy.destinations, policy.sources)
        found = self.destinations.get(key)
        if found is None:
            found = self.destinations[key] = DestinationPolicy(policy.destinations, policy.sources)
        return found
