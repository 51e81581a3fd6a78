"""Gateways: which are ours, what they bind, which ListenerSets they admit, what they say of themselves.

A Gateway that is not accepted serves nothing, and neither do the ListenerSets at it. One that is accepted serves those
of its listeners that are good, on those of its addresses that this machine has.
Source: Gateway API v1 GatewayClass, Gateway, ListenerSet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from egressproxy.config.compile.gateways.addresses import AddressBook
from egressproxy.config.compile.gateways.gateway_tls import state_frontend
from egressproxy.config.compile.gateways.listener_conflicts import find_conflicts
from egressproxy.config.compile.gateways.listeners import ListenerPlan, plan_listener
from egressproxy.config.compile.interface import CONTROLLER, Defaults, Key, Status, age_of
from egressproxy.config.compile.references import Names, Namespaces, References
from egressproxy.config.compile.status import supported_features
from egressproxy.config.compile.status.problems import problem_at
from egressproxy.config.compile.status.status import Conditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.config.resources.gateway import Gateway, GatewayClass, ListenerSet

__all__ = ["BUILTIN_CLASS", "GatewayPlan", "SetPlan", "class_statuses", "plan_gateways", "set_statuses"]

#: The GatewayClass that exists where the configuration holds none.
BUILTIN_CLASS = "egressproxy"
_CLASS_REMEDY = f"add a GatewayClass with controllerName: {CONTROLLER}"


@dataclass(slots=True, eq=False)
class SetPlan:
    """A ListenerSet that names a Gateway of ours. `refusal` is why none of it is served, "" if its listeners decide."""

    listener_set: ListenerSet
    conditions: Conditions
    refusal: str = ""

    def refuse(self, accepted: str, programmed: str, message: str) -> None:
        """Take all of it out of service, with the reasons of both conditions."""
        if not self.refusal:
            self.refusal = message
            self.conditions.set("Accepted", False, accepted, message)
            self.conditions.set("Programmed", False, programmed, message)


@dataclass(slots=True, eq=False)
class GatewayPlan:
    """One Gateway of ours. `addresses` is what it binds; `problem` why it is not accepted, "" if it is.

    `unusable` is the reason and message of `Programmed` where an address that it asks for cannot be had.
    """

    gateway: Gateway
    conditions: Conditions
    addresses: tuple[str, ...] = ()
    listeners: list[ListenerPlan] = field(default_factory=list)
    sets: list[SetPlan] = field(default_factory=list)
    problem: str = ""
    unusable: tuple[str, str] | None = None

    @property
    def own(self) -> list[ListenerPlan]:
        """The listeners of the Gateway itself."""
        return [plan for plan in self.listeners if plan.owner is self.gateway]

    def refuse(self, reason: str, message: str) -> None:
        """Not accept it: nothing of it is served, and nothing that others attach to it."""
        if self.problem:
            return
        self.problem = message
        self.conditions.set("Accepted", False, reason, message)
        of_others = f"{self.gateway} is not accepted: {message}"
        for listener in self.listeners:
            listener.leave_out("Invalid", message if listener.owner is self.gateway else of_others)
        for attached in self.sets:
            attached.refuse("ParentNotAccepted", "ParentNotProgrammed", of_others)

    def refuse_without_listeners(self) -> None:
        """Not accept it where none of its own listeners can be served."""
        if all(listener.problem for listener in self.own):
            names = "; ".join(f"{listener.listener.name}: {listener.problem}" for listener in self.own)
            self.refuse("ListenersNotValid", f"no listener can be served ({names})")

    def judge_again(self) -> None:
        """The same, when more was found to be wrong with its listeners: not where they only have no address."""
        if self.unusable is None or self.addresses:
            self.refuse_without_listeners()

    def close(self) -> None:
        """State the Gateway's own conditions, once everything about its listeners is known."""
        for plan in self.listeners:
            plan.close()
        if self.problem:
            self.conditions.set("Programmed", False, "Invalid", self.problem)
        else:
            _state_listeners(self.conditions, self.invalid(self.own))
            if self.unusable is not None:
                self.conditions.set("Programmed", False, *self.unusable)
        for note in _gateway_notes(self.gateway):
            self.conditions.add_note("Accepted", note)
        self._state_references()
        for attached in self.sets:
            if not attached.refusal:
                self._close_set(attached)

    def _state_references(self) -> None:
        """`ResolvedRefs` sums up those of the listeners, unless a reference of the Gateway's own is bad."""
        if self.conditions.says("ResolvedRefs") and not self.conditions.holds("ResolvedRefs"):
            return
        bad = [plan.listener.name for plan in self.own if not plan.conditions.holds("ResolvedRefs")]
        if bad:
            message = f"these listeners have references that cannot be resolved: {', '.join(bad)}"
            self.conditions.set("ResolvedRefs", False, "ListenersNotResolved", message)
        else:
            self.conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")

    def invalid(self, listeners: Iterable[ListenerPlan]) -> list[str]:
        """The names of those that are not served for what they are, whatever is wrong with the addresses."""
        unusable = self.unusable[1] if self.unusable is not None else ""
        return [plan.listener.name for plan in listeners if plan.problem and plan.problem != unusable]

    def _close_set(self, attached: SetPlan) -> None:
        listeners = [plan for plan in self.listeners if plan.owner is attached.listener_set]
        lost = self.invalid(listeners)
        if len(lost) == len(listeners):
            attached.refuse("ListenersNotValid", "ListenersNotValid", "no listener can be served")
            return
        _state_listeners(attached.conditions, lost)
        if self.unusable is not None and not self.addresses:
            attached.conditions.set("Programmed", False, "ParentNotProgrammed", self.unusable[1])

    def to_status(self) -> Status:
        return {
            "addresses": [{"type": "IPAddress", "value": address} for address in self.addresses],
            "conditions": self.conditions.to_list(),
            "listeners": [plan.to_status() for plan in self.own],
            "attachedListenerSets": sum(attached.conditions.holds("Accepted") for attached in self.sets),
        }


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
        features = [{"name": name} for name in sorted(supported_features.ROUTE_FEATURES)]
        statuses[gateway_class.key] = {"conditions": conditions.to_list(), "supportedFeatures": features}
    return statuses


