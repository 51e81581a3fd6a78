"""The last hour by minutes."""

from __future__ import annotations

import asyncio

import pytest

from egressproxy.admin import history
from egressproxy.admin.history import History, minute, quantile, totals
from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.series import BUCKETS_S, Series


def counts(times: int) -> Counts:
    """So many requests of 5 to 25 ms, each with a denial, a failure and ten tokens of a cent each."""
    series = Series(("-",) * 7)  # type: ignore[arg-type]
    series.requests, series.denied, series.failures = {200: times, 403: times}, {"a": times}, {"b": times}
    series.at_once = [0, 0, 2 * times, *(0 for _ in BUCKETS_S[2:])]
    tokens = {("f", "input"): 6.0 * times, ("f", "output"): 4.0 * times, ("f", "cached"): 5.0 * times}
    families = {
        "egress_ai_tokens": MetricFamily(MetricKind.COUNTER, "", ("filter", "kind"), tokens),
        "egress_ai_cost": MetricFamily(MetricKind.COUNTER, "", ("filter", "currency"), {("f", "EUR"): 0.1 * times}),
    }
    return Counts({series.labels: series}, families)


def test_a_minute_is_the_difference_of_what_was_counted_by_all_processes():
    before, after = (60.0, totals([counts(1), counts(2)])), (120.0, totals([counts(3), counts(2)]))
    assert minute(before, after) == {
        "time": 60.0, "requests": 4, "denials": 2, "failures": 2, "p50_ms": 15.0, "p95_ms": 24.0, "tokens": 20,
        "cost": 0.2,
    }  # fmt: skip
    assert minute(after, after)["p50_ms"] is None


@pytest.mark.parametrize(
    ("buckets", "share", "ms"),
    [({0: 4}, 0.5, 0.5), ({1: 2, 3: 2}, 0.5, 5.0), ({1: 1, 11: 1}, 0.95, 3600_000.0), ({}, 0.5, None)],
    ids=["first", "bound", "last", "none"],
)
def test_quantiles_are_estimated_in_their_bucket(buckets: dict[int, int], share: float, ms: float | None):
    assert quantile([buckets.get(number, 0) for number in range(len(BUCKETS_S) + 1)], share) == ms


async def test_it_keeps_an_hour_and_shows_the_minute_that_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history, "_MINUTE_S", 0.001)
    reads = 0

    async def read() -> list[Counts]:
        nonlocal reads
        reads += 1
        return [counts(reads)]

    made = History(read)
    assert await made.minutes() == []
    running = asyncio.create_task(made.run())
    while reads < 70:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.001)
    running.cancel()
    minutes = await made.minutes()
    assert len(minutes) == 60
    assert {each["requests"] for each in minutes} <= {2, 4}
    assert [each["time"] for each in minutes] == sorted(each["time"] for each in minutes)
