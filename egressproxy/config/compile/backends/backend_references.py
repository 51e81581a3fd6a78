"""Backends, references to them, and what these come to. Source: Gateway API v1 BackendObjectReference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from egressproxy.config.compile.extensions.ranked_extension import RankedExtension
from egressproxy.config.compile.interface import Reference
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import (
    Backend,
    GatewayBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    WorkingGroupBackend,
    XBackendDestination,
)
from egressproxy.config.resources.destination import FailoverEndpoint
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import Dns, EgressPolicy
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
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.model.published_object import Key

AnyRule = HttpRule | GrpcRule | StreamRule
#: Says which object a reference means.
KeyOf = Callable[[Resource, Reference], Key]
#: Those with a `destination`, which are subclasses of these.
DestinationBackend = Backend | WorkingGroupBackend | XBackendDestination
AnyBackend = DestinationBackend | XBackend
#: Every class of backends beside Services.
BACKEND_KINDS: tuple[type[AnyBackend], ...] = (
    Backend,
    WorkingGroupBackend,
    GatewayXBackendDestination,
    PrototypeBackend,
    XBackendDestination,
    XBackend,
    GatewayBackend,
)
#: (group, kind) of everything that a backendRef may name.
KNOWN_KINDS = frozenset({("", "Service"), *((kind.GROUP, kind.KIND) for kind in BACKEND_KINDS)})
#: Routes may call an XBackendDestination `Backend` (the prototype does), where no Backend of its group has the name.
_CALLED_BACKEND = (XBackendDestination, GatewayXBackendDestination)
_ALIASES = {(kind.GROUP, "Backend"): kind.KIND for kind in _CALLED_BACKEND}


@dataclass(frozen=True, slots=True)
class ResolvedBackend:
    """A backend that can be used. `target` is what policies name to mean it; `port` its number.

    `extensions` are its own. `resolver` is the DNS section of the object, `region` where it stands ("" unknown).
    `parents` are those on the way, the next one first, `fallbacks` those on each other way;
    `parent_by` is the policy that has named them, "" for the backend itself (`is_direct`: which says that it has none),
    and `error` why they cannot be used. `service` is the Service that a destination of that type means.
    """

    spec: BackendIR
    target: Key
    port: int
    extensions: tuple[RankedExtension, ...] = ()
    region: str = ""
    resolver: Dns | None = None
    parents: tuple[ResolvedBackend, ...] = ()
    fallbacks: tuple[tuple[ResolvedBackend, ...], ...] = ()
    service: Key | None = None
    is_direct: bool = False
    parent_by: str = ""
    error: str = ""


#: What a forward proxy reaches where no route matches: the destination that the request names.
ANY_DESTINATION = ResolvedBackend(BackendIR("-", Destination.DYNAMIC), ("", "", "", "-"), 0)


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


def object_key(resources: ResourceSet, ref: Reference, namespace: str) -> Key:
    """The object that a reference means, whether it is there or not; it may be there under its other name."""
    key = (ref.group, ref.kind, namespace, ref.name)
    alias = _ALIASES.get((ref.group, ref.kind))
    if alias is None or resources.get(*key) is not None:
        return key
    other = (ref.group, alias, namespace, ref.name)
    return other if resources.get(*other) is not None else key


def _parents(resources: ResourceSet, key_of: KeyOf) -> set[Key]:
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
