"""What is counted beside exchanges, by labels: plain numbers of one process, which `metrics` reads at a scrape. Each is
bounded: clients choose names, and those of routes and backends come and go over the life of a process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any, Final, TypeVarTuple, cast

#: The most label sets of one metric, over the life of the process.
MAX_SETS: Final = 10_000
#: The most names of methods and tools of MCP that are told apart for one route and backend.
MAX_MCP_NAMES: Final = 200
#: The most names in place of hidden ones; a host that serves many sites by ECH has one.
MAX_OUTER_NAMES: Final = 100
#: The most DNS servers that are told apart. Configurations name them, and what a server has answered stays counted.
MAX_SERVERS: Final = 256
OVERFLOW: Final = "_other"
OTHER_SERVERS: Final = "other"
#: Upper bounds in seconds: from a server on the same machine to a call that reached its time limit.
CALL_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUERY_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_Labels = TypeVarTuple("_Labels")


class LabelSets(dict[tuple[*_Labels], int]):
    """Counts by tuples of words, the last of which is one of a few: a result, say."""

    def count(self, *labels: *_Labels) -> None:
        """Count one. Where there is no room for a new set, all but its last label is OVERFLOW."""
        if labels not in self and self.is_full:
            every: tuple[Any, ...] = labels
            labels = cast("tuple[*_Labels]", (*(OVERFLOW for _ in every[:-1]), every[-1]))
        self[labels] = self.get(labels, 0) + 1

    @property
    def is_full(self) -> bool:
        return len(self) >= MAX_SETS


class Durations:
    """A histogram. `buckets` has one more entry than `bounds`, which are upper bounds in seconds, ascending."""

    __slots__ = ("bounds", "buckets", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def count(self, seconds: float) -> None:
        """Count one that took so long."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds


class CallCounts:
    """Calls of the gateway itself; `asked` by who asks (a route, a filter), backend, and the result as they call it."""

    __slots__ = ("asked", "durations")

    def __init__(self) -> None:
        self.asked: LabelSets[str, str, str] = LabelSets()
        self.durations = Durations(CALL_BUCKETS_S)

    def count(self, asker: str, backend: str, result: str, duration_s: float) -> None:
        """Count one call; `duration_s` is its time in seconds."""
        self.asked.count(asker, backend, result)
        self.durations.count(duration_s)


class ExportCounts:
    """What became of a signal: `exported`, or `dropped`, by why ("queue_full", "refused", "unreachable", "internal").
    `last_error`: why the latest batch was not taken; "": it was.
    """

    __slots__ = ("dropped", "exported", "last_error")

    def __init__(self) -> None:
        self.exported = 0
        self.dropped: Counter[str] = Counter()
        self.last_error = ""

    @property
    def is_used(self) -> bool:
        return bool(self.exported or self.dropped or self.last_error)


class McpCalls:
    """`counted` counts messages by (route, backend, method, tool, result); the result is "ok" or "error"."""

    __slots__ = ("_names", "counted")

    def __init__(self) -> None:
        self.counted: LabelSets[str, str, str, str, str] = LabelSets()
        self._names: dict[tuple[str, str], set[tuple[str, str]]] = {}

    def count(self, route: str, backend: str, method: str, tool: str, result: str) -> None:
        """Count one message. A name for which there is no room is counted as OVERFLOW."""
        names = self._names.get((route, backend), set())
        if (method, tool) not in names:
            if len(names) < MAX_MCP_NAMES and not self.counted.is_full:
                self._names[route, backend] = names
                names |= {(method, tool), (method, OVERFLOW)}
            else:
                tool = OVERFLOW if tool != "-" else tool
                if (method, OVERFLOW) not in names:
                    method = OVERFLOW
        self.counted.count(route, backend, method, tool, result)


class EchHellos:
    """ClientHellos with Encrypted Client Hello (RFC 9849). `counted` by Gateway, listener and outer name: "-" is none,
    OVERFLOW are all names beyond the first MAX_OUTER_NAMES.
    """

    __slots__ = ("_names", "counted")

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.counted: Counter[tuple[str, str, str]] = Counter()

    def count(self, gateway: str, listener: str, outer_name: str) -> None:
        """Count one; clients choose the names."""
        if outer_name not in self._names:
            if len(self._names) < MAX_OUTER_NAMES:
                self._names.add(outer_name)
            else:
                outer_name = OVERFLOW
        self.counted[gateway, listener, outer_name] += 1


class Interceptions:
    """`results` counts the handshakes with clients of tunnels that are opened, by a closed list of words: "ok", or the
    Reason of what went wrong. `minted` counts certificates; a name whose certificate is kept needs no other. `of_ca`:
    those of CAs of some clients, by Secret, while they are in service.
    """

    __slots__ = ("minted", "of_ca", "results")

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.minted = 0
        self.of_ca: Counter[str] = Counter()


class DnsQueries:
    """What DNS servers answered, and how fast. Servers have the names of the configuration
    (`upstream.dns_server.Server.label`). `reverse` counts comparisons of the names of addresses with the name that led
    there (`dns.reverseCheck`), by "agrees", "differs" or "failed".
    """

    __slots__ = ("durations", "results", "reverse")

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        self.durations: dict[str, Durations] = {}
        self.reverse: Counter[str] = Counter()

    def count(self, server: str, result: str, seconds: float) -> None:
        """A query to this server has ended; `result` is the code of the answer, "error" or "unanswered"."""
        if server not in self.durations:
            if len(self.durations) >= MAX_SERVERS:
                server = OTHER_SERVERS
            self.durations.setdefault(server, Durations(QUERY_BUCKETS_S))
        self.results[server, result] += 1
        self.durations[server].count(seconds)

    def count_reverse(self, result: str) -> None:
        self.reverse[result] += 1


#: Upper bounds of the histogram. The loop's clock is exact to a millisecond.
LAG_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)


class LoopLag:
    """Give `tick` to `TimerWheel.watch`, which has one each `tick_s` seconds; a scrape reads the rest."""

    __slots__ = ("_tick_s", "_worst_s", "delays")

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self.delays = Durations(LAG_BUCKETS_S)  # of ticks
        self._worst_s = 0.0

    def tick(self, late_s: float, took_s: float) -> None:
        """Count one tick that came `late_s` seconds late and took `took_s`, and those that it replaced: so the share of
        late ticks is that of time. `took_s` only counts for the worst delay, which every probe meets, and few clients.
        """
        self._worst_s = max(self._worst_s, late_s + took_s)
        if late_s > LAG_BUCKETS_S[-1]:  # the process was stopped, perhaps for hours
            beyond = int((late_s - LAG_BUCKETS_S[-1]) / self._tick_s)
            self.delays.buckets[-1] += beyond
            self.delays.sum_s += beyond * (late_s - self._tick_s * (beyond - 1) / 2)
            late_s -= beyond * self._tick_s
        while True:
            self.delays.count(max(late_s, 0.0))
            late_s -= self._tick_s
            if late_s <= 0:
                return

    def take_worst(self) -> float:
        """The longest delay in seconds since the last call."""
        worst, self._worst_s = self._worst_s, 0.0
        return worst
