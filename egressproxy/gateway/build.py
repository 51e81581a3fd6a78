"""Build: ConfigIR → Snapshot. Everything that configuration alone decides is decided here, so that a request looks
up nothing.

What has an equal spec in the snapshot before is kept: connectors with their pools, filters with their buckets, series
with their counts. Makes no socket and changes nothing of what is in service.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from egressproxy.filters.calls import FilterCall
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.ai.filters import MARK as AI_MARK
from egressproxy.gateway.ai.filters import REQUESTS as AI_REQUESTS
from egressproxy.gateway.ai.filters import AiRequests, import_translation
from egressproxy.gateway.backends.ai_endpoint import AiEndpoint
from egressproxy.gateway.backends.connector import Connector
from egressproxy.gateway.backends.failover import with_failovers
from egressproxy.gateway.backends.mcp_sessions import McpSessions
from egressproxy.gateway.backends.mirror import Mirror
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.retries import NO_RETRIES, RetryPolicy
from egressproxy.gateway.backends.route_backend import EXACT_BELOW_S, RouteBackend
from egressproxy.gateway.backends.session_persistence import PersistentSessions
from egressproxy.gateway.client_variants import ClientVariants
from egressproxy.gateway.default_routes import DefaultRoutes
from egressproxy.gateway.exchange.admission import HTTP_PORT
from egressproxy.gateway.ext_authz.filter import AuthzClient, ExternalAuth
from egressproxy.gateway.ext_authz.http_client import HttpAuthzClient
from egressproxy.gateway.identity.authenticators import Authenticators, KeyUrl
from egressproxy.gateway.leaf_certificates.leaf_cache import LeafCache, LeafKey
from egressproxy.gateway.mcp.filters import MARK
from egressproxy.gateway.mcp.rules import PATH, REQUESTS, path_filter, requests_filter, speaks_mcp
from egressproxy.gateway.route import Route, self_service
from egressproxy.gateway.shared_parts import SharedParts
from egressproxy.gateway.snapshot import ActiveListener, Port, Snapshot
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, Protocol
from egressproxy.ir.extensions import extensions as all_extensions
from egressproxy.ir.extensions import extensions_of
from egressproxy.ir.gateway import ClientCertificatesIR, ConfigIR, ListenerIR, ListenerProtocol, ListenerTlsIR, TlsMode
from egressproxy.ir.policy import Callee, ExtensionIR, InterceptIR, Mode, PolicyIR, Priority
from egressproxy.ir.route import (
    AuthProtocol,
    ExternalAuthIR,
    HttpRouteIR,
    HttpRuleIR,
    MirrorIR,
    WeightedBackend,
)
from egressproxy.model.authority import Authority
from egressproxy.model.own_host import OWN_HOST
from egressproxy.model.steps import Cooperative, finished
from egressproxy.net.tls_contexts import HTTP_1_1, HTTP_2_OR_1_1, server_context
from egressproxy.routing.hosts import HostEntry, HostMap
from egressproxy.routing.permission import Permission, strictest
from egressproxy.routing.table import HttpTable
from egressproxy.telemetry.metrics import Metrics

__all__ = ["SnapshotBuilder", "build"]

NO_PORTS: Mapping[str, Collection[int]] = {}


def build(
    config: ConfigIR, catalog: Catalog, network: Network, metrics: Metrics, previous: Snapshot | None
) -> Snapshot:
    """The snapshot of a configuration. Raises FilterBuildError, ssl.SSLError or ValueError for a part that cannot be
    built.
    """
    return finished(SnapshotBuilder(catalog, network, metrics, previous).snapshot(config))


@dataclass(frozen=True, slots=True)
class _Attachment:
    """A route on one listener. `names`: the hostnames that it has written; None for what is served without a route."""

    listener: ListenerIR
    route: str
    kind: str = ""
    names: tuple[str, ...] | None = None


class SnapshotBuilder:
    """Builds one snapshot. What has an equal spec in the `previous` one is kept."""

    def __init__(self, catalog: Catalog, network: Network, metrics: Metrics, previous: Snapshot | None) -> None:
        self.metrics = metrics
        self.session_key = network.session_key
        known = previous.filters if previous is not None else None
        self.filters = FilterInstances(catalog, known, metrics.notices, self._called, metrics.filter_metrics)
        self.parts = SharedParts(network, self.filters, previous.connectors if previous is not None else {})
        self.authenticators = Authenticators(previous.authenticators if previous is not None else None)
        self.contexts: dict[tuple[ListenerTlsIR, bool, tuple[str, ...]], ssl.SSLContext] = {}
        self.terminating: Counter[tuple[str, int]] = Counter()  # listeners that end TLS, by address and port
        self.has_translation = False
        #: Rules by the identity of their route: variants of a listener share those that are not otherwise for them.
        self.live: dict[int, list[Route]] = {}
        self.tables: dict[tuple[object, ...], tuple[HttpTable[Route], HostMap[bool]]] = {}
        self.streams: dict[tuple[int, ...], HostMap[Route]] = {}
        self._known_leaves = previous.leaf_caches if previous is not None else {}
        self.leaf_caches: dict[LeafKey, LeafCache] = {}

    def _called(self, name: str, callee: Callee) -> FilterCall:
        return self.parts.called(name, callee, self.metrics.filter_calls)

    def snapshot(self, config: ConfigIR) -> Cooperative[Snapshot]:
        """Build the snapshot, a rule at a time, on the event loop. Raises as `build`.

        With new code of an operator's filter it is built twice: the code runs when all the rest is known to be good.
        """
        self.filters.hold_code()
        made = yield from self.whole(config)
        waiting = self.filters.release_code()
        if not waiting:
            return made
        for spec in waiting:
            yield partial(self.filters.place_or_close, spec)
        self.parts.forget_chains()
        return (yield from self.whole(config))

    def whole(self, config: ConfigIR) -> Cooperative[Snapshot]:
        """Every listener and port of the configuration, in one snapshot."""
        yield from self.watch_placeholders(config)
        self.live.clear()
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
        return Snapshot(
            config.generation, ports, self.parts.connectors, self.filters, self.leaf_caches, self.authenticators
        )

    def watch_placeholders(self, config: ConfigIR) -> Cooperative[None]:
        """Have all backends watched for placeholders of credentials, where the configuration has any."""
        found: dict[ExtensionIR, None] = {}
        for number, spec in enumerate(all_extensions(config)):
            if getattr(spec.settings, "placeholder", ""):
                found[spec] = None
            if not number % 512:
                yield None
        if found:
            # Here, since few configurations have one.
            from egressproxy.filters.credentials.placeholder_watch import PlaceholderWatches

            self.parts.watches = PlaceholderWatches(found, self.metrics.notices)

    def port(self, key: tuple[str, int], listeners: Sequence[ActiveListener]) -> Cooperative[Port]:
        """One address and port with the listeners that share it. `key`: (address, port)."""
        web = [listener for listener in listeners if not listener.is_stream]
        tls = None
        if web and web[0].spec.tls is not None:
            certificates = tuple(c for listener in web if listener.spec.tls for c in listener.spec.tls.certificates)
            spec = ListenerTlsIR(TlsMode.TERMINATE, certificates, clients_of(listeners))
            tls = yield from self.context(spec, shares_port=self.terminating[key] > 1, alpn=HTTP_2_OR_1_1)
        by_host = finished(HostMap.building(HostEntry((listener.spec.hostname,), listener) for listener in listeners))
        streams = [listener for listener in listeners if listener.is_stream]
        return Port(*key, (*web, *streams), by_host, tls, clients_of(listeners))

    def listener(self, spec: ListenerIR) -> Cooperative[ActiveListener]:
        """One listener with the tables of its routes, and the defaults for destinations that no route matches."""
        http = []
        named: list[HostEntry[bool]] = []
        for route in spec.http_routes:
            rules = self.live.get(id(route))
            if rules is None:
                attached = _Attachment(spec, route.name, route.kind, route.named)
                rules = self.live[id(route)] = []
                for rule in route.rules:
                    rules.append((yield from self.route(attached, rule)))
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
            rule = HttpRuleIR((), (spec.default_backend,), policy, spec.extensions, retry=policy.retries)
            default = yield from self.route(_Attachment(spec, "-"), rule)
            count = partial(self.metrics.series, spec.gateway, "-", "-", "-", "-")
            defaults = DefaultRoutes(default, policy, destinations, count)
        terminate = None
        if spec.protocol is ListenerProtocol.TLS and spec.tls is not None and terminates(spec):
            shares_port = any(self.terminating[address, spec.port] > 1 for address in spec.addresses)
            terminate = yield from self.context(spec.tls, shares_port=shares_port, alpn=HTTP_1_1)
        leaves = (yield from self.leaves(spec.policy.intercepts)) if spec.policy.intercepts else None
        authenticator = yield from self.authenticators.of(
            spec.identity, key_urls(spec.policy), self._called, is_forward=spec.protocol.is_forward
        )
        variants = []
        for variant in spec.variants:
            variants.append((variant.policies, (yield from self.listener(variant.listener))))
        listener = ActiveListener(
            # They are in the tables now.
            replace(spec, http_routes=(), tls_routes=(), tcp_routes=(), subjects=(), variants=()),
            table, hosts, streams, defaults, destinations, self.metrics.series(spec.gateway, "-", "-"), terminate,
            leaves, authenticator,
        )  # fmt: skip
        if spec.subjects:
            listener.variants = ClientVariants(spec.subjects, dict(variants), listener)
        return listener

    def stream_hosts(self, spec: ListenerIR) -> Cooperative[HostMap[Route]]:
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
                made = yield from self.route(_Attachment(spec, stream.name, stream.kind, stream.named), rule)
                live = self.live[id(stream)] = [made]
            entries.append(HostEntry(stream.hostnames, live[0], stream.created, stream.name))
        self.streams[key] = yield from HostMap.building(entries)
        return self.streams[key]

    def leaves(self, specs: Iterable[InterceptIR]) -> Cooperative[HostMap[LeafCache]]:
        """The hosts whose tunnels are opened, each with the certificates of its CA."""
        made: HostMap[LeafCache] = HostMap()
        for spec in specs:
            key = spec.chain_pem, spec.key_pem, spec.policy
            found = self.leaf_caches.get(key)
            if found is None:
                found = self._known_leaves.get(key) or LeafCache(key, self.metrics.interceptions)
                self.leaf_caches[key] = found
            for hostname in spec.hostnames:
                made.setdefault(hostname, found)
            yield None
        return made

    def context(self, tls: ListenerTlsIR, *, shares_port: bool, alpn: tuple[str, ...]) -> Cooperative[ssl.SSLContext]:
        """The TLS context of a listener, made once for equal settings. Raises ssl.SSLError, ValueError."""
        key = tls, shares_port, alpn

        def make() -> None:
            self.contexts[key] = server_context(tls, alpn, shares_port=shares_port)

        if key not in self.contexts:
            yield make
        return self.contexts[key]

    def blocking(self, rule: HttpRuleIR) -> Cooperative[None]:
        """Build those of its filters that are not to be built on the event loop; `chain` finds them then."""
        for spec in extensions_of(rule):
            if self.filters.blocks(spec):
                yield partial(self.filters.place_or_close, spec)

    def route(self, attached: _Attachment, rule: HttpRuleIR) -> Cooperative[Route]:
        """One rule of a route. Stream routes, and what serves destinations without a route, have the same form."""
        yield from self.blocking(rule)
        listener, name = attached.listener, attached.route
        extensions, policy, auth = rule.extensions, rule.policy, None
        if rule.auth is not None:
            auth = self.external_auth(name, rule.auth)
            extensions = (*extensions, self.parts.place_asking(name, rule.auth.place, auth, self.metrics.notices))
        copied = self.mirrors(attached, rule.mirrors)  # for all backends: a request counts once
        backends = [self.backend(attached, rule, each, extensions, copied) for each in rule.backends]
        choices, failovers = with_failovers(rule.backends, backends)
        request_s = policy.timeouts.request_s if rule.request_s is None else rule.request_s
        times = (request_s, *(backend.backend_request_s for backend in backends))
        is_short = any(0 < seconds < EXACT_BELOW_S for seconds in times)
        is_mcp = attached.kind == "HTTPRoute" and speaks_mcp(rule)
        is_ai = any(backend.ai is not None for backend in backends)
        if is_ai:
            if not self.has_translation:  # a turn in a thread for each rule would make reloads long
                self.has_translation = True
                yield import_translation
            of_ai = AiRequests(name, self.metrics.translations)
            told = replace(AI_REQUESTS, source=f"{attached.kind} {name}")
            extensions = (*extensions, self.parts.place_own(name, told, of_ai, self.metrics.notices, mark=AI_MARK))
        notes = any(backend.denied is not None and backend.connector is not None for backend in backends)
        hedging = policy.hedging if attached.kind != "GRPCRoute" else None  # its calls are POSTs
        retries = None
        needs = rule.session is not None or rule.retry is not None or failovers or hedging is not None
        if needs or is_short or notes or is_mcp or is_ai:
            key = self.session_key
            sessions: PersistentSessions | McpSessions | None
            sessions = others = PersistentSessions(rule.session, key, backends) if rule.session is not None else None
            if is_mcp:
                sessions = McpSessions(name, key, backends, others)
                own = requests_filter(name, sessions, backends, self.metrics.mcp_calls)
                spec = self.parts.place_own(
                    name, replace(REQUESTS, source=f"{attached.kind} {name}"), own, self.metrics.notices, mark=MARK
                )
                extensions = (*extensions, spec)
            retries = RetryPolicy(rule.retry or NO_RETRIES, sessions, monotonic, hedging)
        made = Route(
            name,
            self.parts.rule_chain(extensions, has_backends=bool(backends)),
            tuple(backend for backend in backends if backend.weight > 0),
            self.metrics.series(listener.gateway, name, "-"),
            policy,
            self.parts.destination_policy(policy),
            served_ports(rule.backends),
            request_s=request_s,
            auth=auth,
            retries=retries,
            kind=attached.kind,
            permission=self.permission(attached, policy, rule.backends),
            looks_at_bodies=is_mcp,
            only_reports=listener.policy.mode is policy.mode is Mode.REPORT
            and not self.parts.destination_policy(listener.policy).is_firm,
            choices=choices,
            failovers=failovers or None,
            priority=highest_priority(policy, rule.backends),
        )
        yield None
        return made

    def external_auth(self, route: str, spec: ExternalAuthIR) -> ExternalAuth:
        """The external authorization of one rule; without a client where its backend is denied or unusable."""
        server = spec.backend
        if spec.protocol is AuthProtocol.GRPC and server.backend is not None:  # whatever else it speaks with others
            server = replace(server, backend=replace(server.backend, protocol=Protocol.GRPC))
        denied, connector = self.parts.reachable(server)
        client = self.authz_client(spec, connector) if connector is not None else None
        return ExternalAuth(spec, client, route, self.metrics, denied)

    def authz_client(self, spec: ExternalAuthIR, connector: Connector) -> AuthzClient:
        """The client for the protocol of this authorization server."""
        chain = self.parts.chain(spec.backend.extensions)
        if spec.protocol is AuthProtocol.HTTP:
            return HttpAuthzClient(spec, connector, chain)
        # Here, since it is rarely asked for.
        from egressproxy.gateway.ext_authz.grpc_client import GrpcAuthzClient

        return GrpcAuthzClient(spec, connector, chain)

    def backend(
        self,
        attached: _Attachment,
        rule: HttpRuleIR,
        weighted: WeightedBackend,
        extensions: tuple[ExtensionIR, ...],
        mirrors: tuple[Mirror, ...],
    ) -> RouteBackend:
        """One backendRef of a rule. `extensions` and `mirrors` are those for all backends of the rule."""
        name = weighted.backend.label if weighted.backend is not None else "-"
        request_s = rule.backend_request_s
        denied, connector = self.parts.reachable(weighted)
        path = path_filter(rule, weighted) if attached.kind == "HTTPRoute" else None
        if path is not None:
            extensions = (
                *extensions,
                self.parts.place_own(
                    attached.route,
                    replace(PATH, source=f"{attached.kind} {attached.route}"),
                    path,
                    self.metrics.notices,
                ),
            )
        return RouteBackend(
            name,
            connector,
            self.parts.backend_chain(extensions + weighted.extensions),
            self.metrics.series(attached.listener.gateway, attached.route, name),
            weight=weighted.weight,
            error=weighted.error,
            backend_request_s=weighted.policy.timeouts.backend_request_s if request_s is None else request_s,
            mirrors=mirrors + self.mirrors(attached, weighted.mirrors) or None,
            denied=denied,
            unknown_extension=weighted.unknown_extension,
            is_elsewhere=weighted.is_elsewhere,
            parent_by=weighted.parent_by,
            priority=weighted.priority,
            ai=AiEndpoint.of(weighted) if attached.kind == "HTTPRoute" else None,
        )

    def mirrors(self, attached: _Attachment, specs: Sequence[MirrorIR]) -> tuple[Mirror, ...]:
        """The mirrors whose backend can be used; status tells of the others."""
        made = []
        for spec in specs:
            backend, connector = spec.backend, self.parts.connector(spec.backend)
            if backend.backend is None or connector is None:
                continue
            name, policy, own = backend.backend.label, backend.policy, self.parts.chain(backend.extensions)
            mirror = Mirror(
                name,
                connector,
                own.request_headers,
                self.parts.backend_chain(spec.extensions + backend.extensions),
                self.metrics.series(attached.listener.gateway, attached.route, name),
                policy,
                self.parts.destination_policy(policy),
                (spec.numerator, spec.denominator),
                self.parts.denial(backend),
                self.permission(attached, policy, (backend,)),
            )
            made.append(mirror)
        return tuple(made)

    def permission(
        self, attached: _Attachment, policy: PolicyIR, backends: Iterable[WeightedBackend]
    ) -> Permission | None:
        """What a route to a Dynamic backend permits by itself; None for other routes: they permit what they lead to."""
        dynamic = [
            each.backend
            for each in backends
            if each.backend is not None and each.backend.destination is Destination.DYNAMIC
        ]
        if attached.names is None or not dynamic:
            return None
        written = {backend.port for backend in dynamic if backend.port}
        ports = None if not written else written if len(written) == 1 else ()  # what each of them permits
        own = attached.listener.policy
        return Permission(
            f"{attached.kind} {attached.route}",
            attached.names,
            ports,
            self.parts.destination_policy(own),
            strictest(own.mode, policy.mode),
        )


def key_urls(policy: PolicyIR) -> tuple[KeyUrl, ...]:
    """Where the issuers of tokens have their keys, reached by the addresses that hold for the listener."""
    issuers = policy.identity.issuers if policy.identity is not None else ()
    made = []
    for each in issuers:
        if each.key_path:
            host, port = each.key_host
            tls = BackendTlsIR(ca_pem=each.ca_pem)
            backend = BackendIR(f"identity/{host}", Destination.FQDN, host, port, tls=tls)
            made.append(KeyUrl(each.issuer, each.key_path, WeightedBackend(backend, policy=policy)))
    return tuple(made)


def permitted_by(route: HttpRouteIR, rules: Sequence[Route]) -> tuple[str, ...] | None:
    """The hostnames whose plain http this route permits by itself: () for every host, None for no host."""
    permissions = [rule.permission for rule in rules if rule.permission is not None]
    if len(permissions) < len(rules):
        return route.hostnames
    left = [h for h in route.hostnames if any(each.names(Authority(h, HTTP_PORT)) for each in permissions)]
    return tuple(left) or None


def served_ports(backends: Iterable[WeightedBackend]) -> Mapping[str, Collection[int]]:
    """By hostname of an Fqdn backend, the ports under which a client of a forward proxy may name it."""
    ports: dict[str, tuple[int, ...]] = {}
    for backend in (each.backend for each in backends):
        if backend is not None and backend.destination is Destination.FQDN:
            named = (backend.port, 80) if backend.tls else (backend.port,)
            ports[backend.hostname] = ports.get(backend.hostname, ()) + named
    return ports or NO_PORTS


def clients_of(listeners: Iterable[ActiveListener]) -> ClientCertificatesIR | None:
    """The client certificates that terminating listeners of a port ask for. Raises ValueError where they differ: one
    listener would rely on what another has verified.
    """
    specs = (listener.spec for listener in listeners)
    asked = {spec.tls.clients for spec in specs if spec.tls is not None and terminates(spec)}
    if len(asked) > 1:
        raise ValueError("the listeners of one port have to ask for the same client certificates (spec.tls.frontend)")
    return asked.pop() if asked else None


def terminates(spec: ListenerIR) -> bool:
    """Whether the client's TLS ends at this listener."""
    return spec.tls is not None and spec.tls.mode is TlsMode.TERMINATE


def highest_priority(policy: PolicyIR, backends: Iterable[WeightedBackend]) -> Priority:
    """The priority of a rule's requests: before a backend is chosen, the highest that any of them has."""
    found = {each.policy.priority for each in backends} or {policy.priority}
    return next(each for each in Priority if each in found)  # the enum begins with the highest
