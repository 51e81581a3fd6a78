"""`egressproxy explain --request`: then and now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli import explain, request_explanation
from egressproxy.cli.main import main
from egressproxy.cli.request_explanation import difference
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from tests.support import manifests as m

LINE = {
    "time": "2026-11-30T10:00:00.000Z", "gateway": "agents/gw", "listener": "forward", "namespace": "-",
    "service_account": "-", "client": "10.0.0.9:5000", "method": "CONNECT", "authority": "b.example:443", "path": "-",
    "status": 403, "reason": "destination_not_allowed", "rule": "EgressPolicy agents/default", "request_id": "1a-2",
    "upstream": "-", "duration_ms": 0.2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(("a.example",))])
    return tmp_path


def run(*arguments: str, log: str = "") -> Any:
    return CliRunner().invoke(main, ["explain", "--no-dns", *arguments], input=log)


def test_a_line_of_a_log_is_explained_and_is_the_same(folder: Path):
    lines = "\n".join(
        [
            "not json",
            json.dumps({**LINE, "request_id": "other"}),
            '{"request_id": "1a-2"}',
            json.dumps({**LINE, "method": ["GET"]}),
            json.dumps(LINE),
        ]
    )
    found = run("--log", "-", "--request", "1a-2", "--config", str(folder), log=lines)
    assert found.exit_code == 1
    assert found.output.splitlines()[:4] == [
        "request 1a-2 of 2026-11-30T10:00:00.000Z: CONNECT b.example:443 by 10.0.0.9:5000 on agents/gw/forward",
        "then: destination_not_allowed by EgressPolicy agents/default",
        "  status 403, duration_ms 0.2",
        "now:",
    ]
    assert found.output.endswith("the same: it was denied then, and would be now (destination_not_allowed)\n")


def test_the_last_line_is_meant_where_none_is_named(folder: Path):
    lines = json.dumps(LINE) + "\n" + json.dumps({**LINE, "authority": "a.example:443"}) + "\n"
    found = run("--log", "-", "--config", str(folder), log=lines)
    assert found.exit_code == 0
    assert found.output.endswith("differs: it was denied then (destination_not_allowed), and would be allowed now\n")
    told = json.loads(run("--log", "-", "--config", str(folder), "-o", "json", log=lines).output)
    assert (told["differs"], told["now"]["verdict"], told["then"]["request_id"]) == (True, "allowed", "1a-2")


def test_the_memory_of_a_process_is_asked(monkeypatch: pytest.MonkeyPatch, folder: Path):
    decision = RecentDecision(
        "GET", "https", "b.example:8443", "/x", "agents/gw", "forward", "n", "w", "destination_denied", 5.0, "name",
        ("p",), ("dev",), (("a", "b"),), "1a-2",
    )  # fmt: skip
    denial = {"client": "10.0.0.9:1", "rule": "EgressPolicy n/p", "why": "it is", "remedy": "do"}
    answers: dict[str, Any] = {"/decisions": {"decisions": [decision._asdict()], "denial": denial}}
    asked: list[Any] = []

    def ask(_admin: object, path: str, pairs: Any) -> Any:
        asked.append((path, pairs))
        return answers[path]

    monkeypatch.setattr(request_explanation, "ask", ask)
    found = run("--request", "1a-2", "--config", str(folder))
    assert asked == [("/decisions", [("request", "1a-2")])]
    assert "of 1970-01-01T00:00:05Z: GET b.example:8443/x by n/w on" in found.output
    assert "  why: it is\n  remedy: do\n" in found.output
    record = {**decision._asdict(), "request_id": "1a-2"}
    assert request_explanation.pairs_of(record) == [
        ("method", "GET"), ("url", "https://b.example:8443/x"), ("gateway", "agents/gw"), ("listener", "forward"),
        ("as", "n/w"), ("group", "dev"), ("claim", "a=b"),
    ]  # fmt: skip
    answers["/decisions"] = {"decisions": [], "denial": None}
    found = run("--request", "gone", "--config", str(folder))
    assert (found.exit_code, "--log FILE" in found.output) == (2, True)


@pytest.mark.parametrize(
    ("then", "now", "differs", "says"),
    [
        ("-", None, False, "it was let through, and would be allowed now"),
        ("-", "destination_denied", True, "it was let through, and would be denied now (destination_denied)"),
        ("upstream_timeout", None, False, "it ended with upstream_timeout, and would be allowed now"),
        ("request_rate", None, False, "request_rate is of a limit or filter"),
        ("no_policy", "destination_denied", True, "for another reason now (destination_denied)"),
    ],
    ids=["same", "denied", "failed", "limit", "reason"],
)
def test_what_differs_is_said(then: str, now: str | None, differs: bool, says: str):
    answer = {"verdict": "allowed", "error": None} if now is None else {"verdict": "denied", "error": {"reason": now}}
    found = difference({"reason": then}, answer)
    assert (found[0], says in found[1]) == (differs, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--request", "x", "GET", "http://a/"), "name the whole request"),
        (("--request", "x", "--as", "a/b"), "name the whole request"),
        (("--log", "-", "--request", "nope"), "nope is not in"),
        (("--log", "-"), "a line of an access log is not in"),
        ((), "Missing argument 'METHOD'"),
        (("GET",), "Missing argument 'URL'"),
    ],
)
def test_what_does_not_go_is_said(arguments: tuple[str, ...], says: str):
    found = run(*arguments)
    assert (found.exit_code, says in found.output) == (2, True)


def test_a_request_without_a_destination_is_not_explained(folder: Path):
    found = run(
        "--log", "-", "--config", str(folder), log=json.dumps({**LINE, "authority": "-", "reason": "bad\x1b_field"})
    )
    assert (found.exit_code, "named no destination: bad?_field" in found.output) == (2, True)


def test_the_verb_still_asks_for_method_and_url():
    assert [param.name for param in explain.command.params if param.param_type_name == "argument"] == ["method", "url"]
