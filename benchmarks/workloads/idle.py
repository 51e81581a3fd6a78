"""M: the memory of a proxy that has just started, and has nothing to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import Round, Workload, child_of, fresh_copy
from benchmarks.workloads.requests import Forward, Requests, Reverse
from benchmarks.world import World

#: Until what is put off at the start is done.
REST_S = 1.0
REQUESTS = 30
MEGABYTE_KIB = 1000 * 1000 / 1024


class IdleMemory(Workload):
    """Resident memory of the worker: that process of the tree which then spends the most on a few requests."""

    name = "M"
    title = "memory of an idle worker with 200 routes, just started"
    figure = "MB resident"

    def check(self, proxy: Proxy, world: World) -> None:
        """Whether it works is found by the other workloads."""

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        with fresh_copy(proxy, world) as fresh:
            time.sleep(REST_S)
            memory = child_of(fresh).memory()
            worker = _busiest(fresh, world)
        resident = sum(each.resident for each in memory.values())
        extra = {
            "processes": float(len(memory)),
            "tree_resident_mb": resident / MEGABYTE_KIB,
            "tree_proportional_mb": sum(each.proportional for each in memory.values()) / MEGABYTE_KIB,
        }
        return Round(memory[worker].resident / MEGABYTE_KIB, None, resident / 1024, extra)

    def warm_up(self, proxy: Proxy, world: World, seconds: float) -> None:
        """Each round has a process of its own."""

    def describe(self, rounds: Sequence[Round]) -> str:
        def middle(name: str) -> float:
            return statistics.median(each.extra[name] for each in rounds)

        count = round(middle("processes"))
        return (
            f"whole tree ({count} process{'es' if count > 1 else ''}): {middle('tree_resident_mb'):.0f} MB resident, "
            f"{middle('tree_proportional_mb'):.0f} MB with shared pages counted once"
        )


def _busiest(proxy: Proxy, world: World) -> int:
    """The id of the process that serves requests. Raises LoadError."""
    work: Requests = Forward("M", "", is_small=True) if "FORWARD" in proxy.ports else Reverse("M", "")
    child = child_of(proxy)
    before = child.cpu_times()
    for _ in range(REQUESTS):
        work.check(proxy, world)
    after = child.cpu_times()
    return max(before, key=lambda number: after.get(number, 0.0) - before[number])
