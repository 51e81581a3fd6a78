"""The real process: its start, its signals, its reloads, its end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, echo, get, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import WAIT_S

HOST = "origin.test"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def forward(port: int, dns: NameServer, allow: tuple[str, ...] = (HOST,), **more: object) -> list[m.Manifest]:
    return [
        m.gateway(m.forward_listener(port)),
        m.policy(allow, dns=dns.address, cidrs=ALLOW_LOOPBACK, **more),
    ]


def reloaded(gateway: GatewayProcess, before: float) -> None:
    gateway.wait_for_metric("egress_config_generation", before + 1)


def test_a_tunnel_survives_a_reload(dns: NameServer, shared: SharedGateway):
    port = free_port()
    with (
        Origin(echo) as origin,
        shared.serving(forward(port, dns)) as gateway,
        client(port) as sock,
    ):
        sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert read_head(sock).startswith(b"HTTP/1.1 200 ")
        gateway.reload(forward(port, dns, ("other.test",)))
        sock.sendall(b"still here")
        assert sock.recv(100) == b"still here"


def test_a_request_in_flight_on_a_listener_that_goes_is_finished_and_is_the_last(
    dns: NameServer, shared: SharedGateway
):
    """What the connection may ask for is no longer configured: it must not live on with the old policy."""
    first, second = free_port(), free_port()
    asked, go = threading.Event(), threading.Event()

    def slow(sock: socket.socket) -> None:
        read_message(sock)
        asked.set()
        assert go.wait(WAIT_S)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with (
        Origin(slow) as origin,
        shared.serving(forward(first, dns)) as gateway,
        client(first) as sock,
    ):
        sock.sendall(get(HOST, origin.port))
        assert asked.wait(WAIT_S)
        gateway.reload([m.gateway(m.forward_listener(second, "second")), *forward(first, dns)[1:]])
        go.set()
        head, body = read_message(sock)
        assert body == b"ok"
        assert b"Connection: close" in head
        assert sock.recv(10) == b""


def test_a_port_that_is_taken_refuses_the_reload_and_changes_nothing(dns: NameServer, shared: SharedGateway):
    port = free_port()
    with (
        Origin() as origin,
        shared.serving(forward(port, dns)) as gateway,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        free, busy = free_port(), taken.getsockname()[1]
        listeners = (m.forward_listener(port), m.forward_listener(free, "b"), m.forward_listener(busy, "c"))
        gateway.replace([m.gateway(*listeners), *forward(port, dns)[1:]])
        gateway.wait_for_metric("egress_config_last_reload_success", 0)
        assert f"port {busy}" in gateway.stderr
        with client(port) as sock:
            assert ask(sock, get(HOST, origin.port))[0] == 200
        with pytest.raises(ConnectionRefusedError):
            client(free)


def test_a_config_map_that_is_swapped_by_symlink_is_taken(dns: NameServer, tmp_path: Path):
    """As a kubelet does it: `..data` is a link to a folder, and is replaced by a rename."""
    port = free_port()
    mounted = tmp_path / "mounted"

    def put(number: int, allow: tuple[str, ...]) -> None:
        folder = mounted / f"..{number}"
        folder.mkdir(parents=True)
        (folder / "all.yaml").write_text(yaml.safe_dump_all(forward(port, dns, allow)))
        fresh = mounted / "..data_tmp"
        fresh.symlink_to(folder.name)
        os.replace(fresh, mounted / "..data")

    put(1, ("other.test",))
    (mounted / "all.yaml").symlink_to("..data/all.yaml")
    with (
        Origin() as origin,
        GatewayProcess(tmp_path / "gw", None, arguments=["--config", str(mounted)]) as gateway,
        client(port) as sock,
    ):
        assert ask(sock, get(HOST, origin.port))[0] == 403
        before = gateway.metric("egress_config_generation")
        put(2, (HOST,))
        gateway.wait_for_metric("egress_config_generation", before + 1)
        assert ask(sock, get(HOST, origin.port))[0] == 200


def test_sighup_reads_the_configuration_again(dns: NameServer, shared: SharedGateway):
    with shared.serving(forward(free_port(), dns)) as gateway:
        before = gateway.metric("egress_config_generation")
        os.kill(gateway.pid, signal.SIGHUP)
        reloaded(gateway, before)


def test_sigterm_finishes_what_is_in_flight_and_exits_0(dns: NameServer, tmp_path: Path):
    port = free_port()
    asked, go = threading.Event(), threading.Event()

    def slow(sock: socket.socket) -> None:
        read_message(sock)
        asked.set()
        assert go.wait(WAIT_S)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(slow) as origin, GatewayProcess(tmp_path / "gw", forward(port, dns)) as gateway:
        idle, busy = client(port), client(port)
        busy.sendall(get(HOST, origin.port))
        assert asked.wait(WAIT_S)
        os.kill(gateway.pid, signal.SIGTERM)
        assert idle.recv(10) == b"", "an idle connection is closed at once"
        with pytest.raises(ConnectionRefusedError):
            client(port)
        go.set()
        head, body = read_message(busy)
        assert body == b"ok"
        assert b"Connection: close" in head
        assert busy.recv(10) == b""
        assert gateway.stop() == 0
        assert [record["status"] for record in gateway.records] == [200]
        idle.close()
        busy.close()


def test_a_drain_has_an_end_and_what_it_cuts_is_in_the_log(dns: NameServer, tmp_path: Path):
    port = free_port()
    process = GatewayProcess(tmp_path / "gw", forward(port, dns), arguments=["--drain-timeout", "1"])
    with Origin(echo) as origin, process as gateway, client(port) as sock:
        sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert read_head(sock).startswith(b"HTTP/1.1 200 ")
        assert gateway.stop() == 0
        assert [(record["kind"], record["reason"]) for record in gateway.records] == [("tunnel", "drained")]
        assert "draining: in-flight requests have 1 s to finish" in gateway.stderr


def test_a_second_signal_cuts_what_is_left_and_logs_it(dns: NameServer, tmp_path: Path):
    port = free_port()
    process = GatewayProcess(tmp_path / "gw", forward(port, dns), arguments=["--drain-timeout", "600"])
    with Origin(echo) as origin, process as gateway, client(port) as sock:
        sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert read_head(sock).startswith(b"HTTP/1.1 200 ")
        os.kill(gateway.pid, signal.SIGTERM)
        deadline = time.monotonic() + WAIT_S
        while gateway.admin("/readyz")[0] != 503:
            assert time.monotonic() < deadline
        assert gateway.stop() == 0  # which sends the second, and waits for less than the drain
        assert [(record["kind"], record["reason"]) for record in gateway.records] == [("tunnel", "drained")]
        assert "stopped; 1 connection cut at the second signal" in gateway.stderr


def test_the_admin_address_says_that_the_listeners_are_not_there_yet(dns: NameServer, tmp_path: Path):
    """A filter's file holds the start up until somebody has asked."""
    port = free_port()
    go = tmp_path / "go"
    extension = {"name": "slow", "type": "egressproxy.io/Python:v1", "phase": "request-headers"}
    extension["config"] = {"path": "slow.py"}
    process = GatewayProcess(tmp_path / "gw", forward(port, dns, extensions=[extension]))
    (process.config / "slow.py").write_text(
        "import os, time\n"
        "from egressproxy.filters import Filter\n"
        f"while not os.path.exists({str(go)!r}):\n"
        "    time.sleep(0.05)\n"
        "class Slow(Filter):\n"
        "    def request_headers(self, x):\n"
        "        pass\n"
    )
    starting = threading.Thread(target=process.start)
    starting.start()
    try:
        deadline = time.monotonic() + WAIT_S
        found = (0, "")
        while not found[0]:
            assert time.monotonic() < deadline
            try:
                found = process.admin("/readyz")
            except OSError:
                time.sleep(0.02)
    finally:
        go.touch()
        starting.join()
        process.stop()
    assert found == (503, "not ready: the listeners are not bound yet\n")
