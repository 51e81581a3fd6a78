"""What a cluster remembers of the attempts at its backend."""

from __future__ import annotations

from egressproxy.gateway.backends.passive_health import (
    FAILURES,
    MAX_ASIDE_S,
    MAX_HOLD_OFF_S,
    MIN_HOLD_OFF_S,
    PassiveHealth,
)


def test_a_backend_that_cannot_be_reached_is_put_aside_at_once():
    health = PassiveHealth()
    assert not health.is_aside(0.0)
    health.failed(10.0, is_certain=True)
    assert health.is_aside(10.0 + MIN_HOLD_OFF_S / 2)
    assert not health.is_aside(10.0 + MIN_HOLD_OFF_S)


def test_answers_with_a_code_of_failure_put_aside_when_several_follow_each_other():
    health = PassiveHealth()
    for _ in range(FAILURES - 1):
        health.failed(0.0, is_certain=False)
    assert not health.is_aside(0.0)
    health.succeeded()
    for _ in range(FAILURES - 1):
        health.failed(0.0, is_certain=False)
    assert not health.is_aside(0.0)
    health.failed(0.0, is_certain=False)
    assert health.is_aside(0.0)


def test_one_request_tries_a_backend_whose_hold_off_is_over_and_the_others_stay_away():
    health = PassiveHealth()
    health.failed(0.0, is_certain=True)
    health.begin(MIN_HOLD_OFF_S)
    assert health.is_aside(MIN_HOLD_OFF_S)
    health.succeeded()
    assert not health.is_aside(MIN_HOLD_OFF_S)


def test_a_trial_that_never_ends_is_followed_by_another():
    health = PassiveHealth()
    health.failed(0.0, is_certain=True)
    health.begin(5.0)
    assert health.is_aside(5.0)
    assert not health.is_aside(5.0 + MIN_HOLD_OFF_S)


def test_a_backend_that_is_down_for_ten_minutes_is_tried_a_dozen_times_and_more():
    health, now, tried = PassiveHealth(), 0.0, 0
    while now < 600:
        if not health.is_aside(now):
            tried += 1
            health.begin(now)
            health.failed(now, is_certain=True)
        now += 0.125
    assert 10 <= tried <= 20
    assert health.aside_until - now <= MAX_HOLD_OFF_S


def test_of_failures_that_end_together_one_counts():
    health = PassiveHealth()
    for _ in range(100):
        health.failed(0.0, is_certain=True)
    assert not health.is_aside(MIN_HOLD_OFF_S)


def test_a_pause_that_the_backend_asks_for_is_kept_within_a_bound():
    health = PassiveHealth()
    health.failed(0.0, is_certain=False, asked_s=30.0)
    assert health.is_aside(29.0)
    assert not health.is_aside(30.0)
    health.failed(100.0, is_certain=False, asked_s=86_400.0)
    health.failed(100.0, is_certain=False, asked_s=1.0)  # does not make it shorter
    assert health.is_aside(100.0 + MAX_ASIDE_S - 1)
    assert not health.is_aside(100.0 + MAX_ASIDE_S)


def test_an_older_request_that_ends_well_does_not_shorten_the_pause():
    health = PassiveHealth()
    health.failed(0.0, is_certain=False, asked_s=30.0)
    health.succeeded()
    assert health.is_aside(29.0)
    assert not health.is_aside(30.0)


def test_what_puts_a_backend_aside_and_what_brings_it_back_says_so_once():
    health = PassiveHealth()
    assert not health.succeeded()
    assert health.failed(0.0, is_certain=False) == 0.0
    assert not health.succeeded()
    assert health.failed(0.0, is_certain=True) == MIN_HOLD_OFF_S
    assert health.failed(0.0, is_certain=True) == 0.0  # one that was under way at the same time
    health.begin(MIN_HOLD_OFF_S)
    assert health.failed(MIN_HOLD_OFF_S, is_certain=True) == 2 * MIN_HOLD_OFF_S
    assert health.succeeded()
    assert not health.succeeded()


def test_a_pause_that_is_asked_for_is_told_once_and_a_success_does_not_end_it():
    health = PassiveHealth()
    assert health.failed(0.0, is_certain=False, asked_s=20.0) == 20.0
    assert health.failed(1.0, is_certain=False, asked_s=20.0) == 0.0
    assert not health.succeeded()  # of a request that was under way
    assert health.is_aside(10.0)


def test_a_trial_after_a_pause_that_was_asked_for_brings_the_backend_back():
    health = PassiveHealth()
    health.failed(0.0, is_certain=False, asked_s=20.0)
    health.begin(20.0)
    assert health.succeeded()
