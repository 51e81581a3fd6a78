"""`init`: three answers become a configuration that `check` accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from egressproxy.cli.main import main

ALL = ("ai", "packages", "github", "*.example.com")


def initialised(*arguments: str | Path, answers: str | None = None) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)], input=answers)


@pytest.mark.parametrize("clients", ["machine", "pod", "network"])
@pytest.mark.parametrize("allow", [("report",), ALL, ("report", *ALL)], ids=["report", "all", "both"])
@pytest.mark.parametrize("intercept", ["--intercept", "--no-intercept"])
def test_every_answer_passes_check(tmp_path: Path, clients: str, allow: tuple[str, ...], intercept: str):
    folder = tmp_path / "made"
    words = [part for each in allow for part in ("--allow", each)]
    found = initialised(folder, "--clients", clients, *words, intercept)
    if intercept == "--intercept" and allow == ("report",):
        assert (found.exit_code, folder.exists()) == (2, False)
        return
    assert found.exit_code == 0, found.output
    text = (folder / "egress.yaml").read_text()
    assert text.count("\n") < 60
    assert ("mode: Report" in text) == ("report" in allow)
    secret = ["--secret", f"agents/interception-ca={folder / 'ca'}"] if intercept == "--intercept" else []
    checked = CliRunner().invoke(main, ["check", "--strict", str(folder), *secret])
    assert checked.exit_code == 0, checked.output
    commands = found.output.partition("Next:\n")[2].splitlines()
    assert [len(commands), commands[0].split()[:2]] == [3, ["egressproxy", "check"]]
    assert ("egressproxy learn log.jsonl" in commands[2]) == (clients == "machine" and "report" in allow)


def test_questions_are_asked_where_no_option_answers(tmp_path: Path):
    found = initialised(tmp_path / "made", answers="pod\nai api.example.com\nn\n")
    assert found.exit_code == 0, found.output
    text = (tmp_path / "made/egress.yaml").read_text()
    assert "    # AI providers\n    - {hostnames: [api.anthropic.com], ports: [443]}\n" in text
    assert "    - {hostnames: [api.example.com], ports: [443]}\n" in text
    assert "connectionsPerClient: 0" in text


def test_without_a_terminal_the_options_are_named(tmp_path: Path):
    found = initialised(tmp_path / "made", "--clients", "machine", answers="")
    assert (found.exit_code, "--allow, and --intercept" in found.stderr) == (2, True)


def test_nothing_is_overwritten(tmp_path: Path):
    (tmp_path / "egress.yaml").write_text("mine")
    found = initialised(tmp_path, "--clients", "machine", "--allow", "report", "--no-intercept")
    assert (found.exit_code, (tmp_path / "egress.yaml").read_text()) == (1, "mine")
    assert "is there already" in found.stderr


@pytest.mark.parametrize("word", ["https://x.example/", "*", "pakages"])
def test_a_word_that_is_no_host_is_2_and_says_what_to_write(tmp_path: Path, word: str):
    found = initialised(tmp_path / "made", "--clients", "machine", "--allow", word, "--no-intercept")
    assert (found.exit_code, (tmp_path / "made").exists()) == (2, False)
    assert "report, ai, packages, github" in found.stderr
