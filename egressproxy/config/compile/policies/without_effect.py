"""Sections of `traffic` that do nothing for any backend that a policy holds for: its status says so.

What a backend has of endpoints depends on its type: see `gateway/backends/endpoints`.
"""

from __future__ import annotations

from collections.abc import Iterator

from egressproxy.config.compile.backends.backend_references import DestinationBackend, endpoint_refs, object_key
from egressproxy.config.compile.interface import Reference
from egressproxy.config.compile.references import References
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.gateway import Gateway
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import AnyRoute, GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.traffic import Traffic
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.model.published_object import Key

_ROUTES: tuple[type[AnyRoute], ...] = (HttpRoute, GrpcRoute, TlsRoute, TcpRoute)

#: Protocols of listeners that serve destinations that clients name.
_FORWARD = frozenset(protocol.value for protocol in ListenerProtocol if protocol.is_forward)
#: What these serve without a route: destinations that clients name. A Backend of type Dynamic is it.
_NAMED_BY_CLIENTS = None


def without_effect(policy: EgressPolicy, target: Key, resources: ResourceSet, references: References) -> Iterator[str]:
    """A sentence for each section of the policy that does nothing for all of the backends that it holds for there."""
    sections = _written(policy.spec.traffic) if policy.spec.traffic is not None else ()
    if not sections:
        return
    backends = list(_backends_at(target, resources, references))
    for section in sections:
        reasons = [_reason(section, backend, policy) for backend in backends]
        if reasons and all(reasons):
            yield f"traffic.{section} does nothing here: {reasons[0]}."


def _written(traffic: Traffic) -> tuple[str, ...]:
    health = traffic.health_check
    written = {
        "loadBalancer": traffic.load_balancer is not None,
        "healthCheck.passive": health is not None and health.passive is not None,
        "healthCheck.active": health is not None and health.active is not None,
        "hedging": traffic.hedging is not None,
    }
    return tuple(name for name, is_written in written.items() if is_written)


def _reason(section: str, backend: Resource | None, policy: EgressPolicy) -> str:
    """Why the section does nothing for this backend; "" where it does something, or may."""
    if backend is not _NAMED_BY_CLIENTS and not isinstance(backend, DestinationBackend):
        return ""
    kind = backend.spec.destination.type if isinstance(backend, DestinationBackend) else "Dynamic"
    has_parent = policy.spec.parent is not None and kind in ("Fqdn", "Dynamic")
    has_parent = has_parent or (isinstance(backend, Backend) and backend.spec.parent is not None)
    if section == "hedging":
        return f"{backend or 'everything'} is behind a parent, which hedges for itself" if has_parent else ""
    if kind == "Dynamic":
        return "of a destination that clients name, one endpoint is known, and nothing of its health"
    if section == "loadBalancer" and kind in ("Fqdn", "Ip"):
        return f"{backend} is one endpoint"
    if section == "healthCheck.passive" and has_parent:
        return (
            f"{backend} is behind a parent, whose failures those of requests may be; healthCheck.active asks through it"
        )
    return ""


def _backends_at(target: Key, resources: ResourceSet, references: References) -> Iterator[Resource | None]:
    """What a policy at this target holds for: the backend, those of the route, or those of all routes of a Gateway."""
    found = resources.get(*target)
    if isinstance(found, Gateway):
        if any(each.protocol in _FORWARD for each in found.spec.listeners):
            yield _NAMED_BY_CLIENTS
        for kind in _ROUTES:
            for route in resources.of(kind):
                if any(_is_parent(ref, route, found, references) for ref in route.spec.parent_refs):
                    yield from _backends_of(route, resources, references)
    elif isinstance(found, HttpRoute | GrpcRoute | TlsRoute | TcpRoute):
        yield from _backends_of(found, resources, references)
    elif found is not None:
        yield from _with_endpoints(found, resources, references)


def _is_parent(ref: Reference, route: AnyRoute, gateway: Gateway, references: References) -> bool:
    place = (ref.kind, references.namespace_of(route, ref), ref.name)
    return place == ("Gateway", gateway.namespace, gateway.name) or ref.kind == "ListenerSet"


def _backends_of(route: AnyRoute, resources: ResourceSet, references: References) -> Iterator[Resource]:
    for rule in route.spec.rules:
        for ref in rule.backend_refs:
            backend = resources.get(*object_key(resources, ref, references.namespace_of(route, ref)))
            if backend is not None:
                yield from _with_endpoints(backend, resources, references)


def _with_endpoints(backend: Resource, resources: ResourceSet, references: References) -> Iterator[Resource]:
    """The backend; of a Failover those of its endpoints."""
    endpoints = [endpoint.backend_ref for _, endpoint in endpoint_refs(backend)]
    if not endpoints:
        yield backend
    for ref in endpoints:
        found = resources.get(*object_key(resources, ref, references.namespace_of(backend, ref)))
        if found is not None:
            yield found
