"""Counts by labels, of which there is a bound."""

from __future__ import annotations

import pytest

from egressproxy.telemetry import counters, metrics
from egressproxy.telemetry.counters import (
    MAX_MCP_NAMES,
    MAX_OUTER_NAMES,
    MAX_SERVERS,
    OTHER_SERVERS,
    OVERFLOW,
    QUERY_BUCKETS_S,
    CallCounts,
    DnsQueries,
    EchHellos,
    LabelSets,
    McpCalls,
)
from egressproxy.telemetry.counts import Counts, MetricKind
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.metrics import Metrics


def test_further_sets_are_counted_together_by_their_last_label(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "MAX_SETS", 2)
    counts: LabelSets[str, str] = LabelSets()
    for route, result in (("a", "ok"), ("b", "ok"), ("c", "ok"), ("d", "ok"), ("e", "error"), ("a", "ok")):
        counts.count(route, result)
    assert counts == {("a", "ok"): 2, ("b", "ok"): 1, ("_other", "ok"): 2, ("_other", "error"): 1}


def test_names_that_come_and_go_with_reloads_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "MAX_SETS", 100)
    auth, translations, calls = CallCounts(), LabelSets(), McpCalls()
    for number in range(1000):
        auth.count(f"r{number}", "b", "allowed", 0.1)
        translations.count(f"r{number}", "b", "x", "y", "ok")
        calls.count(f"r{number}", "b", "tools/call", f"t{number}", "ok")
    assert {len(auth.asked), len(translations), len(calls.counted)} == {101}
    assert len(calls._names) <= 100
    assert sum(auth.asked.values()) == sum(calls.counted.values()) == 1000


def test_series_of_routes_have_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "MAX_SERIES", 50)
    monkeypatch.setattr(metrics, "MAX_IDENTITY_SERIES", 5)
    counted = Metrics("0")
    first = counted.series("gw", "r0", "-")
    for number in range(1000):
        counted.series("gw", f"r{number}", "b").answered(0.1)
        counted.series(f"gw{number}", "r", "b", "ns", "sa").answered(0.1)
    assert counted.series("gw", "r0", "-") is first
    assert counted.series("gw", "new", "b").labels[:3] == ("gw", "_other", "_other")
    assert counted.series("new", "new", "b").labels[:3] == ("_other", "_other", "_other")
    assert len(counted._series) <= 57
    assert sum(each.attempts.get("ok", 0) for each in counted._series.values()) == 2000


def test_calls_of_mcp_are_counted_by_method_tool_and_result():
    calls = McpCalls()
    for tool, result in (("a", "ok"), ("a", "ok"), ("b", "error")):
        calls.count("r", "be", "tools/call", tool, result)
    assert calls.counted == {("r", "be", "tools/call", "a", "ok"): 2, ("r", "be", "tools/call", "b", "error"): 1}


def test_further_names_of_tools_are_counted_as_other():
    calls = McpCalls()
    calls.count("r", "be", "ping", "-", "ok")
    for number in range(10 * MAX_MCP_NAMES):
        calls.count("r", "be", "tools/call", f"t{number}", "ok")
        calls.count("r", "be", f"m{number}", "-", "ok")
    assert len(calls.counted) <= 2 * MAX_MCP_NAMES
    assert calls.counted["r", "be", "tools/call", "_other", "ok"] > 9 * MAX_MCP_NAMES
    assert calls.counted["r", "be", "_other", "-", "ok"] > 9 * MAX_MCP_NAMES
    calls.count("r", "be", "ping", "-", "ok")
    assert calls.counted["r", "be", "ping", "-", "ok"] == 2  # known before
    calls.count("r", "another", "tools/call", "t5000", "ok")
    assert ("r", "another", "tools/call", "t5000", "ok") in calls.counted  # it has a bound of its own


def test_calls_of_mcp_are_added_up_over_workers_and_shown():
    total = Counts()
    for times in (1, 2):
        of_one = Metrics("1")
        for _ in range(times):
            of_one.mcp_calls.count("agents/r", "agents/tools", "tools/call", "search", "ok")
        total.add(of_one.gather())
    text, _ = Exposition("1").render(total)
    line = (
        b'egress_mcp_messages_total{backend="agents/tools",method="tools/call",result="ok",route="agents/r",'
        b'tool="search"} 3.0'
    )
    assert line in text


def test_names_in_place_of_hidden_ones_are_counted_up_to_a_bound():
    hellos = EchHellos()
    for number in range(MAX_OUTER_NAMES + 20):
        hellos.count("agents/gw", "forward", f"{number}.example")
    hellos.count("agents/gw", "forward", "0.example")
    hellos.count("agents/gw", "other", "0.example")
    assert len(hellos.counted) == MAX_OUTER_NAMES + 2
    assert hellos.counted["agents/gw", "forward", "0.example"] == 2
    assert hellos.counted["agents/gw", "forward", OVERFLOW] == 20


def test_queries_are_counted_by_server_and_result_with_their_durations():
    queries = DnsQueries()
    queries.count("udp://10.0.0.53:53", "noerror", 0.0015)
    queries.count("udp://10.0.0.53:53", "noerror", 0.3)
    queries.count("tls://1.1.1.1:853", "unanswered", 9.0)
    assert queries.results == {("udp://10.0.0.53:53", "noerror"): 2, ("tls://1.1.1.1:853", "unanswered"): 1}
    counted = queries.durations["udp://10.0.0.53:53"]
    assert [bound for bound, count in zip(QUERY_BUCKETS_S, counted.buckets, strict=False) if count] == [0.002, 0.5]
    assert counted.sum_s == 0.3015
    assert queries.durations["tls://1.1.1.1:853"].buckets[-1] == 1


def test_what_dns_servers_answered_is_shown():
    of_one = Metrics("1")
    of_one.dns_queries.count("udp://10.0.0.53:53", "noerror", 0.0015)
    of_one.dns_queries.count_reverse("differs")
    text = Exposition("1").render(of_one.gather())[0].decode()
    assert 'egress_dns_queries_total{result="noerror",server="udp://10.0.0.53:53"} 1.0' in text
    assert 'egress_dns_query_duration_seconds_bucket{le="0.002",server="udp://10.0.0.53:53"} 1.0' in text
    assert 'egress_dns_reverse_checks_total{result="differs"} 1.0' in text


def test_servers_beyond_a_bound_share_one_label():
    queries = DnsQueries()
    for number in range(MAX_SERVERS + 5):
        queries.count(f"udp://10.0.0.{number}:53", "noerror", 0.1)
    assert queries.results[OTHER_SERVERS, "noerror"] == 5


def test_handshakes_are_shown_by_side_and_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "handshakes", {("upstream", "resumed"): 2, ("downstream", "failed"): 1})
    family = Metrics("1").gather().families["egress_tls_handshakes"]
    values = {("upstream", "resumed"): 2, ("downstream", "failed"): 1}
    assert (family.kind, family.labels, family.values) == (MetricKind.COUNTER, ("side", "result"), values)
