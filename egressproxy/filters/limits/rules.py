"""QuotaRule: one limit, with all that configuration decides about it; Take: what one exchange asks of it; KeyText:
whose count an exchange adds to (what `per` names, as one text); ConcurrencyRule: exchanges in progress, for each key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from egressproxy.errors import Reason
from egressproxy.filters.limits.windows import Window
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import identity_of
from egressproxy.net.keyed_counters import KeyedCounters

Per = Literal["Gateway", "Route", "Backend", "Identity", "Namespace", "Model", "Header"]
#: What is known only when a backend was chosen, and what only the body (or the path) of a request to a provider says.
NEEDS_BACKEND: Final = "Backend"
NEEDS_BODY: Final = "Model"
#: What follows from who the client is alone, where it has a name.
OF_CLIENT: Final = frozenset(("Identity", "Namespace"))

#: Gives the text of an exchange; the model is "" where it is not known.
KeyText = Callable[[Exchange, str], bytes]

#: In front of each part is its length, so that two lists of parts never have one text.
_PART: Final = "%d:%s"

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


def key_text(per: Sequence[Per], header: str = "") -> KeyText:
    """What makes the text of a key; of an identity see `identity_of`. `header`: the name of the field for Header."""
    field = header.lower().encode()
    parts: list[Callable[[Exchange, str], str]] = []
    for name in per:
        if name == "Header":
            parts.append(lambda exchange, _model: b",".join(exchange.request.fields.get_all(field)).decode("latin-1"))
        else:
            parts.append(_PARTS[name])
    if not parts:
        return lambda _exchange, _model: b""
    if len(parts) == 1:
        only = parts[0]
        return lambda exchange, model: only(exchange, model).encode("utf-8", "surrogatepass")

    def text(exchange: Exchange, model: str) -> bytes:
        texts = [part(exchange, model) for part in parts]
        return "".join([_PART % (len(part), part) for part in texts]).encode("utf-8", "surrogatepass")

    return text


def _route(exchange: Exchange, _model: str) -> str:
    return exchange.route if exchange.route != "-" else f"{exchange.gateway} -"


_PARTS: Final[dict[str, Callable[[Exchange, str], str]]] = {
    "Gateway": lambda exchange, _model: exchange.gateway,
    "Route": _route,
    "Backend": lambda exchange, _model: exchange.backend,
    "Identity": lambda exchange, _model: identity_of(exchange),
    "Namespace": lambda exchange, _model: exchange.identity.namespace,
    "Model": lambda _exchange, model: model.strip().casefold(),  # Azure's servers look at no case
}


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
        return f"more than {self.allows}"

    @property
    def reason(self) -> Reason:
        return REASONS[self.type]


class Reservation:
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
        return self.rule.table.key(self.text)


class Later(Generic[R]):
    """Begins a coroutine when it is awaited. An exchange may end before: then there is none, and no warning of one."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, R]:
        return self._begin().__await__()


@dataclass(slots=True, eq=False)
class ConcurrencyRule:
    """At most `limit` exchanges of one key at once. Each worker counts its own, which are freed when it has exited."""

    name: str
    limit: int
    text: KeyText
    table: KeyedCounters
    allows: str

    @property
    def message(self) -> str:
        return f"more than {self.allows}"

    def enter(self, exchange: Exchange, model: str) -> int:
        """Count this exchange. Returns the place that `leave` needs, -1 if there are as many as may be."""
        table, now = self.table, monotonic()
        text = self.text(exchange, model)
        with table.lock:
            if table.mine:
                held = sum([table.peek(table.key(text, owner), now)[1] for owner in table.owners])
                at = table.find(table.key(text, table.mine), now) if held < self.limit else -1
            else:  # alone: what is held is what its own entry says
                at = table.find_text(text, now)
            if at >= 0 and table.cells[at + 1] < self.limit:  # those without room share one entry
                table.cells[at] = math.inf
                table.cells[at + 1] += 1
                return at
        return -1

    def leave(self, at: int) -> None:
        """Count it down."""
        table = self.table
        with table.lock:
            table.cells[at + 1] -= 1
            if table.cells[at + 1] <= 0:
                table.cells[at] = 0.0

    def in_progress(self, exchange: Exchange, model: str) -> int:
        """Exchanges of the key of this one."""
        now = monotonic()
        text = self.text(exchange, model)
        return int(sum([self.table.peek(self.table.key(text, owner), now)[1] for owner in self.table.owners]))
