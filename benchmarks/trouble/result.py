"""Results of measurements: a figure, its goal, and whether it was met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """`goal` is the most that is good; None: nothing is promised, the figure is only told."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    notes: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.goal is None or self.value <= self.goal

    @property
    def verdict(self) -> str:
        return "" if self.goal is None else "ok" if self.is_good else "NOT"

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": self.unit,
            "goal": self.goal,
            "verdict": self.verdict,
            "notes": dict(self.notes),
        }
