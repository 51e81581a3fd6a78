"""What a person reads of requests that wait."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli import holds
from egressproxy.cli.main import main

HOLD = {
    "id": "5e1f0b6c2d3a4f58", "identity": "-", "client": "10.0.0.9:5000", "method": "POST",
    "authority": "a.example:443", "path": "/pay", "tool": "", "bodyBytes": 9, "bodySha256": "9f86d081884c7d65" * 4,
    "leftSeconds": 41.6,
}  # fmt: skip
FIRST = "5e1f0b6c2d3a4f58  10.0.0.9:5000  POST a.example:443/pay{}  (9 bytes, sha256 9f86d081884c7d65)  42 s left\n"
CALLS = [{"tool": "pay", "arguments": '{"to": "a"}'}, {"tool": "look", "arguments": "null"}]


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, FIRST.format("") + "    the body is not shown\n"),
        ({"bodyBytes": 0}, FIRST.format("").replace("9 bytes", "0 bytes")),
        (
            {"query": "a=1&key=[SECRET]", "body": "a=1", "calls": [], "isCut": False},
            FIRST.format("?a=1&key=[SECRET]") + "    body a=1\n",
        ),
        (
            {"tool": "pay", "body": '{"method": …}', "calls": CALLS[:1], "isCut": False},
            FIRST.format(" tool pay") + '    calls pay {"to": "a"}\n',
        ),
        (
            {"tool": "pay", "body": "[…", "calls": CALLS, "isCut": True},
            FIRST.format(" tool pay") + '    calls pay {"to": "a"}\n    calls look null\n    body […\n'
            "    … and more, which is not shown: the digests are of all of it\n",
        ),
        (
            {"body": "a\x1b[2Jb\u202ec", "path": "/\x07", "calls": [], "isCut": False},
            FIRST.format("").replace("/pay", "/?") + "    body a?[2Jb?c\n",
        ),
    ],
    ids=["digests", "no body", "query", "call", "calls", "control characters"],
)  # fmt: skip
def test_what_waits_is_listed(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], shown: str):
    monkeypatch.setattr(holds, "ask", lambda *_arguments, **_more: {"holds": [HOLD | more], "continue": ""})
    assert CliRunner().invoke(main, ["holds", "list"]).output == shown


@pytest.mark.parametrize(
    ("arguments", "asked", "last"),
    [
        ([], ["100"], "… 1300 wait; --limit 1300 shows all of them"),
        (["--limit", "1200"], ["500", "500", "200"], "… 1300 wait; --limit 1300 shows all of them"),
        (["--limit", "2000"], ["500", "500", "500"], "    the body is not shown"),
    ],
)
def test_of_many_that_wait_as_many_are_shown_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], asked: list[str], last: str
):
    limits, begins = [], []

    def ask(_admin: object, _path: str, pairs: list[tuple[str, str]], **_more: object) -> dict[str, Any]:
        limit, begin = int(dict(pairs)["limit"]), int(dict(pairs).get("continue", "0"))
        limits.append(dict(pairs)["limit"])
        begins.append(begin)
        end = min(begin + limit, 1300)
        return {"holds": [HOLD] * (end - begin), "waiting": 1300, "continue": str(end) if end < 1300 else ""}

    monkeypatch.setattr(holds, "ask", ask)
    lines = CliRunner().invoke(main, ["holds", "list", *arguments]).output.splitlines()
    assert limits == asked
    assert begins == [500 * number for number in range(len(asked))]
    assert lines[-1] == last
    assert sum(line.startswith(HOLD["id"]) for line in lines) == min(sum(map(int, asked)), 1300)
