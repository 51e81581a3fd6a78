"""Counts: everything that a process has counted, as it is read at a scrape, and added up over several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import add
from pathlib import Path
from typing import Final

from egressproxy.telemetry.counters import Durations
from egressproxy.telemetry.series import Exemplar, Labels, Series, latest

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class MetricKind(str, Enum):
    """How the numbers of several processes become one."""

    COUNTER = "counter"  # added up; the number of a process that has ended stays
    GAUGE = "gauge"  # added up
    PEAK = "peak"  # a gauge: the highest since it was last shown
    LARGEST = "largest"  # a gauge: the highest of all processes
    SMALLEST = "smallest"  # a gauge: the lowest of all processes
    HISTOGRAM = "histogram"  # added up


@dataclass(slots=True)
class MetricFamily:
    """All numbers of one metric, by their labels. Of a histogram `values` are sums; `buckets` has one entry more than
    `bounds`, the upper ones; `exemplars` are by bucket.
    """

    kind: MetricKind
    description: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float]
    bounds: tuple[float, ...] = ()
    buckets: dict[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict)
    exemplars: dict[tuple[str, ...], dict[int, Exemplar]] = field(default_factory=dict)

    @classmethod
    def timed(
        cls, description: str, labels: tuple[str, ...], bounds: tuple[float, ...],
        counted: Mapping[tuple[str, ...], Durations],
    ) -> MetricFamily:  # fmt: skip
        return cls(
            MetricKind.HISTOGRAM, description, labels, {key: each.sum_s for key, each in counted.items()}, bounds,
            {key: tuple(each.buckets) for key, each in counted.items()},
        )  # fmt: skip

    def plus(self, other: MetricFamily) -> MetricFamily:
        """Both together. Where another process has it in another form, ours stays."""
        if (self.kind, self.labels, self.bounds) != (other.kind, other.labels, other.bounds):
            return self
        values = dict(self.values)
        for labels, value in other.values.items():
            if labels not in values:
                values[labels] = value
            elif self.kind in (MetricKind.LARGEST, MetricKind.PEAK):
                values[labels] = max(values[labels], value)
            elif self.kind is MetricKind.SMALLEST:
                values[labels] = min(values[labels], value)
            else:
                values[labels] += value
        buckets = dict(self.buckets)
        for labels, counted in other.buckets.items():
            mine = buckets.get(labels)
            buckets[labels] = counted if mine is None else tuple(map(add, mine, counted))
        exemplars = dict(self.exemplars)
        for labels, shown in other.exemplars.items():
            exemplars[labels] = latest(exemplars.get(labels, {}), shown)
        return replace(self, values=values, buckets=buckets, exemplars=exemplars)

    @property
    def lasts(self) -> bool:
        """Whether what a process has counted stays when it has ended."""
        return self.kind in (MetricKind.COUNTER, MetricKind.HISTOGRAM)


@dataclass(slots=True)
class Counts:
    """Everything that was counted so far, by one process or several; for pickles. Those of `Metrics.gather` have the
    live series, which any thread may read.
    """

    series: dict[Labels, Series] = field(default_factory=dict)
    families: dict[str, MetricFamily] = field(default_factory=dict)  # by their names

    def add(self, other: Counts) -> None:
        """Add what another process counted."""
        for labels, series in other.series.items():
            mine = self.series.get(labels)
            if mine is None:
                mine = self.series[labels] = Series(labels)
            mine.add(series)
        for name, family in other.families.items():
            known = self.families.get(name)
            self.families[name] = family if known is None else known.plus(family)

    def keep_peaks(self, earlier: Counts) -> None:
        """Keep the highest values of earlier counts that were not shown yet."""
        for name, family in earlier.families.items():
            mine = self.families.get(name)
            if mine is not None and family.kind is MetricKind.PEAK:
                self.families[name] = mine.plus(family)

    def forget_peaks(self) -> None:
        """Forget the highest values, which were shown."""
        for name, family in self.families.items():
            if family.kind is MetricKind.PEAK:
                self.families[name] = replace(family, values=dict.fromkeys(family.values, 0.0))

    def forget_gauges(self) -> None:
        """The process has ended: its gauges are 0, its counters stay."""
        for series in self.series.values():
            series.tunnels_active = 0
        self.families = {name: family for name, family in self.families.items() if family.lasts}


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Memory and processor time of a worker. `worker` counts from 1; `cpu_s` is user and system time."""

    worker: int
    resident_bytes: int = 0
    cpu_s: float = 0.0


def process_figures(worker: int, pid: int) -> ProcessFigures:
    """The figures of a running process. Raises OSError without one. Source: proc_pid_stat(5), fields utime (14), stime
    (15) and rss (24), after the name in brackets.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ProcessFigures(worker, int(fields[21]) * _PAGE_BYTES, ticks / _TICKS_PER_S)
