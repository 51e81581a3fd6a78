"""Texts of differences without what may be a credential. What differs: tests/cli/test_diff.py."""

from __future__ import annotations

import pytest

from egressproxy.operators.explain.outline_diff import masked


@pytest.mark.parametrize(
    "line",
    [
        '~ x: {"set":[{"name":"Authorization","value":"Bearer hush"}]} -> {"set":[{"name":"A","value":"hush\\\\"}]}',
        r'+ filters: x: {"value":"a\"hush","b":"c"}',
        '+ filters: x: {"apiKey":"hush"}; y: {"X-AUTH":"hush"}; z: {"db_password":"hush hush"}',
        "+ matches: headers: cookie, value: a=b; hush=c, hush",
        '+ filters: x: {"values":["hush","a]hush"],"apiKeys":["hush\\"]hush"]}',
        "+ endpoint: https://user:hush@a.example/",
    ],
    ids=["headers", "escaped", "names", "match", "lists", "url"],
)
def test_what_may_be_a_credential_is_a_digest(line: str):
    shown = masked(line)
    assert "hush" not in shown
    assert "digest" in shown
    assert shown == masked(line)
    assert shown != masked(line.replace("hush", "other"))


def test_what_is_none_is_shown():
    line = '+ filters: x of HTTPRoute a/r, Secret key/token: {"secretRef":{"name":"key"},"header":"X-A"}'
    assert masked(line) == line
    assert masked("+ port: 8080") == "+ port: 8080"
