"""Status in Kubernetes' form: conditions with reason, message, observedGeneration and transition time.

Other modules set conditions, and this one stores them in the standard form. It also carries over data from the
configuration in service: times, generations, and newly broken references.
Source: Kubernetes API conventions, metav1.Condition; Gateway API RouteStatus, PolicyStatus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from egressproxy.config.compile.interface import CONTROLLER, Compiled, Status
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import CANNOT_BE_READ
from egressproxy.config.resources.meta import Model
from egressproxy.model.published_object import Key

#: The condition type for earlier contents of certificate files that stay in force.
KEPT: Final = "egressproxy.io/LastGoodInForce"
#: The sections of a status with conditions, and the identifying field of their entries.
SECTIONS: Final = {"listeners": "name", "parents": "parentRef", "ancestors": "ancestorRef"}
#: metav1.Condition.message holds at most 32768 characters.
MAX_MESSAGE = 32768
#: A hint at the end of a clause, which depends on other objects.
_HINT: Final = re.compile(r" \([^()]*\)$")
#: Reasons of Accepted for missing referenced objects.
_GONE: Final = frozenset({"NoMatchingParent", "TargetNotFound", "InvalidParameters"})


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
        """State that a condition does not hold; earlier messages of other faults stay, each once."""
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
        """State that a condition holds, or append the sentence to its message."""
        if kind in self._conditions:
            self.add_note(kind, message)
        else:
            self.set(kind, True, reason, message)

    def has(self, kind: str) -> bool:
        return kind in self._conditions

    def holds(self, kind: str) -> bool:
        return self._conditions.get(kind, {}).get("status") == "True"

    def to_list(self) -> list[dict[str, Any]]:
        """`status.conditions`, without times (see `keep_times`)."""
        return [dict(condition) for condition in self._conditions.values()]


class ReferenceConditions:
    """Conditions of each reference, in their order. `section`: `parents` for a route, `ancestors` for a policy."""

    __slots__ = ("_generation", "_parts", "_section")

    def __init__(self, section: str, generation: int) -> None:
        self._section = section
        self._generation = generation
        self._parts: list[tuple[dict[str, Any], Conditions]] = []

    def add(self, reference: Model, **more: str) -> Conditions:
        """Add the conditions of one reference, which status repeats as written, with `more` fields."""
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
    """State at each object and its references why earlier certificates of its files are in force."""
    for key, sentences in kept.items():
        conditions = Conditions(generations.get(key, 1))
        conditions.set(KEPT, True, "FilesNotUsable", "; ".join(sentences))
        status = statuses.get(key, {})
        parts = [part for section in ("parents", "ancestors") for part in status.get(section, ())]
        for part in parts or [status]:
            part["conditions"] = [*part.get("conditions", ()), *conditions.to_list()]


def state_unread(statuses: Mapping[Key, Status], resources: ResourceSet, generations: Mapping[Key, int]) -> None:
    """State the faults of each unreadable object of a cluster, at the object and its references. Other conditions are
    dropped, since they are about our replacement of the object.
    """
    found: dict[str, list[str]] = {}
    for problem in resources.warnings:
        if problem.code == CANNOT_BE_READ:
            found.setdefault(problem.object, []).append(": ".join(filter(None, (problem.field_path, problem.sentence))))
    for resource in resources.objects if found else ():
        sentences, status = found.get(str(resource)), statuses.get(resource.key)
        if sentences and status is not None:
            conditions = Conditions(generations.get(resource.key, 1))
            # Faults first; their consequences name no field.
            faults = sorted(sentences, key=lambda each: not each.startswith("spec"))
            conditions.set("Accepted", False, "Invalid", f"it cannot be read: {'; '.join(faults)}")
            parts = [part for section in ("parents", "ancestors") for part in status.get(section, ())]
            for part in parts or [status]:
                part["conditions"] = conditions.to_list()


def keep_times(statuses: Mapping[Key, Status], previous: Mapping[Key, Status], now: str) -> None:
    """Give conditions lastTransitionTime: `now` (RFC 3339) where the status word has changed (API conventions)."""
    for key, status in statuses.items():
        _keep(status, previous.get(key, {}), now)


def first_seen(resources: ResourceSet, previous: Compiled) -> dict[Key, str]:
    """The creation time of objects without a creationTimestamp: the file's time at the first read."""
    times = (
        (resource.key, previous.created.get(resource.key) or resource.origin.time)
        for resource in resources.objects
        if resource.metadata.creation_timestamp is None
    )
    return {key: time for key, time in times if time}


