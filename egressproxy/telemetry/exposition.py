"""Exposition: the response to a scrape. Renders the counts of this process and its workers as text.

It takes about 5 µs a sample: with many series, render in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from egressproxy.build import name as build_name
from egressproxy.model.certificate import Validity
from egressproxy.net.loop import loop_name
from egressproxy.telemetry.counts import Counts, FilterMetric, MetricKind
from egressproxy.telemetry.process_figures import ProcessFigures
from egressproxy.telemetry.series import BUCKETS_S

_LABELS: Final = ("gateway", "route", "backend", "namespace", "service_account", "policy", "entry")


def _bound_texts(bounds: Iterable[float]) -> tuple[str, ...]:
    return (*map(str, bounds), "+Inf")


_DURATION_TEXTS: Final = _bound_texts(BUCKETS_S)


class Exposition:
    """Renders the counts, with what every Prometheus client in Python says about its process."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(
        self,
        counts: Counts,
        accept: str = "",
        workers: Iterable[ProcessFigures] = (),
        validities: Iterable[Validity] = (),
    ) -> tuple[bytes, str]:
        """The text and its content type, in the format that `accept` (the scraper's Accept field) prefers.

        `validities` are those of the certificates in service.
        """
        encode, content_type = choose_encoder(accept)
        families = [
            *_traffic(counts), *_gateway(counts), *_workers(workers), _certificates(validities), self._build(),
            *self._registry.collect(),
        ]  # fmt: skip
        return encode(_Families(families)), content_type

    def _build(self) -> Metric:
        build = GaugeMetricFamily("egress_build_info", "Always 1.", labels=("version", "build", "event_loop"))
        build.add_metric((self._version, build_name(), loop_name()), 1)
        return build


