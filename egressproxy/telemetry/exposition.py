"""Exposition: the response to a scrape. With many series render it in a thread: a sample takes about 5 µs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from operator import add
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar

from egressproxy.build import name as build_name
from egressproxy.model.certificate import Validity
from egressproxy.net.loop import loop_name
from egressproxy.telemetry.counters import Durations
from egressproxy.telemetry.counts import Counts, MetricKind, ProcessFigures
from egressproxy.telemetry.series import ANSWER, BUCKETS_S, DURATION, FIRST_BYTE, LABELS, Exemplar, Series, latest


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
        workers: Iterable[ProcessFigures] = (),
        validities: Iterable[Validity] = (),
        accept: str = "",
    ) -> tuple[bytes, str]:
        """The text and its content type, as the scraper's `accept` prefers. `validities`: certificates in service."""
        encode, content_type = choose_encoder(accept)
        return encode(_Families(self.families(counts, workers, validities))), content_type

    def families(
        self, counts: Counts, workers: Iterable[ProcessFigures] = (), validities: Iterable[Validity] = ()
    ) -> list[Metric]:
        """All metrics, as `render` has them."""
        return [
            *_traffic(counts), *_families(counts), *_workers(workers), _certificates(validities), self._build(),
            *self._registry.collect(),
        ]  # fmt: skip

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
        "egress_request_duration_seconds", "From the first byte of the head to the end.", labels=LABELS
    )
    traffic = CounterMetricFamily(
        "egress_bytes", "Bytes from the client (in) and to the client (out).", labels=(*LABELS, "direction")
    )
    tunnels = GaugeMetricFamily("egress_tunnels_active", "Tunnels that are open now.", labels=LABELS)
    for series in every:
        labels = series.labels
        if series.requests:
            buckets = _cumulative(_DURATION_TEXTS, tuple(series.durations), series.exemplars_of(DURATION))
            durations.add_metric(labels, buckets, series.duration_sum_s)
        for direction, size in (("in", series.bytes_in), ("out", series.bytes_out)):
            if size:
                traffic.add_metric((*labels, direction), size)
        if series.has_tunnels:
            tunnels.add_metric(labels, series.tunnels_active)
    yield from (durations, traffic, tunnels)
    yield _by_backend(
        "egress_response_first_byte_seconds",
        "From the first byte of the request's head to that of the response; for a tunnel, until it was open.",
        FIRST_BYTE,
        ((series, series.first_bytes, series.first_byte_sum_s) for series in every if series.requests),
    )
    yield _by_backend(
        "egress_upstream_response_seconds",
        "From the beginning of an attempt to the head of the backend's response; for a tunnel, until it was connected.",
        ANSWER,
        ((series, series.answers, series.answer_sum_s) for series in every if series.answers),
    )
    for name, description, attribute, label in (
        ("egress_requests", "Exchanges and tunnels that ended, by the status sent.", "requests", "code"),
        ("egress_grpc_calls", "Calls of gRPC that ended, by the status sent.", "calls", "grpc_status"),
        ("egress_denied", "What policy refused.", "denied", "reason"),
        ("egress_would_deny", "What policy would refuse if its mode were Enforce.", "would_deny", "reason"),
        ("egress_request_failures", "Exchanges that failed without being denied.", "failures", "reason"),
        ("egress_upstream_attempts", "Attempts to reach a backend, by how they ended.", "attempts", "result"),
        ("egress_failovers", "Requests that went on to another backend, by why they left this.", "failovers", "reason"),
        ("egress_hedges", "Hedged attempts beside a slow one, by outcome.", "hedges", "outcome"),
        ("egress_mirrored_requests", "Copies of requests to mirrors, by how they ended.", "mirrored", "result"),
    ):
        family = CounterMetricFamily(name, description, labels=(*LABELS, label))
        for series in every:
            # A copy: another thread may read while the loop adds a key.
            for key, count in sorted(dict(getattr(series, attribute)).items()):
                family.add_metric((*series.labels, str(key)), count)
        yield family


def _by_backend(
    name: str, description: str, histogram: int, counted: Iterable[tuple[Series, list[int], float]]
) -> Metric:
    """A histogram of all clients and policies together, by gateway, route and backend alone."""
    found: dict[tuple[str, ...], Durations] = {}
    shown: dict[tuple[str, ...], dict[int, Exemplar]] = {}
    for series, buckets, sum_s in counted:
        key: tuple[str, ...] = series.labels[:3]
        if series.exemplars:
            shown[key] = latest(shown.get(key, {}), series.exemplars_of(histogram))
        total = found.setdefault(key, Durations(BUCKETS_S))
        total.buckets = list(map(add, total.buckets, buckets))
        total.sum_s += sum_s
    family = HistogramMetricFamily(name, description, labels=LABELS[:3])
    for key, total in found.items():
        if any(total.buckets):
            family.add_metric(key, _cumulative(_DURATION_TEXTS, tuple(total.buckets), shown.get(key, {})), total.sum_s)
    return family


def _families(counts: Counts) -> Iterator[Metric]:
    for name, family in sorted(counts.families.items()):
        if family.kind is MetricKind.HISTOGRAM:
            histograms = HistogramMetricFamily(name, family.description, labels=family.labels)
            bounds = _bound_texts(family.bounds)
            for labels, total in sorted(family.values.items()):
                shown = family.exemplars.get(labels, {})
                histograms.add_metric(labels, _cumulative(bounds, family.buckets[labels], shown), total)
            yield histograms
            continue
        of_kind = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
        numbers = of_kind(name, family.description, labels=family.labels)
        for labels, value in sorted(family.values.items()):
            numbers.add_metric(labels, value)
        yield numbers


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


def _cumulative(
    bounds: tuple[str, ...], buckets: tuple[int, ...], shown: Mapping[int, Exemplar]
) -> list[tuple[str, float] | tuple[str, float, PrometheusExemplar]]:
    """Bounds and counts, with the exemplars `shown` of some buckets, which Prometheus text leaves out."""
    found: list[tuple[str, float] | tuple[str, float, PrometheusExemplar]] = [
        *zip(bounds, accumulate(buckets), strict=True)
    ]
    for bucket, (trace_id, span_id, value, at_s) in shown.items():
        ids = {"trace_id": trace_id.decode(), "span_id": span_id.decode()}
        found[bucket] = (*found[bucket][:2], PrometheusExemplar(ids, value, at_s))
    return found
