"""DnsQueries: what DNS servers answered, and how fast; and what the names of addresses said (`dns.reverseCheck`)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from egressproxy.telemetry.counts import FilterMetric, MetricKind

#: Upper bounds of the durations of queries, in seconds.
QUERY_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: Servers that are told apart. Configurations name them, and what a server has answered stays counted.
MAX_SERVERS: Final = 256
OVERFLOW: Final = "other"


class DnsQueries:
    """Counts of one process. Servers have the names of the configuration (`upstream.dns_server.Server.label`)."""

    __slots__ = ("_buckets", "_results", "_reverse", "_sums_s")

    def __init__(self) -> None:
        self._results: Counter[tuple[str, str]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self._reverse: Counter[str] = Counter()

    def count(self, server: str, result: str, seconds: float) -> None:
        """A query to this server has ended; `result` is the code of the answer, "error" or "unanswered"."""
        if server not in self._buckets:
            if len(self._buckets) >= MAX_SERVERS:
                server = OVERFLOW
            self._buckets.setdefault(server, [0] * (len(QUERY_BUCKETS_S) + 1))
        self._results[server, result] += 1
        self._buckets[server][bisect_left(QUERY_BUCKETS_S, seconds)] += 1
        self._sums_s[server] = self._sums_s.get(server, 0.0) + seconds

    def count_reverse(self, result: str) -> None:
        """The names of an address were compared with the name that led there: "agrees", "differs" or "failed"."""
        self._reverse[result] += 1

    def read(self) -> dict[str, FilterMetric]:
        """The metrics by name; none of which nothing was counted."""
        made: dict[str, FilterMetric] = {}
        if self._results:
            made["egress_dns_queries"] = FilterMetric(
                MetricKind.COUNTER,
                "Queries to DNS servers, by server and by the code of the answer.",
                ("server", "result"),
                {labels: float(count) for labels, count in self._results.items()},
            )
            made["egress_dns_query_duration_seconds"] = FilterMetric(
                MetricKind.HISTOGRAM,
                "How long DNS servers took to answer; of those that did not, how long was waited.",
                ("server",),
                {(server,): total for server, total in self._sums_s.items()},
                QUERY_BUCKETS_S,
                {(server,): tuple(counted) for server, counted in self._buckets.items()},
            )
        if self._reverse:
            made["egress_dns_reverse_checks"] = FilterMetric(
                MetricKind.COUNTER,
                "Addresses whose names were compared with the name that led there, by result.",
                ("result",),
                {(result,): float(count) for result, count in self._reverse.items()},
            )
        return made
