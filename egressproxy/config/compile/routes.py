"""HTTPRoutes, TLSRoutes and TCPRoutes, as one listener serves them.

What is half right is served half: a rule whose reference is bad, or which asks for a filter that we do not have,
answers 500 and the others work (Gateway API v1, HTTPRouteRule.backendRefs, filters). It keeps its matches, so that its
requests do not fall through to a wider rule, or to what policy allows, without the filter that was asked for. A rule
whose regular expression is refused cannot keep its matches; it is left out, and status says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from egressproxy.config.compile.attachment import Attachment
from egressproxy.config.compile.backends import Backends, ResolvedBackend
from egressproxy.config.compile.certificates import common_ca
from egressproxy.config.compile.contract import Defaults
from egressproxy.config.compile.filters import ExtensionCompiler, FilterNotSupported, Placed, ordered
from egressproxy.config.compile.listeners import ListenerPlan
from egressproxy.config.compile.merging import Layer, Level, Merged
from egressproxy.config.compile.placement import Placement, Where
from egressproxy.config.compile.policies import Policies
from egressproxy.config.compile.references import Unresolved
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.routes import (
    BackendRef,
    HttpBackendRef,
    HttpFilter,
    HttpMatch,
    HttpRoute,
    HttpRule,
    StreamRule,
    TcpRoute,
    TlsRoute,
)
from egressproxy.spec.backend import BackendSpec, BackendTlsSpec, Destination
from egressproxy.spec.gateway import ListenerProtocol
from egressproxy.spec.policy import ExtensionSpec, PolicySpec
from egressproxy.spec.route import (
    HttpRouteSpec,
    HttpRuleSpec,
    MatchSpec,
    MatchType,
    PathMatchType,
    StreamRouteSpec,
    ValueMatch,
    WeightedBackend,
)

__all__ = ["Findings", "RouteCompiler"]


@dataclass(slots=True)
class Findings:
    """What is wrong with a route wherever it is attached.

    `unresolved` are (reason, message) of references; `closed` the rules that answer 500 by their index, `dropped` those
    that are left out; `notes` name fields that do nothing.
    """

    rules: int = 0
    unresolved: list[tuple[str, str]] = field(default_factory=list)
    closed: dict[int, str] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def bad_rules(self) -> list[str]:
        """What status says about the rules that are not served as written."""
        return [
            *(f"Dropped Rule {index}: {text}." for index, text in self.dropped.items()),
            *(f"Rule {index} answers 500: {text}." for index, text in self.closed.items()),
        ]

    @property
    def is_served(self) -> bool:
        """Whether any rule is served as written."""
        return len(self.closed) + len(self.dropped) < self.rules


class RouteCompiler:
    """Turns routes into specs. `examine` looks at a route alone, the others at a route on one listener."""

    __slots__ = ("_backends", "_defaults", "_extensions", "_hardened", "_matches", "_placement", "_policies")

    def __init__(
        self,
        backends: Backends,
        policies: Policies,
        extensions: ExtensionCompiler,
        placement: Placement,
        defaults: Defaults,
    ) -> None:
        self._backends = backends
        self._policies = policies
        self._extensions = extensions
        self._placement = placement
        self._defaults = defaults
        self._hardened: dict[tuple[object, ...], BackendTlsSpec | str] = {}
        self._matches: dict[HttpMatch, MatchSpec] = {}

    def examine(self, route: Resource) -> Findings:
        """Everything that is wrong with a route, independent of where it is attached."""
        if isinstance(route, HttpRoute):
            return self._examine_http(route)
        findings = Findings()
        if isinstance(route, TlsRoute | TcpRoute):
            rules = route.spec.rules
            findings.rules = len(rules)
            if len(rules) > 1:
                findings.notes.append("only the first rule is served: the others match the same.")
            self._examine_refs(route, (ref for rule in rules for ref in rule.backend_refs), findings)
            if route.spec.use_default_gateways != "None":
                findings.notes.append("useDefaultGateways is not supported and does nothing.")
        return findings

    def http_route(
        self, route: HttpRoute, attachment: Attachment, layers: tuple[Layer, ...], findings: Findings
    ) -> HttpRouteSpec:
        """An HTTPRoute on one listener. `layers` are those of the listener."""
        listener = attachment.listener
        layers += self._policies.layer(Level.ROUTE, route.key)
        where = Where(str(listener.gateway), str(route))
        rules = []
        for index, rule in enumerate(route.spec.rules):
            if index not in findings.dropped:
                error = findings.closed.get(index, "")
                rules.append(self._http_rule(route, rule, listener, layers, where, error))
        created = route.metadata.creation_timestamp or "~"
        return HttpRouteSpec(route.full_name, attachment.hostnames, tuple(rules), created)

    def stream_route(
        self, route: TlsRoute | TcpRoute, attachment: Attachment, layers: tuple[Layer, ...]
    ) -> StreamRouteSpec:
        """A TLSRoute or TCPRoute on one listener."""
        rule: StreamRule = route.spec.rules[0]
        layers += self._policies.layer(Level.ROUTE, route.key)
        if rule.name:
            layers += self._policies.layer(Level.RULE, route.key, rule.name)
        where = Where(str(attachment.listener.gateway), str(route))
        merged = self._policies.merge(layers, is_routed=True)
        placed, error = self._requests(layers, where)
        backends, more = self._weighted(route, rule.backend_refs, attachment.listener, layers, where, error)
        return StreamRouteSpec(
            name=route.full_name,
            hostnames=attachment.hostnames if isinstance(route, TlsRoute) else (),
            backends=backends,
            policy=_with_denials(merged.policy, backends),
            extensions=ordered([*placed, *more]),
            created=route.metadata.creation_timestamp or "~",
            kind=route.KIND,
        )

    def default_backend(self, listener: ListenerPlan, layers: tuple[Layer, ...]) -> WeightedBackend:
        """What serves the destinations that no route matches and policy allows: the one that the request named."""
        where = _default_where(listener)
        merged = self._policies.merge(layers, is_routed=False)
        resolved = ResolvedBackend(BackendSpec("-", Destination.DYNAMIC), ("", "", "", "-"), 0)
        _, error = self._requests(layers, where)
        return self._weigh(resolved, merged, layers, where, 1, (), error)

    def listener_extensions(
        self, listener: ListenerPlan, layers: tuple[Layer, ...]
    ) -> tuple[PolicySpec, tuple[ExtensionSpec, ...]]:
        """What holds for requests of a listener that no route matches."""
        placed, _ = self._requests(layers, _default_where(listener))
        return self._policies.merge(layers, is_routed=False).policy, ordered(placed)

    # --- a route alone -----------------------------------------------------------------------------------------------

    def _examine_http(self, route: HttpRoute) -> Findings:
        findings = Findings(rules=len(route.spec.rules))
        idle: dict[str, None] = {}
        for index, rule in enumerate(route.spec.rules):
            self._examine_rule(route, index, rule, findings)
            if rule.retry is not None:
                idle["rules[].retry"] = None
            if rule.session_persistence is not None:
                idle["rules[].sessionPersistence"] = None
        if route.spec.use_default_gateways != "None":
            idle["useDefaultGateways"] = None
        findings.notes += [f"{name} is not supported yet and does nothing." for name in idle]
        return findings

    def _examine_rule(self, route: HttpRoute, index: int, rule: HttpRule, findings: Findings) -> None:
        for match in rule.matches:
            for pattern in _patterns(match):
                try:
                    self._defaults.check_pattern(pattern)
                except ValueError as error:
                    findings.dropped[index] = str(error)
        try:
            self._filters(route, rule.filters, on_backend=False, port=80, protocol=ListenerProtocol.HTTP)
        except FilterNotSupported as error:
            findings.closed[index] = str(error)
        self._examine_refs(route, rule.backend_refs, findings)
        for number, ref in enumerate(rule.backend_refs):
            try:
                self._filters(route, ref.filters, on_backend=True, port=80, protocol=ListenerProtocol.HTTP)
            except FilterNotSupported as error:
                findings.closed[index] = f"backendRefs[{number}]: {error}"

    def _examine_refs(self, route: Resource, refs: Iterable[BackendRef], findings: Findings) -> None:
        for ref in refs:
            try:
                self._backends.resolve(route, ref)
            except Unresolved as unresolved:
                entry = (unresolved.reason, unresolved.message)
                if entry not in findings.unresolved:
                    findings.unresolved.append(entry)

    def _filters(
        self,
        route: HttpRoute,
        filters: Sequence[HttpFilter],
        *,
        on_backend: bool,
        port: int,
        protocol: ListenerProtocol,
    ) -> tuple[Placed, ...]:
        if not filters:
            return ()
        return self._extensions.route_filters(route, filters, on_backend=on_backend, port=port, protocol=protocol)

    # --- a route on a listener ---------------------------------------------------------------------------------------

    def _http_rule(
        self,
        route: HttpRoute,
        rule: HttpRule,
        listener: ListenerPlan,
        layers: tuple[Layer, ...],
        where: Where,
        error: str,
    ) -> HttpRuleSpec:
        if rule.name:
            layers += self._policies.layer(Level.RULE, route.key, rule.name)
        merged = self._policies.merge(layers, is_routed=True)
        placed, problem = self._requests(layers, where)
        error = error or problem
        if error:
            backends: tuple[WeightedBackend, ...] = (WeightedBackend(None, error=error),)
            more: list[Placed] = []
        else:
            assert listener.protocol is not None
            port, protocol = listener.listener.port, listener.protocol
            placed += self._filters(route, rule.filters, on_backend=False, port=port, protocol=protocol)
            backends, more = self._weighted(route, rule.backend_refs, listener, layers, where, "")
        timeouts = rule.timeouts
        request = timeouts.request if timeouts is not None else None
        attempt = timeouts.backend_request if timeouts is not None else None
        return HttpRuleSpec(
            matches=tuple(self._match(match) for match in rule.matches),
            backends=backends,
            policy=_with_denials(merged.policy, backends),
            extensions=ordered([*placed, *more]),
            request_s=request.seconds if request is not None else None,
            backend_request_s=attempt.seconds if attempt is not None else None,
            name=rule.name or "",
        )

    def _match(self, match: HttpMatch) -> MatchSpec:
        made = self._matches.get(match)
        if made is None:
            made = self._matches[match] = _match(match)
        return made

    def _requests(self, layers: tuple[Layer, ...], where: Where) -> tuple[list[Placed], str]:
        """The filters of the request phases; and why the place has to be closed, "" if it has not."""
        try:
            return self._placement.for_requests(layers, where), ""
        except FilterNotSupported as error:
            return [], str(error)

    def _weighted(
        self,
        route: Resource,
        refs: Sequence[BackendRef],
        listener: ListenerPlan,
        layers: tuple[Layer, ...],
        where: Where,
        error: str,
    ) -> tuple[tuple[WeightedBackend, ...], list[Placed]]:
        """The backends of a rule; and the filters that they add to the rule itself (body limits).

        A backend of weight 0 gets nothing and is left out; where no other is, the rule answers 500.
        """
        made: list[WeightedBackend] = []
        more: list[Placed] = []
        if refs and not any(ref.weight for ref in refs):
            return (WeightedBackend(None, error="every backend of the rule has weight 0"),), []
        for ref in refs:
            if not ref.weight:
                continue
            try:
                resolved = self._backends.resolve(route, ref)
            except Unresolved as unresolved:
                made.append(WeightedBackend(None, ref.weight, error=unresolved.message))
                continue
            mine = layers + self._backend_layers(resolved)
            merged = self._policies.merge(mine, is_routed=True)
            filters: tuple[Placed, ...] = ()
            problem = error
            try:
                if isinstance(ref, HttpBackendRef) and isinstance(route, HttpRoute):
                    assert listener.protocol is not None
                    port, protocol = listener.listener.port, listener.protocol
                    filters = self._filters(route, ref.filters, on_backend=True, port=port, protocol=protocol)
                more += self._placement.body_limits(mine)
            except FilterNotSupported as unsupported:
                problem = problem or str(unsupported)
            named = Where(where.gateway, where.route, f"{resolved.target[1]} {resolved.spec.name}")
            made.append(self._weigh(resolved, merged, mine, named, ref.weight, filters, problem))
        return tuple(made), more

    def _backend_layers(self, resolved: ResolvedBackend) -> tuple[Layer, ...]:
        whole = self._policies.layer(Level.BACKEND, resolved.target, "", resolved.resolver)
        return whole + self._policies.layer(Level.BACKEND, resolved.target, str(resolved.port))

    def _weigh(
        self,
        resolved: ResolvedBackend,
        merged: Merged,
        layers: tuple[Layer, ...],
        where: Where,
        weight: int,
        filters: tuple[Placed, ...],
        error: str,
    ) -> WeightedBackend:
        error = error or "; ".join(merged.blockers) or _region_error(resolved, merged)
        spec = self._harden(resolved.spec, merged)
        if isinstance(spec, str):
            error = error or spec
        placed: list[Placed] = []
        try:
            placed = self._placement.for_backend(layers, where)
        except FilterNotSupported as unsupported:
            error = error or str(unsupported)
        if error or isinstance(spec, str):
            return WeightedBackend(None, weight, error=error)
        extensions = ordered([*resolved.extensions, *placed, *filters])
        return WeightedBackend(spec, weight, merged.policy, extensions)

    def _harden(self, spec: BackendSpec, merged: Merged) -> BackendSpec | str:
        """The backend with the policies' floor for TLS applied; or why that cannot be done."""
        if not merged.has_tls_floor:
            return spec
        tls = spec.tls
        if tls is None:
            if spec.destination is not Destination.DYNAMIC:
                return spec
            tls = BackendTlsSpec()
        key = (tls, merged.min_version, merged.ca_pem, merged.crl_pem, merged.pins)
        if key not in self._hardened:
            self._hardened[key] = _harden(tls, merged)
        made = self._hardened[key]
        return made if isinstance(made, str) else replace(spec, tls=made)


