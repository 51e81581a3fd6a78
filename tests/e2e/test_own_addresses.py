"""Nobody reaches the admin address, or a listener, through the gateway: whatever is allowed, by whatever spelling."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import Origin, ask, client
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess

WIDE = ["0.0.0.0/0", "::/0", "127.0.0.1/32", "0.0.0.0/32", "::1/128", "::/128"]
NAMES = {
    "zero.test": ["0.0.0.0"],
    "six.test": ["::"],
    "mapped.test": ["::ffff:0.0.0.0"],
    "me.test": ["127.0.0.1"],
    "nat.test": ["64:ff9b::7f00:1"],
    "mixed.test": ["::", "0.0.0.0", "127.0.0.1", "::1"],
}
LITERALS = [
    "127.0.0.1",
    "0.0.0.0",
    "[::ffff:127.0.0.1]",
    "[::ffff:0.0.0.0]",
    "[::ffff:0:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[::]",
    "[::1]",
    "localhost",
    "any.localhost",
]


@pytest.fixture(scope="module")
def dns() -> Iterator[NameServer]:
    with NameServer(NAMES) as server:
        yield server


def machine_address() -> str | None:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.7", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def spellings() -> list[str]:
    own = machine_address()
    return [*LITERALS, *NAMES, *((own, f"[::ffff:{own}]") if own else ())]


def opened(port: int, dns: NameServer, *more: m.Manifest, address: str = "127.0.0.1") -> list[m.Manifest]:
    """A forward proxy for every destination, with every address allowed."""
    return [
        m.gateway(m.forward_listener(port), address=address),
        m.policy(mode="Open", dns=dns.address, cidrs=WIDE),
        *more,
    ]


def process(
    folder: Path, objects: list[m.Manifest], admin: int, *arguments: str, bound: str = "127.0.0.1"
) -> GatewayProcess:
    """With its admin address at this port."""
    made = GatewayProcess(folder / "gw", objects, arguments=["--admin", f"{bound}:{admin}", *arguments])
    made.admin_port = admin
    return made


def told(port: int, request: str) -> int:
    """The status of the answer to this request, in a connection of its own."""
    with client(port) as sock:
        return ask(sock, request.encode())[0]


def connect(port: int, host: str, to: int) -> int:
    return told(port, f"CONNECT {host}:{to} HTTP/1.1\r\nHost: {host}:{to}\r\n\r\n")


def fetch(port: int, host: str, to: int) -> int:
    return told(port, f"GET http://{host}:{to}/healthz HTTP/1.1\r\nHost: {host}:{to}\r\n\r\n")


@pytest.mark.parametrize(("bound", "workers"), [("127.0.0.1", "2"), ("0.0.0.0", "1")])
def test_no_spelling_leads_to_the_admin_or_the_metrics_address(
    bound: str, workers: str, dns: NameServer, tmp_path: Path
):
    port, admin, metrics = (free_port("0.0.0.0") for _ in range(3))
    arguments = ["--metrics", f"{bound}:{metrics}", "--workers", workers]
    with process(tmp_path, opened(port, dns), admin, *arguments, bound=bound) as gateway:
        reached = [
            (host, to) for host in spellings() for to in (gateway.admin_port, metrics)
            if connect(port, host, to) == 200 or fetch(port, host, to) == 200
        ]  # fmt: skip
        assert not reached
        with Origin() as origin:  # all of that is allowed but for the port
            assert connect(port, "127.0.0.1", origin.port) == 200
            assert connect(port, "0.0.0.0", origin.port) == 200
            assert connect(port, "zero.test", origin.port) == 200
