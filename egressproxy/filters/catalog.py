"""The catalogue: filter types by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from egressproxy.filters.base import FilterType, Phase
from egressproxy.filters.builtin import BUILTIN_TYPES
from egressproxy.filters.shared_counters import SharedCounters

__all__ = ["Catalog", "published_names"]

_OURS: Final = "egressproxy.io/"
_PUBLISHED: Final = "gateway.networking.k8s.io/"


def published_names(kind: FilterType) -> tuple[str, ...]:
    """The other names of a built-in type: its kind alone, and in the group of Gateway API. `Python` has none."""
    if kind.runs_code or not kind.name.startswith(_OURS):
        return ()
    name = kind.name.removeprefix(_OURS)
    return (name.partition(":")[0], f"{_PUBLISHED}{name}")


class Catalog:
    """Filter types by name (`domain/Kind:version`).

    Built-in types are also found by their published names, `Kind` and `gateway.networking.k8s.io/Kind:version`, as the
    egress proposals of Kubernetes' AI Gateway working group write them. `counters` are the numbers of limits that
    several processes share; None in a process that serves alone.
    """

    __slots__ = ("_by_any_name", "_types", "counters")

    def __init__(self, types: Iterable[FilterType] = BUILTIN_TYPES, counters: SharedCounters | None = None) -> None:
        self._types = {kind.name: kind for kind in types}
        self._by_any_name = {name: kind for kind in self._types.values() for name in published_names(kind)}
        self._by_any_name.update(self._types)
        self.counters = counters

    def get(self, name: str) -> FilterType | None:
        """The type of this name or published name."""
        return self._by_any_name.get(name)

    def names(self) -> tuple[str, ...]:
        """The full names, sorted."""
        return tuple(sorted(self._types))

    def describe(self) -> dict[str, dict[str, Any]]:
        """By name: `summary`, `phases` in order, `also` (phases in which it runs besides), `published` (its other
        names), `config` (JSON Schema).
        """
        from egressproxy.filters.validation import schema

        return {
            name: {
                "summary": kind.summary,
                "phases": [phase.value for phase in Phase if phase in kind.phases],
                "also": [phase.value for phase in Phase if phase in kind.also],
                "published": list(published_names(kind)),
                "config": schema(kind.config_model),
            }
            for name, kind in sorted(self._types.items())
        }
