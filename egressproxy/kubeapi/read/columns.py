"""The columns of every kind, as `kubectl get` and `egressproxy get` print them; wide ones only with `-o wide`.

Those of the CRDs of Gateway API and of core Kubernetes first, then what one wants to know beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.kubeapi.kinds import GATEWAY, OURS, PROTOTYPE

__all__ = ["Column", "columns"]

#: Values of a list that are shown in one cell.
MOST: Final = 3

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """`of` gives the cell; times stay in RFC 3339, and are shown as an age where `is_age`."""

    name: str
    of: Callable[[Manifest], str | int]
    description: str
    is_wide: bool = False
    is_age: bool = False
    type: str = "string"


def columns(group: str, kind: str) -> Sequence[Column]:
    """Those of a kind, in the order in which they are printed; of an unknown one Name and Age."""
    return _COLUMNS.get((group, kind), _PLAIN)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _items(value: Any, *path: str) -> list[Any]:
    found = _at(value, *path)
    return found if isinstance(found, list) else []


def _of_each(name: str, value: Any, *path: str) -> Iterator[Any]:
    return (_at(each, name) for each in _items(value, *path))


def _text(path: str, default: str = "") -> Callable[[Manifest], str]:
    """Of the field `spec.type`."""

    def cell(manifest: Manifest) -> str:
        value = _at(manifest, *path.split("."))
        return ("" if value is None else str(value)) or default

    return cell


def _first(*cells: Callable[[Manifest], str]) -> Callable[[Manifest], str]:
    return lambda manifest: next((text for cell in cells if (text := cell(manifest))), "")


def _few(values: Iterable[Any]) -> str:
    """ "a,b,c + 2 more..." """
    found = [str(value) for value in dict.fromkeys(values)]
    more = len(found) - MOST
    return ",".join(found[:MOST]) + (f" + {more} more..." if more > 0 else "")


def _each(values: Callable[[Manifest], Iterable[Any]], empty: str = "") -> Callable[[Manifest], str]:
    return lambda manifest: _few(values(manifest)) or empty


def _condition_of(conditions: Iterable[Any], type_: str) -> str:
    return next((str(_at(each, "status")) for each in conditions if _at(each, "type") == type_), "")


def _condition(type_: str) -> Callable[[Manifest], str]:
    return lambda manifest: _condition_of(_items(manifest, "status", "conditions"), type_)


def _condition_everywhere(type_: str, list_: str) -> Callable[[Manifest], str]:
    """Of a route's parents or a policy's ancestors: True or False where they agree, else how many of them are True."""

    def cell(manifest: Manifest) -> str:
        found = [_condition_of(_items(each, "conditions"), type_) for each in _items(manifest, "status", list_)]
        if len(set(found)) < 2:
            return found[0] if found else ""
        return f"{found.count('True')}/{len(found)}"

    return cell


def _parents(manifest: Manifest) -> Iterator[str]:
    for ref in _items(manifest, "spec", "parentRefs"):
        section = _at(ref, "sectionName")
        yield f"{_at(ref, 'name')}/{section}" if section else str(_at(ref, "name"))


def _backends(manifest: Manifest) -> Iterator[str]:
    for rule in _items(manifest, "spec", "rules"):
        for ref in _items(rule, "backendRefs"):
            port = _at(ref, "port")
            yield f"{_at(ref, 'name')}:{port}" if port else str(_at(ref, "name"))


def _listeners(manifest: Manifest) -> Iterator[str]:
    for listener in _items(manifest, "spec", "listeners"):
        yield f"{_at(listener, 'name')}:{_at(listener, 'port')}"


def _attached(manifest: Manifest) -> int:
    counts = [_at(each, "attachedRoutes") for each in _items(manifest, "status", "listeners")]
    return sum(count for count in counts if isinstance(count, int))


def _targets(manifest: Manifest) -> Iterator[str]:
    for ref in _items(manifest, "spec", "targetRefs"):
        section = _at(ref, "sectionName")
        yield f"{_at(ref, 'kind')}/{_at(ref, 'name')}" + (f"/{section}" if section else "")


def _hosts(manifest: Manifest, section: str) -> Iterator[str]:
    for entry in _items(manifest, "spec", "destinations", section):
        yield from _items(entry, "hostnames")
        yield from _items(entry, "cidrs")


def _destination(manifest: Manifest) -> str:
    destination = _at(manifest, "spec", "destination")
    for path in (("fqdn", "hostname"), ("ip", "address"), ("service", "name"), ("kubernetesService", "name")):
        if value := _at(destination, *path):
            return str(value)
    if value := _at(manifest, "spec", "externalHostname", "hostname"):  # in the shape of XBackend
        return str(value)
    endpoints = _items(destination, "failover", "endpoints")
    return _few(_at(each, "backendRef", "name") for each in endpoints)


def _destination_ports(manifest: Manifest) -> Iterator[str]:
    destination = _at(manifest, "spec", "destination")
    for port in _items(destination, "ports"):
        yield f"{_at(port, 'number') or _at(port, 'port')}/{_at(port, 'protocol') or 'HTTP'}"
    if number := _at(destination, "fqdn", "port") or _x_backend_port(manifest):
        yield f"{number}/{_at(manifest, 'spec', 'protocol') or 'HTTP'}"


def _x_backend_port(manifest: Manifest) -> str:
    """The port in the shape of XBackend: a number, or an object with one."""
    port = _at(manifest, "spec", "port")
    return str(port if isinstance(port, int) else _at(port, "number") or _at(port, "port") or "")


def _service_ports(manifest: Manifest) -> Iterator[str]:
    for port in _items(manifest, "spec", "ports"):
        yield f"{_at(port, 'port')}/{_at(port, 'protocol') or 'TCP'}"


def _endpoint_addresses(manifest: Manifest) -> Iterator[Any]:
    for endpoint in _items(manifest, "endpoints"):
        yield from _items(endpoint, "addresses")


def _entries(*names: str) -> Callable[[Manifest], int]:
    return lambda manifest: sum(len(_at(manifest, name) or ()) for name in names)


def _pairs(mapping: Any) -> Iterator[str]:
    return (f"{key}={value}" for key, value in (mapping or {}).items())


def _field(name: str, path: str, default: str = "", *, is_wide: bool = False) -> Column:
    """What a field says, and nothing else."""
    return Column(name, _text(path, default), f"{path}.", is_wide)


_NAME: Final = Column("Name", _text("metadata.name"), "Name of the object, unique in its namespace.")
_AGE: Final = Column("Age", _text("metadata.creationTimestamp"), "Time since metadata.creationTimestamp.", is_age=True)


def _object_with(*own: Column) -> Sequence[Column]:
    """The name of an object, its `own` columns, its age, and last those of them that are wide, as kubectl has it."""
    narrow = [column for column in own if not column.is_wide]
    wide = [column for column in own if column.is_wide]
    return (_NAME, *narrow, _AGE, *wide)


_PLAIN: Final = _object_with()
_ACCEPTED: Final = Column("Accepted", _condition("Accepted"), "The condition Accepted.")
_PROGRAMMED: Final = Column("Programmed", _condition("Programmed"), "The condition Programmed.")
_RESOLVED: Final = Column("ResolvedRefs", _condition("ResolvedRefs"), "The condition ResolvedRefs.", is_wide=True)
_STREAM_ROUTE: Final = (
    Column("Parents", _each(_parents), "What it attaches to: spec.parentRefs."),
    Column("Accepted", _condition_everywhere("Accepted", "parents"), "The condition Accepted, at all parents."),
    Column("ResolvedRefs", _condition_everywhere("ResolvedRefs", "parents"), "At all parents.", is_wide=True),
    Column("Backends", _each(_backends), "backendRefs of all rules.", is_wide=True),
)
_ROUTE: Final = _object_with(
    Column("Hostnames", _each(lambda m: _items(m, "spec", "hostnames")), "spec.hostnames."), *_STREAM_ROUTE
)
_LISTENERS: Final = (
    Column("Listeners", _each(_listeners), "Names and ports of spec.listeners.", is_wide=True),
    Column("Routes", _attached, "Attached routes, summed over the listeners.", is_wide=True, type="integer"),
)
_TARGETS: Final = Column("Targets", _each(_targets), "spec.targetRefs.")
_BY_ANCESTORS: Final = Column(
    "Accepted", _condition_everywhere("Accepted", "ancestors"), "The condition Accepted, at all ancestors."
)
_BACKEND: Final = _object_with(
    Column("Type", _first(_text("spec.destination.type"), _text("spec.type")), "spec.destination.type."),
    Column("Destination", _destination, "Where it leads."),
    _ACCEPTED,
    Column("Ports", _each(_destination_ports), "Ports and protocols.", is_wide=True),
    _RESOLVED,
)


def _event(times: Sequence[str], about: str, message: str, *wide: Column) -> Sequence[Column]:
    """The two groups that have Events name the same fields otherwise; the first of `times` that an Event has counts."""
    return (
        Column("Last Seen", _first(*map(_text, times)), "When it last happened.", is_age=True),
        Column("Type", _text("type"), "Normal or Warning."),
        Column("Reason", _text("reason"), "Why, in one word."),
        Column(
            "Object", lambda m: f"{_text(f'{about}.kind')(m).lower()}/{_text(f'{about}.name')(m)}", "What it is about."
        ),
        Column(message, _text(message.lower()), "What happened."),
        *wide,
        Column("Name", _text("metadata.name"), "Name of the Event.", is_wide=True),
    )


_COLUMNS: Final[Mapping[tuple[str, str], Sequence[Column]]] = {
    (GATEWAY, "GatewayClass"): _object_with(
        _field("Controller", "spec.controllerName"),
        _ACCEPTED,
        _field("Description", "spec.description", is_wide=True),
    ),
    (GATEWAY, "Gateway"): _object_with(
        _field("Class", "spec.gatewayClassName"),
        Column("Address", _each(lambda m: _of_each("value", m, "status", "addresses")), "status.addresses."),
        _PROGRAMMED,
        *_LISTENERS,
    ),
    (GATEWAY, "ListenerSet"): _object_with(
        Column("Parent", _text("spec.parentRef.name"), "The Gateway that it belongs to."),
        _ACCEPTED,
        _PROGRAMMED,
        *_LISTENERS,
    ),
    (GATEWAY, "HTTPRoute"): _ROUTE,
    (GATEWAY, "GRPCRoute"): _ROUTE,
    (GATEWAY, "TLSRoute"): _ROUTE,
    (GATEWAY, "TCPRoute"): _object_with(*_STREAM_ROUTE),
    (GATEWAY, "BackendTLSPolicy"): _object_with(
        _TARGETS, _field("Hostname", "spec.validation.hostname"), _BY_ANCESTORS
    ),
    (GATEWAY, "ReferenceGrant"): _object_with(
        Column(
            "From",
            _each(lambda m: (f"{_at(e, 'namespace')}/{_at(e, 'kind')}" for e in _items(m, "spec", "from"))),
            "Who may refer.",
        ),
        Column("To", _each(lambda m: _of_each("kind", m, "spec", "to")), "What may be referred to."),
    ),
    ("gateway.networking.x-k8s.io", "XBackend"): _object_with(
        Column("Hostname", _text("spec.externalHostname.hostname"), "The external hostname."),
        Column("Port", _x_backend_port, "Its port."),
        _ACCEPTED,
        _RESOLVED,
    ),
    (GATEWAY, "Backend"): _BACKEND,
    (GATEWAY, "XBackendDestination"): _BACKEND,
    (PROTOTYPE, "Backend"): _BACKEND,
    (PROTOTYPE, "XBackendDestination"): _BACKEND,
    (OURS, "Backend"): _BACKEND,
    (OURS, "EgressPolicy"): _object_with(
        Column("Mode", _text("spec.mode", "Enforce"), "Enforce, Report or Open."),
        _TARGETS,
        _BY_ANCESTORS,
        Column("Allow", _each(lambda m: _hosts(m, "allow")), "destinations.allow.", is_wide=True),
        Column("Deny", _each(lambda m: _hosts(m, "deny")), "destinations.deny.", is_wide=True),
    ),
    (OURS, "PayloadProcessingPipeline"): _object_with(
        Column("Processors", _each(lambda m: _of_each("name", m, "spec", "processors")), "In order."), _ACCEPTED
    ),
    ("", "Namespace"): _object_with(_field("Status", "status.phase")),
    ("", "Secret"): _object_with(
        _field("Type", "type", "Opaque"), Column("Data", _entries("data"), "How many values.", type="integer")
    ),
    ("", "ConfigMap"): _object_with(Column("Data", _entries("data", "binaryData"), "How many values.", type="integer")),
    ("", "Service"): _object_with(
        _field("Type", "spec.type", "ClusterIP"),
        _field("Cluster-IP", "spec.clusterIP", "<none>"),
        Column("Port(s)", _each(_service_ports, "<none>"), "spec.ports."),
        Column(
            "Selector", _each(lambda m: _pairs(_at(m, "spec", "selector")), "<none>"), "spec.selector.", is_wide=True
        ),
    ),
    ("", "Pod"): _object_with(
        _field("Status", "status.phase"),
        Column("Service Account", _text("spec.serviceAccountName", "default"), "Who it is."),
        _field("IP", "status.podIP"),
    ),
    ("discovery.k8s.io", "EndpointSlice"): _object_with(
        _field("AddressType", "addressType"),
        Column("Ports", _each(lambda m: _of_each("port", m, "ports")), "ports."),
        Column("Endpoints", _each(_endpoint_addresses), "endpoints."),
    ),
    ("", "Event"): _event(
        ("lastTimestamp", "eventTime"),
        "involvedObject",
        "Message",
        Column("Count", lambda m: _at(m, "count") or 1, "How often.", is_wide=True, type="integer"),
    ),
    ("events.k8s.io", "Event"): _event(
        ("series.lastObservedTime", "deprecatedLastTimestamp", "eventTime"), "regarding", "Note"
    ),
}
