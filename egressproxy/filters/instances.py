"""FilterInstances: the filters of a snapshot, built from their IR. A filter with equal IR keeps its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from typing import Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase, UnusableReference
from egressproxy.filters.calls import FilterCall
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.configured_filter import ConfiguredFilter, MisplacedFilter, in_order, placed_filters
from egressproxy.filters.error_budget import ErrorBudget
from egressproxy.filters.shared_counters import KEY_BYTES
from egressproxy.ir.gateway import ConfigIR, chains, extensions
from egressproxy.ir.policy import BACKEND_LEVEL, Callee, ExtensionIR
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterNotices, FilterStats
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

#: The most filters that are measured after a scrape: there may be ten thousand.
MAX_SAMPLED: Final = 1000

#: The phases of one attempt.
_OF_ATTEMPTS: Final = frozenset(each.value for each in (Phase.CONNECT, Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))


class FilterBuildError(ValueError):
    """A filter cannot be built from its spec. The message names the declaring object, the filter and the reason."""


class UnusableFilter(FilterBuildError):
    """A value that the config refers to is unusable. The manifests are valid: only its places are closed
    (`place_or_close`).
    """


class FilterInstances:
    """One filter per equal IR. `previous`: the instances in service, None at the start. `notices`: gets failures."""

    __slots__ = ("_catalog", "_closed", "_counted", "_held", "_made", "_metrics", "_notices", "_previous", "_reach")

    def __init__(
        self,
        catalog: Catalog,
        previous: FilterInstances | None = None,
        notices: EventAggregator | None = None,
        reach: Callable[[str, Callee], FilterCall] | None = None,
        metrics: FilterMetrics | None = None,
    ) -> None:
        """`reach` makes the call of a backend for a filter; None: the filters are only checked."""
        self._catalog = catalog
        self._reach = reach
        self._notices = notices
        self._metrics = FilterMetrics() if metrics is None else metrics
        self._made: dict[tuple[ExtensionIR, str], ConfiguredFilter] = {}
        #: The replacements of unusable filters, with the reason. Not kept across reloads: the cause may be fixed.
        self._closed: dict[ExtensionIR, tuple[ConfiguredFilter, str]] = {}
        self._previous = {} if previous is None else previous._made
        #: The counters of the previous snapshot, which a filter with a new Secret or config continues.
        self._counted = {_labels(placed.spec): placed.stats for placed in self._previous.values()}
        self._held: dict[ExtensionIR, ConfiguredFilter] | None = None  # replacements while code is held

    def hold_code(self) -> None:
        """Make `place` only inspect the operator's code, and return a filter without effect, from here on."""
        self._held = {}

    def release_code(self) -> tuple[ExtensionIR, ...]:
        """The specs whose code was held, in the order of their places. From here on `place` runs the code."""
        held, self._held = self._held, None
        return tuple(held or ())

    def place(self, spec: ExtensionIR) -> ConfiguredFilter:
        """The filter of this spec, built at its first use. Raises FilterBuildError; UnusableFilter for a Secret."""
        if self._held is not None and spec in self._held:
            return self._held[spec]
        kind, context = self._context(spec)
        try:
            key = (spec, kind.revision(context))
            found = self._made.get(key) or self._previous.get(key)
            if found is None and self._held is not None and kind.inspect is not None:
                kind.inspect(context)
                return self._held.setdefault(spec, ConfiguredFilter(spec, Filter()))  # without effect
            placed = found or self._build(spec, kind, context)
        except UnusableReference as error:
            raise UnusableFilter(f"{spec.source}: filter {spec.name} ({spec.type}): {error}") from None
        except (ValueError, OSError) as error:
            by = ", which a FilterType makes known" if spec.implementation else ""
            raise FilterBuildError(f"{spec.source}: filter {spec.name} ({spec.type}{by}): {error}") from None
        self._made[key] = placed
        return placed

    def place_or_close(self, spec: ExtensionIR) -> ConfiguredFilter:
        """`place`, or for an unusable Secret a filter that refuses every request, regardless of `failOpen`."""
        if spec in self._closed:
            return self._closed[spec][0]
        try:
            return self.place(spec)
        except UnusableFilter as error:
            closed = _Closed(spec)
            stats = self._counted.pop(_labels(spec), {})
            placed = ConfiguredFilter(spec, closed, closed.runs_in, stats, notices=self._notices)
            self._closed[spec] = placed, str(error).removeprefix(f"{spec.source}: ")
            return placed

    def blocks(self, spec: ExtensionIR) -> bool:
        """Whether building this filter blocks and must not run on the event loop."""
        kind = self._catalog.get(spec.implementation or spec.type)
        return kind is not None and kind.runs_code

    def secrets(self, spec: ExtensionIR) -> dict[str, bool]:
        """The Secrets (`name/key`) of this filter, and whether each exists. Raises FilterBuildError."""
        if self._catalog.get(spec.implementation or spec.type) is None:
            return {}
        kind, context = self._context(spec)
        labels = (ref.label for ref in kind.secret_refs(context.config))
        return {label.rstrip("/"): label in context.secrets for label in labels}

    def stats(self) -> list[FilterStats]:
        """The counters of every filter, per phase. The next few runs of each filter are measured."""
        for placed in islice(self._made.values(), MAX_SAMPLED):
            placed.sample()
        every = (*self._made.values(), *(placed for placed, _ in self._closed.values()))
        found = {id(stats): stats for placed in every for stats in placed.stats.values()}
        return list(found.values())

    def of_type(self, name: str) -> list[tuple[ExtensionIR, Filter]]:
        return [(spec, placed.filter) for (spec, _), placed in self._made.items() if spec.type == name]

    def specs(self) -> list[ExtensionIR]:
        """The specs of all filters, with those that are unusable."""
        return [*(spec for spec, _ in self._made), *self._closed]

    def seal(self) -> None:
        """Enter service: close the removed filters of the previous instances, and report unusable filters."""
        for key, placed in self._previous.items():
            if key not in self._made:
                placed.close()
        self._tell_in_service(self._made.values())
        self._forget_parts()

    def adopt(self, other: FilterInstances) -> None:
        """Add the filters of `other`, which was built with this one as its previous instances."""
        if self._reach is None:  # otherwise `seal` follows
            other._tell_in_service(placed for key, placed in other._made.items() if key not in self._made)
        self._made |= other._made
        self._closed |= other._closed
        other._forget_parts()

    def _forget_parts(self) -> None:
        """Release the objects for building: the builder refers to this object, which would be a reference cycle."""
        self._previous, self._counted, self._reach = {}, {}, None

    def _tell_in_service(self, fresh: Iterable[ConfiguredFilter]) -> None:
        for placed in fresh:
            if type(placed.filter).in_service is not Filter.in_service:
                placed.filter.in_service()
        for spec, (_, why) in self._closed.items():
            notices = FilterNotices(self._notices or EventAggregator(), spec.name, spec.source)
            notices.warning("FilterUnusable", f"{why}; requests that need it are refused until it is mended")

    def drain(self) -> None:
        for placed in self._made.values():
            placed.filter.drain()

    def close(self) -> None:
        """Close the filters that are not in the previous snapshot: this one is discarded, or the process ends."""
        for key, placed in self._made.items():
            if key not in self._previous:
                placed.close()
        self._made = {}
        self._forget_parts()

    def _context(self, spec: ExtensionIR) -> tuple[FilterType, FilterContext]:
        where = f"{spec.source}: filter {spec.name}"
        kind = self._catalog.get(spec.implementation or spec.type)
        if kind is None:
            why = self._catalog.why_unusable(spec.type) or f"known are {', '.join(self._catalog.names())}"
            raise FilterBuildError(f"{where}: unknown type {spec.type}; {why}")
        if spec.phase not in {phase.value for phase in kind.phases}:
            allowed = ", ".join(phase.value for phase in Phase if phase in kind.phases)
            raise FilterBuildError(f"{where}: {spec.type} cannot run in phase {spec.phase}; it can in {allowed}")
        config: object = spec.settings
        if config is None:
            from egressproxy.filters.validation import validated

            try:
                config = validated(kind.config_model, spec.config)
            except ValueError as error:
                raise FilterBuildError(f"{where} ({spec.type}): {error}") from None
        secrets, phase = dict(spec.secrets), Phase(spec.phase)
        reach = self._reach
        calls = {label: reach(spec.name, callee) for label, callee in spec.calls} if reach is not None else {}
        return kind, FilterContext(config, secrets, spec.name, spec.scope, spec.source, spec.folder, phase, calls=calls)

    def _build(self, spec: ExtensionIR, kind: FilterType, context: FilterContext) -> ConfiguredFilter:
        counters = self._catalog.counters
        if kind.is_shared and counters is not None:
            context = replace(context, row=counters.row(blake2b(repr(spec).encode(), digest_size=KEY_BYTES).digest()))
        if kind.is_shared:
            context = replace(context, keyed=self._catalog.keyed)
        meter = FilterMeter(self._metrics, spec.name, kind.name)
        notices = FilterNotices(self._notices or EventAggregator(), spec.name, spec.source)
        context = replace(context, meter=meter, notices=notices)
        budget = ErrorBudget(spec, self._metrics, notices) if spec.budget_failures else None
        made = kind.build(context)
        mark = StateSlot[bool](f"{spec.name} ran") if type(made).complete is not Filter.complete else None
        watch = None
        if kind.runs_code or kind.package:
            from egressproxy.filters.block_watch import BlockWatch

            watch = BlockWatch(spec.name, spec.scope, self._metrics, notices)
        stats = self._counted.pop(_labels(spec), {})
        return ConfiguredFilter(spec, made, kind.also, stats, mark, self._notices, meter, budget, watch)


