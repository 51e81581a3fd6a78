"""Gateways and their listeners: which are ours, what they bind, which are in each other's way, what may attach.

A listener that cannot do all that was asked of it is not programmed: half a listener (without its client certificates,
say) would let in whom it was told to keep out. Source: Gateway API v1 Gateway, ListenerSet; resources.md section 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from egressproxy.config.compile import support
from egressproxy.config.compile.contract import CONTROLLER, Defaults, Key, Status
from egressproxy.config.compile.references import References, Unresolved
from egressproxy.config.compile.status import Conditions
from egressproxy.config.load import ResourceSet
from egressproxy.config.resources.core import Namespace
from egressproxy.config.resources.gateway import Gateway, GatewayClass, Listener, ListenerSet
from egressproxy.config.resources.meta import GATEWAY_GROUP, LabelSelector, Resource
from egressproxy.spec.gateway import ListenerProtocol, ListenerTlsSpec, TlsMode

__all__ = ["BUILTIN_CLASS", "GatewayPlan", "ListenerPlan", "Namespaces", "age_of", "class_statuses", "plan_gateways"]

#: The GatewayClass that exists where the configuration holds none.
BUILTIN_CLASS = "egressproxy"

_KINDS = {
    ListenerProtocol.HTTP: ("HTTPRoute",),
    ListenerProtocol.HTTPS: ("HTTPRoute",),
    ListenerProtocol.TLS: ("TLSRoute",),
    ListenerProtocol.TCP: ("TCPRoute",),
    ListenerProtocol.FORWARD_PROXY: ("HTTPRoute", "TLSRoute"),
}


class Namespaces:
    """The labels of namespaces; every namespace has `kubernetes.io/metadata.name`, even one that no object declares."""

    __slots__ = ("_labels",)

    def __init__(self, resources: ResourceSet) -> None:
        self._labels = {namespace.name: namespace.metadata.labels for namespace in resources.of(Namespace)}

    def is_allowed(self, origin: str, selector: LabelSelector | None, namespace: str, home: str) -> bool:
        """Whether objects of `namespace` may attach to one in `home` (`from`: All, Selector, Same, None)."""
        match origin:
            case "All":
                return True
            case "Same":
                return namespace == home
            case "Selector":
                labels = {**self._labels.get(namespace, {}), "kubernetes.io/metadata.name": namespace}
                return selector is not None and selector.matches(labels)
        return False


@dataclass(slots=True, eq=False)
class ListenerPlan:
    """One listener on its way into a spec. `owner` is the Gateway, or the ListenerSet that added it.

    `protocol` is None where it is not served. `kinds` may attach; `attached` counts the routes that did.
    `problem` is why it is not programmed, "" if it is.
    """

    gateway: Gateway
    owner: Gateway | ListenerSet
    listener: Listener
    conditions: Conditions
    protocol: ListenerProtocol | None = None
    kinds: tuple[str, ...] = ()
    tls: ListenerTlsSpec | None = None
    attached: int = 0
    problem: str = ""

    @property
    def name(self) -> str:
        """Its name in logs: the section's, with the ListenerSet's in front where one added it."""
        return self.listener.name if self.owner is self.gateway else f"{self.owner.full_name}/{self.listener.name}"

    @property
    def hostname(self) -> str:
        return self.listener.hostname or ""

    def refuse(self, condition: str, reason: str, message: str) -> None:
        """Take it out of service: the condition says why; the first reason stays the one for `Programmed`."""
        self.conditions.set(condition, condition == "Conflicted", reason, message)
        if not self.problem:
            self.problem = message

    def to_status(self) -> Status:
        return {
            "name": self.listener.name,
            "attachedRoutes": self.attached,
            "supportedKinds": [{"group": GATEWAY_GROUP, "kind": kind} for kind in self.kinds],
            "conditions": self.conditions.to_list(),
        }


@dataclass(slots=True, eq=False)
class GatewayPlan:
    """One Gateway of ours. `addresses` is what it binds; empty where it cannot bind at all."""

    gateway: Gateway
    conditions: Conditions
    addresses: tuple[str, ...] = ()
    listeners: list[ListenerPlan] = field(default_factory=list)
    sets: list[tuple[ListenerSet, Conditions]] = field(default_factory=list)
    problem: str = ""

    def close(self) -> None:
        """State the Gateway's own conditions, once everything about its listeners is known."""
        for plan in self.listeners:
            _state_programmed(plan, self.problem)
        own = [plan for plan in self.listeners if plan.owner is self.gateway]
        good = [plan for plan in own if plan.conditions.holds("Programmed")]
        if self.problem:
            self.conditions.set("Programmed", False, "Invalid", self.problem)
            return
        if not good:
            names = "; ".join(f"{plan.listener.name}: {plan.problem}" for plan in own)
            self.conditions.set("Accepted", False, "ListenersNotValid", f"no listener can be served ({names})")
            self.conditions.set("Programmed", False, "Invalid", "no listener can be served")
        elif len(good) < len(own):
            names = ", ".join(plan.listener.name for plan in own if plan not in good)
            self.conditions.set("Accepted", True, "ListenersNotValid", f"these listeners are not served: {names}")
            self.conditions.set("Programmed", True, "Programmed", "the other listeners are served")
        else:
            self.conditions.set("Accepted", True, "Accepted", "the Gateway is served")
            self.conditions.set("Programmed", True, "Programmed", "every listener is served")
        for note in _gateway_notes(self.gateway):
            self.conditions.add_note("Accepted", note)
        for listener_set, conditions in self.sets:
            _close_set(conditions, [plan for plan in self.listeners if plan.owner is listener_set])

    def to_status(self) -> Status:
        own = [plan.to_status() for plan in self.listeners if plan.owner is self.gateway]
        addresses = [{"type": "IPAddress", "value": address} for address in self.addresses]
        status: Status = {"addresses": addresses, "conditions": self.conditions.to_list(), "listeners": own}
        if self.gateway.spec.allowed_listeners.namespaces.from_ != "None":
            status["attachedListenerSets"] = sum(conditions.holds("Accepted") for _, conditions in self.sets)
        return status


