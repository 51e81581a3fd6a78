"""SnapshotBuilder: ConfigIR → Snapshot. All that configuration alone decides is decided here, so that a request looks
up nothing.

What has an equal spec in the snapshot before is kept: clusters with their pools, filters with their buckets, series
with their counts. Makes no socket and changes nothing of what is in service.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

from egressproxy.filters.calls import FilterCall
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.builders.reusable_components import ReusableComponents
from egressproxy.gateway.builders.rule_builder import AttachedRoute, ListenerSteps, RuleBuilder
from egressproxy.gateway.exchange.admission import HTTP_PORT
from egressproxy.gateway.identity.authenticators import Authenticators
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache, CertificateCaches
from egressproxy.gateway.leaf_certificates.client_cas import ClientCas
from egressproxy.gateway.route import DefaultRoutes, Route, self_service
from egressproxy.gateway.snapshot import ActiveListener, Exporters, Port, Snapshot
from egressproxy.gateway.subject_overrides import SubjectOverrides
from egressproxy.ir.gateway import (
    CertificateIR,
    ClientCertificatesIR,
    ConfigIR,
    ListenerIR,
    ListenerProtocol,
    ListenerTlsIR,
    TlsMode,
)
from egressproxy.ir.gateway import extensions as all_extensions
from egressproxy.ir.policy import Callee, ExtensionIR, InterceptIR, SubjectCaIR
from egressproxy.ir.route import HttpRouteIR, HttpRuleIR
from egressproxy.model.authority import Authority
from egressproxy.model.listening_place import is_connection
from egressproxy.model.own_names import OWN_HOST
from egressproxy.model.work import BlockingWork, Work, at_once
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls_contexts.contexts import HTTP_1_1, HTTP_2_OR_1_1, server_context
from egressproxy.routing.hosts import HostEntry, HostMap
from egressproxy.routing.table import HttpTable
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.own_sockets import OwnSockets

T = TypeVar("T")


def build(
    config: ConfigIR, catalog: Catalog, network: Network, metrics: Metrics, previous: Snapshot | None
) -> Snapshot:
    """The snapshot of a configuration. Raises FilterBuildError, ssl.SSLError or ValueError for a part of it."""
    return at_once(SnapshotBuilder(catalog, network, metrics, previous).snapshot(config))


class SnapshotBuilder:
    """Builds one snapshot. What has an equal spec in the `previous` one is kept."""

    def __init__(self, catalog: Catalog, network: Network, metrics: Metrics, previous: Snapshot | None) -> None:
        self.metrics = metrics
        known = previous.filters if previous is not None else None
        self.filters = FilterInstances(catalog, known, metrics.notices, self._called, metrics.filter_metrics)
        clusters = previous.clusters if previous is not None else {}
        self.parts = ReusableComponents(network, self.filters, clusters, metrics.notices)
        self.rules = RuleBuilder(self.parts, self.filters, metrics, network.session_key)
        self.authenticators = Authenticators(previous.authenticators if previous is not None else None)
        self.contexts: dict[tuple[ListenerTlsIR, bool, tuple[str, ...]], ssl.SSLContext] = {}
        self.terminating: Counter[tuple[str, int]] = Counter()  # listeners that end TLS, by address and port
        #: Rules by the identity of their route: variants of a listener share those that are not otherwise for them.
        self.live: dict[int, list[Route]] = {}
        self.before: dict[int, ListenerSteps] = {}  # by the identity of `pre_routing`: variants share it
        self.tables: dict[tuple[object, ...], tuple[HttpTable[Route], HostMap[bool]]] = {}
        self.streams: dict[tuple[int, ...], HostMap[Route]] = {}
        self.leaf_caches = CertificateCaches(previous.leaf_caches if previous is not None else None)
        self.signers: dict[int, CertificateCache | ClientCas] = {}  # by the identity of `intercept`, as `before`
        self.exporters: Exporters = {}
        self._known_exporters = previous.exporters if previous is not None else {}

    def _called(self, name: str, callee: Callee) -> FilterCall:
        return self.parts.called(name, callee, self.metrics.filter_calls)

    def snapshot(self, config: ConfigIR) -> BlockingWork[Snapshot]:
        """Build the snapshot, a rule at a time, on the event loop. With new code of an operator's filter it is built
        twice: the code runs when all the rest is known to be good. Raises as `build`.
        """
        self.parts.system_roots = config.system_roots
        return (yield from self.with_code(partial(self.whole, config)))

    def with_code(self, build: Callable[[], BlockingWork[T]]) -> BlockingWork[T]:
        """What `build` makes; with new code of an operator's filter it is called twice, see `snapshot`."""
        self.filters.hold_code()
        made = yield from build()
        waiting = self.filters.release_code()
        if not waiting:
            return made
        for spec in waiting:
            yield partial(self.filters.place_or_close, spec)
        self.parts.forget_chains()
        self.live.clear()
        self.before.clear()
        return (yield from build())

    def whole(self, config: ConfigIR) -> BlockingWork[Snapshot]:
        """Every listener and port of the configuration, in one snapshot."""
        found = yield from placeholders(config)
        if found:
            # Here, since few configurations have one.
            from egressproxy.filters.credentials.placeholder_watch import PlaceholderWatches

            self.parts.watches = PlaceholderWatches(found, self.metrics.notices)
        self.live.clear()
        self.before.clear()
        self.tables.clear()
        self.streams.clear()
        shared: dict[tuple[str, int], list[ActiveListener]] = {}
        self.terminating = Counter(
            (address, spec.port) for spec in config.listeners if terminates(spec) for address in spec.addresses
        )
        for spec in config.listeners:
            listener = yield from self.listener(spec)
            for address in spec.addresses:
                shared.setdefault((address, spec.port), []).append(listener)
        ports = {}
        for key, listeners in shared.items():
            ports[key] = yield from self.port(key, listeners)
        self.authenticators.forget_known()
        self.leaf_caches.forget_known()
        snapshot = Snapshot(
            config.generation, ports, self.parts.clusters, self.filters, self.leaf_caches, self.authenticators,
            self.parts.watches, self.exporters,
        )  # fmt: skip
        if not config.collectors:
            return snapshot
        # Here, since few processes export anything.
        from egressproxy.gateway.builders.tracers import with_exports

        return with_exports(snapshot, config.collectors, self.parts, self._known_exporters, self.metrics)

    def port(self, key: tuple[str, int], listeners: Sequence[ActiveListener]) -> BlockingWork[Port]:
        """One address and port with the listeners that share it. `key`: (address, port)."""
        web = [listener for listener in listeners if not listener.is_stream]
        tls = None
        shown: dict[str, CertificateIR] = {}
        if web and web[0].spec.tls is not None:
            certificates = tuple(c for listener in web if listener.spec.tls for c in listener.spec.tls.certificates)
            if len(set(certificates)) > 1:
                shown = {name.lower(): each for each in reversed(certificates) for name in ("", *each.names)}
            spec = ListenerTlsIR(TlsMode.TERMINATE, certificates, clients_of(listeners))
            tls = yield from self.context(spec, shares_port=self.terminating[key] > 1, alpn=HTTP_2_OR_1_1)
        by_host = at_once(HostMap.building(HostEntry((listener.spec.hostname,), listener) for listener in listeners))
        streams = [listener for listener in listeners if listener.is_stream]
        return Port(*key, (*web, *streams), by_host, tls, clients_of(listeners), shown)

    def listener(self, spec: ListenerIR) -> BlockingWork[ActiveListener]:
        """One listener with the tables of its routes, and the defaults for destinations that no route matches."""
        before = None
        if spec.pre_routing is not None:
            before = self.before.get(id(spec.pre_routing))
            if before is None:
                before = yield from self.rules.pre_routing(spec, spec.pre_routing)
                self.before[id(spec.pre_routing)] = before
        http = []
        named: list[HostEntry[bool]] = []
        for route in spec.http_routes:
            rules = yield from self.rules_of(spec, route, before)
            http.append((route, rules))
            hostnames = permitted_by(route, rules)
            if hostnames is not None:
                named.append(HostEntry(hostnames, True, route.created, route.name))
        key = spec.gateway, *map(id, spec.http_routes)
        if key not in self.tables:
            own = self_service(self.metrics.series(spec.gateway, OWN_HOST, "-"))
            named.append(HostEntry((OWN_HOST,), True))
            table = yield from HttpTable.building(http, {OWN_HOST: own})
            self.tables[key] = table, (yield from HostMap.building(named))
        table, hosts = self.tables[key]
        streams = yield from self.stream_hosts(spec)
        destinations = self.parts.destination_policy(spec.policy)
        yield None
        defaults = None
        if spec.default_backend is not None:
            policy = spec.policy
            rule = HttpRuleIR(
                (), (spec.default_backend,), policy, spec.extensions, auths=spec.auths, retry=policy.retries
            )
            default = yield from self.rules.rule(AttachedRoute(spec, "-"), rule)
            count = partial(self.metrics.series, spec.gateway, "-", "-", "-", "-")
            defaults = DefaultRoutes(default, policy, destinations, count)
        terminate = None
        if spec.protocol is ListenerProtocol.TLS and spec.tls is not None and terminates(spec):
            shares_port = any(self.terminating[address, spec.port] > 1 for address in spec.addresses)
            terminate = yield from self.context(spec.tls, shares_port=shares_port, alpn=HTTP_1_1)
        certificate_caches = None
        if spec.policy.intercepts:
            certificate_caches = yield from self.certificate_caches(spec.policy.intercepts)
        authenticator = yield from self.authenticators.of(
            spec.identity,
            spec.key_urls,
            self._called,
            # Credentials of HTTP are not shown in TLS that passes: where it is opened they are the server's.
            is_forward=spec.protocol.is_forward or spec.protocol is ListenerProtocol.TLS,
        )
        variants = []
        for variant in spec.variants:
            variants.append((variant.policies, (yield from self.listener(variant.listener))))
        listener = ActiveListener(
            without_routes(spec),  # they are in the tables now
            table, hosts, streams, defaults, destinations, self.metrics.series(spec.gateway, "-", "-"), terminate,
            certificate_caches, authenticator, pre_route=before.route if before is not None else None,
        )  # fmt: skip
        if spec.tracing is not None:
            # Here, since few Gateways trace.
            from egressproxy.gateway.builders.tracers import tracer_of

            listener.tracer = tracer_of(spec.tracing, self.parts, self._known_exporters, self.exporters, self.metrics)
        if spec.subjects:
            listener.variants = SubjectOverrides(spec.subjects, dict(variants), listener)
        return listener

    def rules_of(
        self, spec: ListenerIR, route: HttpRouteIR, before: ListenerSteps | None = None
    ) -> BlockingWork[list[Route]]:
        """The rules of a route of this listener."""
        made = self.live.get(id(route))
        if made is None:
            attached = AttachedRoute(spec, route.name, route.kind, route.named, before)
            made = self.live[id(route)] = []
            for rule in route.rules:
                made.append((yield from self.rules.rule(attached, rule)))
        return made

    def stream_hosts(self, spec: ListenerIR) -> BlockingWork[HostMap[Route]]:
        """The TLSRoutes and TCPRoutes of a listener; variants of it share what is not otherwise for them."""
        routes = (*spec.tls_routes, *spec.tcp_routes)
        key = tuple(map(id, routes))
        if key in self.streams:
            return self.streams[key]
        entries = []
        for stream in routes:
            live = self.live.get(id(stream))
            if live is None:
                rule = HttpRuleIR((), stream.backends, stream.policy, stream.extensions, request_s=0.0)
                made = yield from self.rules.rule(AttachedRoute(spec, stream.name, stream.kind, stream.named), rule)
                live = self.live[id(stream)] = [made]
            entries.append(HostEntry(stream.hostnames, live[0], stream.created, stream.name))
        self.streams[key] = yield from HostMap.building(entries)
        return self.streams[key]

    def certificate_caches(self, specs: Iterable[InterceptIR]) -> Work[HostMap[CertificateCache | ClientCas]]:
        """The hosts whose tunnels are opened, each with the certificates of its CA."""
        made: HostMap[CertificateCache | ClientCas] = HostMap()
        for spec in specs:
            found = self.signers.get(id(spec))
            if found is None:
                found = self.signers[id(spec)] = self.signer(spec)
            for hostname in spec.hostnames:
                made.setdefault(hostname, found)
            yield None
        return made

    def signer(self, spec: InterceptIR) -> CertificateCache | ClientCas:
        """What signs for the clients of an `intercept`."""
        others = self.certificate_cache(spec, spec)
        if others is not None and not spec.by_subject:
            return others
        entries = (
            (each.subjects, self.certificate_cache(each, spec, each.secret), each.why) for each in spec.by_subject
        )
        return ClientCas(entries, others, spec.policy)

    def certificate_cache(
        self, ca: InterceptIR | SubjectCaIR, spec: InterceptIR, secret: str = ""
    ) -> CertificateCache | None:
        """The leaves of a CA of `spec`; None where it cannot be used. `secret`: it is that of some clients."""
        if not ca.chain_pem:
            return None
        return self.leaf_caches.of((ca.chain_pem, ca.key_pem, spec.policy), self.metrics.interceptions, secret)

    def context(self, tls: ListenerTlsIR, *, shares_port: bool, alpn: tuple[str, ...]) -> BlockingWork[ssl.SSLContext]:
        """The TLS context of a listener, made once for equal settings. Raises ssl.SSLError, ValueError."""
        key = tls, shares_port, alpn

        def make() -> None:
            self.contexts[key] = server_context(tls, alpn, shares_port=shares_port)

        if key not in self.contexts:
            yield make
        return self.contexts[key]


