"""Quota: the filter of a QoSController, which takes an exchange's amount of each limit, and settles at the end.

Requests count on arrival. Bytes and tokens are reserved by estimate, and settled at the end of the exchange. A request
to an AI provider is buffered if a limit needs its model or its tokens. An exchange counts in all limits of the filter,
or in none if one refuses.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Final, Generic, TypeVar

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import RESPONSE_PHASE, Filter, FilterContext, HeaderResult, LimitState, OfMessages, Phase
from egressproxy.filters.limits.limit_fast_path import RequestLimitFastPath
from egressproxy.filters.limits.memory_store import MemoryStore, QuotaStore
from egressproxy.filters.limits.qos_config import MAX_KEYS, LimitEntry, QoSControllerConfig
from egressproxy.filters.limits.rate_fields import rate_limit_fields
from egressproxy.filters.limits.rules import (
    NEEDS_BACKEND,
    NEVER,
    ConcurrencyRule,
    Later,
    QuotaRule,
    Reservation,
    key_text,
)
from egressproxy.filters.limits.windows import CALENDAR, span_text, window_of
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.net.keyed_counters import KEY_BYTES, SHARED, SHARED_KEYS, KeyedCounters, OwnCounters

#: The tokens of an exchange: what estimates and counts them. The limits here have none.
Use = TypeVar("Use")

#: The least amount, so that an exhausted limit also refuses exchanges of unknown amount.
LEAST: Final = 1.0
#: Keys that clients choose freely: limits with these have a separate table, so that they cannot fill others.
_OF_ANYBODY: Final = frozenset(("Header", "Model"))


class Held(Generic[Use]):
    """The reservations of one exchange: amounts taken, concurrency slots, and token use."""

    __slots__ = ("places", "takes", "use")

    def __init__(self, use: Use | None) -> None:
        self.takes: list[Reservation] = []
        self.places: list[tuple[ConcurrencyRule, int]] = []
        self.use = use


class Quota(Filter, Generic[Use]):
    """The limits of one QoSController, if no limit needs settlement."""

    ignores_trailers = True
    settles = False

    def __init__(self, context: FilterContext, store: QuotaStore | None = None) -> None:
        config: QoSControllerConfig = context.config
        self._source = context.source
        self._held: StateSlot[Held[Use]] = StateSlot("quota")
        self._is_report = config.mode == "Report"
        self._headers = config.rate_limit_headers
        entries = config.entries
        for entry in entries:
            if NEEDS_BACKEND in entry.per and context.phase is not Phase.BACKEND_REQUEST:
                why = "per Backend counts in phase backend-request, in which the backend is known"
                raise ValueError(f"limit {entry.name}: {why}")
        self.rules = [_rule(context, entry) for entry in entries if entry.type != "Concurrency"]
        self._head_rules: Sequence[QuotaRule] = self.rules  # for exchanges with unread bodies
        self._store = store or self._configured_store(context, config)
        self.concurrency = [_concurrency(context, entry) for entry in entries if entry.type == "Concurrency"]
        self._exchanges = context.meter.counter(
            "egress_limit_exchanges", "Exchanges that a limit has decided on, by result.", ["limit", "result"]
        )
        self._amounts = context.meter.counter(
            "egress_limit_amount", "What was reserved of limits, and what it was in the end.", ["limit", "what"]
        )
        self._denied = "would_deny" if self._is_report else "denied"
        for rule in self.rules:
            rule.count_allowed = self._exchanges.labelled(rule.name, "allowed")
            if rule.is_settled:
                rule.count_reserved = self._amounts.labelled(rule.name, "reserved")
                rule.count_settled = self._amounts.labelled(rule.name, "settled")
        self._is_kept = self.settles or self._headers == "Always"  # keep the amounts until the end
        if type(self) is Quota and isinstance(self._store, MemoryStore) and not (self._is_kept or self.concurrency):
            short = RequestLimitFastPath.of(self.rules, entries[0].per, self.request_headers)
            if short is not None:
                self.request_headers = self.backend_request = short.take  # type: ignore[method-assign]
        if not (self.settles or self.concurrency):  # else it counts the connection as a whole
            self.of_messages = OfMessages.READS
        self.runs_in = frozenset((context.phase,))
        if self._headers == "Always":
            self.runs_in |= {RESPONSE_PHASE[context.phase]}

    def _configured_store(self, context: FilterContext, config: QoSControllerConfig) -> QuotaStore:
        if config.store is None or not self.rules:
            return MemoryStore()
        from egressproxy.filters.limits.redis_store import RedisStore

        return RedisStore(context, config.store, self.rules[0].table)

    def request_headers(self, exchange: Exchange) -> HeaderResult:
        """Take this exchange's amounts. Raises LimitExceeded, 429 (503 for concurrency)."""
        return self._take(exchange, "")

    backend_request = request_headers

    def response_headers(self, exchange: Exchange) -> HeaderResult:
        held = exchange.state.get(self._held)
        if held is not None and held.takes:
            for name, value in self._fields(exchange, held.takes):
                exchange.response.fields.set(name, value)
        return None

    backend_response = response_headers

    def explain(self, exchange: Exchange) -> list[LimitState]:
        """The states of the limits for this exchange; limits per Model as for requests without a model."""
        now = monotonic()
        takes = [Reservation(rule, rule.text(exchange, ""), rule.window.period(now), 0.0) for rule in self.rules]
        self._store.peek(takes)
        states = []
        for take in takes:
            rule, is_whole = take.rule, take.rule.type != "Cost"
            states.append(LimitState(rule.name, rule.allows, rule.window.limit, take.left, take.reset_s, is_whole))
        for each in self.concurrency:
            states.append(LimitState(each.name, each.allows, each.limit, each.limit - each.in_progress(exchange, "")))
        return states

    def _take(
        self, exchange: Exchange, model: str, use: Use | None = None, *, enters: bool = True
    ) -> Awaitable[None] | None:
        held = exchange.state.get(self._held)
        if held is None:
            held = Held(use)
        else:  # another attempt counts as a request, and takes settled amounts again
            self._release(held)
            self._leave(held)
            held.use = use
        if self.concurrency and enters:
            self._enter(exchange, held, model)
        now = monotonic()
        held.takes = takes = []
        for rule in self.rules if use is not None else self._head_rules:
            takes.append(
                Reservation(
                    rule, rule.text(exchange, model), rule.window.period(now), self._amount(rule, exchange, use)
                )
            )
        try:
            refusing = self._store.take(takes) if takes else None
        except LimitExceeded:
            held.takes = []  # of an earlier attempt: amounts not taken must not be given back
            self._leave(held)
            raise
        if refusing is not None and isinstance(refusing, Awaitable):
            held.takes = []  # until the store has taken them: the exchange may end earlier
            if held.places:
                exchange.keep(self._held, held)
            return Later(partial(self._go_on, exchange, held, takes, refusing))
        self._finish(exchange, held, refusing)
        return None

    def _enter(self, exchange: Exchange, held: Held[Use], model: str) -> None:
        """Count the exchange as in progress. Raises LimitExceeded."""
        for rule in self.concurrency:
            place = rule.enter(exchange, model)
            if place >= 0:
                held.places.append((rule, place))
                continue
            self._exchanges.add(1, rule.name, self._denied)
            if self._is_report:
                exchange.note_denials(Reason.CONCURRENCY)
            else:
                self._leave(held)
                raise LimitExceeded(Reason.CONCURRENCY, rule.message, status=503, rule=self._source, retry_after_s=1)

    async def _go_on(
        self, exchange: Exchange, held: Held[Use], takes: list[Reservation], waiting: Awaitable[Reservation | None]
    ) -> None:
        try:
            refusing = await waiting
        except BaseException:
            self._leave(held)  # the store gives back abandoned reservations
            raise
        held.takes = takes
        self._finish(exchange, held, refusing)

    def _finish(self, exchange: Exchange, held: Held[Use], refusing: Reservation | None) -> None:
        """Count the result. Raises LimitExceeded."""
        if refusing is None:
            for take in held.takes:
                rule = take.rule
                rule.count_allowed.count += 1
                if rule.is_settled:
                    rule.count_reserved.count += take.amount
            if self._is_kept:
                exchange.keep(self._held, held)
            return
        takes, held.takes = held.takes, []
        rule = refusing.rule
        rule.denied += 1
        self._exchanges.add(1, rule.name, self._denied)
        if self._is_report:
            exchange.note_denials(rule.reason)
            exchange.keep(self._held, held)  # for its concurrency slots
            return
        self._leave(held)
        # Retry-After has whole seconds, here rounded up (RFC 9110 section 10.2.3).
        after = 0 if refusing.wait_s == NEVER else max(1, math.ceil(refusing.wait_s))
        error = LimitExceeded(rule.reason, rule.message, rule=self._source, retry_after_s=after)
        self._advise(error, exchange, refusing, held.use)
        if self._headers != "Never":
            error.fields = self._fields(exchange, takes)
        raise error

    def _advise(self, error: LimitExceeded, exchange: Exchange, refusing: Reservation, use: Use | None) -> None:
        """Add what the client can do."""
        if not error.retry_after_s:
            error.remedy = "ask for less at once: this request alone is more than the limit"

    def _amount(self, rule: QuotaRule, exchange: Exchange, use: Use | None) -> float:
        return LEAST

    def _fields(self, exchange: Exchange, takes: list[Reservation]) -> tuple[tuple[bytes, bytes], ...]:
        self._store.peek(takes)
        return rate_limit_fields(takes)

    def _release(self, held: Held[Use]) -> None:
        """Give back the amounts that another attempt takes again."""

    def _leave(self, held: Held[Use]) -> None:
        for rule, place in held.places:
            rule.leave(place)
        held.places.clear()

    def in_service(self) -> None:
        self._store.begin()

    def close(self) -> None:
        self._store.close()


