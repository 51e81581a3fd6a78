"""Deadlines on the wheel: never early, at most a tick late, one entry each."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, just, lists, one_of, tuples

from egressproxy.net.timers import NEVER, TICK_S, Deadline, TimerWheel
from tests.support.properties import examples


def ticking(wheel: TimerWheel, until: float, step: float = TICK_S) -> None:
    while wheel.now < until:
        wheel.advance(min(wheel.now + step, until))


def test_a_deadline_fires_once_and_not_early():
    wheel, fired = TimerWheel(), []
    deadline = Deadline(wheel, lambda: fired.append(wheel.now))
    at = wheel.now + 1.0
    deadline.after(1.0)
    ticking(wheel, at - 0.01)
    assert not fired
    ticking(wheel, at + 1)
    assert len(fired) == 1
    assert at <= fired[0] <= at + 2 * TICK_S


def test_later_earlier_cleared_and_closed():
    wheel, fired = TimerWheel(), []
    start = wheel.now
    later, earlier, cleared, closed, none = (Deadline(wheel, lambda n=n: fired.append(n)) for n in range(5))
    for deadline in (later, earlier, cleared, closed):
        deadline.after(2.0)
    later.after(5.0)
    earlier.after(1.0)
    cleared.clear()
    closed.close()
    none.after(0)
    ticking(wheel, start + 1.3)
    assert fired == [1]
    ticking(wheel, start + 10)
    assert fired == [1, 0]


async def test_a_moment_lies_between_two_ticks_and_not_far_behind_the_last(monkeypatch: pytest.MonkeyPatch):
    wheel = TimerWheel()
    at = wheel.now
    monkeypatch.setattr("time.monotonic", lambda: at)
    assert wheel.moment() == wheel.now
    wheel.start(asyncio.get_running_loop())
    for seconds, passed in ((0.05, 0.05), (0.19, 0.19), (5.0, 2 * TICK_S)):
        monkeypatch.setattr("time.monotonic", lambda seconds=seconds: at + seconds)
        assert wheel.moment() - wheel.now == pytest.approx(passed)
    wheel.stop()


def test_moving_a_deadline_within_a_tick_costs_no_memory():
    """A busy connection moves its deadline with every request."""
    wheel = TimerWheel()
    deadline = Deadline(wheel, lambda: None)
    for _ in range(1000):
        deadline.clear()
        deadline.after(60.0)
    assert sum(len(slot) for slot in wheel._slots.values()) == 1


def test_a_deadline_may_set_itself_again():
    wheel, fired = TimerWheel(), []
    start = wheel.now

    def again() -> None:
        fired.append(wheel.now)
        deadline.after(1.0)

    deadline = Deadline(wheel, again)
    deadline.after(1.0)
    ticking(wheel, start + 5.5)
    assert len(fired) in (4, 5)


def test_a_process_that_was_stopped_fires_what_is_due():
    wheel, fired = TimerWheel(), []
    for seconds in (1.0, 50.0, 7200.0):
        Deadline(wheel, lambda s=seconds: fired.append(s)).after(seconds)
    wheel.advance(wheel.now + 3600)
    assert fired == [1.0, 50.0]


def test_what_fails_does_not_reach_its_neighbours():
    reported, fired = [], []

    class Loop:
        def call_exception_handler(self, context: dict[str, object]) -> None:
            reported.append(context["exception"])

    wheel = TimerWheel()
    wheel._loop = Loop()  # type: ignore[assignment]

    def fail() -> None:
        raise ValueError

    Deadline(wheel, fail).after(1.0)
    Deadline(wheel, lambda: fired.append(1)).after(1.0)
    ticking(wheel, wheel.now + 2)
    assert len(reported) == 1
    assert fired == [1]


@settings(max_examples=examples(200), deadline=None)
@given(
    lists(
        tuples(floats(0, 3), one_of(just(-1.0), floats(0.001, 5))), min_size=1, max_size=20
    ),
    floats(0.01, 0.5),
)  # fmt: skip
def test_whatever_moves_a_deadline_it_fires_at_its_last_time(moves: list[tuple[float, float]], step: float):
    """Moves of (wait before, seconds from then; -1 clears), under ticks of any length up to half a second."""
    wheel, fired = TimerWheel(), []
    deadline = Deadline(wheel, lambda: fired.append(wheel.now))
    expected = NEVER
    for wait, seconds in moves:
        ticking(wheel, wheel.now + wait, step)
        if expected <= wheel.now - TICK_S - step:
            assert fired
        if fired:
            assert expected <= fired[-1] <= expected + TICK_S + step
            fired.clear()
            expected = NEVER
        if seconds < 0:
            deadline.clear()
            expected = NEVER
        else:
            deadline.after(seconds)
            expected = wheel.now + seconds
    ticking(wheel, wheel.now + 8, step)
    if expected == NEVER:
        assert not fired
    else:
        assert len(fired) == 1
        assert expected <= fired[0] <= expected + TICK_S + step


def test_its_state_can_be_read():
    deadline = Deadline(TimerWheel(), lambda: None)
    assert repr(deadline) == "Deadline(never)"
    deadline.after(5)
    assert repr(deadline) == "Deadline(in 5.0 s)"


async def test_the_loop_ticks_the_wheel():
    wheel, fired = TimerWheel(), asyncio.Event()
    wheel.start(asyncio.get_running_loop())
    Deadline(wheel, fired.set).after(0.1)
    await fired.wait()
    wheel.stop()
