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
from typing import Any, Final

from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.series import BUCKETS_S

MINUTES: Final = 60
_MINUTE_S: Final = 60.0
#: Kinds of tokens beside which others are parts of them.
_KINDS: Final = ("input", "output")

#: The time (seconds since 1970); what was counted up to it: requests, denials, failures, tokens, cost, and durations by
#: bucket of BUCKETS_S.
Totals = tuple[float, list[float]]


class History:
    """Belongs to the event loop. `read` gives the counters of every process."""

    def __init__(self, read: Callable[[], Awaitable[Sequence[Counts]]]) -> None:
        self._read = read
        self._kept: deque[Totals] = deque(maxlen=MINUTES)

    async def run(self) -> None:
        """Read at the start of each minute. Runs until it is cancelled."""
        while True:
            self._kept.append(await self._totals())
            await asyncio.sleep(_MINUTE_S * 1.001 - time() % _MINUTE_S)  # never just before it

    async def minutes(self) -> list[dict[str, Any]]:
        """The minutes, the oldest first; the last one has not ended."""
        return [minute(*both) for both in pairwise([*self._kept, await self._totals()])]

    async def _totals(self) -> Totals:
        return time(), await asyncio.to_thread(totals, await self._read())


def totals(every: Iterable[Counts]) -> list[float]:
    """The sums over these counts, each of other processes, as in Totals. May run in a thread."""
    found = [0.0] * (5 + len(BUCKETS_S) + 1)
    for counts in every:
        for series in list(counts.series.values()):
            told = (sum(list(each.values())) for each in (series.requests, series.denied, series.failures))
            found = list(map(add, found, (*told, 0, 0, *series.durations)))
        for place, name in ((3, "egress_ai_tokens"), (4, "egress_ai_cost")):
            if (family := counts.families.get(name)) is not None:
                values = dict(family.values).items()
                found[place] += sum(value for labels, value in values if place == 4 or labels[-1] in _KINDS)
    return found


def minute(before: Totals, after: Totals) -> dict[str, Any]:
    """What came between these, as one element of the answer."""
    requests, denials, failures, tokens, cost, *durations = map(sub, after[1], before[1])
    p50, p95 = (quantile(durations, share) for share in (0.5, 0.95))
    return {
        "time": before[0], "requests": int(requests), "denials": int(denials), "failures": int(failures),
        "p50_ms": p50, "p95_ms": p95, "tokens": round(tokens), "cost": round(cost, 6),
    }  # fmt: skip


def quantile(buckets: Sequence[float], share: float) -> float | None:
    """The duration in milliseconds that this share of exchanges did not exceed, estimated in its bucket as Prometheus
    does (histogram_quantile); None without exchanges.
    """
    rank, lower = share * sum(buckets), 0.0
    if not rank:
        return None
    for bound, count in zip(BUCKETS_S, buckets, strict=False):  # of the last bucket only the lower bound is known
        if count >= rank:
            return round((lower + (bound - lower) * rank / count) * 1000, 3)
        rank, lower = rank - count, bound
    return lower * 1000
