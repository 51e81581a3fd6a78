"""A stage: one call that is timed again and again, less what the measurement itself costs.

All stages take turns, so that a machine that is busy for a while harms them alike. Time is CPU time of this process.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

#: One sample takes about so long: short enough to take turns, long enough for the clock.
SAMPLE_S = 0.01


@dataclass(frozen=True, slots=True)
class Stage:
    """`call` does it once. `idle`, if given, is what `call` does beside the stage; its time is subtracted.

    `share` is the number of stages in one call, for a call that cannot do with one.
    """

    group: str
    name: str
    call: Callable[[], object]
    idle: Callable[[], object] | None = None
    share: int = 1

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"


@dataclass(frozen=True, slots=True)
class Price:
    """Nanoseconds a call: the median of the samples, the least and the greatest."""

    key: str
    median: float
    least: float
    greatest: float


def measure(stages: Sequence[Stage], samples: int, tell: Callable[[int], None] = lambda _: None) -> list[Price]:
    """The prices in the order of the stages; `tell` is given how many samples each stage has."""
    numbers = [_number(stage) for stage in stages]
    taken: list[list[float]] = [[] for _ in stages]
    gc.collect()
    gc.disable()
    try:
        for done in range(samples):
            for stage, number, figures in zip(stages, numbers, taken, strict=True):
                seconds = _run(stage.call, number)
                if stage.idle is not None:
                    seconds -= _run(stage.idle, number)
                figures.append(max(seconds, 0.0) / number / stage.share * 1e9)
            tell(done + 1)
    finally:
        gc.enable()
    return [_price(stage, figures) for stage, figures in zip(stages, taken, strict=True)]


def _price(stage: Stage, figures: Sequence[float]) -> Price:
    return Price(stage.key, statistics.median(figures), min(figures), max(figures))


def _number(stage: Stage) -> int:
    """How many calls make one sample. Calls it, so that it is warm."""
    number = 1
    while (seconds := _run(stage.call, number)) < SAMPLE_S / 10:
        number *= 4
    return max(1, round(number * SAMPLE_S / seconds))


def _run(call: Callable[[], object], number: int) -> float:
    turns: Iterable[None] = [None] * number
    begun = time.process_time()
    for _ in turns:
        call()
    return time.process_time() - begun