def _labels(spec: ExtensionIR) -> tuple[str, ...]:
    """The labels of a filter's counters."""
    return spec.name, spec.type, spec.phase, spec.scope, spec.source


class _Closed(Filter):
    """The replacement of an unusable filter, which refuses before any byte is sent to a backend."""

    runs_in: frozenset[Phase]

    def __init__(self, spec: ExtensionIR) -> None:
        self._spec = spec
        is_of_attempts = spec.level >= BACKEND_LEVEL or spec.phase in _OF_ATTEMPTS
        self.runs_in = frozenset((Phase.BACKEND_REQUEST if is_of_attempts else Phase.REQUEST_HEADERS,))
        if spec.phase == Phase.CONNECT.value:
            self.runs_in |= {Phase.CONNECT}

    def request_headers(self, exchange: Exchange) -> None:
        """Raises GatewayFault(FILTER_UNUSABLE, 503)."""
        raise GatewayFault(
            Reason.FILTER_UNUSABLE,
            f"filter {self._spec.name} ({self._spec.type}) cannot be used",
            status=503,
            rule=self._spec.source,
            remedy="the status of the object says what is wrong",
        )

    connect = backend_request = forecast = request_headers


def failures(config: ConfigIR, catalog: Catalog) -> list[tuple[ExtensionIR, FilterBuildError]]:
    """The specs that cannot be built, each with its error: UnusableFilter for a Python filter whose constructor fails
    with its Secrets. For other types the compiler reports this in status.

    Files of Python filters are run, as at a start, but only if the other filters and the syntax of every file are
    valid.
    """
    instances = FilterInstances(catalog)
    instances.hold_code()
    known = (spec for spec in extensions(config) if spec.is_known)  # requests go on without the others
    faults = list(_faults(instances, dict.fromkeys(known)))
    faults = faults or list(_faults(instances, instances.release_code()))
    if all(isinstance(error, UnusableFilter) for _, error in faults):
        faults += _misplaced(instances, config)
    return faults


