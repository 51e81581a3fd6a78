"""The columns of every kind: those of the CRDs and of core Kubernetes, then what this gateway adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from egressproxy.config.served_kinds import AGENTIC, GATEWAY, OURS
from egressproxy.kubeapi.kinds import BACKENDS

#: Values of a list that are shown in one cell.
MOST: Final = 3

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """`of` returns the cell; times are RFC 3339, shown as an age with `is_age`."""

    name: str
    of: Callable[[Manifest], str | int]
    description: str
    is_wide: bool = False
    is_age: bool = False
    type: str = "string"


def columns(group: str, kind: str) -> Sequence[Column]:
    """The columns of a kind, in order; of an unknown kind Name and Age."""
    return _COLUMNS.get((group, kind), _PLAIN)


def _at(value: Any, path: str) -> Any:
    """The value at a path such as `spec.type`, or None."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _all_at(value: Any, path: str) -> list[Any]:
    """The values at a path such as `spec.rules.backendRefs`, with lists flattened."""
    found = [value]
    for name in path.split("."):
        inner = [each[name] for each in found if isinstance(each, dict) and each.get(name) is not None]
        found = [item for each in inner for item in (each if isinstance(each, list) else [each])]
    return found


def _text(path: str, default: str = "") -> Callable[[Manifest], str]:
    def cell(manifest: Manifest) -> str:
        value = _at(manifest, path)
        return ("" if value is None else str(value)) or default

    return cell


def _first(*paths: str) -> Callable[[Manifest], str]:
    return lambda manifest: next((str(text) for path in paths if (text := _at(manifest, path))), "")


def _few(values: Iterable[Any]) -> str:
    """ "a,b,c + 2 more..." """
    found = [str(value) for value in dict.fromkeys(values)]
    more = len(found) - MOST
    return ",".join(found[:MOST]) + (f" + {more} more..." if more > 0 else "")


def _each(values: Callable[[Manifest], Iterable[Any]], empty: str = "") -> Callable[[Manifest], str]:
    return lambda manifest: _few(values(manifest)) or empty


def _list(path: str, *names: str, separator: str = "/") -> Callable[[Manifest], str]:
    """Each item that stands at `path`, or those of its fields that it has, as in `gw/http`."""

    def text(item: Any) -> str:
        return separator.join([str(item[name]) for name in names if item.get(name)]) if isinstance(item, dict) else item

    return _each(lambda manifest: map(text, _all_at(manifest, path)))


def _of_condition(manifest: Manifest, type_: str, of: Sequence[str], field: str) -> list[str]:
    """A field of a condition at each place `of` (a route's parents, say); "" where there is none."""
    lists = [_all_at(holder, "conditions") for path in of for holder in _all_at(manifest, path)]
    return [next((str(_at(each, field)) for each in holder if _at(each, "type") == type_), "") for holder in lists]


def _condition(type_: str, *of: str) -> Callable[[Manifest], str]:
    """At each place `of` (a route's parents, say): True or False where they agree, else how many are True."""

    def cell(manifest: Manifest) -> str:
        found = _of_condition(manifest, type_, of or ("status",), "status")
        if len(set(found)) < 2:
            return found[0] if found else ""
        return f"{found.count('True')}/{len(found)}"

    return cell


def _attached(manifest: Manifest) -> int:
    return sum(count for count in _all_at(manifest, "status.listeners.attachedRoutes") if isinstance(count, int))


def _hosts(section: str) -> Callable[[Manifest], str]:
    entries = f"spec.destinations.{section}"
    return _each(
        lambda manifest: (
            host
            for entry in _all_at(manifest, entries)
            for host in _all_at(entry, "hostnames") + _all_at(entry, "cidrs")
        )
    )


def _destination(manifest: Manifest) -> str:
    found = _first(
        "spec.destination.fqdn.hostname",
        "spec.destination.ip.address",
        "spec.destination.service.name",
        "spec.destination.kubernetesService.name",
        "spec.externalHostname.hostname",  # in the shape of XBackend
    )(manifest)
    return found or _few(_all_at(manifest, "spec.destination.failover.endpoints.backendRef.name"))


