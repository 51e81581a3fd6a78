"""What is counted, and that a scrape shows exactly that."""

from __future__ import annotations

import pickle
import re
import threading
import tracemalloc
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from egressproxy import build
from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.event_aggregator import FilterStats
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.metrics import MAX_IDENTITY_SERIES, Metrics
from egressproxy.telemetry.series import MAX_STATUSES, logged_status


def exchange(status: int = 200, reason: Reason = Reason.OK, duration_s: float = 0.02, **fields: object) -> Exchange:
    x = Exchange("192.0.2.1:5000", "default/gw", "forward", 100.0)
    x.ended_at = 100.0 + duration_s
    x.status = status
    x.reason = reason
    for name, value in fields.items():
        setattr(x, name, value)
    return x


def exposition(metrics: Metrics, accept: str = "") -> tuple[bytes, str]:
    return Exposition(metrics.version).render(metrics.gather(), accept=accept)


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, _ = exposition(metrics)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """The sum over all samples of this name that have these labels."""
    wanted = set(labels.items())
    found = [number for (sample, having), number in scrape(metrics).items() if sample == name and wanted <= having]
    assert found, f"no sample {name} {labels}"
    return sum(found)


def test_an_origin_that_makes_statuses_up_makes_no_more_than_a_few_labels():
    metrics = Metrics("1")
    series = metrics.series("g", "r", "b")
    for status in (200, 404, *range(200, 1000), 404):
        series.observe(exchange(status))
    assert len(series.requests) <= MAX_STATUSES + 9
    assert value(metrics, "egress_requests_total") == 803
    assert value(metrics, "egress_requests_total", code="404") == 3
    assert value(metrics, "egress_requests_total", code="900") == 100
    assert value(metrics, "egress_request_duration_seconds_count") == 803


def test_an_exchange_is_counted_once_in_every_metric_it_belongs_to():
    metrics = Metrics("1")
    metrics.series("default/gw", "default/r", "default/b").observe(exchange(bytes_in=120, bytes_out=3000))
    labels = {
        "gateway": "default/gw",
        "route": "default/r",
        "backend": "default/b",
        "namespace": "-",
        "service_account": "-",
    }
    assert value(metrics, "egress_requests_total", code="200", **labels) == 1
    assert value(metrics, "egress_bytes_total", direction="in", **labels) == 120
    assert value(metrics, "egress_bytes_total", direction="out", **labels) == 3000
    assert value(metrics, "egress_request_duration_seconds_count", **labels) == 1
    assert value(metrics, "egress_request_duration_seconds_sum", **labels) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("duration_s", "first_bucket"),
    [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.005"), (3600.0, "3600.0"), (3601.0, "+Inf")],
)
def test_a_duration_falls_into_the_first_bucket_that_holds_it(duration_s: float, first_bucket: str):
    metrics = Metrics("1")
    series = metrics.series("g", "r", "b")
    series.observe(exchange(duration_s=duration_s, started_at=0.0, ended_at=duration_s))
    buckets = {
        dict(labels)["le"]: number for (name, labels), number in scrape(metrics).items() if name.endswith("_bucket")
    }
    assert min((float(le) for le, number in buckets.items() if number == 1)) == float(first_bucket)
    assert buckets["+Inf"] == 1


def test_a_denial_is_counted_by_reason_and_among_the_requests():
    metrics = Metrics("1")
    metrics.series("g", "-", "-").observe(exchange(403, Reason.DESTINATION_DENIED, denied=True))
    assert value(metrics, "egress_denied_total", reason="destination_denied") == 1
    assert value(metrics, "egress_requests_total", code="403") == 1
    assert not [key for key in scrape(metrics) if key[0] == "egress_request_failures_total"]


def test_calls_are_counted_by_the_name_of_their_status():
    metrics = Metrics("1")
    series = metrics.series("g", "r", "b")
    for status in (0, 0, 14, -1):
        series.observe(exchange(200, grpc_status=status))
    assert value(metrics, "egress_grpc_calls_total", grpc_status="OK") == 2
    assert value(metrics, "egress_grpc_calls_total", grpc_status="UNAVAILABLE") == 1
    assert value(metrics, "egress_requests_total", code="200") == 4


def test_a_failure_that_is_no_denial_has_a_metric_of_its_own():
    metrics = Metrics("1")
    metrics.series("g", "r", "b").observe(exchange(502, Reason.UPSTREAM_RESET))
    assert value(metrics, "egress_request_failures_total", reason="upstream_reset") == 1
    assert not [key for key in scrape(metrics) if key[0] == "egress_denied_total"]


