"""`run` hands over what was asked for, and shows what went wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from egressproxy import app
from egressproxy.cli import wrapped_command
from egressproxy.cli.main import main
from egressproxy.config.otlp_environment import OPTION, SIGNALS_OPTION
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.model.secret import SecretBytes
from egressproxy.processes.loader.process import LoaderProcess
from egressproxy.run_options import RunOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    seen: list[RunOptions] = []

    def run(options: RunOptions, _first: LoaderProcess | None, _started: app.Started | None) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(app, "run", run)
    return seen


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


def test_the_defaults_are_those_of_the_options(asked: list[RunOptions]):
    assert invoke().exit_code == 0
    assert asked == [RunOptions()]


def test_it_says_nothing_itself(asked: list[RunOptions], tmp_path: Path):
    assert invoke().output == ""
    assert invoke("--config", str(tmp_path)).output == ""


def test_everything_that_is_asked_for_is_handed_over(asked: list[RunOptions], tmp_path: Path):
    (tmp_path / "a.yaml").touch()
    result = invoke(
        "-c",
        str(tmp_path),
        "--config",
        str(tmp_path / "a.yaml"),
        "--bind",
        "0.0.0.0",
        "--bind",
        "[::1]",
        "--bind",
        "0.0.0.0",
        "--admin",
        "[::1]:1",
        "--metrics",
        "0.0.0.0:9090",
        "--access-log",
        "/x/y",
        "--log-level",
        "debug",
        "--log-format",
        "text",
        "--drain-timeout",
        "2.5",
        "--workers",
        "4",
    )
    assert result.exit_code == 0
    assert asked == [
        RunOptions(
            config=(tmp_path, tmp_path / "a.yaml"),
            bind=("0.0.0.0", "::1"),
            admin=("::1", 1),
            metrics=("0.0.0.0", 9090),
            access_log="/x/y",
            log_level="debug",
            drain_timeout_s=2.5,
            workers=4,
        )
    ]


def test_off_and_dash_are_understood(asked: list[RunOptions]):
    invoke("--admin", "off", "--access-log", "-")
    invoke("--access-log", "off")
    assert (asked[0].admin, asked[0].access_log) == (None, None)
    assert asked[1].access_log == "off"


def test_the_environment_has_another_default_of_the_admin_address(
    asked: list[RunOptions], monkeypatch: pytest.MonkeyPatch
):
    for value, given in (("127.0.0.1:7", ()), ("off", ()), ("", ()), ("off", ("--admin", "127.0.0.1:8"))):
        monkeypatch.setenv("EGRESSPROXY_ADMIN", value)
        assert invoke(*given).exit_code == 0
    assert [each.admin for each in asked] == [("127.0.0.1", 7), None, RunOptions().admin, ("127.0.0.1", 8)]


def test_a_gateway_for_one_command_does_not_take_the_admin_address_of_another_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[RunOptions] = []
    monkeypatch.setattr(wrapped_command, "run_wrapped", lambda options, *_: asked.append(options) or 0)
    monkeypatch.setenv("EGRESSPROXY_ADMIN", "127.0.0.1:7")
    assert invoke("--", "true").exit_code == invoke("--admin", "127.0.0.1:8", "--", "true").exit_code == 0
    assert [each.admin for each in asked] == [None, ("127.0.0.1", 8)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bind", "localhost"],
        ["--admin", "15900"],
        ["--metrics", "x:1"],
        ["--log-level", "loud"],
        ["--nope"],
        ["--drain-timeout", "-1"],
        ["--drain-timeout", "nan"],
        ["--access-log", ""],
        ["extra"],
        ["--workers", "0"],
        ["--workers", "100000"],
        ["--config", "/does/not/exist"],
    ],
)
def test_wrong_usage_is_2_and_starts_nothing(asked: list[RunOptions], arguments: list[str]):
    assert invoke(*arguments).exit_code == 2
    assert asked == []


def test_an_address_to_bind_without_a_configuration_is_not_left_out_in_silence(asked: list[RunOptions]):
    result = invoke("--bind", "0.0.0.0")
    assert result.exit_code == 2
    assert "give --config, or leave --bind out" in result.stderr
    assert asked == []


def test_the_open_proxy_has_a_port_and_gateways_have_theirs(asked: list[RunOptions], tmp_path: Path):
    assert invoke("--port", "8888").exit_code == 0
    assert [each.open_port for each in asked] == [8888]
    result = invoke("--port", "8888", "--config", str(tmp_path))
    assert result.exit_code == 2
    assert "the ports are in spec.listeners" in result.stderr


def test_the_status_of_the_run_is_the_exit_status(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "run", lambda *_: 1)
    assert invoke().exit_code == 1


def test_a_bad_configuration_shows_every_problem_and_is_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    problems = [
        Problem(
            "a.yaml", 3, 5, "Gateway default/gw", "spec.listeners[0].port", "99999 is more than 65535", "write less"
        ),
        Problem("b.yaml", 0, 0, "", "", "cannot be read"),
    ]

    def run(_options: RunOptions, _first: LoaderProcess | None, _started: app.Started | None) -> int:
        raise ConfigError(problems)

    monkeypatch.setattr(app, "run", run)
    result = invoke("--config", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr == (
        "a.yaml:3:5: Gateway default/gw: spec.listeners[0].port: 99999 is more than 65535 (write less)\n"
        "b.yaml: cannot be read\n"
    )
    assert result.stdout == ""


def test_a_session_key_is_read_and_does_not_show(asked: list[RunOptions], tmp_path: Path):
    (tmp_path / "key").write_text("k" * 64 + "\n")
    assert invoke("--session-key", str(tmp_path / "key")).exit_code == 0
    (options,) = asked
    assert options.session_key == SecretBytes(b"k" * 64)
    assert "kkk" not in repr(options)


@pytest.mark.parametrize("written", ["", "short", "k" * 5000])
def test_a_session_key_that_is_none_is_wrong_usage(asked: list[RunOptions], tmp_path: Path, written: str):
    (tmp_path / "key").write_text(written)
    result = invoke("--session-key", str(tmp_path / "key"))
    assert result.exit_code == 2
    assert "openssl rand -hex 32" in result.output
    assert not asked


HERE = os.path.dirname(__file__)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api-writes"], "give --state-dir"),
        (["--config", HERE, "--state-dir", HERE], "is in --state-dir"),
        (["--config", __file__, "--state-dir", f"{HERE}/../{os.path.basename(HERE)}"], "is in --state-dir"),
        (["--api-writes", "--state-dir", "state", "--admin", "off"], "leave --admin off out"),
        (["--api-writes", "--state-dir", "state", "--admin", "0.0.0.0:0"], "give --api-token-file"),
        (["--api-token-file", os.devnull], "shorter than 16 characters"),
        (["--ui-oidc-issuer", "https://login.example"], "belong together"),
        (
            ["--ui-oidc-issuer", "http://login.example", "--ui-oidc-client-id", "x", "--ui-oidc-allow", "a@b"],
            "write a URL with https://",
        ),
        *(
            (
                ["--ui-oidc-issuer", "https://login.example", "--ui-oidc-client-id", "x", "--ui-oidc-allow", allowed],
                "write an email address, or group:NAME",
            )
            for allowed in ("", "alice", "group:")
        ),
        (["--api-writes", "--state-dir", "state", "--api-token-file", os.devnull], "shorter than 16 characters"),
    ],
)
def test_writes_that_nobody_could_or_everybody_might_do_are_wrong_usage(arguments: list[str], words: str):
    result = CliRunner().invoke(main, ["run", *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--otlp-endpoint", ""], {}, "Invalid value for '--otlp-endpoint': it is empty: write a URL"),
        (["--otlp-endpoint", "otel:4317"], {}, "--otlp-endpoint is 'otel:4317': write a URL"),
        (["--otlp-signals", "log"], {}, "--otlp-signals has 'log': write a list of traces, metrics, logs"),
        ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "otel"}, "Error: OTEL_EXPORTER_OTLP_ENDPOINT is 'otel': write a URL"),
        (
            ["--otlp-endpoint", "http://otel"],
            {"OTEL_EXPORTER_OTLP_HEADERS": "secret"},
            "Error: OTEL_EXPORTER_OTLP_HEADERS is no list of fields",
        ),
    ],
)
def test_a_fault_names_the_option_or_the_variable(
    asked: list[RunOptions],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    said: str,
):
    for variable in (OPTION, SIGNALS_OPTION):
        monkeypatch.setenv(variable, "")  # what `run` leaves there is taken away again
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert "secret" not in result.output
    assert asked == []
