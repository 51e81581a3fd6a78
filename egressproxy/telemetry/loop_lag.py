"""How late the event loop is. The timer wheel's tick is the probe, so that an idle process does not wake up for it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from egressproxy.net.timers import TICK_S

__all__ = ["LAG_BUCKETS_S", "LoopLag"]

#: Upper bounds of the histogram. A tick's time is exact to a millisecond, which is how the loop counts.
LAG_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)


class LoopLag:
    """`tick` is for `TimerWheel.watch`; the rest is for a scrape."""

    __slots__ = ("_buckets", "_sum_s", "_worst_s")

    def __init__(self) -> None:
        self._buckets = [0] * (len(LAG_BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._worst_s = 0.0

    def tick(self, late_s: float, took_s: float) -> None:
        """One tick, and those that had to be left out because of it: each would have come so much later than its time.

        With them, the share of ticks that were late is the share of the time in which the loop was. What the tick
        itself took (many deadlines at once) counts for the worst alone: all probes would wait for it, few clients do.
        """
        self._worst_s = max(self._worst_s, late_s + took_s)
        if late_s > LAG_BUCKETS_S[-1]:  # the process was stopped, perhaps for hours
            beyond = int((late_s - LAG_BUCKETS_S[-1]) / TICK_S)
            self._buckets[-1] += beyond
            self._sum_s += beyond * (late_s - TICK_S * (beyond - 1) / 2)
            late_s -= beyond * TICK_S
        while True:
            self._buckets[bisect_left(LAG_BUCKETS_S, late_s)] += 1
            self._sum_s += max(late_s, 0.0)
            late_s -= TICK_S
            if late_s <= 0:
                return

    def counted(self) -> tuple[tuple[int, ...], float]:
        """The ticks in each bucket, the last of which has no bound, and the sum of their delays in seconds."""
        return tuple(self._buckets), self._sum_s

    def take_worst(self) -> float:
        """The longest delay in seconds since this was last asked."""
        worst, self._worst_s = self._worst_s, 0.0
        return worst