def test_what_would_be_denied_is_counted_for_every_reason():
    metrics = Metrics("1")
    x = exchange(would_deny=[Reason.DESTINATION_NOT_ALLOWED, Reason.ADDRESS_DENIED])
    metrics.series("g", "r", "b").observe(x)
    assert value(metrics, "egress_would_deny_total", reason="destination_not_allowed") == 1
    assert value(metrics, "egress_would_deny_total", reason="resolved_denied") == 1


@pytest.mark.parametrize(
    ("status", "reason", "logged"),
    [(200, Reason.OK, 200), (0, Reason.CLIENT_GONE, 499), (0, Reason.SNI_MISMATCH, 0), (200, Reason.CLIENT_GONE, 200)],
)
def test_an_exchange_without_an_answer_has_a_status_of_its_own(status: int, reason: Reason, logged: int):
    x = exchange(status, reason)
    metrics = Metrics("1")
    metrics.series("g", "r", "b").observe(x)
    assert logged_status(x) == logged
    assert value(metrics, "egress_requests_total", code=str(logged)) == 1


def test_the_same_labels_give_the_same_series_so_that_a_reload_loses_no_count():
    metrics = Metrics("1")
    assert metrics.series("g", "r", "b", "ns", "sa") is metrics.series("g", "r", "b", "ns", "sa")
    assert metrics.series("g", "r", "b") is not metrics.series("g", "r", "c")


def test_identities_without_end_share_one_series():
    metrics = Metrics("1")
    for number in range(MAX_IDENTITY_SERIES + 500):
        metrics.series("g", "r", "b", "ns", f"sa-{number}").observe(exchange())
    requests = {
        dict(labels)["service_account"]: many
        for (name, labels), many in scrape(metrics).items()
        if name == "egress_requests_total"
    }
    assert len(requests) == MAX_IDENTITY_SERIES + 1
    assert requests["_other"] == 500
    assert sum(requests.values()) == MAX_IDENTITY_SERIES + 500


def test_a_series_that_saw_nothing_is_not_shown():
    metrics = Metrics("1")
    metrics.series("g", "never", "b")
    assert b"never" not in exposition(metrics)[0]


