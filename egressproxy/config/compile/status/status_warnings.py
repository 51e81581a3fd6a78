"""Warnings for `check` and the log: settings that are not served as written, and suspicious settings.

The warnings come from status conditions, and from the compiler for objects without status. Only this module decides
about their severity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from egressproxy.config.compile.interface import Compiled, problem_at
from egressproxy.config.compile.status.conditions import KEPT
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import CANNOT_BE_READ, Problem, Severity
from egressproxy.config.resources.meta import Resource

#: Conditions with positive polarity; the others (Conflicted, Overridden, Insecure …) report faults when true.
_GOOD: Final = frozenset(
    {
        "Accepted",
        "AddressesAssigned",
        "Programmed",
        "ResolvedRefs",
        "SupportedVersion",
        "Ready",
        "egressproxy.io/FilterCatalog",
    }
)
#: For information only: requests on the wrong connection get 421.
_INFORMATION: Final = "OverlappingTLSConfig"
#: Conditions about settings that are served as written; all others are about unserved settings.
_SERVED: Final = {
    "Insecure": Severity.WARNING,
    "InsecureFrontendValidationMode": Severity.WARNING,
    "egressproxy.io/Insecure": Severity.WARNING,
    "egressproxy.io/InvalidCertificate": Severity.WARNING,
    KEPT: Severity.WARNING,
    "Overridden": Severity.NOTE,  # overriding a general setting is the normal use of policies
}
#: Reasons of the same class: protocolOptions do not change requests.
_SERVED_REASONS: Final = {"UnsupportedProtocolOptions": Severity.WARNING}
#: The replacement for a Gateway's summary of its listeners.
_PRAISE: Final = "the others are served"
#: The reasons of a Gateway that only summarise its listeners' conditions.
_OF_PARTS: Final = frozenset({"ListenersNotValid", "ListenersNotResolved", "Invalid"})
#: The field at the start of a message, such as those about dropped rules.
_NAMED: Final = re.compile(r"(spec\.[A-Za-z0-9.\[\]]*[A-Za-z0-9\]]): ")

#: The separator between several such fields of a message.
_PLACED: Final = re.compile(r"; (?=spec\.)")

#: The phrases of notes about unserved parts.
_LESS: Final[tuple[str, ...]] = (
    "not supported",
    "does nothing",
    "do nothing",
    "answers 500",
    "answers 403",
    "answered with 500",
    "answered with 403",
    "answered with SERVFAIL",
    "mirrors less",
    "is not attached to another listener",
    "Not everywhere:",
    "only the first rule is served",
    "are not applied to",
    "a name is made up in its place",
    "/ stands in its place",
    "the most that there are",
    "of ports one entry counts",
    "these listeners are not served",
    "does not use an endpoint",
    "tokens by them are refused",
    "its key is refused",
)
#: The phrase of notes about a field without effect, for which no part is missing.
_NO_EFFECT: Final = "has nothing to be applied to"


#: A field of another object that is at fault for all parts.
_OF_ANOTHER: Final = re.compile(r"spec\.[A-Za-z0-9.\[\]]+ of [A-Z][A-Za-z]+ \S+: ")

#: The most parts that one warning names.
_SHOWN_PARTS: Final = 5


class _WarnedPart(NamedTuple):
    """A section of a status: its name for people, its field, its conditions."""

    words: str
    field_path: str
    conditions: list[Mapping[str, Any]]


def all_warnings(resources: ResourceSet, compiled: Compiled) -> list[Problem]:
    """All warnings for `check` and the log, each once. A warning without severity counts as unserved.

    Warnings that are consequences of unreadable resources are left out.
    """
    if resources.broken.has_unknown:
        return []
    warnings = [
        replace(each, severity=Severity.UNSERVED, code="NotServed" if each.code == "Invalid" else each.code)
        if each.severity is Severity.ERROR
        else each
        for each in compiled.warnings
    ]
    unread = {each.object for each in warnings if each.code == CANNOT_BE_READ}
    of_status = (each for each in status_warnings(resources, compiled) if each.object not in unread)
    return resources.broken.others(dict.fromkeys([*warnings, *of_status]))


def warnings_of(resource: Resource, compiled: Compiled) -> list[Problem]:
    """The warnings of one object in `all_warnings`."""
    status = compiled.statuses.get(resource.key, {})
    warned = (each for each in compiled.warnings if each.object == str(resource))
    return list(dict.fromkeys([*warned, *_of_object(resource, status)]))


def status_warnings(resources: ResourceSet, compiled: Compiled) -> Iterator[Problem]:
    """The warnings from all faults in status, by file; equal messages are merged."""
    for resource in resources.objects:
        status = compiled.statuses.get(resource.key)
        if status is not None:
            yield from _of_object(resource, status)


def _of_object(resource: Resource, status: Mapping[str, Any]) -> Iterator[Problem]:
    own_conditions = list(status.get("conditions", ()))
    whole = [condition for condition in own_conditions if not _is_well(condition)]
    parts = [part for part in _parts(resource, status) if part.conditions]
    own = {condition.get("message", "") for condition in whole}
    if any(not own & {condition.get("message", "") for condition in part.conditions} for part in parts):
        own_conditions = [kept for each in own_conditions if (kept := _without_parts(each)) is not None]
        whole = [condition for condition in own_conditions if not _is_well(condition)]
    whole_messages = {condition["message"] for condition in whole if condition.get("message")}
    #: By the named field, else the part unless another object is at fault, and by the text.
    found: dict[tuple[str, str], tuple[list[_WarnedPart], str, Severity, str]] = {}
    for part in (_WarnedPart("", "", whole), *parts):
        seen = set(whole_messages) if part.words else set()
        for condition in part.conditions:
            message = condition.get("message", "")
            if message and message in seen:
                continue
            seen.add(message)
            text = f"{condition['type']} is {condition['status']} ({condition['reason']})"
            if _is_as_wished(condition):
                text, message = "some settings are not served", _without_praise(message)
            severity = _SERVED_REASONS.get(condition["reason"]) or _SERVED.get(condition["type"], Severity.UNSERVED)
            for piece in _PLACED.split(message):
                named = _NAMED.search(piece)
                rest = piece.replace(named[0], "", 1) if named else piece
                sentence = f"{text}{': ' if rest else ''}{rest}"
                path = named[1] if named else ""
                key = (path or ("" if _OF_ANOTHER.search(sentence) else part.words), sentence)
                parts_of, *_ = found.setdefault(key, ([], path, severity, _code(condition, part.conditions)))
                parts_of.append(part)
    for (_, sentence), (parts_of, path, severity, code) in found.items():
        words = _words(parts_of)
        yield problem_at(resource, path or parts_of[0].field_path, f"{words}{sentence}", severity=severity, code=code)
    for condition in own_conditions:
        if _is_well(condition) and _NO_EFFECT in condition.get("message", ""):
            message = _without_praise(condition["message"])
            yield problem_at(resource, "", message, severity=Severity.NOTE, code="NothingToApply")


def _words(parts: Sequence[_WarnedPart]) -> str:
    """The parts as a prefix: "listener a: ", "listeners a, b and 3 more: "; "" for the whole object."""
    kind, _, first = parts[0].words.partition(" ")
    names = list(dict.fromkeys(part.words.partition(" ")[2] for part in parts))
    if len(names) == 1:
        return f"{parts[0].words}: " if first else ""
    more = f" and {len(names) - _SHOWN_PARTS} more" if len(names) > _SHOWN_PARTS else ""
    return f"{kind}s {', '.join(names[:_SHOWN_PARTS])}{more}: "


def _without_parts(condition: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A Gateway's condition without the summary of its listeners; None if empty then."""
    if condition["reason"] not in _OF_PARTS:
        return condition
    _, _, rest = condition.get("message", "").partition(". ")
    return {**condition, "message": f"{_PRAISE}. {rest}"} if rest and _is_as_wished(condition) else None


