"""QuotaRule: one limit, with all that configuration decides about it; Take: what one exchange asks of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from egressproxy.errors import Reason
from egressproxy.filters.limits.keys import KeyText
from egressproxy.filters.limits.windows import Window
from egressproxy.net.keyed_counters import KeyedCounters

R = TypeVar("R")

#: By the type of a limit: why an exchange is refused.
REASONS: Final = {
    "Requests": Reason.REQUEST_RATE,
    "Bytes": Reason.BYTE_RATE,
    "Tokens": Reason.TOKEN_RATE,
    "Cost": Reason.COST_LIMIT,
}
#: The wait for what never fits.
NEVER: Final = math.inf


class GrowingNumber(Protocol):
    """A number that grows: `count += amount`. That of a metric is a LabelledCounter."""

    count: float


@dataclass(slots=True)
class _NoMetric:
    count: float = 0.0


@dataclass(slots=True, eq=False)
class QuotaRule:
    """One limit.

    Attributes:
        name: in metrics, messages and RateLimit fields; unique among those of its filter.
        type: Requests, Bytes, Tokens or Cost.
        count: of bytes and tokens: Total, Input or Output.
        window: how it counts over time.
        text: makes the text of the key.
        table: its numbers, by key.
        allows: how much, in words: "100 requests in a day for each Identity".
        identity: what distinguishes it from every other limit of a fleet.
        denied: exchanges.
        is_settled: what it counts is known only in the end.
        counts_input, counts_output: `count` says so.
        count_allowed, count_reserved, count_settled: exchanges, and amounts that were taken before, and what they were
            in the end; metrics, whose numbers begin anew with each scrape.
    """

    name: str
    type: str
    count: str
    window: Window
    text: KeyText
    table: KeyedCounters
    identity: bytes
    allows: str
    denied: int = 0
    count_allowed: GrowingNumber = field(default_factory=_NoMetric)
    count_reserved: GrowingNumber = field(default_factory=_NoMetric)
    count_settled: GrowingNumber = field(default_factory=_NoMetric)
    is_settled: bool = field(init=False)
    counts_input: bool = field(init=False)
    counts_output: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_settled = self.type != "Requests"
        self.counts_input = self.count != "Output"
        self.counts_output = self.count != "Input"

    @property
    def message(self) -> str:
        """What a client is told that goes beyond it."""
        return f"more than {self.allows}"

    @property
    def reason(self) -> Reason:
        """Why an exchange beyond it is refused."""
        return REASONS[self.type]


class Take:
    """What one exchange takes of one limit: `amount`, for the key of this `text`, in the window `period`, which becomes
    a part of the text.

    After `peek`: `left` and `reset_s` (seconds until all of it is there again). After `take`, of one that does not fit:
    `wait_s`; of one from the share of a machine: how many `shares` there were.
    """

    __slots__ = ("amount", "left", "period", "reset_s", "rule", "shares", "text", "wait_s")

    left: float
    reset_s: float
    shares: int
    wait_s: float

    def __init__(self, rule: QuotaRule, text: bytes, period: bytes, amount: float) -> None:
        self.rule = rule
        self.text = text + b"\0" + period
        self.period = period
        self.amount = amount

    @property
    def key(self) -> bytes:
        """The key of its rule's table."""
        return self.rule.table.key(self.text)


class Later(Generic[R]):
    """Begins a coroutine when it is awaited. An exchange may end before: then there is none, and no warning of one."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, R]:
        return self._begin().__await__()
