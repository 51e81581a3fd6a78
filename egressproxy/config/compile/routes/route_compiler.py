"""HTTPRoutes, GRPCRoutes, TLSRoutes and TCPRoutes, as one listener serves them.

What is half right is served half: a rule whose reference is bad, or which asks for a filter that we do not have,
answers 500 and the others work (Gateway API v1, HTTPRouteRule.backendRefs, filters). It keeps its matches, so that its
requests do not fall through to a wider rule, or to what policy allows, without the filter that was asked for. A rule
whose regular expression is refused cannot keep its matches; it is left out, and status says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import rule_filters
from egressproxy.config.compile.extensions.extension_compiler import ExtensionCompiler, FilterNotSupported
from egressproxy.config.compile.extensions.extension_faults import INJECTOR
from egressproxy.config.compile.extensions.pipelines import Pipelines
from egressproxy.config.compile.extensions.ranked_extension import RankedExtension, ordered
from egressproxy.config.compile.extensions.route_filters import external_auth_place, route_filters
from egressproxy.config.compile.gateways.attachment import Attachment
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.policies.credential_exposure import exposed_to_tenants
from egressproxy.config.compile.policies.layers import Layers, Level
from egressproxy.config.compile.policies.policy_attachment import PolicyAttachments
from egressproxy.config.compile.policies.policy_filters import LimitScopes, PolicyFilters
from egressproxy.config.compile.policies.resilience import rule_retry
from egressproxy.config.compile.routes.backend_refs import BackendRefCompiler, RuleBackends, default_scopes, scopes_of
from egressproxy.config.compile.routes.matches import as_http_rule, grpc_match, http_match
from egressproxy.config.compile.routes.route_validation import RouteValidation, filter_protocols
from egressproxy.config.compile.routes.session_persistence import session_ir
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.route_filters import ExternalAuthFilter, ExternalAuthHttp, HttpFilter, RequestMirror
from egressproxy.config.resources.route_matches import HttpMatch
from egressproxy.config.resources.routes import (
    AnyRoute,
    BackendRef,
    GrpcRoute,
    GrpcRule,
    HttpBackendRef,
    HttpRoute,
    HttpRule,
    StreamRule,
    TcpRoute,
    TlsRoute,
)
from egressproxy.ir.backend import Destination
from egressproxy.ir.gateway import TlsMode
from egressproxy.ir.policy import DestinationRule, ExtensionIR, Mode, PolicyIR
from egressproxy.ir.route import (
    AuthProtocol,
    ExternalAuthIR,
    HttpRouteIR,
    HttpRuleIR,
    MatchIR,
    MirrorIR,
    StreamRouteIR,
    WeightedBackend,
)


@dataclass(slots=True, eq=False, repr=False)
class RouteCompiler:
    """Compiles routes as one listener serves them."""

    backends: BackendCompiler
    backend_refs: BackendRefCompiler
    policies: PolicyAttachments
    extensions: ExtensionCompiler
    policy_filters: PolicyFilters
    pipelines: Pipelines
    _http_match: Callable[[HttpMatch], MatchIR] = field(default_factory=lambda: cache(http_match))
    _denying: dict[tuple[int, ...], PolicyIR] = field(default_factory=dict)

    def http_route(
        self, route: HttpRoute | GrpcRoute, attachment: Attachment, layers: Layers, validation: RouteValidation
    ) -> HttpRouteIR:
        """An HTTPRoute or GRPCRoute on one listener. `layers` are those of the listener."""
        rules = [
            self._http_rule(route, index, attachment.listener, layers, validation.closed.get(index, ""))
            for index in range(len(route.spec.rules))
            if index not in validation.dropped
        ]
        created = route.metadata.creation_timestamp or "~"
        named = route.spec.hostnames if any(map(_has_dynamic, rules)) else ()
        return HttpRouteIR(route.full_name, attachment.hostnames, tuple(rules), created, route.KIND, named)

    def stream_route(self, route: TlsRoute | TcpRoute, attachment: Attachment, layers: Layers) -> StreamRouteIR:
        """A TLSRoute or TCPRoute on one listener."""
        rule: StreamRule = route.spec.rules[0]
        scopes = scopes_of(attachment.listener, self.policies.merge(layers, is_routed=False).policy, str(route))
        layers = self._rule_layers(route, rule, layers)
        merged = self.policies.merge(layers, is_routed=True)
        placed, error = self._requests(layers, scopes)
        tls = attachment.listener.tls
        if tls is not None and tls.mode is TlsMode.TERMINATE:
            error = error or self.backends.plain_text_error(route, rule.backend_refs)
        found = self.backend_refs.of_rule(route, rule.backend_refs, layers, scopes, lambda _ref: (), error)
        return StreamRouteIR(
            name=route.full_name,
            hostnames=attachment.hostnames if isinstance(route, TlsRoute) else (),
            backends=found.backends,
            policy=self._with_denials(merged.policy, found.backends),
            extensions=ordered([*placed, *found.filters]),
            created=route.metadata.creation_timestamp or "~",
            kind=route.KIND,
            named=route.spec.hostnames if isinstance(route, TlsRoute) and any(map(is_dynamic, found.backends)) else (),
        )

    def without_route(
        self, listener: ListenerPlan, layers: Layers
    ) -> tuple[PolicyIR, tuple[ExtensionIR, ...], WeightedBackend | None, tuple[ExternalAuthIR, ...]]:
        """What holds where no route matches: policy, extensions, the backend, and authorization servers. The request
        names the backend on a forward proxy and in streams of TLS that policies have opened; None on other listeners.
        """
        policy = self.policies.merge(layers, is_routed=False).policy
        placed, error = self._requests(layers, default_scopes(listener, policy))
        error = error or exposed_to_tenants(self.policies.merge(layers, is_routed=False).policy, placed)
        default = None
        auths = () if error else self._access_auths(layers, default_scopes(listener, policy))
        is_forward = listener.protocol is not None and listener.protocol.is_forward
        if is_forward or (listener.passes_tls and self.policies.merge(layers, is_routed=False).policy.intercepts):
            default, layers = self.backend_refs.of_default(listener, layers, error)
        return self.policies.merge(layers, is_routed=False).policy, ordered(placed), default, auths

    def _http_rule(
        self, route: HttpRoute | GrpcRoute, index: int, listener: ListenerPlan, layers: Layers, error: str
    ) -> HttpRuleIR:
        written = route.spec.rules[index]
        rule = as_http_rule(written)
        session = session_ir(route.full_name, index, rule)
        scopes = scopes_of(listener, self.policies.merge(layers, is_routed=False).policy, str(route))
        layers = self._rule_layers(route, rule, layers, self.pipelines.policies(route, rule.filters), index)
        merged = self.policies.merge(layers, is_routed=True)
        placed, problem = self._requests(layers, scopes)
        error = error or problem
        copies: tuple[MirrorIR, ...] = ()
        if error:
            found = RuleBackends((self.backend_refs.closed(error, layers),))
        else:
            assert listener.protocol is not None
            port, protocol = listener.listener.port, listener.protocol
            compiled = partial(route_filters, self.extensions, self.pipelines, route, port=port, protocol=protocol)
            mirrored = partial(mirrors, self.backend_refs, route, layers, scopes)
            placed += self.backend_refs.with_calls(compiled(rule.filters, on_backend=False), layers, scopes)

            def of_ref(ref: BackendRef) -> tuple[RankedExtension, ...]:
                return compiled(_filters(ref), on_backend=True)

            def mirrors_of_ref(ref: BackendRef) -> tuple[MirrorIR, ...]:
                return mirrored(_filters(ref), (*placed, *of_ref(ref)))

            found = self.backend_refs.of_rule(
                route, rule.backend_refs, layers, scopes, of_ref, "", mirrors_of_ref, keeps_weight_0=session is not None
            )
            copies = mirrored(rule.filters, placed)
        timeouts = rule.timeouts
        request = timeouts.request if timeouts is not None else None
        attempt = timeouts.backend_request if timeouts is not None else None
        return HttpRuleIR(
            matches=self._matched(written),
            backends=found.backends,
            policy=self._with_denials(merged.policy, found.backends),
            extensions=ordered([*placed, *found.filters]),
            request_s=request.seconds if request is not None else None,
            backend_request_s=attempt.seconds if attempt is not None else None,
            name=rule.name or "",
            index=index,
            mirrors=copies,
            auths=() if error else self._external_auths(route, rule, layers, scopes),
            retry=rule_retry(rule.retry, merged.policy.retries) if rule.retry is not None else merged.policy.retries,
            session=session,
        )

    def _rule_layers(
        self,
        route: AnyRoute,
        rule: HttpRule | StreamRule,
        layers: Layers,
        named: tuple[EgressPolicy, ...] = (),
        index: int = 0,
    ) -> Layers:
        """The listener's layers, the route's, and its own: of the policies that name it, and that it names."""
        layers += self.policies.layer(Level.ROUTE, route.key)
        held = {policy for layer in layers for policy in layer.policies}  # one of another namespace in another form
        named = tuple(policy for policy in named if policy not in held)
        if named:
            return layers + self.policies.layer_of_rule(route.key, rule.name or "", index, named)
        return layers + (self.policies.layer(Level.RULE, route.key, rule.name) if rule.name else ())

    def _external_auths(
        self, route: HttpRoute | GrpcRoute, rule: HttpRule, layers: Layers, scopes: LimitScopes
    ) -> tuple[ExternalAuthIR, ...]:
        """The authorization servers of a rule: its policies' and its own; an unusable server refuses everything."""
        written = next((entry.external_auth for entry in rule.filters if entry.external_auth is not None), None)
        made = self._access_auths(layers, scopes)
        if written is None:
            return made
        return (*made, self.asked(route, written, external_auth_place(route), layers, scopes))

    def _access_auths(self, layers: Layers, scopes: LimitScopes) -> tuple[ExternalAuthIR, ...]:
        """The authorization servers of XAccessPolicies, each with the rules that say what it is asked about."""
        made = []
        for policy, placed in self.policy_filters.delegating(layers, scopes):
            assert policy.spec.external_auth is not None
            place = replace(external_auth_place(policy), level=placed.spec.level)
            found = self.asked(policy, policy.spec.external_auth, place, layers, scopes)
            made.append(replace(found, condition=placed.spec.settings))
        return tuple(made)

    def asked(
        self, source: Resource, written: ExternalAuthFilter, place: ExtensionIR, layers: Layers, scopes: LimitScopes
    ) -> ExternalAuthIR:
        """The authorization server that a filter of this object names; one that cannot be used refuses everything."""
        backend = self.backend_refs.of_filter(source, written.backend_ref, layers, scopes, filter_protocols(written))
        if backend.backend is not None and backend.backend.destination is Destination.DYNAMIC:
            backend = WeightedBackend(None, error="an authorization server is a fixed place: the backend is Dynamic")
        http = written.http or ExternalAuthHttp()
        allowed = written.grpc.allowed_headers if written.grpc is not None else http.allowed_headers
        return ExternalAuthIR(
            place=place,
            protocol=AuthProtocol(written.protocol),
            backend=backend,
            path=http.path,
            allowed_headers=tuple(dict.fromkeys(name.lower() for name in allowed)),
            allowed_response_headers=tuple(dict.fromkeys(name.lower() for name in http.allowed_response_headers)),
            max_body=written.forward_body.max_size if written.forward_body is not None else 0,
        )

    def _matched(self, rule: HttpRule | GrpcRule) -> tuple[MatchIR, ...]:
        """What the rule matches; with CORS also the preflight requests (OPTIONS) for the methods that it matches."""
        if isinstance(rule, GrpcRule):
            return tuple(map(grpc_match, rule.matches))
        made = tuple(map(self._http_match, rule.matches))
        if not any(entry.cors is not None for _, entry in rule_filters(0, rule)):
            return made
        asked = (match for match in made if match.method not in ("", "OPTIONS"))
        return made + tuple(replace(match, is_preflight=True) for match in asked)

    def _requests(self, layers: Layers, scopes: LimitScopes) -> tuple[list[RankedExtension], str]:
        """The filters of the request phases; and why the place has to be closed, "" if it has not."""
        try:
            placed = self.policy_filters.for_requests(layers, scopes)
            return list(self.backend_refs.with_calls(placed, layers, scopes)), ""
        except FilterNotSupported as error:
            return [], str(error)

    def _with_denials(self, policy: PolicyIR, backends: Sequence[WeightedBackend]) -> PolicyIR:
        """Deny what a backend's policy denies in the whole rule: hosts are checked before a backend is chosen."""
        others = [b.policy for b in backends if b.backend is not None and b.policy is not policy]
        if not others:
            return policy
        key = (id(policy), *map(id, others))  # merged values live as long as this compiler
        made = self._denying.get(key)
        if made is None:
            deny = dict.fromkeys(policy.destinations.deny)
            for one in others:
                deny.update(dict.fromkeys(_joined(one, policy.mode)))
            made = policy
            if len(deny) > len(policy.destinations.deny):
                made = replace(policy, destinations=replace(policy.destinations, deny=tuple(deny)))
            self._denying[key] = made
        return made