def age_of(resource: Resource) -> tuple[str, str]:
    """What to sort by where the older one wins: creationTimestamp, those without one last, then namespace/name."""
    return (resource.metadata.creation_timestamp or "~", resource.full_name)


def class_statuses(resources: ResourceSet, generation: Callable[[Key], int]) -> dict[Key, Status]:
    """The status of every GatewayClass that is ours."""
    statuses: dict[Key, Status] = {}
    for gateway_class in resources.of(GatewayClass):
        if gateway_class.spec.controller_name != CONTROLLER:
            continue
        conditions = Conditions(generation(gateway_class.key))
        if gateway_class.spec.parameters_ref is None:
            conditions.set("Accepted", True, "Accepted", "the class is served")
        else:
            conditions.set("Accepted", False, "InvalidParameters", "parametersRef is not supported: remove it")
        conditions.set("SupportedVersion", True, "SupportedVersion", "")
        features = [{"name": name} for name in sorted(support.ROUTE_FEATURES)]
        statuses[gateway_class.key] = {"conditions": conditions.to_list(), "supportedFeatures": features}
    return statuses


def plan_gateways(
    resources: ResourceSet,
    references: References,
    namespaces: Namespaces,
    defaults: Defaults,
    generation: Callable[[Key], int],
) -> tuple[list[GatewayPlan], list[str]]:
    """Every Gateway that is ours, oldest first, with its listeners judged but for their routes; and warnings."""
    classes = {c.name: c for c in resources.of(GatewayClass)}
    taken: dict[int, list[tuple[str, str]]] = defaultdict(list)
    plans: list[GatewayPlan] = []
    warnings: list[str] = []
    for gateway in sorted(resources.of(Gateway), key=age_of):
        gateway_class = classes.get(gateway.spec.gateway_class_name)
        if gateway_class is None and (classes or gateway.spec.gateway_class_name != BUILTIN_CLASS):
            warnings.append(f"{gateway} is not served: there is no GatewayClass {gateway.spec.gateway_class_name}")
            continue
        if gateway_class is not None and gateway_class.spec.controller_name != CONTROLLER:
            continue
        plan = _plan_gateway(gateway, references, defaults, generation)
        if gateway_class is not None and gateway_class.spec.parameters_ref is not None:
            plan.problem = f"GatewayClass {gateway_class.name} is not accepted"
            plan.conditions.set("Accepted", False, "InvalidParameters", plan.problem)
        _add_listener_sets(plan, resources, references, namespaces, generation)
        _find_conflicts(plan)
        if not plan.problem:
            _claim_ports(plan, taken)
        plans.append(plan)
    return plans, warnings


