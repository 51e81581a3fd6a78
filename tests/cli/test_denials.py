"""What a person reads of denials."""

from __future__ import annotations

from time import gmtime
from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli import denials
from egressproxy.cli.main import main

DENIAL = {
    "destination": "b.example:443", "method": "CONNECT", "namespace": "agents", "service_account": "w", "identity": "n",
    "client": "10.0.0.9", "reason": "destination_not_allowed", "count": 3, "last": 0.0, "request_id": "1a-2",
    "why": "b.example is not allowed", "remedy": "add it", "allowed_now": False, "change": None,
}  # fmt: skip
CHANGE = {"object": "EgressPolicy agents/p", "file": "p.yaml:3", "diff": "--- a\n+++ b\n@@ -1 +1 @@\n+x\x1b[2J\n"}


def printed(monkeypatch: pytest.MonkeyPatch, *groups: dict[str, Any], arguments: tuple[str, ...] = ()) -> str:
    asked: list[Any] = []

    def ask(_admin: object, path: str, pairs: object) -> dict[str, Any]:
        asked.append((path, pairs))
        return {"denials": list(groups)}

    monkeypatch.setattr(denials, "ask", ask)
    monkeypatch.setattr(denials, "localtime", gmtime)
    output = CliRunner().invoke(main, ["denials", *arguments]).output
    assert [path for path, _ in asked] == ["/denials"]
    return output


def test_each_has_why_what_to_do_and_the_change(monkeypatch: pytest.MonkeyPatch):
    assert printed(monkeypatch, {**DENIAL, "change": CHANGE}) == (
        "3 x CONNECT b.example:443 by agents/w  destination_not_allowed  last 00:00:00, request 1a-2\n"
        "  why     b.example is not allowed\n"
        "  do      add it\n"
        "  change  EgressPolicy agents/p in p.yaml:3\n"
        "    --- a\n    +++ b\n    @@ -1 +1 @@\n    +x?[2J\n"
    )


def test_what_is_allowed_now_needs_nothing(monkeypatch: pytest.MonkeyPatch):
    shown = printed(monkeypatch, {**DENIAL, "allowed_now": True, "service_account": "-"})
    assert "by n " in shown
    assert shown.endswith("  now     the configuration in service allows it\n")


def test_nothing_is_said_to_be_nothing(monkeypatch: pytest.MonkeyPatch):
    shown = printed(monkeypatch, arguments=("--minutes", "5", "--namespace", "x"))
    assert shown == "nothing was denied in the last 5 minutes\n"
    assert printed(monkeypatch, arguments=("-o", "json")) == '{\n  "denials": []\n}\n'
