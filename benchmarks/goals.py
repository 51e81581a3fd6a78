"""The goals: what egressproxy is to cost beside other proxies, and whether a comparison says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Row

US = "egressproxy"


@dataclass(frozen=True, slots=True)
class Goal:
    """At most `limit`: of our figure divided by that of the proxy `against`, or of the figure (or `extra`) as such.

    `is_beyond` marks what is hoped for beyond the goal of the workload.
    """

    workload: str
    limit: float
    against: str = ""
    extra: str = ""
    unit: str = ""
    is_beyond: bool = False

    def __str__(self) -> str:
        if self.against:
            limit = f"1/{round(1 / self.limit)}" if self.limit < 0.01 else f"{self.limit:.2f}"
            return f"≤ {limit} × {self.against}"
        return f"≤ {self.limit:g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a goal; `reached` is None where a figure is missing, and `why` says which."""

    goal: Goal
    reached: float | None
    spread: tuple[float, float] = (0.0, 0.0)
    why: str = ""

    @property
    def word(self) -> str:
        if self.reached is None:
            return "no figure"
        return "met" if self.reached <= self.goal.limit else "missed"

    @property
    def figures(self) -> str:
        if self.reached is None:
            return self.why
        digits = 4 if self.goal.limit < 0.01 else 2
        least, greatest = self.spread
        return f"{self.reached:.{digits}f} ({least:.{digits}f} to {greatest:.{digits}f})"

    def record(self) -> dict[str, Any]:
        return {
            "workload": self.goal.workload, "goal": str(self.goal), "is_beyond": self.goal.is_beyond,
            "reached": self.reached,
            "spread": self.spread if self.reached is not None else None, "verdict": self.word, "why": self.why,
        }  # fmt: skip


GOALS = (
    Goal("W1", 0.70, "envoy"),
    Goal("W1", 0.50, "envoy", is_beyond=True),
    Goal("W1", 0.65, "envoy-lean", is_beyond=True),
    Goal("W1u", 1.0, "envoy-lean"),
    Goal("W1u", 0.55, "envoy-lean", is_beyond=True),
    Goal("W1s", 0.70, "envoy"),
    Goal("W1s", 0.65, "envoy-lean", is_beyond=True),
    Goal("W1s", 1.30, "haproxy", is_beyond=True),
    Goal("W2", 0.75, "envoy"),
    Goal("W2", 0.75, "envoy-lean", is_beyond=True),
    Goal("W2", 1.30, "nginx", is_beyond=True),
    Goal("W3", 0.70, "envoy"),
    Goal("W3", 0.75, "envoy-lean", is_beyond=True),
    Goal("W3", 1.10, "haproxy", is_beyond=True),
    Goal("W4", 0.85, "envoy"),
    Goal("W4", 0.75, "envoy", is_beyond=True),
    Goal("W5", 0.75, "envoy"),
    Goal("W5", 0.80, "envoy-lean", is_beyond=True),
    Goal("W5", 60, extra="added_p50_us", unit="µs added to the p50"),
    Goal("W5", 1.00, "haproxy", is_beyond=True),
    Goal("W6", 2, unit="KiB"),
    Goal("W6", 0.5, unit="KiB", is_beyond=True),
    Goal("W7", 1.70, "envoy"),
    Goal("W7", 1.50, "envoy", is_beyond=True),
    Goal("W8", 1.70, "envoy"),
    Goal("W9", 1 / 20, "mitmproxy"),
    Goal("M", 60, unit="MB"),
    Goal("S", 1.10, unit="times"),
    Goal("S2", 1.05, unit="times"),
    Goal("S3", 1.05, unit="times"),
    Goal("S4", 1.35, unit="times"),
    Goal("S4", 1.15, unit="times", is_beyond=True),
    Goal("S5", 1.10, unit="times"),
    Goal("S5", 1.01, unit="times", is_beyond=True),
    Goal("Lp", 1 / 200, "litellm"),
    Goal("L", 1 / 100, "litellm"),
    Goal("L", 1 / 200, "litellm", is_beyond=True),
)


def judge(goal: Goal, rows: Sequence[Row]) -> Verdict:
    """Of the rows of the goal's workload."""
    by_name = {row.proxy: row for row in rows if row.rounds}
    ours, its = by_name.get(US), by_name.get(goal.against)
    if ours is None:
        return Verdict(goal, None, why=_missing(US, rows))
    if goal.against and its is None:
        return Verdict(goal, None, why=_missing(goal.against, rows))
    if its is not None:
        ratio = ours.as_ratio_to(its)
        return Verdict(goal, ratio.median, (ratio.least, ratio.greatest))
    if goal.extra:
        seen = [each.extra[goal.extra] for each in ours.rounds]
        return Verdict(goal, ours.extra(goal.extra), (min(seen), max(seen)))
    return Verdict(goal, ours.figure, (min(ours.figures), max(ours.figures)))


def _missing(proxy: str, rows: Sequence[Row]) -> str:
    """Why there is no figure of this proxy."""
    for row in rows:
        if row.proxy == proxy:
            return f"{proxy}: {row.missing or 'not measured'}"
    return f"{proxy} was not among the peers"


def judge_all(results: Mapping[str, Sequence[Row]]) -> list[Verdict]:
    """Every goal of the workloads that were run."""
    return [judge(goal, results[goal.workload]) for goal in GOALS if goal.workload in results]
