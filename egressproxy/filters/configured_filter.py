"""ConfiguredFilter: a filter with its IR and counters; and the order of filters in a chain.

`check` needs only this part of a chain. It runs no filter, so this module imports no event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from egressproxy.filters.base import Filter, Phase, overrides
from egressproxy.filters.error_budget import ErrorBudget
from egressproxy.filters.filter_trace import MeasuredStep, Sampled
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR
from egressproxy.model.exchange import StateSlot
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterStats
from egressproxy.telemetry.filter_meter import FilterMeter

if TYPE_CHECKING:
    from egressproxy.filters.block_watch import BlockWatch


@dataclass(frozen=True, slots=True, eq=False)
class ConfiguredFilter:
    """A filter and its IR. `stats`: by phase. `mark`: set after a run, for `complete`; None without that method.
    `watch`: of a filter that is not ours.
    """

    spec: ExtensionIR
    filter: Filter
    also: frozenset[Phase] = frozenset()
    stats: dict[Phase, FilterStats] = field(default_factory=dict)
    mark: StateSlot[bool] | None = None
    notices: EventAggregator | None = None
    meter: FilterMeter | None = None
    budget: ErrorBudget | None = None
    watch: BlockWatch | None = None
    steps: WeakSet[MeasuredStep] = field(default_factory=WeakSet)

    def phases(self) -> frozenset[Phase]:
        """The phases in which the filter runs: the declared one and its type's `also`, if the filter has the method."""
        phases = {Phase(self.spec.phase)} | self.also
        if self.filter.runs_in is not None:
            phases &= self.filter.runs_in
        return frozenset(phase for phase in phases if overrides(type(self.filter), phase))

    def close(self) -> None:
        try:
            self.filter.close()
        except BaseException as error:
            self.stats_in(Phase(self.spec.phase)).fail(type(error).__name__, is_open=True)
        if self.meter is not None:
            self.meter.close()

    def sample(self) -> None:
        """Measure the next few calls in the active steps."""
        for step in self.steps:
            if step.call is step.own and step.stats.runs != step.stats.sampled:
                step.stats.sampled = step.stats.runs
                step.call = Sampled(step)

    def stats_in(self, phase: Phase) -> FilterStats:
        """The counters of this phase."""
        if phase not in self.stats:
            spec = self.spec
            self.stats[phase] = FilterStats(spec.name, spec.type, phase.value, spec.scope, spec.source, self.notices)
        return self.stats[phase]


class MisplacedFilter(ValueError):
    """A filter cannot run at its position in the chain. The message names the declaring object, the filter and why."""

    def __init__(self, spec: ExtensionIR, why: str) -> None:
        super().__init__(f"{spec.source}: filter {spec.name} ({spec.type}): {why}")
        self.spec = spec


class BackendWatches(Protocol):
    """The gateway's own filter before those of a backend. `specs` are the filters with placeholders."""

    specs: frozenset[ExtensionIR]

    def on(self, extensions: Iterable[ExtensionIR], /) -> ConfiguredFilter | None:
        """The watch for a backend with these filters, or None."""

    def on_bodies(self) -> ConfiguredFilter | None:
        """The watch for the bodies of all requests, or None."""


def in_order(specs: Iterable[ExtensionIR]) -> list[ExtensionIR]:
    """The specs in the order of a chain (see `chain`)."""
    return sorted(specs, key=lambda spec: (spec.turn, not spec.pre_auth, spec.priority, spec.level))


def placed_filters(
    ordered: Iterable[ExtensionIR], make: Callable[[ExtensionIR], ConfiguredFilter]
) -> tuple[list[ConfiguredFilter], bool]:
    """The filters of these specs, each after `at_place`; and whether `at_place` bound one of them to this place.
    Raises the errors of `make`, and MisplacedFilter.
    """
    filters = [make(spec) for spec in ordered]
    is_of_one_place = False
    for index, placed in enumerate(filters):
        if type(placed.filter).at_place is not Filter.at_place:
            # A Backend's filters run after the rule's on a request, and before them on a response.
            behind = [each for each in filters[index + 1 :] if each.spec.level < BACKEND_LEVEL]
            filters[index] = _at_place(placed, behind)
            is_of_one_place = True
    return filters, is_of_one_place


def _at_place(placed: ConfiguredFilter, behind: Sequence[ConfiguredFilter]) -> ConfiguredFilter:
    try:
        made = placed.filter.at_place([(each.spec.name, each.phases()) for each in behind])
    except ValueError as error:
        raise MisplacedFilter(placed.spec, str(error)) from None
    return replace(placed, filter=made)