def test_a_series_that_saw_nothing_is_small_and_shares_nothing_that_counts():
    metrics = Metrics("1")
    tracemalloc.start()
    try:
        made = [metrics.series("g", "r", f"b{number}") for number in range(1000)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(made) < 500, "octets for a series, its name and its place among the others"
    x = exchange(503, Reason.UPSTREAM_RESET, would_deny=[Reason.ADDRESS_DENIED])
    made[0].observe(x)
    made[1].observe(exchange(403, Reason.DESTINATION_DENIED, denied=True))
    made[2].answered(0.1)
    made[3].add(made[0])
    made[4].tunnel_opened()
    made[4].add(made[2])
    made[4].observe(x)
    assert not any(series.is_used for series in made[5:])
    unused = made[5]
    counted = (
        unused.requests, unused.attempts, unused.denied, unused.would_deny, unused.failures, unused.mirrored,
    )  # fmt: skip
    assert not any(counted)
    assert not any(unused.durations)
    assert [sum(series.durations) for series in made[:5]] == [1, 1, 0, 1, 1]
    assert made[4].attempts == {"ok": 1}
    assert made[3].failures == {"upstream_reset": 1}


def test_a_tunnel_that_is_open_is_shown_before_it_is_counted():
    metrics = Metrics("1")
    metrics.series("g", "r", "b").tunnel_opened()
    assert value(metrics, "egress_tunnels_active", route="r") == 1


def test_only_what_has_happened_is_shown():
    metrics, other = Metrics("1"), Metrics("1")
    metrics.filter_sources.append(lambda: [FilterStats("f", "t", "request-headers", "r", "x", runs=2, rejected=1)])
    metrics.series("g", "r", "b").attempt("upstream_refused")
    metrics.series("g", "plain", "b").observe(exchange(bytes_in=5))
    tunnels = other.series("g", "tunnels", "b")
    tunnels.tunnel_opened()
    tunnels.tunnel_ended()
    tunnels.observe(exchange(bytes_in=5, bytes_out=7))
    total = Counts()
    for one in (metrics, other):
        total.add(pickle.loads(pickle.dumps(one.gather())))
    total.forget_gauges()
    routes: dict[str, set[str]] = {}
    for name, labels, number in samples(total):
        if "le" not in labels and "route" in labels:
            routes.setdefault(name.removeprefix("egress_"), set()).add(labels["route"])
            assert number or name == "egress_tunnels_active", (name, labels)
    assert routes == {
        "upstream_attempts_total": {"r"},
        "requests_total": {"plain", "tunnels"},
        "bytes_total": {"plain", "tunnels"},
        "request_duration_seconds_count": {"plain", "tunnels"},
        "request_duration_seconds_sum": {"plain", "tunnels"},
        "response_first_byte_seconds_count": {"plain", "tunnels"},
        "response_first_byte_seconds_sum": {"plain", "tunnels"},
        "tunnels_active": {"tunnels"},  # at 0: it has been more
    }
    runs = {labels["result"]: number for name, labels, number in samples(total) if name == "egress_filter_total"}
    assert runs == {"passed": 1, "rejected": 1}


def test_attempts_are_counted_by_result():
    metrics = Metrics("1")
    series = metrics.series("g", "r", "b")
    for seconds in (0.002, 7.0):
        series.answered(seconds)
    series.attempt(Reason.CONNECT_REFUSED.value)
    assert value(metrics, "egress_upstream_attempts_total", result="ok") == 2
    assert value(metrics, "egress_upstream_attempts_total", result="upstream_refused") == 1
    times = "egress_upstream_response_seconds"
    assert value(metrics, f"{times}_count", gateway="g", route="r", backend="b") == 2
    assert value(metrics, f"{times}_bucket", le="0.005") == 1
    assert value(metrics, f"{times}_sum") == pytest.approx(7.002)


def test_a_response_begins_with_its_end_unless_it_said_earlier_that_it_begins():
    metrics, other = Metrics("1"), Metrics("1")
    whole, streamed, tunnel, gone = exchange(), exchange(), exchange(), exchange(0, Reason.CLIENT_GONE)
    for x, first_byte_s in ((whole, None), (streamed, 0.2), (tunnel, 0.002), (gone, None)):
        x.ended_at = x.started_at + 30.0
        if first_byte_s is not None:
            x.first_byte_at = x.started_at + first_byte_s
        metrics.series("g", "r", "b", policy="p").observe(x)
    other.series("g", "r", "b", "ns", "sa").observe(streamed)
    total = Counts()
    for each in (metrics, other):
        total.add(each.gather())
    name = "egress_response_first_byte_seconds"
    buckets = {labels["le"]: number for what, labels, number in samples(total) if what == f"{name}_bucket"}
    assert (buckets["0.001"], buckets["0.005"], buckets["0.1"], buckets["0.25"], buckets["10.0"]) == (0, 1, 1, 3, 3)
    assert (buckets["60.0"], buckets["+Inf"]) == (4, 4), "what nothing was sent of is not counted"
    assert shown(total)[f"{name}_sum"] == pytest.approx(30.402)
    assert shown(total)["egress_request_duration_seconds_count"] == 5


def test_requests_in_progress_are_counted_when_somebody_looks_and_are_then_0():
    metrics = Metrics("1")
    series = [metrics.series("g", route, "b", policy=policy).labels for route in "rs" for policy in "pq"]
    active = list(series)
    metrics.request_sources.append(lambda: active)
    assert value(metrics, "egress_requests_active", gateway="g", route="r", backend="b") == 2
    active[:] = series[:1]
    assert value(metrics, "egress_requests_active", route="r") == 1
    assert value(metrics, "egress_requests_active", route="s") == 0


def test_copies_for_mirrors_are_counted_by_result_and_added_up():
    metrics, other = Metrics("1"), Metrics("1")
    for one, results in ((metrics, ("ok", "ok", "dropped")), (other, ("ok",))):
        for result in results:
            one.series("g", "r", "mirror").mirror(result)
    assert value(metrics, "egress_mirrored_requests_total", backend="mirror", result="ok") == 2
    assert value(metrics, "egress_mirrored_requests_total", backend="mirror", result="dropped") == 1
    total = Counts()
    for one in (metrics, other):
        total.add(one.gather())
    assert shown(total)["egress_mirrored_requests_total"] == 4


def test_reloads_tell_generation_result_and_time():
    metrics = Metrics("1")
    metrics.reload_succeeded(3)
    assert value(metrics, "egress_config_generation") == 3
    assert value(metrics, "egress_config_last_reload_success") == 1
    assert value(metrics, "egress_config_last_reload_timestamp_seconds") > 1e9
    metrics.reload_failed()
    assert value(metrics, "egress_config_generation") == 3
    assert value(metrics, "egress_config_last_reload_success") == 0
    assert value(metrics, "egress_config_reloads_total", result="success") == 1
    assert value(metrics, "egress_config_reloads_total", result="failure") == 1
    assert re.search(r"config_last_reload_success\S* 0(\.0)?\b", exposition(metrics)[0].decode())


def test_sources_are_read_at_every_scrape_and_added_up():
    metrics = Metrics("1")
    pools = [("default/b", 2, 1, 0), ("default/b", 3, 0, 4)]
    metrics.upstream_sources.append(lambda: pools)
    metrics.downstream_sources.append(lambda: [("default/gw", "forward", 7)])
    assert value(metrics, "egress_upstream_connections", backend="default/b", state="active", route="-") == 5
    assert value(metrics, "egress_upstream_connections", backend="default/b", state="idle") == 1
    assert value(metrics, "egress_upstream_waiting_requests", backend="default/b", route="-") == 4
    assert value(metrics, "egress_downstream_connections", gateway="default/gw", listener="forward") == 7
    pools.clear()
    assert not [key for key in scrape(metrics) if key[0] == "egress_upstream_connections"]


def test_the_results_of_a_filter_add_up_to_its_runs():
    metrics = Metrics("1")
    counts = SimpleNamespace(
        name="inject",
        type="egressproxy.io/CredentialInjector:v1",
        phase="backend-request",
        scope="default/b",
        runs=10,
        rejected=1,
        answered=2,
        failed=3,
        timed_out=1,
        out_of_service=1,
        buckets=[0, 2, 0, 0, 0, 0, 0, 0],
        sum_s=0.5,
    )
    metrics.filter_sources.append(lambda: [counts])
    assert value(metrics, "egress_filter_total", filter="inject", result="passed") == 3
    assert value(metrics, "egress_filter_total", filter="inject", result="out_of_service") == 1
    assert value(metrics, "egress_filter_total", filter="inject", result="failed") == 2
    assert value(metrics, "egress_filter_total", filter="inject", result="timed_out") == 1
    assert value(metrics, "egress_filter_total", filter="inject", phase="backend-request", scope="default/b") == 10


def test_a_source_that_raises_takes_nothing_else_away(caplog: pytest.LogCaptureFixture):
    metrics = Metrics("1")

    def broken() -> list[tuple[str, int, int]]:
        raise RuntimeError("gone")

    metrics.upstream_sources.append(broken)
    metrics.upstream_sources.append(lambda: [("b", 1, 0, 0)])
    assert value(metrics, "egress_upstream_connections", backend="b", state="active") == 1
    assert "source of metrics failed" in caplog.text


def test_numbers_that_others_keep_are_shown_under_their_names():
    metrics = Metrics("1")
    metrics.add_counter("egress_access_log_dropped", "Lines lost.", lambda: 4)
    metrics.add_gauge("egress_event_loop_lag_max_seconds", "Lag.", lambda: 0.25)
    assert value(metrics, "egress_access_log_dropped_total") == 4
    assert value(metrics, "egress_event_loop_lag_max_seconds") == 0.25


def test_the_process_and_the_build_are_shown():
    metrics = Metrics("1.2.3")
    assert value(metrics, "egress_build_info", version="1.2.3", build=build.name(), event_loop="uvloop") == 1
    assert value(metrics, "process_resident_memory_bytes") > 0
    metrics.count_dns("ok")
    metrics.connections_rejected[Reason.CONNECTION_LIMIT.value] += 1
    assert value(metrics, "egress_dns_lookups_total", result="ok") == 1
    assert value(metrics, "egress_connections_rejected_total", reason="connection_limit") == 1


def test_openmetrics_is_spoken_to_those_who_ask_for_it():
    body, content_type = exposition(Metrics("1"), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert exposition(Metrics("1"))[1].startswith("text/plain")


def test_a_scrape_in_another_thread_survives_traffic():
    metrics = Metrics("1")
    stop = threading.Event()
    failed: list[Exception] = []

    def scraper() -> None:
        while not stop.is_set():
            try:
                exposition(metrics)
            except Exception as error:
                failed.append(error)
                return

    thread = threading.Thread(target=scraper)
    thread.start()
    for number in range(300):
        series = metrics.series("g", f"route-{number}", "b")
        for status in range(200, 230):
            series.observe(exchange(status))
    stop.set()
    thread.join()
    assert not failed


def counted(lag_s: float, dropped: int, tunnels: int) -> Counts:
    metrics = Metrics("1")
    series = metrics.series("g", "r", "b")
    series.observe(exchange(bytes_in=10))
    series.answered(0.1)
    for _ in range(tunnels):
        series.tunnel_opened()
    metrics.count_dns("hit")
    metrics.upstream_sources.append(lambda: [("b", 2, 1, 0)])
    metrics.downstream_sources.append(lambda: [("g", "l", 3)])
    metrics.add_peak("egress_event_loop_lag_max_seconds", "Lag.", lambda: lag_s)
    metrics.add_counter("egress_access_log_dropped", "Lines lost.", lambda: dropped)
    return metrics.gather()


def samples(counts: Counts) -> list[tuple[str, dict[str, str], float]]:
    """The gateway's own."""
    body, _ = Exposition("1").render(counts)
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name.startswith("egress_")
    ]


def shown(counts: Counts) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, _, number in samples(counts):
        found[name] = found.get(name, 0) + number
    return found


def test_what_several_processes_counted_is_added_up():
    total = Counts()
    total.add(counted(0.1, 1, 1))
    total.add(counted(0.3, 2, 4))
    found = shown(total)
    assert found["egress_requests_total"] == 2
    assert found["egress_request_duration_seconds_count"] == 2
    assert found["egress_request_duration_seconds_sum"] == pytest.approx(0.04)
    assert found["egress_bytes_total"] == 20
    assert found["egress_upstream_attempts_total"] == 2
    assert found["egress_dns_lookups_total"] == 2
    assert found["egress_upstream_connections"] == 6
    assert found["egress_downstream_connections"] == 6
    assert found["egress_tunnels_active"] == 5
    assert found["egress_access_log_dropped_total"] == 3
    assert found["egress_event_loop_lag_max_seconds"] == 0.3, "the worst, not the sum"


def test_adding_changes_nothing_of_what_is_added():
    first = counted(0.1, 1, 1)
    total = Counts()
    total.add(first)
    total.add(first)
    assert first.series["g", "r", "b", "-", "-", "-", "-"].requests == {200: 1}
    assert sum(first.series["g", "r", "b", "-", "-", "-", "-"].durations) == 1


def test_of_a_process_that_has_ended_the_counters_stay():
    ended = counted(0.3, 2, 4)
    before = shown(ended)
    ended.forget_gauges()
    found = shown(ended)
    gone = {name for name in before if found.get(name, 0) != before[name]}
    assert gone == {
        "egress_tunnels_active", "egress_upstream_connections", "egress_downstream_connections",
        "egress_event_loop_lag_max_seconds", "egress_config_generation", "egress_config_last_reload_success",
        "egress_config_last_reload_timestamp_seconds",
    } - {name for name in before if not before[name]}  # fmt: skip


def test_a_peak_lasts_until_it_was_shown():
    later = counted(0.1, 1, 1)
    later.keep_peaks(counted(0.3, 1, 1))
    assert later.families["egress_event_loop_lag_max_seconds"].values[()] == 0.3
    later.forget_peaks()
    assert later.families["egress_event_loop_lag_max_seconds"].values[()] == 0.0
    assert later.families["egress_access_log_dropped"].values[()] == 1


def test_questions_to_authorization_servers_are_counted_and_timed_over_all_processes():
    metrics, other = Metrics("1"), Metrics("1")
    metrics.external_auth.count("ns/r", "ns/auth", "allowed", 0.002)
    other.external_auth.count("ns/r", "ns/auth", "allowed", 20.0)
    counts = metrics.gather()
    counts.add(other.gather())
    assert counts.families["egress_external_auth"].values == {("ns/r", "ns/auth", "allowed"): 2}
    buckets = counts.families["egress_external_auth_duration_seconds"].buckets[()]
    assert (sum(buckets), buckets[1], buckets[-1]) == (2, 1, 1)
    assert value(metrics, "egress_external_auth_total", route="ns/r", backend="ns/auth", result="allowed") == 1
    assert not Metrics("1").gather().families["egress_external_auth_duration_seconds"].values
