"""Conditions in CEL: what may be written, and what an evaluation comes to. tests/gateway/test_access_policies.py has
their effect.
"""

from __future__ import annotations

import sys

import pytest

from egressproxy.ai.filters import access_expressions
from egressproxy.ai.filters.access_expressions import (
    INSTALL,
    MAX_HEAD,
    MAX_LENGTH,
    AskedRequest,
    CelExpression,
    ExpressionError,
)

HEADERS = {"mcp-protocol-version": "2025-11-25", "x-team": "a,b"}
REQUEST = AskedRequest("POST", "/mcp?a=1", "a.example", HEADERS, 200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The conditions of kube-agentic-networking's own tests.
        (
            "request.path.startsWith('/mc') && request.headers['mcp-protocol-version'].contains('2025') && "
            "request.mcp.tool_name.matches('^get-[a-z]+$')",
            True,
        ),
        ("request.mcp.tool_name == 'get-sum'", True),
        ("request.mcp.tool_name == 'fetch_data' || request.path.startsWith('/read_')", False),
        ("request.mcp.tool_name in ['a', 'get-sum'] && request.time < timestamp('2000-01-01T00:00:00Z')", False),
        ("request.time > timestamp('2000-01-01T00:00:00Z')", True),
        ("request.url_path == '/mcp' && request.path == '/mcp?a=1'", True),
        ("request.method == 'POST' && request.host == 'a.example'", True),
        ("request.headers.exists(name, name == 'x-team')", True),
        ("has(request.mcp.tool_name) && !('x-none' in request.headers)", True),
        ("'request.nope' != request.path // request.nope", True),
        ("r'\\d' == request.path || true", True),
    ],
)
def test_a_condition_holds_or_does_not(text: str, expected: bool):
    assert CelExpression(text).holds(REQUEST, "get-sum") is expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("request.mcp.tool_name.startsWith(", "is not CEL"),
        ("", "is not CEL"),
        ("request.unrecognized == 'bar'", "request.unrecognized is not known; possible are request.headers"),
        ("request.mcp.method == 'x'", "request.mcp.method is not known"),
        ("request['path'] == '/'", "request is not known"),
        ("source.unknown == 'foo'", "the variable source is not known"),
        ("request.headers.exists(h, other == h)", "the variable other is not known"),
        ("request.path.lowerAscii() == '/'", "the function lowerAscii is not known"),
        ("request.path", "it gives str, not bool"),
        ("request.path.matches(request.host)", "has to be a text"),
        ("request.path.matches('(')", "not a valid regex"),
        ("request.path.matches('(?:[\\\\w]{30}){30}')", "not a valid regex"),
        ("request.headers.all(a, request.headers.all(b, a != b))", "nested loops"),
        ("&&".join(["[1].all(x, x > 0)"] * 5), "over 4 of them"),
        (f"'{'a' * MAX_LENGTH}' == ''", f"at most {MAX_LENGTH}"),
    ],
)
def test_a_condition_that_cannot_be_used_says_why(text: str, why: str):
    with pytest.raises(ExpressionError) as raised:
        CelExpression(text)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("request.headers['x-none'] == 'a'", "KeyError"),
        ("int(request.headers['x-team']) > 1", "fails"),
        ("request.headers['x-team'] > 1", "fails"),
    ],
)
def test_what_cannot_be_told_is_an_error(text: str, why: str):
    with pytest.raises(ExpressionError, match=why):
        CelExpression(text).holds(REQUEST, "get-sum")


def test_a_tool_that_is_not_called_cannot_be_told():
    with pytest.raises(ExpressionError, match="tool_name"):
        CelExpression("request.mcp.tool_name != 'x'").holds(REQUEST, None)


def test_a_long_head_cannot_be_told_where_it_is_asked_for():
    long = AskedRequest("GET", "/", "a", {}, MAX_HEAD + 1)
    assert CelExpression("request.method == 'GET'").holds(long, None)
    with pytest.raises(ExpressionError, match="longer than"):
        CelExpression("request.path == '/'").holds(long, None)


def test_a_slow_condition_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access_expressions, "MAX_TIME_S", 0.0)
    with pytest.raises(ExpressionError, match="takes longer than"):
        CelExpression("request.method == 'GET'")


def test_without_the_package_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cel", None)
    with pytest.raises(ExpressionError) as raised:
        CelExpression("true")
    assert str(raised.value) == INSTALL
