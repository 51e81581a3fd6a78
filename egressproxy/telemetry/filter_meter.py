"""FilterMeter: the counters, gauges and histograms that a filter keeps of its own, and what a scrape reads of them.
Filters that ask for a metric in the same form share it; its first label, `filter`, is the extension's name. Label sets,
which requests may choose, are bounded: what has no room is counted under OVERFLOW.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Final
from weakref import WeakValueDictionary

from egressproxy.model.exchange import Exchange
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.telemetry.counters import OVERFLOW
from egressproxy.telemetry.counts import MetricFamily, MetricKind
from egressproxy.telemetry.series import Exemplar

#: The most label sets of one metric, over the life of the process, and characters of a label.
MAX_SETS: Final = 1000
MAX_LABEL: Final = 128
#: The most metrics of filters.
MAX_METRICS: Final = 500
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,99}")
_OURS: Final = "egressproxy.io/"
_RESERVED: Final = ("egress_", "process_", "python_")

Labels = tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Family:
    kind: MetricKind
    description: str
    labels: Labels
    bounds: tuple[float, ...] = ()
    values: dict[Labels, float] = field(default_factory=dict)
    buckets: dict[Labels, list[int]] = field(default_factory=dict)
    exemplars: dict[Labels, dict[int, Exemplar]] = field(default_factory=dict)
    setters: dict[Labels, FilterMeter] = field(default_factory=dict)  # of a gauge: who has set it last
    labelled: WeakValueDictionary[Labels, LabelledCounter] = field(default_factory=WeakValueDictionary)

    def room_for(self, labels: Labels) -> Labels:
        """These labels, or those under which what has no room is counted."""
        if labels in self.values:
            return labels
        labels = tuple(str(each)[:MAX_LABEL] for each in labels)
        if len(labels) != len(self.labels):
            raise ValueError(f"{len(labels) - 1} labels are given: {', '.join(self.labels[1:]) or 'none'} is expected")
        if labels not in self.values and len(self.values) >= MAX_SETS:
            return (labels[0], *(OVERFLOW for _ in labels[1:]))
        return labels


class FilterMetrics:
    """The metrics of all filters of a process: they survive reloads, so that no counter goes backwards."""

    __slots__ = ("_families",)

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def family(self, name: str, made: _Family) -> _Family:
        """The family of this name. Raises ValueError where there is one of another form, or no room."""
        known = self._families.get(name)
        if known is None:
            if len(self._families) >= MAX_METRICS:
                raise ValueError(f"metric {name} has no room: filters may have {MAX_METRICS} metrics")
            known = self._families[name] = made
        elif (known.kind, known.labels, known.bounds) != (made.kind, made.labels, made.bounds):
            raise ValueError(f"metric {name} is there already, as a {known.kind.value} with other labels or buckets")
        return known

    def read(self) -> dict[str, MetricFamily]:
        """All that was counted so far, on the event loop."""
        for family in self._families.values():
            for counter in family.labelled.values():
                counter.flush()
        return {
            name: MetricFamily(
                family.kind,
                family.description,
                family.labels,
                dict(family.values),
                family.bounds,
                {labels: tuple(buckets) for labels, buckets in family.buckets.items()},
                {labels: dict(shown) for labels, shown in family.exemplars.items()},
            )
            for name, family in self._families.items()
            if family.values
        }


class FilterCounter:
    """A number that grows."""

    __slots__ = ("_family", "_filter", "_values")

    def __init__(self, family: _Family, name: str) -> None:
        self._family = family
        self._filter = name
        self._values = family.values

    def add(self, amount: float = 1, *labels: str) -> None:
        """Add an amount of 0 or more to the number with these labels."""
        if amount < 0:
            raise ValueError("a counter does not go backwards")
        key = (self._filter, *labels)
        values = self._values
        try:
            values[key] += amount
        except KeyError:  # the first
            key = self._family.room_for(key)
            values[key] = values.get(key, 0) + amount

    def labelled(self, *labels: str) -> LabelledCounter:
        """The number with these labels, for one that is counted often; one object for all filters that count in it."""
        key = self._filter, *labels
        found = self._family.labelled.get(key)
        if found is None:
            found = self._family.labelled[key] = LabelledCounter(self._family, key)
        return found


class LabelledCounter:
    """A number that grows, with known labels: `count += 1` on the request path. A scrape takes what has come."""

    __slots__ = ("__weakref__", "_family", "_key", "count")

    def __init__(self, family: _Family, key: Labels) -> None:
        self._family = family
        self._key = key
        self.count: float = 0

    def add(self, amount: float = 1) -> None:
        """Add an amount of 0 or more."""
        if amount < 0:
            raise ValueError("a counter does not go backwards")
        self.count += amount

    def flush(self) -> None:
        """Add what was counted to what is read."""
        count = self.count
        if count:
            self.count = 0
            key = self._key = self._family.room_for(self._key)
            self._family.values[key] = self._family.values.get(key, 0) + count

    __del__ = flush  # its filter is gone


class FilterGauge:
    """A number that goes up and down."""

    __slots__ = ("_family", "_filter", "_meter")

    def __init__(self, family: _Family, name: str, meter: FilterMeter) -> None:
        self._family = family
        self._filter = name
        self._meter = meter

    def set(self, value: float, *labels: str) -> None:
        """Set the number with these labels. It goes when the filter is closed."""
        key = self._family.room_for((self._filter, *labels))
        self._family.values[key] = value
        self._family.setters[key] = self._meter


class FilterHistogram:
    """How many values lie below each bound, and their sum."""

    __slots__ = ("_family", "_filter")

    def __init__(self, family: _Family, name: str) -> None:
        self._family = family
        self._filter = name

    def observe(self, value: float, *labels: str, exchange: Exchange | None = None) -> None:
        """Count a value with these labels. `exchange`: the one that it is of, for an exemplar where that is traced."""
        family = self._family
        key = family.room_for((self._filter, *labels))
        family.values[key] = family.values.get(key, 0) + value
        buckets = family.buckets.get(key)
        if buckets is None:
            buckets = family.buckets[key] = [0] * (len(family.bounds) + 1)
        bucket = bisect_left(family.bounds, value)
        buckets[bucket] += 1
        if exchange is not None:
            trace: ExchangeTrace | None = exchange.trace
            if trace is not None and (ids := trace.sampled_ids) is not None:
                family.exemplars.setdefault(key, {})[bucket] = (*ids, value, time())


class FilterMeter:
    """Makes the metrics of one filter. Each call with the same arguments gives the same numbers.

    `name` is the whole name in /metrics, a counter's without `_total`; one of a type that is not ours must not begin
    with `egress_`, `process_` or `python_`. The label `filter` comes first, with the extension's name. Raises
    ValueError for a name or label that a metric cannot have, and where a metric of this name has another form.
    """

    __slots__ = ("_filter", "_gauges", "_is_ours", "_metrics")

    def __init__(self, metrics: FilterMetrics, filter_name: str, type_name: str) -> None:
        self._metrics = metrics
        self._filter = filter_name
        self._is_ours = type_name.startswith(_OURS) and not type_name.startswith(f"{_OURS}Python:")
        self._gauges: list[_Family] = []

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> FilterCounter:
        """A counter, added up over all workers."""
        return FilterCounter(self._family(name, MetricKind.COUNTER, description, labels), self._filter)

    def gauge(self, name: str, description: str, labels: Sequence[str] = (), *, combined: str = "sum") -> FilterGauge:
        """A gauge. `combined` says what becomes of those of several workers: "sum", "max" or "min"."""
        kinds: Mapping[str, MetricKind] = {
            "sum": MetricKind.GAUGE, "max": MetricKind.LARGEST, "min": MetricKind.SMALLEST,
        }  # fmt: skip
        if combined not in kinds:
            raise ValueError(f"combined is one of {', '.join(kinds)}, not {combined!r}")
        family = self._family(name, kinds[combined], description, labels)
        self._gauges.append(family)
        return FilterGauge(family, self._filter, self)

    def histogram(
        self, name: str, description: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> FilterHistogram:
        """A histogram with these upper bounds, ascending; a bucket without a bound follows."""
        limits = tuple(float(bound) for bound in bounds)
        if not limits or list(limits) != sorted(set(limits)):
            raise ValueError(f"the bounds of metric {name} do not ascend")
        return FilterHistogram(self._family(name, MetricKind.HISTOGRAM, description, labels, limits), self._filter)

    def close(self) -> None:
        """The filter is gone, and its gauges with it; what it has counted stays."""
        for family in self._gauges:
            for labels in [labels for labels, meter in family.setters.items() if meter is self]:
                del family.setters[labels]
                family.values.pop(labels, None)
        self._gauges.clear()

    def _family(
        self, name: str, kind: MetricKind, description: str, labels: Sequence[str], bounds: tuple[float, ...] = ()
    ) -> _Family:
        for word in (name, *labels):
            if not _NAME.fullmatch(word):
                raise ValueError(f"{word!r} is no name of a metric or label: small letters, digits and _ make one")
        if name.startswith(_RESERVED) and not (self._is_ours and name.startswith(_RESERVED[0])):
            raise ValueError(f"metric {name}: names that begin with {', '.join(_RESERVED)} are the gateway's own")
        if "filter" in labels or len(set(labels)) != len(labels):
            raise ValueError(f"metric {name}: each label is named once, and `filter` is there already")
        return self._metrics.family(name, _Family(kind, description, ("filter", *labels), bounds))
