"""References to backends: every one in a route, and which Backends carry only streams or only other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from egressproxy.config.compile.interface import Key, Reference
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import (
    BackendRef,
    GrpcRoute,
    GrpcRule,
    HttpRoute,
    HttpRule,
    StreamRule,
    TcpRoute,
    TlsRoute,
)

__all__ = ["backend_refs", "only_parents", "rule_filters", "rule_refs", "stream_carriers"]

AnyRule = HttpRule | GrpcRule | StreamRule


def rule_refs(index: int, rule: AnyRule) -> Iterator[tuple[str, BackendRef]]:
    """The backendRefs of a rule, each with its field; `index` is the rule's, in `spec.rules`."""
    for number, ref in enumerate(rule.backend_refs):
        yield f"spec.rules[{index}].backendRefs[{number}]", ref


def rule_filters(index: int, rule: AnyRule) -> Iterator[tuple[str, Any]]:
    """The filters of a rule and of its backendRefs, each with its field."""
    yield from _filters(f"spec.rules[{index}]", rule)
    for field, ref in rule_refs(index, rule):
        yield from _filters(field, ref)


def backend_refs(route: Resource) -> Iterator[tuple[str, Reference]]:
    """Every reference of a route to a backend, each with its field: of rules, and of filters that send requests."""
    for index, rule in enumerate(route.spec.rules):  # type: ignore[attr-defined]
        yield from _filter_refs(f"spec.rules[{index}]", rule)
        for field, ref in rule_refs(index, rule):
            yield field, ref
            yield from _filter_refs(field, ref)


def _filters(place: str, holder: object) -> Iterator[tuple[str, Any]]:
    for number, entry in enumerate(getattr(holder, "filters", ())):
        yield f"{place}.filters[{number}]", entry


def _filter_refs(place: str, holder: object) -> Iterator[tuple[str, Reference]]:
    for field, entry in _filters(place, holder):
        if entry.request_mirror is not None:
            yield f"{field}.requestMirror.backendRef", entry.request_mirror.backend_ref
        if getattr(entry, "external_auth", None) is not None:  # a GRPCRoute has none
            yield f"{field}.externalAuth.backendRef", entry.external_auth.backend_ref


def only_parents(resources: ResourceSet, key_of: Callable[[Resource, Reference], Key]) -> set[Key]:
    """Backends that others are reached through, and that no route leads to. `key_of`: what a reference means."""
    found = _parents(resources, key_of)
    for kind in (HttpRoute, GrpcRoute, TlsRoute, TcpRoute):
        for route in resources.of(kind) if found else ():
            found -= {key_of(route, ref) for _, ref in backend_refs(route)}
    return found


def _parents(resources: ResourceSet, key_of: Callable[[Resource, Reference], Key]) -> set[Key]:
    """What Backends and policies name as their parent."""
    found: set[Key] = set()
    sources: tuple[Backend | EgressPolicy, ...] = (*resources.of(Backend), *resources.of(EgressPolicy))
    for source in sources:
        parent: Reference | None = getattr(source.spec, "parent", None)
        if parent is not None:
            found.add(key_of(source, parent))
    return found


def stream_carriers(resources: ResourceSet, key_of: Callable[[Resource, Reference], Key]) -> set[Key]:
    """What streams of others go through, and no request: parents, and backends of TLSRoutes and TCPRoutes alone.

    The TLS inside is the client's, or that of the backend behind the parent. `key_of`: what a reference means.
    """

    def targets(route: Resource) -> set[Key]:
        return {key_of(route, ref) for _, ref in backend_refs(route)}

    carriers: set[Key] = set()
    for stream in (*resources.of(TlsRoute), *resources.of(TcpRoute)):
        carriers |= targets(stream)
    carriers |= _parents(resources, key_of)
    for route in (*resources.of(HttpRoute), *resources.of(GrpcRoute)):
        carriers -= targets(route)
    return carriers
