"""TokenLimitFastPath: the usual limit of tokens, a token bucket in this machine's memory, taken in one step.

It does the work of TokenQuota, MemoryStore and TokenBucket for one rule; `tests/filters/limits/test_limit_fast_path.py`
compares both. An exchange beyond the limit, and all responses to clients, are left to these.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from egressproxy.ai.limits.token_use import TokenUse
from egressproxy.filters.limits.rules import QuotaRule, Reservation
from egressproxy.filters.limits.windows import TokenBucket
from egressproxy.model.exchange import Exchange


class TokenLimitFastPath(NamedTuple):
    """Both steps of a rule. `take` returns the amount taken, or None above the limit. `settle` counts the final one."""

    take: Callable[[Exchange, TokenUse], Reservation | None]
    settle: Callable[[Exchange, Reservation, TokenUse], None]


def one_bucket(rule: QuotaRule, least: float) -> TokenLimitFastPath | None:
    """Both steps of this rule; None if it is no token bucket. `least`: the least amount per exchange."""
    window, table = rule.window, rule.table
    if rule.type != "Tokens" or not isinstance(window, TokenBucket):
        return None
    take_of, add_to, most, no_period = window.take, window.add_to, window.most, window.period(0.0)
    find_text, cells, lock, text_of = table.find_text, table.cells, table.lock, rule.text
    counts_input, counts_output = rule.counts_input, rule.counts_output
    count_allowed, count_reserved, count_settled = rule.count_allowed, rule.count_reserved, rule.count_settled

    def take(exchange: Exchange, use: TokenUse) -> Reservation | None:
        needed: float = use.input_tokens if counts_input else 0
        amount = needed + use.output_tokens if counts_output else needed
        if amount > most:
            amount = needed if needed > most else most
        if amount < least:
            amount = least
        taken = Reservation(rule, text_of(exchange, use.model), no_period, amount)
        now = monotonic()
        with lock:
            if take_of(cells, find_text(taken.text, now), amount, now) > 0.0:
                return None
        count_allowed.count += 1
        count_reserved.count += amount
        return taken

    def settle(exchange: Exchange, taken: Reservation, use: TokenUse) -> None:
        usage = use.taken(exchange)
        if usage is None:
            return
        took: float = usage[0] if counts_input else 0
        if counts_output:
            took += usage[1]
        count_settled.count += took
        if took != taken.amount:
            now = monotonic()
            with lock:
                add_to(cells, find_text(taken.text, now), took - taken.amount, now)

    return TokenLimitFastPath(take, settle)
