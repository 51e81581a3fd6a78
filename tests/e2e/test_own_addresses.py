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


def test_no_spelling_leads_to_a_listener_on_every_address(dns: NameServer, tmp_path: Path):
    port = free_port()
    objects = opened(port, dns, address="0.0.0.0")
    objects[1]["spec"]["addresses"]["allow"] = [{"cidrs": ["0.0.0.0/0", "::/0"]}]
    with GatewayProcess(tmp_path / "gw", objects):
        assert not [host for host in spellings() if connect(port, host, port) == 200]


def service(name: str, address: str, port: int) -> list[m.Manifest]:
    ports = [{"name": "http", "port": port}]
    kind = "IPv6" if ":" in address else "IPv4"
    return [
        m.manifest("v1", "Service", name, "agents", spec={"ports": ports}),
        m.manifest(
            "discovery.k8s.io/v1", "EndpointSlice", name, "agents", addressType=kind, ports=ports,
            endpoints=[{"addresses": [address]}],
        ) | {"metadata": {"name": name, "namespace": "agents", "labels": {"kubernetes.io/service-name": name}}},
    ]  # fmt: skip


def test_no_backend_of_an_operator_leads_to_the_admin_address(dns: NameServer, tmp_path: Path):
    port, reverse = free_port(), free_port()
    admin = free_port()
    heard: list[bytes] = []

    def parent(sock: socket.socket) -> None:
        heard.append(sock.recv(4096))
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with Origin(parent) as proxy:
        through = {"parent": {"name": "proxy"}}
        backends = {
            "ip": m.ip_backend("ip", admin),
            "zero": m.ip_backend("zero", admin, "0.0.0.0"),
            "mapped": m.ip_backend("mapped", admin, "::ffff:0.0.0.0"),
            "fqdn": m.backend("fqdn", "zero.test", admin),
            "localhost": m.backend("localhost", "localhost", admin),
            "asked": m.ip_backend("asked", admin, **through),
            "asked-zero": m.ip_backend("asked-zero", admin, "0.0.0.0", **through),
            "asked-tls": m.ip_backend("asked-tls", admin, tls=True, **through),
            "asked-name": m.backend("asked-name", "localhost", admin, **through),
            "asked-zero-name": m.backend("asked-zero-name", "zero.test", admin, **through),
            "asked-zero-tls": m.backend("asked-zero-tls", "zero.test", admin, tls=True, **through),
            "by-admin": m.backend("by-admin", "a.test", 80, parent={"name": "admin"}),
        }
        rules = [m.prefix_rule(f"/{name}/", name, rewrite="/") for name in (*backends, "asked-else")]
        mirrored = m.prefix_rule("/mirrored/", "origin")
        mirrored["filters"] = [
            {
                "type": "RequestMirror",
                "requestMirror": {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "ip"}},
            }
        ]
        refs = {"backendRefs": [{"name": "service", "port": admin}]}
        served = {"matches": [{"path": {"type": "PathPrefix", "value": "/service/"}}], **refs}
        with Origin() as origin:
            objects = [
                *opened(port, dns),
                m.gateway(m.http_listener(reverse), name="reverse"),
                m.policy(name="reverse", target="reverse", dns=dns.address, cidrs=WIDE),
                m.backend("asked-else", "zero.test", 1, **through),
                *backends.values(), *service("service", "0.0.0.0", admin),
                m.ip_backend("proxy", proxy.port), m.ip_backend("admin", admin, "0.0.0.0"),
                m.ip_backend("origin", origin.port),
                m.http_route("r", *rules, served, mirrored, parent="reverse"),
            ]  # fmt: skip
            with process(tmp_path, objects, admin) as gateway:
                for name in (*backends, "service"):
                    head = f"GET /{name}/healthz HTTP/1.1\r\nHost: x.test\r\n\r\n"
                    # "localhost" is ::1, too, where nobody listens.
                    assert told(reverse, head) == (403 if name != "localhost" else 503), name
                assert not heard
                assert told(reverse, "GET /asked-else/ HTTP/1.1\r\nHost: x.test\r\n\r\n") == 200
                assert heard[0].startswith(b"GET http://zero.test:1/ HTTP/1.1\r\n")
                assert told(reverse, "GET /mirrored/ HTTP/1.1\r\nHost: x.test\r\n\r\n") == 200
                gateway.wait_for_metric("egress_mirrored_requests_total", 1.0)
                assert gateway.metric("egress_mirrored_requests_total", result="resolved_denied") == 1.0
