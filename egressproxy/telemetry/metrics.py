"""Metrics: the series of this process, and the sources of everything else that a scrape shows.

A `Series` is bound to its labels when a Snapshot is built and survives reloads, so that no counter goes backwards.
Identities, of which a certificate authority could make any number, and entries of policies share one overflow series
when there are too many. A scrape has two halves: `gather` reads live objects on the event loop; `telemetry/exposition`
renders the `Counts` of one process or of several, in any thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import starmap
from operator import add
from time import time
from typing import Any, Final, TypeVar

from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.net.tls import handshakes
from egressproxy.telemetry.counters import (
    CALL_BUCKETS_S,
    OVERFLOW,
    QUERY_BUCKETS_S,
    CallCounts,
    DnsQueries,
    Durations,
    EchHellos,
    ExportCounts,
    Interceptions,
    LabelSets,
    McpCalls,
)
from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.event_aggregator import FILTER_BUCKETS_S, EventAggregator, FilterStats
from egressproxy.telemetry.filter_meter import FilterMetrics
from egressproxy.telemetry.series import LABELS, Labels, Series

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

_T = TypeVar("_T")
_Values = Mapping[Any, float]

#: Yields (backend, active connections, idle connections, exchanges that wait for one).
UpstreamSource = Callable[[], Iterable[tuple[str, int, int, int]]]
#: Yields (gateway, listener, open connections).
DownstreamSource = Callable[[], Iterable[tuple[str, str, int]]]
#: Yields the labels of the series of each request in progress.
RequestSource = Callable[[], Iterable[Labels]]
#: Yields (backend, endpoint, state).
EndpointSource = Callable[[], Iterable[tuple[str, str, str]]]
#: Yields (backend, limit), for each endpoint whose limit is reached.
CircuitSource = Callable[[], Iterable[tuple[str, str]]]
#: Yields (parent, whether it is put aside).
ParentSource = Callable[[], Iterable[tuple[str, bool]]]
FilterSource = Callable[[], Iterable[FilterStats]]


class _Room:
    """How many more label sets there may be for entries of policies, and for policies."""

    __slots__ = ("_entries", "_policies")

    def __init__(self) -> None:
        self._entries = self._policies = 0

    def labels(self, policy: str, entry: str) -> tuple[str, str]:
        """The policy and entry of a new label set: OVERFLOW where there is no room."""
        if entry != OVERFLOW:
            return (policy, entry) if self._entries < MAX_ENTRY_SERIES else (policy, OVERFLOW)
        return (policy, OVERFLOW) if self._policies < MAX_ENTRY_SERIES else (OVERFLOW, OVERFLOW)

    def take(self, entry: str) -> None:
        if entry == OVERFLOW:
            self._policies += 1
        else:
            self._entries += 1


class Metrics:
    """All counters of this process, and the `notices`. Sources are called on the event loop at every scrape."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.notices = EventAggregator()
        self.events: Counter[tuple[str, str]] = Counter()  # by type, and one of a closed list of words
        self.dns_lookups: Counter[str] = Counter()
        self.dns_queries = DnsQueries()
        self.reloads: Counter[str] = Counter()
        self.trial_decisions: Counter[tuple[str, str]] = Counter()  # by the policy that would be replaced, and result
        self.connections_rejected: Counter[str] = Counter()  # by the value of a Reason
        self.http2_connections_broken: Counter[str] = Counter()  # by the code of GOAWAY (RFC 9113 section 7)
        self.forwarded_identities: Counter[str] = Counter()  # by result of the verification
        self.interceptions = Interceptions()
        self.ech_hellos = EchHellos()
        self.parents_put_aside: Counter[tuple[str, str]] = Counter()  # by parent and Reason
        self.ejections: Counter[tuple[str, str, str]] = Counter()
        self.shed: Counter[tuple[str, str]] = Counter()  # by why, and priority
        self.external_auth = CallCounts()
        self.filter_calls = CallCounts()
        self.spans = ExportCounts()
        self.log_records = ExportCounts()
        self.metric_points = ExportCounts()
        self.filter_metrics = FilterMetrics()
        self.mcp_calls = McpCalls()
        self.translations: LabelSets[str, str, str, str, str] = LabelSets()
        self.dropped_fields: LabelSets[str, str, str, str, str] = LabelSets()
        self.name_queries: LabelSets[str, str, str, str, str, str] = LabelSets()
        self.config_generation = 0
        self.config_last_reload_success = False
        self.config_last_reload_timestamp_s = 0.0
        self._series: dict[Labels, Series] = {}
        self._of_clients: dict[tuple[Series, str, str], Series] = {}  # by what a client is counted beside
        self._identity_series = 0
        self._allowed_series = _Room()
        self._denied_series = _Room()
        self.upstream_sources: list[UpstreamSource] = []
        self.downstream_sources: list[DownstreamSource] = []
        self.request_sources: list[RequestSource] = []
        self._requests_active: dict[tuple[str, ...], int] = {}  # by gateway, route and backend: 0 of those seen before
        self.filter_sources: list[FilterSource] = []
        self.endpoint_sources: list[EndpointSource] = []
        self.circuit_sources: list[CircuitSource] = []
        self.parent_sources: list[ParentSource] = []
        self._readings: dict[str, tuple[MetricKind, str, Callable[[], float]]] = {}
        self._histograms: dict[str, tuple[str, Durations]] = {}

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
        """The one series of these labels, for the life of the process. `is_denied`: the entry is one that denies."""
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
            counted_by = room.labels(policy, entry)
            if counted_by != (policy, entry):
                return self.series(
                    gateway, route, backend, namespace, service_account, *counted_by, is_denied=is_denied
                )
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

    def count_ejection(self, backend: str, endpoint: str, reason: str) -> None:
        """An endpoint ("host:port") was taken out of service; `reason` is one of a closed list of words."""
        key = (backend, endpoint, reason)
        if key not in self.ejections and len(self.ejections) >= MAX_EJECTION_SERIES:
            key = (backend, OVERFLOW, reason)  # addresses of names come and go
        self.ejections[key] += 1

    def reload_succeeded(self, generation: int) -> None:
        """A configuration was put into service; `generation` counts these from 1."""
        self.config_generation = generation
        self._reloaded("success", True)

    def reload_failed(self, result: str = "failure") -> None:
        """The configuration was refused: `result` "failure", or "guarded" (it would allow what was recently denied)."""
        self._reloaded(result, False)

    def _reloaded(self, result: str, success: bool) -> None:
        self.reloads[result] += 1
        self.config_last_reload_success = success
        self.config_last_reload_timestamp_s = time()

    # registering

    def add_counter(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a counter that another object keeps; `name` is without `_total`. `read` is called on every scrape."""
        self._readings[name] = MetricKind.COUNTER, description, read

    def add_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a gauge; every scrape calls `read` for its value."""
        self._readings[name] = MetricKind.GAUGE, description, read

    def add_peak(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Expose a gauge of the highest value since the last scrape: `read` returns it and starts anew."""
        self._readings[name] = MetricKind.PEAK, description, read

    def add_histogram(self, name: str, description: str, durations: Durations) -> None:
        self._histograms[name] = description, durations

    # reading

    def gather(self) -> Counts:
        """Read all sources, on the event loop only. A source that raises is left out and logged."""
        counts = self.usage()
        counts.families = {**dict(self._families()), **dict(_read_all([self._others])), **counts.families}
        return counts

    def usage(self) -> Counts:
        """The series and what filters count, on the event loop only. It changes no number of the next scrape."""
        used = {labels: series for labels, series in self._series.items() if series.is_used}
        return Counts(used, self.filter_metrics.read())

    def _families(self) -> Iterator[tuple[str, MetricFamily]]:
        """What is counted by labels, but for series: name, help text, labels and values of each metric."""
        connections: Counter[tuple[str, ...]] = Counter()
        waiting: Counter[Labels] = Counter()
        for backend, active, idle, queued in _read_all(self.upstream_sources):
            place = ("-", "-", backend, "-", "-", "-", "-")
            connections[*place, "active"] += active
            connections[*place, "idle"] += idle
            waiting[place] += queued
        yield _gauge(
            "egress_upstream_connections", "Open connections to backends; pools are shared by routes and clients.",
            (*LABELS, "state"), connections,
        )  # fmt: skip
        yield _gauge(
            "egress_upstream_waiting_requests",
            "Requests that wait for a connection because the backend or their client has as many as it may have.",
            LABELS, waiting,
        )  # fmt: skip
        downstream: Counter[tuple[str, str]] = Counter()
        for gateway, listener, number in _read_all(self.downstream_sources):
            downstream[gateway, listener] += number
        yield _gauge(
            "egress_downstream_connections", "Open connections from clients.", ("gateway", "listener"), downstream
        )
        requests: Counter[tuple[str, ...]] = Counter(labels[:3] for labels in _read_all(self.request_sources))
        self._requests_active = {**dict.fromkeys(self._requests_active, 0), **requests}
        yield _gauge(
            "egress_requests_active", "Requests in progress, and tunnels that are not open yet.", LABELS[:3],
            self._requests_active,
        )  # fmt: skip
        endpoints = Counter(_read_all(self.endpoint_sources))
        for backend, endpoint, _ in list(endpoints):
            endpoints[backend, endpoint, "healthy"] += 0
        yield _gauge(
            "egress_endpoint_health",
            "Workers in which an endpoint has this state; one that is not healthy takes no requests.",
            ("backend", "endpoint", "state"), endpoints,
        )  # fmt: skip
        yield _counter(
            "egress_endpoint_ejections", "Times that an endpoint was taken out of service, by reason.",
            ("backend", "endpoint", "reason"), self.ejections,
        )  # fmt: skip
        yield _gauge(
            "egress_circuit_breakers_open", "Endpoints that have reached a limit.",
            ("backend", "limit"), Counter(_read_all(self.circuit_sources)),
        )  # fmt: skip
        aside = {parent: int(is_aside) for parent, is_aside in _read_all(self.parent_sources)}
        yield _gauge("egress_parent_aside", "Workers in which a parent proxy is put aside.", ("parent",), aside)
        yield _counter(
            "egress_parent_put_aside", "Times that a parent proxy was put aside, by reason.",
            ("parent", "reason"), self.parents_put_aside,
        )  # fmt: skip
        runs: Counter[tuple[str, ...]] = Counter()
        took: dict[tuple[str, ...], Durations] = {}
        of_filter = ("filter", "type", "phase", "scope")
        for stats in _read_all(self.filter_sources):
            labels = stats.name, stats.type, stats.phase, stats.scope
            for result, times in _filter_results(stats):
                if times:
                    runs[*labels, result] += times
            if any(stats.buckets):
                total = took.setdefault(labels, Durations(FILTER_BUCKETS_S))
                total.buckets = list(map(add, total.buckets, stats.buckets))
                total.sum_s += stats.sum_s
        yield _counter("egress_filter", "Runs of filters, by result.", (*of_filter, "result"), runs)
        yield "egress_filter_duration_seconds", MetricFamily.timed(
            "How long runs of filters took: all that waited, and a sample of the others.",
            of_filter, FILTER_BUCKETS_S, took,
        )  # fmt: skip
        for name, description, calls in (
            ("egress_external_auth", "How long authorization servers took to answer.", self.external_auth),
            ("egress_filter_call", "How long backends that filters call took to answer.", self.filter_calls),
        ):
            counted: dict[tuple[str, ...], Durations] = {(): calls.durations} if calls.asked else {}
            yield f"{name}_duration_seconds", MetricFamily.timed(description, (), CALL_BUCKETS_S, counted)
        yield "egress_dns_query_duration_seconds", MetricFamily.timed(
            "How long DNS servers took to answer; of those that did not, how long was waited.",
            ("server",), QUERY_BUCKETS_S, {(server,): each for server, each in self.dns_queries.durations.items()},
        )  # fmt: skip
        for what, counts in (
            ("spans", self.spans), ("log_records", self.log_records), ("metric_points", self.metric_points),
        ):  # fmt: skip
            if counts.is_used:
                called = what.replace("_", " ")
                yield _counter(
                    f"egress_{what}_exported", f"What a collector has taken of the {called}.", (),
                    {(): counts.exported},
                )  # fmt: skip
                yield _counter(
                    f"egress_{what}_dropped", f"What no collector has taken of the {called}, by reason.", ("reason",),
                    counts.dropped,
                )  # fmt: skip
                yield _gauge(
                    f"egress_{what}_last_export_success", f"Processes whose latest batch of {called} was taken.", (),
                    {(): int(not counts.last_error)},
                )  # fmt: skip
        yield from starmap(_counter, (
            ("egress_external_auth", "Calls to authorization servers, by result.",
             ("route", "backend", "result"), self.external_auth.asked),
            ("egress_filter_calls", "Calls of filters to backends that their configs refer to, by result.",
             ("filter", "backend", "result"), self.filter_calls.asked),
            ("egress_mcp_messages", "Messages of JSON-RPC to MCP backends, by method, tool and result.",
             ("route", "backend", "method", "tool", "result"), self.mcp_calls.counted),
            ("egress_ai_translated_requests",
             "Requests that went to an AI provider in another API than their client's, by both and by result.",
             ("route", "backend", "client_api", "backend_api", "result"), self.translations),
            ("egress_ai_dropped_fields",
             "Requests of which translation left a field out, by the field.",
             ("route", "backend", "client_api", "backend_api", "field"), self.dropped_fields),
            ("egress_name_server_queries", "DNS queries of clients to listeners of DNS, by type and result.",
             ("gateway", "listener", "type", "result", "namespace", "service_account"), self.name_queries),
            ("egress_events", "Occurrences that Events counted, by type and reason.", ("type", "reason"), self.events),
            ("egress_dns_lookups", "DNS lookups, by result.", ("result",), self.dns_lookups),
            ("egress_dns_queries", "Queries to DNS servers, by server and by the code of the answer.",
             ("server", "result"), self.dns_queries.results),
            ("egress_dns_reverse_checks",
             "Addresses whose names were compared with the name that led there, by result.",
             ("result",), self.dns_queries.reverse),
            ("egress_connections_rejected",
             "Client connections closed at once, and times when none could be accepted.",
             ("reason",), self.connections_rejected),
            ("egress_http2_connections_broken",
             "HTTP/2 connections of clients that were ended for what the client did, by the error code of GOAWAY.",
             ("code",), self.http2_connections_broken),
            ("egress_forwarded_identities",
             "Requests with an X-Egress-Identity of another gateway, by what became of it.",
             ("result",), self.forwarded_identities),
            ("egress_tls_handshakes",
             "TLS handshakes with clients, and with backends and DNS servers, by what became of them.",
             ("side", "result"), handshakes),
            ("egress_minted_certificates", "Certificates that were minted for tunnels that are opened.",
             (), {(): self.interceptions.minted}),
            ("egress_minted_certificates_of_ca",
             "Certificates that were minted by the CA of some clients, by its Secret; gone when that is withdrawn.",
             ("ca",), self.interceptions.of_ca),
            ("egress_intercepted_tunnels", "Tunnels that were to be opened, by what became of TLS with the client.",
             ("result",), self.interceptions.results),
            ("egress_ech_client_hellos",
             "ClientHellos with Encrypted Client Hello, by the name that they show in place of the hidden one.",
             ("gateway", "listener", "outer_name"), self.ech_hellos.counted),
            ("egress_requests_shed",
             "Requests refused since the gateway was overloaded, by why and by their priority.",
             ("reason", "priority"), self.shed),
            ("egress_config_reloads", "Configurations read, that of the start included, by result.",
             ("result",), self.reloads),
            ("egress_policy_trial_decisions",
             "Recent decisions that were made again with policies on trial, by the policy that these would replace.",
             ("policy", "result"), self.trial_decisions),
        ))  # fmt: skip
        yield from starmap(_gauge, (
            ("egress_config_generation", "Configurations put into service, from 1.",
             (), {(): self.config_generation}),
            ("egress_config_last_reload_success", "1 if the last configuration read is in service.",
             (), {(): int(self.config_last_reload_success)}),
            ("egress_config_last_reload_timestamp_seconds", "When a configuration was last read.",
             (), {(): self.config_last_reload_timestamp_s}),
        ))  # fmt: skip

    def _others(self) -> Iterator[tuple[str, MetricFamily]]:
        for name, (kind, description, read) in self._readings.items():
            yield name, MetricFamily(kind, description, (), {(): read()})
        for name, (description, durations) in self._histograms.items():
            yield name, MetricFamily.timed(description, (), durations.bounds, {(): durations})


def _counter(name: str, description: str, labels: tuple[str, ...], values: _Values) -> tuple[str, MetricFamily]:
    """`values` are by the label, or by a tuple of them where there are several."""
    read = {(key,) if isinstance(key, str) else key: value for key, value in values.items()}
    return name, MetricFamily(MetricKind.COUNTER, description, labels, read)


def _gauge(name: str, description: str, labels: tuple[str, ...], values: _Values) -> tuple[str, MetricFamily]:
    return name, replace(_counter(name, description, labels, values)[1], kind=MetricKind.GAUGE)


def _filter_results(counts: FilterStats) -> Iterator[tuple[str, int]]:
    """Each run under one result: the sum over results is the number of runs."""
    yield "passed", counts.runs - counts.rejected - counts.answered - counts.failed - counts.out_of_service
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
