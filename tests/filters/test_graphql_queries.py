"""The filter of config/recipes.yaml: what reads passes, and what may write, or be read in two ways, does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egressproxy.filters.testing import FilterHarness, FilterResult, exchange

FOLDER = Path(__file__).parents[2] / "config"


@pytest.fixture(scope="module")
def harness() -> FilterHarness:
    return FilterHarness({"path": "filters/graphql_queries.py"}, phase="request-headers", folder=FOLDER)


def asked(
    harness: FilterHarness, body: bytes, url: str = "https://api.github.com/graphql", kind: str = "application/json"
) -> FilterResult:
    return harness.run(exchange("POST", url, [("Content-Type", each) for each in kind.split("|")]), request_body=body)


def of(document: str, **more: object) -> bytes:
    return json.dumps({"query": document, **more}).encode()


@pytest.mark.parametrize(
    "document",
    [
        "{ viewer { login } }",
        "query { viewer { login } }",
        "query Q($id: ID!, $in: In = {a: 1}) @live { node(in: {b: {c: 2}}) { ...F } } fragment F on User { n }",
        "# mutation { a }\n{ a }",
        'query { search(q: "} mutation { a") { id } }',
        'query { search(q: """ } mutation { \\""" { """) { id } }',
        "query A { a }, query B { mutation }",
        "\ufeff{ a }",
    ],
)
def test_queries_and_fragments_pass(harness: FilterHarness, document: str):
    assert asked(harness, of(document)).error is None


@pytest.mark.parametrize(
    "document",
    [
        "mutation { a }",
        "subscription { a }",
        "query Q { a } mutation M { b }",
        "fragment F on User { name } mutation M { ...F }",
        "{ a } # {\nmutation { b }",
        '{ a(q: "\\"}") } mutation { b }',
        '{ a(q: """ \\""" """) } mutation { b }',
        "query ($a: In = {b: 1}) { a } mutation { b }",
        "extend type User { a: Int }",
        "{ a } }",
        "{ a",
        '{ a(q: "',
        ") mutation { a }",
    ],
)
def test_whatever_else_begins_a_definition_is_refused(harness: FilterHarness, document: str):
    result = asked(harness, of(document))
    assert result.status == 403
    assert "only queries are allowed" in result.error.message


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (of("{ a }").decode().encode("utf-16"), 400),
        (b'{"query": "mutation { a }", "query": "{ a }"}', 400),
        (b'{"query": "{ a }", "Query": "mutation { a }"}', 400),
        (b"[" * 100_000, 400),
        (b'{"extensions": {"persistedQuery": {"sha256Hash": "0"}}}', 403),
        (b'{"query": ["{ a }"]}', 403),
        (b'[{"query": "{ a }"}, {"query": "mutation { a }"}]', 403),
        (b'"mutation { a }"', 403),
        (of("{ a }", documentId="0"), 403),
        (of("{ a }", extensions={"persistedQuery": {"sha256Hash": "0"}}), 403),
        (b"[]", 403),
        (of('{ a(q: "' + '\\"' * 20_000), 403),
        (of("{ a }" + " " * 200_000), 413),
        (b"", 403),
    ],
)
def test_what_two_parsers_may_read_in_two_ways_is_refused(harness: FilterHarness, body: bytes, status: int):
    assert asked(harness, body).status == status


def test_a_query_in_the_url_is_refused(harness: FilterHarness):
    assert asked(harness, of("{ a }"), "https://api.github.com/graphql?query=mutation{a}").status == 403


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/graphql", "text/plain",
        "application/json; charset=utf-7", "application/json|application/x-www-form-urlencoded", "",
    ],
)  # fmt: skip
def test_json_that_says_something_else_as_another_type_is_refused(harness: FilterHarness, kind: str):
    body = of("{ a } #&query=mutation{b}&")
    assert asked(harness, body, kind=kind).status == 415
    both = {"Content-Type": "application/json", "Content_Type": kind}
    assert harness.run(exchange("POST", "https://a.example/graphql", both), request_body=body).status == 415
    for plain in ("application/json", 'Application/JSON;charset="UTF-8"'):
        assert asked(harness, body, kind=plain).error is None
