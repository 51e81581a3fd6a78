"""RuleBuilder: one rule of a route, IR → Route, with its backends, mirrors and external authorization."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import NamedTuple

from egressproxy.filters.base import Phase
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.failover import with_failovers
from egressproxy.gateway.backends.mirror import Mirror
from egressproxy.gateway.backends.retries import NO_RETRIES, RetryPolicy
from egressproxy.gateway.backends.route_backend import EXACT_BELOW_S, RouteBackend
from egressproxy.gateway.backends.session_persistence import PersistentSessions, Sessions
from egressproxy.gateway.builders.reusable_components import ReusableComponents
from egressproxy.gateway.product_types import BuiltRule, ExternalAuthorization, OwnFilter
from egressproxy.gateway.products import PRODUCTS
from egressproxy.gateway.route import Route
from egressproxy.ir.backend import Destination, Protocol
from egressproxy.ir.gateway import ListenerIR, PreRoutingIR, extensions_of
from egressproxy.ir.policy import ExtensionIR, Mode, PolicyIR, Priority
from egressproxy.ir.route import AuthProtocol, ExternalAuthIR, HttpRuleIR, MirrorIR, WeightedBackend
from egressproxy.model.secret import SecretBytes
from egressproxy.model.work import BlockingWork
from egressproxy.routing.destinations import Permission, strictest
from egressproxy.telemetry.metrics import Metrics

NO_PORTS: Mapping[str, Collection[int]] = {}


class ListenerSteps(NamedTuple):
    """The filters of a listener that run before a route is chosen: the rule that is in force for so long, and their
    specs, which stand in the chains of all rules, too: for bodies and responses.
    """

    route: Route
    extensions: tuple[ExtensionIR, ...]


@dataclass(frozen=True, slots=True)
class AttachedRoute:
    """A route on one listener. `names`: the hostnames that it has written; None for what is served without a route.
    `before`: the filters that have run when a rule is chosen.
    """

    listener: ListenerIR
    route: str
    kind: str = ""
    names: tuple[str, ...] | None = None
    before: ListenerSteps | None = None


@dataclass(slots=True, eq=False, repr=False)
class RuleBuilder:
    """Makes rules of these parts, for one snapshot."""

    parts: ReusableComponents
    filters: FilterInstances
    metrics: Metrics
    session_key: SecretBytes

    def rule(self, attached: AttachedRoute, rule: HttpRuleIR) -> BlockingWork[Route]:
        """One rule of a route. Stream routes, and what serves destinations without a route, have the same form."""
        for spec in extensions_of(rule):
            if self.filters.blocks(spec):  # it is not to be built on the event loop; `chain` finds it then
                yield partial(self.filters.place_or_close, spec)
        listener, name = attached.listener, attached.route
        extensions, policy = rule.extensions, rule.policy
        auths = [self._external_auth(name, each) for each in rule.auths]
        for auth in auths:
            also = frozenset((Phase.RESPONSE_HEADERS,))
            extensions = (*extensions, self.parts.place_own(name, auth.spec.place, auth, also=also))
        before = attached.before
        if before is not None:
            extensions = (*before.extensions, *extensions)
        copied = self._mirrors(attached, rule.mirrors)  # for all backends: a request counts once
        backends = [self._backend(attached, rule, each, extensions, copied) for each in rule.backends]
        choices, failovers = with_failovers(rule.backends, backends)
        request_s = policy.timeouts.request_s if rule.request_s is None else rule.request_s
        times = (request_s, *(backend.backend_request_s for backend in backends))
        is_short = any(0 < seconds < EXACT_BELOW_S for seconds in times)
        products = [each for each in PRODUCTS.rules if attached.kind == "HTTPRoute" and each.serves(rule, backends)]
        notes = any(backend.denied is not None and backend.cluster is not None for backend in backends)
        hedging = policy.hedging if attached.kind != "GRPCRoute" else None  # its calls are POSTs
        retries = None
        needs = rule.session is not None or rule.retry is not None or failovers or hedging is not None
        if needs or is_short or notes or products:
            key = self.session_key
            asked = PersistentSessions(rule.session, key, backends) if rule.session is not None else None
            built = BuiltRule(name, rule, backends, key, self.metrics, asked)
            sessions: Sessions | None = asked
            for product in products:
                work = product.blocking_import()
                if work is not None:
                    yield work
                own, found = product.attach(built)
                extensions = (*extensions, self._placed(attached, own))
                sessions = found or sessions
            retries = RetryPolicy(rule.retry or NO_RETRIES, sessions, monotonic, hedging)
        own_steps = None
        if before is not None:
            behind = extensions[len(before.extensions) :]
            own_steps = self.parts.rule_chain(behind, has_backends=bool(backends)).request_headers or ()
        made = Route(
            name,
            self.parts.rule_chain(extensions, has_backends=bool(backends)),
            tuple(backend for backend in backends if backend.weight > 0),
            self.metrics.series(listener.gateway, name, "-"),
            policy,
            self.parts.destination_policy(policy),
            served_ports(rule.backends),
            request_s=request_s,
            auths=tuple(auths),
            retries=retries,
            kind=attached.kind,
            permission=self._permission(attached, policy, rule.backends),
            looks_at_bodies=any(product.looks_at_bodies for product in products),
            only_reports=listener.policy.mode is policy.mode is Mode.REPORT
            and not self.parts.destination_policy(listener.policy).is_firm,
            choices=choices,
            failovers=failovers or None,
            priority=highest_priority(policy, rule.backends),
            own_steps=own_steps,
            follows_buffer=before is not None and before.route.buffers_request,
        )
        yield None
        return made

    def pre_routing(self, listener: ListenerIR, spec: PreRoutingIR) -> BlockingWork[ListenerSteps]:
        """The filters of a listener that run before a route is chosen."""
        for each in spec.extensions:
            if self.filters.blocks(each):
                yield partial(self.filters.place_or_close, each)
        asked = [self._external_auth("-", each) for each in spec.auths]
        also = frozenset((Phase.RESPONSE_HEADERS,))
        placed = [
            self.parts.place_own(str(number), each.place, auth, also=also)
            for number, (each, auth) in enumerate(zip(spec.auths, asked, strict=True))
        ]
        extensions = (*spec.extensions, *placed)
        made = Route(
            "-",
            self.parts.rule_chain(extensions),
            (),
            self.metrics.series(listener.gateway, "-", "-"),
            listener.policy,
            self.parts.destination_policy(listener.policy),
            NO_PORTS,
            request_s=listener.policy.timeouts.request_s,
            auths=tuple(asked),
        )
        made.buffers_request = any(each.max_body for each in spec.auths)
        made.head_steps = made.chain.request_headers or ()
        yield None
        return ListenerSteps(made, extensions)

    def _placed(self, attached: AttachedRoute, own: OwnFilter) -> ExtensionIR:
        spec = replace(own.spec, source=f"{attached.kind} {attached.route}")
        return self.parts.place_own(attached.route, spec, own.filter, mark=own.mark)

    def _external_auth(self, route: str, spec: ExternalAuthIR) -> ExternalAuthorization:
        server = spec.backend
        if (
            spec.protocol is AuthProtocol.GRPC and server.backend is not None
        ):  # in place of the protocol for other clients
            server = replace(server, backend=replace(server.backend, protocol=Protocol.GRPC))
        denied, cluster = self.parts.reachable(server)
        chain = self.parts.chain(spec.backend.extensions) if cluster is not None else None
        return PRODUCTS.external_auth(spec, cluster, chain, route, self.metrics, denied)

    def _backend(
        self,
        attached: AttachedRoute,
        rule: HttpRuleIR,
        weighted: WeightedBackend,
        extensions: tuple[ExtensionIR, ...],
        mirrors: tuple[Mirror, ...],
    ) -> RouteBackend:
        """One backendRef of a rule. `extensions` and `mirrors` are those for all backends of the rule."""
        name = weighted.backend.label if weighted.backend is not None else "-"
        request_s = rule.backend_request_s
        denied, cluster = self.parts.reachable(weighted)
        is_http = attached.kind == "HTTPRoute"
        own = PRODUCTS.backend_filter(rule, weighted) if is_http else None
        if own is not None:
            extensions = (*extensions, self._placed(attached, own))
        return RouteBackend(
            name,
            cluster,
            self.parts.backend_chain(extensions + weighted.extensions),
            self.metrics.series(attached.listener.gateway, attached.route, name),
            weight=weighted.weight,
            error=weighted.error,
            backend_request_s=weighted.policy.timeouts.backend_request_s if request_s is None else request_s,
            mirrors=mirrors + self._mirrors(attached, weighted.mirrors) or None,
            denied=denied,
            unknown_extension=weighted.unknown_extension,
            is_elsewhere=weighted.is_elsewhere,
            parent_by=weighted.parent_by,
            priority=weighted.priority,
            ai=PRODUCTS.endpoint(weighted) if is_http else None,
        )

    def _mirrors(self, attached: AttachedRoute, specs: Sequence[MirrorIR]) -> tuple[Mirror, ...]:
        """The mirrors whose backend can be used; status tells of the others."""
        made = []
        for spec in specs:
            backend, cluster = spec.backend, self.parts.cluster(spec.backend)
            if backend.backend is None or cluster is None:
                continue
            name, policy, own = backend.backend.label, backend.policy, self.parts.chain(backend.extensions)
            mirror = Mirror(
                name,
                cluster,
                own.request_headers,
                self.parts.backend_chain(spec.extensions + backend.extensions),
                self.metrics.series(attached.listener.gateway, attached.route, name),
                policy,
                self.parts.destination_policy(policy),
                (spec.numerator, spec.denominator),
                self.parts.denial(backend),
                self._permission(attached, policy, (backend,)),
            )
            made.append(mirror)
        return tuple(made)

    def _permission(
        self, attached: AttachedRoute, policy: PolicyIR, backends: Iterable[WeightedBackend]
    ) -> Permission | None:
        """What a route to a Dynamic backend permits by itself; None for other routes: they permit what they lead to."""
        all_of_them = [each.backend for each in backends if each.backend is not None]
        dynamic = [backend for backend in all_of_them if backend.destination is Destination.DYNAMIC]
        if attached.names is None or not dynamic:
            return None
        written = {backend.port for backend in dynamic if backend.port}
        ports = None if not written else written if len(written) == 1 else ()  # the ports that every backend permits
        own = attached.listener.policy
        return Permission(
            f"{attached.kind} {attached.route}",
            attached.names,
            ports,
            self.parts.destination_policy(own),
            strictest(own.mode, policy.mode),
        )


def served_ports(backends: Iterable[WeightedBackend]) -> Mapping[str, Collection[int]]:
    """By hostname of an Fqdn backend, the ports under which a client of a forward proxy may name it."""
    ports: dict[str, tuple[int, ...]] = {}
    for backend in (each.backend for each in backends):
        if backend is not None and backend.destination is Destination.FQDN:
            named = (backend.port, 80) if backend.tls else (backend.port,)
            ports[backend.hostname] = ports.get(backend.hostname, ()) + named
    return ports or NO_PORTS


def highest_priority(policy: PolicyIR, backends: Iterable[WeightedBackend]) -> Priority:
    """The priority of a rule's requests: before a backend is chosen, the highest that any of them has."""
    found = {each.policy.priority for each in backends} or {policy.priority}
    return next(each for each in Priority if each in found)  # the enum begins with the highest
