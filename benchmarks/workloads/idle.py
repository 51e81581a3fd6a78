"""M: the memory of a proxy that has just started, and has nothing to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks.proxies import Proxy
from benchmarks.workloads.base import Round, Workload, child_of, fresh_copy
from benchmarks.world import World

__all__ = ["IdleMemory"]

#: Until what is put off at the start is done.
REST_S = 1.0
MEGABYTE_KIB = 1000 * 1000 / 1024


class IdleMemory(Workload):
    """Resident memory of the greatest process of the tree: the worker, where there is a parent of workers."""

    name = "M"
    title = "memory of an idle worker with 200 routes, just started"
    figure = "MB resident"

    def check(self, proxy: Proxy, world: World) -> None:
        """Whether it works is found by the other workloads."""

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        with fresh_copy(proxy, world) as fresh:
            time.sleep(REST_S)
            memory = child_of(fresh).memory()
        resident = sum(each.resident for each in memory)
        extra = {
            "processes": float(len(memory)),
            "tree_resident_mb": resident / MEGABYTE_KIB,
            "tree_proportional_mb": sum(each.proportional for each in memory) / MEGABYTE_KIB,
        }
        return Round(memory[0].resident / MEGABYTE_KIB, None, resident / 1024, extra)

    def warm_up(self, proxy: Proxy, world: World, seconds: float) -> None:
        """Each round has a process of its own."""

    def describe(self, rounds: Sequence[Round]) -> str:
        def middle(name: str) -> float:
            return statistics.median(each.extra[name] for each in rounds)

        return (
            f"whole tree ({middle('processes'):.0f} processes): {middle('tree_resident_mb'):.0f} MB resident, "
            f"{middle('tree_proportional_mb'):.0f} MB with shared pages counted once"
        )
