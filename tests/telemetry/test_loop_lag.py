"""How late the event loop was: a stall shows with its share of the time, and percentiles can be computed."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from egressproxy.net.timers import TICK_S, TimerWheel
from egressproxy.telemetry.counters import LAG_BUCKETS_S, LoopLag
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.exposition import Exposition
from egressproxy.telemetry.metrics import Metrics

NAME = "egress_event_loop_lag_seconds"


def counted(lag: LoopLag) -> Counts:
    metrics = Metrics("1")
    metrics.add_histogram(NAME, "Lag.", lag.delays)
    return metrics.gather()


def shown(counts: Counts) -> dict[str, float]:
    """The ticks that were at most so late, by the bound, and the sum."""
    body, _ = Exposition("1").render(counts)
    (family,) = [found for found in text_string_to_metric_families(body.decode()) if found.name == NAME]
    assert family.type == "histogram"
    return {sample.labels.get("le", sample.name.removeprefix(NAME)): sample.value for sample in family.samples}


def percentile(counts: Counts, share: float) -> str:
    """The bound of the bucket in which histogram_quantile finds it."""
    found = shown(counts)
    bounds = [bound for bound in found if not bound.startswith("_")]
    return min((bound for bound in bounds if found[bound] >= share * found["_count"]), key=float)


def test_percentiles_can_be_computed():
    lag = LoopLag(TICK_S)
    for _ in range(980):
        lag.tick(0.0004, 0.0)
    for _ in range(20):
        lag.tick(0.018, 0.0)
    assert percentile(counted(lag), 0.5) == "0.001"
    assert percentile(counted(lag), 0.98) == "0.001"
    assert percentile(counted(lag), 0.99) == "0.02"
    assert shown(counted(lag))["_sum"] == pytest.approx(980 * 0.0004 + 20 * 0.018)


def test_a_tick_that_came_early_was_not_late():
    lag = LoopLag(TICK_S)
    lag.tick(-0.0006, 0.0)
    assert (lag.delays.buckets, lag.delays.sum_s) == ([1] + [0] * len(LAG_BUCKETS_S), 0.0)
    assert lag.take_worst() == 0.0


def test_a_stall_counts_for_all_the_ticks_that_it_swallowed():
    lag = LoopLag(TICK_S)
    lag.tick(0.95, 0.0)
    found = shown(counted(lag))
    assert found["_count"] == 10
    assert found["0.1"] == 1
    assert found["0.5"] == 5
    assert found["1.0"] == 10
    assert found["_sum"] == pytest.approx(sum(0.05 + TICK_S * number for number in range(10)))


def test_a_process_that_was_stopped_for_a_day_costs_no_time():
    lag = LoopLag(TICK_S)
    began = time.process_time()
    lag.tick(86_400.03, 0.0)
    assert time.process_time() - began < 0.1
    buckets = lag.delays.buckets
    assert sum(buckets) == 864_001
    assert buckets[:-1] == [0, 0, 0, 0, 0, 1, 0, 1, 3, 5, 15]
    assert lag.delays.sum_s == pytest.approx(86_400.03 * 864_001 / 2 + 0.03 * 864_001 / 2, rel=1e-9)


def test_the_worst_is_told_once_and_knows_what_the_tick_itself_took():
    lag = LoopLag(TICK_S)
    lag.tick(0.01, 0.3)
    lag.tick(0.02, 0.0)
    assert lag.take_worst() == pytest.approx(0.31)
    assert lag.take_worst() == 0.0
    assert lag.delays.buckets[-4:] == [0, 0, 0, 0], "a share of the time that nobody measured"


def test_several_processes_are_added_up():
    one, other, total = LoopLag(TICK_S), LoopLag(TICK_S), Counts()
    one.tick(0.0005, 0.0)
    other.tick(0.15, 0.0)
    total.add(counted(one))
    total.add(counted(other))
    found = shown(total)
    assert (found["_count"], found["0.001"], found["0.05"], found["0.2"]) == (3, 1, 2, 3)
    assert found["_sum"] == pytest.approx(0.0005 + 0.15 + 0.05)
    assert shown(counted(one))["_count"] == 1, "adding changes nothing of what is added"


async def test_a_loop_that_stands_still_shows():
    lag, wheel = LoopLag(TICK_S), TimerWheel()
    wheel.watch = lag.tick
    wheel.start(asyncio.get_running_loop())
    await asyncio.sleep(0.01)
    time.sleep(0.6)  # noqa: ASYNC251 - standing still is the point
    while sum(lag.delays.buckets) < 5:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    wheel.stop()
    assert sum(lag.delays.buckets[LAG_BUCKETS_S.index(0.2) + 1 :]) >= 2
    assert lag.delays.sum_s > 0.6
    assert lag.take_worst() > 0.4
