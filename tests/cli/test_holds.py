"""What a person reads of requests that wait."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli import holds, main

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
    monkeypatch.setattr(holds, "ask", lambda *_arguments, **_more: {"holds": [HOLD | more]})
    assert CliRunner().invoke(main, ["holds", "list"]).output == shown
