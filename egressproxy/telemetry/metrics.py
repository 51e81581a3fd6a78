"""Metrics: plain integers on the request path, read at scrape time.

A `Series` is bound to its labels when a Snapshot is built and survives reloads, so that no counter goes backwards.
Label values come from the configuration and from closed enums, never from a client. Identities, of which a certificate
authority could make any number, and entries of policies share one overflow series when there are too many. A scrape has
two halves: `gather` reads live objects on the event loop; `telemetry/exposition` renders the `Counts` of one process or
of several, in any thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from time import time
from typing import Final, TypeVar

from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.external_auth import AUTH_BUCKETS_S, ExternalAuthCounts
from egressproxy.telemetry.notices import FilterStats, Notices

__all__ = [
    "BUCKETS_S",
    "Counts",
    "DownstreamSource",
    "FilterSource",
    "Histogram",
    "HistogramSource",
    "Metrics",
    "Reading",
    "Series",
    "UpstreamSource",
    "decided_by",
    "logged_status",
]

logger = logging.getLogger(__name__)

#: Upper bounds of the duration histogram: from a local answer to a tunnel that lives for hours.
BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    3600.0,
)

#: The most label sets with identities of their own; further identities are counted under OVERFLOW.
MAX_IDENTITY_SERIES: Final = 1000
#: The most label sets for entries of policies, over the life of the process; further entries are counted under OVERFLOW
#: with their policy, of which as many are told apart. Each used entry has one. Entries that deny have a bound of their
#: own: a client that asks for everything on a long deny list must not hide what others are allowed by.
MAX_ENTRY_SERIES: Final = 1000
OVERFLOW: Final = "_other"
#: The most statuses in one label set, since origins choose them. Others are counted as the x00 of their class, as which
#: unknown ones must be treated (RFC 9110 section 15).
MAX_STATUSES: Final = 64

#: What is counted of a backend's pools: active and idle connections, and exchanges that wait for one.
UPSTREAM_STATES: Final = ("active", "idle", "waiting")

#: The status that nginx logs, and dashboards know, for a client that closed before the response.
CLIENT_CLOSED: Final = 499

_OK: Final = Reason.OK

#: gateway, route, backend, namespace, service account; policy and entry, where a policy allowed or denied.
Labels = tuple[str, str, str, str, str, str, str]

#: What every series holds before anything was counted. It is shared, so never write to it.
_NO_STATUS: Final[dict[int, int]] = {}
_NO_WORD: Final[dict[str, int]] = {}
_NO_BUCKETS: Final = [0] * (len(BUCKETS_S) + 1)

_T = TypeVar("_T")
_K = TypeVar("_K")


#: Yields (backend, active connections, idle connections, exchanges that wait for one).
UpstreamSource = Callable[[], Iterable[tuple[str, int, int, int]]]
#: Yields (gateway, listener, open connections).
DownstreamSource = Callable[[], Iterable[tuple[str, str, int]]]
FilterSource = Callable[[], Iterable[FilterStats]]
#: Gives the count of each bucket, one more than there are bounds, and the sum in seconds.
HistogramSource = Callable[[], tuple[tuple[int, ...], float]]


def logged_status(x: Exchange) -> int:
    """The status to count and log: as sent; 499 where the client left before an answer; 0 where nothing was sent."""
    return x.status or (CLIENT_CLOSED if x.reason is Reason.CLIENT_GONE else 0)


class _Room:
    """How many more label sets there may be for entries of policies, and for policies."""

    __slots__ = ("_entries", "_policies")

    def __init__(self) -> None:
        self._entries = self._policies = 0

    def said(self, policy: str, entry: str) -> tuple[str, str]:
        """The policy and entry of a new label set: OVERFLOW where there is no room."""
        if entry != OVERFLOW:
            return (policy, entry) if self._entries < MAX_ENTRY_SERIES else (policy, OVERFLOW)
        return (policy, OVERFLOW) if self._policies < MAX_ENTRY_SERIES else (OVERFLOW, OVERFLOW)

    def take(self, entry: str) -> None:
        """Count one more label set."""
        if entry == OVERFLOW:
            self._policies += 1
        else:
            self._entries += 1


def decided_by(series: Series | None) -> tuple[str, str]:
    """The policy and the entry that allowed or denied what this series counts; "-" for none."""
    return series.labels[5:] if series is not None else ("-", "-")


class Series:
    """The counters of one label set. The conductor calls `observe` exactly once per exchange or tunnel, at its end.

    The conductor raises and lowers `tunnels_active`; `attempt` counts `attempts`. Most of thousands of routes are never
    used, so the dictionaries are made when there is something to count.
    """

    __slots__ = (
        "attempts",
        "buckets",
        "bytes_in",
        "bytes_out",
        "denied",
        "duration_sum_s",
        "failures",
        "labels",
        "mirrored",
        "requests",
        "tunnels_active",
        "would_deny",
    )

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.requests = _NO_STATUS
        self.buckets = _NO_BUCKETS
        self.duration_sum_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.denied = self.would_deny = self.failures = self.attempts = self.mirrored = _NO_WORD
        self.tunnels_active = 0

    def observe(self, x: Exchange) -> None:
        """Count a finished exchange: its status, duration, bytes and denial."""
        status = x.status or logged_status(x)
        try:
            self.requests[status] += 1
        except KeyError:
            if len(self.requests) >= MAX_STATUSES:
                status -= status % 100
            self.requests = {**self.requests, status: self.requests.get(status, 0) + 1}
            if self.buckets is _NO_BUCKETS:
                self.buckets = [0] * len(_NO_BUCKETS)
        duration = x.ended_at - x.started_at
        self.buckets[bisect_left(BUCKETS_S, duration)] += 1
        self.duration_sum_s += duration
        self.bytes_in += x.bytes_in
        self.bytes_out += x.bytes_out
        if x.reason is not _OK:
            if x.denied:
                self.denied = _with_one(self.denied, x.reason.value)
            else:
                self.failures = _with_one(self.failures, x.reason.value)
        if x.would_deny:
            for reason in x.would_deny:
                self.would_deny = _with_one(self.would_deny, reason.value)

    def attempt(self, result: str) -> None:
        """One attempt to reach the backend ended: "ok" or the Reason's value."""
        try:
            self.attempts[result] += 1
        except KeyError:
            self.attempts = {**self.attempts, result: 1}

    def mirror(self, result: str) -> None:
        """A copy of a request for this backend ended: "ok", "dropped" (not sent) or the Reason's value."""
        self.mirrored = _with_one(self.mirrored, result)

    def add(self, other: Series) -> None:
        """Add the numbers of the same labels from another process."""
        self.requests = _sum(self.requests, other.requests)
        self.denied = _sum(self.denied, other.denied)
        self.would_deny = _sum(self.would_deny, other.would_deny)
        self.failures = _sum(self.failures, other.failures)
        self.attempts = _sum(self.attempts, other.attempts)
        self.mirrored = _sum(self.mirrored, other.mirrored)
        self.buckets = [mine + others for mine, others in zip(self.buckets, other.buckets, strict=True)]
        self.duration_sum_s += other.duration_sum_s
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.tunnels_active += other.tunnels_active

    @property
    def is_used(self) -> bool:
        """Whether anything was counted."""
        return bool(self.requests or self.attempts or self.tunnels_active or self.mirrored)

    def __repr__(self) -> str:
        return f"Series({'/'.join(self.labels)}, {sum(self.requests.values())} observed, {self.tunnels_active} tunnels)"


