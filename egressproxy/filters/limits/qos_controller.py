"""The QoSController type: limits on requests, bytes, tokens, money and concurrency, for each key that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, Phase
from egressproxy.filters.limits.keys import NEEDS_BODY
from egressproxy.filters.limits.qos_config import QoSControllerConfig
from egressproxy.filters.limits.quota import Quota, SettledQuota
from egressproxy.filters.limits.request_rate import RequestRateLimitConfig, request_rate_limit
from egressproxy.filters.limits.windows import SECONDS
from egressproxy.filters.settings import CalledBackendRef, SecretRef

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


def quota(context: FilterContext) -> Quota:
    """The filter of this context. Raises ValueError for what cannot be limited in its phase."""
    config: QoSControllerConfig = context.config
    types = {entry.type for entry in config.entries}
    if types & {"Tokens", "Cost"} or any(NEEDS_BODY in entry.per for entry in config.entries):
        from egressproxy.filters.limits.token_quota import TokenQuota

        return TokenQuota(context)
    return SettledQuota(context) if types - {"Requests"} else Quota(context)


def _secrets(config: QoSControllerConfig) -> tuple[SecretRef, ...]:
    return () if config.store is None or config.store.secret_ref is None else (config.store.secret_ref,)


def _backends(config: QoSControllerConfig) -> tuple[tuple[str, CalledBackendRef], ...]:
    return () if config.store is None else (("store.backendRef", config.store.backend_ref),)


QOS_CONTROLLER = FilterType(
    name="egressproxy.io/QoSController:v1",
    phases=REQUEST_HEADS,
    config_model=QoSControllerConfig,
    build=_build,
    also=frozenset((Phase.REQUEST_BODY, Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)),
    secret_refs=_secrets,
    backend_refs=_backends,
    is_shared=True,
    summary="Limits requests, bytes, tokens, money and concurrency, per identity, model and more; others get 429.",
)