def machine_problems(config: ConfigIR, catalog: Catalog) -> list[tuple[ExtensionIR, str, str]]:
    """The specs that name a missing resource of this machine (such as a folder), each with field and reason."""
    found = []
    for spec in dict.fromkeys(extensions(config)):
        kind = catalog.get(spec.implementation or spec.type) if spec.is_known else None
        if kind is not None and spec.settings is not None and (why := kind.machine_problem(spec.settings)):
            found.append((spec, kind.machine_field(spec.settings), why))
    return found


def _misplaced(instances: FilterInstances, config: ConfigIR) -> Iterator[tuple[ExtensionIR, FilterBuildError]]:
    """The filters at an impossible position in their chain."""
    for specs in dict.fromkeys(chains(config)):
        try:
            placed_filters(in_order(spec for spec in specs if spec.is_known), instances.place_or_close)
        except MisplacedFilter as error:
            yield error.spec, FilterBuildError(str(error))


def _faults(instances: FilterInstances, specs: Iterable[ExtensionIR]) -> Iterator[tuple[ExtensionIR, FilterBuildError]]:
    for spec in specs:
        try:
            instances.place(spec)
        except FilterBuildError as error:
            if not isinstance(error, UnusableFilter) or instances.blocks(spec):
                yield spec, error
