"""Health of endpoints as values: ejection, its growing time, trials, and health checks."""

from __future__ import annotations

import gc

import pytest

from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.resilience import HealthCheckIR, OutlierDetectionIR
from egressproxy.upstream.endpoint_health import (
    TRIAL_S,
    EndpointHealth,
    HealthRegistry,
    HealthState,
    OutlierDetection,
    Why,
)

OUTLIERS = OutlierDetectionIR(consecutive_5xx=3, base_ejection_s=30, max_ejection_s=100, interval_s=10)
CHECK = HealthCheckIR(healthy_threshold=2, unhealthy_threshold=3)

BACKEND = BackendIR("ns/b", Destination.SERVICE, kind="Service")


def health(outliers: OutlierDetectionIR | None = OUTLIERS, check: HealthCheckIR | None = CHECK) -> EndpointHealth:
    return HealthRegistry().of("scope", "ns/b", BACKEND, "10.0.0.1:80", outliers, check, 0.0)


def fail_and_eject(one: EndpointHealth, now: float) -> float:
    """Let it fail until it is ejected; gives the seconds of the ejection."""
    while (why := one.bad_status(503)) is None:
        pass
    one.eject(now, why)
    return one.ejected_until - now


def test_so_many_server_errors_in_a_row_make_an_outlier_and_a_good_answer_begins_anew():
    one = health()
    assert [one.bad_status(500), one.bad_status(502)] == [None, None]
    one.good(1.0)
    assert [one.bad_status(500), one.bad_status(500), one.bad_status(500)] == [None, None, Why.CONSECUTIVE_5XX]


def test_a_connection_that_fails_counts_as_a_server_error():
    one = health()
    assert [one.local_failure(), one.bad_status(500), one.local_failure()] == [None, None, Why.CONSECUTIVE_5XX]


def test_gateway_errors_are_counted_by_themselves():
    one = health(OutlierDetectionIR(consecutive_5xx=0, consecutive_gateway=2))
    assert [one.bad_status(503), one.bad_status(500), one.bad_status(504)] == [None, None, None]
    assert one.bad_status(502) is Why.CONSECUTIVE_GATEWAY


def test_local_origin_failures_are_split_from_answers_where_asked_for():
    one = health(OutlierDetectionIR(consecutive_5xx=2, consecutive_local_origin=3, splits_local_origin=True))
    assert [one.local_failure(), one.local_failure()] == [None, None]
    assert one.bad_status(500) is None  # it can be reached: the failures before are over
    assert [one.local_failure(), one.local_failure(), one.local_failure()] == [None, None, Why.CONSECUTIVE_LOCAL]


def test_an_ejected_endpoint_takes_no_request_until_its_time_is_over_and_then_one_at_a_time():
    one = health()
    assert fail_and_eject(one, 100.0) == 30
    assert not one.is_usable(129.9)
    assert one.next_change(100.0) == 130.0
    assert one.is_usable(130.0)
    one.begin_trial(130.0)
    assert not one.is_usable(131.0)
    one.good(131.0)
    assert (one.state, one.is_usable(131.0), one.returned_at) == (HealthState.HEALTHY, True, 131.0)


def test_a_failed_trial_is_the_next_ejection_after_one_failure_and_it_is_longer():
    one, now = health(), 0.0
    times = [fail_and_eject(one, now)]
    for _ in range(4):
        now = one.ejected_until
        assert one.is_usable(now)
        one.begin_trial(now)
        assert one.local_failure() is Why.TRIAL_FAILED
        one.eject(now, Why.TRIAL_FAILED)
        times.append(one.ejected_until - now)
    assert times == [30, 60, 90, 100, 100]  # maxEjectionTime


def test_an_endpoint_that_does_well_steps_its_ejection_time_down():
    one = health()
    for expected in (30, 60):
        now = one.ejected_until
        assert fail_and_eject(one, now) == expected
        assert one.is_usable(one.ejected_until)
        one.good(one.ejected_until)
    assert fail_and_eject(one, one.returned_at + 25) == 30  # two intervals: from the third step to the first


def test_a_trial_whose_outcome_is_never_told_does_not_keep_an_endpoint_out():
    one = health()
    fail_and_eject(one, 0.0)
    assert one.is_usable(30.0)
    one.begin_trial(30.0)
    assert one.next_change(30.0) == 30.0 + TRIAL_S
    assert one.is_usable(30.0 + TRIAL_S)


def test_failures_of_requests_from_before_do_not_lengthen_an_ejection():
    one = health()
    fail_and_eject(one, 0.0)
    assert [one.bad_status(500) for _ in range(9)] == [None] * 9


def test_failed_checks_take_an_endpoint_out_and_passed_ones_bring_it_back():
    one = health()
    for _ in range(2):
        one.check_failed()
    one.check_passed(1.0)
    one.check_failed()
    one.check_failed()
    assert one.state is HealthState.HEALTHY
    one.check_failed()
    assert (one.state, one.is_usable(1e9)) == (HealthState.UNHEALTHY, False)
    one.check_passed(5.0)
    assert one.state is HealthState.UNHEALTHY
    one.check_passed(6.0)
    assert (one.state, one.returned_at) == (HealthState.HEALTHY, 6.0)


def test_passed_checks_end_an_ejection():
    one = health()
    fail_and_eject(one, 0.0)
    one.check_passed(1.0)
    one.check_passed(2.0)
    assert one.is_usable(2.0)


def test_without_outlier_detection_nothing_is_an_outlier():
    one = health(outliers=None)
    assert {one.bad_status(500) for _ in range(99)} | {one.local_failure() for _ in range(99)} == {None}


def test_the_registry_gives_the_same_health_to_equal_scopes_and_counts_and_tells_changes():
    told: list[tuple[str, str, str]] = []
    registry = HealthRegistry(lambda health, why: told.append((health.address, health.state.value, why.value)))
    one = registry.of("s", "ns/b", BACKEND, "10.0.0.1:80", OUTLIERS, CHECK, 0.0)
    assert registry.of("s", "ns/b", BACKEND, "10.0.0.1:80", OUTLIERS, CHECK, 9.0) is one
    assert registry.of("other", "ns/b", BACKEND, "10.0.0.1:80", OUTLIERS, CHECK, 9.0) is not one
    before = registry.version
    fail_and_eject(one, 0.0)
    one.is_usable(30.0)
    one.good(30.0)
    assert registry.version > before
    assert told == [
        ("10.0.0.1:80", "ejected", "consecutive_5xx"),
        ("10.0.0.1:80", "healthy", "trial_passed"),
    ]


def test_the_registry_forgets_an_endpoint_that_nobody_uses():
    registry = HealthRegistry()
    one = registry.of("s", "ns/b", BACKEND, "10.0.0.1:80", OUTLIERS, CHECK, 0.0)
    fail_and_eject(one, 0.0)
    del one
    gc.collect()
    assert registry.of("s", "ns/b", BACKEND, "10.0.0.1:80", OUTLIERS, CHECK, 0.0).state is HealthState.HEALTHY


@pytest.mark.parametrize("outliers", [OUTLIERS, None])
def test_a_clean_endpoint_says_so(outliers):
    one = health(outliers)
    assert one.is_clean
    one.bad_status(500)
    assert one.is_clean is (outliers is None)
    one.good(0.0)
    assert one.is_clean


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
