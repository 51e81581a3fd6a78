"""M: the memory of a proxy that has started and has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import Round, Workload, child_of, fresh_copy
from benchmarks.world import World

#: When the memory is read, in seconds after the start; `python -m benchmarks --idle` adds a later one.
START_S, REST_S = 1.0, 30.0
MEGABYTE_KIB = 1000 * 1000 / 1024


class IdleMemory(Workload):
    """Proportional memory (PSS: shared pages counted once) of the whole process tree, 30 s after its start."""

    name = "M"
    title = "memory of all processes with 200 routes, 30 s after the start"
    figure = "MB (PSS)"
    most_rounds = 1  # it hardly differs, and takes its time

    def __init__(self, idle_s: float = 0.0) -> None:
        self.idle_s = idle_s

    def check(self, proxy: Proxy, world: World) -> None:
        """Whether it works is found by the other workloads."""

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        figures = {}
        with fresh_copy(proxy, world) as fresh:
            started = time.monotonic()
            for at_s in (START_S, REST_S, *([self.idle_s] if self.idle_s > REST_S else [])):
                time.sleep(max(0.0, started + at_s - time.monotonic()))
                memory = child_of(fresh).memory().values()
                figures[f"{at_s:.0f} s"] = sum(each.proportional for each in memory) / MEGABYTE_KIB
        resident = sum(each.resident for each in memory)
        return Round(figures[f"{REST_S:.0f} s"], None, resident / 1024, figures)

    def warm_up(self, proxy: Proxy, world: World, seconds: float) -> None:
        """Each round has a process of its own."""

    def describe(self, rounds: Sequence[Round]) -> str:
        return ", ".join(f"{megabytes:.0f} MB after {at}" for at, megabytes in rounds[0].extra.items())
