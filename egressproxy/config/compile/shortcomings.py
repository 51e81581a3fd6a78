"""Shortcomings: every status condition that is not as one would wish, in sentences for `check` and the log of `run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from egressproxy.config.compile.contract import Compiled
from egressproxy.config.load import ResourceSet

__all__ = ["shortcomings"]

#: Conditions that say something is right; the others (Conflicted, Overridden, Insecure …) say that something is not.
_GOOD: Final = frozenset({"Accepted", "Programmed", "ResolvedRefs", "SupportedVersion", "Ready"})
#: What the notes on accepted fields that do nothing say.
NOT_YET: Final = "not supported yet"


def shortcomings(resources: ResourceSet, compiled: Compiled) -> Iterator[str]:
    """One sentence for every condition that is not as one would wish, in the order of the files."""
    for resource in resources.objects:
        status = compiled.statuses.get(resource.key)
        if status is None:
            continue
        for where, condition in _conditions(status):
            is_good = (condition["status"] == "True") == (condition["type"] in _GOOD)
            if is_good and NOT_YET not in condition.get("message", ""):
                continue
            said = f"{condition['type']} is {condition['status']} ({condition['reason']})"
            place = f"{resource.origin}: " if resource.origin.file else ""
            message = f": {condition['message']}" if condition.get("message") else ""
            yield f"{place}{resource}{where}: {said}{message}"


def _conditions(status: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Conditions of the object, its listeners, parents and ancestors; each with words for the place."""
    for condition in status.get("conditions", ()):
        yield "", condition
    for listener in status.get("listeners", ()):
        for condition in listener.get("conditions", ()):
            yield f" listener {listener['name']}", condition
    for section, key, word in (("parents", "parentRef", "parent"), ("ancestors", "ancestorRef", "target")):
        for part in status.get(section, ()):
            for condition in part.get("conditions", ()):
                yield f" {word} {part[key].get('name', '?')}", condition