def _destination_ports(manifest: Manifest) -> Iterator[str]:
    for port in _all_at(manifest, "spec.destination.ports"):
        yield f"{_first('number', 'port')(port)}/{_at(port, 'protocol') or 'HTTP'}"
    if number := _at(manifest, "spec.destination.fqdn.port") or _x_backend_port(manifest):
        yield f"{number}/{_at(manifest, 'spec.protocol') or 'HTTP'}"


def _x_backend_port(manifest: Manifest) -> str:
    """The port in the shape of XBackend: a number, or an object with one."""
    port = _at(manifest, "spec.port")
    return str(port) if isinstance(port, int) else _first("number", "port")(port)


def _service_ports(manifest: Manifest) -> Iterator[str]:
    for port in _all_at(manifest, "spec.ports"):
        yield f"{_at(port, 'port')}/{_at(port, 'protocol') or 'TCP'}"


def _entries(*names: str) -> Callable[[Manifest], int]:
    return lambda manifest: sum(len(_at(manifest, name) or ()) for name in names)


def _selector(manifest: Manifest) -> Iterator[str]:
    return (f"{key}={value}" for key, value in (_at(manifest, "spec.selector") or {}).items())


def _field(name: str, path: str, default: str = "", *, is_wide: bool = False) -> Column:
    return Column(name, _text(path, default), f"{path}.", is_wide)


_wide: Final = partial(Column, is_wide=True)
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
_STREAM_ROUTE: Final = (
    Column("Parents", _list("spec.parentRefs", "name", "sectionName"), "The parents: spec.parentRefs."),
    Column("Accepted", _condition("Accepted", "status.parents"), "The condition Accepted, at all parents."),
    _wide("ResolvedRefs", _condition("ResolvedRefs", "status.parents"), "At all parents."),
    _wide("Backends", _list("spec.rules.backendRefs", "name", "port", separator=":"), "backendRefs of all rules."),
)
_ROUTE: Final = _object_with(Column("Hostnames", _list("spec.hostnames"), "spec.hostnames."), *_STREAM_ROUTE)
_LISTENERS: Final = (
    _wide("Listeners", _list("spec.listeners", "name", "port", separator=":"), "Names and ports of spec.listeners."),
    _wide("Routes", _attached, "Attached routes, summed over the listeners.", type="integer"),
)
_TARGETS: Final = Column(
    "Targets", _list("spec.targetRefs", "kind", "namespace", "name", "sectionName"), "spec.targetRefs."
)
_BY_ANCESTORS: Final = Column(
    "Accepted", _condition("Accepted", "status.ancestors"), "The condition Accepted, at all ancestors."
)
_REASON: Final = Column(
    "Reason",
    _each(lambda manifest: _of_condition(manifest, "Accepted", ("status.ancestors",), "reason")),
    "The reason of the condition Accepted.",
)
#: Of the backends of others: the working group's say it by controller, those of Gateway API by Gateway.
_BY_USERS: Final = ("status.controllers", "status.ancestors")
_OF_USERS: Final = (
    Column("Accepted", _condition("Accepted", *_BY_USERS), "The condition Accepted."),
    _wide("ResolvedRefs", _condition("ResolvedRefs", *_BY_USERS), "The condition ResolvedRefs."),
)


def _backend(*conditions: Column) -> Sequence[Column]:
    return _object_with(
        Column("Type", _first("spec.destination.type", "spec.type"), "spec.destination.type."),
        Column("Destination", _destination, "Where it leads."),
        *conditions,
        _wide("Ports", _each(_destination_ports), "Ports and protocols."),
    )


def _event(times: Sequence[str], about: str, message: str, *wide: Column) -> Sequence[Column]:
    """The columns of Events, whose fields have other names in each group; of `times` the first that is there counts."""
    return (
        Column("Last Seen", _first(*times), "When it last happened.", is_age=True),
        Column("Type", _text("type"), "Normal or Warning."),
        Column("Reason", _text("reason"), "Why, in one word."),
        Column(
            "Object", lambda m: f"{_text(f'{about}.kind')(m).lower()}/{_text(f'{about}.name')(m)}", "What it is about."
        ),
        Column(message, _text(message.lower()), "What happened."),
        *wide,
        _wide("Name", _text("metadata.name"), "Name of the Event."),
    )


