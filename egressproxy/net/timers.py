"""Deadlines on one shared coarse wheel, which one timer of the loop turns each 100 ms; none fires early. A connection
owns one `Deadline` and moves it. A move to a later time is an attribute assignment: the wheel checks again at the old
time (call_later + cancel costs 1.2 µs a time, this 0.1 µs).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.1
NEVER: Final = float("inf")


class Timer(ABC):
    """A time in the future at which `passed()` is called once, unless moved or cleared."""

    __slots__ = ("at", "looked_at", "slot", "wheel")

    def __init__(self, wheel: TimerWheel) -> None:
        self.wheel = wheel
        self.at = NEVER
        self.slot = -1  # the tick of the next check; -1: none
        self.looked_at = NEVER  # the start of that tick: a move to a later time needs no further work

    @abstractmethod
    def passed(self) -> None:
        """Handle the expiry."""

    def set(self, at: float) -> None:
        """Fire at this monotonic time (seconds), instead of any earlier one."""
        self.at = at
        if at < self.looked_at:
            self.wheel.insert(self)

    def after(self, seconds: float) -> None:
        """Fire so many seconds from now; 0 means never."""
        self.at = at = self.wheel.now + seconds if seconds > 0 else NEVER
        if at < self.looked_at:
            self.wheel.insert(self)

    def clear(self) -> None:
        """Disable the timer, until it is set again."""
        self.at = NEVER

    def close(self) -> None:
        """Clear for good, so that the wheel does not keep the owner alive."""
        self.at = NEVER
        if self.slot >= 0:
            self.wheel.remove(self)

    def __repr__(self) -> str:
        when = "never" if self.at == NEVER else f"in {self.at - self.wheel.now:.1f} s"
        return f"{type(self).__name__}({when})"


class Deadline(Timer):
    """A timer that calls `callback()`."""

    __slots__ = ("callback",)

    def __init__(self, wheel: TimerWheel, callback: Callable[[], None]) -> None:
        super().__init__(wheel)
        self.callback: Callable[[], None] | None = callback

    def passed(self) -> None:
        if self.callback is not None:
            self.callback()

    def close(self) -> None:
        super().close()
        self.callback = None


class TimerWheel:
    """Call `start()` once on the loop; `advance(now)` is the pure core, for tests. `now` is the time of the last tick,
    in monotonic seconds. `watch` is called after each tick with its delay and duration in seconds.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.watch: Callable[[float, float], None] | None = None
        self._due = self.now
        self._slots: dict[int, set[Timer]] = {}
        self._looked = int(self.now / TICK_S)
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = time.monotonic()
        self._tick()

    def stop(self) -> None:
        """Stop ticking. Timers keep their times."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._loop = None

    def moment(self) -> float:
        """The current time, also between ticks; at most two ticks after the last one, since a blocked loop has read no
        input. Without `start` only `advance` moves it.
        """
        return self.now if self._loop is None else min(time.monotonic(), self.now + 2 * TICK_S)

    def insert(self, timer: Timer) -> None:
        """Check this timer at its time (`timer.at`, monotonic seconds)."""
        slot = max(int(timer.at / TICK_S) + 1, self._looked + 1)
        if timer.slot >= 0:
            self.remove(timer)
        timer.slot = slot
        timer.looked_at = (slot - 1) * TICK_S
        found = self._slots.get(slot)
        if found is None:
            self._slots[slot] = {timer}
        else:
            found.add(timer)

    def remove(self, timer: Timer) -> None:
        """Remove a timer from the wheel."""
        found = self._slots.get(timer.slot)
        if found is not None:
            found.discard(timer)
        timer.slot = -1
        timer.looked_at = NEVER

    def advance(self, now: float) -> None:
        """Fire all timers due at `now`. A callback's exception goes to the loop's handler."""
        self.now = now
        current = int(now / TICK_S)
        if current - self._looked > len(self._slots):
            due = sorted(slot for slot in self._slots if slot <= current)  # the process was stopped for a while
        else:
            due = [slot for slot in range(self._looked + 1, current + 1) if slot in self._slots]
        self._looked = current
        for slot in due:
            for timer in self._slots.pop(slot):
                if timer.slot == slot:  # else closed or moved within this tick
                    self._look(timer, now)

    def _look(self, timer: Timer, now: float) -> None:
        timer.slot = -1
        timer.looked_at = NEVER
        if timer.at == NEVER:
            return
        if timer.at > now:
            self.insert(timer)
            return
        timer.at = NEVER
        try:
            timer.passed()
        except Exception as error:
            if self._loop is None:
                raise
            self._loop.call_exception_handler({"message": "a deadline's callback failed", "exception": error})

    def _tick(self) -> None:
        if self._loop is None:
            return
        now = time.monotonic()
        late_s, self._due = now - self._due, now + TICK_S
        self._handle = self._loop.call_later(TICK_S, self._tick)
        self.advance(now)
        if self.watch is not None:
            self.watch(late_s, time.monotonic() - now)
