"""What is wrong with a route wherever it is attached: references, filters, regular expressions, fields without effect.

A rule that asks for an unsupported filter answers 500; a rule whose regular expression is not accepted is dropped. The
conditions of a route say so, at each of its parents. Source: Gateway API v1 RouteParentStatus, RouteConditionType.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import (
    endpoint_refs,
    processor_refs,
    rule_filters,
    rule_refs,
)
from egressproxy.config.compile.extensions.extension_compiler import ExtensionCompiler, FilterNotSupported
from egressproxy.config.compile.extensions.pipelines import ExtensionRefNotFound, Pipelines
from egressproxy.config.compile.extensions.route_filters import route_filters
from egressproxy.config.compile.gateways.attachment import Attachment, Rejection
from egressproxy.config.compile.policies.resilience import retry_problem
from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.compile.routes.matches import MAX_PATTERNS, as_http_rule, grpc_patterns, http_patterns
from egressproxy.config.compile.routes.session_persistence import session_problems
from egressproxy.config.compile.status import supported_features
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.object_references import BackendObjectReference
from egressproxy.config.resources.route_filters import ExternalAuthFilter
from egressproxy.config.resources.routes import AnyRoute, BackendRef, GrpcRoute, GrpcRule, HttpRoute, HttpRule
from egressproxy.ir.backend import Protocol
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.ir.route import WeightedBackend

_EXPERIMENTAL: Final = (
    "filter {} is experimental (GEP-2826 is provisional, and its fields may change): start the gateway with"
    " --experimental"
)


@dataclass(slots=True)
class RouteValidation:
    """What is wrong with a route wherever it is attached.

    `rules` is the number of its rules. `unresolved` has the reason and message of each bad reference, and `errors` what
    clients may be told of them. By index of the rule: `closed` says why it answers 500, `fields` which field is the
    cause, `dropped` why it is left out, `unresolved_auth` why its authorization server cannot be used. `notes` are
    sentences about fields without effect. `patterns` are its regular expressions.
    """

    rules: int = 0
    unresolved: list[tuple[str, str]] = field(default_factory=list)
    closed: dict[int, str] = field(default_factory=dict)
    fields: dict[int, str] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    unresolved_auth: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)

    def close(self, index: int, field_path: str, error: FilterNotSupported) -> None:
        """Note that the rule answers 500, because of the filter at this place: a field, a colon and a blank."""
        self.closed[index] = str(error)
        self.fields[index] = field_path
        if isinstance(error, ExtensionRefNotFound):
            self.unresolved.append(("ExtensionRefNotFound", f"{field_path}{error}"))

    @property
    def bad_rules(self) -> list[str]:
        """A sentence for each."""
        sentences = [f"Dropped Rule {index}: {text}." for index, text in self.dropped.items()]
        for index, text in (self.unresolved_auth | self.closed).items():
            sentences.append(f"Rule {index} answers 500: {self.fields.get(index, '')}{text}.")
        return sentences

    def unreported(self, backends: Iterable[WeightedBackend]) -> list[str]:
        """Why backends are closed, as far as nothing here says it; of a Failover, only where no endpoint serves."""
        backends = tuple(backends)
        known = {*self.errors, *self.closed.values()}
        served = {b.failover for b in backends if b.backend is not None and b.failover is not None}
        errors = dict.fromkeys(b.error for b in backends if b.backend is None and b.failover not in served)
        return [error for error in errors if error not in known]

    def idle_endpoints(self, backends: Iterable[WeightedBackend]) -> list[str]:
        """Why endpoints of Failovers are not used at a listener where others of theirs are."""
        backends = tuple(backends)
        served = {b.failover for b in backends if b.backend is not None and b.failover is not None}
        idle = (b for b in backends if b.backend is None and b.failover in served)
        return list(dict.fromkeys(f"{b.failover.name}: {b.error}" for b in idle if b.failover is not None))

    @property
    def is_served(self) -> bool:
        return len(self.closed) + len(self.dropped) < self.rules

    @property
    def is_partial(self) -> bool:
        return 0 < len({*self.closed, *self.dropped, *self.unresolved_auth}) < self.rules


def set_route_conditions(
    conditions: Conditions, outcome: list[Attachment] | Rejection, validation: RouteValidation
) -> None:
    """The conditions of a route at one parent (Gateway API v1, RouteConditionType)."""
    if isinstance(outcome, Rejection):
        conditions.set("Accepted", False, outcome.reason, outcome.message)
    elif validation.rules and not validation.is_served:
        conditions.set("Accepted", False, "UnsupportedValue", " ".join(validation.bad_rules))
    else:
        conditions.set("Accepted", True, "Accepted", "the route is attached.")
        closed = [plan.listener.name for plan in outcome if plan.listener.problem]
        if closed:
            conditions.add_note("Accepted", f"these listeners are not served: {', '.join(closed)}.")
        for note in validation.notes:
            conditions.add_note("Accepted", note)
    if validation.unresolved:
        reason = validation.unresolved[0][0]
        conditions.set("ResolvedRefs", False, reason, "; ".join(message for _, message in validation.unresolved))
    else:
        conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
    if validation.is_partial:
        conditions.set("PartiallyInvalid", True, "UnsupportedValue", " ".join(validation.bad_rules))


@dataclass(slots=True, eq=False, repr=False)
class RouteValidator:
    """Validates routes without their listeners. `check_pattern` raises ValueError where the data plane refuses one;
    `experimental` permits filters of provisional GEPs.
    """

    backends: BackendCompiler
    extensions: ExtensionCompiler
    pipelines: Pipelines
    check_pattern: Callable[[str], object]
    experimental: bool = False

    def validate(self, route: AnyRoute) -> RouteValidation:
        """Everything that is wrong with a route, independent of where it is attached."""
        if isinstance(route, HttpRoute | GrpcRoute):
            return self._validate_http(route)
        validation = RouteValidation(rules=len(route.spec.rules))
        if len(route.spec.rules) > 1:
            validation.notes.append("only the first rule is served: the others match the same.")
        for index, rule in enumerate(route.spec.rules):
            self._validate_refs(route, rule_refs(index, rule), validation)
        if route.spec.use_default_gateways != "None":
            validation.notes.append("useDefaultGateways is not supported and does nothing.")
        return validation

    def _validate_http(self, route: HttpRoute | GrpcRoute) -> RouteValidation:
        validation = RouteValidation(rules=len(route.spec.rules))
        rules: tuple[HttpRule | GrpcRule, ...] = route.spec.rules
        for index, written in enumerate(rules):
            rule = as_http_rule(written)
            patterns = (
                map(grpc_patterns, written.matches)
                if isinstance(written, GrpcRule)
                else map(http_patterns, written.matches)
            )
            self._validate_patterns(index, patterns, validation)
            self._validate_rule(route, index, rule, validation)
            if rule.retry is not None and (problem := retry_problem(rule.retry)):
                validation.notes.append(f"rules[{index}].retry: {problem}.")
            if rule.retry is not None and rule.retry.codes and (behind := self._with_parents_named(route, rule)):
                validation.notes.append(f"rules[{index}].retry.codes are not applied to {behind}: it has a parent.")
            for problem in session_problems(rule.session_persistence) if rule.session_persistence is not None else ():
                validation.notes.append(f"rules[{index}].sessionPersistence: {problem}.")
        if route.spec.use_default_gateways != "None":
            validation.notes.append("useDefaultGateways is not supported yet and does nothing.")
        return validation

    def _validate_rule(
        self, route: HttpRoute | GrpcRoute, index: int, rule: HttpRule, validation: RouteValidation
    ) -> None:
        compiled = partial(
            route_filters, self.extensions, self.pipelines, route, port=80, protocol=ListenerProtocol.HTTP
        )
        try:
            compiled(rule.filters, on_backend=False)
        except FilterNotSupported as error:
            validation.close(index, f"spec.rules[{index}].filters[{error.index}]: ", error)
        for number, entry in enumerate(rule.filters):
            if entry.direct_response is not None and not self.experimental:
                refused = FilterNotSupported(_EXPERIMENTAL.format(entry.type))
                validation.close(index, f"spec.rules[{index}].filters[{number}]: ", refused)
        self._validate_refs(route, rule_refs(index, rule), validation)
        for where, entry in rule_filters(index, rule):
            servers = ((field, self.pipelines.with_port(route, ref)) for field, ref in processor_refs(where, entry))
            self._validate_refs(route, servers, validation, supported_features.GRPC_PROTOCOLS)
            if entry.backend_ref is not None:
                protocols = filter_protocols(entry.external_auth)
                problem = self._validate_refs(route, ((where, entry.backend_ref),), validation, protocols)
                if problem and entry.external_auth is not None:
                    validation.unresolved_auth[index] = problem
        for number, ref in enumerate(rule.backend_refs):
            try:
                compiled(ref.filters, on_backend=True)
            except FilterNotSupported as error:
                validation.close(index, f"spec.rules[{index}].backendRefs[{number}].filters[{error.index}]: ", error)

    def _validate_patterns(
        self, index: int, patterns: Iterable[Iterable[tuple[str, str]]], validation: RouteValidation
    ) -> None:
        """Drop a rule with an expression that the data plane would refuse, or one too many for its route."""
        for number, of_match in enumerate(patterns):
            for field_path, pattern in of_match:
                where = f"spec.rules[{index}].matches[{number}].{field_path}"
                if len(validation.patterns) == MAX_PATTERNS and pattern not in validation.patterns:
                    remedy = "write prefixes, or divide it into several routes"
                    message = f"the route has more than {MAX_PATTERNS} regular expressions; {remedy}"
                    validation.dropped[index] = f"{where}: {message}"
                    return
                validation.patterns.add(pattern)
                try:
                    self.check_pattern(pattern)
                except ValueError as error:
                    validation.dropped[index] = f"{where}: {error}"
                    return

    def _validate_refs(
        self,
        route: Resource,
        refs: Iterable[tuple[str, BackendObjectReference]],
        validation: RouteValidation,
        protocols: Container[Protocol] = supported_features.UPSTREAM_PROTOCOLS,
    ) -> str:
        """Resolve references, each with its field, and note what is wrong with them; returns the last error, or ""."""
        problem = ""
        for where, ref in refs:
            try:
                self._resolve(route, ref, protocols)
            except UnresolvedRef as unresolved:
                problem = unresolved.message
                validation.errors.add(problem)
                validation.unresolved.append((unresolved.reason, f"{where}: {unresolved.with_hint}"))
        return problem

    def _resolve(self, route: Resource, ref: BackendObjectReference, protocols: Container[Protocol]) -> None:
        """Raise UnresolvedRef where nothing can serve what goes to this reference."""
        is_of_rule = isinstance(route, HttpRoute | GrpcRoute) and isinstance(ref, BackendRef)
        failover = self.backends.failover(route, ref) if is_of_rule else None
        if failover is None:
            self.backends.resolve(route, ref, protocols)
            return
        problems = self.backends.endpoint_problems(failover, for_grpc=isinstance(route, GrpcRoute))
        if len(problems) == len(list(endpoint_refs(failover))):
            raise problems[0].copy()

    def _with_parents_named(self, route: Resource, rule: HttpRule) -> str:
        behind: dict[str, None] = {}
        for ref in rule.backend_refs:
            with suppress(UnresolvedRef):
                spec = self.backends.resolve(route, ref).spec
                if spec.parent is not None:
                    behind[spec.name] = None
        return ", ".join(behind)


def filter_protocols(auth: ExternalAuthFilter | None) -> Container[Protocol]:
    """What the backend of a filter may speak."""
    is_grpc = auth is not None and auth.protocol == "GRPC"
    return supported_features.GRPC_PROTOCOLS if is_grpc else supported_features.UPSTREAM_PROTOCOLS