class SettledQuota(Quota[Use]):
    """The limits that are settled at the end of the exchange: concurrency, and bytes."""

    settles = True

    def complete(self, exchange: Exchange) -> None:
        held = exchange.take(self._held)
        if held is None:
            return
        if held.places:
            self._leave(held)
        for take in held.takes:
            rule = take.rule
            took = self._taken(rule, exchange, held.use)
            if took is not None:
                rule.count_settled.count += took
                if took != take.amount:
                    self._store.settle(take, took - take.amount)

    def _release(self, held: Held[Use]) -> None:
        for take in held.takes:
            if take.rule.is_settled:
                self._store.settle(take, -take.amount)
        held.takes = []

    def _amount(self, rule: QuotaRule, exchange: Exchange, use: Use | None) -> float:
        if rule.type == "Bytes" and rule.counts_input:
            return max(LEAST, float(exchange.request.body))
        return LEAST

    def _taken(self, rule: QuotaRule, exchange: Exchange, use: Use | None) -> float | None:
        """The final amount; None if the amount was known before."""
        if rule.type != "Bytes":
            return None
        return float(
            (exchange.bytes_in if rule.counts_input else 0) + (exchange.bytes_out if rule.counts_output else 0)
        )


def _rule(context: FilterContext, entry: LimitEntry) -> QuotaRule:
    window = window_of(entry.limit, entry.unit, entry.window, entry.burst)
    identity = _identity(context, entry)
    text, table = key_text(entry.per, entry.header), _table(context, entry, identity)
    return QuotaRule(entry.name, entry.type, entry.count, window, text, table, identity, _allows(entry))


