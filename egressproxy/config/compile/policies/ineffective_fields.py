"""Fields of an EgressPolicy without effect, or with less effect than expected, at its targets, for status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from egressproxy.config.compile.backends.backend_references import DestinationBackend, endpoint_refs, object_key
from egressproxy.config.compile.dns_section import dns_notes
from egressproxy.config.compile.interface import Reference
from egressproxy.config.compile.policies.layers import field_path, field_value
from egressproxy.config.compile.policies.resilience import retry_problem
from egressproxy.config.compile.policies.restrictions import CONNECTION_LIMITS
from egressproxy.config.compile.references import References
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.gateway import Gateway
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy, EgressPolicySpec
from egressproxy.config.resources.routes import AnyRoute, GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.ir.policy import SniCheck
from egressproxy.model.published_object import Key

_ROUTES: Final[tuple[type[AnyRoute], ...]] = (HttpRoute, GrpcRoute, TlsRoute, TcpRoute)
_GATEWAYS: Final = ("Gateway", "ListenerSet")
#: What holds before it is known who the client is.
_BEFORE_CLIENTS: Final = (
    *(f"limits.{name}" for name in CONNECTION_LIMITS),
    "traffic.timeouts.request_headers",
    "traffic.http2.extended_connect",
)
#: Fields (attributes below `spec`) that do something on targets of some kinds alone: what to write, and these kinds.
_ELSEWHERE: Final = (
    ("a Gateway", _GATEWAYS, ("identity", "name_server", *_BEFORE_CLIENTS)),
    (
        "a Gateway or a route",
        (*_GATEWAYS, *(kind.KIND for kind in _ROUTES)),
        ("traffic.timeouts.request", "traffic.timeouts.tunnel_idle", "traffic.retries"),
    ),
    # Calls of gRPC are POSTs, which are never sent twice at once, and no half of HTTP/2 ends; tunnels may always.
    ("a Gateway or an HTTPRoute", (*_GATEWAYS, HttpRoute.KIND), ("traffic.hedging", "traffic.half_close")),
)
#: Sections whose effect depends on the backends: see `gateway/backends/endpoints`.
_OF_ENDPOINTS: Final = (
    "traffic.load_balancer",
    "traffic.health_check.passive",
    "traffic.health_check.active",
    "traffic.hedging",
)

#: Protocols of listeners that serve destinations that clients name.
_FORWARD = frozenset(protocol.value for protocol in ListenerProtocol if protocol.is_forward)
#: What these serve without a route: destinations that clients name. A Backend of type Dynamic is it.
_NAMED_BY_CLIENTS = None


def written(spec: EgressPolicySpec, fields: Iterable[str]) -> list[str]:
    """Those of these fields (attributes below `spec`) that the policy has, as manifests write them."""
    return [field_path(field) for field in fields if field_value(spec, field) not in (None, ())]


class Idle(NamedTuple):
    """Fields of a policy that do nothing where it holds, as manifests write them, and the sentence that says so."""

    names: tuple[str, ...]
    sentence: str

    def has(self, setting: str) -> bool:
        """Whether this setting is one of them, or part of one."""
        return any(setting == name or setting.startswith(f"{name}.") for name in self.names)


def nothing_here(names: Sequence[str], why: str) -> Idle:
    """Fields without effect; `why` is for people."""
    return Idle(tuple(names), f"{', '.join(names)} {'do' if len(names) > 1 else 'does'} nothing here: {why}.")


def idle_on_kind(policy: EgressPolicy, target_kind: str) -> Iterator[Idle]:
    """Fields that do nothing on any target of this kind, or with `subjects`."""
    spec = policy.spec
    if spec.subjects and (names := written(spec, (*_BEFORE_CLIENTS, "name_server.queries"))):
        do, they, it = ("do", "they are", "them") if len(names) > 1 else ("does", "it is", "it")
        sentence = (
            f"{', '.join(names)} {do} nothing with subjects, since {they} needed before it is known who the client is: "
            f"write {it} in a policy without subjects."
        )
        yield Idle(tuple(names), sentence)
    for target, kinds, fields in _ELSEWHERE:
        if target_kind not in kinds and (names := written(spec, fields)):
            yield nothing_here(names, f"write {'them' if len(names) > 1 else 'it'} in a policy of {target}")


def notes(policy: EgressPolicy, target_kind: str) -> Iterator[str]:
    """What is accepted and not done as written on a target of this kind, each with what happens instead."""
    spec = policy.spec
    if spec.intercept is not None and target_kind not in _GATEWAYS:
        yield "intercept is for Gateways: the names that it lists are denied here; write it in a policy of a Gateway."
    if spec.dns is not None:
        yield from dns_notes(spec.dns, "dns")
    if spec.destinations is not None and any(entry.sni is SniCheck.ANY for entry in spec.destinations.deny):
        yield "sni of destinations.deny does nothing: it is for entries of allow."
    if spec.destinations is not None and any(entry.message for entry in spec.destinations.allow or ()):
        yield "message of destinations.allow does nothing: it is for entries of deny, and for spec."
    retries = spec.traffic.retries if spec.traffic is not None else None
    if retries is not None and (problem := retry_problem(retries)):
        yield f"traffic.retries: {problem}."
    store = spec.limits.store if spec.limits is not None else None
    if store is not None and store.type == "Memory" and (store.backend_ref or store.secret_ref):
        yield "backendRef and secretRef of limits.store do nothing with type Memory."
    elif store is not None and store.type == "Redis" and written(spec, ("limits.concurrency",)):
        yield "limits.concurrency is counted on each machine, and not in limits.store."


def ineffective_fields(
    policy: EgressPolicy, target: Key, resources: ResourceSet, references: References
) -> Iterator[Idle]:
    """The sections of `traffic` that do nothing for all of the backends that they hold for there."""
    sections = written(policy.spec, _OF_ENDPOINTS)
    backends = list(_backends_at(target, resources, references)) if sections else []
    for section in sections:
        reasons = [_reason(section, backend, policy) for backend in backends]
        if reasons and all(reasons):
            yield nothing_here((section,), reasons[0])


def _reason(section: str, backend: Resource | None, policy: EgressPolicy) -> str:
    """Why the section does nothing for this backend; "" where it does something, or may."""
    if backend is not _NAMED_BY_CLIENTS and not isinstance(backend, DestinationBackend):
        return ""
    kind = backend.spec.destination.type if isinstance(backend, DestinationBackend) else "Dynamic"
    has_parent = policy.spec.parent is not None and kind in ("Fqdn", "Dynamic")
    has_parent = has_parent or (isinstance(backend, Backend) and backend.spec.parent is not None)
    if section == "traffic.hedging":
        return f"{backend or 'everything'} is behind a parent, which hedges for itself" if has_parent else ""
    if kind == "Dynamic":
        return "of a destination that clients name, one endpoint is known, and nothing of its health"
    if section == "traffic.loadBalancer" and kind in ("Fqdn", "Ip"):
        return f"{backend} is one endpoint"
    if section == "traffic.healthCheck.passive" and has_parent:
        return f"{backend} is behind a parent, which may be what fails; healthCheck.active asks through it"
    return ""


def _backends_at(target: Key, resources: ResourceSet, references: References) -> Iterator[Resource | None]:
    """What a policy at this target holds for: the backend, those of the route, or those of all routes of a Gateway."""
    found = resources.named(*target)
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
    parent = (ref.kind, references.namespace_of(route, ref), ref.name)
    return parent == ("Gateway", gateway.namespace, gateway.name) or ref.kind == "ListenerSet"


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
