"""What every connection does: deadlines, and the driver of its coroutine."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.micro.stage import Stage
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.timers import Deadline, TimerWheel

GROUP = "transport"


def stages() -> Iterator[Stage]:
    deadline = Deadline(TimerWheel(), lambda: None)
    yield Stage(GROUP, "Deadline: moved", lambda: deadline.after(10.0))
    yield Stage(GROUP, "Deadline: cleared", deadline.clear)
    waiting, starting = Driver(), Driver()
    waiting.start(endless())
    yield Stage(GROUP, "Driver: resume", waiting.resume)
    yield Stage(GROUP, "Driver: start of a coroutine that ends at once", lambda: starting.start(nothing()))


async def endless() -> None:
    while True:
        await PAUSE


async def nothing() -> None:
    pass
