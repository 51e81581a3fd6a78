"""Whoever holds connections to the admin addresses: health is answered, and what is being answered goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from egressproxy.admin.connections import FIRST_REQUEST_S
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess

HEALTH = ("/livez", "/readyz", "/healthz")
#: Sooner than those who hold connections and ask nothing are cut off.
PROBE_S = FIRST_REQUEST_S - 1


class Besieged:
    def __init__(self, gateway: GatewayProcess, metrics: int) -> None:
        self.gateway = gateway
        self.ports = {"admin": gateway.admin_port, "metrics": metrics}


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    metrics = free_port()
    folder: Path = tmp_path_factory.mktemp("siege")
    objects = [m.gateway(m.forward_listener(free_port()))]
    with GatewayProcess(folder / "gateway", objects, arguments=["--metrics", f"127.0.0.1:{metrics}"]) as gateway:
        yield Besieged(gateway, metrics)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PROBE_S)


def get(sock: socket.socket, path: str) -> int:
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return int(sock.recv(65536).split(b" ", 2)[1])


def probe(port: int) -> None:
    for path in HEALTH:
        with connect(port) as sock:
            assert get(sock, path) == 200


@pytest.mark.parametrize("where", ["admin", "metrics"])
@pytest.mark.parametrize("count", [64, 1000])
def test_idle_connections_do_not_starve_health(besieged: Besieged, where: str, count: int):
    port = besieged.ports[where]
    with ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(connect(port))
            if count == 64:  # each has asked, and keeps its connection
                assert get(sock, "/livez") == 200
        probe(port)
        with connect(port) as sock:
            assert get(sock, "/metrics") == 200


@pytest.mark.parametrize("where", ["admin", "metrics"])
def test_connections_that_dribble_do_not_starve_health(besieged: Besieged, where: str):
    port = besieged.ports[where]
    done = threading.Event()
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(200)]

        def dribble() -> None:
            letters = b"GET /livez HTTP/1.1\r\nX: " + b"a" * 4000
            for letter in letters:
                for sock in socks:
                    with suppress(OSError):  # it was closed
                        sock.send(bytes((letter,)))
                if done.wait(0.05):
                    return

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                probe(port)
        finally:
            done.set()
            thread.join()


def test_watches_go_on_and_health_is_answered_while_everything_else_is_held(besieged: Besieged):
    port = besieged.ports["admin"]
    with ExitStack() as stack:
        watches = []
        for number in range(41):
            sock = stack.enter_context(connect(port))
            code = get(sock, "/api/v1/configmaps?watch=true&resourceVersion=0")
            assert code == (200 if number < 40 else 429)
            watches.append(sock)
        for _ in range(1000):
            stack.enter_context(connect(port))
        probe(port)
        objects = [m.gateway(m.forward_listener(free_port())), m.config_map("told", {"a": "b"})]
        besieged.gateway.replace(objects)
        for sock in watches[:40]:
            told = b""
            while b'"told"' not in told:
                piece = sock.recv(65536)
                assert piece, "the watch has ended"
                told += piece
            assert json.loads(told[told.index(b"{") : told.rindex(b"}") + 1].splitlines()[-1])["type"] == "ADDED"
