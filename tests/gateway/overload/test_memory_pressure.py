"""Overload states: when they begin, and that each of them ends."""

from __future__ import annotations

import pytest

from egressproxy.gateway.overload.memory_pressure import CALM_S, LONG_STEADY_S, STEADY_S, MemoryPressure, OverloadState

NORMAL, NO_KEEPALIVE, SHEDDING, REFUSING = OverloadState
BASE = 200  # of 1,000, before anybody is served


class Process:
    """A process that is looked at ten times a second."""

    def __init__(self, limit: int = 1000, base: int = BASE) -> None:
        self.pressure = MemoryPressure(limit)
        self.now = 50.0
        self.looks(base)

    def looks(self, resident: int, load: int = 0, *, for_s: float = 0.1) -> OverloadState:
        for _ in range(round(for_s * 10)):
            self.now += 0.1
            self.pressure.observe(resident, load, self.now)
        return self.pressure.state


@pytest.mark.parametrize(
    ("resident", "state"),
    [(200, NORMAL), (849, NORMAL), (850, NO_KEEPALIVE), (919, NO_KEEPALIVE), (920, SHEDDING), (949, SHEDDING),
     (950, REFUSING), (2000, REFUSING)],
)  # fmt: skip
def test_each_state_begins_at_its_share_of_the_limit(resident: int, state: OverloadState):
    assert Process().looks(resident, 100) is state


def test_a_state_ends_somewhat_below_where_it_began():
    process = Process()
    states = [process.looks(resident, 100) for resident in (951, 945, 922, 919, 900, 892, 888, 830, 825, 819, 840)]
    assert states == [
        REFUSING, REFUSING, REFUSING, SHEDDING, SHEDDING, SHEDDING, NO_KEEPALIVE, NO_KEEPALIVE, NO_KEEPALIVE, NORMAL,
        NORMAL,
    ]  # fmt: skip


def test_memory_that_is_not_given_back_keeps_nobody_out_once_half_of_the_load_has_gone():
    process = Process()
    assert process.looks(960, 100, for_s=3) is REFUSING
    assert process.looks(960, 51, for_s=3) is REFUSING
    assert process.looks(960, 50, for_s=CALM_S - 0.2) is REFUSING
    assert process.looks(960, 50, for_s=0.3) is NORMAL
    assert process.looks(960, 100, for_s=60) is NORMAL  # it is used again


def test_what_is_used_beyond_what_was_kept_is_pressure_again():
    process = Process()
    process.looks(960, 100)  # a twentieth of which is more than what is left
    process.looks(960, 0, for_s=2)
    states = [process.looks(resident, 100) for resident in (970, 980, 989, 992, 999)]
    assert states == [NORMAL, NO_KEEPALIVE, NO_KEEPALIVE, SHEDDING, REFUSING]


@pytest.mark.parametrize("peak", [990, 1000, 1500])
def test_no_burst_shuts_the_gateway_for_good(peak: int):
    """Whatever stays resident: with nothing in progress there is room for something."""
    process = Process()
    assert process.looks(peak, 1000, for_s=2) is REFUSING
    assert process.looks(peak, 0, for_s=2) is NORMAL
    assert process.looks(peak * 21 // 20, 100) is REFUSING  # a twentieth beyond what it keeps, and no more


def test_requests_that_last_for_hours_keep_others_out_as_long_as_memory_grows():
    process = Process()
    for resident in range(955, 1600, 6):
        assert process.looks(resident, 100, for_s=1) is REFUSING


def test_requests_that_last_for_hours_keep_nobody_out_where_memory_does_not_grow():
    process = Process()
    assert process.looks(960, 100, for_s=STEADY_S - 0.2) is REFUSING
    assert process.looks(960, 100, for_s=0.4) is NORMAL
    assert process.looks(999, 200) is REFUSING


def test_steady_memory_above_the_limit_admits_nothing_for_minutes_while_the_load_stays():
    process = Process()
    assert process.looks(1100, 100, for_s=LONG_STEADY_S - 0.2) is REFUSING
    assert process.looks(1100, 100, for_s=0.4) is NORMAL


def test_connections_that_say_nothing_do_not_push_the_process_far_beyond_its_limit():
    """They stay, and come as soon as any is accepted: the memory is theirs."""
    process, resident, load = Process(), 300, 100
    for _ in range(3000):  # five minutes
        if process.looks(resident, load) is not REFUSING:
            resident, load = resident + 7, load + 100
    assert resident < 1000 * 1.05 + 7


def test_what_is_given_back_is_kept_no_more():
    process = Process()
    process.looks(960, 100)
    process.looks(960, 0, for_s=2)
    process.looks(300)
    assert process.looks(860, 100) is NO_KEEPALIVE


def test_a_process_that_begins_above_its_limit_serves_all_the_same():
    process = Process(base=1100)
    assert process.looks(1110, 10) is NORMAL
    assert process.looks(1150, 10) is REFUSING