def _concurrency(context: FilterContext, entry: LimitEntry) -> ConcurrencyRule:
    table = _table(context, entry, _identity(context, entry))
    return ConcurrencyRule(entry.name, int(entry.limit), key_text(entry.per, entry.header), table, _allows(entry))


def _identity(context: FilterContext, entry: LimitEntry) -> bytes:
    """The key of the limit's counters. It does not include the amount, so usage survives a change of the limit."""
    settings = (
        context.source,
        context.scope,
        context.name,
        entry.name,
        entry.type,
        entry.count,
        entry.unit,
        entry.window,
    )
    return blake2b(repr((*settings, entry.per, entry.header.lower())).encode(), digest_size=KEY_BYTES).digest()


def _table(context: FilterContext, entry: LimitEntry, identity: bytes) -> KeyedCounters:
    keyed = context.keyed or OwnCounters().keyed
    keys = context.config.max_keys if entry.per else 1
    if keys:
        made = keyed(identity, keys)
    elif _OF_ANYBODY.isdisjoint(entry.per):
        made = keyed(SHARED, SHARED_KEYS).of_limit(identity)
    else:
        made = keyed(identity, MAX_KEYS)
    made.remembers = "Header" not in entry.per  # a field may be a credential
    return made


def _allows(entry: LimitEntry) -> str:
    """ "100 requests in a day for each Identity"."""
    what = entry.type.lower() if entry.type != "Concurrency" else "requests"
    if entry.type == "Cost":
        what = "cost"
    elif entry.limit == 1:
        what = what.removesuffix("s")
    if entry.count != "Total":
        what = f"{what} of the {'request' if entry.count == 'Input' else 'answer'}"
    number = f"{entry.limit:.0f}" if entry.limit == int(entry.limit) else f"{entry.limit:g}"
    if entry.type == "Concurrency":
        span = "at once"
    elif entry.unit in CALENDAR:
        span = f"in a {entry.unit.lower()}"
    else:
        span = f"in {span_text(window_of(entry.limit, entry.unit, entry.window).length_s)}"
    whose = f" for each {' and '.join(entry.per)}" if entry.per else ""
    return f"{number} {what} {span}{whose}"
