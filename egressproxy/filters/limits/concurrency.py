"""ConcurrencyLimit: exchanges in progress of everybody together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Final

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, LimitState
from egressproxy.filters.limits.request_rate import requests_text
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.filters.shared_counters import Row
from egressproxy.model.exchange import Exchange

_NO_LOCK: Final = nullcontext()


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
        self._held = f"concurrency {id(self)}"
        row = context.row or Row()
        self._counts = row.held
        self._mine = row.mine
        self._lock = row.lock or _NO_LOCK

    @property
    def in_progress(self) -> int:
        """Exchanges in progress, in all workers."""
        return sum(self._counts)

    def request_headers(self, x: Exchange) -> None:
        """Counts the exchange. Raises LimitExceeded(CONCURRENCY, 503)."""
        if x.notes is not None and self._held in x.notes:
            return
        with self._lock:
            is_free = sum(self._counts) < self._limit
            if is_free:
                self._counts[self._mine] += 1
        if not is_free:
            raise LimitExceeded(Reason.CONCURRENCY, self._message, status=503, rule=self._source, retry_after_s=1)
        x.note(self._held, True)

    backend_request = request_headers

    def explain(self, x: Exchange) -> list[LimitState]:
        return [
            LimitState(
                self._name, self._message.removeprefix("more than "), self._limit, self._limit - self.in_progress
            )
        ]

    def complete(self, x: Exchange) -> None:
        if x.notes is not None and x.notes.pop(self._held, None):
            self._counts[self._mine] -= 1


CONCURRENCY_LIMIT = FilterType(
    name="egressproxy.io/ConcurrencyLimit:v1",
    phases=REQUEST_HEADS,
    config_model=ConcurrencyLimitConfig,
    build=ConcurrencyLimit,
    is_shared=True,
    summary="Limits requests in progress; others get 503.",
)
