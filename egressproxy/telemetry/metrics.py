"""Metrics: plain integers on the request path, read by a prometheus-client collector at scrape time.

A `Series` is bound to its labels when a Snapshot is built and is kept over reloads, so that no counter goes backwards.
Label values come from the configuration and from closed enums, never from a client; identities, which a certificate
authority could mint without end, share one overflow series once there are too many. A scrape has two halves: `gather`
reads live objects and belongs on the event loop, `render` is the expensive one and may run in another thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import time
from typing import Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange

__all__ = [
    "BUCKETS_S",
    "DownstreamSource",
    "FilterCounts",
    "FilterSource",
    "Metrics",
    "Readings",
    "Series",
    "UpstreamSource",
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

#: Label sets that tell identities apart before new identities are counted under OVERFLOW.
MAX_IDENTITY_SERIES: Final = 1000
OVERFLOW: Final = "_other"

#: What nginx logs, and Envoy's dashboards know, for a client that left before it was answered.
CLIENT_CLOSED: Final = 499

_LABELS: Final = ("gateway", "route", "backend", "namespace", "service_account")
_OK: Final = Reason.OK

_T = TypeVar("_T")


class FilterCounts(Protocol):
    """What a filter's counters look like: of all `runs`, some were `rejected`, `answered` or `failed`.

    `failed` includes those that `timed_out`.
    """

    name: str
    type: str
    phase: str
    scope: str
    runs: int
    rejected: int
    answered: int
    failed: int
    timed_out: int


#: Yields (backend, active connections, idle connections).
UpstreamSource = Callable[[], Iterable[tuple[str, int, int]]]
#: Yields (gateway, listener, open connections).
DownstreamSource = Callable[[], Iterable[tuple[str, str, int]]]
FilterSource = Callable[[], Iterable[FilterCounts]]


def logged_status(x: Exchange) -> int:
    """The status to count and log: as sent; 499 where the client left before an answer; 0 where nothing was sent."""
    return x.status or (CLIENT_CLOSED if x.reason is Reason.CLIENT_GONE else 0)


class Series:
    """The counters of one label set. The conductor calls `observe` exactly once per exchange or tunnel, at its end.

    `tunnels_active` is raised and lowered by the conductor; `attempts` by `attempt`.
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
        "requests",
        "tunnels_active",
        "would_deny",
    )

    def __init__(
        self, gateway: str, route: str, backend: str, namespace: str = "-", service_account: str = "-"
    ) -> None:
        self.labels = (gateway, route, backend, namespace, service_account)
        self.requests: dict[int, int] = {}
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.duration_sum_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.denied: dict[str, int] = {}
        self.would_deny: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.tunnels_active = 0
        self.attempts: dict[str, int] = {}

    def observe(self, x: Exchange) -> None:
        status = x.status or logged_status(x)
        try:
            self.requests[status] += 1
        except KeyError:
            self.requests[status] = 1
        duration = x.ended_at - x.started_at
        self.buckets[bisect_left(BUCKETS_S, duration)] += 1
        self.duration_sum_s += duration
        self.bytes_in += x.bytes_in
        self.bytes_out += x.bytes_out
        if x.denied:
            _count(self.denied, x.reason.value)
        elif x.reason is not _OK:
            _count(self.failures, x.reason.value)
        if x.would_deny:
            for reason in x.would_deny:
                _count(self.would_deny, reason.value)

    def attempt(self, result: str) -> None:
        """One attempt to reach the backend ended: "ok" or the Reason's value."""
        _count(self.attempts, result)

    @property
    def is_used(self) -> bool:
        return bool(self.requests or self.attempts or self.tunnels_active)

    def __repr__(self) -> str:
        return f"Series({'/'.join(self.labels)}, {sum(self.requests.values())} observed, {self.tunnels_active} tunnels)"


@dataclass(frozen=True, slots=True)
class Readings:
    """What had to be read from live objects; the rest is safe to read from any thread."""

    upstream: dict[tuple[str, str], int]
    downstream: dict[tuple[str, str], int]
    filters: dict[tuple[str, str, str, str, str], int]
    counts: tuple[tuple[str, str, str, float], ...]


