"""Series: the counters of exchanges, plain integers that other threads may read while the loop counts. Label values
come from the configuration and from closed enums, never from a client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add
from typing import Any, Final, TypeVar

from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.model.grpc_status import GRPC_NAMES

#: Upper bounds of the duration histogram: from a local answer to a tunnel that lives for hours. Each is a line of every
#: label set in a scrape, so they are few.
BUCKETS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 3600.0)
#: The most statuses in one label set, since origins choose them. Others are counted as the x00 of their class, as which
#: unknown ones must be treated (RFC 9110 section 15).
MAX_STATUSES: Final = 64
#: The status that nginx logs, and dashboards know, for a client that closed before the response.
CLIENT_CLOSED: Final = 499

_OK: Final = Reason.OK
#: When the response of an exchange began that had none.
NEVER: Final = float("inf")

#: Policy and entry are those that allowed or denied.
LABELS: Final = ("gateway", "route", "backend", "namespace", "service_account", "policy", "entry")
Labels = tuple[str, str, str, str, str, str, str]
#: The trace and the span of one that a bucket has counted (hexadecimal digits), its seconds, and when it ended (seconds
#: since 1970).
Exemplar = tuple[bytes, bytes, float, float]
#: The histograms, as `Series.exemplars` calls them.
DURATION: Final = 0
FIRST_BYTE: Final = 1
ANSWER: Final = 2

#: What every series holds before anything was counted. It is shared, so never write to it.
_NO_STATUS: Final[dict[int, int]] = {}
_NO_WORD: Final[dict[str, int]] = {}
#: As a histogram before its first time: writing to it is an IndexError.
_NO_BUCKETS: Final[list[int]] = []
_NO_EXEMPLARS: Final[dict[tuple[int, int], Exemplar]] = {}
_ZEROS: Final = (0,) * (len(BUCKETS_S) + 1)
#: The attributes of a series that count by status, reason or result.
_BY_KEY: Final = (
    "requests", "calls", "denied", "would_deny", "failures", "failed_attempts", "failovers", "hedges", "mirrored",
)  # fmt: skip
#: The attributes that are histograms, and the sums.
_BY_TIME: Final = ("at_once", "streamed", "begun", "answers")
_SUMS: Final = ("duration_sum_s", "body_sum_s", "answer_sum_s", "bytes_in", "bytes_out", "tunnels_active")
#: All of its attributes but the labels.
_COUNTED: Final = (*_BY_KEY, *_BY_TIME, *_SUMS, "has_tunnels", "exemplars")

_K = TypeVar("_K")


def logged_status(exchange: Exchange) -> int:
    """The status to count and log: as sent; 499 where the client left before an answer; 0 where nothing was sent."""
    return exchange.status or (CLIENT_CLOSED if exchange.reason is Reason.CLIENT_GONE else 0)


def decided_by(series: Series | None) -> tuple[str, str]:
    """The policy and the entry that allowed or denied what this series counts; "-" for none."""
    return series.labels[5:] if series is not None else ("-", "-")


class Series:
    """The counters of one label set; dictionaries and lists are made when there is something to count. The connection
    manager calls `observe` exactly once per exchange or tunnel, at its end. `has_tunnels`: one was open, now or
    earlier.

    Most responses begin and end in one turn: their duration, in `at_once`, is the time to their first byte, too. Only
    of the others both are counted: in `streamed`, and in `begun` unless nothing was sent. `body_sum_s` is the time that
    these took behind their first byte. `exemplars` has the latest of each histogram and bucket whose trace is recorded.
    """

    __slots__ = (
        "answer_sum_s", "answers", "at_once", "begun", "body_sum_s", "bytes_in", "bytes_out", "calls", "denied",
        "duration_sum_s", "exemplars", "failed_attempts", "failovers", "failures", "has_tunnels", "hedges", "labels",
        "mirrored", "next_exemplars", "requests", "streamed", "tunnels_active", "would_deny",
    )  # fmt: skip

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.requests = _NO_STATUS
        self.at_once = self.streamed = self.begun = self.answers = _NO_BUCKETS
        self.duration_sum_s = self.body_sum_s = self.answer_sum_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.calls = _NO_WORD
        self.denied = self.would_deny = self.failures = self.failed_attempts = _NO_WORD
        self.failovers = self.hedges = self.mirrored = _NO_WORD
        self.tunnels_active = 0
        self.has_tunnels = False
        self.exemplars = _NO_EXEMPLARS
        self.next_exemplars = 0.0  # when the next exchange leaves some (`Recording.end`)

    def observe(self, exchange: Exchange) -> None:
        """Count a finished exchange: its status, duration, bytes and denial."""
        status = exchange.status
        if not status:
            status = logged_status(exchange)
            exchange.first_byte_at = NEVER
        try:
            self.requests[status] += 1
        except KeyError:
            if len(self.requests) >= MAX_STATUSES:
                status -= status % 100
            self.requests = {**self.requests, status: self.requests.get(status, 0) + 1}
        duration = exchange.ended_at - exchange.started_at
        self.duration_sum_s += duration
        try:
            if not exchange.first_byte_at:
                self.at_once[bisect_left(BUCKETS_S, duration)] += 1
            else:
                self.streamed[bisect_left(BUCKETS_S, duration)] += 1
                if exchange.status:
                    self.begun[bisect_left(BUCKETS_S, exchange.first_byte_at - exchange.started_at)] += 1
                    self.body_sum_s += exchange.ended_at - exchange.first_byte_at
                else:
                    self.body_sum_s += duration
        except IndexError:
            self._count_first(exchange, duration)
        self.bytes_in += exchange.bytes_in
        self.bytes_out += exchange.bytes_out
        if exchange.grpc_status >= 0:
            self.calls = _with_one(self.calls, GRPC_NAMES[exchange.grpc_status])
        if exchange.reason is not _OK:
            if exchange.denied:
                self.denied = _with_one(self.denied, exchange.reason.value)
            else:
                self.failures = _with_one(self.failures, exchange.reason.value)
        if exchange.would_deny:
            for reason in exchange.would_deny:
                self.would_deny = _with_one(self.would_deny, reason.value)

    def tunnel_opened(self) -> None:
        """A tunnel begins; `tunnel_ended` follows."""
        self.tunnels_active += 1
        self.has_tunnels = True

    def tunnel_ended(self) -> None:
        """A tunnel is over; `observe` counts it."""
        self.tunnels_active -= 1

    def _count_first(self, exchange: Exchange, duration_s: float) -> None:
        """The first time of its kind."""
        counted = [*_ZEROS]
        counted[bisect_left(BUCKETS_S, duration_s)] = 1
        if not exchange.first_byte_at:
            self.at_once = counted
            return
        self.streamed, self.begun = counted, [*_ZEROS]
        first_byte_s = duration_s
        if exchange.status:
            first_byte_s = exchange.first_byte_at - exchange.started_at
            self.begun[bisect_left(BUCKETS_S, first_byte_s)] = 1
            duration_s -= first_byte_s
        self.body_sum_s += duration_s

    @property
    def durations(self) -> list[int]:
        """How many exchanges took how long: one more entry than BUCKETS_S."""
        return _together(self.at_once, self.streamed)

    @property
    def first_bytes(self) -> list[int]:
        """How long it took until responses, and tunnels, began. Their sum is `first_byte_sum_s`."""
        return _together(self.at_once, self.begun)

    @property
    def first_byte_sum_s(self) -> float:
        return max(0.0, self.duration_sum_s - self.body_sum_s)

    def answered(self, seconds: float) -> None:
        """The backend answered an attempt, or was connected to for a tunnel, `seconds` after its beginning."""
        if not self.answers:
            self.answers = [*_ZEROS]
        self.answers[bisect_left(BUCKETS_S, seconds)] += 1
        self.answer_sum_s += seconds

    def show(self, histogram: int, exemplar: Exemplar) -> None:
        """Keep this one as the latest of its bucket, in DURATION, FIRST_BYTE or ANSWER."""
        if not self.exemplars:
            self.exemplars = {}
        self.exemplars[histogram, bisect_left(BUCKETS_S, exemplar[2])] = exemplar

    def exemplars_of(self, histogram: int) -> dict[int, Exemplar]:
        """The latest one of each bucket."""
        # A copy: another thread may read while the loop adds a key.
        return {bucket: each for (kind, bucket), each in dict(self.exemplars).items() if kind == histogram}

    def attempt(self, result: str) -> None:
        """One attempt to reach the backend ended without an answer: "cancelled", or the Reason's value."""
        self.failed_attempts = _with_one(self.failed_attempts, result)

    @property
    def attempts(self) -> dict[str, int]:
        """Attempts to reach the backend by how they ended: "ok" for an answer."""
        answers = sum(self.answers)
        return {"ok": answers, **self.failed_attempts} if answers else self.failed_attempts

    def failover(self, outcome: str) -> None:
        """A request has left the backend for another one, after this status or Reason."""
        self.failovers = _with_one(self.failovers, outcome)

    def hedge(self, outcome: str) -> None:
        """An attempt beside the first: "won", "cancelled", "failed", "over_budget" or "circuit_open"."""
        self.hedges = _with_one(self.hedges, outcome)

    def mirror(self, result: str) -> None:
        """A copy of a request for this backend ended: "ok", "dropped" (not sent) or the Reason's value."""
        self.mirrored = _with_one(self.mirrored, result)

    def add(self, other: Series) -> None:
        """Add the numbers of the same labels from another process."""
        for name in _BY_KEY:
            setattr(self, name, added(getattr(self, name), getattr(other, name)))
        for name in _BY_TIME:
            if counted := getattr(other, name):
                setattr(self, name, _together(getattr(self, name), counted))
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.has_tunnels = self.has_tunnels or other.has_tunnels
        if other.exemplars:
            self.exemplars = latest(self.exemplars, other.exemplars)

    def __reduce__(self) -> tuple[Any, ...]:
        return Series, (self.labels,), tuple(getattr(self, name) for name in _COUNTED)

    def __setstate__(self, counted: tuple[Any, ...]) -> None:
        """What another process has counted, in the order of `_COUNTED`."""
        for name, value in zip(_COUNTED, counted, strict=True):
            setattr(self, name, value)

    @property
    def is_used(self) -> bool:
        return bool(self.requests or self.answers or self.failed_attempts or self.has_tunnels or self.mirrored)


def added(mine: Mapping[_K, int], others: Mapping[_K, int]) -> dict[_K, int]:
    """The counts of both, by key, in a new dictionary."""
    both = Counter(mine)
    both.update(others)
    return dict(both)


def latest(mine: Mapping[_K, Exemplar], others: Mapping[_K, Exemplar]) -> dict[_K, Exemplar]:
    """The later one of both for each key, in a new dictionary."""
    return {**mine, **{key: each for key, each in others.items() if key not in mine or mine[key][3] < each[3]}}


def _together(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Two histograms as one."""
    return list(map(add, one or _ZEROS, other or _ZEROS))


def _with_one(counts: dict[str, int], key: str) -> dict[str, int]:
    """Count one more of `key`, in the same dictionary or in a new one if it was the shared empty one."""
    if key in counts:
        counts[key] += 1
        return counts
    return {**counts, key: 1}
