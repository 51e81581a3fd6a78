"""Restarts that no client notices: sockets that somebody keeps, and processes that give them on."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_head
from tests.support import manifests as m
from tests.support.load_process import LoadProcess
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
HOST = "origin.egress.test"
#: Puts descriptors where systemd puts them, and becomes the rest of its line.
ACTIVATE = """
import os, sys
many = int(sys.argv[1])
for at in range(many):
    os.dup2(int(sys.argv[2 + at]), 3 + at, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(many), LISTEN_FDNAMES=":".join(["test.socket"] * many))
os.execv(sys.argv[2 + many], sys.argv[2 + many:])
"""


class Generation:
    """One process after the other, with the same configuration, addresses and files."""

    def __init__(self, folder: Path, objects: Iterable[m.Manifest], *arguments: str) -> None:
        self.gateway = GatewayProcess(folder, objects)  # for its folder and its questions
        self.takeover = folder / "takeover.sock"
        self._arguments = arguments
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, build: Path = ROOT, kept: Iterable[socket.socket] = ()) -> subprocess.Popen[bytes]:
        """Start another one, of this build; it has these sockets from its service manager."""
        command = [str(Path(sys.executable).with_name("egressproxy")), "run", "--config", str(self.gateway.config)]
        command += ["--admin", f"127.0.0.1:{self.gateway.admin_port}", *self._arguments, *arguments]
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in kept]
        if high:
            command = [sys.executable, "-c", ACTIVATE, str(len(high)), *map(str, high), *command]
        inherited = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        with open(self.gateway.access_log_path, "ab") as log, open(self.gateway.stderr_path, "ab") as errors:
            made = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=errors, pass_fds=high,
                env={**inherited, "PYTHONPATH": str(build)}, cwd=self.gateway.config.parent,
            )  # fmt: skip
        for each in high:
            os.close(each)
        self.running.append(made)
        return made

    def ready(self, made: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """When it serves, where no other one does."""

        def says() -> bool:
            assert made.poll() is None, self.gateway.stderr
            try:
                return self.gateway.admin("/readyz")[0] == 200
            except OSError:
                return False

        wait_until(says, "it does not serve")
        return made

    def succeed(self, *arguments: str, build: Path = ROOT) -> subprocess.Popen[bytes]:
        """Start another one in the place of the latest, and return when it serves."""
        made = self.start("--takeover", str(self.takeover), *arguments, build=build)
        self.gateway.wait_for_diagnostics(f"process {made.pid} serves: ")
        return made

    def stop(self) -> None:
        for each in self.running:
            if each.poll() is None:
                each.terminate()
        for each in self.running:
            try:
                each.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def forward(port: int, dns: NameServer) -> list[m.Manifest]:
    return [m.gateway(m.forward_listener(port)), m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK)]


@pytest.fixture
def generation(tmp_path: Path, dns: NameServer) -> Iterator[Generation]:
    made = Generation(tmp_path / "gw", [])
    yield made
    made.stop()


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_process_takes_another_ones_place_while_a_tunnel_ends_in_the_old_one(
    generation: Generation, dns: NameServer, workers: int
):
    port = free_port()
    generation.gateway.replace(forward(port, dns))
    asked = ("--workers", str(workers), "--state-dir", str(generation.gateway.config.parent / "state"))
    with Origin() as origin:
        first = generation.ready(generation.start("--takeover", str(generation.takeover), *asked))
        kept, tunnel = client(port), client(port)
        assert ask(kept, get(HOST, origin.port)) == (200, b"ok")
        tunnel.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert read_head(tunnel).startswith(b"HTTP/1.1 200 ")
        killed = subprocess.run(
            [Path(sys.executable).with_name("egressproxy"), "kill-switch", "kill", "agents/gone",
             "--admin", f"127.0.0.1:{generation.gateway.admin_port}"],
            check=False, capture_output=True, timeout=WAIT_S,
        )  # fmt: skip
        assert killed.returncode == 0, killed.stderr
        second = generation.succeed(*asked)
        assert ask(tunnel, get(HOST, origin.port, absolute=False)) == (200, b"ok")
        kept.sendall(get(HOST, origin.port))
        assert b"\r\nConnection: close\r\n" in read_head(kept), "an idle connection may ask once more"
        with client(port) as fresh:
            assert ask(fresh, get(HOST, origin.port)) == (200, b"ok")
        assert first.poll() is None, "its tunnel goes on"
        tunnel.close()
        kept.close()
        assert first.wait(WAIT_S) == 0
        assert b"agents/gone" in generation.gateway.admin("/kill-switch")[1].encode()
        third = generation.succeed(*asked)
        assert second.wait(WAIT_S) == 0
        assert generation.takeover.exists()
        third.terminate()
        assert third.wait(WAIT_S) == 0
        assert not generation.takeover.exists()


def test_a_successor_that_cannot_start_leaves_everything_as_it_was(generation: Generation, dns: NameServer):
    port = free_port()
    generation.gateway.replace(forward(port, dns))
    with Origin() as origin:
        first = generation.ready(generation.start("--takeover", str(generation.takeover)))
        with socket.create_server(("127.0.0.1", 0)) as busy:
            other = generation.gateway.config.parent / "other"
            other.mkdir()
            m.write(other / "all.yaml", [m.gateway(m.forward_listener(busy.getsockname()[1]), name="busy")])
            failed = generation.start("--takeover", str(generation.takeover), "--config", str(other))
            assert failed.wait(WAIT_S) == 1
            assert f"port {busy.getsockname()[1]}" in generation.gateway.stderr
        generation.gateway.wait_for_diagnostics("has ended before it served: this one goes on")
        assert generation.takeover.exists()
        with client(port) as sock:
            assert ask(sock, get(HOST, origin.port)) == (200, b"ok")
        generation.gateway.reload(forward(port, dns))  # nothing is held up
        assert first.poll() is None


def test_sockets_of_the_service_manager_wait_while_nobody_serves(generation: Generation, dns: NameServer):
    with (
        Origin() as origin,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_server(("127.0.0.1", generation.gateway.admin_port)) as admin,
        socket.create_server(("127.0.0.1", 0)) as unused,
    ):
        port = listening.getsockname()[1]
        generation.gateway.replace(forward(port, dns))
        with client(port) as early:  # before there is a gateway
            first = generation.ready(generation.start(kept=(listening, admin, unused)))
            assert ask(early, get(HOST, origin.port)) == (200, b"ok")
        generation.gateway.wait_for_diagnostics(
            f"no listener is for the socket 127.0.0.1 port {unused.getsockname()[1]} (of systemd's unit test.socket)"
        )
        first.terminate()
        assert first.wait(WAIT_S) == 0
        with client(port) as meanwhile:
            generation.start(kept=(listening, admin))
            assert ask(meanwhile, get(HOST, origin.port)) == (200, b"ok")


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not here")
def test_systemd_activates_it_and_is_told(generation: Generation, dns: NameServer, tmp_path: Path):
    port = free_port()
    generation.gateway.replace(forward(port, dns))
    notified = tmp_path / "notify"
    program = str(Path(sys.executable).with_name("egressproxy"))
    admin = f"127.0.0.1:{generation.gateway.admin_port}"
    command = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", f"--setenv=NOTIFY_SOCKET={notified}"]
    command += [f"--setenv=PYTHONPATH={ROOT}", program, "run", "--config", str(generation.gateway.config)]
    with Origin() as origin, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(notified))
        manager.settimeout(WAIT_S)
        with open(generation.gateway.stderr_path, "ab") as errors:
            running = subprocess.Popen([*command, "--admin", admin], stdout=subprocess.DEVNULL, stderr=errors)
        generation.running.append(running)
        generation.gateway.wait_for_diagnostics(f"Listening on 127.0.0.1:{port}")
        with client(port) as sock:
            assert ask(sock, get(HOST, origin.port)) == (200, b"ok")
        assert manager.recv(4096).startswith(b"READY=1\nSTATUS=configuration 1 is in service")
        running.send_signal(signal.SIGHUP)
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(4096).startswith(b"READY=1\n")
        running.terminate()
        assert manager.recv(4096).startswith(b"STOPPING=1\n")
        assert running.wait(WAIT_S) == 0


def test_a_drain_delay_accepts_while_it_is_not_ready_and_a_second_signal_ends_it(
    generation: Generation, dns: NameServer
):
    port = free_port()
    generation.gateway.replace(forward(port, dns))
    with Origin() as origin:
        running = generation.ready(generation.start("--drain-delay", "600"))
        running.terminate()
        wait_until(lambda: generation.gateway.admin("/readyz") == (503, "not ready: draining\n"))
        with client(port) as sock:
            sock.sendall(get(HOST, origin.port))
            head = read_head(sock)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nConnection: close\r\n" in head
        running.terminate()
        assert running.wait(WAIT_S) == 0


def in_terminal(command: list[str], errors: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The process, as the first of a session with a terminal, and the other end of that."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    inherited = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(errors, "ab") as file:
        made = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=file, preexec_fn=take_terminal, env=inherited
        )  # fmt: skip
    os.close(theirs)
    return made, ours


def test_a_terminal_that_closes_ends_the_gateway_and_sighup_before_is_a_reload(generation: Generation, dns: NameServer):
    generation.gateway.replace(forward(free_port(), dns))
    command = [str(Path(sys.executable).with_name("egressproxy")), "run", "--config", str(generation.gateway.config)]
    command += ["--admin", f"127.0.0.1:{generation.gateway.admin_port}"]
    running, terminal = in_terminal(command, generation.gateway.stderr_path)
    generation.running.append(running)
    generation.ready(running)
    running.send_signal(signal.SIGHUP)
    generation.gateway.wait_for_metric("egress_config_generation", 2)
    os.close(terminal)
    assert running.wait(WAIT_S) == 0
    assert "the terminal has gone" in generation.gateway.stderr


def next_release(folder: Path) -> Path:
    """A copy of the package that says it is another release."""
    shutil.copytree(ROOT / "egressproxy", folder / "egressproxy", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "egressproxy" / "__init__.py"
    file.write_text(file.read_text().replace('__version__ = "', '__version__ = "9.'))
    return folder


def test_a_worker_of_another_release_than_its_supervisor_is_not_taken(
    generation: Generation, dns: NameServer, tmp_path: Path
):
    """The files were replaced under a running gateway."""
    port = free_port()
    generation.gateway.replace(forward(port, dns))
    package = tmp_path / "installed"
    package.mkdir()
    shutil.copytree(ROOT / "egressproxy", package / "egressproxy", ignore=shutil.ignore_patterns("__pycache__"))
    with Origin() as origin:
        generation.ready(generation.start("--workers", "2", build=package))
        next_release(tmp_path / "next")
        (package / "egressproxy").rename(tmp_path / "former")
        (tmp_path / "next" / "egressproxy").rename(package / "egressproxy")
        said = generation.gateway.stderr
        worker = int(said.partition("2 workers serve: processes ")[2].partition(",")[0])
        os.kill(worker, signal.SIGKILL)
        generation.gateway.wait_for_diagnostics("would be of another release than this process")
        for _ in range(5):
            with client(port) as sock:
                assert ask(sock, get(HOST, origin.port)) == (200, b"ok")
        assert generation.gateway.metric("egress_workers") == 1


# --- under load ------------------------------------------------------------------------------------------------------
@pytest.fixture
def load() -> Iterator[LoadProcess]:
    made = LoadProcess("tests.support.mixed_load")
    yield made
    made.stop()


SHORT = {"requests": 200, "connections": 2, "stream_s": 1, "changes": 1}
LONG = {"requests": 500_000, "connections": 4, "stream_s": 30, "changes": 20}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("how", ["takeover", "restart"])
@pytest.mark.parametrize(
    "size", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.nightly)]
)
def test_no_request_is_lost_between_two_releases(
    load: LoadProcess, dns: NameServer, tmp_path: Path, how: str, size: dict[str, int]
):
    """One takes the other's place, or is started behind its end where somebody keeps the sockets."""
    changes = size["changes"]
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
        if how == "takeover":
            one.close()
            two.close()
        objects = [
            m.gateway(m.forward_listener(ports[0]), m.http_listener(ports[1])),
            m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.backend("origin", HOST, load.origin_port),
            m.http_route("all", m.prefix_rule("/", "origin"), section="http"),
        ]
        patience = str(2 * size["stream_s"] + 10)
        workers = "2" if size is SHORT and how == "takeover" else "1"
        generation = Generation(
            tmp_path / "gw", objects, "--drain-timeout", patience, "--access-log", "off", "--workers", workers
        )
        builds = ROOT, next_release(tmp_path / "next")
        try:
            if how == "takeover":
                latest = generation.ready(generation.start("--takeover", str(generation.takeover)))
            else:
                latest = generation.ready(generation.start("--drain-delay", "1", kept=(one, two)))
            asked = {name: size[name] for name in ("requests", "connections", "stream_s")}
            load.begin(host=HOST, forward=ports[0], reverse=ports[1], **asked)
            for number in range(1, changes + 1):
                time.sleep(size["stream_s"] / 4)
                build = builds[number % 2]
                former, began = latest, time.monotonic()
                if how == "takeover":
                    latest = generation.succeed(build=build)
                else:
                    former.terminate()
                    assert former.wait(WAIT_S + float(patience)) == 0
                    latest = generation.ready(generation.start("--drain-delay", "1", build=build, kept=(one, two)))
                print(f"{how} {number}: {time.monotonic() - began:.1f} s")
            report = load.finish()
            for each in generation.running[:-1]:
                assert each.wait(WAIT_S + float(patience)) == 0
            print(json.dumps(report))
            assert report["lost"] == 0, "\n".join(report["problems"])
            assert set(report["answered"]) == {"kept", "fresh", "http2", "tunnel", "stream"}, report
            assert "cut" not in generation.gateway.stderr
        finally:
            generation.stop()