def plan_gateways(
    resources: ResourceSet,
    references: References,
    namespaces: Namespaces,
    names: Names,
    defaults: Defaults,
    generation: Callable[[Key], int],
) -> tuple[list[GatewayPlan], list[Problem]]:
    """Every Gateway that is ours, oldest first, with its listeners judged but for their routes; and warnings."""
    classes = {c.name: c for c in resources.of(GatewayClass)}
    warnings: list[Problem] = []
    ours = [gateway for gateway in sorted(resources.of(Gateway), key=age_of) if _is_ours(gateway, classes, warnings)]
    sets = _sets_by_gateway(resources, names, warnings)
    asked = {address.ip for gateway in ours for address in gateway.spec.addresses if address.ip}
    book = AddressBook(defaults.bind_addresses, asked)
    plans: list[GatewayPlan] = []
    for gateway in ours:
        number = generation(gateway.key)
        plan = GatewayPlan(gateway, Conditions(number))
        state_frontend(gateway, plan.conditions)
        for listener in gateway.spec.listeners:
            plan.listeners.append(plan_listener(gateway, gateway, listener, references, number))
        _add_listener_sets(plan, sets.get(gateway.key, ()), references, namespaces, generation)
        find_conflicts(plan.listeners)
        _find_refusal(plan, classes.get(gateway.spec.gateway_class_name))
        if not plan.problem:
            _find_addresses(plan, book, defaults)
            _claim_ports(plan, book)
        plans.append(plan)
    return plans, warnings