def _harden(tls: BackendTlsSpec, merged: Merged) -> BackendTlsSpec | str:
    if (merged.ca_pem or merged.crl_pem) and tls.insecure_skip_verify:
        return "the backend is not verified (insecureSkipVerify), and a policy demands that it is (tls)"
    ca_pem = common_ca(tls.ca_pem, merged.ca_pem)
    if merged.ca_pem and not ca_pem:
        return "the backend's caBundleRef has no CA in common with tls.caBundleRefs of the policies"
    pins = tls.pins
    if merged.pins is not None:
        pins = tuple(sorted(merged.pins.intersection(tls.pins) if tls.pins else merged.pins))
        if not pins:
            return "the backend's pins and the tls.pins of the policies have none in common"
    crl_pem = tls.crl_pem if merged.crl_pem in tls.crl_pem else tls.crl_pem + merged.crl_pem
    return replace(tls, min_version=max(tls.min_version, merged.min_version), ca_pem=ca_pem, crl_pem=crl_pem, pins=pins)


def _region_error(resolved: ResolvedBackend, merged: Merged) -> str:
    if merged.regions is None or resolved.region in merged.regions:
        return ""
    allowed = ", ".join(sorted(merged.regions)) or "none"
    stands = f"stands in region {resolved.region}" if resolved.region else "says no region"
    return f"backend {resolved.spec.name} {stands}; allowed by policy: {allowed}"


