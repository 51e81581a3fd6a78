"""Metrics: the series of this process, and the sources of everything else that a scrape shows.

A `Series` is bound to its labels when a Snapshot is built and survives reloads, so that no counter goes backwards.
Identities, of which a certificate authority could make any number, and entries of policies share one overflow series
when there are too many. A scrape has two halves: `gather` reads live objects on the event loop; `telemetry/exposition`
renders the `Counts` of one process or of several, in any thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import time
from typing import Final, TypeVar

from egressproxy.model.exchange import CallerIdentity
from egressproxy.telemetry.call_counts import CALL_BUCKETS_S, CallCounts
from egressproxy.telemetry.counts import Counts, FilterMetric, Histogram, MetricKind, Reading
from egressproxy.telemetry.dns_queries import DnsQueries
from egressproxy.telemetry.ech_hellos import EchHellos
from egressproxy.telemetry.filter_meter import FilterMetrics
from egressproxy.telemetry.interceptions import Interceptions
from egressproxy.telemetry.label_sets import OVERFLOW
from egressproxy.telemetry.mcp_calls import McpCalls
from egressproxy.telemetry.notices import FILTER_BUCKETS_S, FilterStats, Notices
from egressproxy.telemetry.series import Labels, Series
from egressproxy.telemetry.tls_handshakes import read_handshakes
from egressproxy.telemetry.translations import Translations

logger = logging.getLogger(__name__)

#: The most label sets with identities of their own; further identities are counted under OVERFLOW.
MAX_IDENTITY_SERIES: Final = 1000
#: The most clients whose series are found at once; of those without series of their own many share one.
MAX_REMEMBERED_SERIES: Final = 8192
#: The most label sets for entries of policies, over the life of the process; further entries are counted under OVERFLOW
#: with their policy, of which as many are told apart. Each used entry has one. Entries that deny have a bound of their
#: own: a client that asks for everything on a long deny list must not hide what others are allowed by.
MAX_ENTRY_SERIES: Final = 1000
#: The most label sets in all, over the life of the process: names of routes and backends come and go with reloads, and
#: what was counted for them stays. Further ones share one for each gateway, as far as there is room for these.
MAX_SERIES: Final = 65_536
#: The most label sets for endpoints that were ejected, over the life of the process.
MAX_EJECTION_SERIES: Final = 1000

#: What is counted of a backend's pools: active and idle connections, and exchanges that wait for one.
UPSTREAM_STATES: Final = ("active", "idle", "waiting")

_T = TypeVar("_T")

#: Yields (backend, active connections, idle connections, exchanges that wait for one).
UpstreamSource = Callable[[], Iterable[tuple[str, int, int, int]]]
#: Yields (gateway, listener, open connections).
DownstreamSource = Callable[[], Iterable[tuple[str, str, int]]]
#: Yields (backend, endpoint, state).
EndpointSource = Callable[[], Iterable[tuple[str, str, str]]]
#: Yields (backend, limit), for each endpoint whose limit is reached.
CircuitSource = Callable[[], Iterable[tuple[str, str]]]
#: Yields (parent, whether it is put aside).
ParentSource = Callable[[], Iterable[tuple[str, bool]]]
FilterSource = Callable[[], Iterable[FilterStats]]
#: Gives the count of each bucket, one more than there are bounds, and the sum in seconds.
HistogramSource = Callable[[], tuple[tuple[int, ...], float]]


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


class Metrics:
    """All counters of this process, and the notices for Events (`notices`).

    Sources are callables that are registered once. Every scrape calls them on the event loop.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.notices = Notices()
        self.events: Counter[tuple[str, str]] = Counter()
        self.dns_lookups: Counter[str] = Counter()
        self.dns_queries = DnsQueries()
        self.reloads: Counter[str] = Counter()
        self.connections_rejected: Counter[str] = Counter()
        self.http2_connections_broken: Counter[str] = Counter()
        self.forwarded_identities: Counter[str] = Counter()  # by what was found of them
        self.interceptions = Interceptions()
        self.ech_hellos = EchHellos()
        self.parents_put_aside: Counter[tuple[str, str]] = Counter()  # by parent and Reason
        self.ejections: Counter[tuple[str, str, str]] = Counter()
        self.shed: Counter[tuple[str, str]] = Counter()  # by why, and priority
        self.external_auth = CallCounts()
        self.filter_calls = CallCounts()
        self.filter_metrics = FilterMetrics()
        self.mcp_calls = McpCalls()
        self.translations = Translations()
        self.config_generation = 0
        self.config_last_reload_success = False
        self.config_last_reload_timestamp_s = 0.0
        self._series: dict[Labels, Series] = {}
        self._of_clients: dict[tuple[Series, str, str], Series] = {}  # by what a client is counted beside
        self._identity_series = 0
        self._allowed_series = _Room()
        self._denied_series = _Room()
        self._upstream_sources: list[UpstreamSource] = []
        self._downstream_sources: list[DownstreamSource] = []
        self._filter_sources: list[FilterSource] = []
        self._endpoint_sources: list[EndpointSource] = []
        self._circuit_sources: list[CircuitSource] = []
        self._parent_sources: list[ParentSource] = []
        self._readings: list[tuple[str, MetricKind, str, Callable[[], float]]] = []
        self._histograms: list[tuple[str, str, tuple[float, ...], HistogramSource]] = []
        self.add_counter(
            "egress_minted_certificates",
            "Certificates that were minted for tunnels that are opened.",
            lambda: self.interceptions.minted,
        )
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
        if len(self._series) >= MAX_SERIES and (route, backend) != (OVERFLOW, OVERFLOW):
            return self.series(gateway, OVERFLOW, OVERFLOW)
        if len(self._series) >= MAX_SERIES + MAX_IDENTITY_SERIES and gateway != OVERFLOW:
            return self.series(OVERFLOW, OVERFLOW, OVERFLOW)
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

    def of_client(self, series: Series, identity: CallerIdentity, *, is_denied: bool) -> Series:
        """The series beside `series` that counts what was for clients of this namespace and service account."""
        key = series, identity.namespace, identity.service_account
        found = self._of_clients.get(key)
        if found is None:
            labels, who = series.labels, key[1:]
            found = series
            if labels[3:5] != who:
                found = self.series(*labels[:3], *who, *labels[5:], is_denied=is_denied)
            if len(self._of_clients) >= MAX_REMEMBERED_SERIES:
                self._of_clients.clear()
            self._of_clients[key] = found
        return found

    def denied_by(self, series: Series, policy: str, entry: str) -> Series:
        """The series beside `series` that counts what this entry of a policy denied."""
        return self.series(*series.labels[:5], policy, entry, is_denied=True)

    def count_dns(self, result: str) -> None:
        """A lookup ended; `result` is one of the resolver's words: "ok", "hit", "stale", "nxdomain" …"""
        self.dns_lookups[result] += 1

    def connection_rejected(self, reason: str) -> None:
        """A connection was closed before its first request; `reason` is a Reason's value."""
        self.connections_rejected[reason] += 1

    def http2_connection_broken(self, code: str) -> None:
        """A client's HTTP/2 connection was ended for what it did; `code` is that of GOAWAY (RFC 9113 section 7)."""
        self.http2_connections_broken[code] += 1

    def count_ejection(self, backend: str, endpoint: str, reason: str) -> None:
        """An endpoint ("host:port") was taken out of service; `reason` is one of a closed list of words."""
        key = (backend, endpoint, reason)
        if key not in self.ejections and len(self.ejections) >= MAX_EJECTION_SERIES:
            key = (backend, OVERFLOW, reason)  # addresses of names come and go
        self.ejections[key] += 1

    def count_event(self, severity: str, reason: str, count: int) -> None:
        """An Event occurred `count` times; `reason` is one of a closed list of words."""
        self.events[severity, reason] += count

    def reload_succeeded(self, generation: int) -> None:
        """A configuration was put into service; `generation` counts these from 1."""
        self.config_generation = generation
        self._reloaded("success", True)

    def reload_failed(self, result: str = "failure") -> None:
        """The configuration was refused; the one in service and its generation stay.

        `result` is "failure", or "guarded": it would allow what was recently denied.
        """
        self._reloaded(result, False)

    def _reloaded(self, result: str, success: bool) -> None:
        self.reloads[result] += 1
        self.config_last_reload_success = success
        self.config_last_reload_timestamp_s = time()

    # registering

    def add_upstream_source(self, source: UpstreamSource) -> None:
        """Register a source of the connections to backends."""
        self._upstream_sources.append(source)

    def add_downstream_source(self, source: DownstreamSource) -> None:
        """Register a source of the connections to listeners."""
        self._downstream_sources.append(source)

    def add_endpoint_source(self, endpoints: EndpointSource, circuits: CircuitSource) -> None:
        """Register a source of the state of endpoints, and one of the limits of circuit breakers that are reached."""
        self._endpoint_sources.append(endpoints)
        self._circuit_sources.append(circuits)

    def add_parent_source(self, source: ParentSource) -> None:
        """Register a source of the parents that are put aside."""
        self._parent_sources.append(source)

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
        upstream: Counter[tuple[str, str]] = Counter()
        for backend, *numbers in _read_all(self._upstream_sources):
            for state, number in zip(UPSTREAM_STATES, numbers, strict=True):
                upstream[backend, state] += number
        downstream: Counter[tuple[str, str]] = Counter()
        for gateway, listener, connections in _read_all(self._downstream_sources):
            downstream[gateway, listener] += connections
        filters: Counter[tuple[str, str, str, str, str]] = Counter()
        durations = FilterMetric(
            MetricKind.HISTOGRAM,
            "How long runs of filters took: all that waited, and a sample of the others.",
            ("filter", "type", "phase", "scope"),
            {},
            FILTER_BUCKETS_S,
        )
        for counts in _read_all(self._filter_sources):
            labels = counts.name, counts.type, counts.phase, counts.scope
            for result, value in _filter_results(counts):
                filters[*labels, result] += value
            if any(counts.buckets):
                measured = replace(durations, values={labels: counts.sum_s}, buckets={labels: tuple(counts.buckets)})
                durations = durations.plus(measured)
        filter_metrics = self.filter_metrics.read() | self.dns_queries.read() | read_handshakes()
        if durations.values:
            filter_metrics["egress_filter_duration_seconds"] = durations
        return Counts(
            {labels: series for labels, series in self._series.items() if series.is_used},
            dict(self.dns_lookups),
            dict(self.connections_rejected),
            dict(self.http2_connections_broken),
            dict(self.forwarded_identities),
            dict(self.interceptions.results),
            dict(self.ech_hellos.counted),
            dict(self.reloads),
            dict(upstream),
            dict(downstream),
            dict(Counter(_read_all(self._endpoint_sources))),
            dict(self.ejections),
            dict(self.shed),
            dict(Counter(_read_all(self._circuit_sources))),
            {parent: int(is_aside) for parent, is_aside in _read_all(self._parent_sources)},
            dict(self.parents_put_aside),
            dict(filters),
            dict(self.external_auth.asked),
            dict(self.filter_calls.asked),
            dict(self.mcp_calls.counted),
            dict(self.translations.counted),
            dict(self.events),
            dict(_read_all([self._read_readings])),
            dict(_read_all([self._read_histograms])),
            filter_metrics,
        )

    def _read_readings(self) -> Iterator[tuple[str, Reading]]:
        for name, kind, description, read in self._readings:
            yield name, Reading(kind, description, read())

    def _read_histograms(self) -> Iterator[tuple[str, Histogram]]:
        for name, description, bounds, read in self._histograms:
            yield name, Histogram(description, bounds, *read())
        for name, description, calls in (
            ("external_auth", "How long authorization servers took to answer.", self.external_auth),
            ("filter_call", "How long backends that filters call took to answer.", self.filter_calls),
        ):
            if calls.asked:
                yield f"egress_{name}_duration_seconds", Histogram(description, CALL_BUCKETS_S, *calls.counted())


def _filter_results(counts: FilterStats) -> Iterator[tuple[str, int]]:
    """Each run under one result: the sum over results is the number of runs."""
    yield "passed", max(0, counts.runs - counts.rejected - counts.answered - counts.failed - counts.out_of_service)
    yield "rejected", counts.rejected
    yield "answered", counts.answered
    yield "failed", counts.failed - counts.timed_out
    yield "timed_out", counts.timed_out
    yield "out_of_service", counts.out_of_service


def _read_all(sources: Iterable[Callable[[], Iterable[_T]]]) -> list[_T]:
    """The values of all sources. A defect in one of them must not remove the metrics of the others."""
    read: list[_T] = []
    for source in sources:
        try:
            read += source()
        except Exception:
            logger.exception("a source of metrics failed; its metrics are missing from this scrape")
    return read
