"""How a limit counts over time, on the two numbers that `keyed_counters` keeps for a key.

Short windows are token buckets (the generic cell rate algorithm, ITU-T I.371): they let pass at most the limit in any
window but for the burst at its beginning, refill steadily, and one number says everything: `until` is the moment at
which the bucket is full again. Days and months are windows of the calendar in UTC, as bills and budgets are: `used`
counts up to the limit and begins anew at midnight. An amount may be more than there is only where it is settled later,
for an answer that took more than was reserved: that is a debt, which the next ones wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

#: The units of a limit that are token buckets, in seconds, and those of the calendar, in nominal seconds.
SECONDS: Final = {"Second": 1.0, "Minute": 60.0, "Hour": 3600.0}
CALENDAR: Final = {"Day": 86400.0, "Month": 30 * 86400.0}
#: Lengths that have a name.
_SPANS: Final = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour"}
#: Rounding in sums of intervals.
_ROUNDING: Final = 1e-6


def span_text(length_s: float) -> str:
    """ "a minute" or "90 s", for messages."""
    return _SPANS.get(length_s, f"{length_s:g} s")


class Window(Protocol):
    """`period` is asked for before the others. `until` and `used` are the numbers of a key, `now` is in monotonic
    seconds, amounts are in the unit of the limit.
    """

    limit: float
    length_s: float
    most: float  # that can be taken at once

    def period(self, now: float) -> bytes:
        """What distinguishes this window from the ones before, as a part of the key."""

    def wait_s(self, until: float, used: float, amount: float, now: float) -> float:
        """Seconds until this amount fits; 0.0: it does now; infinite: it never will."""

    def with_more(self, until: float, used: float, amount: float, now: float) -> tuple[float, float]:
        """Both numbers when this amount is counted; a negative one is given back."""

    def take(self, cells: memoryview[float], at: int, amount: float, now: float) -> float:
        """Count this amount in the numbers at this place, if it fits. Returns as `wait_s`."""

    def left(self, until: float, used: float, now: float) -> tuple[float, float]:
        """How much is left now, at least 0.0, and in how many seconds all of it is there again."""


class TokenBucket:
    """`limit` in `length_s` seconds; `burst` of them at once (0: all)."""

    __slots__ = ("_ahead", "_interval", "_slack", "length_s", "limit", "most")

    def __init__(self, limit: float, length_s: float, burst: float = 0.0) -> None:
        self.limit = limit
        self.length_s = length_s
        self.most = burst or limit
        self._interval = length_s / limit
        #: How far ahead of now `until` may be, in seconds.
        self._ahead = self._interval * self.most
        self._slack = self._interval * _ROUNDING + self._ahead * 1e-12

    @property
    def terms(self) -> tuple[float, float, float]:
        """What `take` reckons with, in seconds: what 1 takes, how far ahead of now `until` may be, and the rounding."""
        return self._interval, self._ahead, self._slack

    def period(self, now: float) -> bytes:
        return b""

    def wait_s(self, until: float, used: float, amount: float, now: float) -> float:
        needed = amount * self._interval
        if needed > self._ahead + self._slack:
            return math.inf
        wait = (until if until > now else now) - now + needed - self._ahead
        return wait if wait > self._slack else 0.0

    def with_more(self, until: float, used: float, amount: float, now: float) -> tuple[float, float]:
        return (until if until > now else now) + amount * self._interval, 0.0

    def take(self, cells: memoryview[float], at: int, amount: float, now: float) -> float:
        until, needed = cells[at], amount * self._interval
        if until < now:
            until = now
        if until - now + needed - self._ahead > self._slack:
            return self.wait_s(until, 0.0, amount, now)
        cells[at] = until + needed
        return 0.0

    def add_to(self, cells: memoryview[float], at: int, amount: float, now: float) -> None:
        """`with_more` of the numbers at this place, of which a bucket has but the first."""
        until = cells[at]
        cells[at] = (until if until > now else now) + amount * self._interval

    def left(self, until: float, used: float, now: float) -> tuple[float, float]:
        drawn = until - now if until > now else 0.0
        return max(0.0, self._ahead - drawn + self._slack) / self._interval, drawn


class CalendarWindow:
    """`limit` in a day or a month of the calendar in UTC. `wall` tells seconds since the epoch."""

    __slots__ = ("_asked_until", "_ends_at", "_is_month", "_period", "_wall", "length_s", "limit", "most")

    def __init__(self, limit: float, unit: str, wall: Callable[[], float] = time.time) -> None:
        self.limit = self.most = limit
        self.length_s = CALENDAR[unit]
        self._is_month = unit == "Month"
        self._wall = wall
        self._period = b""
        self._ends_at = 0.0  # seconds since the epoch
        self._asked_until = 0.0  # monotonic seconds

    def period(self, now: float) -> bytes:
        if now >= self._asked_until:
            wall = self._wall()
            begin, end = _bounds(wall, is_month=self._is_month)
            self._period = begin.strftime("%Y-%m-%d").encode()
            self._ends_at = end.timestamp()
            # The clock of the calendar may be set: it is asked again within the hour.
            self._asked_until = now + min(self._ends_at - wall, 3600.0)
        return self._period

    def wait_s(self, until: float, used: float, amount: float, now: float) -> float:
        if amount > self.limit:
            return math.inf
        return 0.0 if used + amount <= self.limit * (1 + 1e-12) else max(1e-3, self.seconds_left())

    def with_more(self, until: float, used: float, amount: float, now: float) -> tuple[float, float]:
        # A minute longer than the window, in which it is not asked for any more: clocks differ.
        return now + self.seconds_left() + 60.0, max(0.0, used + amount)

    def take(self, cells: memoryview[float], at: int, amount: float, now: float) -> float:
        wait = self.wait_s(cells[at], cells[at + 1], amount, now)
        if wait == 0.0:
            cells[at], cells[at + 1] = self.with_more(cells[at], cells[at + 1], amount, now)
        return wait

    def left(self, until: float, used: float, now: float) -> tuple[float, float]:
        return max(0.0, self.limit - used), self.seconds_left()

    def seconds_left(self) -> float:
        return max(0.0, self._ends_at - self._wall())


def window_of(limit: float, unit: str, length_s: float = 0.0, burst: float = 0.0) -> Window:
    """The window of a limit. `unit`: Second, Minute, Hour, Day or Month; "": `length_s` seconds."""
    if unit in CALENDAR:
        return CalendarWindow(limit, unit)
    return TokenBucket(limit, SECONDS[unit] if unit else length_s, burst)


def _bounds(wall: float, *, is_month: bool) -> tuple[datetime, datetime]:
    """The beginning of the window that this moment is in, and that of the next one."""
    day = datetime.fromtimestamp(wall, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if not is_month:
        return day, day + timedelta(days=1)
    first = day.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1)
