"""/history: the last hour by minutes, as differences of what the metrics have counted at the start of each.

Nothing is counted for it: it reads the counters once in a minute, and keeps some numbers of each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from operator import add, sub
from time import time
from typing import Any, Final, NamedTuple

from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.series import BUCKETS_S

MINUTES: Final = 60
_MINUTE_S: Final = 60.0
_NO_TIMES: Final = (0,) * (len(BUCKETS_S) + 1)
#: The kinds of tokens whose sum is all of them; other kinds are parts of these.
_KINDS: Final = ("input", "output")

#: Reads the counters of every process.
ReadCounts = Callable[[], Awaitable[Sequence[Counts]]]


class Totals(NamedTuple):
    """What was counted up to some time (seconds since 1970). `durations` are by bucket of BUCKETS_S."""

    time: float
    requests: int = 0
    denials: int = 0
    failures: int = 0
    tokens: float = 0.0
    cost: float = 0.0
    durations: tuple[int, ...] = _NO_TIMES

    @classmethod
    def of(cls, now: float, every: Iterable[Counts]) -> Totals:
        """The sums over these counts, each of other processes. May run in a thread."""
        requests = denials = failures = 0
        tokens = cost = 0.0
        durations = list(_NO_TIMES)
        for counts in every:
            for series in list(counts.series.values()):
                requests += sum(list(series.requests.values()))
                denials += sum(list(series.denied.values()))
                failures += sum(list(series.failures.values()))
                durations = list(map(add, durations, series.durations))
            for name, kinds in (("egress_ai_tokens", _KINDS), ("egress_ai_cost", ())):
                family = counts.families.get(name)
                values = dict(family.values).items() if family is not None else ()
                found = sum(value for labels, value in values if not kinds or labels[-1] in kinds)
                tokens, cost = (tokens + found, cost) if kinds else (tokens, cost + found)
        return cls(now, requests, denials, failures, tokens, cost, tuple(durations))

    def since(self, before: Totals) -> dict[str, Any]:
        """What came after `before`, as one element of the answer."""
        taken = list(map(sub, self.durations, before.durations))
        p50, p95 = (quantile(taken, share) for share in (0.5, 0.95))
        return {
            "time": before.time, "requests": self.requests - before.requests, "denials": self.denials - before.denials,
            "failures": self.failures - before.failures, "p50_ms": p50, "p95_ms": p95,
            "tokens": round(self.tokens - before.tokens), "cost": round(self.cost - before.cost, 6),
        }  # fmt: skip


class History:
    """Belongs to the event loop."""

    def __init__(self, read: ReadCounts) -> None:
        self._read = read
        self._kept: deque[Totals] = deque(maxlen=MINUTES)

    async def run(self) -> None:
        """Read at the start of each minute. Runs until it is cancelled."""
        while True:
            self._kept.append(await self._totals())
            await asyncio.sleep(_MINUTE_S * 1.001 - time() % _MINUTE_S)  # never just before it

    async def minutes(self) -> list[dict[str, Any]]:
        """The minutes, the oldest first; the last one has not ended."""
        points = [*self._kept, await self._totals()]
        return [later.since(earlier) for earlier, later in pairwise(points)]

    async def _totals(self) -> Totals:
        return await asyncio.to_thread(Totals.of, time(), await self._read())


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The duration in milliseconds that this share of exchanges did not exceed, estimated in its bucket as Prometheus
    does (histogram_quantile); None without exchanges.
    """
    rank = share * sum(buckets)
    if not rank:
        return None
    below = 0.0
    for number, bound in enumerate(BUCKETS_S):
        if below + buckets[number] >= rank:
            lower = BUCKETS_S[number - 1] if number else 0.0
            return round((lower + (bound - lower) * (rank - below) / buckets[number]) * 1000, 3)
        below += buckets[number]
    return BUCKETS_S[-1] * 1000