def of_others(resources: ResourceSet) -> Iterator[Problem]:
    """Gateways whose GatewayClass names another controller. That is how manifests of several are meant to be written,
    and worth a word where no other Gateway is served.
    """
    classes = {c.name: c.spec.controller_name for c in resources.of(GatewayClass)}
    for gateway in resources.of(Gateway):
        name = gateway.spec.gateway_class_name
        controller = classes.get(name, CONTROLLER)
        if controller != CONTROLLER:
            message = f"GatewayClass {name} is of the controller {controller}: the Gateway is not served"
            remedy = f"write controllerName: {CONTROLLER} in it, or another gatewayClassName, if it is meant for us"
            where, code = "spec.gatewayClassName", "GatewayClassOfOthers"
            yield problem_at(gateway, where, message, remedy, severity=Severity.UNSERVED, code=code)


def set_statuses(plan: GatewayPlan) -> dict[Key, Status]:
    """The status of the ListenerSets of a Gateway."""
    statuses: dict[Key, Status] = {}
    for attached in plan.sets:
        owner = attached.listener_set
        listeners: list[dict[str, Any]] = [p.to_status() for p in plan.listeners if p.owner is owner]
        statuses[owner.key] = {"conditions": attached.conditions.to_list(), "listeners": listeners}
    return statuses


def _is_ours(gateway: Gateway, classes: dict[str, GatewayClass], warnings: list[Problem]) -> bool:
    name = gateway.spec.gateway_class_name
    found = classes.get(name)
    if found is not None:
        return found.spec.controller_name == CONTROLLER
    if not classes and name == BUILTIN_CLASS:
        return True
    ours = [c.name for c in classes.values() if c.spec.controller_name == CONTROLLER]
    remedy = f"write {' or '.join(sorted(ours))}" if ours else _CLASS_REMEDY if classes else f"write {BUILTIN_CLASS}"
    message = f"there is no GatewayClass {name}: the Gateway is not served"
    code = "GatewayClassNotFound"
    where = "spec.gatewayClassName"
    warnings.append(problem_at(gateway, where, message, remedy, severity=Severity.UNSERVED, code=code))
    return False


def _find_refusal(plan: GatewayPlan, gateway_class: GatewayClass | None) -> None:
    """Whether the Gateway has to be refused as a whole, whatever its listeners are."""
    spec = plan.gateway.spec
    if gateway_class is not None and gateway_class.spec.parameters_ref is not None:
        plan.refuse("InvalidParameters", f"GatewayClass {gateway_class.name} is not accepted")
    if spec.infrastructure is not None and spec.infrastructure.parameters_ref is not None:
        ref = spec.infrastructure.parameters_ref
        plan.refuse("InvalidParameters", f"infrastructure.parametersRef: no parameters of kind {ref.kind} are known")
    for address in spec.addresses:
        if address.type != "IPAddress":
            message = f"addresses of type {address.type} are not supported: use IPAddress"
            plan.refuse("UnsupportedAddress", message)
    plan.refuse_without_listeners()


def _find_addresses(plan: GatewayPlan, book: AddressBook, defaults: Defaults) -> None:
    """What it binds: as it asks, else as the process was told. What this machine does not have is left out and said."""
    spec = plan.gateway.spec
    found: list[str] = []
    missing: list[str] = []
    for address in spec.addresses:
        why = defaults.why_unusable(address.ip) if address.ip else ""
        if why:
            missing.append(f"{address.ip} ({why})")
        elif address.ip:
            found.append(address.ip)
    if not spec.addresses or not all(address.ip for address in spec.addresses):
        ports = {listener.listener.port for listener in plan.listeners if not listener.problem}
        chosen = book.choose(plan.gateway.full_name, ports)
        found += chosen
        if not chosen:
            message = "every address of --bind has a Gateway on these ports: give a larger network, or spec.addresses"
            plan.unusable = ("AddressNotAssigned", message)
    if missing:
        served = "; it is served on the others" if found else ""
        remedy = "correct spec.addresses, or give this machine the address and reload"
        plan.unusable = ("AddressNotUsable", f"these addresses cannot be bound: {', '.join(missing)}{served}: {remedy}")
    plan.addresses = tuple(dict.fromkeys(found))
    if not found and plan.unusable is not None:
        for listener in plan.listeners:
            listener.leave_out(*plan.unusable)


