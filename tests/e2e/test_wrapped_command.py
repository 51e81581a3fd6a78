"""`egressproxy run -- CMD`: the real program with real commands, signals and terminals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import IO

import pytest

from egressproxy.cli.wrapped_command import NotUsable, chosen_listener
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.processes.forward_listeners import ForwardListener
from tests.e2e.world import tls_secret
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.waiting import WAIT_S, wait_until

PROGRAM = str(Path(sys.executable).with_name("egressproxy"))
#: Prints its environment as JSON.
PRINTS = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
#: Says that it is there, and then each signal that comes; ends with 9 at SIGTERM. A signal in front of the read is kept
#: in the pipe, where `signal.pause` would miss it.
TELLS = """
import os, signal, sys
came, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT):
    signal.signal(number, lambda number, frame: None)
print("ready", flush=True)
while True:
    number = os.read(came, 1)[0]
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(9)
"""
#: Asks its proxy for a tunnel, and does not wait for the answer.
ASKS = """
import os, socket
port = int(os.environ["http_proxy"].rpartition(":")[2])
socket.create_connection(("127.0.0.1", port)).sendall(b"CONNECT b.example:443 HTTP/1.0\\r\\n\\r\\n")
"""


def run(*arguments: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    words = [PROGRAM, "run", *(str(each) for each in arguments)]
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=WAIT_S, env=os.environ | variables, check=False
    )


@contextmanager
def started(*arguments: str, program: str = TELLS) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The wrapper and the output of a command that has begun."""
    words = [PROGRAM, "run", *arguments, "--", sys.executable, "-c", program]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process, process.stdout
    finally:
        process.kill()
        process.communicate()


