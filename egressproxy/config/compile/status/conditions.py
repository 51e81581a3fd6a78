"""Status as Kubernetes shapes it: conditions with reason, message, observedGeneration and the time of their change.

This module decides nothing: the others set conditions, and it keeps them in the standard form.
Source: Kubernetes API conventions, metav1.Condition; Gateway API RouteStatus, PolicyStatus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from egressproxy.config.compile.interface import CONTROLLER, Status
from egressproxy.config.resources.meta import Model
from egressproxy.model.published_object import Key

#: What files with certificates held before is in force, since they cannot be used now.
KEPT: Final = "egressproxy.io/LastGoodInForce"

#: The parts of a status that have conditions of their own, and the field that identifies each.
SECTIONS: Final = {"listeners": "name", "parents": "parentRef", "ancestors": "ancestorRef"}

#: metav1.Condition.message holds at most 32768 characters.
MAX_MESSAGE = 32768


class Conditions:
    """The conditions of one object at one place, in the order in which they were first set."""

    __slots__ = ("_conditions", "_generation")

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._conditions: dict[str, dict[str, Any]] = {}

    def set(self, kind: str, holds: bool, reason: str, message: str = "") -> None:
        """State a condition, or state it again. `reason` is one CamelCase word, `message` a sentence for people."""
        self._conditions[kind] = {
            "type": kind,
            "status": "True" if holds else "False",
            "observedGeneration": self._generation,
            "reason": reason,
            "message": message[:MAX_MESSAGE],
        }

    def fail(self, kind: str, reason: str, message: str) -> None:
        """State that a condition does not hold; what it says already of other faults is kept, each once."""
        before = self._conditions.get(kind)
        if before is None or before["status"] == "True":
            self.set(kind, False, reason, message)
        elif message not in before["message"]:
            before["message"] = f"{before['message']}; {message}"[:MAX_MESSAGE]

    def add_note(self, kind: str, message: str) -> None:
        """Append a sentence to the message of a condition that was set."""
        condition = self._conditions[kind]
        before = condition["message"]
        end = "." if before and not before.endswith((".", ":")) else ""
        joined = f"{before}{end} {message}".strip()
        condition["message"] = joined[:MAX_MESSAGE]

    def report(self, kind: str, reason: str, message: str) -> None:
        """State that a condition holds; where it was set, add the sentence to what it says."""
        if kind in self._conditions:
            self.add_note(kind, message)
        else:
            self.set(kind, True, reason, message)

    def says(self, kind: str) -> bool:
        """Whether the condition was set."""
        return kind in self._conditions

    def holds(self, kind: str) -> bool:
        """Whether the condition was set and is true."""
        return self._conditions.get(kind, {}).get("status") == "True"

    def to_list(self) -> list[dict[str, Any]]:
        """`status.conditions`, without times (see `keep_times`)."""
        return [dict(condition) for condition in self._conditions.values()]

    def __repr__(self) -> str:
        stated = ", ".join(f"{kind}={c['status']}/{c['reason']}" for kind, c in self._conditions.items())
        return f"Conditions({stated})"


class ReferenceConditions:
    """Conditions for each reference of an object, in the order in which they were added.

    `section` is `parents` for a route, `ancestors` for a policy.
    """

    __slots__ = ("_generation", "_parts", "_section")

    def __init__(self, section: str, generation: int) -> None:
        self._section = section
        self._generation = generation
        self._parts: list[tuple[dict[str, Any], Conditions]] = []

    def add(self, reference: Model, **more: str) -> Conditions:
        """Open the conditions of one reference, which status repeats as it was written, with `more` fields."""
        written = reference.model_dump(mode="json", by_alias=True, exclude_none=True)
        conditions = Conditions(self._generation)
        self._parts.append(({**written, **more}, conditions))
        return conditions

    def to_status(self) -> Status:
        """The `status` of the object (Gateway API v1 RouteStatus, PolicyStatus)."""
        parts = [
            {SECTIONS[self._section]: reference, "controllerName": CONTROLLER, "conditions": conditions.to_list()}
            for reference, conditions in self._parts
        ]
        return {self._section: parts}


def state_kept(
    statuses: Mapping[Key, Status], kept: Mapping[Key, Iterable[str]], generations: Mapping[Key, int]
) -> None:
    """State at each object, and at each of its references, why certificates that its files held before are in force."""
    for key, sentences in kept.items():
        conditions = Conditions(generations.get(key, 1))
        conditions.set(KEPT, True, "FilesNotUsable", "; ".join(sentences))
        status = statuses.get(key, {})
        parts = [part for section in ("parents", "ancestors") for part in status.get(section, ())]
        for part in parts or [status]:
            part["conditions"] = [*part.get("conditions", ()), *conditions.to_list()]


def keep_times(statuses: Mapping[Key, Status], previous: Mapping[Key, Status], now: str) -> None:
    """Give every condition its lastTransitionTime: the old one where the status word did not change, else `now`.

    `now` is RFC 3339 text. Source: Kubernetes API conventions, lastTransitionTime.
    """
    for key, status in statuses.items():
        _keep(status, previous.get(key, {}), now)


def _keep(new: Mapping[str, Any], old: Mapping[str, Any], now: str) -> None:
    before = {c["type"]: c for c in old.get("conditions", ())}
    for condition in new.get("conditions", ()):
        was = before.get(condition["type"], {})
        is_same = was.get("status") == condition["status"]
        condition["lastTransitionTime"] = was["lastTransitionTime"] if is_same else now
    for section, identity in SECTIONS.items():
        for part in new.get(section, ()):
            _keep(part, next((was for was in old.get(section, ()) if was[identity] == part[identity]), {}), now)