class MetricKind(str, Enum):
    """How the numbers of several processes become one."""

    COUNTER = "counter"  # added up; the number of a process that has ended stays
    GAUGE = "gauge"  # added up
    PEAK = "peak"  # a gauge: the highest since it was last shown


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
class Counts:
    """Everything that was counted so far, by one process or added up by several. It can be pickled.

    The result of `Metrics.gather` holds the live series; they are safe to read from any thread.
    """

    series: dict[Labels, Series] = field(default_factory=dict)
    dns_lookups: dict[str, int] = field(default_factory=dict)
    connections_rejected: dict[str, int] = field(default_factory=dict)
    reloads: dict[str, int] = field(default_factory=dict)
    upstream: dict[tuple[str, str], int] = field(default_factory=dict)
    downstream: dict[tuple[str, str], int] = field(default_factory=dict)
    filters: dict[tuple[str, str, str, str, str], int] = field(default_factory=dict)
    external_auth: dict[tuple[str, str, str], int] = field(default_factory=dict)
    events: dict[tuple[str, str], int] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Add what another process counted."""
        for labels, series in other.series.items():
            mine = self.series.get(labels)
            if mine is None:
                mine = self.series[labels] = Series(labels)
            mine.add(series)
        _add(self.dns_lookups, other.dns_lookups)
        _add(self.connections_rejected, other.connections_rejected)
        _add(self.reloads, other.reloads)
        _add(self.upstream, other.upstream)
        _add(self.downstream, other.downstream)
        _add(self.filters, other.filters)
        _add(self.external_auth, other.external_auth)
        _add(self.events, other.events)
        for name, reading in other.readings.items():
            before = self.readings.get(name)
            if before is not None:
                both = (before.value, reading.value)
                reading = replace(reading, value=max(both) if reading.kind is MetricKind.PEAK else sum(both))
            self.readings[name] = reading
        for name, histogram in other.histograms.items():
            known = self.histograms.get(name)
            self.histograms[name] = histogram if known is None else known.plus(histogram)

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
        self.readings = {name: reading for name, reading in self.readings.items() if reading.kind is MetricKind.COUNTER}


class Metrics:
    """All counters of this process, and the notices for Events (`notices`).

    Sources are callables that are registered once. Every scrape calls them on the event loop.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.notices = Notices()
        self.events: dict[tuple[str, str], int] = {}
        self.dns_lookups: dict[str, int] = {}
        self.reloads: dict[str, int] = {}
        self.connections_rejected: dict[str, int] = {}
        self.external_auth = ExternalAuthCounts()
        self.config_generation = 0
        self.config_last_reload_success = False
        self.config_last_reload_timestamp_s = 0.0
        self._series: dict[Labels, Series] = {}
        self._identity_series = 0
        self._allowed_series = _Room()
        self._denied_series = _Room()
        self._upstream_sources: list[UpstreamSource] = []
        self._downstream_sources: list[DownstreamSource] = []
        self._filter_sources: list[FilterSource] = []
        self._readings: list[tuple[str, MetricKind, str, Callable[[], float]]] = []
        self._histograms: list[tuple[str, str, tuple[float, ...], HistogramSource]] = []
        self.add_gauge(
            "egress_config_generation", "Configurations put into service, from 1.", lambda: self.config_generation
        )
        self.add_gauge(
            "egress_config_last_reload_success",
            "1 if the last configuration read is in service.",
            lambda: int(self.config_last_reload_success),
        )
        self.add_gauge(
            "egress_config_last_reload_timestamp_seconds",
            "When a configuration was last read.",
            lambda: self.config_last_reload_timestamp_s,
        )

    # counting

    def series(
        self,
        gateway: str,
        route: str,
        backend: str,
        namespace: str = "-",
        service_account: str = "-",
        policy: str = "-",
        entry: str = "-",
        *,
        is_denied: bool = False,
    ) -> Series:
        """Get or create: the same labels give the same object for the life of the process.

        `is_denied`: the entry is one that denies.
        """
        key = (gateway, route, backend, namespace, service_account, policy, entry)
        found = self._series.get(key)
        if found is not None:
            return found
        if namespace != "-" or service_account != "-":
            if self._identity_series >= MAX_IDENTITY_SERIES and namespace != OVERFLOW:
                return self.series(gateway, route, backend, OVERFLOW, OVERFLOW, policy, entry, is_denied=is_denied)
            self._identity_series += 1
        if policy != "-" or entry != "-":
            room = self._denied_series if is_denied else self._allowed_series
            said = room.said(policy, entry)
            if said != (policy, entry):
                return self.series(gateway, route, backend, namespace, service_account, *said, is_denied=is_denied)
            room.take(entry)
        made = self._series[key] = Series(key)
        return made

    def denied_by(self, series: Series, policy: str, entry: str) -> Series:
        """The series beside `series` that counts what this entry of a policy denied."""
        return self.series(*series.labels[:5], policy, entry, is_denied=True)

    def count_dns(self, result: str) -> None:
        """A lookup ended; `result` is one of the resolver's words: "ok", "hit", "stale", "nxdomain" …"""
        _count(self.dns_lookups, result)

    def connection_rejected(self, reason: str) -> None:
        """A connection was closed before its first request; `reason` is a Reason's value."""
        _count(self.connections_rejected, reason)

    def count_event(self, severity: str, reason: str, count: int) -> None:
        """An Event occurred `count` times; `reason` is one of a closed list of words."""
        self.events[severity, reason] = self.events.get((severity, reason), 0) + count

    def reload_succeeded(self, generation: int) -> None:
        """A configuration was put into service; `generation` counts these from 1."""
        self.config_generation = generation
        self._reloaded("success", True)

    def reload_failed(self, result: str = "failure") -> None:
        """The configuration was refused; the one in service and its generation stay.

        `result` is "failure", or "guarded": it would allow what was denied lately.
        """
        self._reloaded(result, False)

    def _reloaded(self, result: str, success: bool) -> None:
        _count(self.reloads, result)
        self.config_last_reload_success = success
        self.config_last_reload_timestamp_s = time()

    # registering

    def add_upstream_source(self, source: UpstreamSource) -> None:
        """Register a source of the connections to backends."""
        self._upstream_sources.append(source)

    def add_downstream_source(self, source: DownstreamSource) -> None:
        """Register a source of the connections to listeners."""
        self._downstream_sources.append(source)

    def add_filter_source(self, source: FilterSource) -> None:
        """Register a source of the counters of filters."""
        self._filter_sources.append(source)

    def add_counter(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a counter that another object keeps; `name` is without `_total`. `read` is called on every scrape."""
        self._readings.append((name, MetricKind.COUNTER, description, read))

    def add_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a gauge; every scrape calls `read` for its value."""
        self._readings.append((name, MetricKind.GAUGE, description, read))

    def add_peak(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a gauge of the highest value since the last scrape: `read` returns it and starts anew."""
        self._readings.append((name, MetricKind.PEAK, description, read))

    def add_histogram(self, name: str, description: str, bounds: tuple[float, ...], read: HistogramSource) -> None:
        """Expose a histogram. `bounds` are upper bounds in seconds, ascending."""
        self._histograms.append((name, description, bounds, read))

    # reading

    def gather(self) -> Counts:
        """Read all sources, on the event loop only. A source that raises is left out and logged."""
        upstream: dict[tuple[str, str], int] = {}
        for backend, *numbers in _read_all(self._upstream_sources):
            for state, number in zip(UPSTREAM_STATES, numbers, strict=True):
                upstream[backend, state] = upstream.get((backend, state), 0) + number
        downstream: dict[tuple[str, str], int] = {}
        for gateway, listener, connections in _read_all(self._downstream_sources):
            downstream[gateway, listener] = downstream.get((gateway, listener), 0) + connections
        filters: dict[tuple[str, str, str, str, str], int] = {}
        for counts in _read_all(self._filter_sources):
            for result, value in _filter_results(counts):
                key = (counts.name, counts.type, counts.phase, counts.scope, result)
                filters[key] = filters.get(key, 0) + value
        return Counts(
            {labels: series for labels, series in self._series.items() if series.is_used},
            dict(self.dns_lookups),
            dict(self.connections_rejected),
            dict(self.reloads),
            upstream,
            downstream,
            filters,
            dict(self.external_auth.asked),
            dict(self.events),
            dict(_read_all([self._read_readings])),
            dict(_read_all([self._read_histograms])),
        )

    def _read_readings(self) -> Iterator[tuple[str, Reading]]:
        for name, kind, description, read in self._readings:
            yield name, Reading(kind, description, read())

    def _read_histograms(self) -> Iterator[tuple[str, Histogram]]:
        for name, description, bounds, read in self._histograms:
            yield name, Histogram(description, bounds, *read())
        auth = self.external_auth
        if auth.asked:
            description = "How long authorization servers took to answer."
            yield "egress_external_auth_duration_seconds", Histogram(description, AUTH_BUCKETS_S, *auth.counted())


def _filter_results(counts: FilterStats) -> Iterator[tuple[str, int]]:
    """Each run under one result: the sum over results is the number of runs."""
    yield "passed", max(0, counts.runs - counts.rejected - counts.answered - counts.failed)
    yield "rejected", counts.rejected
    yield "answered", counts.answered
    yield "failed", counts.failed - counts.timed_out
    yield "timed_out", counts.timed_out


def _read_all(sources: Iterable[Callable[[], Iterable[_T]]]) -> list[_T]:
    """The values of all sources. A defect in one of them must not remove the metrics of the others."""
    read: list[_T] = []
    for source in sources:
        try:
            read += source()
        except Exception:
            logger.exception("a source of metrics failed; its metrics are missing from this scrape")
    return read


def _add(mine: dict[_K, int], others: Mapping[_K, int]) -> None:
    for key, count in others.items():
        mine[key] = mine.get(key, 0) + count


def _sum(mine: Mapping[_K, int], others: Mapping[_K, int]) -> dict[_K, int]:
    made = dict(mine)
    _add(made, others)
    return made


def _with_one(counts: dict[str, int], key: str) -> dict[str, int]:
    """Count one more of `key`, in the same dictionary or in a new one if it was the shared empty one."""
    if key in counts:
        counts[key] += 1
        return counts
    return {**counts, key: 1}


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
