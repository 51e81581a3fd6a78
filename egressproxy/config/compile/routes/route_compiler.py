"""HTTPRoutes, GRPCRoutes, TLSRoutes and TCPRoutes, as one listener serves them.

What is half right is served half: a rule whose reference is bad, or which asks for a filter that we do not have,
answers 500 and the others work (Gateway API v1, HTTPRouteRule.backendRefs, filters). It keeps its matches, so that its
requests do not fall through to a wider rule, or to what policy allows, without the filter that was asked for. A rule
whose regular expression is refused cannot keep its matches; it is left out, and status says so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, overload

from egressproxy.config.compile.backends.backend_compiler import Backends
from egressproxy.config.compile.extensions.extension_compiler import (
    ExtensionCompiler,
    FilterNotSupported,
    Placed,
    ordered,
)
from egressproxy.config.compile.gateways.attachment import Attachment
from egressproxy.config.compile.gateways.gateway_tls import ClientCertificates
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.interface import Defaults
from egressproxy.config.compile.policies.layers import Layer, Level
from egressproxy.config.compile.policies.policy_attachment import Policies
from egressproxy.config.compile.policies.policy_filters import Placement, Where
from egressproxy.config.compile.policies.retries import retry_problem, rule_retry
from egressproxy.config.compile.references import Unresolved
from egressproxy.config.compile.routes.backend_refs import BackendRefCompiler, Choices, default_where
from egressproxy.config.compile.routes.matches import (
    MAX_PATTERNS,
    NO_GRPC,
    grpc_match,
    grpc_patterns,
    http_match,
    http_patterns,
)
from egressproxy.config.compile.routes.mirrors import mirrors
from egressproxy.config.compile.routes.route_validation import Findings
from egressproxy.config.compile.routes.session_persistence import session_ir, session_problem
from egressproxy.config.compile.status import supported_features
from egressproxy.config.resources.meta import BackendObjectReference, Resource
from egressproxy.config.resources.route_filters import ExternalAuthFilter, ExternalAuthHttp, GrpcFilter, HttpFilter
from egressproxy.config.resources.routes import (
    BackendRef,
    GrpcRoute,
    GrpcRule,
    HttpBackendRef,
    HttpMatch,
    HttpRoute,
    HttpRule,
    StreamRule,
    TcpRoute,
    TlsRoute,
)
from egressproxy.ir.backend import Destination, Protocol
from egressproxy.ir.gateway import ListenerProtocol, TlsMode
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

__all__ = ["RouteCompiler", "is_dynamic"]


class RouteCompiler:
    """Turns routes into specs. `examine` looks at a route alone, the others at a route on one listener."""

    __slots__ = ("_backends", "_defaults", "_denying", "_extensions", "_matches", "_placement", "_policies", "_weigher")

    def __init__(
        self,
        backends: Backends,
        policies: Policies,
        extensions: ExtensionCompiler,
        placement: Placement,
        certificates: ClientCertificates,
        defaults: Defaults,
    ) -> None:
        self._backends = backends
        self._policies = policies
        self._extensions = extensions
        self._placement = placement
        self._defaults = defaults
        self._weigher = BackendRefCompiler(backends, policies, placement, certificates)
        self._matches: dict[HttpMatch, MatchIR] = {}
        self._denying: dict[tuple[int, ...], PolicyIR] = {}

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
            for index, rule in enumerate(rules):
                self._examine_refs(route, _placed_refs(index, rule.backend_refs), findings)
            if route.spec.use_default_gateways != "None":
                findings.notes.append("useDefaultGateways is not supported and does nothing.")
        elif isinstance(route, GrpcRoute):
            self._examine_grpc(route, findings)
        return findings

    def http_route(
        self, route: HttpRoute, attachment: Attachment, layers: tuple[Layer, ...], findings: Findings
    ) -> HttpRouteIR:
        """An HTTPRoute on one listener. `layers` are those of the listener."""
        listener = attachment.listener
        layers += self._policies.layer(Level.ROUTE, route.key)
        where = Where(str(listener.gateway), str(route))
        rules = []
        for index in range(len(route.spec.rules)):
            if index not in findings.dropped:
                error = findings.closed.get(index, "")
                rules.append(self._http_rule(route, index, listener, layers, where, error))
        created = route.metadata.creation_timestamp or "~"
        named = route.spec.hostnames if any(map(_has_dynamic, rules)) else ()
        return HttpRouteIR(route.full_name, attachment.hostnames, tuple(rules), created, named=named)

    def grpc_route(
        self, route: GrpcRoute, attachment: Attachment, layers: tuple[Layer, ...], findings: Findings
    ) -> HttpRouteIR:
        """A GRPCRoute on one listener. Its rules keep their matches and answer 500: gRPC is not carried yet."""
        layers += self._policies.layer(Level.ROUTE, route.key)
        rules = []
        for index, rule in enumerate(route.spec.rules):
            if index in findings.dropped:
                continue
            of_rule = layers + (self._policies.layer(Level.RULE, route.key, rule.name) if rule.name else ())
            rules.append(
                HttpRuleIR(
                    matches=tuple(map(grpc_match, rule.matches)),
                    backends=(WeightedBackend(None, error=NO_GRPC),),
                    policy=self._policies.merge(of_rule, is_routed=True).policy,
                    name=rule.name or "",
                )
            )
        created = route.metadata.creation_timestamp or "~"
        return HttpRouteIR(route.full_name, attachment.hostnames, tuple(rules), created, route.KIND)

    def stream_route(
        self, route: TlsRoute | TcpRoute, attachment: Attachment, layers: tuple[Layer, ...]
    ) -> StreamRouteIR:
        """A TLSRoute or TCPRoute on one listener."""
        rule: StreamRule = route.spec.rules[0]
        layers += self._policies.layer(Level.ROUTE, route.key)
        if rule.name:
            layers += self._policies.layer(Level.RULE, route.key, rule.name)
        where = Where(str(attachment.listener.gateway), str(route))
        merged = self._policies.merge(layers, is_routed=True)
        placed, error = self._requests(layers, where)
        tls = attachment.listener.tls
        if tls is not None and tls.mode is TlsMode.TERMINATE:
            error = error or self._backends.plain_text_error(route, rule.backend_refs)
        found = self._weigher.choices(route, rule.backend_refs, layers, where, lambda _ref: (), error)
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

    def default_backend(self, listener: ListenerPlan, layers: tuple[Layer, ...]) -> WeightedBackend:
        """What serves the destinations that no route matches and policy allows: the one that the request named."""
        _, error = self._requests(layers, default_where(listener))
        return self._weigher.default(listener, self._weigher.default_layers(layers), error)

    def listener_extensions(
        self, listener: ListenerPlan, layers: tuple[Layer, ...]
    ) -> tuple[PolicyIR, tuple[ExtensionIR, ...]]:
        """What holds for requests of a listener that no route matches."""
        placed, _ = self._requests(layers, default_where(listener))
        if listener.protocol is ListenerProtocol.FORWARD_PROXY:
            layers = self._weigher.default_layers(layers)
        return self._policies.merge(layers, is_routed=False).policy, ordered(placed)

    # --- a route alone -----------------------------------------------------------------------------------------------

    def _examine_http(self, route: HttpRoute) -> Findings:
        findings = Findings(rules=len(route.spec.rules))
        idle: dict[str, None] = {}
        for index, rule in enumerate(route.spec.rules):
            self._examine_rule(route, index, rule, findings)
            if rule.retry is not None and (problem := retry_problem(rule.retry)):
                findings.notes.append(f"rules[{index}].retry: {problem}.")
            if rule.retry is not None and rule.retry.codes and (behind := self._behind_parents(route, rule)):
                findings.notes.append(f"rules[{index}].retry.codes are not applied to {behind}: it has a parent.")
            if rule.session_persistence is not None and (problem := session_problem(rule.session_persistence)):
                findings.notes.append(f"rules[{index}].sessionPersistence: {problem}.")
        if route.spec.use_default_gateways != "None":
            idle["useDefaultGateways"] = None
        findings.notes += [f"{name} is not supported yet and does nothing." for name in idle]
        return findings

    def _examine_rule(self, route: HttpRoute, index: int, rule: HttpRule, findings: Findings) -> None:
        self._examine_patterns(index, map(http_patterns, rule.matches), findings)
        try:
            self._filters(route, rule.filters, on_backend=False, port=80, protocol=ListenerProtocol.HTTP)
        except FilterNotSupported as error:
            findings.closed[index] = str(error)
            findings.places[index] = f"spec.rules[{index}].filters[{error.index}]: "
        self._examine_refs(route, _placed_refs(index, rule.backend_refs), findings)
        for where, entry in _placed_filters(index, rule):
            if entry.backend_ref is not None:
                protocols = _protocols(entry.external_auth)
                problem = self._examine_refs(route, ((where, entry.backend_ref),), findings, protocols)
                if problem and entry.external_auth is not None:
                    findings.unasked[index] = problem
        for number, ref in enumerate(rule.backend_refs):
            try:
                self._filters(route, ref.filters, on_backend=True, port=80, protocol=ListenerProtocol.HTTP)
            except FilterNotSupported as error:
                findings.closed[index] = f"backendRefs[{number}]: {error}"
                findings.places[index] = f"spec.rules[{index}].backendRefs[{number}]: "

    def _examine_grpc(self, route: GrpcRoute, findings: Findings) -> None:
        findings.rules = len(route.spec.rules)
        for index, rule in enumerate(route.spec.rules):
            self._examine_patterns(index, map(grpc_patterns, rule.matches), findings)
            mirrors = [
                (where, entry.request_mirror.backend_ref)
                for where, entry in _placed_filters(index, rule)
                if entry.request_mirror is not None
            ]
            refs = (*_placed_refs(index, rule.backend_refs), *mirrors)
            self._examine_refs(route, refs, findings, supported_features.GRPC_PROTOCOLS)
        if route.spec.use_default_gateways != "None":
            findings.notes.append("useDefaultGateways is not supported and does nothing.")
        findings.notes.append(f"{NO_GRPC}: its requests are answered with 500.")

    def _examine_patterns(self, index: int, patterns: Iterable[Iterable[tuple[str, str]]], findings: Findings) -> None:
        """Drop a rule with an expression that the data plane would refuse, or one too many for its route."""
        for number, of_match in enumerate(patterns):
            for field_path, pattern in of_match:
                where = f"spec.rules[{index}].matches[{number}].{field_path}"
                if len(findings.patterns) == MAX_PATTERNS and pattern not in findings.patterns:
                    findings.dropped[index] = (
                        f"{where}: the route has more than {MAX_PATTERNS} regular expressions; "
                        "write prefixes, or divide it into several routes"
                    )
                    return
                findings.patterns.add(pattern)
                try:
                    self._defaults.check_pattern(pattern)
                except ValueError as error:
                    findings.dropped[index] = f"{where}: {error}"
                    return

    def _examine_refs(
        self, route: Resource, refs: Iterable[tuple[str, BackendObjectReference]], findings: Findings,
        protocols: Container[Protocol] = supported_features.UPSTREAM_PROTOCOLS,
    ) -> str:  # fmt: skip
        """Resolve references, each with its place, and note what is wrong with them; returns the last of it."""
        problem = ""
        for where, ref in refs:
            try:
                self._backends.resolve(route, ref, protocols)
            except Unresolved as unresolved:
                problem = unresolved.message
                findings.errors.add(problem)
                findings.unresolved.append((unresolved.reason, f"{where}: {unresolved.said}"))
        return problem

    def _behind_parents(self, route: HttpRoute, rule: HttpRule) -> str:
        """The backends of a rule that are reached through a parent, which has retries of its own."""
        behind: dict[str, None] = {}
        for ref in rule.backend_refs:
            with suppress(Unresolved):
                spec = self._backends.resolve(route, ref).spec
                if spec.parent is not None:
                    behind[spec.name] = None
        return ", ".join(behind)

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
        index: int,
        listener: ListenerPlan,
        layers: tuple[Layer, ...],
        where: Where,
        error: str,
    ) -> HttpRuleIR:
        rule = route.spec.rules[index]
        session = session_ir(route.full_name, index, rule)
        if rule.name:
            layers += self._policies.layer(Level.RULE, route.key, rule.name)
        merged = self._policies.merge(layers, is_routed=True)
        placed, problem = self._requests(layers, where)
        error = error or problem
        copies: tuple[MirrorIR, ...] = ()
        if error:
            found = Choices((self._weigher.closed(error, layers),))
        else:
            assert listener.protocol is not None
            port, protocol = listener.listener.port, listener.protocol
            placed += self._filters(route, rule.filters, on_backend=False, port=port, protocol=protocol)

            def of_ref(ref: BackendRef) -> tuple[Placed, ...]:
                filters = ref.filters if isinstance(ref, HttpBackendRef) else ()
                return self._filters(route, filters, on_backend=True, port=port, protocol=protocol)

            def mirrors_of_ref(ref: BackendRef) -> tuple[MirrorIR, ...]:
                filters = ref.filters if isinstance(ref, HttpBackendRef) else ()
                return mirrors(self._weigher, route, filters, layers, where, (*placed, *of_ref(ref)))

            idle = session is not None
            found = self._weigher.choices(
                route, rule.backend_refs, layers, where, of_ref, "", mirrors_of_ref, keeps_idle=idle
            )
            copies = mirrors(self._weigher, route, rule.filters, layers, where, placed)
        timeouts = rule.timeouts
        request = timeouts.request if timeouts is not None else None
        attempt = timeouts.backend_request if timeouts is not None else None
        return HttpRuleIR(
            matches=self._matched(rule),
            backends=found.backends,
            policy=self._with_denials(merged.policy, found.backends),
            extensions=ordered([*placed, *found.filters]),
            request_s=request.seconds if request is not None else None,
            backend_request_s=attempt.seconds if attempt is not None else None,
            name=rule.name or "",
            index=index,
            mirrors=copies,
            auth=None if error else self._external_auth(route, rule, layers, where),
            retry=rule_retry(rule.retry, merged.policy.retries) if rule.retry is not None else merged.policy.retries,
            session=session,
        )

    def _external_auth(
        self, route: HttpRoute, rule: HttpRule, layers: tuple[Layer, ...], where: Where
    ) -> ExternalAuthIR | None:
        """The authorization server of a rule, if it has one; a server that cannot be used refuses everything."""
        written = next((entry.external_auth for entry in rule.filters if entry.external_auth is not None), None)
        if written is None:
            return None
        backend = self._weigher.of_filter(route, written.backend_ref, layers, where, _protocols(written))
        if backend.backend is not None and backend.backend.destination is Destination.DYNAMIC:
            backend = WeightedBackend(None, error="an authorization server is a fixed place: the backend is Dynamic")
        http = written.http or ExternalAuthHttp()
        allowed = written.grpc.allowed_headers if written.grpc is not None else http.allowed_headers
        return ExternalAuthIR(
            place=self._extensions.external_auth_place(route),
            protocol=AuthProtocol(written.protocol),
            backend=backend,
            path=http.path,
            allowed_headers=tuple(dict.fromkeys(name.lower() for name in allowed)),
            allowed_response_headers=tuple(dict.fromkeys(name.lower() for name in http.allowed_response_headers)),
            max_body=written.forward_body.max_size if written.forward_body is not None else 0,
        )

    def _matched(self, rule: HttpRule) -> tuple[MatchIR, ...]:
        """What the rule matches; with CORS also the preflight requests (OPTIONS) for the methods that it matches."""
        made = tuple(self._match(match) for match in rule.matches)
        if not any(entry.cors is not None for entry in _filters(rule)):
            return made
        asked = (match for match in made if match.method not in ("", "OPTIONS"))
        return made + tuple(replace(match, is_preflight=True) for match in asked)

    def _match(self, match: HttpMatch) -> MatchIR:
        made = self._matches.get(match)
        if made is None:
            made = self._matches[match] = http_match(match)
        return made

    def _requests(self, layers: tuple[Layer, ...], where: Where) -> tuple[list[Placed], str]:
        """The filters of the request phases; and why the place has to be closed, "" if it has not."""
        try:
            return self._placement.for_requests(layers, where), ""
        except FilterNotSupported as error:
            return [], str(error)

    def _with_denials(self, policy: PolicyIR, backends: Sequence[WeightedBackend]) -> PolicyIR:
        """What a Backend's policy denies is denied for every rule that has it: hosts are judged before backends."""
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


