"""The catalogue of filter types, and the live filters built from specs.

`FilterInstances` belongs to a snapshot. It takes over from the one before what has an equal spec, so that token buckets
and counters survive a reload, and builds the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from pydantic import ValidationError

from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase
from egressproxy.filters.chain import FilterStats, PlacedFilter
from egressproxy.filters.credential_injector import CREDENTIAL_INJECTOR
from egressproxy.filters.header_policy import HEADER_POLICY
from egressproxy.filters.limits import BODY_LIMIT, CONCURRENCY_LIMIT, REQUEST_RATE_LIMIT
from egressproxy.filters.python_filter import PYTHON
from egressproxy.filters.request_redirect import REQUEST_REDIRECT
from egressproxy.filters.settings import faults
from egressproxy.filters.url_rewrite import URL_REWRITE
from egressproxy.spec.policy import ExtensionSpec

__all__ = ["BUILTIN_TYPES", "Catalog", "FilterBuildError", "FilterInstances"]

BUILTIN_TYPES: tuple[FilterType, ...] = (
    BODY_LIMIT, CONCURRENCY_LIMIT, CREDENTIAL_INJECTOR, HEADER_POLICY, PYTHON, REQUEST_RATE_LIMIT, REQUEST_REDIRECT,
    URL_REWRITE,
)  # fmt: skip

_marks = count()


class FilterBuildError(ValueError):
    """A filter cannot be built from its spec. The message names the declaring object, the filter and the reason."""


class Catalog:
    """Filter types by name (`domain/Kind:version`)."""

    __slots__ = ("_types",)

    def __init__(self, types: Iterable[FilterType] = BUILTIN_TYPES) -> None:
        self._types = {kind.name: kind for kind in types}

    def get(self, name: str) -> FilterType | None:
        return self._types.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._types))

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


class FilterInstances:
    """One live filter per equal spec; `previous` is that of the snapshot in service, None at the first start."""

    __slots__ = ("_catalog", "_made", "_previous")

    def __init__(self, catalog: Catalog, previous: FilterInstances | None = None) -> None:
        self._catalog = catalog
        self._made: dict[tuple[ExtensionSpec, str], PlacedFilter] = {}
        self._previous = {} if previous is None else previous._made

    def place(self, spec: ExtensionSpec) -> PlacedFilter:
        """The filter of this spec, built at its first use. Raises FilterBuildError."""
        kind, context = self._context(spec)
        try:
            key = (spec, kind.revision(context))
            placed = self._made.get(key) or self._previous.get(key) or _build(spec, kind, context)
        except (ValueError, OSError) as error:
            raise FilterBuildError(f"{spec.source}: filter {spec.name} ({spec.type}): {error}") from None
        self._made[key] = placed
        return placed

    def blocks(self, spec: ExtensionSpec) -> bool:
        """Whether to build this filter is nothing for the event loop."""
        kind = self._catalog.get(spec.type)
        return kind is not None and kind.blocks

    def get(self, spec: ExtensionSpec) -> Filter:
        return self.place(spec).filter

    def stats(self) -> list[FilterStats]:
        """The counters of every filter, one entry per phase in which it runs."""
        return [stats for placed in self._made.values() for stats in placed.stats.values()]

    def seal(self) -> None:
        """Let go of the instances of the snapshot before; call it when this one is complete."""
        self._previous = {}

    def _context(self, spec: ExtensionSpec) -> tuple[FilterType, FilterContext]:
        where = f"{spec.source}: filter {spec.name}"
        kind = self._catalog.get(spec.type)
        if kind is None:
            raise FilterBuildError(f"{where}: unknown type {spec.type}; known are {', '.join(self._catalog.names())}")
        if spec.phase not in {phase.value for phase in kind.phases}:
            allowed = ", ".join(phase.value for phase in Phase if phase in kind.phases)
            raise FilterBuildError(f"{where}: {spec.type} cannot run in phase {spec.phase}; it can in {allowed}")
        try:
            config = kind.config_model.model_validate_json(spec.config)
        except ValidationError as error:
            raise FilterBuildError(f"{where} ({spec.type}): {faults(error, kind.config_model)}") from None
        context = FilterContext(
            config, dict(spec.secrets), spec.name, spec.scope, spec.source, spec.folder, Phase(spec.phase)
        )  # fmt: skip
        return kind, context


def _build(spec: ExtensionSpec, kind: FilterType, context: FilterContext) -> PlacedFilter:
    made = kind.build(context)
    completes = type(made).complete is not Filter.complete
    return PlacedFilter(spec, kind, made, mark=f"filter {next(_marks)}" if completes else "")