def _plan_gateway(
    gateway: Gateway, references: References, defaults: Defaults, generation: Callable[[Key], int]
) -> GatewayPlan:
    number = generation(gateway.key)
    plan = GatewayPlan(gateway, Conditions(number))
    plan.conditions.set("Accepted", True, "Accepted")
    _find_addresses(plan, defaults)
    for listener in gateway.spec.listeners:
        plan.listeners.append(_plan_listener(gateway, gateway, listener, references, number))
    return plan


def _find_addresses(plan: GatewayPlan, defaults: Defaults) -> None:
    addresses: list[str] = []
    for address in plan.gateway.spec.addresses:
        if address.type != "IPAddress":
            plan.problem = f"addresses of type {address.type} are not supported: use IPAddress"
            plan.conditions.set("Accepted", False, "UnsupportedAddress", plan.problem)
            return
        if not address.value:
            addresses.extend(defaults.bind_addresses)
            continue
        try:
            addresses.append(str(ip_address(address.value)))
        except ValueError:
            plan.problem = f"address {address.value!r} is not an IP address"
            plan.conditions.set("Accepted", False, "UnsupportedAddress", plan.problem)
            return
    plan.addresses = tuple(dict.fromkeys(addresses or defaults.bind_addresses))


def _plan_listener(
    gateway: Gateway, owner: Gateway | ListenerSet, listener: Listener, references: References, generation: int
) -> ListenerPlan:
    plan = ListenerPlan(gateway, owner, listener, Conditions(generation))
    plan.conditions.set("Accepted", True, "Accepted", "the listener is valid")
    plan.conditions.set("Conflicted", False, "NoConflicts", "")
    plan.conditions.set("ResolvedRefs", True, "ResolvedRefs", "")
    try:
        plan.protocol = ListenerProtocol(listener.protocol)
    except ValueError:
        known = ", ".join(protocol.value for protocol in ListenerProtocol)
        message = f"protocol {listener.protocol} is not supported; supported are {known}"
        plan.refuse("Accepted", "UnsupportedProtocol", message)
        return plan
    if plan.protocol is ListenerProtocol.FORWARD_PROXY and listener.hostname:
        remedy = "say which destinations are allowed in an EgressPolicy"
        plan.refuse("Accepted", "UnsupportedValue", f"a forward-proxy listener has no hostname: {remedy}")
    _find_kinds(plan)
    _find_tls(plan, references)
    return plan


def _find_kinds(plan: ListenerPlan) -> None:
    """Which kinds of routes may attach: those of the protocol, or of those the ones that are listed."""
    assert plan.protocol is not None
    served = _KINDS[plan.protocol]
    mode = plan.listener.tls.mode if plan.listener.tls else None
    if plan.protocol is ListenerProtocol.TLS and mode is TlsMode.TERMINATE:
        served = ("TLSRoute", "TCPRoute")
    wanted = plan.listener.allowed_routes.kinds
    if not wanted:
        plan.kinds = _KINDS[plan.protocol]
        return
    plan.kinds = tuple(dict.fromkeys(ref.kind for ref in wanted if ref.group == GATEWAY_GROUP and ref.kind in served))
    unknown = [ref.kind for ref in wanted if ref.group != GATEWAY_GROUP or ref.kind not in served]
    if unknown:
        message = f"routes of kind {', '.join(unknown)} cannot be served by protocol {plan.listener.protocol}"
        plan.conditions.set("ResolvedRefs", False, "InvalidRouteKinds", message)


