"""The QoSController type: limits in the form of the egress proposal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from egressproxy.filters.base import REQUEST_HEADS, FilterType
from egressproxy.filters.limits.request_rate import RequestRateLimitConfig, request_rate_limit
from egressproxy.filters.settings import FilterConfig, Within

__all__ = ["QOS_CONTROLLER", "QoSControllerConfig"]


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


QOS_CONTROLLER = FilterType(
    name="egressproxy.io/QoSController:v1",
    phases=REQUEST_HEADS,
    config_model=QoSControllerConfig,
    build=lambda context: request_rate_limit(replace(context, config=context.config.rates[0])),
    is_shared=True,
    summary="A RequestRateLimit in the form of the egress proposal: requests per second, minute or hour.",
)
