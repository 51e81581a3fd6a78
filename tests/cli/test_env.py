"""`egressproxy env`: every shell takes what it prints, and a bundle has what clients trust."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from time import time

import pytest
from click.testing import CliRunner, Result

from egressproxy.cli import suggestions
from egressproxy.cli.client_settings import ClientSettings, Login, Proxy
from egressproxy.cli.main import main
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.ir.gateway import ConfigIR, ListenerIR, ListenerProtocol
from egressproxy.operators.explain.outline import outline
from tests.support.pki import Pki

#: A value that each shell has to quote.
HOSTILE = "a'b \\c$(touch owned)`touch owned`;\"d"


@pytest.fixture(autouse=True)
def _no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "ask_briefly", lambda *_: {})


def env(*arguments: str | Path, **variables: str) -> Result:
    return CliRunner().invoke(main, ["env", *(str(each) for each in arguments)], env=variables)


def test_both_spellings_name_the_proxy():
    lines = env().output.splitlines()
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        assert f"export {name}='http://127.0.0.1:3128'" in lines
    assert "export NO_PROXY='localhost,127.0.0.1,::1'" in lines
    assert not any("CA_BUNDLE" in line or "SSL_CERT" in line for line in lines)


@pytest.mark.parametrize("shell", ["sh", "bash", "fish"])
def test_a_shell_takes_a_value_as_it_is(tmp_path: Path, shell: str):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    printed = env("--shell", "fish" if shell == "fish" else "sh", "--no-proxy", HOSTILE).output
    done = subprocess.run(
        [shell, "-c", f"{printed}\nprintenv no_proxy; printenv HTTPS_PROXY"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{HOSTILE}\nhttp://127.0.0.1:3128\n"
    assert not (tmp_path / "owned").exists()


def test_powershell_quotes_double():
    assert "$Env:NO_PROXY = 'it''s'" in env("--shell", "powershell", "--no-proxy", "it's").output.splitlines()


@pytest.mark.parametrize("shell", ["docker", "github"])
def test_a_file_of_variables_has_one_in_each_line(shell: str):
    printed = env("--shell", shell, "--proxy", "http://egress:8080", "--no-proxy", "a,b", JAVA_TOOL_OPTIONS="-Xmx1g")
    found = dict(line.split("=", 1) for line in printed.output.splitlines())
    assert (found["HTTPS_PROXY"], found["NO_PROXY"]) == ("http://egress:8080", "a,b")
    assert "-Xmx1g" not in found["JAVA_TOOL_OPTIONS"]  # that is of this machine
    broken = env("--shell", shell, "--no-proxy", "a\nLD_PRELOAD=b")
    assert broken.exit_code == 1
    assert "line break" in broken.output


def test_java_is_told_in_its_options_and_keeps_its_own():
    once = ClientSettings(Proxy("http", "10.0.0.1", 3128), no_proxy=("localhost", "::1", ".corp.example"))
    options = once.variables("-Xmx1g")["JAVA_TOOL_OPTIONS"]
    assert options.split() == [
        "-Xmx1g", "-Dhttp.proxyHost=10.0.0.1", "-Dhttp.proxyPort=3128", "-Dhttps.proxyHost=10.0.0.1",
        "-Dhttps.proxyPort=3128", "-Dhttp.nonProxyHosts=localhost|[::1]|*.corp.example",
    ]  # fmt: skip
    assert once.variables(options)["JAVA_TOOL_OPTIONS"] == options


def test_a_token_is_the_password_of_the_proxys_url_and_not_shown_elsewhere(tmp_path: Path):
    (tmp_path / "token").write_text("a/b@c:d\n")
    printed = env("--token-file", tmp_path / "token", "--proxy", "http://[::1]:3128").output
    assert "export https_proxy='http://token:a%2Fb%40c%3Ad@[::1]:3128'" in printed
    assert Proxy.of("http://x:a%2Fb@h:1").login == ("x", "a/b")
    assert "secret" not in repr(ClientSettings(Proxy("http", "h", 1, Login("token", "secret"))))
    (tmp_path / "token").write_text("two words")
    assert env("--token-file", tmp_path / "token").exit_code == 2


def test_user_and_password_are_those_of_the_proxys_url(tmp_path: Path):
    file = tmp_path / "password"
    file.write_text("two words: é\n")
    printed = env("--user", "alice@corp", "--password-file", file).output
    assert "export HTTPS_PROXY='http://alice%40corp:two%20words%3A%20%C3%A9@127.0.0.1:3128'" in printed
    assert "export HTTPS_PROXY='http://bob:pw@h:1'" in env("--proxy", "http://bob:pw@h:1").output
    assert "two words" not in repr(Login("alice", "two words"))


@pytest.mark.parametrize(
    ("written", "options", "told"),
    [
        (b"pw", ["--user", "alice"], "--user and --password-file go together"),
        (b"pw", ["--password-file", "FILE"], "--user and --password-file go together"),
        (b"pw", ["--user", "alice", "--password-file", "FILE", "--token-file", "FILE"], "give one of them"),
        (b"pw", ["--user", "a:b", "--password-file", "FILE"], "no name has a colon"),
        (b"\n", ["--user", "alice", "--password-file", "FILE"], "has no password"),
        (b"two\nlines", ["--user", "alice", "--password-file", "FILE"], "has no password"),
        (b"\xff", ["--user", "alice", "--password-file", "FILE"], "has no password"),
    ],
)
def test_a_login_that_is_none_is_refused(tmp_path: Path, written: bytes, options: list[str], told: str):
    file = tmp_path / "password"
    file.write_bytes(written)
    done = env(*(file if each == "FILE" else each for each in options))
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


def test_base_urls_are_reached_without_the_proxy():
    printed = env("--base-url", "openai=http://egress.corp.example:8080/openai/v1", "--base-url", "aws=http://10.0.0.1")
    lines = printed.output.splitlines()
    assert "export OPENAI_BASE_URL='http://egress.corp.example:8080/openai/v1'" in lines
    assert "export AWS_ENDPOINT_URL='http://10.0.0.1'" in lines
    assert "export NO_PROXY='localhost,127.0.0.1,::1,egress.corp.example,10.0.0.1'" in lines
    alone = env("--proxy", "off", "--base-url", "anthropic=http://127.0.0.1:8080/anthropic").output
    assert "HTTPS_PROXY" not in alone
    assert "export ANTHROPIC_BASE_URL='http://127.0.0.1:8080/anthropic'" in alone.splitlines()


def test_a_bundle_has_the_systems_roots_and_the_ca_once_and_no_key(tmp_path: Path):
    system, own = (new_ca(name, time(), 30) for name in ("system", "own"))
    (tmp_path / "system.pem").write_text(system[0])
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.crt").write_text(own[1].reveal().decode() + own[0])
    for _ in range(2):  # the second time its own file is what the system has
        printed = env(
            "--ca", tmp_path / "ca", "--bundle", tmp_path / "bundle.pem",
            SSL_CERT_FILE=str(tmp_path / ("bundle.pem" if (tmp_path / "bundle.pem").exists() else "system.pem")),
        )  # fmt: skip
        assert printed.exit_code == 0, printed.output
        assert (tmp_path / "bundle.pem").read_text() == system[0].rstrip() + "\n" + own[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tmp_path / "bundle.pem")
    assert len(context.get_ca_certs()) == 2
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
                 "AWS_CA_BUNDLE", "PIP_CERT", "CARGO_HTTP_CAINFO", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
                 "npm_config_cafile"):  # fmt: skip
        assert f"export {name}='{tmp_path}/bundle.pem'" in printed.output.splitlines()
    assert f"-Djavax.net.ssl.trustStore={tmp_path}/bundle.pem.p12 " in printed.output
    if shutil.which("keytool"):
        listed = ["keytool", "-list", "-keystore", str(tmp_path / "bundle.pem.p12"), "-storepass", "changeit"]
        said = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        assert said.count("trustedCertEntry") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ca", __file__], "go together"),
        (["--bundle", "x"], "go together"),
        (["--proxy", "off"], "give --base-url"),
        (["--proxy", "127.0.0.1:3128"], "is not the URL of a proxy"),
        (["--proxy", "http://h:99999"], "is not the URL of a proxy"),
        (["--proxy", "socks5://h:1080"], "many of them speak no SOCKS5: set ALL_PROXY=socks5h://h:1080 by hand"),
        (["--base-url", "gemini=http://h"], "openai, anthropic, aws"),
        (["--base-url", "openai=h:1"], "is not a URL"),
        (["--shell", "cmd"], "powershell"),
    ],
)
def test_wrong_usage_is_2_and_says_what_to_write(arguments: list[str], words: str):
    result = env(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_a_file_without_a_certificate_is_told_and_nothing_is_written(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("nothing")
    result = env("--ca", tmp_path / "ca.pem", "--bundle", tmp_path / "bundle.pem")
    assert result.exit_code == 1
    assert "not a certificate" in result.output
    assert [each.name for each in tmp_path.iterdir()] == ["ca.pem"]


def outline_of(*listeners: ListenerIR) -> dict[str, object]:
    return {"model": outline(ConfigIR(listeners=listeners))}


def listener(name: str, address: str = "0.0.0.0", **more: object) -> ListenerIR:
    return ListenerIR("agents/egress", name, (address,), 8888, ListenerProtocol.FORWARD_PROXY, **more)  # type: ignore[arg-type]


def test_the_listener_of_the_gateway_that_runs_is_the_default(monkeypatch: pytest.MonkeyPatch):
    answer = outline_of(listener("plain"))
    monkeypatch.setattr(suggestions, "ask_briefly", lambda _ctx, path: answer if path == "/model" else {})
    assert "export HTTPS_PROXY='http://127.0.0.1:8888'" in env().output
    assert "export HTTPS_PROXY='http://other:1'" in env("--proxy", "http://other:1").output
    assert "HTTPS_PROXY" not in env("--proxy", "off", "--base-url", "openai=http://127.0.0.1:1/v1").output


def test_of_several_listeners_one_is_named(monkeypatch: pytest.MonkeyPatch):
    answer = outline_of(listener("plain"), listener("tls", "::", tls=Pki().listener("gw.test")))
    monkeypatch.setattr(suggestions, "ask_briefly", lambda *_: answer)
    assert env().exit_code == 2
    assert "there are several forward-proxy listeners (agents/egress/plain, agents/egress/tls)" in env().output
    assert "export HTTPS_PROXY='https://[::1]:8888'" in env("--listener", "tls").output


def test_what_an_earlier_env_has_set_is_taken_back():
    before = dict(
        line.removeprefix("export ").replace("'", "").split("=", 1)
        for line in env("--proxy", "http://a:1", "--base-url", "openai=http://gw:1/v1", JAVA_TOOL_OPTIONS="-Xmx1g")
        .output.splitlines()
    )  # fmt: skip
    lines = env("--unset", SSL_CERT_FILE="/corp.pem", ANTHROPIC_BASE_URL="http://mine/", **before).output.splitlines()
    assert {f"unset {name}" for name in before if name != "JAVA_TOOL_OPTIONS"} | {
        "export JAVA_TOOL_OPTIONS='-Xmx1g'"
    } == set(lines)
    assert env("--unset", "--shell", "fish", HTTPS_PROXY="a").output == "set -e HTTPS_PROXY\n"
    assert env("--unset", "--shell", "docker").exit_code == 2
