"""The catalogue of filter types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egressproxy.filters.base import FilterType, Phase
from egressproxy.filters.tally import Tally

__all__ = ["Catalog"]


class Catalog:
    """Filter types by name (`domain/Kind:version`): those given, or the built-in ones, imported with the first use.

    `tally` has the numbers of limits where several processes serve.
    """

    __slots__ = ("_known", "tally")

    def __init__(self, types: Iterable[FilterType] | None = None, tally: Tally | None = None) -> None:
        self._known = None if types is None else {kind.name: kind for kind in types}
        self.tally = tally

    @property
    def is_imported(self) -> bool:
        return self._known is not None

    def get(self, name: str) -> FilterType | None:
        return self._types.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._types))

    @property
    def _types(self) -> dict[str, FilterType]:
        if self._known is None:
            from egressproxy.filters.builtin import BUILTIN_TYPES

            self._known = {kind.name: kind for kind in BUILTIN_TYPES}
        return self._known

    def describe(self) -> dict[str, dict[str, Any]]:
        """By name: `summary`, `phases` in order, `also` (phases in which it runs besides), `config` (JSON Schema)."""
        return {
            name: {
                "summary": kind.summary,
                "phases": [phase.value for phase in Phase if phase in kind.phases],
                "also": [phase.value for phase in Phase if phase in kind.also],
                "config": kind.config_model.model_json_schema(by_alias=True),
            }
            for name, kind in sorted(self._types.items())
        }
