"""Who is trusted changes while connections are pooled: the idle ones are closed at once, exchanges on the others end,
and none begins there any more.
"""

from __future__ import annotations

import copy
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.e2e.tls_lab.authority import issue, server
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_message, tls_secret
from tests.support import manifests as m
from tests.support.http2 import Http2Server
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import pin
from tests.support.process import SharedGateway
from tests.support.waiting import WAIT_S, wait_until

HOST, URI = "origin.test", "spiffe://lab.test/origin"
ROOT = issue("Lab Root", is_ca=True)
FOREIGN = issue("Foreign Root", is_ca=True)
GOOD = issue(HOST, ROOT, names=[HOST, URI])
CLIENTS = {name: issue(name, ROOT, usages=[ExtendedKeyUsageOID.CLIENT_AUTH]) for name in ("one", "two")}


class Backend:
    """Answers with the number of the connection, in what was agreed on; `/slow` when `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.slow = threading.Event()  # a request has come that waits for `go`
        self.connections = 0
        self.ended: list[int] = []  # connections that the gateway has closed
        context = server(GOOD)
        context.load_verify_locations(cadata=ROOT.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["h2", "http/1.1"])
        self.origin = Origin(self._serve, context)

    def _serve(self, sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        self.connections += 1
        number = self.connections
        try:
            if sock.selected_alpn_protocol() == "h2":
                self._serve_http2(sock, number)
            while True:
                head, _ = read_message(sock)
                self._wait(head.split(b" ")[1])
                body = b"%d" % number
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        except (AssertionError, OSError):
            self.ended.append(number)

    def _wait(self, path: bytes) -> None:
        if path.endswith(b"/slow"):
            self.slow.set()
            assert self.go.wait(WAIT_S)

    def _serve_http2(self, sock: ssl.SSLSocket, number: int) -> None:
        http2, answered = Http2Server(), set[int]()
        while True:
            sock.sendall(http2.outgoing())
            piece = sock.recv(65536)
            assert piece
            http2.take(piece)
            for stream, call in http2.calls.items():
                if call.is_whole and stream not in answered:
                    answered.add(stream)
                    self._wait(call.headers[b":path"])
                    http2.respond(stream, [(b":status", b"200")], b"%d" % number)


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as name_server:
        yield name_server


@pytest.fixture
def origin() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.go.set()
    made.origin.close()


class World:
    """The manifests, of which a test changes one thing."""

    def __init__(self, port: int, origin: Backend, dns: NameServer, protocol: str) -> None:
        self.tls: dict[str, Any] = {"mode": "Simple", "caBundleRef": [{"kind": "ConfigMap", "name": "ca"}]}
        self.tls["crlRefs"] = [{"kind": "ConfigMap", "name": "crl"}]
        self.tls |= {"mode": "Mutual", "clientCertificateRef": {"name": "client"}}
        self.ca, self.crl, self.client = ROOT.pem, ROOT.crl(), CLIENTS["one"]
        self.policy: dict[str, Any] = {}
        self._made = port, origin.origin.port, dns.address, protocol

    def objects(self) -> list[m.Manifest]:
        port, origin, dns, protocol = self._made
        backend = m.backend("o", HOST, origin, protocol=protocol)
        backend["spec"]["destination"]["ports"][0]["tls"] = copy.deepcopy(self.tls)
        return [
            m.gateway(m.http_listener(port)), m.policy(dns=dns, cidrs=ALLOW_LOOPBACK, **self.policy), backend,
            m.config_map("ca", {"ca.crt": self.ca}), m.config_map("crl", {"crl.pem": self.crl}),
            tls_secret("client", self.client.pem, self.client.key_pem.encode()),
            m.http_route("r", m.prefix_rule("/", "o")),
        ]  # fmt: skip


def more_authorities(world: World) -> None:
    world.ca = ROOT.pem + FOREIGN.pem


def pins(world: World) -> None:
    world.tls["pins"] = [pin(GOOD.pem)]


def pins_of_a_policy(world: World) -> None:
    world.policy["tls"] = {"pins": [pin(GOOD.pem)]}


def lists(world: World) -> None:
    world.crl = ROOT.crl(CLIENTS["two"])


def names(world: World) -> None:
    world.tls |= {"sni": HOST, "subjectAltNames": [URI]}


def versions(world: World) -> None:
    world.tls["minVersion"] = "1.3"


def client_certificate(world: World) -> None:
    world.client = CLIENTS["two"]


def other_authority(world: World) -> None:
    world.ca = FOREIGN.pem


def other_pins(world: World) -> None:
    world.tls["pins"] = [pin(FOREIGN.pem)]


def revocation(world: World) -> None:
    world.crl = ROOT.crl(GOOD)


def other_names(world: World) -> None:
    world.tls |= {"sni": HOST, "subjectAltNames": ["spiffe://lab.test/other"]}


KEPT = [more_authorities, pins, pins_of_a_policy, lists, names, versions, client_certificate]
REFUSED = [other_authority, other_pins, revocation, other_names]


@pytest.mark.parametrize(
    ("change", "protocol"),
    [
        *((change, "HTTP11") for change in (*KEPT, *REFUSED)),
        *((change, "HTTP2") for change in (pins, client_certificate, other_authority, revocation, other_names)),
    ],
)
def test_no_exchange_begins_on_a_connection_of_the_trust_before(
    dns: NameServer, shared: SharedGateway, origin: Backend, change: Callable[[World], None], protocol: str
):
    port = free_port()
    world = World(port, origin, dns, protocol)
    with shared.serving(world.objects()) as gateway, client(port) as first, client(port) as second:
        plain, slow = (get("x", port, path, absolute=False) for path in ("/", "/slow"))
        assert ask(first, plain) == (200, b"1")
        first.sendall(slow)
        assert origin.slow.wait(WAIT_S)
        if protocol == "HTTP11":
            assert ask(second, plain) == (200, b"2")
        change(world)
        gateway.reload(world.objects())
        if protocol == "HTTP11":
            wait_until(lambda: origin.ended == [2], "the idle connection is closed")
        before = origin.connections
        status, body = ask(second, plain)
        if change in REFUSED:
            assert status == 502
            gateway.wait_for_record(status=502, reason="upstream_tls_certificate")
        else:
            assert (status, body) == (200, b"%d" % (before + 1))
        origin.go.set()
        head, answer = read_message(first)
        assert (head.split(b" ")[1], answer) == (b"200", b"1"), "the exchange in flight ends"
        wait_until(lambda: 1 in origin.ended, "its connection is closed then")


def test_what_is_no_matter_of_trust_keeps_connections(dns: NameServer, shared: SharedGateway, origin: Backend):
    port = free_port()
    world = World(port, origin, dns, "HTTP11")
    with shared.serving(world.objects()) as gateway, client(port) as sock:
        assert ask(sock, get("x", port, absolute=False)) == (200, b"1")
        gateway.reload([*world.objects(), m.backend("another", HOST, 9)])
        assert ask(sock, get("x", port, absolute=False)) == (200, b"1")
