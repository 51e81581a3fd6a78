"""The backends of a rule, each with its policy, TLS minimum, region and filters.

An unusable backend keeps its share of the rule's requests, which get 500 with the reason (Gateway API v1,
HTTPRouteRule.backendRefs).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from typing import Any

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import ANY_DESTINATION, DestinationBackend, ResolvedBackend
from egressproxy.config.compile.extensions.extension_compiler import Caller, FilterNotSupported, as_backend_ref
from egressproxy.config.compile.extensions.ranked_extension import RankedExtension, ordered
from egressproxy.config.compile.gateways.gateway_tls import ClientCertificates
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.interface import scope_of
from egressproxy.config.compile.policies.credential_exposure import CredentialDns, refuse_exposure
from egressproxy.config.compile.policies.layers import Layer, Layers, Level, denials_of, restrictions_of
from egressproxy.config.compile.policies.policy_attachment import PolicyAttachments
from egressproxy.config.compile.policies.policy_filters import LimitScopes, PolicyFilters
from egressproxy.config.compile.policies.policy_merge import Merged
from egressproxy.config.compile.policies.restrictions import locked_regions
from egressproxy.config.compile.policies.tls_floor import BackendUnusable, RegionDenied, TlsFloor
from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.compile.status import supported_features
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.config.resources.routes import BackendRef, GrpcRoute, HttpRoute
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination, OtherParent, Protocol
from egressproxy.ir.identity import TokenIssuerIR
from egressproxy.ir.policy import ExtensionIR, PolicyIR
from egressproxy.ir.route import FailoverIR, MirrorIR, WeightedBackend
from egressproxy.model.published_object import Key

#: Destinations that no policy sends through a parent: the operator's own addresses, mostly internal.
_OF_THE_OPERATOR = (Destination.IP, Destination.SERVICE)

#: Returns the filters of a backendRef. Raises FilterNotSupported.
RefFilters = Callable[[BackendRef], tuple[RankedExtension, ...]]
#: Returns the mirrors of a backendRef.
RefMirrors = Callable[[BackendRef], tuple[MirrorIR, ...]]


@dataclass(frozen=True, slots=True)
class RuleBackends:
    """The backends of a rule, and the filters they add to the rule itself: limits of bodies."""

    backends: tuple[WeightedBackend, ...]
    filters: tuple[RankedExtension, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class BackendRefCompiler:
    """Makes WeightedBackends."""

    backends: BackendCompiler
    policies: PolicyAttachments
    policy_filters: PolicyFilters
    certificates: ClientCertificates
    credential_dns: CredentialDns
    _tls_floor: TlsFloor = field(default_factory=TlsFloor)
    _denials_of: Callable[[Layer], Layer] = field(default_factory=lambda: cache(denials_of))
    _restrictions_of: Callable[[Layer], Layer] = field(default_factory=lambda: cache(restrictions_of))
    #: By backend and the policy that names the parent. By identity: an object is resolved in several forms (ports,
    #: stream or requests), which live as long as this compiler.
    _through_policies: dict[tuple[int, Key], ResolvedBackend] = field(default_factory=dict)
    _issuers: dict[TokenIssuerIR, ResolvedBackend] = field(default_factory=dict)
    #: The stack of extensions whose calls are being resolved.
    _calling: list[ExtensionIR] = field(default_factory=list)

    def of_rule(
        self,
        route: Resource,
        refs: Iterable[BackendRef],
        layers: Layers,
        scopes: LimitScopes,
        filters: RefFilters,
        error: str,
        mirrors: RefMirrors = lambda _ref: (),
        *,
        keeps_weight_0: bool = False,
    ) -> RuleBackends:
        """The backends of a rule. `layers` are those of the rule; `error` closes all of them.

        A backend of weight 0 gets no requests and is left out, unless `keeps_weight_0` is set or it speaks MCP, since
        it may have sessions. A rule without other backends responds with 500.
        """
        refs = tuple(refs)
        if refs and not keeps_weight_0 and not any(ref.weight for ref in refs):
            return RuleBackends((WeightedBackend(None, error="every backend of the rule has weight 0"),))
        made: list[WeightedBackend] = []
        more: list[RankedExtension] = []

        def filters_of(ref: BackendRef, behind: Layers) -> tuple[RankedExtension, ...]:
            found = filters(ref)
            more.extend(self.policy_filters.body_limits(behind))
            return found

        for number, ref in enumerate(refs):
            if not (ref.weight or keeps_weight_0 or self._has_sessions(route, ref)):
                continue
            asked = partial(filters_of, ref)
            try:
                failover = self.backends.failover(route, ref) if isinstance(route, HttpRoute | GrpcRoute) else None
            except UnresolvedRef as unresolved:
                made.append(WeightedBackend(None, ref.weight, error=unresolved.message))
                continue
            if failover is not None:
                reached = partial(self.backends.endpoint, for_grpc=isinstance(route, GrpcRoute))
                found = self._of_failover(failover, number, ref.weight, layers, scopes, asked, error, reached)
                copies = mirrors(ref) if any(each.backend is not None for each in found) else ()
                made += (replace(each, mirrors=copies) for each in found)
                continue
            choice = self._of_ref(route, ref, layers, scopes, asked, error)
            copies = mirrors(ref) if choice.backend is not None else ()
            made.append(replace(choice, weight=ref.weight, mirrors=copies) if copies or ref.weight != 1 else choice)
        return RuleBackends(tuple(made), tuple(more))

    def _has_sessions(self, route: Resource, ref: BackendRef) -> bool:
        """Whether the backend of an HTTPRoute keeps sessions, as MCP servers do."""
        try:
            return isinstance(route, HttpRoute) and self.backends.resolve(route, ref).spec.protocol is Protocol.MCP
        except UnresolvedRef:
            return False

    def _of_failover(
        self,
        failover: DestinationBackend,
        number: int,
        weight: int,
        layers: Layers,
        scopes: LimitScopes,
        filters: Callable[[Layers], Iterable[RankedExtension]],
        error: str,
        resolve: Callable[[DestinationBackend, BackendObjectReference], ResolvedBackend],
    ) -> list[WeightedBackend]:
        """The endpoints of a Failover, which is the backendRef `number` of a rule, with this weight.

        Each endpoint has its own policies as a backend, and those of the Failover.
        """
        layers += self.policies.layer(Level.BACKEND, failover.key)
        spec = failover.spec.destination.failover
        assert spec is not None
        made = FailoverIR(
            failover.full_name,
            number,
            weight,
            tuple(sorted(set(spec.codes))),
            spec.first_byte.seconds if spec.first_byte is not None else 0.0,
            spec.replay == "Idempotent",
            spec.max_replay_bytes,
            spec.attempts_header,
        )
        found = []
        for endpoint in spec.endpoints:
            if endpoint.weight:
                one = self._of_ref(failover, endpoint.backend_ref, layers, scopes, filters, error, resolve=resolve)
                aliases = tuple(sorted(endpoint.model_aliases.items()))
                found.append(
                    replace(
                        one,
                        weight=endpoint.weight,
                        failover=made,
                        priority=endpoint.priority,
                        model_alias=endpoint.model_alias or "",
                        model_aliases=aliases,
                    )
                )
        return found or [WeightedBackend(None, weight, error=f"every endpoint of {failover} has weight 0")]

    def of_default(self, listener: ListenerPlan, layers: Layers, error: str) -> tuple[WeightedBackend, Layers]:
        """The backend "-" of a forward proxy, and its layers: the listener's, and its parent's denials."""
        resolved = self._through_policy_parent(ANY_DESTINATION, self.policies.merge(layers, is_routed=False))
        layers += self._layers_of_parents(resolved)
        merged = self.policies.merge(layers, is_routed=False)
        scopes = default_scopes(listener, merged.policy)
        return self._weighted_backend(resolved, merged, layers, scopes, (), error), layers

    def of_issuer(self, issuer: TokenIssuerIR, layers: Layers) -> WeightedBackend:
        """The backend with the keys of an issuer, under these layers."""
        if issuer not in self._issuers:
            host, port = issuer.key_host
            tls = BackendTlsIR(ca_pem=issuer.ca_pem, ca_source=issuer.ca_source)
            spec = BackendIR(f"identity/{host}", Destination.FQDN, host, port, tls=tls)
            self._issuers[issuer] = ResolvedBackend(spec, ("", "", "", spec.name), port)
        resolved = self._through_policy_parent(self._issuers[issuer], self.policies.merge(layers, is_routed=False))
        layers += self._layers_of_parents(resolved)
        merged = self.policies.merge(layers, is_routed=False)
        named_in = merged.parent.policy.namespace if merged.parent is not None else ""
        try:
            if resolved.error:
                raise BackendUnusable(resolved.error)
            reached = self._with_parents(resolved, resolved.spec, merged, layers, named_in)
        except BackendUnusable as problem:
            return WeightedBackend(None, error=str(problem))
        return WeightedBackend(reached, policy=merged.policy, parent_by=resolved.parent_by)

    def _through_policy_parent(self, resolved: ResolvedBackend, merged: Merged) -> ResolvedBackend:
        """The backend with the policies' parent, if it has a hostname and no parent of its own.

        A backend that is the parent, or on the path to it, keeps its own settings. With an unusable parent the backend
        is unusable, too: it is never dialled without.
        """
        chosen = merged.parent
        if chosen is None or chosen.ref.direct or resolved.spec.destination in _OF_THE_OPERATOR:
            return resolved
        if resolved.spec.parent is not None or resolved.is_direct:
            return resolved
        key = (id(resolved), chosen.policy.key)
        if key not in self._through_policies:
            try:
                found = self.backends.parents.through(resolved, chosen.policy, chosen.ref)
                on_the_way = (each.target for each in chain(found.parents, *found.fallbacks))
                if found.spec.parent is None or resolved.target in on_the_way:
                    found = resolved
                else:
                    found = replace(found, parent_by=str(chosen.policy))
            except UnresolvedRef as unresolved:
                error = unresolved.message
                if str(chosen.policy) not in error:
                    error = f"parent of {chosen.policy}: {error}"
                found = replace(resolved, parent_by=str(chosen.policy), error=error)
            self._through_policies[key] = found
        return self._through_policies[key]

    def of_filter(
        self,
        route: Resource,
        ref: BackendObjectReference,
        layers: Layers,
        scopes: LimitScopes,
        protocols: Container[Protocol] = supported_features.UPSTREAM_PROTOCOLS,
    ) -> WeightedBackend:
        """The backend of a rule's filter (RequestMirror, ExternalAuth), with its policies.

        `layers` are those of the rule. Its extensions are its own and its policies' (its own credential only),
        including limits of bodies, since the filter's request is separate from the rule's.
        """
        resolve = partial(self.backends.resolve, protocols=protocols)
        return self._of_ref(route, ref, layers, scopes, self.policy_filters.body_limits, resolve=resolve)

    def with_calls(
        self, placed: Iterable[RankedExtension], layers: Layers, scopes: LimitScopes
    ) -> tuple[RankedExtension, ...]:
        """These extensions with their called backends, resolved under these layers.

        Settings of a single backend (its pins, its limits) do not apply to backends that its filters call.
        """
        callers = self.policy_filters.compiler.callers
        if not callers:
            return tuple(placed)
        around = tuple(layer for layer in layers if layer.level is not Level.BACKEND)
        return tuple(self._with_calls_of(one, callers.get(one.spec), around, scopes) for one in placed)

    def _with_calls_of(
        self, placed: RankedExtension, caller: Caller | None, layers: Layers, scopes: LimitScopes
    ) -> RankedExtension:
        if caller is None:
            return placed
        spec = placed.spec
        calls = []
        for _, ref in caller.refs:
            if spec in self._calling:
                error = f"extension {spec.name} of {caller.owner} would call a backend that needs the same extension"
                callee = WeightedBackend(None, error=error)
            else:
                self._calling.append(spec)
                callee = self.of_filter(caller.owner, as_backend_ref(ref), layers, scopes)
                self._calling.pop()
            if callee.backend is not None and callee.backend.destination is Destination.DYNAMIC:
                callee = WeightedBackend(None, error="what a filter calls is a fixed place: the backend is Dynamic")
            if ref.is_grpc and callee.backend is not None:
                callee = replace(callee, backend=replace(callee.backend, protocol=Protocol.GRPC))
            calls.append((ref.label, callee))
        return placed._replace(spec=replace(spec, calls=tuple(calls)))

    def closed(self, error: str, layers: Layers) -> WeightedBackend:
        """A backend that responds to every request with this error, under these layers."""
        return WeightedBackend(None, error=error, unknown_extension=self.policy_filters.unknown_extension(layers))

    def _of_ref(
        self,
        route: Resource,
        ref: BackendObjectReference,
        layers: Layers,
        scopes: LimitScopes,
        filters: Callable[[Layers], Iterable[RankedExtension]],
        error: str = "",
        resolve: Callable[[Any, BackendObjectReference], ResolvedBackend] | None = None,
    ) -> WeightedBackend:
        """`filters` returns the filters for the effective layers; `resolve` finds the backend, None: for requests."""
        try:
            resolved = (resolve or self.backends.resolve)(route, ref)
        except UnresolvedRef as unresolved:
            return WeightedBackend(None, error=unresolved.message)
        layers += self._own_layers(resolved)
        resolved = self._through_policy_parent(resolved, self.policies.merge(layers, is_routed=True))
        layers += self._layers_of_parents(resolved)
        asked: tuple[RankedExtension, ...] = ()
        try:
            asked = tuple(filters(layers))
        except FilterNotSupported as unsupported:
            error = error or str(unsupported)
        merged = self.policies.merge(layers, is_routed=True)
        at = replace(scopes, backend=scope_of(resolved.target))
        return self._weighted_backend(resolved, merged, layers, at, asked, error)

    def _layers_of_parents(self, resolved: ResolvedBackend) -> Layers:
        """The denials of the parents' policies, which apply to all backends behind them."""
        parents = chain(resolved.parents, *resolved.fallbacks)
        own = (layer for parent in parents for layer in self._own_layers(parent))
        return tuple(map(self._denials_of, own))

    def _own_layers(self, resolved: ResolvedBackend) -> Layers:
        """The layers of the object, and the restrictions of its Service."""
        whole = self.policies.layer(Level.BACKEND, resolved.target, "", resolved.resolver)
        layers = whole + self.policies.layer(Level.BACKEND, resolved.target, str(resolved.port))
        if resolved.service is not None:
            for section in ("", str(resolved.port)):
                of_service = self.policies.layer(Level.BACKEND, resolved.service, section)
                layers += tuple(map(self._restrictions_of, of_service))
        return layers

    def _with_parents(
        self, resolved: ResolvedBackend, spec: BackendIR, merged: Merged, around: Layers, namespace: str
    ) -> BackendIR:
        """The backend with the settings of its parents' policies. Raises BackendUnusable.

        Filters and limits of a parent's policy are not supported yet; ignoring one would lift its restriction. `around`
        are the layers of the backend, `namespace` is the namespace of the object that names the parent.
        """
        if not resolved.parents or spec.parent is None:
            return spec
        parent = resolved.parents[0]
        layers = self._own_layers(parent)
        policy = self.policies.merge(layers, is_routed=True)
        unsupported = [section for layer in layers for section in self._not_on_parents(layer)]
        if unsupported:
            raise BackendUnusable(f"not supported on {parent.spec.name}, which is a parent: {', '.join(unsupported)}")
        if policy.unenforceable:
            raise BackendUnusable("; ".join(policy.unenforceable))
        _check_region(parent, policy.regions)
        if parent.region:
            _check_region(parent, merged.regions)
        hardened = self._tls_floor.apply(spec.parent, policy)
        behind = self._with_parents(parent, hardened, merged, (*around, *layers), parent.target[2])
        others: list[OtherParent] = []
        for each, parents in zip(spec.other_parents, resolved.fallbacks, strict=True):
            through = replace(spec, parent=each.backend, parent_credentials=each.credentials, other_parents=())
            through = self._with_parents(
                replace(resolved, parents=parents, fallbacks=()), through, merged, around, namespace
            )
            assert through.parent is not None
            others.append(replace(each, backend=through.parent, dns=through.parent_dns))
        dns = self.credential_dns.of_parent(spec, around, namespace)
        return replace(spec, parent=behind, parent_dns=dns, other_parents=tuple(others))

    def _weighted_backend(
        self,
        resolved: ResolvedBackend,
        merged: Merged,
        layers: Layers,
        scopes: LimitScopes,
        filters: tuple[RankedExtension, ...],
        error: str,
    ) -> WeightedBackend:
        unknown = self.policy_filters.unknown_extension(layers, resolved.extensions)
        error = error or (unknown and f"the {unknown} is not supported")
        error = error or resolved.error or "; ".join(merged.unenforceable)
        named_in = resolved.target[2]
        if resolved.parent_by and merged.parent is not None:
            named_in = merged.parent.policy.namespace
        try:
            if error:
                raise BackendUnusable(error)
            _check_region(resolved, merged.regions)
            locked = locked_regions(each.spec for each in (*resolved.extensions, *filters))
            _check_region(resolved, locked)
            for parent in chain(resolved.parents, *resolved.fallbacks):
                if parent.region:
                    _check_region(parent, locked)
            hardened = self._tls_floor.apply(resolved.spec, merged)
            reached = self._with_parents(resolved, hardened, merged, layers, named_in)
            own = (*resolved.extensions, *self.policy_filters.for_backend(layers, scopes))
            spec = self.certificates.shown_to(reached, scopes.gateway)
            refuse_exposure(resolved, merged.parent, own)
        except (BackendUnusable, FilterNotSupported, UnresolvedRef) as problem:
            error = str(problem)
            parent_by = resolved.parent_by if error == resolved.error else ""
            is_elsewhere = isinstance(problem, RegionDenied)
            return WeightedBackend(
                None, error=error, unknown_extension=unknown, parent_by=parent_by, is_elsewhere=is_elsewhere
            )
        policy = self.credential_dns.of_backend(merged.policy, resolved, layers, own)
        extensions = self.with_calls((*own, *filters), layers, scopes)
        return WeightedBackend(spec, 1, policy, ordered(extensions), parent_by=resolved.parent_by)

    def _not_on_parents(self, layer: Layer) -> Iterable[str]:
        for policy in layer.policies:
            limits = policy.spec.limits
            if self.policy_filters.runs(policy, layer):
                yield f"extensions of {policy}"
            if policy.spec.parent is not None and not policy.spec.parent.direct:
                yield f"parent of {policy}"
            if limits is not None and (limits.are_counted or limits.max_body_bytes):
                yield f"limits of {policy}"


def default_scopes(listener: ListenerPlan, policy: PolicyIR) -> LimitScopes:
    """The scopes of filters for requests without a route, under this policy."""
    gateway = str(listener.gateway)
    return scopes_of(listener, policy, f"{gateway}, no route", f"{gateway}, any destination")


def scopes_of(listener: ListenerPlan, policy: PolicyIR, route: str, backend: str = "-") -> LimitScopes:
    """The scopes of filters for requests on a listener, under this policy."""
    is_forward = listener.protocol is not None and listener.protocol.is_forward
    domain = policy.identity.trust_domain if policy.identity is not None else ""
    return LimitScopes(str(listener.gateway), route, backend, 0 if is_forward else listener.listener.port, domain)


def _check_region(resolved: ResolvedBackend, allowed: frozenset[str] | None) -> None:
    """Raises RegionDenied if the object's region is not allowed; None: all are allowed."""
    if allowed is None or resolved.region in allowed:
        return
    named = ", ".join(sorted(allowed)) or "none"
    stands = f"stands in region {resolved.region}" if resolved.region else "says no region"
    what = "a destination that no route names" if resolved.spec.name == "-" else f"backend {resolved.spec.name}"
    raise RegionDenied(f"{what} {stands}; allowed by policy: {named}")