def _filters(ref: BackendRef) -> tuple[HttpFilter, ...]:
    return ref.filters if isinstance(ref, HttpBackendRef) else ()


def _joined(policy: PolicyIR, mode: Mode) -> Iterator[DestinationRule]:
    """What a backend's policy denies, for a rule of this mode: Report lifts nothing where the backend's is another."""
    for rule in policy.destinations.deny:
        is_firm = mode is Mode.REPORT and (rule.is_firm or policy.mode is not Mode.REPORT)
        yield rule if rule.is_firm is is_firm else replace(rule, is_firm=is_firm)


def is_dynamic(weighted: WeightedBackend) -> bool:
    """Whether the request says where this leads."""
    return weighted.backend is not None and weighted.backend.destination is Destination.DYNAMIC


def _has_dynamic(rule: HttpRuleIR) -> bool:
    mirrors = (rule.mirrors, *(backend.mirrors for backend in rule.backends))
    return any(map(is_dynamic, (*rule.backends, *(mirror.backend for each in mirrors for mirror in each))))


def mirrors(
    backend_refs: BackendRefCompiler,
    route: Resource,
    layers: Layers,
    scopes: LimitScopes,
    filters: Sequence[HttpFilter],
    placed: Iterable[RankedExtension],
) -> tuple[MirrorIR, ...]:
    """The mirrors among these filters of a rule, or of one of its backendRefs, where `placed` run for its requests.

    What policy runs for a request before it leaves (connect, backend-request) holds for a copy, too; credentials do
    not: those that a copy gets are its own backend's.
    """
    found = [entry.request_mirror for entry in filters if entry.request_mirror is not None]
    if not found:
        return ()
    extensions = ordered(one for one in placed if not one.spec.type.startswith(INJECTOR))
    made = []
    for mirror in found:
        numerator, denominator = _share(mirror)
        if numerator:
            backend = backend_refs.of_filter(route, mirror.backend_ref, layers, scopes)
            made.append(MirrorIR(backend, extensions, numerator, denominator))
    return tuple(made)


def _share(mirror: RequestMirror) -> tuple[int, int]:
    if mirror.fraction is not None:
        return mirror.fraction.numerator, mirror.fraction.denominator
    return (100 if mirror.percent is None else mirror.percent), 100
