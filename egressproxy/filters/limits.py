"""The built-in limits: requests per time, exchanges in progress, bytes of a request body.

The state is in the filter instance, which all places with an equal spec share (`scope` is part of it) and which a
reload keeps; with several workers it is in a row of `shared_counters`. A bucket is refilled when it is used, not by a
timer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, Phase
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.filters.shared_counters import Row
from egressproxy.model.exchange import Exchange

__all__ = ["BODY_LIMIT", "CONCURRENCY_LIMIT", "QOS_CONTROLLER", "REQUEST_RATE_LIMIT"]


@dataclass(frozen=True, slots=True)
class RequestRateLimitConfig(FilterConfig):
    """`limit` requests in `window` seconds; at most `burst` of them at once (0: `limit`)."""

    limit: Annotated[int, Within(ge=1)]
    window: Annotated[float, Within(gt=0, allow_inf_nan=False)] = 1.0
    burst: Annotated[int, Within(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class QoSControllerConfig(FilterConfig):
    """The form of the egress proposal: exactly one of the three numbers of requests."""

    requests_per_second: Annotated[int, Within(ge=1)] | None = None
    requests_per_minute: Annotated[int, Within(ge=1)] | None = None
    requests_per_hour: Annotated[int, Within(ge=1)] | None = None

    def __post_init__(self) -> None:
        if len(self.rates) != 1:
            raise ValueError(
                "set exactly one of `requestsPerSecond`, `requestsPerMinute` and `requestsPerHour`; "
                "for two limits write two extensions"
            )

    @property
    def rates(self) -> list[RequestRateLimitConfig]:
        """The limits that are written, in the form of `limits.requests`."""
        every = ((self.requests_per_second, 1.0), (self.requests_per_minute, 60.0), (self.requests_per_hour, 3600.0))
        return [RequestRateLimitConfig(limit, window) for limit, window in every if limit is not None]


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

    def request_headers(self, x: Exchange) -> None:
        """Takes a token. Raises LimitExceeded(REQUEST_RATE, 429) with the seconds to the next one."""
        now = self._clock()
        full_at = self._full_at[0]
        if full_at < now:
            full_at = now
        wait = full_at - now - self._ahead
        if wait > 0.0:
            raise LimitExceeded(
                Reason.REQUEST_RATE, self._message, rule=self._source, retry_after_s=max(1, math.ceil(wait))
            )
        self._full_at[0] = full_at + self._interval

    backend_request = request_headers

    def __repr__(self) -> str:
        return f"RequestRateLimit(drawn {max(0.0, self._full_at[0] - self._clock()):.3f} s ahead of {self._ahead:.3f})"


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
        self._message = f"more than {_requests(config.limit)} at once"
        self._held = f"concurrency {id(self)}"
        row = context.row or Row()
        self._counts = row.held
        self._mine = row.mine

    @property
    def in_progress(self) -> int:
        """Exchanges in progress, in all workers."""
        return sum(self._counts)

    def request_headers(self, x: Exchange) -> None:
        """Counts the exchange. Raises LimitExceeded(CONCURRENCY, 503)."""
        if x.notes is not None and self._held in x.notes:
            return
        if sum(self._counts) >= self._limit:
            raise LimitExceeded(Reason.CONCURRENCY, self._message, status=503, rule=self._source, retry_after_s=1)
        self._counts[self._mine] += 1
        x.note(self._held, True)

    backend_request = request_headers

    def complete(self, x: Exchange) -> None:
        """Counts the exchange down."""
        if x.notes is not None and x.notes.pop(self._held, None):
            self._counts[self._mine] -= 1

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self.in_progress} of {self._limit})"


@dataclass(frozen=True, slots=True)
class BodyLimitConfig(FilterConfig):
    """`max_bytes` of a request body."""

    max_bytes: Annotated[int, Within(ge=0)]


class BodyLimit(Filter):
    """Refuses a longer Content-Length at once; a chunked body is counted where it is relayed (`x.max_body_bytes`)."""

    def __init__(self, context: FilterContext) -> None:
        config: BodyLimitConfig = context.config
        self._source = context.source
        self._max_bytes = config.max_bytes

    def request_headers(self, x: Exchange) -> None:
        """Raises LimitExceeded(BODY_TOO_LARGE, 413)."""
        if x.request.body > self._max_bytes:
            message = f"the body is longer than {self._max_bytes} bytes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, rule=self._source, close=True)
        if x.max_body_bytes < 0 or x.max_body_bytes > self._max_bytes:
            x.max_body_bytes = self._max_bytes


def _rate(config: RequestRateLimitConfig) -> str:
    """What was exceeded; with the burst if it is another number, because a fast client reaches it first."""
    rate = f"more than {_requests(config.limit)} in {config.window:g} s"
    if config.burst in (0, config.limit):
        return rate
    if config.burst < config.limit:
        return f"{rate}, or more than {config.burst} at once"
    return f"{rate}, after {config.burst} at once"


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


REQUEST_RATE_LIMIT = FilterType(
    name="egressproxy.io/RequestRateLimit:v1",
    phases=REQUEST_HEADS,
    config_model=RequestRateLimitConfig,
    build=RequestRateLimit,
    is_shared=True,
    summary="Limits requests per time; others get 429.",
)

QOS_CONTROLLER = FilterType(
    name="egressproxy.io/QoSController:v1",
    phases=REQUEST_HEADS,
    config_model=QoSControllerConfig,
    build=lambda context: RequestRateLimit(replace(context, config=context.config.rates[0])),
    is_shared=True,
    summary="A RequestRateLimit in the form of the egress proposal: requests per second, minute or hour.",
)

CONCURRENCY_LIMIT = FilterType(
    name="egressproxy.io/ConcurrencyLimit:v1",
    phases=REQUEST_HEADS,
    config_model=ConcurrencyLimitConfig,
    build=ConcurrencyLimit,
    is_shared=True,
    summary="Limits requests in progress; others get 503.",
)

BODY_LIMIT = FilterType(
    name="egressproxy.io/BodyLimit:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=BodyLimitConfig,
    build=BodyLimit,
    summary="Limits the bytes of a request body; longer ones get 413.",
)
