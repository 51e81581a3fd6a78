"""The matches of HTTPRoutes and GRPCRoutes. Source: Gateway API v1 HTTPRouteMatch, GRPCRouteMatch, GRPCRouteRule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from egressproxy.config.resources.route_filters import GrpcFilter, HttpFilter
from egressproxy.config.resources.route_matches import GrpcMatch, HeaderMatch, HttpMatch, QueryParamMatch
from egressproxy.config.resources.routes import GrpcRule, HttpBackendRef, HttpRule
from egressproxy.ir.route import MatchIR, MatchType, PathMatchType, ValueMatch

#: The most different regular expressions of one route: each may take 64 KiB.
MAX_PATTERNS = 256
_METHOD = "POST"


def http_match(match: HttpMatch) -> MatchIR:
    """An HTTPRouteMatch."""
    query = _of_values((each.name, each) for each in match.query_params)
    return MatchIR(match.path.value, match.path.type, match.method or "", _of_headers(match.headers), query)


def http_patterns(match: HttpMatch) -> Iterator[tuple[str, str]]:
    """The regular expressions of a match, each after its field, relative to the match."""
    if match.path.type is PathMatchType.REGEX:
        yield "path.value", match.path.value
    yield from _patterns_of("headers", match.headers)
    yield from _patterns_of("queryParams", match.query_params)


def grpc_match(match: GrpcMatch) -> MatchIR:
    """A GRPCRouteMatch: a POST to /service/method (GRPCRouteMatch, GRPCMethodMatch).

    The precedence is that of GRPCRouteRule.matches: more characters of the service before more of the method.
    Expressions rank between service with method, and the service alone.
    """
    headers, method_match = _of_headers(match.headers), match.method
    if method_match is None:
        return MatchIR("/", PathMatchType.PREFIX, _METHOD, headers)
    service, method = method_match.service or "", method_match.method or ""
    if method_match.type is MatchType.REGEX:
        path = "/" + "/".join(f"(?:{part})" if part else "[^/]+" for part in (service, method))
        return MatchIR(path, PathMatchType.REGEX, _METHOD, headers)
    service = service.removeprefix(".")
    if not service:
        return MatchIR(f"/{method}", PathMatchType.PREFIX, _METHOD, headers, any_service=True)
    if not method:
        return MatchIR(f"/{service}", PathMatchType.PREFIX, _METHOD, headers)
    return MatchIR(f"/{service}/{method}", PathMatchType.EXACT, _METHOD, headers)


def grpc_patterns(match: GrpcMatch) -> Iterator[tuple[str, str]]:
    """The expressions of a match, each after its field: service, method, and both combined, must each be valid."""
    method_match = match.method
    if method_match is not None and method_match.type is MatchType.REGEX:
        if method_match.service:
            yield "method.service", method_match.service
        if method_match.method:
            yield "method.method", method_match.method
    made = grpc_match(match)
    if made.path_type is PathMatchType.REGEX:
        yield "method", made.path
    yield from _patterns_of("headers", match.headers)


def as_http_rule(rule: HttpRule | GrpcRule) -> HttpRule:
    """The rule as an HttpRule; a GRPCRoute's rule gets one match for all requests in place of its matches."""
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


def _of_headers(headers: Sequence[HeaderMatch]) -> tuple[ValueMatch, ...]:
    return _of_values((each.name.lower(), each) for each in headers)


def _of_values(named: Iterable[tuple[str, HeaderMatch | QueryParamMatch]]) -> tuple[ValueMatch, ...]:
    """The matches; of equal names the first (HTTPHeaderMatch.name, HTTPQueryParamMatch.name, GRPCHeaderMatch.name)."""
    found: dict[str, ValueMatch] = {}
    for name, each in named:
        found.setdefault(name, ValueMatch(name, each.value, each.type))
    return tuple(found.values())


def _patterns_of(field: str, values: Sequence[HeaderMatch | QueryParamMatch]) -> Iterator[tuple[str, str]]:
    for index, value in enumerate(values):
        if value.type is MatchType.REGEX:
            yield f"{field}[{index}].value", value.value


def _filters(filters: tuple[GrpcFilter, ...]) -> tuple[HttpFilter, ...]:
    return tuple(HttpFilter.model_construct(**dict(entry)) for entry in filters)
