"""How late the event loop is, measured at the ticks of the timer wheel, so that an idle process is not woken for it."""

from __future__ import annotations

from typing import Final

from egressproxy.net.timers import TICK_S
from egressproxy.telemetry.label_sets import Durations

#: Upper bounds of the histogram. The loop's clock is exact to a millisecond.
LAG_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)


class LoopLag:
    """Give `tick` to `TimerWheel.watch`; a scrape reads the rest."""

    __slots__ = ("_worst_s", "delays")

    def __init__(self) -> None:
        self.delays = Durations(LAG_BUCKETS_S)  # of ticks
        self._worst_s = 0.0

    def tick(self, late_s: float, took_s: float) -> None:
        """Count one tick that came `late_s` seconds late and took `took_s`, and the ticks that it replaced.

        With the replaced ones, the share of late ticks is the share of time in which the loop was late. The time of the
        tick itself (many deadlines at once) only counts for the worst delay: every probe waits for it, few clients do.
        """
        self._worst_s = max(self._worst_s, late_s + took_s)
        if late_s > LAG_BUCKETS_S[-1]:  # the process was stopped, perhaps for hours
            beyond = int((late_s - LAG_BUCKETS_S[-1]) / TICK_S)
            self.delays.buckets[-1] += beyond
            self.delays.sum_s += beyond * (late_s - TICK_S * (beyond - 1) / 2)
            late_s -= beyond * TICK_S
        while True:
            self.delays.count(max(late_s, 0.0))
            late_s -= TICK_S
            if late_s <= 0:
                return

    def take_worst(self) -> float:
        """The longest delay in seconds since the last call."""
        worst, self._worst_s = self._worst_s, 0.0
        return worst