def _with_denials(policy: PolicySpec, backends: Sequence[WeightedBackend]) -> PolicySpec:
    """What a Backend's policy denies is denied for every rule that has it: destinations are judged before backends."""
    denied = dict.fromkeys(policy.destinations.deny)
    more = [rule for b in backends for rule in b.policy.destinations.deny if rule not in denied]
    if not more:
        return policy
    deny = tuple(dict.fromkeys([*denied, *more]))
    return replace(policy, destinations=replace(policy.destinations, deny=deny))


def _default_where(listener: ListenerPlan) -> Where:
    gateway = str(listener.gateway)
    return Where(gateway, f"{gateway}, no route", f"{gateway}, any destination")


def _patterns(match: HttpMatch) -> list[str]:
    found = [match.path.value] if match.path.type is PathMatchType.REGEX else []
    found += [header.value for header in match.headers if header.type is MatchType.REGEX]
    return found + [parameter.value for parameter in match.query_params if parameter.type is MatchType.REGEX]


def _match(match: HttpMatch) -> MatchSpec:
    headers: dict[str, ValueMatch] = {}
    for header in match.headers:  # of equal names the first counts (Gateway API, HTTPHeaderMatch.name)
        name = header.name.lower()
        headers.setdefault(name, ValueMatch(name, header.value, header.type))
    query: dict[str, ValueMatch] = {}
    for parameter in match.query_params:
        query.setdefault(parameter.name, ValueMatch(parameter.name, parameter.value, parameter.type))
    return MatchSpec(
        match.path.value, match.path.type, match.method or "", tuple(headers.values()), tuple(query.values())
    )