class Metrics:
    """Everything that is counted in this process.

    Sources are callables that the gateway registers once; they are called on every scrape, on the event loop, and yield
    what is there now.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.dns_lookups: dict[str, int] = {}
        self.reloads: dict[str, int] = {}
        self.connections_rejected: dict[str, int] = {}
        self.config_generation = 0
        self.config_last_reload_success = False
        self.config_last_reload_timestamp_s = 0.0
        self._series: dict[tuple[str, str, str, str, str], Series] = {}
        self._identity_series = 0
        self._upstream_sources: list[UpstreamSource] = []
        self._downstream_sources: list[DownstreamSource] = []
        self._filter_sources: list[FilterSource] = []
        self._counts: list[tuple[str, str, str, Callable[[], float]]] = []
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    # counting

    def series(
        self,
        gateway: str,
        route: str,
        backend: str,
        namespace: str = "-",
        service_account: str = "-",
    ) -> Series:
        """Get or create: the same labels give the same object for the life of the process."""
        key = (gateway, route, backend, namespace, service_account)
        found = self._series.get(key)
        if found is not None:
            return found
        if namespace != "-" or service_account != "-":
            if self._identity_series >= MAX_IDENTITY_SERIES and namespace != OVERFLOW:
                return self.series(gateway, route, backend, OVERFLOW, OVERFLOW)
            self._identity_series += 1
        made = self._series[key] = Series(*key)
        return made

    def count_dns(self, result: str) -> None:
        """A lookup ended; `result` is one of the few words of the resolver: "ok", "hit", "stale", "nxdomain" …"""
        _count(self.dns_lookups, result)

    def connection_rejected(self, reason: str) -> None:
        """A connection was closed before it could ask for anything; `reason` is a Reason's value."""
        _count(self.connections_rejected, reason)

    def reload_succeeded(self, generation: int) -> None:
        self.config_generation = generation
        self._reloaded("success", True)

    def reload_failed(self) -> None:
        """The configuration was refused; the one in service, and its generation, stay."""
        self._reloaded("failure", False)

    def _reloaded(self, result: str, success: bool) -> None:
        _count(self.reloads, result)
        self.config_last_reload_success = success
        self.config_last_reload_timestamp_s = time()

    # registering

    def add_upstream_source(self, source: UpstreamSource) -> None:
        self._upstream_sources.append(source)

    def add_downstream_source(self, source: DownstreamSource) -> None:
        self._downstream_sources.append(source)

    def add_filter_source(self, source: FilterSource) -> None:
        self._filter_sources.append(source)

    def add_counter(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a counter that something else keeps; `name` without `_total`."""
        self._counts.append(("counter", name, description, read))

    def add_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        self._counts.append(("gauge", name, description, read))

    # reading

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The whole answer to a scrape and its content type; `accept` is the scraper's Accept field."""
        return self.render(self.gather(), accept)

    def gather(self) -> Readings:
        """Ask the sources. On the event loop only; a source that raises is left out, and logged."""
        upstream: dict[tuple[str, str], int] = {}
        for backend, active, idle in _read_all(self._upstream_sources):
            upstream[backend, "active"] = upstream.get((backend, "active"), 0) + active
            upstream[backend, "idle"] = upstream.get((backend, "idle"), 0) + idle
        downstream: dict[tuple[str, str], int] = {}
        for gateway, listener, connections in _read_all(self._downstream_sources):
            downstream[gateway, listener] = downstream.get((gateway, listener), 0) + connections
        filters: dict[tuple[str, str, str, str, str], int] = {}
        for counts in _read_all(self._filter_sources):
            for result, value in _filter_results(counts):
                key = (counts.name, counts.type, counts.phase, counts.scope, result)
                filters[key] = filters.get(key, 0) + value
        return Readings(upstream, downstream, filters, tuple(_read_all([self._read_counts])))

    def _read_counts(self) -> Iterator[tuple[str, str, str, float]]:
        for kind, name, description, read in self._counts:
            yield kind, name, description, read()

    def render(self, readings: Readings, accept: str = "") -> tuple[bytes, str]:
        """Text in the format that `accept` prefers. About 5 µs a sample: a thread is the place for many series."""
        encode, content_type = choose_encoder(accept)
        families = [*self._traffic(), *self._gateway(), *_sources(readings), *self._registry.collect()]
        return encode(_Families(families)), content_type

    def _traffic(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "egress_requests", "Exchanges and tunnels that ended, by the status sent.", labels=(*_LABELS, "code")
        )
        durations = HistogramMetricFamily(
            "egress_request_duration_seconds", "From the first byte of the head to the end.", labels=_LABELS
        )
        octets = CounterMetricFamily(
            "egress_bytes", "Octets from the client (in) and to the client (out).", labels=(*_LABELS, "direction")
        )
        denied = CounterMetricFamily("egress_denied", "What policy refused.", labels=(*_LABELS, "reason"))
        would_deny = CounterMetricFamily(
            "egress_would_deny", "What policy would refuse if its mode were Enforce.", labels=(*_LABELS, "reason")
        )
        failures = CounterMetricFamily(
            "egress_request_failures", "Exchanges that failed without being denied.", labels=(*_LABELS, "reason")
        )
        tunnels = GaugeMetricFamily("egress_tunnels_active", "Tunnels that are open now.", labels=_LABELS)
        attempts = CounterMetricFamily(
            "egress_upstream_attempts", "Attempts to reach a backend, by how they ended.", labels=(*_LABELS, "result")
        )
        for series in tuple(self._series.values()):
            if not series.is_used:
                continue
            labels = series.labels
            # Copies: another thread may read while the loop adds a key.
            for code, count in sorted(dict(series.requests).items()):
                requests.add_metric((*labels, str(code)), count)
            for family, by_word in (
                (denied, series.denied),
                (would_deny, series.would_deny),
                (failures, series.failures),
                (attempts, series.attempts),
            ):
                for word, count in sorted(dict(by_word).items()):
                    family.add_metric((*labels, word), count)
            durations.add_metric(labels, _cumulative(tuple(series.buckets)), series.duration_sum_s)
            octets.add_metric((*labels, "in"), series.bytes_in)
            octets.add_metric((*labels, "out"), series.bytes_out)
            tunnels.add_metric(labels, series.tunnels_active)
        yield from (requests, durations, octets, denied, would_deny, failures, tunnels, attempts)

    def _gateway(self) -> Iterator[Metric]:
        yield _counter("egress_dns_lookups", "DNS lookups, by result.", "result", self.dns_lookups)
        yield _counter(
            "egress_connections_rejected", "Client connections closed at once.", "reason", self.connections_rejected
        )
        yield _counter("egress_config_reloads", "Configurations read, by result.", "result", self.reloads)
        yield GaugeMetricFamily(
            "egress_config_generation", "Configurations put into service, from 1.", self.config_generation
        )
        yield GaugeMetricFamily(
            "egress_config_last_reload_success",
            "1 if the last configuration read is in service.",
            int(self.config_last_reload_success),
        )
        yield GaugeMetricFamily(
            "egress_config_last_reload_timestamp_seconds",
            "When a configuration was last read.",
            self.config_last_reload_timestamp_s,
        )
        build = GaugeMetricFamily("egress_build_info", "Always 1.", labels=("version",))
        build.add_metric((self.version,), 1)
        yield build


class _Families(Collector):
    """An encoder reads a registry; this is one answer, already collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _sources(readings: Readings) -> Iterator[Metric]:
    upstream = GaugeMetricFamily(
        "egress_upstream_connections",
        "Open connections to backends; pools are shared by routes and clients.",
        labels=(*_LABELS, "state"),
    )
    for (backend, state), count in sorted(readings.upstream.items()):
        upstream.add_metric(("-", "-", backend, "-", "-", state), count)
    yield upstream
    downstream = GaugeMetricFamily(
        "egress_downstream_connections", "Open connections from clients.", labels=("gateway", "listener")
    )
    for place, count in sorted(readings.downstream.items()):
        downstream.add_metric(place, count)
    yield downstream
    filters = CounterMetricFamily(
        "egress_filter", "Runs of filters, by how they ended.", labels=("filter", "type", "phase", "scope", "result")
    )
    for labels, count in sorted(readings.filters.items()):
        filters.add_metric(labels, count)
    yield filters
    for kind, name, description, value in readings.counts:
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        yield family(name, description, value)


def _filter_results(counts: FilterCounts) -> Iterator[tuple[str, int]]:
    """Each run under one result, so that the sum over results is the number of runs."""
    yield "passed", max(0, counts.runs - counts.rejected - counts.answered - counts.failed)
    yield "rejected", counts.rejected
    yield "answered", counts.answered
    yield "failed", counts.failed - counts.timed_out
    yield "timed_out", counts.timed_out


def _read_all(sources: Iterable[Callable[[], Iterable[_T]]]) -> list[_T]:
    """What all sources yield. A defect in one of them must not take the other metrics away."""
    read: list[_T] = []
    for source in sources:
        try:
            read += source()
        except Exception:
            logger.exception("a source of metrics failed; its metrics are left out of this scrape")
    return read


def _counter(name: str, description: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, description, labels=(label,))
    for word, count in sorted(dict(values).items()):
        family.add_metric((word,), count)
    return family


def _cumulative(buckets: tuple[int, ...]) -> list[tuple[str, float]]:
    total = 0
    made: list[tuple[str, float]] = []
    for bound, count in zip(_BOUND_TEXTS, buckets, strict=True):
        total += count
        made.append((bound, total))
    return made


_BOUND_TEXTS: Final = (*(str(bound) for bound in BUCKETS_S), "+Inf")


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
