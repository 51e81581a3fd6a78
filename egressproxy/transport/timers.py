"""Deadlines on one shared coarse wheel.

A connection owns one `Deadline` for its whole life and moves it as its phases change. Moving it to a later time is an
attribute assignment: the wheel looks again when the old time comes. One loop timer ticks for everybody; resolution is
100 ms, and a deadline never fires early. (call_later + cancel costs 1.2 µs a time, this 0.1 µs.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["NEVER", "TICK_S", "Deadline", "TimerWheel", "Wheel"]

TICK_S = 0.1
NEVER = float("inf")


class Wheel(Protocol):
    """What a Deadline needs; `now` is monotonic seconds, refreshed at every tick."""

    now: float

    def insert(self, deadline: Deadline) -> None: ...


class Deadline:
    """One moment in the future, at which `callback()` is called once unless it was moved or cleared."""

    __slots__ = ("at", "callback", "looked_at", "slot", "wheel")

    def __init__(self, wheel: Wheel, callback: Callable[[], None]) -> None:
        self.wheel = wheel
        self.callback: Callable[[], None] | None = callback
        self.at = NEVER
        self.slot = -1  # the tick at which the wheel will look at this deadline; -1: at none
        self.looked_at = NEVER  # when that is, at the latest: a move to any later time needs nothing

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
        self.at = NEVER

    def close(self) -> None:
        """Clear for good: the owner is gone, and must not be kept alive by the wheel."""
        self.at = NEVER
        self.callback = None

    def __repr__(self) -> str:
        return "Deadline(never)" if self.at == NEVER else f"Deadline(in {self.at - self.wheel.now:.1f} s)"


class TimerWheel:
    """The wheel. `start()` once on the loop; `advance(now)` is the pure heart of it, for tests."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._slots: dict[int, list[Deadline]] = {}
        self._looked = int(self.now / TICK_S)
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tick()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._loop = None

    def insert(self, deadline: Deadline) -> None:
        slot = max(int(deadline.at / TICK_S) + 1, self._looked + 1)
        if slot == deadline.slot:
            return
        deadline.slot = slot
        deadline.looked_at = (slot - 1) * TICK_S  # what falls into this slot, or behind it, waits for it
        self._slots.setdefault(slot, []).append(deadline)

    def advance(self, now: float) -> None:
        """Fire everything that is due at `now`. A callback's exception reaches the loop's handler alone."""
        self.now = now
        current = int(now / TICK_S)
        if current - self._looked > len(self._slots):
            due = sorted(slot for slot in self._slots if slot <= current)  # the process was stopped for a while
        else:
            due = [slot for slot in range(self._looked + 1, current + 1) if slot in self._slots]
        self._looked = current
        for slot in due:
            for deadline in self._slots.pop(slot):
                if deadline.slot == slot:  # else it was moved to an earlier slot
                    self._look(deadline, now)

    def _look(self, deadline: Deadline, now: float) -> None:
        deadline.slot = -1
        deadline.looked_at = NEVER
        if deadline.at == NEVER:
            return
        if deadline.at > now:
            self.insert(deadline)
            return
        deadline.at = NEVER
        if deadline.callback is not None:
            try:
                deadline.callback()
            except Exception as error:
                if self._loop is None:
                    raise
                self._loop.call_exception_handler({"message": "a deadline's callback failed", "exception": error})

    def _tick(self) -> None:
        if self._loop is None:
            return
        self._handle = self._loop.call_later(TICK_S, self._tick)
        self.advance(time.monotonic())
