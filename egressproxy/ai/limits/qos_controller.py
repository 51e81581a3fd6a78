"""The filter type QoSController: limits of every kind, those on tokens and money included.

A limit of requests that is the same for everybody is a RequestRateLimit; every other one is a `quota`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, Phase
from egressproxy.filters.limits.filter_types import RequestRateLimitConfig, request_rate_limit
from egressproxy.filters.limits.qos_config import QoSControllerConfig
from egressproxy.filters.limits.rules import NEEDS_BODY
from egressproxy.filters.limits.windows import SECONDS

#: `mode` and `rateLimitHeaders` of a QoSController that may be one number.
_USUAL: Final = ("Enforce", "Denied")


def _build(context: FilterContext) -> Filter:
    """One limit of requests that is the same for everybody is one number; everything else needs a table."""
    config: QoSControllerConfig = context.config
    (first, *more) = config.entries
    is_plain = not (more or first.per or config.store) and (config.mode, config.rate_limit_headers) == _USUAL
    if is_plain and first.type == "Requests" and first.unit in SECONDS and first.limit == int(first.limit):
        rate = RequestRateLimitConfig(int(first.limit), SECONDS[first.unit], int(first.burst))
        return request_rate_limit(replace(context, config=rate, name=first.name))
    return quota(context)


def quota(context: FilterContext) -> Filter:
    """The filter of this context. Raises ValueError for what cannot be limited in its phase."""
    config: QoSControllerConfig = context.config
    types = {entry.type for entry in config.entries}
    if types & {"Tokens", "Cost"} or any(NEEDS_BODY in entry.per for entry in config.entries):
        from egressproxy.ai.limits.token_quota import TokenQuota

        return TokenQuota(context)
    from egressproxy.filters.limits.quota import Quota, SettledQuota

    return SettledQuota(context) if types - {"Requests"} else Quota(context)


QOS_CONTROLLER = FilterType(
    name="egressproxy.io/QoSController:v1",
    phases=REQUEST_HEADS,
    config_model=QoSControllerConfig,
    build=_build,
    also=frozenset((Phase.REQUEST_BODY, Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)),
    is_shared=True,
    summary="Limits requests, bytes, tokens, money and concurrency, per identity, model and more; others get 429.",
)
