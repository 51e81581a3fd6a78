"""What a shell is offered for the end of a line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from http.client import HTTPConnection
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner

from egressproxy.cli import suggestions
from egressproxy.cli.main import main


def complete(line: str) -> list[CompletionItem[str]]:
    """What is offered for the last word of the line, which may be empty; nothing may be said beside."""
    *before, begun = line.split(" ")
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        found = ShellComplete(main, {}, "egressproxy", "_EGRESSPROXY_COMPLETE").get_completions(before, begun)
    assert said.getvalue() == ""
    return found


def values(line: str) -> list[str]:
    return [each.value for each in complete(line)]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a gateway answers by path; nothing else."""
    found: dict[str, object] = {}
    monkeypatch.setattr(suggestions, "ask_briefly", lambda _ctx, path, _accept="": found.get(path, {}))
    return found


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ex", ["explain"]),
        ("k", ["keys", "kill-switch"]),
        ("kill-switch ", ["kill", "list", "restore"]),
        ("run --max-c", ["--max-connections"]),
        ("run --log-level ", ["debug", "info", "warning", "error"]),
        ("explain g", ["GET"]),
        ("get gateways -o ", ["wide", "yaml", "json", "name"]),
        ("completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_verbs_options_and_choices_are_offered(line: str, offered: list[str]):
    assert values(line) == offered


def test_verbs_say_what_they_do():
    [check] = complete("che")
    assert check.help == "Report what is wrong with a configuration."


@pytest.mark.parametrize("line", ["run --config ", "check ", "env --bundle /tm"])
def test_files_are_left_to_the_shell(line: str):
    assert [each.type for each in complete(line)] == ["file"]


def test_a_line_that_is_not_entered_yet_does_nothing(tmp_path: Path):
    log = tmp_path / "keys.log"
    assert values(f"run --tls-key-log {log} --guar") == ["--guarded"]
    assert not log.exists()


def test_names_of_the_gateway_are_offered(answers: dict[str, object]):
    rows = [{"object": {"metadata": {"namespace": "agents", "name": name}}} for name in ("egress", "other")]
    answers["/apis/gateway.networking.k8s.io/v1/gateways"] = {"rows": rows}
    assert values("explain GET http://a/ --gateway ") == ["agents/egress", "agents/other"]
    assert values("dns a.example --gateway agents/o") == ["agents/other"]
    killed = [
        {"identity": "agents/a", "why": "leaks"},
        {"identity": "a\nplain,rm", "why": ""},
        {"identity": "b c", "why": ""},
    ]
    answers["/kill-switch"] = {"killed": killed}
    [one] = complete("kill-switch restore ")
    assert (one.value, one.help) == ("agents/a", "leaks")
    assert values("kill-switch kill ") == []
    answers["/holds"] = {"holds": [{"id": "5e1f", "method": "POST", "authority": "pay.example:443"}]}
    assert values("holds approve ") == values("holds deny 5") == ["5e1f"]


def test_a_gateway_that_does_not_answer_is_offered_nothing_for(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, int, float]] = []

    def request(connection: HTTPConnection, *_: object, **__: object) -> None:
        asked.append((connection.host, connection.port, connection.timeout))
        raise TimeoutError

    monkeypatch.setattr(HTTPConnection, "request", request)
    assert values("get ") == values("get gateways ") == []
    monkeypatch.setenv("EGRESSPROXY_ADMIN", "127.0.0.1:7")
    assert values("explain GET http://a/ --gateway ") == []
    assert values("dns a --admin [::1]:8 --gateway ") == []
    assert {each[:2] for each in asked} == {("127.0.0.1", 15900), ("127.0.0.1", 7), ("::1", 8)}
    assert all(each[2] <= 2 for each in asked)
    monkeypatch.setenv("EGRESSPROXY_ADMIN", "off")
    assert values("explain GET http://a/ --gateway ") == values("get ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_program(shell: str):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_EGRESSPROXY_COMPLETE={shell}_complete" in result.output
    assert "egressproxy" in result.output
    assert CliRunner().invoke(main, ["completion", "csh"]).exit_code == 2
