"""Gateways: which are ours, what they bind, which ports they take from each other, what they say of themselves.

Source: Gateway API v1 GatewayClass, Gateway, ListenerSet; resources.md section 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from egressproxy.config.compile import support
from egressproxy.config.compile.contract import CONTROLLER, Defaults, Key, Status, age_of
from egressproxy.config.compile.gateway_tls import state_frontend
from egressproxy.config.compile.listeners import ListenerPlan, find_conflicts, plan_listener
from egressproxy.config.compile.problems import problem_at
from egressproxy.config.compile.references import Namespaces, References
from egressproxy.config.compile.status import Conditions
from egressproxy.config.load import ResourceSet
from egressproxy.config.problems import Problem
from egressproxy.config.resources.gateway import Gateway, GatewayClass, ListenerSet

__all__ = ["BUILTIN_CLASS", "GatewayPlan", "class_statuses", "plan_gateways", "set_statuses"]

#: The GatewayClass that exists where the configuration holds none.
BUILTIN_CLASS = "egressproxy"
_CLASS_REMEDY = f"add a GatewayClass with controllerName: {CONTROLLER}"


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
            plan.close(self.problem)
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
) -> tuple[list[GatewayPlan], list[Problem]]:
    """Every Gateway that is ours, oldest first, with its listeners judged but for their routes; and warnings."""
    classes = {c.name: c for c in resources.of(GatewayClass)}
    taken: dict[int, list[tuple[str, str]]] = defaultdict(list)
    plans: list[GatewayPlan] = []
    warnings: list[Problem] = []
    for gateway in sorted(resources.of(Gateway), key=age_of):
        gateway_class = classes.get(gateway.spec.gateway_class_name)
        if gateway_class is None and (classes or gateway.spec.gateway_class_name != BUILTIN_CLASS):
            name = gateway.spec.gateway_class_name
            ours = [c.name for c in classes.values() if c.spec.controller_name == CONTROLLER]
            remedy = (
                f"write {' or '.join(sorted(ours))}" if ours else _CLASS_REMEDY if classes else f"write {BUILTIN_CLASS}"
            )
            message = f"there is no GatewayClass {name}: the Gateway is not served"
            warnings.append(problem_at(gateway, "spec.gatewayClassName", message, remedy))
            continue
        if gateway_class is not None and gateway_class.spec.controller_name != CONTROLLER:
            continue
        plan = _plan_gateway(gateway, references, defaults, generation)
        if gateway_class is not None and gateway_class.spec.parameters_ref is not None:
            plan.problem = f"GatewayClass {gateway_class.name} is not accepted"
            plan.conditions.set("Accepted", False, "InvalidParameters", plan.problem)
        _add_listener_sets(plan, resources, references, namespaces, generation)
        find_conflicts(plan.listeners)
        if not plan.problem:
            _claim_ports(plan, taken)
        plans.append(plan)
    return plans, warnings


def set_statuses(plan: GatewayPlan) -> dict[Key, Status]:
    """The status of the ListenerSets of a Gateway."""
    statuses: dict[Key, Status] = {}
    for listener_set, conditions in plan.sets:
        listeners: list[dict[str, Any]] = [p.to_status() for p in plan.listeners if p.owner is listener_set]
        statuses[listener_set.key] = {"conditions": conditions.to_list(), "listeners": listeners}
    return statuses


def _plan_gateway(
    gateway: Gateway, references: References, defaults: Defaults, generation: Callable[[Key], int]
) -> GatewayPlan:
    number = generation(gateway.key)
    plan = GatewayPlan(gateway, Conditions(number))
    plan.conditions.set("Accepted", True, "Accepted")
    state_frontend(gateway, plan.conditions)
    _find_addresses(plan, defaults)
    for listener in gateway.spec.listeners:
        plan.listeners.append(plan_listener(gateway, gateway, listener, references, number))
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
            plan.listeners.append(plan_listener(gateway, listener_set, listener, references, number))


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
    if spec.infrastructure is not None:
        notes.append("infrastructure does nothing: no objects are created for a Gateway.")
    if spec.default_scope != "None":
        notes.append("defaultScope is not supported: routes have to name this Gateway.")
    return notes
