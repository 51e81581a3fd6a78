"""The filter types of limits.

RequestRateLimit, ConcurrencyLimit and BodyLimit are those of everybody at a place, each of one number. The state is in
the filter instance, which all places with an equal spec share (`scope` is part of it) and which a reload keeps; with
several workers it is in a row of `shared_counters`. A bucket is refilled when it is used, not by a timer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Final

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, LimitState, OfMessages, Phase
from egressproxy.filters.limits.windows import TokenBucket, span_text
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.filters.shared_counters import Row
from egressproxy.model.exchange import Exchange, StateSlot

_NO_LOCK: Final = nullcontext()


@dataclass(frozen=True, slots=True)
class RequestRateLimitConfig(FilterConfig):
    """`limit` requests in `window` seconds; at most `burst` of them at once (0: `limit`)."""

    limit: Annotated[int, Within(ge=1)]
    window: Annotated[float, Within(gt=0, allow_inf_nan=False)] = 1.0
    burst: Annotated[int, Within(ge=0)] = 0


class RequestRateLimit(Filter):
    """A token bucket as one number: when it is full again (monotonic seconds). What is refused takes no token."""

    of_messages = OfMessages.READS

    def __init__(self, context: FilterContext, clock: Callable[[], float] = time.monotonic) -> None:
        config: RequestRateLimitConfig = context.config
        self._source = context.source
        self._clock = clock
        self._bucket = TokenBucket(config.limit, config.window, config.burst)
        self._interval, ahead, slack = self._bucket.terms
        #: How far ahead of now that moment may be before a token is taken, in seconds.
        self._ahead = ahead - self._interval + slack
        self._full_at = (context.row or Row()).full_at
        self._message = _rate(config)
        self._name = context.name
        #: Source: draft-ietf-httpapi-ratelimit-headers-09.
        self._policy = f'"{self._name}";q={config.limit};w={math.ceil(config.window)}'.encode()

    def request_headers(self, exchange: Exchange) -> None:
        """Takes a token. Raises LimitExceeded(REQUEST_RATE, 429) with the seconds to the next one."""
        clock = self._clock
        now = clock()
        full_at = self._full_at[0]
        if full_at < now:
            full_at = now
        wait = full_at - now - self._ahead
        if wait > 0.0:
            raise self._refusal(max(1, math.ceil(wait)))
        self._full_at[0] = full_at + self._interval

    backend_request = request_headers

    def _refusal(self, wait_s: int) -> LimitExceeded:
        error = LimitExceeded(Reason.REQUEST_RATE, self._message, rule=self._source, retry_after_s=wait_s)
        state = b'"%b";r=0;t=%d' % (self._name.encode(), wait_s)
        error.fields = ((b"RateLimit-Policy", self._policy), (b"RateLimit", state))
        return error

    def explain(self, exchange: Exchange) -> list[LimitState]:
        left, reset_s = self._bucket.left(self._full_at[0], 0.0, self._clock())
        most = self._bucket.most
        return [LimitState(self._name, self._message.removeprefix("more than "), most, min(left, most), reset_s)]


class SharedRequestRateLimit(RequestRateLimit):
    """A RequestRateLimit whose row other processes share: one of them decides at a time."""

    def __init__(self, context: FilterContext, lock: AbstractContextManager[None]) -> None:
        super().__init__(context)
        self._lock = lock

    def request_headers(self, exchange: Exchange) -> None:
        with self._lock:
            super().request_headers(exchange)

    backend_request = request_headers


def request_rate_limit(context: FilterContext) -> RequestRateLimit:
    """The limit of this context, for a process that serves alone or for one of several."""
    row = context.row
    return RequestRateLimit(context) if row is None or row.lock is None else SharedRequestRateLimit(context, row.lock)


def _rate(config: RequestRateLimitConfig) -> str:
    """What was exceeded; with the burst if it is another number, because a fast client reaches it first."""
    rate = f"more than {requests_text(config.limit)} in {span_text(config.window)}"
    if config.burst in (0, config.limit):
        return rate
    if config.burst < config.limit:
        return f"{rate}, or more than {config.burst} at once"
    return f"{rate}, after {config.burst} at once"


def requests_text(number: int) -> str:
    """ "1 request" or "N requests", for messages."""
    return "1 request" if number == 1 else f"{number} requests"


REQUEST_RATE_LIMIT = FilterType(
    name="egressproxy.io/RequestRateLimit:v1",
    phases=REQUEST_HEADS,
    config_model=RequestRateLimitConfig,
    build=request_rate_limit,
    is_shared=True,
    summary="Limits requests per time; others get 429.",
)


@dataclass(frozen=True, slots=True)
class ConcurrencyLimitConfig(FilterConfig):
    """`limit` exchanges in progress."""

    limit: Annotated[int, Within(ge=1)]


class ConcurrencyLimit(Filter):
    """Counts exchanges in progress, in all workers; a retried exchange counts once."""

    def __init__(self, context: FilterContext) -> None:
        config: ConcurrencyLimitConfig = context.config
        self._source = context.source
        self._limit = config.limit
        self._name = context.name
        self._message = f"more than {requests_text(config.limit)} at once"
        self._held: StateSlot[bool] = StateSlot("concurrency")
        row = context.row or Row()
        self._counts, self._mine, self._lock = row.held, row.mine, row.lock or _NO_LOCK

    @property
    def in_progress(self) -> int:
        return sum(self._counts)

    def request_headers(self, exchange: Exchange) -> None:
        """Counts the exchange. Raises LimitExceeded(CONCURRENCY, 503)."""
        if exchange.state.get(self._held):
            return
        with self._lock:
            is_free = sum(self._counts) < self._limit
            if is_free:
                self._counts[self._mine] += 1
        if not is_free:
            raise LimitExceeded(Reason.CONCURRENCY, self._message, status=503, rule=self._source, retry_after_s=1)
        exchange.keep(self._held, True)

    backend_request = request_headers

    def explain(self, exchange: Exchange) -> list[LimitState]:
        allows, left = self._message.removeprefix("more than "), self._limit - self.in_progress
        return [LimitState(self._name, allows, self._limit, left)]

    def complete(self, exchange: Exchange) -> None:
        if exchange.take(self._held):
            self._counts[self._mine] -= 1


CONCURRENCY_LIMIT = FilterType(
    name="egressproxy.io/ConcurrencyLimit:v1",
    phases=REQUEST_HEADS,
    config_model=ConcurrencyLimitConfig,
    build=ConcurrencyLimit,
    is_shared=True,
    summary="Limits requests in progress; others get 503.",
)


@dataclass(frozen=True, slots=True)
class BodyLimitConfig(FilterConfig):
    """`max_bytes` of a request body."""

    max_bytes: Annotated[int, Within(ge=0)]


class BodyLimit(Filter):
    """Refuses a longer Content-Length at once; a chunked body is counted where it is relayed (`x.max_body_bytes`)."""

    of_messages = OfMessages.READS

    def __init__(self, context: FilterContext) -> None:
        config: BodyLimitConfig = context.config
        self._source = context.source
        self._max_bytes = config.max_bytes

    def request_headers(self, exchange: Exchange) -> None:
        """Raises LimitExceeded(BODY_TOO_LARGE, 413)."""
        if exchange.request.body > self._max_bytes:
            message = f"the body is longer than {self._max_bytes} bytes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, rule=self._source, close=True)
        if exchange.max_body_bytes < 0 or exchange.max_body_bytes > self._max_bytes:
            exchange.max_body_bytes = self._max_bytes


BODY_LIMIT = FilterType(
    name="egressproxy.io/BodyLimit:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=BodyLimitConfig,
    build=BodyLimit,
    summary="Limits the bytes of a request body; longer ones get 413.",
)
