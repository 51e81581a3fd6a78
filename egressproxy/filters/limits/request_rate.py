"""RequestRateLimit: requests per time of everybody together, as a token bucket of one number.

The state is in the filter instance, which all places with an equal spec share (`scope` is part of it) and which a
reload keeps; with several workers it is in a row of `shared_counters`. A bucket is refilled when it is used, not by a
timer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, LimitState
from egressproxy.filters.limits.windows import span_text
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.filters.shared_counters import Row
from egressproxy.model.exchange import Exchange


@dataclass(frozen=True, slots=True)
class RequestRateLimitConfig(FilterConfig):
    """`limit` requests in `window` seconds; at most `burst` of them at once (0: `limit`)."""

    limit: Annotated[int, Within(ge=1)]
    window: Annotated[float, Within(gt=0, allow_inf_nan=False)] = 1.0
    burst: Annotated[int, Within(ge=0)] = 0


class RequestRateLimit(Filter):
    """A token bucket, kept as one number: the moment when it is full again (monotonic seconds).

    A refused request takes no token.
    """

    def __init__(self, context: FilterContext, clock: Callable[[], float] = time.monotonic) -> None:
        config: RequestRateLimitConfig = context.config
        self._source = context.source
        self._clock = clock
        self._interval = config.window / config.limit
        #: How far ahead of now that moment may be, in seconds; the last part covers rounding in sums of intervals.
        self._ahead = self._interval * ((config.burst or config.limit) - 1) + self._interval * 1e-6
        self._full_at = (context.row or Row()).full_at
        self._message = _rate(config)
        self._name = context.name
        self._limit = config.burst or config.limit
        #: Source: draft-ietf-httpapi-ratelimit-headers-09.
        self._policy = f'"{self._name}";q={config.limit};w={math.ceil(config.window)}'.encode()

    def request_headers(self, x: Exchange) -> None:
        """Takes a token. Raises LimitExceeded(REQUEST_RATE, 429) with the seconds to the next one."""
        now = self._clock()
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

    def explain(self, x: Exchange) -> list[LimitState]:
        drawn = max(0.0, self._full_at[0] - self._clock())
        left = max(0.0, (self._ahead - drawn) / self._interval + 1.0)
        allows = self._message.removeprefix("more than ")
        return [LimitState(self._name, allows, self._limit, min(left, self._limit), drawn)]


class SharedRequestRateLimit(RequestRateLimit):
    """A RequestRateLimit whose row other processes share: one of them decides at a time."""

    def __init__(self, context: FilterContext, lock: AbstractContextManager[None]) -> None:
        super().__init__(context)
        self._lock = lock

    def request_headers(self, x: Exchange) -> None:
        with self._lock:
            super().request_headers(x)

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