def _sets_by_gateway(resources: ResourceSet, names: Names, warnings: list[Problem]) -> dict[Key, list[ListenerSet]]:
    """The ListenerSets by the Gateway that they name, oldest first."""
    found: dict[Key, list[ListenerSet]] = {}
    for listener_set in sorted(resources.of(ListenerSet), key=age_of):
        ref = listener_set.spec.parent_ref
        key = (ref.group, ref.kind, ref.namespace or listener_set.namespace, ref.name)
        found.setdefault(key, []).append(listener_set)
        if resources.get(*key) is None:
            message = f"{ref.kind} {key[2]}/{ref.name} does not exist: the ListenerSet is not served"
            remedy = names.remedy(*key, "name it in parentRef")
            code = "ParentNotFound"
            where = "spec.parentRef"
            warnings.append(problem_at(listener_set, where, message, remedy, severity=Severity.UNSERVED, code=code))
    return found


def _add_listener_sets(
    plan: GatewayPlan,
    sets: Iterable[ListenerSet],
    references: References,
    namespaces: Namespaces,
    generation: Callable[[Key], int],
) -> None:
    """Add the listeners of the ListenerSets that the Gateway admits, oldest set first."""
    gateway = plan.gateway
    allowed = gateway.spec.allowed_listeners.namespaces
    for listener_set in sets:
        number = generation(listener_set.key)
        attached = SetPlan(listener_set, Conditions(number))
        plan.sets.append(attached)
        if not namespaces.is_allowed(allowed.from_, allowed.selector, listener_set.namespace, gateway.namespace):
            message = (
                f"{gateway} does not admit ListenerSets of namespace {listener_set.namespace}: see its allowedListeners"
            )
            attached.refuse("NotAllowed", "NotAllowed", message)
            continue
        for listener in listener_set.spec.listeners:
            plan.listeners.append(plan_listener(gateway, listener_set, listener, references, number))


def _claim_ports(plan: GatewayPlan, book: AddressBook) -> None:
    """Two Gateways cannot bind one address and port: the younger one's listener stays closed.

    Nothing is claimed for the sets of a Gateway that has no listener left of its own: it is not accepted.
    """
    for listener in plan.listeners:
        port = listener.listener.port
        for address in plan.addresses:
            holder = book.holder(port, address)
            if holder is not None:
                remedy = "give this Gateway spec.addresses or another port, or the process a network (--bind)"
                listener.refuse(
                    "Accepted", "PortUnavailable", f"port {port} of {address} belongs to Gateway {holder}: {remedy}"
                )
                break
    plan.judge_again()
    for port in {listener.listener.port for listener in plan.listeners if not listener.problem}:
        for address in plan.addresses:
            book.take(port, address, plan.gateway.full_name)


def _state_listeners(conditions: Conditions, lost: list[str]) -> None:
    """`Accepted` and `Programmed` of a Gateway or ListenerSet some of whose listeners are served. `lost` are not."""
    if lost:
        conditions.set("Accepted", True, "ListenersNotValid", f"these listeners are not served: {', '.join(lost)}.")
        conditions.set("Programmed", True, "Programmed", "the other listeners are served")
    else:
        conditions.set("Accepted", True, "Accepted", "every listener is valid.")
        conditions.set("Programmed", True, "Programmed", "every listener is served")


def _gateway_notes(gateway: Gateway) -> list[str]:
    """Fields that are accepted and do nothing."""
    notes = []
    spec = gateway.spec
    if spec.infrastructure is not None and (spec.infrastructure.labels or spec.infrastructure.annotations):
        notes.append("infrastructure has nothing to be applied to: no objects are created for a Gateway.")
    if spec.default_scope != "None":
        notes.append("defaultScope is not supported: routes have to name this Gateway.")
    return notes
