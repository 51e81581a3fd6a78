"""A comparison: every proxy up at once, rounds in random order, the median and the spread, ratios round by round.

Only ratios within one run count: figures of a machine that is shared drift by a fifth within minutes. Therefore a ratio
is taken between rounds that came soon after each other, and the median is that of the ratios.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.generators import LoadError
from benchmarks.proxies.base import Proxy
from benchmarks.workloads.base import Round, Workload
from benchmarks.world import World

WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours divided by its: the median over the rounds, the least and the greatest."""

    median: float
    least: float
    greatest: float


@dataclass(slots=True)
class Row:
    """One proxy in one workload. `missing` says why there is no figure, `caveat` what is not like for like."""

    workload: str
    proxy: str
    rounds: list[Round] = field(default_factory=list)
    missing: str = ""
    caveat: str = ""
    remark: str = ""

    @property
    def figure(self) -> float:
        return statistics.median(self.figures)

    @property
    def figures(self) -> list[float]:
        """Of each round, in their order."""
        return [each.figure for each in self.rounds]

    @property
    def units_per_s(self) -> float | None:
        outcomes = [each.outcome for each in self.rounds if each.outcome is not None]
        return statistics.median(each.units / each.seconds for each in outcomes) if outcomes else None

    @property
    def p50_us(self) -> float | None:
        outcomes = [each.outcome for each in self.rounds if each.outcome is not None]
        return statistics.median(each.p50_us for each in outcomes) if outcomes else None

    @property
    def p99_us(self) -> float | None:
        outcomes = [each.outcome for each in self.rounds if each.outcome is not None]
        return statistics.median(each.p99_us for each in outcomes) if outcomes else None

    @property
    def resident_mib(self) -> float:
        return max(each.resident_mib for each in self.rounds)

    def extra(self, name: str) -> float:
        """The median of a figure that was seen beside. Raises KeyError."""
        return statistics.median(each.extra[name] for each in self.rounds)

    def as_ratio_to(self, other: Row) -> Ratio:
        """This row's figures divided by those of another, round by round."""
        ratios = [mine / its for mine, its in zip(self.figures, other.figures, strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def compare(
    workload: Workload,
    proxies: Sequence[Proxy],
    world: World,
    *,
    rounds: int,
    seconds: float,
    chance: random.Random,
    tell: Callable[[str, float], None],
) -> list[Row]:
    """Rows in the order of `proxies`. A proxy in which an error occurs gets no figures, and its row says why.

    `tell` is given what is done now, and which share of this comparison is behind us.
    """
    chosen = workload.choose(proxies)
    rows = {proxy.name: Row(workload.name, proxy.name, caveat=workload.caveat(proxy)) for proxy in chosen}
    try:
        able: list[Proxy] = []
        for place, proxy in enumerate(chosen):
            tell(f"{workload.name}: {proxy.name} warms up", 0.2 * place / len(chosen))
            if _is_able(workload, proxy, rows[proxy.name], world):
                able.append(proxy)
        rounds = min(rounds, workload.most_rounds)
        for number in range(rounds):
            if not able:
                break
            workload.before_round(world, seconds)
            for place, proxy in enumerate(chance.sample(able, len(able))):
                row = rows[proxy.name]
                if row.missing:
                    continue
                done = (number + place / len(able)) / rounds
                tell(f"{workload.name}: round {number + 1} of {rounds}, {proxy.name}", 0.2 + 0.8 * done)
                try:
                    row.rounds.append(workload.measure(proxy, world, seconds))
                except LoadError as error:
                    row.rounds.clear()
                    row.missing = str(error)
    except LoadError as error:  # not one proxy's fault: the workload as such cannot be measured here
        for row in rows.values():
            row.rounds.clear()
            row.missing = row.missing or str(error)
    finally:
        workload.close()
    for row in rows.values():
        row.remark = workload.describe(row.rounds) if row.rounds else ""
    return list(rows.values())


def _is_able(workload: Workload, proxy: Proxy, row: Row, world: World) -> bool:
    """Whether it does what is measured; it is warm then. If not, its row says why."""
    row.missing = workload.cannot(proxy)
    if row.missing:
        return False
    try:
        workload.check(proxy, world)
        workload.warm_up(proxy, world, WARM_UP_S)
    except LoadError as error:
        row.missing = str(error)
    return not row.missing
