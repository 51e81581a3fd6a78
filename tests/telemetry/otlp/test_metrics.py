"""Metrics as OTLP, read by `opentelemetry-proto`: the same numbers as in a scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.otlp import metrics as encoding
from egressproxy.telemetry.otlp.messages import Envelope
from egressproxy.telemetry.otlp.metrics import MetricEncoder
from egressproxy.telemetry.series import DURATION, Series
from tests.support.collector import read_metrics, value_of

START, NOW = 1_800_000_000_000_000_000, 1_800_000_060_000_000_000
LABELS = ("ns/gw", "ns/r", "ns/b", "-", "-", "-", "-")


def read(counts: Counts) -> tuple[dict[str, Any], int]:
    """Metrics by name, of all requests; and the number of these."""
    families = Exposition("1").families(counts)
    made = list(MetricEncoder(Envelope({"service.name": "egress"}), START).requests(families, NOW))
    found: dict[str, Any] = {}
    for request, count in made:
        resource, metrics = read_metrics(request)
        assert resource == {"service.name": "egress"}
        assert sum(len(points(each)) for each in metrics) == count
        for each in metrics:
            known = found.setdefault(each.name, each)
            if known is not each:
                points(known).extend(points(each))
    return found, len(made)


def points(metric: Any) -> Any:
    return getattr(metric, metric.WhichOneof("data")).data_points


def labels(point: Any) -> dict[str, str]:
    return {each.key: value_of(each.value) for each in point.attributes}


def used(name: str = "ns/gw") -> Counts:
    series = Series((name, *LABELS[1:]))
    series.requests, series.at_once, series.duration_sum_s = {200: 3, 503: 1}, [3, 0, 1, *[0] * 9], 0.5
    series.bytes_in = 120
    series.show(DURATION, (b"a" * 32, b"b" * 16, 0.02, 1_800_000_001.5))
    families = {
        "egress_workers": MetricFamily(MetricKind.GAUGE, "Workers.", (), {(): 2}),
        "egress_loop_seconds": MetricFamily(MetricKind.HISTOGRAM, "Lag.", (), {(): 9.0}, (1.0,), {(): (0, 2)}),
    }
    return Counts({series.labels: series}, families)


def test_a_counter_is_a_cumulative_monotonic_sum():
    metric = read(used())[0]["egress_requests"]
    assert (metric.sum.aggregation_temporality, metric.sum.is_monotonic, metric.unit) == (2, True, "")
    assert metric.description == "Exchanges and tunnels that ended, by the status sent."
    found = {labels(each)["code"]: each for each in metric.sum.data_points}
    assert {code: each.as_double for code, each in found.items()} == {"200": 3, "503": 1}
    assert labels(found["200"])["gateway"] == "ns/gw"
    assert (found["200"].start_time_unix_nano, found["200"].time_unix_nano) == (START, NOW)
    assert read(used())[0]["egress_bytes"].unit == "By"


def test_a_gauge_has_no_start():
    (point,) = read(used())[0]["egress_workers"].gauge.data_points
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (2, 0, NOW)


def test_a_histogram_has_its_bounds_and_what_lies_between_them():
    metrics = read(used())[0]
    metric = metrics["egress_request_duration_seconds"]
    (point,) = metric.histogram.data_points
    assert (metric.unit, metric.histogram.aggregation_temporality) == ("s", 2)
    assert list(point.bucket_counts) == [3, 0, 1, *[0] * 9]
    assert list(point.explicit_bounds)[:3] == [0.001, 0.005, 0.025]
    assert (point.count, point.sum, len(point.explicit_bounds), point.start_time_unix_nano) == (4, 0.5, 11, START)
    assert "le" not in labels(point)
    (shown,) = point.exemplars
    assert (shown.trace_id.hex(), shown.span_id.hex(), shown.as_double) == ("a" * 32, "b" * 16, 0.02)
    assert shown.time_unix_nano == 1_800_000_001_500_000_000
    (lag,) = metrics["egress_loop_seconds"].histogram.data_points
    assert (list(lag.bucket_counts), list(lag.explicit_bounds), lag.count) == ([0, 2], [1.0], 2)


def scraped(counts: Counts) -> Iterable[tuple[str, dict[str, str], float]]:
    for family in Exposition("1").families(counts):
        for sample in family.samples:
            if not sample.name.startswith(("process_", "python_")) and not sample.name.endswith("_bucket"):
                yield sample.name, sample.labels, sample.value


def test_every_number_of_a_scrape_is_there():
    told = {}
    for name, metric in read(used())[0].items():
        for point in points(metric):
            key = tuple(sorted(labels(point).items()))
            if metric.HasField("histogram"):
                told[f"{name}_count", key], told[f"{name}_sum", key] = point.count, point.sum
            else:
                told[name + "_total" * metric.HasField("sum"), key] = point.as_double
    found = {(name, tuple(sorted(labels.items()))): value for name, labels, value in scraped(used())}
    assert len(found) > 10
    assert {key: told[key] for key in found} == found


def test_many_series_go_in_requests_that_a_collector_reads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "MAX_REQUEST", 2000)
    counts = Counts()
    for number in range(50):
        counts.add(used(f"ns/gw{number}"))
    metrics, requests = read(counts)
    assert requests > 20
    assert len(metrics["egress_request_duration_seconds"].histogram.data_points) == 50
    assert {labels(each)["gateway"] for each in metrics["egress_requests"].sum.data_points} == {
        f"ns/gw{number}" for number in range(50)
    }