def _is_well(condition: Mapping[str, Any]) -> bool:
    if condition["type"] == _INFORMATION:
        return True
    return _is_as_wished(condition) and not _says_less(condition.get("message", ""))


def _says_less(message: str) -> bool:
    """Whether a message reports an unserved part, by its phrases."""
    return any(words in message for words in _LESS)


def _without_praise(message: str) -> str:
    """The complaint in a condition that holds, without its positive sentence."""
    praise, _, rest = message.partition(". ")
    return rest if rest and not _says_less(praise) else message


def _is_as_wished(condition: Mapping[str, Any]) -> bool:
    return bool((condition["status"] == "True") == (condition["type"] in _GOOD))


def _code(condition: Mapping[str, Any], siblings: list[Mapping[str, Any]]) -> str:
    """The reason, or a sibling's more specific reason: `Invalid` is too general."""
    if _is_as_wished(condition):
        return "PartlyServed"  # accepted, and the message reports an unserved part
    same = (each for each in siblings if each.get("message") == condition.get("message"))
    return str(next((each["reason"] for each in same if each["reason"] != "Invalid"), condition["reason"]))


def _parts(resource: Resource, status: Mapping[str, Any]) -> Iterator[_WarnedPart]:
    names = [listener.name for listener in getattr(getattr(resource, "spec", None), "listeners", ())]
    for listener in status.get("listeners", ()):
        path = f"spec.listeners[{names.index(listener['name'])}]" if listener["name"] in names else ""
        yield _WarnedPart(f"listener {listener['name']}", path, _unwell(listener))
    for section, key, word, field, attribute in (
        ("parents", "parentRef", "parent", "parentRefs", "parent_refs"),
        ("ancestors", "ancestorRef", "target", "targetRefs", "target_refs"),
    ):
        home = resource.namespace
        refs = [_identity(ref, home) for ref in getattr(getattr(resource, "spec", None), attribute, ())]
        for part in status.get(section, ()):
            ref = part[key]
            namespace = ref.get("namespace") or home
            parent = (ref.get("kind"), ref.get("name"), ref.get("sectionName"), ref.get("port"), namespace)
            path = f"spec.{field}[{refs.index(parent)}]" if parent in refs else ""
            yield _WarnedPart(f"{word} {ref.get('name', '?')}", path, _unwell(part))


def _identity(ref: object, home: str) -> tuple[object, ...]:
    named = (getattr(ref, name, None) for name in ("kind", "name", "section_name", "port"))
    return (*named, getattr(ref, "namespace", None) or home)


def _unwell(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [condition for condition in part.get("conditions", ()) if not _is_well(condition)]