class _Families(Collector):
    """A registry for the encoder, with one response that was already collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _traffic(counts: Counts) -> Iterator[Metric]:
    every = tuple(counts.series.values())
    durations = HistogramMetricFamily(
        "egress_request_duration_seconds", "From the first byte of the head to the end.", labels=_LABELS
    )
    traffic = CounterMetricFamily(
        "egress_bytes", "Bytes from the client (in) and to the client (out).", labels=(*_LABELS, "direction")
    )
    tunnels = GaugeMetricFamily("egress_tunnels_active", "Tunnels that are open now.", labels=_LABELS)
    for series in every:
        labels = series.labels
        durations.add_metric(labels, _cumulative(_DURATION_TEXTS, tuple(series.buckets)), series.duration_sum_s)
        traffic.add_metric((*labels, "in"), series.bytes_in)
        traffic.add_metric((*labels, "out"), series.bytes_out)
        tunnels.add_metric(labels, series.tunnels_active)
    yield from (durations, traffic, tunnels)
    for name, description, attribute, label in (
        ("egress_requests", "Exchanges and tunnels that ended, by the status sent.", "requests", "code"),
        ("egress_grpc_calls", "Calls of gRPC that ended, by the status sent.", "calls", "grpc_status"),
        ("egress_denied", "What policy refused.", "denied", "reason"),
        ("egress_would_deny", "What policy would refuse if its mode were Enforce.", "would_deny", "reason"),
        ("egress_request_failures", "Exchanges that failed without being denied.", "failures", "reason"),
        ("egress_upstream_attempts", "Attempts to reach a backend, by how they ended.", "attempts", "result"),
        ("egress_failovers", "Requests that went on to another backend, by why they left this.", "failovers", "reason"),
        ("egress_hedges", "Further attempts beside one that is slow, by what became of them.", "hedges", "outcome"),
        ("egress_mirrored_requests", "Copies of requests to mirrors, by how they ended.", "mirrored", "result"),
    ):
        family = CounterMetricFamily(name, description, labels=(*_LABELS, label))
        for series in every:
            # A copy: another thread may read while the loop adds a key.
            for key, count in sorted(dict(getattr(series, attribute)).items()):
                family.add_metric((*series.labels, str(key)), count)
        yield family


def _gateway(counts: Counts) -> Iterator[Metric]:
    upstream = GaugeMetricFamily(
        "egress_upstream_connections",
        "Open connections to backends; pools are shared by routes and clients.",
        labels=(*_LABELS, "state"),
    )
    waiting = GaugeMetricFamily(
        "egress_upstream_waiting_requests",
        "Requests that wait for a connection because the backend or their client has as many as it may have.",
        labels=_LABELS,
    )
    for (backend, state), count in sorted(counts.upstream.items()):
        labels = ("-", "-", backend, "-", "-", "-", "-")
        if state == "waiting":
            waiting.add_metric(labels, count)
        else:
            upstream.add_metric((*labels, state), count)
    downstream = GaugeMetricFamily(
        "egress_downstream_connections", "Open connections from clients.", labels=("gateway", "listener")
    )
    for place, count in sorted(counts.downstream.items()):
        downstream.add_metric(place, count)
    yield from (upstream, waiting, downstream)
    yield from _endpoints(counts)
    yield from _parents(counts)
    rejected = "Client connections closed at once, and times when none could be accepted."
    reloads = "Configurations read, that of the start included, by result."
    of_filter = ("filter", "type", "phase", "scope", "result")
    yield _counter("egress_filter", "Runs of filters, by result.", of_filter, counts.filters)
    calls = "Calls to authorization servers, by result."
    yield _counter("egress_external_auth", calls, ("route", "backend", "result"), counts.external_auth)
    calls = "Calls of filters to backends that their configs refer to, by result."
    yield _counter("egress_filter_calls", calls, ("filter", "backend", "result"), counts.filter_calls)
    messages = "Messages of JSON-RPC to MCP backends, by method, tool and result."
    of_call = ("route", "backend", "method", "tool", "result")
    yield _counter("egress_mcp_messages", messages, of_call, counts.mcp_calls)
    translated = "Requests that went to an AI provider in another API than their client's, by both and by result."
    of_both = ("route", "backend", "client_api", "backend_api", "result")
    yield _counter("egress_ai_translated_requests", translated, of_both, counts.translations)
    occurrences = "Occurrences that Events counted, by type and reason."
    yield _counter("egress_events", occurrences, ("type", "reason"), counts.events)
    yield _counter("egress_dns_lookups", "DNS lookups, by result.", ("result",), counts.dns_lookups)
    yield _counter("egress_connections_rejected", rejected, ("reason",), counts.connections_rejected)
    broken = "HTTP/2 connections of clients that were ended for what the client did, by the error code of GOAWAY."
    yield _counter("egress_http2_connections_broken", broken, ("code",), counts.http2_connections_broken)
    forwarded = "Requests with an X-Egress-Identity of another gateway, by what became of it."
    yield _counter("egress_forwarded_identities", forwarded, ("result",), counts.forwarded_identities)
    opened = "Tunnels that were to be opened, by what became of TLS with the client."
    yield _counter("egress_intercepted_tunnels", opened, ("result",), counts.interceptions)
    hidden = "ClientHellos with Encrypted Client Hello, by the name that they show in place of the hidden one."
    yield _counter("egress_ech_client_hellos", hidden, ("gateway", "listener", "outer_name"), counts.ech_hellos)
    refused = "Requests refused since the gateway was overloaded, by why and by their priority."
    yield _counter("egress_requests_shed", refused, ("reason", "priority"), counts.shed)
    yield _counter("egress_config_reloads", reloads, ("result",), counts.reloads)
    for name, reading in counts.readings.items():
        family = CounterMetricFamily if reading.kind is MetricKind.COUNTER else GaugeMetricFamily
        yield family(name, reading.description, reading.value)
    for name, histogram in counts.histograms.items():
        buckets = _cumulative(_bound_texts(histogram.bounds), histogram.buckets)
        yield HistogramMetricFamily(name, histogram.description, buckets, histogram.sum_s)
    for name, metric in sorted(counts.filter_metrics.items()):
        yield _of_filters(name, metric)


def _of_filters(name: str, metric: FilterMetric) -> Metric:
    if metric.kind is MetricKind.HISTOGRAM:
        histograms = HistogramMetricFamily(name, metric.description, labels=metric.labels)
        bounds = _bound_texts(metric.bounds)
        for labels, total in sorted(metric.values.items()):
            histograms.add_metric(labels, _cumulative(bounds, metric.buckets[labels]), total)
        return histograms
    family = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    numbers = family(name, metric.description, labels=metric.labels)
    for labels, value in sorted(metric.values.items()):
        numbers.add_metric(labels, value)
    return numbers


def _endpoints(counts: Counts) -> Iterator[Metric]:
    """What is known of endpoints; nothing where no policy watches any."""
    health = GaugeMetricFamily(
        "egress_endpoint_health",
        "Workers in which an endpoint has this state; one that is not healthy takes no requests.",
        labels=("backend", "endpoint", "state"),
    )
    for backend, endpoint in sorted({key[:2] for key in counts.endpoints}):
        health.add_metric((backend, endpoint, "healthy"), counts.endpoints.get((backend, endpoint, "healthy"), 0))
    for key, count in sorted(counts.endpoints.items()):
        if key[2] != "healthy":
            health.add_metric(key, count)
    circuits = GaugeMetricFamily(
        "egress_circuit_breakers_open", "Endpoints that have reached a limit.", labels=("backend", "limit")
    )
    for place, count in sorted(counts.open_circuits.items()):
        circuits.add_metric(place, count)
    ejected = "Times that an endpoint was taken out of service, by reason."
    yield health
    yield _counter("egress_endpoint_ejections", ejected, ("backend", "endpoint", "reason"), counts.ejections)
    yield circuits


def _parents(counts: Counts) -> Iterator[Metric]:
    """Of places with several parents, or with destinations that go past them."""
    aside = GaugeMetricFamily(
        "egress_parent_aside", "Workers in which a parent proxy is put aside.", labels=("parent",)
    )
    for parent, workers in sorted(counts.parents_aside.items()):
        aside.add_metric((parent,), workers)
    times = "Times that a parent proxy was put aside, by reason."
    yield aside
    yield _counter("egress_parent_put_aside", times, ("parent", "reason"), counts.parents_put_aside)


def _workers(workers: Iterable[ProcessFigures]) -> Iterator[Metric]:
    memory = GaugeMetricFamily("egress_worker_resident_memory_bytes", "Of a worker process.", labels=("worker",))
    cpu = CounterMetricFamily(
        "egress_worker_cpu_seconds", "User and system time of a worker, its predecessors' included.", labels=("worker",)
    )
    for figures in workers:
        memory.add_metric((str(figures.worker),), figures.resident_bytes)
        cpu.add_metric((str(figures.worker),), figures.cpu_s)
    yield from (memory, cpu)


def _certificates(validities: Iterable[Validity]) -> Metric:
    expiry = GaugeMetricFamily(
        "egress_certificate_expiry_timestamp_seconds",
        "When certificates and revocation lists in service end; of CA certificates the first of each object.",
        labels=("use", "kind", "namespace", "name"),
    )
    for each in validities:
        expiry.add_metric((each.use.value, each.kind, each.namespace, each.name), each.not_after_s)
    return expiry


def _counter(name: str, description: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> CounterMetricFamily:
    """`values` are by the label, or by a tuple of them where there are several."""
    family = CounterMetricFamily(name, description, labels=labels)
    for key, count in sorted(dict(values).items()):
        family.add_metric((key,) if isinstance(key, str) else key, count)
    return family


def _cumulative(bounds: tuple[str, ...], buckets: tuple[int, ...]) -> list[tuple[str, float]]:
    return list(zip(bounds, accumulate(buckets), strict=True))
