import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.filters.limits.windows import CalendarWindow, TokenBucket, window_of


class Key:
    """The numbers of one key, as a store keeps them."""

    def __init__(self, window):
        self.window, self.until, self.used, self.period = window, 0.0, 0.0, b""
        self.cells = memoryview(bytearray(16)).cast("d")

    def take(self, amount, now):
        period = self.window.period(now)
        if period != self.period:  # another key
            self.until, self.used, self.period = 0.0, 0.0, period
        wait = self.window.wait_s(self.until, self.used, amount, now)
        self.cells[0], self.cells[1] = self.until, self.used
        if not wait:
            self.until, self.used = self.window.with_more(self.until, self.used, amount, now)
        assert self.window.take(self.cells, 0, amount, now) == wait
        assert [*self.cells] == [self.until, self.used]
        return wait

    def left(self, now):
        return self.window.left(self.until, self.used, now)


@given(
    st.integers(1, 50),
    st.sampled_from([1.0, 60.0, 3600.0]),
    st.integers(0, 60),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 20)), max_size=60),
)
def test_no_window_passes_more_than_the_limit_and_the_burst(limit, length_s, burst, asked):
    key, now, passed = Key(TokenBucket(limit, length_s, burst)), 1000.0, []
    for pause, amount in asked:
        now += pause
        if not key.take(amount, now):
            passed.append((now, amount))
    for index, (begin, _) in enumerate(passed):
        total = 0
        for moment, amount in passed[index:]:
            total += amount
            assert total <= (burst or limit) + (moment - begin) * limit / length_s + 1e-3


def test_a_bucket_fills_with_time():
    key = Key(TokenBucket(10, 5.0, 4))
    assert [key.take(1, 100.0) > 0 for _ in range(6)] == [False] * 4 + [True] * 2
    assert key.take(1, 100.0) == pytest.approx(0.5)
    assert key.left(100.0) == (pytest.approx(0, abs=1e-3), pytest.approx(2.0))
    assert key.take(1, 100.5) == 0.0
    assert key.left(200.0) == (pytest.approx(4), 0.0)


def test_what_is_more_than_the_limit_never_fits():
    assert Key(TokenBucket(10, 60.0)).take(11, 1.0) == math.inf
    assert Key(CalendarWindow(10, "Day", lambda: 0.0)).take(11, 1.0) == math.inf


def test_a_debt_is_waited_for():
    key = Key(TokenBucket(60, 60.0))
    key.take(10, 100.0)
    key.until, key.used = key.window.with_more(key.until, key.used, 110, 100.0)
    assert key.take(1, 100.0) == pytest.approx(61.0)
    assert key.take(1, 162.0) == 0.0


def test_what_is_given_back_can_be_taken_again():
    for window in (TokenBucket(60, 60.0), CalendarWindow(60, "Month", lambda: 0.0)):
        key = Key(window)
        assert key.take(60, 100.0) == 0.0
        assert key.take(1, 100.0) > 0
        key.until, key.used = window.with_more(key.until, key.used, -60, 100.0)
        assert key.take(60, 100.0) == 0.0


@given(st.floats(0, 200), st.floats(-500, 500), st.sampled_from([0.0, 40.0, 99.0, 150.0]))
def test_more_is_added_to_the_numbers_of_a_bucket_as_with_more_says(until, amount, now):
    window, cells = TokenBucket(60, 60.0), memoryview(bytearray(16)).cast("d")
    cells[0] = until
    window.add_to(cells, 0, amount, now)
    assert tuple(cells) == window.with_more(until, 0.0, amount, now)


@pytest.mark.parametrize(
    ("unit", "wall", "wait_s", "begin"),
    [
        ("Day", "2026-02-28T23:59:00", 60, b"2026-02-28"),
        ("Month", "2026-02-28T23:59:00", 60, b"2026-02-01"),
        ("Month", "2026-12-31T00:00:00", 86400, b"2026-12-01"),
        ("Day", "2028-02-29T12:00:00", 43200, b"2028-02-29"),
    ],
)
def test_days_and_months_begin_at_midnight_in_utc(unit, wall, wait_s, begin):
    clock = [datetime.fromisoformat(wall).replace(tzinfo=UTC).timestamp()]
    key = Key(CalendarWindow(3, unit, lambda: clock[0]))
    assert [key.take(1, 100.0) for _ in range(3)] == [0.0] * 3
    assert key.take(1, 100.0) == pytest.approx(wait_s)
    assert key.period == begin
    clock[0] += wait_s
    assert key.take(3, 100.0 + wait_s) == 0.0
    assert key.take(1, 100.0 + wait_s) > 0


def test_the_clock_of_the_calendar_may_be_set():
    clock = [datetime(2026, 5, 1, tzinfo=UTC).timestamp()]
    window = CalendarWindow(3, "Month", lambda: clock[0])
    assert window.period(0.0) == b"2026-05-01"
    clock[0] = datetime(2026, 4, 30, tzinfo=UTC).timestamp()
    assert window.period(3600.0) == b"2026-04-01"


def test_units_are_windows():
    lengths = [window_of(1, unit).length_s for unit in ("Second", "Minute", "Hour", "Day")]
    assert lengths == [1.0, 60.0, 3600.0, 86400.0]
    assert window_of(1, "", 2.5).length_s == 2.5
