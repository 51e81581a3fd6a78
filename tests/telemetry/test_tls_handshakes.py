"""Handshakes by side and result, as a scrape shows them."""

from __future__ import annotations

from collections import Counter

import pytest

from egressproxy.telemetry import tls_handshakes
from egressproxy.telemetry.tls_handshakes import read_handshakes


def test_there_is_no_metric_before_the_first_handshake_and_then_one_for_each_side_and_result(
    monkeypatch: pytest.MonkeyPatch,
):
    counted: Counter[tuple[str, str]] = Counter()
    monkeypatch.setattr(tls_handshakes, "handshakes", counted)
    assert read_handshakes() == {}
    counted["upstream", "resumed"] += 2
    counted["downstream", "failed"] += 1
    (metric,) = read_handshakes().values()
    assert metric.labels == ("side", "result")
    assert metric.values == {("upstream", "resumed"): 2.0, ("downstream", "failed"): 1.0}
