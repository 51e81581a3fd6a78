"""The rules of GRPCRoutes, as rules of HTTPRoutes that do the same: filters, backends, mirrors and sessions are shared.

Source: Gateway API v1 GRPCRouteRule. What it matches is in `matches`.
"""

from __future__ import annotations

from egressproxy.config.resources.route_filters import GrpcFilter, HttpFilter
from egressproxy.config.resources.routes import GrpcRule, HttpBackendRef, HttpRule


def as_http_rule(rule: HttpRule | GrpcRule) -> HttpRule:
    """The same rule, where it is a GRPCRoute's but for its matches: it has one that everything matches."""
    if isinstance(rule, HttpRule):
        return rule
    return HttpRule.model_construct(
        name=rule.name,
        filters=_filters(rule.filters),
        backend_refs=tuple(
            HttpBackendRef.model_construct(**{**dict(ref), "filters": _filters(ref.filters)})
            for ref in rule.backend_refs
        ),
        session_persistence=rule.session_persistence,
    )


def _filters(filters: tuple[GrpcFilter, ...]) -> tuple[HttpFilter, ...]:
    return tuple(HttpFilter.model_construct(**dict(entry)) for entry in filters)
