"""One client that takes what it can get, and another that is served all the same: the real process and its bounds."""

from __future__ import annotations

import resource
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, ask, get, read_head
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

GREEDY, OTHER = "127.0.0.66", "127.0.0.7"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BATCH = 64


class PatientOrigin:
    """Answers requests for /ok, and keeps every other connection without a word. One thread for all."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PatientOrigin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        kept = [self._listening, self._woken]
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._woken:
                    for each in kept:
                        each.close()
                    return
                if sock is self._listening:
                    connection, _ = sock.accept()
                    kept.append(connection)
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                try:
                    data = sock.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    self._selector.unregister(sock)
                elif data.startswith(b"GET /ok "):
                    sock.sendall(OK)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 8192:
        pytest.skip("this machine allows no 8,192 file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 8192), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def world(many_descriptors: None, tmp_path: Path) -> Iterator[tuple[int, PatientOrigin, GatewayProcess]]:
    port = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, PatientOrigin() as origin:
        policy = m.policy(["*.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK)
        with GatewayProcess(tmp_path / "gw", [m.gateway(m.forward_listener(port)), policy]) as gateway:
            yield port, origin, gateway


def connected(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S, source_address=(address, 0))


def leave(clients: list[socket.socket]) -> None:
    """Without waiting for anything: with a reset."""
    for sock in clients:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


def is_served(port: int, origin: PatientOrigin, host: str) -> None:
    clients = [connected(port, OTHER) for _ in range(20)]
    for sock in clients:
        sock.sendall(get(host, origin.port, "/ok"))
    for sock in clients:
        assert read_head(sock).startswith(b"HTTP/1.1 200 ")
        sock.close()


def test_silent_destinations_of_one_client_close_forwarding_for_nobody_else(
    world: tuple[int, PatientOrigin, GatewayProcess],
):
    port, origin, gateway = world
    greedy: list[socket.socket] = []
    for number in range(1024):
        greedy.append(connected(port, GREEDY))
        greedy[-1].sendall(get(f"h{number}.test", origin.port, "/silent"))
        if len(greedy) % BATCH == 0:  # no more lookups at one time than one client may have
            gateway.wait_for_metric("egress_upstream_connections", len(greedy))
    with connected(port, GREEDY) as one_more:
        status, body = ask(one_more, get("one-more.test", origin.port))
        assert (status, b"queue_full" in body) == (503, True)
    for number in range(5):
        is_served(port, origin, f"good{number}.test")
    leave(greedy)
    gateway.wait_for_metric("egress_downstream_connections", 0)
    with connected(port, GREEDY) as again:
        assert ask(again, get("again.test", origin.port, "/ok")) == (200, b"ok")


def test_slow_uploads_of_one_client_close_a_backend_for_nobody_else(
    world: tuple[int, PatientOrigin, GatewayProcess],
):
    port, origin, gateway = world
    is_served(port, origin, "api.test")
    head = f"POST http://api.test:{origin.port}/ HTTP/1.1\r\nHost: api.test:{origin.port}\r\nContent-Length: 9\r\n\r\n"
    greedy: list[socket.socket] = []
    for _ in range(1100):
        greedy.append(connected(port, GREEDY))
        greedy[-1].sendall(head.encode() + b"x")
    gateway.wait_for_metric("egress_downstream_connections", 1100)
    for _ in range(5):
        is_served(port, origin, "api.test")
    leave(greedy)
    gateway.wait_for_metric("egress_downstream_connections", 0)
    is_served(port, origin, "api.test")