def children(pid: int) -> dict[str, int]:
    """The two processes of a wrapper: its gateway, which has a session of its own, and its command."""
    found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return {"gateway" if os.getsid(each) == each else "command": each for each in found}


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    m.write(folder / "a.yaml", [m.gateway(m.forward_listener(free_port())), m.policy(["a.example"])])
    return folder


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["no-such-command"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_it_ends_as_the_command_ends(command: list[str], status: int):
    assert run("--", *command).returncode == status


def test_the_command_finds_a_gateway_of_its_own_and_no_other_proxy():
    done = run(
        "--", *PRINTS,
        http_proxy="http://elsewhere:1", No_Proxy="*", npm_config_https_proxy="http://elsewhere:1",
        npm_config_noproxy="*", KEPT="kept", SSL_CERT_FILE="/mine",
    )  # fmt: skip
    found = json.loads(done.stdout)
    port = int(found["HTTPS_PROXY"].rpartition(":")[2])
    assert port != 3128
    assert found["http_proxy"] == f"http://127.0.0.1:{port}"
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1"
    assert not [name for name, value in found.items() if "elsewhere" in value]
    assert not {"No_Proxy", "npm_config_https_proxy", "npm_config_noproxy"} & found.keys()
    assert (found["KEPT"], found["SSL_CERT_FILE"]) == ("kept", "/mine")
    assert f"every public destination is allowed, on 127.0.0.1:{port}" in done.stderr


def test_input_output_and_errors_are_the_commands(config: Path):
    done = run("--config", config, "--", "sh", "-c", "cat; echo wrong >&2", stdin="from the terminal")
    assert (done.stdout, done.stderr) == ("from the terminal", "wrong\n")


def test_what_looks_like_an_option_behind_the_dashes_is_the_commands():
    assert run("--", "echo", "--workers", "--", "-h").stdout == "--workers -- -h\n"


def test_signals_are_passed_on_and_the_status_is_the_commands():
    with started() as (process, output):
        both = children(process.pid)
        for name in ("SIGUSR1", "SIGHUP", "SIGINT", "SIGTERM"):
            process.send_signal(signal.Signals[name])
            assert output.readline() == f"{name}\n"
        assert process.wait(WAIT_S) == 9
        assert all(map(is_gone, both.values()))


def test_a_signal_that_comes_between_fork_and_exec_ends_the_command():
    program = """
import os, signal
from egressproxy.cli.wrapped_command import _Signals
with _Signals() as signals:
    signals.block()
    os.kill(os.getpid(), signal.SIGINT)
    signals.restore()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=WAIT_S, check=False).returncode == -signal.SIGINT


@pytest.mark.parametrize("has_a_group", [False, True], ids=["in-our-group", "in-its-own"])
def test_ctrl_c_is_the_terminals_to_send(has_a_group: bool):
    """The terminal sends it to the whole group in front of it: to send it on would have it come twice."""
    controller, terminal = pty.openpty()
    program = f"import os\nos.setpgid(0, 0)\n{TELLS}" if has_a_group else TELLS
    words = [PROGRAM, "run", "--", sys.executable, "-c", program]

    def take_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first that a session leader opens is its own

    process = subprocess.Popen(
        words, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=take_terminal
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        os.write(controller, b"\x03")
        assert os.read(controller, 2) == b"^C"  # the terminal has sent it
        if not has_a_group:
            assert process.stdout.readline() == "SIGINT\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1\n"
        assert not is_gone(children(process.pid)["gateway"])
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        assert process.wait(WAIT_S) == 9
    finally:
        process.kill()
        process.communicate()
        os.close(controller)
        os.close(terminal)


def test_a_signal_that_is_ignored_stays_ignored():
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; exec '{PROGRAM}' run -- sh -c 'kill -HUP $PPID; kill -HUP $$; echo alive'"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("alive\n", 0)


def test_a_command_without_its_gateway_is_ended():
    with started() as (process, output):
        os.kill(children(process.pid)["gateway"], signal.SIGKILL)
        assert output.readline() == "SIGTERM\n"
        assert process.wait(WAIT_S) == 125
        assert process.stderr is not None
        assert "the gateway has ended" in process.stderr.read()


def test_nothing_goes_on_without_the_wrapper_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started() as (process, _output):
        both = children(process.pid)
        assert set(both) == {"gateway", "command"}
        process.kill()
        wait_until(lambda: all(map(is_gone, both.values())), f"{both} go on")
    assert [*tmp_path.iterdir()] == []


def test_the_gateway_serves_while_the_command_runs_and_no_longer(config: Path):
    log = config.parent / "access.log"
    done = run("--config", config, "--workers", "2", "--access-log", log, "--", sys.executable, "-c", ASKS)
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (record["reason"], record["authority"]) == ("destination_not_allowed", "b.example:443")


def test_the_ca_of_opened_tunnels_is_trusted_without_a_word(config: Path):
    pem, key = new_ca("own", time(), 30)
    policy = m.policy(["a.example"])
    policy["spec"]["intercept"] = {"hostnames": ["a.example"], "caCertificateRef": {"name": "own"}}
    objects = [m.gateway(m.forward_listener(free_port())), policy, tls_secret("own", pem, key.reveal())]
    m.write(config / "a.yaml", objects)
    program = "import os; print(os.environ['SSL_CERT_FILE']); print(open(os.environ['CURL_CA_BUNDLE']).read())"
    done = run("--config", config, "--", sys.executable, "-c", program)
    file, _, bundle = done.stdout.partition("\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert pem in bundle
    assert bundle.count("BEGIN CERTIFICATE") > 20
    assert not Path(file).parent.exists()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["env", "-i"], "egressproxy run -- env -i"),
        (
            ["--guarded", "--log-level", "info", "env", "A=b c"],
            "egressproxy run --guarded --log-level info -- env 'A=b c'",
        ),
    ],
)
def test_a_command_without_the_dashes_is_told_where_they_go(written: list[str], meant: str):
    done = run(*written)
    assert done.returncode == 2
    assert f"a command has to follow --: write {meant}" in " ".join(done.stderr.split())


def test_the_listener_has_to_be_named_where_there_are_several():
    one, two = (ForwardListener(f"agents/gw/{name}", "127.0.0.1", 1, False, "") for name in ("one", "two"))
    assert chosen_listener([one], "") is one
    assert chosen_listener([], "") is None
    for name in ("two", "gw/two", "agents/gw/two"):
        assert chosen_listener([one, two], name) is two
    with pytest.raises(NotUsable, match=r"agents/gw/two\).*--listener"):
        chosen_listener([one, two], "")
    for name in ("wo", "three", "w/two"):
        with pytest.raises(NotUsable, match=r"no forward-proxy listener has that name.*agents/gw/one"):
            chosen_listener([one, two], name)


def test_the_command_has_the_listener_that_is_named(config: Path):
    ports = free_port(), free_port()
    gateway = m.gateway(m.forward_listener(ports[0], "one"), m.forward_listener(ports[1], "two"))
    m.write(config / "a.yaml", [gateway, m.policy(["a.example"])])
    unnamed = run("--config", config, "--", "true")
    assert (unnamed.returncode, "agents/gw/two" in unnamed.stderr) == (125, True)
    found = json.loads(run("--config", config, "--listener", "two", "--", *PRINTS).stdout)
    assert found["HTTPS_PROXY"] == f"http://127.0.0.1:{ports[1]}"


def test_a_gateway_without_a_forward_proxy_serves_base_urls(config: Path):
    port = free_port()
    m.write(config / "a.yaml", [m.gateway(m.http_listener(port))])
    alone = run("--config", config, "--", "true")
    assert alone.returncode == 125
    assert "--base-url" in alone.stderr
    url = f"http://127.0.0.1:{port}/openai/v1"
    found = json.loads(run("--config", config, "--base-url", f"openai={url}", "--", *PRINTS).stdout)
    assert found["OPENAI_BASE_URL"] == url
    assert "HTTPS_PROXY" not in found


def test_the_command_does_not_begin_where_the_gateway_fails(config: Path, tmp_path: Path):
    (config / "a.yaml").write_text("kind: Gateway\nspec: 3\n")
    done = run("--config", config, "--", "touch", tmp_path / "begun")
    assert done.returncode == 125
    assert "a.yaml" in done.stderr
    assert not (tmp_path / "begun").exists()
