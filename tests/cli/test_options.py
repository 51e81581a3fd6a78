"""A path without --config is told what to write."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path

import pytest
from click.testing import CliRunner

from egressproxy.cli import suggestions
from egressproxy.cli.asking import ADMIN_VARIABLE, AdminAddress
from egressproxy.cli.main import main


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["run", "{}"], "run --config {}"),
        (["run", "--workers", "2", "{}"], "run --workers 2 --config {}"),
        (["run", "--config", "/tmp", "{}"], "run --config /tmp --config {}"),
        (["explain", "GET", "http://a.example/", "{}"], "explain GET http://a.example/ --config {}"),
        (["explain", "{}", "GET", "http://a.example/"], "explain GET http://a.example/ --config {}"),
    ],
)
def test_a_configuration_without_config_is_wrong_usage_that_says_what_was_meant(
    given: list[str], meant: str, tmp_path: Path
):
    path = tmp_path / "my-config"
    path.mkdir()
    result = CliRunner().invoke(main, [each.format(path) for each in given])
    assert result.exit_code == 2
    assert f"{path} is given without --config: write egressproxy {meant.format(path)}" in result.output


@pytest.mark.parametrize("given", [["run", "my-config"], ["explain", "GET", "http://a.example/", "my-config"]])
def test_what_is_no_path_is_named_too(given: list[str]):
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2
    assert "my-config: unexpected argument, and no such file" in result.output
    assert "--config PATH" in result.output
    assert ("a command behind --" in result.output) == (given[0] == "run")


def test_diff_takes_its_configurations_either_way(tmp_path: Path):
    text = (Path(__file__).resolve().parents[2] / "config" / "minimal.yaml").read_text()
    for name in ("old.yaml", "new.yaml"):
        (tmp_path / name).write_text(text)
    old, new = str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml")
    for given in ([old, new], ["-c", old, "--config", new], [old, "--config", new]):
        assert CliRunner().invoke(main, ["diff", *given]).exit_code == 0


def test_a_misspelt_command_is_told_the_nearest_one():
    result = CliRunner().invoke(main, ["chek", "policies/"])
    assert result.exit_code == 2
    assert "No such command 'chek'; did you mean check?" in result.output
    assert "the commands are run, init, check" in CliRunner().invoke(main, ["frobnicate"]).output


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("https://a.example/x", "explain GET https://a.example/x"),
        ("a.example", "explain CONNECT a.example:443"),
        ("a.example:8443", "explain CONNECT a.example:8443"),
        ("/v1/models", "explain GET /v1/models"),
    ],
)
def test_a_url_without_a_method_is_told_what_to_write(given: str, meant: str):
    result = CliRunner().invoke(main, ["explain", given])
    assert result.exit_code == 2
    assert f"write egressproxy {meant}" in result.output


def test_a_method_without_a_url_is_told_that_the_url_is_missing():
    assert "Missing argument 'URL'" in CliRunner().invoke(main, ["explain", "get"]).output


@pytest.mark.parametrize(
    "given",
    [
        "holds list", "holds approve 1", "holds deny 1", "kill-switch list", "kill-switch kill a", "cache show",
        "cache purge --all", "reload", "get gateways", "explain GET http://a.example/", "dns a.example",
    ],
)  # fmt: skip
def test_a_verb_that_asks_a_process_asks_nobody_where_the_admin_address_is_off(
    given: str, monkeypatch: pytest.MonkeyPatch
):
    asked: list[object] = []
    monkeypatch.setattr("http.client.HTTPConnection.request", lambda *arguments, **_: asked.append(arguments))
    result = CliRunner().invoke(main, [*given.split(), "--admin", "off"])
    assert result.exit_code == 2
    assert "--admin off leaves no address to ask" in result.output
    assert not asked


VERBS = ["get gateways", "kill-switch list", "explain GET http://a.example/", "dns a.example", "diff {}"]


@pytest.mark.parametrize("given", VERBS)
def test_the_environment_says_whom_to_ask_unless_the_option_does(
    given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[tuple[str, int]] = []

    def request(connection: HTTPConnection, *_: object, **__: object) -> None:
        asked.append((connection.host, connection.port))
        raise ConnectionRefusedError

    monkeypatch.setattr(HTTPConnection, "request", request)
    words = given.format(tmp_path).split()
    for value, more in (("[::1]:7", []), ("", []), ("off", ["--admin", "127.0.0.1:8"])):
        monkeypatch.setenv("EGRESSPROXY_ADMIN", value)
        assert CliRunner().invoke(main, [*words, *more]).exit_code == 2
    assert asked == [("::1", 7), ("127.0.0.1", 15900), ("127.0.0.1", 8)]


@pytest.mark.parametrize(
    ("value", "told"), [("off", "EGRESSPROXY_ADMIN=off leaves no address to ask"), ("nowhere", "is not HOST:PORT")]
)
@pytest.mark.parametrize("given", VERBS)
def test_an_environment_that_names_nobody_is_wrong_usage(
    given: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("EGRESSPROXY_ADMIN", value)
    result = CliRunner().invoke(main, given.format(tmp_path).split())
    assert result.exit_code == 2
    assert told in result.output
    assert "EGRESSPROXY_ADMIN" in result.output


def test_a_configuration_in_files_asks_nobody_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGRESSPROXY_ADMIN", "off")
    minimal = str(Path(__file__).resolve().parents[2] / "config" / "minimal.yaml")
    for given in (["explain", "CONNECT", "api.github.com:443", "--no-dns", "-c", minimal], ["diff", minimal, minimal]):
        assert CliRunner().invoke(main, given).exit_code == 0


@pytest.mark.parametrize(
    "verb",
    [
        "get gw", "explain GET http://a.example/", "explain --request 1a-2", "dns a.example", "learn", "cache show",
        "cache purge --all", "kill-switch list", "kill-switch kill bob", "holds list", "holds approve 5e1f", "ca list",
        "denials", "top --once", "env", "diff {}", "reload",
    ],
)  # fmt: skip
@pytest.mark.parametrize("names", [True, False], ids=["--admin", "$EGRESSPROXY_ADMIN"])
def test_every_verb_that_asks_a_gateway_sends_the_token(
    verb: str, names: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def connect(admin: AdminAddress, *_: object) -> HTTPConnection:
        asked.append(admin)
        raise OSError("nobody is there")

    monkeypatch.setattr(AdminAddress, "connect", connect)
    monkeypatch.setenv(ADMIN_VARIABLE, "10.0.0.9:15900")
    token, manifest = tmp_path / "token", tmp_path / "empty.yaml"
    token.write_text("0123456789abcdef\n")
    manifest.write_text("")
    # In any order: the option of the token is read first.
    admin = ["--admin", "10.0.0.5:15900"] if names else []
    CliRunner().invoke(main, [*verb.format(manifest).split(), *admin, "--api-token-file", str(token)])
    assert set(asked) == {AdminAddress("10.0.0.5" if names else "10.0.0.9", 15900, "0123456789abcdef")}
    assert "0123" not in f"{asked}"


def test_a_gateway_that_refuses_has_no_listener_that_is_guessed(monkeypatch: pytest.MonkeyPatch):
    refused = {"kind": "Status", "code": 401, "message": "this needs the token: give --api-token-file FILE"}
    monkeypatch.setattr(suggestions, "ask_briefly", lambda *_: refused)
    shown = CliRunner().invoke(main, ["env"])
    assert (shown.exit_code, "give --api-token-file FILE" in shown.output) == (2, True)
