"""S and S2: W1 through two variants of one proxy, and what one costs as a multiple of the other."""

from __future__ import annotations

import random
import statistics
from abc import abstractmethod
from collections.abc import Sequence

from benchmarks.generators import LoadError
from benchmarks.processes import StartError
from benchmarks.proxies import Proxy
from benchmarks.workloads.base import Round, Workload
from benchmarks.workloads.requests import Forward
from benchmarks.world import World, hosts

__all__ = ["MoreRoutes", "MoreWorkers"]


class _Scale(Workload):
    """A round goes through both variants, in random order; its figure is greater/lesser. They live for the workload.

    The order comes from a chance of its own, seeded alike in every run.
    """

    figure = "times as much CPU"
    is_relative = True
    digits = 3
    lesser: str
    greater: str

    def __init__(self) -> None:
        self._work = Forward(self.name, self.title, is_small=False)
        self._pairs: dict[str, tuple[Proxy, Proxy]] = {}
        self._chance = random.Random(self.name)

    def choose(self, proxies: Sequence[Proxy]) -> list[Proxy]:
        """Ours, and one other to show what is the machine's: each takes twice as long as in other workloads."""
        return [proxy for proxy in proxies if proxy.name in ("egressproxy", "envoy")]

    @abstractmethod
    def variants(self, proxy: Proxy) -> tuple[Proxy, Proxy]:
        """The one of which less is asked, and the one of which more is asked."""

    def check(self, proxy: Proxy, world: World) -> None:
        pair = self._pairs[proxy.name] = self.variants(proxy)
        try:
            for variant in pair:
                variant.start(world, proxy.core)
        except StartError as error:
            raise LoadError(str(error)) from None
        for variant in pair:
            self._work.check(variant, world)

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        pair = self._pairs[proxy.name]
        rounds = {each: self._work.measure(each, world, seconds) for each in self._chance.sample(pair, 2)}
        less, more = (rounds[each] for each in pair)
        extra = {"lesser_cpu_us": less.figure, "greater_cpu_us": more.figure}
        return Round(more.figure / less.figure, more.outcome, more.resident_mib, extra)

    def describe(self, rounds: Sequence[Round]) -> str:
        less, more = (
            statistics.median(each.extra[name] for each in rounds) for name in ("lesser_cpu_us", "greater_cpu_us")
        )
        return f"{self.lesser}: {less:.1f} µs; {self.greater}: {more:.1f} µs a request"

    def close(self) -> None:
        for pair in self._pairs.values():
            for variant in pair:
                variant.stop()
        self._pairs.clear()


class MoreRoutes(_Scale):
    """Whether a request pays for routes that are not its own."""

    name = "S"
    title = "W1 with 10,000 routes against 10"
    lesser = "10 routes"
    greater = "10,000 routes"

    def variants(self, proxy: Proxy) -> tuple[Proxy, Proxy]:
        return type(proxy)(names=hosts(10)), type(proxy)(names=hosts(10_000))


class MoreWorkers(_Scale):
    """Whether a request costs more where several processes share the work. Both have the one core of the proxies."""

    name = "S2"
    title = "W1 with two workers against one"
    lesser = "one worker"
    greater = "two workers"

    def cannot(self, proxy: Proxy) -> str:
        return super().cannot(proxy) or ("" if proxy.can_have_workers() else "it has no choice of workers")

    def variants(self, proxy: Proxy) -> tuple[Proxy, Proxy]:
        return type(proxy)(workers=1), type(proxy)(workers=2)
