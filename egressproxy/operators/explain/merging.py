"""Merging: what the workers of a process show of themselves, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

#: The most groups of denials, and limits, of one answer.
MAX_GROUPS: Final = 200
MAX_LIMITS: Final = 500
#: What a group of denials has in common; without an identity its client, too.
_GROUP: Final = (
    "method", "destination", "gateway", "listener", "namespace", "service_account", "identity", "reason", "rule",
)  # fmt: skip
_SUMMED: Final = ("active", "idle", "waiting", "requests", "failures")
#: States of endpoints (`upstream.endpoint_health`), the worst last.
_STATES: Final = ("not watched", "healthy", "trial", "ejected", "unhealthy")


def grouped(denials: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Denials, or groups of them, by destination and caller; the most frequent first. A group tells of its latest."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for each in denials:
        key = tuple(each[name] for name in _GROUP) + ((each["client"],) if each["identity"] == "-" else ())
        known = found.get(key)
        if known is None:
            found[key] = each
        else:
            latest = each if each["last"] > known["last"] else known
            count, first = known["count"] + each["count"], min(known["first"], each["first"])
            found[key] = {**latest, "count": count, "first": first}
    return sorted(found.values(), key=lambda each: (-each["count"], -each["last"]))[:MAX_GROUPS]


def limits(every: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each limit once by its `key`, since workers share what is counted; the least left first."""
    found = {each["key"]: each for each in every}
    return sorted(found.values(), key=lambda each: each["left"] / each["limit"] if each["limit"] else 0.0)[:MAX_LIMITS]


def backends(workers: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Backends by name; of each worker there may be several parts, the first of which has the destination."""
    found: dict[str, dict[str, Any]] = {}
    hosts: defaultdict[str, defaultdict[str, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))
    for number, part in ((number, part) for number, parts in enumerate(workers) for part in parts):
        name = part["name"]
        known = found.setdefault(name, {**part, **dict.fromkeys(_SUMMED, 0), "limits_reached": []})
        for each in _SUMMED:
            known[each] += part.get(each, 0)
        known["limits_reached"] = sorted({*known["limits_reached"], *part.get("limits_reached", ())})
        for address, state in part.get("hosts", ()):
            hosts[name][address].add((_STATES.index(state), number))
    return [
        {**found[name], "hosts": [_host(address, states) for address, states in hosts[name].items()]}
        for name in sorted(found)
    ]


def _host(address: str, states: set[tuple[int, int]]) -> dict[str, Any]:
    """An endpoint by its worst state; `states` with the workers that say so."""
    state = _STATES[max(states)[0]]
    return {
        "address": address, "healthy": state in _STATES[:2], "ejected": state == "ejected", "state": state,
        "workers": len({worker for _, worker in states}),
    }  # fmt: skip
