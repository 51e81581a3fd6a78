"""What is rendered beside what was counted."""

from __future__ import annotations

import pickle

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.series import ANSWER, DURATION, Series

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

NAME = "egress_certificate_expiry_timestamp_seconds"


def test_the_end_of_each_certificate_is_a_gauge_under_its_object():
    one = Validity(CertificateUse.LISTENER, "Secret", "ns", "front", 0.0, 1_900_000_000.0, 1_900_000_000.0)
    ca = Validity(CertificateUse.CA, "ConfigMap", "ns", "front", 0.0, 1_800_000_000.0, 1_900_000_000.0)
    text, _ = Exposition("1").render(Counts(), validities=(one, ca))
    lines = [line for line in text.decode().splitlines() if line.startswith(NAME)]
    assert lines == [
        f'{NAME}{{kind="Secret",name="front",namespace="ns",use="listener"}} 1.9e+09',
        f'{NAME}{{kind="ConfigMap",name="front",namespace="ns",use="ca"}} 1.8e+09',
    ]
    assert NAME not in Exposition("1").render(Counts())[0].decode().replace(f"# HELP {NAME}", "").replace(
        f"# TYPE {NAME}", ""
    )


def exemplars(counts: Counts) -> dict[tuple[str, str], tuple[str, str, float, float]]:
    """By name of the histogram and bound, as a scraper that accepts OpenMetrics reads them."""
    text = Exposition("1").render(counts, accept=OPENMETRICS)[0].decode()
    return {
        (family.name, sample.labels["le"]): (
            sample.exemplar.labels["trace_id"], sample.exemplar.labels["span_id"], sample.exemplar.value,
            float(sample.exemplar.timestamp),
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar
    }  # fmt: skip


def test_the_latest_exemplar_of_all_workers_is_shown():
    counts = Counts()
    for trace, at in ((b"a", 5.0), (b"b", 7.0), (b"c", 6.0)):
        labels = ("g", "r", "b", "-", "-", "-", trace.decode())  # another entry: the same backend
        series = Series(labels)
        series.requests, series.at_once, series.answers = {200: 1}, [1] + 11 * [0], [1] + 11 * [0]
        series.show(ANSWER, (trace * 32, trace * 16, 0.0005, at))
        series.show(DURATION, (trace * 32, trace * 16, 0.0004, at))
        family = MetricFamily(MetricKind.HISTOGRAM, "", ("filter",), {("f",): 9.0}, (1.0,), {("f",): (0, 1)})
        family.exemplars["f",] = {1: (trace * 32, trace * 16, 9.0, at)}
        counts.add(pickle.loads(pickle.dumps(Counts({labels: series}, {"first_token": family}))))
    found = exemplars(counts)
    assert found["egress_upstream_response_seconds", "0.001"] == ("b" * 32, "b" * 16, 0.0005, 7.0)
    assert found["first_token", "+Inf"] == ("b" * 32, "b" * 16, 9.0, 7.0)
    assert "egress_response_first_byte_seconds" not in {name for name, _ in found}
    assert " # {" not in Exposition("1").render(counts)[0].decode()
