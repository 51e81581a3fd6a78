"""The real process before backends over TLS: what ALPN decides, and what is never shared."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import pytest
from h2.errors import ErrorCodes

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_message
from tests.support import manifests as m
from tests.support.http2 import Http2Server
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import SharedGateway

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


class AnyHttp:
    """Speaks what was agreed on, and says which it was, and for which name."""

    def __init__(self, pki: Pki, *alpn: str, names: tuple[str, ...] = ("a.test", "b.test")) -> None:
        self.asked: list[str | None] = []
        context = pki.server_context(*names)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        context.sni_callback = lambda _sock, name, _context: self.asked.append(name)
        self.origin = Origin(self.serve, context)

    def serve(self, sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        if sock.selected_alpn_protocol() == "h2":
            self.serve_http2(sock)
            return
        while True:
            head, _ = read_message(sock)
            if b"Upgrade" in head:
                sock.sendall(SWITCHED)
                sock.sendall(sock.recv(100))
                return
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nHTTP")

    def serve_http2(self, sock: socket.socket) -> None:
        server, answered = Http2Server(), set[int]()
        while True:
            sock.sendall(server.outgoing())
            piece = sock.recv(65536)
            if not piece:
                return
            server.take(piece)
            for stream, call in server.calls.items():
                if call.is_whole and stream not in answered:
                    answered.add(stream)
                    if call.headers[b":path"].endswith(b"/old"):
                        server.h2.reset_stream(stream, ErrorCodes.HTTP_1_1_REQUIRED)
                        continue
                    server.respond(stream, [(b":status", b"200")], b"h2 " + call.headers[b":authority"])


def backends(port: int, dns: NameServer, pki: Pki, **made: m.Manifest) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(port)),
        m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK),
        m.config_map("ca", {"ca.crt": pki.ca_pem}),
        *made.values(),
        m.http_route("r", *(m.prefix_rule(f"/{name}", name) for name in made)),
    ]


def to(name: str, host: str, origin: AnyHttp, protocol: str) -> m.Manifest:
    return m.backend(name, host, origin.origin.port, tls=True, ca="ca", protocol=protocol)


def test_alpn_decides_where_the_backend_says_http(dns: NameServer, shared: SharedGateway):
    pki, port = Pki(), free_port()
    both, old, only = AnyHttp(pki, "h2", "http/1.1"), AnyHttp(pki), AnyHttp(pki, "h2")
    objects = backends(
        port, dns, pki,
        any=to("any", "a.test", both, "HTTP"),
        one=to("one", "a.test", both, "HTTP11"),
        two=to("two", "a.test", both, "HTTP2"),
        grpc=to("grpc", "a.test", only, "GRPC"),
        old=to("old", "a.test", old, "HTTP"),
        strict=to("strict", "a.test", old, "HTTP2"),
    )  # fmt: skip
    said = {"any": b"h2", "one": b"HTTP", "two": b"h2", "grpc": b"h2", "old": b"HTTP"}
    with shared.serving(objects) as gateway, client(port) as sock:
        for _ in range(2):
            for name, answer in said.items():
                status, body = ask(sock, get("app.test", port, f"/{name}", absolute=False))
                assert (name, status, body.split(b" ")[0]) == (name, 200, answer)
        assert ask(sock, get("app.test", port, "/strict", absolute=False))[0] == 502
        gateway.wait_for_record(status=502, reason="upstream_tls_protocol", backend="agents/strict")
        assert (both.origin.accepted, old.origin.accepted, only.origin.accepted) == (3, 2, 1)
        labels = {"backend": "agents/any", "state": "idle"}
        assert gateway.metric("egress_upstream_connections", **labels) == 1.0


def test_a_connection_serves_one_name_and_one_trust(dns: NameServer, shared: SharedGateway):
    """Not coalesced (RFC 9113 section 9.1.1), though the certificate is good for both, and the address is the same."""
    pki, port = Pki(), free_port()
    both = AnyHttp(pki, "h2", "http/1.1")
    pinned = to("pinned", "a.test", both, "HTTP2")
    pinned["spec"]["destination"]["ports"][0]["tls"]["minVersion"] = "1.3"
    objects = backends(
        port, dns, pki, a=to("a", "a.test", both, "HTTP"), b=to("b", "b.test", both, "HTTP"), pinned=pinned
    )
    with shared.serving(objects), client(port) as sock:
        for _ in range(2):
            for name, host in (("a", "a"), ("b", "b"), ("pinned", "a")):
                asked = get("app.test", port, f"/{name}", absolute=False)
                assert ask(sock, asked)[1] == f"h2 {host}.test:{both.origin.port}".encode()
    assert both.asked == ["a.test", "b.test", "a.test"]
