"""The QoSController type: limits on requests, bytes, tokens, money and concurrency, for each key that is asked for."""

from __future__ import annotations

from dataclasses import replace

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, Phase
from egressproxy.filters.limits.qos_config import QoSControllerConfig
from egressproxy.filters.limits.quota import quota
from egressproxy.filters.limits.request_rate import RequestRateLimitConfig, request_rate_limit
from egressproxy.filters.limits.windows import SECONDS

__all__ = ["QOS_CONTROLLER"]


def _build(context: FilterContext) -> Filter:
    """One limit of requests that is the same for everybody is one number; everything else needs a table."""
    config: QoSControllerConfig = context.config
    (first, *more) = config.entries
    is_plain = not (more or first.per or config.mode == "Report" or config.rate_limit_headers == "Always")
    if is_plain and first.type == "Requests" and first.unit in SECONDS and first.limit == int(first.limit):
        rate = RequestRateLimitConfig(int(first.limit), SECONDS[first.unit], int(first.burst))
        return request_rate_limit(replace(context, config=rate))
    return quota(context)


QOS_CONTROLLER = FilterType(
    name="egressproxy.io/QoSController:v1",
    phases=REQUEST_HEADS,
    config_model=QoSControllerConfig,
    build=_build,
    also=frozenset((Phase.REQUEST_BODY, Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)),
    is_shared=True,
    summary="Limits requests, bytes, tokens, money and concurrency, per identity, model and more; others get 429.",
)
