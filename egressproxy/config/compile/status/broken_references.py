"""Broken references: what resolved in the configuration in service and does not in the next one, for its Events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.compile.status.conditions import SECTIONS
from egressproxy.model.published_object import Key

#: What else there is, at the end of a clause: it changes with other objects.
_HINT: Final = re.compile(r" \([^()]*\)$")
#: Reasons of Accepted that say that what an object refers to is gone.
_GONE: Final = frozenset({"NoMatchingParent", "TargetNotFound", "InvalidParameters"})


def broken_references(compiled: Compiled, previous: Compiled) -> Iterator[tuple[Key, str]]:
    """The object that refers to something, and a sentence; each sentence of an object once.

    `previous` needs statuses and digests alone. An object that is new breaks nothing, whatever it refers to.
    """
    for key, before in previous.statuses.items():
        status = compiled.statuses.get(key, {})
        if key in compiled.written and status != before:
            is_same = compiled.written.get(key) == previous.written.get(key)
            for sentence in dict.fromkeys(_in_status(status, before, is_same=is_same)):
                yield key, sentence


def _in_status(status: Mapping[str, Any], before: Mapping[str, Any], *, is_same: bool) -> Iterator[str]:
    """`is_same`: the object itself is what it was."""
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
            told = {_HINT.sub("", clause) for clause in was["message"].split("; ")}
            fresh = [clause for clause in message.split("; ") if _HINT.sub("", clause) not in told]
            if fresh:
                yield f"{condition['reason']}: {'; '.join(fresh)}"


def _name(ref: Mapping[str, Any]) -> str:
    namespace = ref.get("namespace")
    return f"{ref.get('kind', 'Gateway')} {f'{namespace}/' if namespace else ''}{ref.get('name', '?')}"
