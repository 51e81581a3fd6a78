"""Counts by labels, of which there is a bound."""

from __future__ import annotations

import pytest

from egressproxy.telemetry import label_sets, metrics
from egressproxy.telemetry.call_counts import CallCounts
from egressproxy.telemetry.label_sets import LabelSets
from egressproxy.telemetry.mcp_calls import McpCalls
from egressproxy.telemetry.metrics import Metrics
from egressproxy.telemetry.translations import Translations


def test_further_sets_are_counted_together_by_their_last_label(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(label_sets, "MAX_SETS", 2)
    counts: LabelSets[str, str] = LabelSets()
    for route, result in (("a", "ok"), ("b", "ok"), ("c", "ok"), ("d", "ok"), ("e", "error"), ("a", "ok")):
        counts.count(route, result)
    assert counts == {("a", "ok"): 2, ("b", "ok"): 1, ("_other", "ok"): 2, ("_other", "error"): 1}


def test_names_that_come_and_go_with_reloads_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(label_sets, "MAX_SETS", 100)
    auth, translations, calls = CallCounts(), Translations(), McpCalls()
    for number in range(1000):
        auth.count(f"r{number}", "b", "allowed", 0.1)
        translations.count(f"r{number}", "b", "x", "y", "ok")
        calls.count(f"r{number}", "b", "tools/call", f"t{number}", "ok")
    assert {len(auth.asked), len(translations.counted), len(calls.counted)} == {101}
    assert len(calls._names) <= 100
    assert sum(auth.asked.values()) == sum(calls.counted.values()) == 1000


def test_series_of_routes_have_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "MAX_SERIES", 50)
    monkeypatch.setattr(metrics, "MAX_IDENTITY_SERIES", 5)
    counted = Metrics("0")
    first = counted.series("gw", "r0", "-")
    for number in range(1000):
        counted.series("gw", f"r{number}", "b").attempt("ok")
        counted.series(f"gw{number}", "r", "b", "ns", "sa").attempt("ok")
    assert counted.series("gw", "r0", "-") is first
    assert counted.series("gw", "new", "b").labels[:3] == ("gw", "_other", "_other")
    assert counted.series("new", "new", "b").labels[:3] == ("_other", "_other", "_other")
    assert len(counted._series) <= 57
    assert sum(each.attempts.get("ok", 0) for each in counted._series.values()) == 2000
