"""The catalogue of filter types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egressproxy.filters.base import FilterType, Phase
from egressproxy.filters.builtin import BUILTIN_TYPES
from egressproxy.filters.tally import Tally

__all__ = ["Catalog"]


class Catalog:
    """Filter types by name (`domain/Kind:version`).

    `tally` has the numbers of limits where several processes serve.
    """

    __slots__ = ("_types", "tally")

    def __init__(self, types: Iterable[FilterType] = BUILTIN_TYPES, tally: Tally | None = None) -> None:
        self._types = {kind.name: kind for kind in types}
        self.tally = tally

    def get(self, name: str) -> FilterType | None:
        return self._types.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._types))

    def describe(self) -> dict[str, dict[str, Any]]:
        """By name: `summary`, `phases` in order, `also` (phases in which it runs besides), `config` (JSON Schema)."""
        from egressproxy.filters.validation import schema

        return {
            name: {
                "summary": kind.summary,
                "phases": [phase.value for phase in Phase if phase in kind.phases],
                "also": [phase.value for phase in Phase if phase in kind.also],
                "config": schema(kind.config_model),
            }
            for name, kind in sorted(self._types.items())
        }