@overload
def _filters(rule: HttpRule) -> Iterator[HttpFilter]: ...
@overload
def _filters(rule: GrpcRule) -> Iterator[GrpcFilter]: ...
def _filters(rule: HttpRule | GrpcRule) -> Iterator[HttpFilter | GrpcFilter]:
    """The filters of a rule and of its backendRefs."""
    yield from rule.filters
    for ref in rule.backend_refs:
        yield from ref.filters


def _placed_refs(index: int, refs: Sequence[BackendRef]) -> Iterator[tuple[str, BackendRef]]:
    """The backendRefs of a rule, each with its field."""
    for number, ref in enumerate(refs):
        yield f"spec.rules[{index}].backendRefs[{number}]", ref


@overload
def _placed_filters(index: int, rule: HttpRule) -> Iterator[tuple[str, HttpFilter]]: ...
@overload
def _placed_filters(index: int, rule: GrpcRule) -> Iterator[tuple[str, GrpcFilter]]: ...
def _placed_filters(index: int, rule: Any) -> Iterator[tuple[str, Any]]:
    """The filters of a rule and of its backendRefs, each with its field."""
    for number, entry in enumerate(rule.filters):
        yield f"spec.rules[{index}].filters[{number}]", entry
    for at, ref in enumerate(rule.backend_refs):
        where = f"spec.rules[{index}].backendRefs[{at}]"
        for number, entry in enumerate(ref.filters):
            yield f"{where}.filters[{number}]", entry


def _protocols(auth: ExternalAuthFilter | None) -> Container[Protocol]:
    """What the backend of a filter may speak."""
    return (
        supported_features.GRPC_PROTOCOLS
        if auth is not None and auth.protocol == "GRPC"
        else supported_features.UPSTREAM_PROTOCOLS
    )
