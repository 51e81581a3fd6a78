"""RequestLimitFastPath: the usual limit of requests, a token bucket in this machine's memory, taken in one step.

It does the work of Quota, MemoryStore and TokenBucket for one rule; `tests/filters/limits/test_limit_fast_path.py`
compares both. A request beyond the limit, and all responses to clients, are left to these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from egressproxy.filters.base import HeaderResult
from egressproxy.filters.limits.rules import OF_CLIENT, Per, QuotaRule
from egressproxy.filters.limits.windows import TokenBucket
from egressproxy.model.exchange import Exchange

_NUMBERS: Final = itertools.count(1)


class RequestLimitFastPath:
    """The step of one rule that counts requests. `otherwise` is the filter's full step, for requests above the limit.

    With thousands of clients or tenants little of this is in the processor's cache. So all data is in one object, one
    entry of the table, and the client's identity, which caches the entry.
    """

    __slots__ = (
        "_ahead", "_cells", "_count", "_find_text", "_interval", "_lock", "_number", "_numbers", "_otherwise",
        "_remembers", "_slack", "_table", "_text_of",
    )  # fmt: skip

    def __init__(self, rule: QuotaRule, per: Sequence[Per], otherwise: Callable[[Exchange], HeaderResult]) -> None:
        table, window = rule.table, rule.window
        assert isinstance(window, TokenBucket)
        self._interval, self._ahead, self._slack = window.terms
        self._cells, self._numbers, self._lock = table.cells, table.numbers, table.lock
        self._table, self._find_text, self._text_of = table, table.find_text, rule.text
        self._count = rule.count_allowed
        self._otherwise = otherwise
        self._remembers = set(per) <= OF_CLIENT
        self._number = next(_NUMBERS)  # unique, also across configurations

    @classmethod
    def of(
        cls, rules: Sequence[QuotaRule], per: Sequence[Per], otherwise: Callable[[Exchange], HeaderResult]
    ) -> RequestLimitFastPath | None:
        """The step for these rules; None if they need more than one token of a bucket."""
        if len(rules) != 1 or rules[0].type != "Requests" or not isinstance(rules[0].window, TokenBucket):
            return None
        return cls(rules[0], per, otherwise)

    def take(self, exchange: Exchange) -> HeaderResult:
        """Take one request. Raises LimitExceeded."""
        now = monotonic()
        client, cells = exchange.identity, self._cells
        at = client.limit_at
        with self._lock:
            # Half of the key is enough: 64 bits of a keyed hash identify the entry.
            if client.limit_number != self._number or self._numbers[at - 2] != client.limit_key:
                at = self._find(exchange, now)
            until = cells[at]
            if until < now:
                until = now
            if until - now + self._interval - self._ahead <= self._slack:
                cells[at] = until + self._interval
                self._count.count += 1
                return None
        return self._otherwise(exchange)

    def _find(self, exchange: Exchange, now: float) -> int:
        """The index of this client's entry, cached in its identity."""
        client = exchange.identity
        at = self._find_text(self._text_of(exchange, "") + b"\0", now)
        if self._remembers and client.name != "-" and not self._table.is_shared_entry(at):
            client.limit_number, client.limit_at, client.limit_key = self._number, at, self._numbers[at - 2]
        return at
