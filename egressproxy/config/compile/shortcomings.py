"""Shortcomings: every status condition that is not as one would wish, for `check` and the log of `run`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from egressproxy.config.compile import support
from egressproxy.config.compile.contract import Compiled
from egressproxy.config.compile.problems import problem_at
from egressproxy.config.load import ResourceSet
from egressproxy.config.problems import Problem
from egressproxy.config.resources.meta import Resource

__all__ = ["shortcomings"]

#: Conditions that say something is right; the others (Conflicted, Overridden, Insecure …) say that something is not.
_GOOD: Final = frozenset({"Accepted", "Programmed", "ResolvedRefs", "SupportedVersion", "Ready"})
#: Says nothing that anybody has to mend: requests on the wrong connection are answered with 421.
_INFORMATION: Final = "OverlappingTLSConfig"
#: What a Gateway says of its listeners, each of which says it itself.
_OF_PARTS: Final = frozenset({"ListenersNotValid", "ListenersNotResolved", "Invalid"})
#: A field that a message names as the place of what it says, as those do about rules that are dropped.
_NAMED: Final = re.compile(r"(spec\.[A-Za-z0-9.\[\]]*[A-Za-z0-9\]]): ")


class _Part(NamedTuple):
    """A section of a status: words for it, the field that it answers to, its conditions."""

    words: str
    field_path: str
    conditions: list[Mapping[str, Any]]


def shortcomings(resources: ResourceSet, compiled: Compiled) -> Iterator[Problem]:
    """One warning for everything that is not as one would wish, in the order of the files.

    What several conditions say in the same words is said once.
    """
    for resource in resources.objects:
        status = compiled.statuses.get(resource.key)
        if status is not None:
            yield from _of_object(resource, status)


def _of_object(resource: Resource, status: Mapping[str, Any]) -> Iterator[Problem]:
    whole = [condition for condition in status.get("conditions", ()) if not _is_well(condition)]
    parts = [part for part in _parts(resource, status) if part.conditions]
    own = {condition.get("message", "") for condition in whole}
    if any(not own & {condition.get("message", "") for condition in part.conditions} for part in parts):
        whole = [condition for condition in whole if condition["reason"] not in _OF_PARTS]
    said = {condition["message"] for condition in whole if condition.get("message")}
    for part in (_Part("", "", whole), *parts):
        told = set() if part.words == "" else set(said)
        for condition in part.conditions:
            message = condition.get("message", "")
            if message and message in told:
                continue
            told.add(message)
            text = f"{condition['type']} is {condition['status']} ({condition['reason']})"
            words = f"{part.words}: " if part.words else ""
            named = _NAMED.search(message)
            yield problem_at(
                resource, named[1] if named else part.field_path, f"{words}{text}{': ' if message else ''}{message}"
            )


def _is_well(condition: Mapping[str, Any]) -> bool:
    if condition["type"] == _INFORMATION:
        return True
    is_good = (condition["status"] == "True") == (condition["type"] in _GOOD)
    return bool(is_good and not support.says_less(condition.get("message", "")))


def _parts(resource: Resource, status: Mapping[str, Any]) -> Iterator[_Part]:
    """Listeners, parents and ancestors, with the conditions that are not well."""
    names = [listener.name for listener in getattr(getattr(resource, "spec", None), "listeners", ())]
    for listener in status.get("listeners", ()):
        path = f"spec.listeners[{names.index(listener['name'])}]" if listener["name"] in names else ""
        yield _Part(f"listener {listener['name']}", path, _unwell(listener))
    for section, key, word, field, attribute in (
        ("parents", "parentRef", "parent", "parentRefs", "parent_refs"),
        ("ancestors", "ancestorRef", "target", "targetRefs", "target_refs"),
    ):
        refs = [_identity(ref) for ref in getattr(getattr(resource, "spec", None), attribute, ())]
        for part in status.get(section, ()):
            ref = part[key]
            wanted = (ref.get("kind"), ref.get("name"), ref.get("sectionName"), ref.get("port"))
            path = f"spec.{field}[{refs.index(wanted)}]" if wanted in refs else ""
            yield _Part(f"{word} {ref.get('name', '?')}", path, _unwell(part))


def _identity(ref: object) -> tuple[object, ...]:
    return tuple(getattr(ref, name, None) for name in ("kind", "name", "section_name", "port"))


def _unwell(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [condition for condition in part.get("conditions", ()) if not _is_well(condition)]
