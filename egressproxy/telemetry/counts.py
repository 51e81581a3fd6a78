"""Counts: everything that a process has counted, as it is read at a scrape, and added up over several processes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from operator import add

from egressproxy.telemetry.series import Labels, Series, added


class MetricKind(str, Enum):
    """How the numbers of several processes become one."""

    COUNTER = "counter"  # added up; the number of a process that has ended stays
    GAUGE = "gauge"  # added up
    PEAK = "peak"  # a gauge: the highest since it was last shown
    LARGEST = "largest"  # a gauge: the highest of all processes
    SMALLEST = "smallest"  # a gauge: the lowest of all processes
    HISTOGRAM = "histogram"  # added up


@dataclass(frozen=True, slots=True)
class Reading:
    """The present value of a number that another object keeps."""

    kind: MetricKind
    description: str
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of durations in seconds. `buckets` has one more entry than `bounds`, which are upper bounds."""

    description: str
    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    sum_s: float

    def plus(self, other: Histogram) -> Histogram:
        """The sum with the histogram of another process, which has the same bounds."""
        buckets = tuple(mine + others for mine, others in zip(self.buckets, other.buckets, strict=True))
        return replace(self, buckets=buckets, sum_s=self.sum_s + other.sum_s)


@dataclass(slots=True)
class FilterMetric:
    """A metric that filters keep, by their labels. Of a histogram `values` are sums, and `buckets` as in Histogram."""

    kind: MetricKind
    description: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float]
    bounds: tuple[float, ...] = ()
    buckets: dict[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict)

    def plus(self, other: FilterMetric) -> FilterMetric:
        """Both together. Where another process has it in another form, ours stays."""
        if (self.kind, self.labels, self.bounds) != (other.kind, other.labels, other.bounds):
            return self
        values = dict(self.values)
        for labels, value in other.values.items():
            if labels not in values:
                values[labels] = value
            elif self.kind is MetricKind.LARGEST:
                values[labels] = max(values[labels], value)
            elif self.kind is MetricKind.SMALLEST:
                values[labels] = min(values[labels], value)
            else:
                values[labels] += value
        buckets = dict(self.buckets)
        for labels, counted in other.buckets.items():
            mine = buckets.get(labels)
            buckets[labels] = counted if mine is None else tuple(map(add, mine, counted))
        return replace(self, values=values, buckets=buckets)

    @property
    def lasts(self) -> bool:
        """Whether what a process has counted stays when it has ended."""
        return self.kind in (MetricKind.COUNTER, MetricKind.HISTOGRAM)


@dataclass(slots=True)
class Counts:
    """Everything that was counted so far, by one process or added up by several. It can be pickled.

    The result of `Metrics.gather` holds the live series; they are safe to read from any thread.
    """

    series: dict[Labels, Series] = field(default_factory=dict)
    dns_lookups: dict[str, int] = field(default_factory=dict)
    connections_rejected: dict[str, int] = field(default_factory=dict)
    http2_connections_broken: dict[str, int] = field(default_factory=dict)
    forwarded_identities: dict[str, int] = field(default_factory=dict)
    interceptions: dict[str, int] = field(default_factory=dict)
    ech_hellos: dict[tuple[str, str, str], int] = field(default_factory=dict)
    reloads: dict[str, int] = field(default_factory=dict)
    upstream: dict[tuple[str, str], int] = field(default_factory=dict)
    downstream: dict[tuple[str, str], int] = field(default_factory=dict)
    endpoints: dict[tuple[str, str, str], int] = field(default_factory=dict)
    ejections: dict[tuple[str, str, str], int] = field(default_factory=dict)
    shed: dict[tuple[str, str], int] = field(default_factory=dict)
    open_circuits: dict[tuple[str, str], int] = field(default_factory=dict)
    parents_aside: dict[str, int] = field(default_factory=dict)
    parents_put_aside: dict[tuple[str, str], int] = field(default_factory=dict)
    filters: dict[tuple[str, str, str, str, str], int] = field(default_factory=dict)
    external_auth: dict[tuple[str, str, str], int] = field(default_factory=dict)
    filter_calls: dict[tuple[str, str, str], int] = field(default_factory=dict)
    mcp_calls: dict[tuple[str, str, str, str, str], int] = field(default_factory=dict)
    translations: dict[tuple[str, str, str, str, str], int] = field(default_factory=dict)
    events: dict[tuple[str, str], int] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    filter_metrics: dict[str, FilterMetric] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Add what another process counted."""
        for labels, series in other.series.items():
            mine = self.series.get(labels)
            if mine is None:
                mine = self.series[labels] = Series(labels)
            mine.add(series)
        for each in fields(self):
            if each.name not in ("series", "readings", "histograms", "filter_metrics"):
                setattr(self, each.name, added(getattr(self, each.name), getattr(other, each.name)))
        for name, reading in other.readings.items():
            before = self.readings.get(name)
            if before is not None:
                both = (before.value, reading.value)
                reading = replace(reading, value=max(both) if reading.kind is MetricKind.PEAK else sum(both))
            self.readings[name] = reading
        for name, histogram in other.histograms.items():
            known = self.histograms.get(name)
            self.histograms[name] = histogram if known is None else known.plus(histogram)
        for name, metric in other.filter_metrics.items():
            same = self.filter_metrics.get(name)
            self.filter_metrics[name] = metric if same is None else same.plus(metric)

    def keep_peaks(self, earlier: Counts) -> None:
        """Keep the highest values of earlier counts that were not shown yet."""
        for name, reading in earlier.readings.items():
            mine = self.readings.get(name)
            if mine is not None and reading.kind is MetricKind.PEAK and reading.value > mine.value:
                self.readings[name] = reading

    def forget_peaks(self) -> None:
        """Forget the highest values, which were shown."""
        for name, reading in self.readings.items():
            if reading.kind is MetricKind.PEAK:
                self.readings[name] = replace(reading, value=0.0)

    def forget_gauges(self) -> None:
        """The process has ended: its gauges are 0, its counters stay."""
        for series in self.series.values():
            series.tunnels_active = 0
        self.upstream.clear()
        self.downstream.clear()
        self.endpoints.clear()
        self.open_circuits.clear()
        self.parents_aside.clear()
        self.readings = {name: reading for name, reading in self.readings.items() if reading.kind is MetricKind.COUNTER}
        self.filter_metrics = {name: metric for name, metric in self.filter_metrics.items() if metric.lasts}