_COLUMNS: Final[Mapping[tuple[str, str], Sequence[Column]]] = {
    (GATEWAY, "GatewayClass"): _object_with(
        _field("Controller", "spec.controllerName"),
        _ACCEPTED,
        _field("Description", "spec.description", is_wide=True),
    ),
    (GATEWAY, "Gateway"): _object_with(
        _field("Class", "spec.gatewayClassName"),
        Column("Address", _list("status.addresses.value"), "status.addresses."),
        _PROGRAMMED,
        *_LISTENERS,
    ),
    (GATEWAY, "ListenerSet"): _object_with(
        Column("Parent", _text("spec.parentRef.name"), "The parent Gateway."),
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
        Column("From", _list("spec.from", "namespace", "kind"), "Who may refer."),
        Column("To", _list("spec.to.kind"), "What may be referred to."),
    ),
    ("gateway.networking.x-k8s.io", "XBackend"): _object_with(
        Column("Hostname", _text("spec.externalHostname.hostname"), "The external hostname."),
        Column("Port", _x_backend_port, "Its port."),
        *_OF_USERS,
    ),
    ("gateway.networking.x-k8s.io", "XTelemetryPolicy"): _object_with(_TARGETS, _BY_ANCESTORS, _REASON),
    **dict.fromkeys(BACKENDS, _backend(*_OF_USERS)),
    (OURS, "Backend"): _backend(
        _ACCEPTED,
        Column("ResolvedRefs", _condition("ResolvedRefs"), "The condition ResolvedRefs."),
        Column("Degraded", _condition("Degraded"), "The condition Degraded: an extension cannot run."),
    ),
    (OURS, "EgressPolicy"): _object_with(
        Column("Mode", _text("spec.mode", "Enforce"), "Enforce, Report or Open."),
        _TARGETS,
        _BY_ANCESTORS,
        _REASON,
        Column(
            "Degraded", _condition("Degraded", "status.ancestors"), "The condition Degraded: an extension cannot run."
        ),
        _wide("Allow", _hosts("allow"), "destinations.allow."),
        _wide("Deny", _hosts("deny"), "destinations.deny."),
    ),
    (AGENTIC, "XAccessPolicy"): _object_with(_field("Action", "spec.action"), _TARGETS, _BY_ANCESTORS, _REASON),
    (OURS, "FilterType"): _object_with(
        _field("Type", "spec.type"),
        _ACCEPTED,
        _wide("Phases", _list("spec.phases"), "spec.phases."),
    ),
    **dict.fromkeys(
        ((group, "PayloadProcessingPipeline") for group in (OURS, GATEWAY)),
        _object_with(Column("Processors", _list("spec.processors.name"), "In order."), _ACCEPTED),
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
        _wide("Selector", _each(_selector, "<none>"), "spec.selector."),
    ),
    ("", "Pod"): _object_with(
        _field("Status", "status.phase"),
        Column("Service Account", _text("spec.serviceAccountName", "default"), "Who it is."),
        _field("IP", "status.podIP"),
    ),
    ("discovery.k8s.io", "EndpointSlice"): _object_with(
        _field("AddressType", "addressType"),
        Column("Ports", _list("ports.port"), "ports."),
        Column("Endpoints", _list("endpoints.addresses"), "endpoints."),
    ),
    ("", "Event"): _event(
        ("lastTimestamp", "eventTime"),
        "involvedObject",
        "Message",
        _wide("Count", lambda m: _at(m, "count") or 1, "How often.", type="integer"),
    ),
    ("events.k8s.io", "Event"): _event(
        ("series.lastObservedTime", "deprecatedLastTimestamp", "eventTime"), "regarding", "Note"
    ),
}
