"""Calls that the gateway makes itself, to authorization servers and for filters: results, and how long they took."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from egressproxy.telemetry.label_sets import LabelSets

#: Upper bounds of the histogram: from a server on the same machine to a call that reached its time limit.
CALL_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CallCounts:
    """`asked` counts by (who asks, backend, result): a route and the results of `gateway/ext_authz`, or a filter and
    those of `gateway/backends/calls`.
    """

    __slots__ = ("_buckets", "_sum_s", "asked")

    def __init__(self) -> None:
        self.asked: LabelSets[str, str, str] = LabelSets()
        self._buckets = [0] * (len(CALL_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def count(self, asker: str, backend: str, result: str, duration_s: float) -> None:
        """Count one call; `duration_s` is its time in seconds."""
        self.asked.count(asker, backend, result)
        self._buckets[bisect_left(CALL_BUCKETS_S, duration_s)] += 1
        self._sum_s += duration_s

    def counted(self) -> tuple[tuple[int, ...], float]:
        """The calls in each bucket, the last of which has no bound, and the sum of their seconds."""
        return tuple(self._buckets), self._sum_s
