from __future__ import annotations

import pytest

from egressproxy.config.compile.routes.matches import grpc_match, grpc_patterns, http_patterns
from egressproxy.config.resources.route_matches import GrpcMatch, HttpMatch
from egressproxy.ir.route import MatchType, PathMatchType, ValueMatch
from egressproxy.routing.patterns import PatternError, compile_pattern


@pytest.mark.parametrize(
    ("method", "path", "path_type"),
    [
        ({"service": "a.B", "method": "Get"}, "/a.B/Get", PathMatchType.EXACT),
        ({"service": ".a.B", "method": "Get"}, "/a.B/Get", PathMatchType.EXACT),
        ({"service": "a.B"}, "/a.B", PathMatchType.PREFIX),
        ({"type": "RegularExpression", "method": "G.t"}, "/[^/]+/(?:G.t)", PathMatchType.REGEX),
        ({"type": "RegularExpression", "service": "a[.]B", "method": "G.t"}, "/(?:a[.]B)/(?:G.t)", PathMatchType.REGEX),
        ({"type": "RegularExpression", "service": "a|b"}, "/(?:a|b)/[^/]+", PathMatchType.REGEX),
        (None, "/", PathMatchType.PREFIX),
    ],
)
def test_a_method_match_is_a_match_of_the_path(method: dict[str, str] | None, path: str, path_type: PathMatchType):
    made = grpc_match(GrpcMatch.model_validate({"method": method}))
    assert (made.path, made.path_type, made.method) == (path, path_type, "POST")


def test_a_method_of_any_service_is_no_expression():
    made = grpc_match(GrpcMatch.model_validate({"method": {"method": "Get"}}))
    assert (made.path, made.path_type, made.any_service) == ("/Get", PathMatchType.PREFIX, True)


def test_headers_are_matched_by_name_in_lower_case_and_the_first_of_equal_ones_counts():
    headers = [{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}]
    made = grpc_match(GrpcMatch.model_validate({"headers": headers}))
    assert made.headers == (ValueMatch("x-a", "1", MatchType.EXACT),)


def test_the_expressions_of_a_match_are_those_that_the_data_plane_takes():
    match = GrpcMatch.model_validate(
        {
            "method": {"method": "Get", "type": "RegularExpression"},
            "headers": [{"name": "a", "value": "x+", "type": "RegularExpression"}],
        }
    )
    found = [("method.method", "Get"), ("method", "/[^/]+/(?:Get)"), ("headers[0].value", "x+")]
    assert list(grpc_patterns(match)) == found
    assert compile_pattern("/[^/]+/(?:Get)").matches(b"/a.B/Get")


def test_the_expressions_of_service_and_method_have_to_be_ones_by_themselves():
    method = {"type": "RegularExpression", "service": "a)|(?:b", "method": "c"}
    found = list(grpc_patterns(GrpcMatch.model_validate({"method": method})))
    assert found[:2] == [("method.service", "a)|(?:b"), ("method.method", "c")]
    with pytest.raises(PatternError):
        compile_pattern(found[0][1])


def test_the_expressions_of_an_http_match_are_named_by_their_fields():
    match = HttpMatch.model_validate(
        {
            "path": {"type": "RegularExpression", "value": "/a"},
            "headers": [{"name": "a", "value": "1"}, {"name": "b", "type": "RegularExpression", "value": "b+"}],
            "queryParams": [{"name": "c", "type": "RegularExpression", "value": "c+"}],
        }
    )
    assert list(http_patterns(match)) == [
        ("path.value", "/a"), ("headers[1].value", "b+"), ("queryParams[0].value", "c+"),
    ]  # fmt: skip
