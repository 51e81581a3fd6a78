"""GatewayPlan: one Gateway during compilation, with its listeners, ListenerSets and their status.

A refused Gateway and its ListenerSets serve nothing. An accepted Gateway serves its valid
listeners on the addresses that this machine has.
Source: Gateway API v1 Gateway, ListenerSet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.interface import Status
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.gateway import Gateway, ListenerSet
from egressproxy.model.published_object import Key
from egressproxy.model.unix_socket import UNIX_SOCKET, is_unix


@dataclass(slots=True, eq=False)
class SetPlan:
    """A ListenerSet of a Gateway of ours. `refusal` is the reason why it is not served, "" if its listeners decide."""

    listener_set: ListenerSet
    conditions: Conditions
    refusal: str = ""

    def refuse(self, accepted: str, programmed: str, message: str) -> None:
        """Serve no listener of the set; `accepted` and `programmed` are the reasons of both conditions."""
        if not self.refusal:
            self.refusal = message
            self.conditions.set("Accepted", False, accepted, message)
            self.conditions.set("Programmed", False, programmed, message)


@dataclass(slots=True, eq=False)
class GatewayPlan:
    """One Gateway of ours. `addresses` to bind; `problem` is the reason why it is not accepted, "" if it is.

    `unusable` is the reason and message of `Programmed` for an unavailable address. `unassigned` says which entries of
    `spec.addresses` are not reachable as they demand.
    """

    gateway: Gateway
    conditions: Conditions
    addresses: tuple[str, ...] = ()
    listeners: list[ListenerPlan] = field(default_factory=list)
    sets: list[SetPlan] = field(default_factory=list)
    problem: str = ""
    unusable: tuple[str, str] | None = None
    unassigned: tuple[str, ...] = ()

    @property
    def own(self) -> list[ListenerPlan]:
        return self._of(self.gateway)

    def _of(self, owner: Gateway | ListenerSet) -> list[ListenerPlan]:
        return [plan for plan in self.listeners if plan.owner is owner]

    def refuse(self, reason: str, message: str) -> None:
        """Refuse the Gateway with its listeners and ListenerSets."""
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
        """Refuse the Gateway if none of its own listeners can be served."""
        if all(listener.problem for listener in self.own):
            names = "; ".join(f"{listener.listener.name}: {listener.problem}" for listener in self.own)
            self.refuse("ListenersNotValid", f"no listener can be served ({names})")

    def recheck_listeners(self) -> None:
        """Refuse the Gateway after further faults of listeners, other than missing addresses."""
        if self.unusable is None or self.addresses:
            self.refuse_without_listeners()

    def close(self) -> None:
        """State the Gateway's own conditions, once everything about its listeners is known."""
        for plan in self.listeners:
            plan.close()
        if self.problem:
            self.conditions.set("Programmed", False, "Invalid", self.problem)
        else:
            _set_listener_conditions(self.conditions, self.invalid(self.own))
            if self.unusable is not None:
                self.conditions.set("Programmed", False, *self.unusable)
            self._set_assigned()
        for note in _gateway_notes(self.gateway):
            self.conditions.add_note("Accepted", note)
        self._set_references_condition()
        for attached in self.sets:
            if not attached.refusal:
                self._close_set(attached)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The routability of each entry of `spec.addresses`; () where no entry names one."""
        written = [each.routability for each in self.gateway.spec.addresses]
        return tuple(each or "External" for each in written) if any(written) else ()

    def _set_assigned(self) -> None:
        """`AddressesAssigned`, where an entry names its routability (GEP-5093)."""
        if not self.scopes:
            return
        problems = [*self.unassigned, *([self.unusable[1]] if self.unusable is not None and self.addresses else [])]
        if not self.addresses:
            problems = problems or [self.unusable[1] if self.unusable is not None else "no address is left"]
            self.conditions.set("AddressesAssigned", False, "NotAssigned", "; ".join(problems))
        elif problems:
            self.conditions.set("AddressesAssigned", False, "PartiallyAssigned", "; ".join(problems))
        else:
            self.conditions.set("AddressesAssigned", True, "Assigned", "every address is assigned")

    def _shown(self, kind: str, value: str) -> list[dict[str, str]]:
        """The entries of `status.addresses` for an address that is bound. One that stands for an address of the Service
        in front has an entry for each scope that is asked for: the Service's own addresses replace them.
        """
        made = {"type": kind, "value": value}
        if not self.scopes or kind == UNIX_SOCKET:
            return [made]
        written = self.gateway.spec.addresses
        if any(each.ip == value for each in written):
            return [{**made, "routability": "External"}]
        scopes = dict.fromkeys(each.routability or "External" for each in written if not each.value)
        return [{**made, "routability": scope} for scope in scopes if scope in ("External", "Cluster")]

    def _set_references_condition(self) -> None:
        """Set `ResolvedRefs` from the listeners' conditions, unless a reference of the Gateway itself is invalid."""
        if self.conditions.has("ResolvedRefs") and not self.conditions.holds("ResolvedRefs"):
            return
        bad = [plan.listener.name for plan in self.own if not plan.conditions.holds("ResolvedRefs")]
        if bad:
            message = f"these listeners have references that cannot be resolved: {', '.join(bad)}"
            self.conditions.set("ResolvedRefs", False, "ListenersNotResolved", message)
        else:
            self.conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")

    def invalid(self, listeners: Iterable[ListenerPlan]) -> list[str]:
        """The names of listeners that are invalid themselves, regardless of addresses."""
        unusable = self.unusable[1] if self.unusable is not None else ""
        return [plan.listener.name for plan in listeners if plan.problem and plan.problem != unusable]

    def _close_set(self, attached: SetPlan) -> None:
        listeners = self._of(attached.listener_set)
        lost = self.invalid(listeners)
        if len(lost) == len(listeners):
            attached.refuse("ListenersNotValid", "ListenersNotValid", "no listener can be served")
            return
        _set_listener_conditions(attached.conditions, lost)
        if self.unusable is not None and not self.addresses:
            attached.conditions.set("Programmed", False, "ParentNotProgrammed", self.unusable[1])

    def statuses(self) -> dict[Key, Status]:
        """GatewayStatus, and ListenerSetStatus of its sets (Gateway API v1). Call it after `close`."""
        kinds = ((UNIX_SOCKET if is_unix(address) else "IPAddress", address) for address in self.addresses)
        status: Status = {
            "addresses": [each for kind, address in kinds for each in self._shown(kind, address)],
            "conditions": self.conditions.to_list(),
            "listeners": [plan.to_status() for plan in self.own],
            "attachedListenerSets": sum(attached.conditions.holds("Accepted") for attached in self.sets),
        }
        statuses = {self.gateway.key: status}
        for attached in self.sets:
            listeners = [plan.to_status() for plan in self._of(attached.listener_set)]
            conditions = attached.conditions.to_list()
            statuses[attached.listener_set.key] = {"conditions": conditions, "listeners": listeners}
        return statuses


def _set_listener_conditions(conditions: Conditions, lost: list[str]) -> None:
    """Set `Accepted` and `Programmed` of a Gateway or ListenerSet with some served listeners; `lost` are not served."""
    if lost:
        conditions.set("Accepted", True, "ListenersNotValid", f"these listeners are not served: {', '.join(lost)}.")
        conditions.set("Programmed", True, "Programmed", "the other listeners are served")
    else:
        conditions.set("Accepted", True, "Accepted", "every listener is valid.")
        conditions.set("Programmed", True, "Programmed", "every listener is served")


def _gateway_notes(gateway: Gateway) -> Iterator[str]:
    spec = gateway.spec
    if spec.infrastructure is not None and (spec.infrastructure.labels or spec.infrastructure.annotations):
        yield "infrastructure has nothing to be applied to: no objects are created for a Gateway."
    if spec.default_scope != "None":
        yield "defaultScope is not supported: routes have to name this Gateway."
