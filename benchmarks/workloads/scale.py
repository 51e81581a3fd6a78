"""S to S5: W1 or W1u through two variants of one proxy, and what one costs as a multiple of the other."""

from __future__ import annotations

import json
import random
import statistics
from abc import abstractmethod
from collections.abc import Sequence

from benchmarks.generators import Generator, LoadError, Outcome, python_generator
from benchmarks.processes import StartError
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import CpuTime, Round, Workload
from benchmarks.workloads.requests import CONNECTIONS, Forward
from benchmarks.world import World, hosts

#: Of S3.
CLIENTS = 2000


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
        self._work = self.work()
        self._pairs: dict[str, tuple[Proxy, Proxy]] = {}
        self._chance = random.Random(self.name)

    def choose(self, proxies: Sequence[Proxy]) -> list[Proxy]:
        """Ours, and one other to show what is the machine's: each takes twice as long as in other workloads."""
        return [proxy for proxy in proxies if proxy.name in ("egressproxy", "envoy")]

    def work(self) -> Forward:
        """What is asked of both."""
        return Forward(self.name, self.title)

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


class _Clients(Forward):
    """W1 of clients with a connection each, some of them at a time; each shows its own of the proxy's tokens."""

    def measure(self, proxy: Proxy, world: World, seconds: float) -> Round:
        path = world.folder / f"{self.name}-{len(proxy.tokens)}.requests"
        requests = (self._of(token, proxy, world).decode() for token in proxy.tokens)
        path.write_text("\n".join(map(json.dumps, requests)))
        command = python_generator(
            "clients", "--port", str(proxy.ports[self.listener]), "--requests", str(path),
            "--connections", str(CLIENTS), "--width", str(CONNECTIONS),
        )  # fmt: skip
        with Generator(command, f"{self.name} through {proxy.name}") as clients:
            clients.answer(seconds)
            cpu = CpuTime(proxy)
            clients.go_on(seconds)
            outcome = Outcome(**clients.answer(seconds))
            outcome.refuse_errors()
            spent = cpu.settled_seconds()
        return Round(spent / outcome.units * 1e6, outcome, cpu.resident_mib())

    def request(self, proxy: Proxy, world: World) -> bytes:
        return self._of(proxy.tokens[0], proxy, world)

    def _of(self, token: str, proxy: Proxy, world: World) -> bytes:
        return super().request(proxy, world)[:-2] + f"Proxy-Authorization: Bearer {token}\r\n\r\n".encode()


class MoreClients(_Scale):
    """Whether a request costs more where many clients are known, each with a limit of its own.

    There are as many connections, and tokens on them, in the lesser variant: all are of one client.
    """

    name = "S3"
    title = f"W1 of {CLIENTS:,} clients, each with its token, its limit and its connection, against one on as many"
    lesser = "one client"
    greater = f"{CLIENTS:,} clients"

    def cannot(self, proxy: Proxy) -> str:
        return super().cannot(proxy) or ("" if proxy.can_know_clients() else "it is not asked who its clients are")

    def work(self) -> Forward:
        return _Clients(self.name, self.title)

    def variants(self, proxy: Proxy) -> tuple[Proxy, Proxy]:
        return proxy.knowing(1), proxy.knowing(CLIENTS)


class MoreTraces(_Scale):
    """What traces cost. The clients' contexts are sampled, and each request has its own."""

    lesser = "no traces"

    def __init__(self, name: str, percent: int) -> None:
        self.name = name
        self.title = f"W1u with {percent} % of requests traced, and exported by OTLP, against none"
        self.greater = f"{percent} %"
        self._percent = percent
        super().__init__()

    def work(self) -> Forward:
        return Forward(self.name, self.title, "/unique")

    def variants(self, proxy: Proxy) -> tuple[Proxy, Proxy]:
        return type(proxy)(), proxy.tracing(self._percent)
