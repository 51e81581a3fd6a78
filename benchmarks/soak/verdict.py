"""Whether a run was flat: of samples, and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.soak.subject import Sample

#: The part of a run that belongs to warming up: pools, caches and the allocator's arenas fill.
WARM_UP = 0.25
#: What a steady process may seem to gain in the rest of the run, as memory comes and goes: of its median, or at least.
MEMORY_SHARE, MEMORY_KIB = 0.05, 3072
#: Counts swing with the machine's other work; a leak shows in what is left at the end, to the last one.
COUNT_SHARE, COUNT = 0.25, 50
#: Descriptors that a gateway without any client may have beyond those at its start (a log file that was opened again).
SPARE_DESCRIPTORS = 4
LAG_P99_MS = 20.0
#: Objects in cycles that the collector had to find, for 1,000 requests: what has ended should be freed at once, since
#: what is garbage in the moment of a reload is kept for good (gc.freeze).
GARBAGE = 50.0


@dataclass(frozen=True)
class Finding:
    """One line of a verdict."""

    name: str
    value: float
    limit: float
    unit: str
    how: str = ""

    @property
    def is_good(self) -> bool:
        return self.value <= self.limit

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "limit": round(self.limit, 3),
            "unit": self.unit,
            "good": self.is_good,
            "how": self.how,
        }


def steady(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Without the warm-up."""
    return samples[int(len(samples) * WARM_UP) :]


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """What was gained from the first time to the last: the median of the slopes of all pairs, times the span.

    Peaks that come and go do not move it (Theil-Sen). 0 for less than two samples.
    """
    step = max(1, len(times) // 300)
    times, values = times[::step], values[::step]
    slopes = [
        (values[after] - values[before]) / (times[after] - times[before])
        for before in range(len(times))
        for after in range(before + 1, len(times))
        if times[after] > times[before]
    ]
    return statistics.median(slopes) * (times[-1] - times[0]) if slopes else 0.0


def judge(
    samples: Sequence[Sample],
    before: Sample,
    after: Sample,
    *,
    lag_p99_ms: float,
    garbage: float,
    unexpected: int,
    complaints: int,
) -> list[Finding]:
    """`samples` under load, and the gateway without clients `before` and `after` it."""
    part = steady(samples)
    times = [sample.at_s for sample in part]
    how = "gained after the warm-up, by the median slope"
    findings = []
    memory = [float(sample.resident_kib) for sample in part]
    allowed = max(MEMORY_KIB, MEMORY_SHARE * statistics.median(memory)) if memory else 0.0
    findings.append(Finding("memory", growth(times, memory), allowed, "KiB", how))
    for name in ("descriptors", "downstream", "tunnels", "upstream", "tasks"):
        values = [float(getattr(sample, name)) for sample in part]
        allowed = max(COUNT, COUNT_SHARE * statistics.median(values)) if values else 0.0
        findings.append(Finding(name, growth(times, values), allowed, "", how))
    left = "left without clients, against the start"
    for name, spare in (
        ("descriptors", SPARE_DESCRIPTORS), ("downstream", 0), ("tunnels", 0), ("upstream", 0), ("tasks", 0),
    ):  # fmt: skip
        findings.append(Finding(f"{name} left", getattr(after, name) - getattr(before, name), spare, "", left))
    findings.append(Finding("lag p99", lag_p99_ms, LAG_P99_MS, "ms", "of the time, by a timer of 5 ms inside"))
    findings.append(
        Finding("garbage", garbage, GARBAGE, "", "objects in cycles that had to be found, for 1,000 requests")
    )
    findings.append(Finding("unexpected", unexpected, 0, "", "answers and ends that are not as they have to be"))
    findings.append(Finding("complaints", complaints, 0, "", "errors in the diagnostics"))
    return findings