def placeholders(config: ConfigIR) -> Work[dict[ExtensionIR, None]]:
    """The filters that have a placeholder of a credential: all backends are watched for those."""
    found: dict[ExtensionIR, None] = {}
    for number, spec in enumerate(all_extensions(config)):
        if getattr(spec.settings, "placeholder", ""):
            found[spec] = None
        if not number % 512:
            yield None
    return found


def without_routes(spec: ListenerIR) -> ListenerIR:
    """The listener as it is kept where its routes and variants are built."""
    return replace(spec, http_routes=(), tls_routes=(), tcp_routes=(), subjects=(), variants=())


def permitted_by(route: HttpRouteIR, rules: Sequence[Route]) -> tuple[str, ...] | None:
    """The hostnames whose plain http this route permits by itself: () for every host, None for no host."""
    permissions = [rule.permission for rule in rules if rule.permission is not None]
    if len(permissions) < len(rules):
        return route.hostnames
    left = [h for h in route.hostnames if any(each.names(Authority(h, HTTP_PORT)) for each in permissions)]
    return tuple(left) or None


def clients_of(listeners: Iterable[ActiveListener]) -> ClientCertificatesIR | None:
    """The client certificates that terminating listeners of a port ask for. Raises ValueError where they differ: each
    relies on what another has verified.
    """
    specs = (listener.spec for listener in listeners)
    asked = {spec.tls.clients for spec in specs if spec.tls is not None and terminates(spec)}
    if len(asked) > 1:
        raise ValueError("the listeners of one port have to ask for the same client certificates (spec.tls.frontend)")
    return asked.pop() if asked else None


def terminates(spec: ListenerIR) -> bool:
    return spec.tls is not None and spec.tls.mode is TlsMode.TERMINATE


def offline(config: ConfigIR) -> Snapshot:
    """A snapshot as of a process that serves, on an event loop; Python filters are run. Raises as `build`."""
    network = Network(asyncio.get_running_loop(), TimerWheel(), b"")
    snapshot = build(config, Catalog(), network, Metrics(""), None)
    network.own = OwnSockets((ip_address(address), port) for address, port in snapshot.ports if is_connection(address))
    return snapshot