def _find_tls(plan: ListenerPlan, references: References) -> None:
    tls = plan.listener.tls
    if tls is None:
        if plan.protocol is ListenerProtocol.HTTPS:
            plan.refuse("ResolvedRefs", "InvalidCertificateRef", "protocol HTTPS needs tls.certificateRefs")
        return
    if tls.mode is TlsMode.PASSTHROUGH:
        if plan.protocol is ListenerProtocol.FORWARD_PROXY:
            plan.refuse("Accepted", "UnsupportedValue", "a forward-proxy listener cannot pass TLS through")
        plan.tls = ListenerTlsSpec(TlsMode.PASSTHROUGH)
        return
    certificates, problems = [], []
    for ref in tls.certificate_refs:
        try:
            certificates.append(references.key_pair(plan.owner, ref))
        except Unresolved as unresolved:
            problems.append(unresolved)
    if problems:
        reason = "RefNotPermitted" if problems[0].reason == "RefNotPermitted" else "InvalidCertificateRef"
        message = "; ".join(problem.message for problem in problems)
        plan.conditions.set("ResolvedRefs", False, reason, message)
    if not certificates:
        message = problems[0].message if problems else "tls.certificateRefs names no certificate"
        plan.refuse(
            "ResolvedRefs",
            "RefNotPermitted" if problems and reason == "RefNotPermitted" else "InvalidCertificateRef",
            message,
        )
    if tls.options:
        plan.conditions.add_note("Accepted", f"tls.options are not supported and do nothing: {', '.join(tls.options)}.")
    plan.tls = ListenerTlsSpec(TlsMode.TERMINATE, tuple(certificates))
    if _client_certificates_wanted(plan) and not support.CLIENT_CERTIFICATES:
        message = (
            "spec.tls.frontend asks for client certificates, which are not supported yet: the listener stays closed"
        )
        plan.refuse("Accepted", "UnsupportedValue", message)


def _client_certificates_wanted(plan: ListenerPlan) -> bool:
    """`spec.tls.frontend`: the entry of the listener's port, else the default."""
    tls = plan.gateway.spec.tls
    if tls is None or tls.frontend is None:
        return False
    for entry in tls.frontend.per_port:
        if entry.port == plan.listener.port:
            return entry.tls.validation is not None
    return tls.frontend.default.validation is not None


def _add_listener_sets(
    plan: GatewayPlan,
    resources: ResourceSet,
    references: References,
    namespaces: Namespaces,
    generation: Callable[[Key], int],
) -> None:
    """Add the listeners of the ListenerSets that the Gateway admits, oldest set first."""
    gateway = plan.gateway
    allowed = gateway.spec.allowed_listeners.namespaces
    for listener_set in sorted(resources.of(ListenerSet), key=age_of):
        ref = listener_set.spec.parent_ref
        home = ref.namespace or listener_set.namespace
        if (ref.group, ref.kind, home, ref.name) != gateway.key:
            continue
        number = generation(listener_set.key)
        conditions = Conditions(number)
        plan.sets.append((listener_set, conditions))
        if not namespaces.is_allowed(allowed.from_, allowed.selector, listener_set.namespace, gateway.namespace):
            message = (
                f"{gateway} does not admit ListenerSets of namespace {listener_set.namespace}: see its allowedListeners"
            )
            conditions.set("Accepted", False, "NotAllowed", message)
            conditions.set("Programmed", False, "NotAllowed", message)
            continue
        conditions.set("Accepted", True, "Accepted")
        for listener in listener_set.spec.listeners:
            plan.listeners.append(_plan_listener(gateway, listener_set, listener, references, number))


def _find_conflicts(plan: GatewayPlan) -> None:
    """Listeners of one port have to be told apart. Among those of one object both lose; else the later object loses."""
    by_port: dict[int, list[ListenerPlan]] = defaultdict(list)
    for listener in plan.listeners:
        if listener.protocol is not None:
            by_port[listener.listener.port].append(listener)
    for listeners in by_port.values():
        if len(listeners) > 1:
            _judge_port(listeners)


