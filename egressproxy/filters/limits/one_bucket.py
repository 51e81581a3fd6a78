"""The usual limit of tokens, a token bucket in the memory of this machine, alone: taken and settled in one step each.

It is what Quota, MemoryStore and TokenBucket do together, for one rule; `tests/filters/limits/test_one_bucket.py`
compares them. What does not fit is left to them, and so is everything that is said to clients.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from egressproxy.filters.limits.rules import QuotaRule, Take
from egressproxy.filters.limits.token_use import TokenUse
from egressproxy.filters.limits.windows import TokenBucket
from egressproxy.model.exchange import Exchange

__all__ = ["OneBucket", "one_bucket"]


class OneBucket(NamedTuple):
    """The two steps of one rule.

    `take` takes what an exchange may need: what it took, or None where it does not fit, so that nothing was taken.
    `settle` counts what it has taken in the end.
    """

    take: Callable[[Exchange, TokenUse], Take | None]
    settle: Callable[[Exchange, Take, TokenUse], None]


def one_bucket(rule: QuotaRule, least: float) -> OneBucket | None:
    """Both steps of this rule, made when configuration is built; None where it is not a bucket of tokens. `least`: no
    exchange takes less.
    """
    window, table = rule.window, rule.table
    if rule.type != "Tokens" or not isinstance(window, TokenBucket):
        return None
    take_of, add_to, most, no_period = window.take, window.add_to, window.most, window.period(0.0)
    find_text, cells, lock, text_of = table.find_text, table.cells, table.lock, rule.text
    counts_input, counts_output = rule.counts_input, rule.counts_output
    count_allowed, count_reserved, count_settled = rule.count_allowed, rule.count_reserved, rule.count_settled

    def take(x: Exchange, use: TokenUse) -> Take | None:
        needed: float = use.input_tokens if counts_input else 0
        amount = needed + use.output_tokens if counts_output else needed
        if amount > most:
            amount = needed if needed > most else most
        if amount < least:
            amount = least
        taken = Take(rule, text_of(x, use.model), no_period, amount)
        now = monotonic()
        with lock:
            if take_of(cells, find_text(taken.text, now), amount, now) > 0.0:
                return None
        count_allowed.count += 1
        count_reserved.count += amount
        return taken

    def settle(x: Exchange, taken: Take, use: TokenUse) -> None:
        usage = use.taken(x)
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

    return OneBucket(take, settle)
