"""Metrics and Events of a filter's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.event_aggregator import EventAggregator, FilterNotices
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.filter_meter import MAX_SETS, FilterMeter, FilterMetrics
from egressproxy.telemetry.metrics import Metrics

PII = "acme.example.com/PII:v1"


def meter(metrics: FilterMetrics, name: str = "pii", kind: str = PII) -> FilterMeter:
    return FilterMeter(metrics, name, kind)


def test_the_metrics_of_two_filters_and_two_processes_add_up():
    processes = []
    for worker in (1, 2):
        metrics = FilterMetrics()
        for name in ("a", "b"):
            made = meter(metrics, name)
            made.counter("found", "Finds.", ("kind",)).add(worker, "card")
            made.gauge("open_calls", "Calls.").set(worker)
            made.gauge("expires_s", "When.", combined="min").set(worker)
            made.gauge("worst", "Worst.", combined="max").set(worker)
            made.histogram("took", "How long.", (0.1, 1), ("kind",)).observe(worker / 2, "card")
        processes.append(Counts(families=metrics.read()))
    total = Counts()
    for each in processes:
        total.add(each)
    found = total.families
    assert found["found"].values == {("a", "card"): 3, ("b", "card"): 3}
    assert found["open_calls"].values == {("a",): 3, ("b",): 3}
    assert found["expires_s"].values[("a",)] == 1
    assert found["worst"].values[("a",)] == 2
    assert found["took"].buckets == {("a", "card"): (0, 2, 0), ("b", "card"): (0, 2, 0)}
    assert found["took"].values[("a", "card")] == 1.5
    total.forget_gauges()
    assert set(total.families) == {"found", "took"}


def test_a_scrape_shows_them():
    metrics = Metrics("1")
    made = meter(metrics.filter_metrics)
    made.counter("found", "Finds.", ("kind",)).add(2, 'a "card"')
    made.histogram("took", "How long.", (0.5,)).observe(0.2)
    made.gauge("left", "What is left.").set(7)
    text = Exposition("1").render(metrics.gather())[0].decode()
    assert 'found_total{filter="pii",kind="a \\"card\\""} 2.0' in text
    assert 'took_bucket{filter="pii",le="0.5"} 1.0' in text
    assert 'left{filter="pii"} 7.0' in text


def test_labels_are_bounded():
    metrics = FilterMetrics()
    counter = meter(metrics).counter("found", "Finds.", ("kind",))
    for n in range(MAX_SETS + 50):
        counter.add(1, f"{n}" + "x" * 500)
    values = metrics.read()["found"].values
    assert len(values) == MAX_SETS + 1
    assert values["pii", "_other"] == 50
    assert max(len(label) for labels in values for label in labels) == 128
    with pytest.raises(ValueError, match="kind"):
        counter.add(1)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("Found", ()),
        ("egress_requests", ()),
        ("process_cpu", ()),
        ("found", ("filter",)),
        ("found", ("a", "a")),
        ("", ()),
    ],
)
def test_a_name_that_a_metric_cannot_have_is_refused(name: str, labels: tuple[str, ...]):
    with pytest.raises(ValueError, match="metric"):
        meter(FilterMetrics()).counter(name, "", labels)


def test_a_metric_has_one_form():
    metrics = FilterMetrics()
    meter(metrics).counter("found", "Finds.", ("kind",))
    for labels in ((), ("other",)):
        with pytest.raises(ValueError, match="found is there already"):
            meter(metrics, "other").counter("found", "Finds.", labels)
    with pytest.raises(ValueError, match="found is there already"):
        meter(metrics).gauge("found", "Finds.", ("kind",))
    FilterMeter(metrics, "ours", "egressproxy.io/PIIDetector:v1").counter("egress_pii_found", "Finds.")
    with pytest.raises(ValueError, match="back"):
        meter(metrics).counter("found", "Finds.", ("kind",)).add(-1, "a")
    with pytest.raises(ValueError, match="ascend"):
        meter(metrics).histogram("took", "", (2, 1))
    with pytest.raises(ValueError, match="combined"):
        meter(metrics).gauge("left", "", combined="mean")


def test_the_gauges_of_a_filter_go_with_it_and_its_counters_stay():
    metrics = FilterMetrics()
    old, new = meter(metrics), meter(metrics)
    old.counter("found", "").add()
    gauge = old.gauge("left", "", ("key",))
    gauge.set(1, "a")
    gauge.set(1, "b")
    new.gauge("left", "", ("key",)).set(2, "b")
    old.close()
    assert metrics.read()["left"].values == {("pii", "b"): 2}
    assert metrics.read()["found"].values == {("pii",): 1}


def test_events_of_a_filter_are_counted_together():
    notices = EventAggregator()
    told = FilterNotices(notices, "pii", "EgressPolicy a/p")
    told.warning("EngineDown", "the engine does not answer")
    told.warning("EngineDown", "the engine does not answer")
    told.normal("EngineUp", "the engine answers again")
    down, up = notices.take()
    assert (down.reason, down.count, str(down.regarding)) == ("EngineDown", 2, "EgressPolicy a/p")
    assert down.message == "filter pii: the engine does not answer"
    assert (up.severity, up.reason) == ("Normal", "EngineUp")


def test_the_reasons_of_a_filter_are_few_words():
    told = FilterNotices(EventAggregator(), "pii", "EgressPolicy a/p")
    with pytest.raises(ValueError, match="UpperCamelCase"):
        told.warning("two words", "")
    for n in range(20):
        told.warning(f"Reason{n}", "")
    with pytest.raises(ValueError, match="20 reasons"):
        told.warning("Another", "")


def test_a_counter_with_its_labels_counts_the_same_number_and_has_the_same_bound():
    metrics = FilterMetrics()
    counter = meter(metrics).counter("found", "Finds.", ("kind",))
    card = counter.labelled("card")
    assert not metrics.read(), "what has counted nothing is not shown"
    card.add(2)
    counter.add(1, "card")
    card.add()
    assert metrics.read()["found"].values == {("pii", "card"): 4}
    for number in range(MAX_SETS):
        counter.labelled(f"{number}").add()
    assert metrics.read()["found"].values["pii", "_other"] == 1
    late = counter.labelled("late")
    late.add()
    late.count += 1
    for _ in range(2):  # a scrape counts nothing twice
        values = metrics.read()["found"].values
        assert ("pii", "late") not in values
        assert values["pii", "_other"] == 3
    late.add(4)
    del late  # with its filter
    assert metrics.read()["found"].values["pii", "_other"] == 7
    assert len(values) == MAX_SETS + 1
    with pytest.raises(ValueError, match="backwards"):
        card.add(-1)


@pytest.mark.parametrize("ids", [(b"a" * 32, b"b" * 16), None])
def test_an_exchange_whose_trace_is_recorded_is_an_exemplar(ids: tuple[bytes, bytes] | None):
    metrics, exchange = FilterMetrics(), Exchange("c", "g", "l", 0.0)
    took = meter(metrics).histogram("took", "How long.", (0.1, 1))
    took.observe(0.5, exchange=exchange)
    assert metrics.read()["took"].exemplars == {}
    exchange.trace = SimpleNamespace(sampled_ids=ids)
    took.observe(0.5, exchange=exchange)
    shown = metrics.read()["took"].exemplars.get(("pii",), {})
    assert {bucket: each[:3] for bucket, each in shown.items()} == ({1: (*ids, 0.5)} if ids else {})
