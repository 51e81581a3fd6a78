from __future__ import annotations

import re

import pytest

from egressproxy.config.compile.matches import grpc_match, grpc_patterns
from egressproxy.config.resources.routes import GrpcMatch
from egressproxy.routing.patterns import compile_pattern
from egressproxy.spec.route import MatchType, PathMatchType, ValueMatch


@pytest.mark.parametrize(
    ("method", "path", "path_type"),
    [
        ({"service": "a.B", "method": "Get"}, "/a.B/Get", PathMatchType.EXACT),
        ({"service": ".a.B", "method": "Get"}, "/a.B/Get", PathMatchType.EXACT),
        ({"service": "a.B"}, "/a.B", PathMatchType.PREFIX),
        ({"method": "Get"}, "/[^/]+/Get", PathMatchType.REGEX),
        ({"type": "RegularExpression", "service": "a[.]B", "method": "G.t"}, "/(?:a[.]B)/(?:G.t)", PathMatchType.REGEX),
        ({"type": "RegularExpression", "service": "a|b"}, "/(?:a|b)/[^/]+", PathMatchType.REGEX),
        (None, "/", PathMatchType.PREFIX),
    ],
)
def test_a_method_match_is_a_match_of_the_path(method: dict[str, str] | None, path: str, path_type: PathMatchType):
    made = grpc_match(GrpcMatch.model_validate({"method": method}))
    assert (made.path, made.path_type, made.method) == (path, path_type, "POST")


def test_headers_are_matched_by_name_in_lower_case_and_the_first_of_equal_ones_counts():
    headers = [{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}]
    made = grpc_match(GrpcMatch.model_validate({"headers": headers}))
    assert made.headers == (ValueMatch("x-a", "1", MatchType.EXACT),)


def test_the_expressions_of_a_match_are_those_that_the_data_plane_takes():
    match = GrpcMatch.model_validate(
        {"method": {"method": "Get"}, "headers": [{"name": "a", "value": "x+", "type": "RegularExpression"}]}
    )
    assert grpc_patterns(match) == ["/[^/]+/Get", "x+"]
    assert re.fullmatch(compile_pattern("/[^/]+/Get"), b"/a.B/Get")
