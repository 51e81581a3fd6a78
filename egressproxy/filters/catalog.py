"""The catalogue of filter types."""

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
    """The other names of a type of ours: bare, and in the group of Gateway API."""
    if kind.runs_code or not kind.name.startswith(_OURS):
        return ()
    name = kind.name.removeprefix(_OURS)
    return (name.partition(":")[0], f"{_PUBLISHED}{name}")


class Catalog:
    """Filter types by name (`domain/Kind:version`).

    Ours are known by their published names, too: `Kind` alone, and `gateway.networking.k8s.io/Kind:version`, as the
    egress proposals of Kubernetes' AI Gateway working group write them. What runs an operator's code has its own name
    alone.
    `tally` has the numbers of limits where several processes serve.
    """

    __slots__ = ("_by_any_name", "_types", "tally")

    def __init__(self, types: Iterable[FilterType] = BUILTIN_TYPES, tally: SharedCounters | None = None) -> None:
        self._types = {kind.name: kind for kind in types}
        self._by_any_name = {name: kind for kind in self._types.values() for name in published_names(kind)}
        self._by_any_name.update(self._types)
        self.tally = tally

    def get(self, name: str) -> FilterType | None:
        """The type of this name or published name."""
        return self._by_any_name.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._types))

    def describe(self) -> dict[str, dict[str, Any]]:
        """By name: `summary`, `phases` in order, `also` (phases in which it runs besides), `published` (its
        other names), `config` (JSON Schema).
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