def _judge_port(listeners: list[ListenerPlan]) -> None:
    standing: list[ListenerPlan] = []
    owners = dict.fromkeys(id(listener.owner) for listener in listeners)
    for owner in owners:
        group = [listener for listener in listeners if id(listener.owner) == owner]
        lost = [listener for listener in group if _state_conflict(listener, [*standing, *group])]
        standing += [listener for listener in group if listener not in lost]


def _state_conflict(listener: ListenerPlan, others: Iterable[ListenerPlan]) -> bool:
    for other in others:
        if other is listener:
            continue
        if _family(other) != _family(listener):
            message = f"listener {other.name} has protocol {other.listener.protocol} on the same port"
            listener.refuse("Conflicted", "ProtocolConflict", message)
            listener.conditions.set("Accepted", False, "ProtocolConflict", message)
            return True
        if other.hostname == listener.hostname:
            message = f"listener {other.name} has the same port and hostname"
            listener.refuse("Conflicted", "HostnameConflict", message)
            listener.conditions.set("Accepted", False, "HostnameConflict", message)
            return True
    return False


def _family(plan: ListenerPlan) -> str:
    """Protocols of one family may share a port, told apart by hostname (SNI or Host)."""
    if plan.protocol is ListenerProtocol.FORWARD_PROXY and plan.listener.tls is not None:
        return "forward-proxy over TLS"
    return plan.listener.protocol


def _claim_ports(plan: GatewayPlan, taken: dict[int, list[tuple[str, str]]]) -> None:
    """Two Gateways cannot bind one address and port: the younger one's listener stays closed."""
    claims: list[tuple[int, str]] = []
    for listener in plan.listeners:
        port = listener.listener.port
        for address in plan.addresses:
            holder = next((name for other, name in taken[port] if _overlap(address, other)), None)
            if holder is not None:
                message = f"port {port} of {address} belongs to Gateway {holder}"
                listener.refuse("Accepted", "PortUnavailable", message)
            elif not listener.problem:
                claims.append((port, address))
    for port, address in claims:
        taken[port].append((address, plan.gateway.full_name))


def _overlap(first: str, second: str) -> bool:
    a, b = ip_address(first), ip_address(second)
    return a == b or (a.version == b.version and (a.is_unspecified or b.is_unspecified))


def _state_programmed(plan: ListenerPlan, gateway_problem: str) -> None:
    problem = gateway_problem or plan.problem
    if problem:
        plan.conditions.set("Programmed", False, "Invalid", problem)
    else:
        plan.conditions.set("Programmed", True, "Programmed", "the listener is served")


def _close_set(conditions: Conditions, listeners: list[ListenerPlan]) -> None:
    if not conditions.holds("Accepted"):
        return
    good = [listener for listener in listeners if listener.conditions.holds("Programmed")]
    if not good:
        conditions.set("Accepted", False, "ListenersNotValid", "no listener can be served")
        conditions.set("Programmed", False, "Invalid", "no listener can be served")
    else:
        conditions.set("Accepted", True, "Accepted" if len(good) == len(listeners) else "ListenersNotValid")
        conditions.set("Programmed", True, "Programmed")


def _gateway_notes(gateway: Gateway) -> list[str]:
    """Fields that are accepted and do nothing."""
    notes = []
    spec = gateway.spec
    if spec.tls is not None and spec.tls.backend is not None and spec.tls.backend.client_certificate_ref is not None:
        notes.append("tls.backend.clientCertificateRef is not supported: backends are reached without it.")
    if spec.infrastructure is not None:
        notes.append("infrastructure does nothing: no objects are created for a Gateway.")
    if spec.default_scope != "None":
        notes.append("defaultScope is not supported: routes have to name this Gateway.")
    return notes


def set_statuses(plan: GatewayPlan) -> dict[Key, Status]:
    """The status of the ListenerSets of a Gateway."""
    statuses: dict[Key, Status] = {}
    for listener_set, conditions in plan.sets:
        listeners: list[dict[str, Any]] = [p.to_status() for p in plan.listeners if p.owner is listener_set]
        statuses[listener_set.key] = {"conditions": conditions.to_list(), "listeners": listeners}
    return statuses