def generations_of(resources: ResourceSet, previous: Compiled) -> tuple[dict[Key, int], dict[Key, bytes]]:
    """`metadata.generation` of all objects with a spec: as written, else the number of specs seen."""
    generations: dict[Key, int] = {}
    written: dict[Key, bytes] = {}
    for resource in resources.objects:
        spec = getattr(resource, "spec", None)
        if spec is None:
            continue
        key = resource.key
        digest = written[key] = blake2b(resource.model_dump_json(include={"spec"}).encode(), digest_size=16).digest()
        if resource.metadata.generation is not None:
            generations[key] = resource.metadata.generation
        elif key not in previous.written:
            generations[key] = 1
        else:
            generations[key] = previous.generations.get(key, 0) + (previous.written[key] != digest)
    return generations, written


def broken_references(compiled: Compiled, previous: Compiled) -> Iterator[tuple[Key, str]]:
    """The newly broken references: the referring object, and a sentence, each once.

    `previous` needs statuses and digests alone. New objects are not reported.
    """
    for key, before in previous.statuses.items():
        status = compiled.statuses.get(key, {})
        if key in compiled.written and status != before:
            is_same = compiled.written.get(key) == previous.written.get(key)
            for sentence in dict.fromkeys(_in_status(status, before, is_same=is_same)):
                yield key, sentence


def _keep(new: Mapping[str, Any], old: Mapping[str, Any], now: str) -> None:
    before = {c["type"]: c for c in old.get("conditions", ())}
    for condition in new.get("conditions", ()):
        was = before.get(condition["type"], {})
        is_same = was.get("status") == condition["status"]
        condition["lastTransitionTime"] = was["lastTransitionTime"] if is_same else now
    for section, identity in SECTIONS.items():
        for part in new.get(section, ()):
            _keep(part, next((was for was in old.get(section, ()) if was[identity] == part[identity]), {}), now)


def _in_status(status: Mapping[str, Any], before: Mapping[str, Any], *, is_same: bool) -> Iterator[str]:
    """The newly broken references in a status. `is_same`: the object itself is unchanged."""
    yield from _in_conditions(status, before)
    for section, identity in SECTIONS.items():
        parts = status.get(section, ())
        for was in before.get(section, ()):
            part = next((part for part in parts if part[identity] == was[identity]), None)
            if part is not None:
                yield from _in_conditions(part, was)
            elif is_same and section == "parents":
                yield f"NoMatchingParent: {_name(was[identity])} is no Gateway or ListenerSet of ours any more"


def _in_conditions(part: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    known = {condition["type"]: condition for condition in before.get("conditions", ())}
    for condition in part.get("conditions", ()):
        was = known.get(condition["type"])
        if was is None or condition["status"] == "True":
            continue
        is_gone = condition["type"] == "Accepted" and condition["reason"] in _GONE
        message = condition["message"]
        if was["status"] == "True":
            if is_gone or condition["type"] == "ResolvedRefs":
                yield f"{condition['reason']}: {message}"
        elif condition["type"] == "ResolvedRefs":
            known_clauses = {_HINT.sub("", clause) for clause in was["message"].split("; ")}
            fresh = [clause for clause in message.split("; ") if _HINT.sub("", clause) not in known_clauses]
            if fresh:
                yield f"{condition['reason']}: {'; '.join(fresh)}"


def _name(ref: Mapping[str, Any]) -> str:
    namespace = ref.get("namespace")
    return f"{ref.get('kind', 'Gateway')} {f'{namespace}/' if namespace else ''}{ref.get('name', '?')}"
