"""A comparison: every proxy up at once, rounds in random order, CPU time per unit, the median and the spread.

Only ratios within one run count: figures of a machine that is shared drift by a fifth within minutes.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.proxies import Proxy
from benchmarks.workloads import LoadError, Outcome, Workload
from benchmarks.world import World

__all__ = ["Round", "Row", "compare"]

WARM_UP_S = 1.0
#: Until the work that a round leaves behind (closing, the log) is done, and counted in that round.
SETTLE_S = 0.15


@dataclass(frozen=True, slots=True)
class Round:
    """One round through one proxy. `cpu_us` is CPU time per unit, `resident_kib` memory after it."""

    outcome: Outcome
    cpu_us: float
    resident_kib: int


@dataclass(slots=True)
class Row:
    """One proxy in one workload. `missing` says why there is no figure, `caveat` what is not like for like."""

    workload: str
    proxy: str
    rounds: list[Round] = field(default_factory=list)
    missing: str = ""
    caveat: str = ""

    @property
    def cpu_us(self) -> float:
        return statistics.median(each.cpu_us for each in self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest CPU time per unit of a round."""
        figures = [each.cpu_us for each in self.rounds]
        return min(figures), max(figures)

    @property
    def units_per_s(self) -> float:
        return statistics.median(each.outcome.units / each.outcome.seconds for each in self.rounds)

    @property
    def p50_us(self) -> float:
        return statistics.median(each.outcome.p50_us for each in self.rounds)

    @property
    def p99_us(self) -> float:
        return statistics.median(each.outcome.p99_us for each in self.rounds)

    @property
    def resident_mib(self) -> float:
        return max(each.resident_kib for each in self.rounds) / 1024


def compare(
    workload: Workload,
    proxies: Sequence[Proxy],
    world: World,
    *,
    rounds: int,
    seconds: float,
    chance: random.Random,
    tell: Callable[[str], None],
) -> list[Row]:
    """Rows in the order of `proxies`. A proxy in which an error occurs gets no figures, and its row says why."""
    rows = {proxy.name: Row(workload.name, proxy.name, caveat=proxy.caveat(workload.name)) for proxy in proxies}
    able: list[Proxy] = []
    for proxy in proxies:
        row = rows[proxy.name]
        row.missing = proxy.cannot(workload.name)
        if row.missing:
            continue
        tell(f"{workload.name}: {proxy.name} warms up")
        try:
            workload.check(proxy, world)
            _refuse_errors(workload.run(proxy, world, WARM_UP_S))
            able.append(proxy)
        except LoadError as error:
            row.missing = str(error)
    for number in range(rounds):
        for proxy in chance.sample(able, len(able)):
            row = rows[proxy.name]
            if row.missing:
                continue
            tell(f"{workload.name}: round {number + 1} of {rounds}, {proxy.name}")
            try:
                row.rounds.append(_measure(workload, proxy, world, seconds))
            except LoadError as error:
                row.rounds.clear()
                row.missing = str(error)
    return list(rows.values())


def _measure(workload: Workload, proxy: Proxy, world: World, seconds: float) -> Round:
    """Raises LoadError for any error under load."""
    child = proxy.child
    assert child is not None
    before = child.cpu_s()
    outcome = workload.run(proxy, world, seconds)
    _refuse_errors(outcome)
    time.sleep(SETTLE_S)
    if not child.is_running():
        raise LoadError(f"{proxy.name} has ended: {child.complaint()}")
    return Round(outcome, (child.cpu_s() - before) / outcome.units * 1e6, child.resident_kib())


def _refuse_errors(outcome: Outcome) -> None:
    if outcome.errors or not outcome.units:
        raise LoadError(f"not comparable: {outcome.errors} errors among {outcome.units} units")
