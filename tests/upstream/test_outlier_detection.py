"""Outlier detection as a value: who is ejected, and how many at most."""

from __future__ import annotations

import pytest

from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.resilience import OutlierDetectionIR
from egressproxy.upstream.endpoint_health import HealthRegistry, HealthState
from egressproxy.upstream.outlier_detection import OutlierDetection

BACKEND = BackendIR("ns/b", Destination.SERVICE, kind="Service")


def detection(count: int, spec: OutlierDetectionIR | None) -> OutlierDetection:
    registry = HealthRegistry()
    return OutlierDetection(spec, [registry.of("s", "b", BACKEND, f"e{i}", spec, None, 0.0) for i in range(count)])


def test_no_more_than_the_ceiling_is_ejected():
    made = detection(4, OutlierDetectionIR(consecutive_5xx=1, max_ejection_percent=50))
    assert [made.failed(health, 0.0) for health in made.healths] == [True, True, False, False]
    assert [health.state.value for health in made.healths] == ["ejected", "ejected", "healthy", "healthy"]


@pytest.mark.parametrize(("count", "percent", "ejected"), [(3, 10, 1), (3, 0, 0), (1, 99, 0), (1, 100, 1), (2, 50, 1)])
def test_one_of_several_may_be_ejected_and_a_lone_one_with_100_percent_alone(count, percent, ejected):
    made = detection(count, OutlierDetectionIR(consecutive_5xx=1, max_ejection_percent=percent))
    for health in made.healths:
        made.failed(health, 0.0)
    assert sum(health.state is HealthState.EJECTED for health in made.healths) == ejected


def test_an_endpoint_on_trial_counts_as_out_and_a_failed_trial_needs_no_room():
    made = detection(2, OutlierDetectionIR(consecutive_5xx=1, max_ejection_percent=50, base_ejection_s=10))
    first, second = made.healths
    assert made.failed(first, 0.0)
    assert first.is_usable(10.0)
    assert not made.failed(second, 10.0)
    assert made.failed(first, 10.0)
    assert first.ejected_until == 30.0


def test_without_a_spec_nothing_is_ejected_and_good_answers_are_taken():
    made = detection(2, None)
    health = made.healths[0]
    assert not any([made.failed(health, 0.0), made.answered(health, 500, 0.0), made.answered(health, 200, 0.0)])
