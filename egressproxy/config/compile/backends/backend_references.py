"""References to backends: every one in a route, and which Backends carry only streams or only other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from egressproxy.config.compile.backends.kinds import DestinationBackend
from egressproxy.config.compile.interface import Reference
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.destination import FailoverEndpoint
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import (
    AnyRoute,
    BackendRef,
    GrpcRoute,
    GrpcRule,
    HttpRoute,
    HttpRule,
    StreamRule,
    TcpRoute,
    TlsRoute,
)
from egressproxy.model.published_object import Key

AnyRule = HttpRule | GrpcRule | StreamRule
#: Says which object a reference means.
KeyOf = Callable[[Resource, Reference], Key]


def rule_refs(index: int, rule: AnyRule) -> Iterator[tuple[str, BackendRef]]:
    """The backendRefs of a rule, each with its field; `index` is the rule's, in `spec.rules`."""
    for number, ref in enumerate(rule.backend_refs):
        yield f"spec.rules[{index}].backendRefs[{number}]", ref


def rule_filters(index: int, rule: AnyRule) -> Iterator[tuple[str, Any]]:
    """The filters of a rule and of its backendRefs, each with its field."""
    for place, holder in ((f"spec.rules[{index}]", rule), *rule_refs(index, rule)):
        for number, entry in enumerate(getattr(holder, "filters", ())):
            yield f"{place}.filters[{number}]", entry


def backend_refs(route: Resource) -> Iterator[tuple[str, Reference]]:
    """Every reference of a route to a backend, each with its field: of rules, and of filters that send requests."""
    for index, rule in enumerate(route.spec.rules):  # type: ignore[attr-defined]
        yield from rule_refs(index, rule)
        for field, entry in rule_filters(index, rule):
            if entry.request_mirror is not None:
                yield f"{field}.requestMirror.backendRef", entry.request_mirror.backend_ref
            if getattr(entry, "external_auth", None) is not None:  # a GRPCRoute has none
                yield f"{field}.externalAuth.backendRef", entry.external_auth.backend_ref


def endpoint_refs(backend: Resource | None) -> Iterator[tuple[str, FailoverEndpoint]]:
    """The endpoints of a Backend of type Failover, each with the field of its reference; none of another object."""
    if isinstance(backend, DestinationBackend) and backend.spec.destination.failover is not None:
        for number, endpoint in enumerate(backend.spec.destination.failover.endpoints):
            yield f"spec.destination.failover.endpoints[{number}].backendRef", endpoint


def only_parents(resources: ResourceSet, key_of: KeyOf) -> set[Key]:
    """Backends that others are reached through, and that no route leads to."""
    found = _parents(resources, key_of)
    return found and found - _targets(resources, key_of, HttpRoute, GrpcRoute, TlsRoute, TcpRoute)


def stream_carriers(resources: ResourceSet, key_of: KeyOf) -> set[Key]:
    """What streams of others go through, and no request: parents, and backends of TLSRoutes and TCPRoutes alone.

    The TLS inside is the client's, or that of the backend behind the parent.
    """
    found = _parents(resources, key_of) | _targets(resources, key_of, TlsRoute, TcpRoute)
    return found and found - _targets(resources, key_of, HttpRoute, GrpcRoute)


def _parents(resources: ResourceSet, key_of: KeyOf) -> set[Key]:
    """What Backends and policies name as their parent."""
    sources: tuple[Backend | EgressPolicy, ...] = (*resources.of(Backend), *resources.of(EgressPolicy))
    return {
        key_of(source, ref)
        for source in sources
        if source.spec.parent is not None
        for ref in (source.spec.parent, *source.spec.parent.fallbacks)
    }


def _targets(resources: ResourceSet, key_of: KeyOf, *kinds: type[AnyRoute]) -> set[Key]:
    """What routes of these kinds lead to, by way of Failovers, too."""
    found = {key_of(route, ref) for kind in kinds for route in resources.of(kind) for _, ref in backend_refs(route)}
    for key in tuple(found):
        named = resources.get(*key)
        found |= {key_of(named, each.backend_ref) for _, each in endpoint_refs(named) if named is not None}
    return found
