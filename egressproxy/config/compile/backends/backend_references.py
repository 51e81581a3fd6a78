"""Backends, and references to backends. Source: Gateway API v1 BackendObjectReference."""

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
from egressproxy.config.resources.extension import ProcessorReference
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
#: Returns the key of the object that a reference means.
KeyOf = Callable[[Resource, Reference], Key]
#: The backends with a `destination`, and their subclasses.
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
#: The (group, kind) pairs that a backendRef may name.
KNOWN_KINDS = frozenset({("", "Service"), *((kind.GROUP, kind.KIND) for kind in BACKEND_KINDS)})
#: Routes may refer to these as kind `Backend` (as the prototype does), if no Backend of the group has the name.
_CALLED_BACKEND = (XBackendDestination, GatewayXBackendDestination)
_ALIASES = {(kind.GROUP, "Backend"): kind.KIND for kind in _CALLED_BACKEND}


@dataclass(frozen=True, slots=True)
class ResolvedBackend:
    """A usable backend. `target` is its key in policies; `port` the number.

    `extensions` are its own. `resolver` is the DNS section of the object, `region` its region ("" unknown). `parents`
    are the proxies on the path, the next one first, `fallbacks` those on each fallback path; `parent_by` is the policy
    that names them, "" for the backend itself (`is_direct`: without any), and `error` the reason why they are unusable.
    `service` is the Service of a destination of that type.
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


#: The default backend of a forward proxy: the destination in the request.
ANY_DESTINATION = ResolvedBackend(BackendIR("-", Destination.DYNAMIC), ("", "", "", "-"), 0)


def rule_refs(index: int, rule: AnyRule) -> Iterator[tuple[str, BackendRef]]:
    """The backendRefs of a rule, each with its field; `index` is the rule's, in `spec.rules`."""
    for number, ref in enumerate(rule.backend_refs):
        yield f"spec.rules[{index}].backendRefs[{number}]", ref


def rule_filters(index: int, rule: AnyRule) -> Iterator[tuple[str, Any]]:
    """The filters of a rule and of its backendRefs, each with its field."""
    for path, holder in ((f"spec.rules[{index}]", rule), *rule_refs(index, rule)):
        for number, entry in enumerate(getattr(holder, "filters", ())):
            yield f"{path}.filters[{number}]", entry


def backend_refs(route: Resource) -> Iterator[tuple[str, Reference]]:
    """Every reference of a route to a backend, each with its field: of rules, and of filters that send requests."""
    for index, rule in enumerate(route.spec.rules):  # type: ignore[attr-defined]
        yield from rule_refs(index, rule)
        for field, entry in rule_filters(index, rule):
            if entry.request_mirror is not None:
                yield f"{field}.requestMirror.backendRef", entry.request_mirror.backend_ref
            if getattr(entry, "external_auth", None) is not None:  # absent in a GRPCRoute
                yield f"{field}.externalAuth.backendRef", entry.external_auth.backend_ref
            yield from processor_refs(field, entry)


def processor_refs(field: str, entry: Any) -> Iterator[tuple[str, ProcessorReference]]:
    """The servers of a PayloadProcessing filter at this field, each with its own."""
    for number, processor in enumerate(getattr(entry, "payload_processing", None) or ()):
        for index, ref in enumerate(processor.backend_refs):
            yield f"{field}.payloadProcessing[{number}].backendRefs[{index}]", ref


def endpoint_refs(backend: Resource | None) -> Iterator[tuple[str, FailoverEndpoint]]:
    """The endpoints of a Backend of type Failover, each with the field of its reference; none of another object."""
    if isinstance(backend, DestinationBackend) and backend.spec.destination.failover is not None:
        for number, endpoint in enumerate(backend.spec.destination.failover.endpoints):
            yield f"spec.destination.failover.endpoints[{number}].backendRef", endpoint


def only_parents(resources: ResourceSet, key_of: KeyOf) -> set[Key]:
    """The backends that are parents of others, and not of routes."""
    found = _parents(resources, key_of)
    return found and found - _targets(resources, key_of, HttpRoute, GrpcRoute, TlsRoute, TcpRoute)


def stream_carriers(resources: ResourceSet, key_of: KeyOf) -> set[Key]:
    """The backends that carry only streams: parents, and backends of TLSRoutes and TCPRoutes alone.

    The TLS inside belongs to the client, or to the backend behind the parent.
    """
    found = _parents(resources, key_of) | _targets(resources, key_of, TlsRoute, TcpRoute)
    return found and found - _targets(resources, key_of, HttpRoute, GrpcRoute)


def object_key(resources: ResourceSet, ref: Reference, namespace: str) -> Key:
    """The key of the object that a reference means, existing or not; the object may exist under its alias."""
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
    """The backends of routes of these kinds, including those of Failovers."""
    found = {key_of(route, ref) for kind in kinds for route in resources.of(kind) for _, ref in backend_refs(route)}
    for key in tuple(found):
        named = resources.get(*key)
        found |= {key_of(named, each.backend_ref) for _, each in endpoint_refs(named) if named is not None}
    return found
