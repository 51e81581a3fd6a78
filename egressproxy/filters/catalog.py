"""The catalogue: filter types by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egressproxy.filters.base import FilterType, Phase
from egressproxy.filters.builtin import BUILTIN, FULL_NAMES, builtin_type
from egressproxy.filters.shared_counters import SharedCounters

__all__ = ["Catalog"]


class Catalog:
    """Filter types by name (`domain/Kind:version`): the built-in ones, also by their published names, and `others`.

    `counters` are the numbers of limits that several processes share; None in a process that serves alone.
    """

    __slots__ = ("_others", "counters")

    def __init__(self, others: Iterable[FilterType] = (), counters: SharedCounters | None = None) -> None:
        self._others = {kind.name: kind for kind in others}
        self.counters = counters

    def get(self, name: str) -> FilterType | None:
        """The type of this name or published name. A built-in one is imported at its first use."""
        return builtin_type(name) or self._others.get(name)

    def names(self) -> tuple[str, ...]:
        """The full names, sorted."""
        return tuple(sorted((*BUILTIN, *self._others)))

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
                "published": [other for other, full_name in FULL_NAMES.items() if full_name == name != other],
                "config": schema(kind.config_model),
            }
            for name in self.names()
            if (kind := self.get(name)) is not None
        }
