"""Clients of HTTP/2 before the real process."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, echo, read_message, terminate, tls_secret
from tests.support import manifests as m
from tests.support.http2_client import Answer, Http2Client
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

HOST = b"origin.test"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


class Talk:
    """A client over a socket, plain or TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(WAIT_S)
        self.client = Http2Client()

    def flush(self) -> None:
        if said := self.client.outgoing():
            self.sock.sendall(said)

    def hears(self) -> bool:
        """Something more; False at the end."""
        self.flush()
        said = self.sock.recv(65536)
        self.client.take(said)
        self.flush()
        return bool(said)

    def answer(self, stream: int) -> Answer:
        """The whole of it."""
        while not self.client.of(stream).is_whole:
            assert self.hears(), self.client.of(stream)
        return self.client.of(stream)


def forward(port: int, dns: NameServer, **listener: object) -> list[m.Manifest]:
    return [
        m.gateway(m.forward_listener(port, **listener)),
        m.policy([HOST.decode()], dns=dns.address, cidrs=ALLOW_LOOPBACK),
    ]


def test_sigterm_is_announced_and_finishes_what_is_in_flight(dns: NameServer, tmp_path: Path):
    port = free_port()
    asked, go = threading.Event(), threading.Event()

    def slow(sock: socket.socket) -> None:
        read_message(sock)
        asked.set()
        assert go.wait(WAIT_S)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(slow) as origin, GatewayProcess(tmp_path / "gw", forward(port, dns)) as gateway:
        idle, busy = Talk(client(port)), Talk(client(port))
        idle.hears()
        stream = busy.client.get(b"/", b"%b:%d" % (HOST, origin.port))
        busy.flush()
        assert asked.wait(WAIT_S)
        os.kill(gateway.pid, signal.SIGTERM)
        while idle.hears():
            pass
        assert idle.client.goaways == [(2**31 - 1, 0, b""), (0, 0, b"")], "a request may be on its way"
        while len(busy.client.goaways) < 2:
            assert busy.hears()
        assert busy.client.goaways == [(2**31 - 1, 0, b""), (stream, 0, b"")]
        go.set()
        answer = busy.answer(stream)
        assert (answer.status, bytes(answer.data)) == (200, b"ok")
        while busy.hears():
            pass
        assert gateway.stop() == 0
        assert [record["status"] for record in gateway.records] == [200]
        idle.sock.close()
        busy.sock.close()


def test_a_proxy_over_tls_has_tunnels_and_requests_on_one_connection(dns: NameServer, tmp_path: Path):
    port, pki = free_port(), Pki()
    leaf = pki.issue("proxy.test")
    objects = [
        *forward(port, dns, tls=terminate("front")),
        tls_secret("front", chain(leaf), leaf.private_key_pem.bytes()),
    ]
    context = pki.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Origin() as origin, Origin(echo) as far, GatewayProcess(tmp_path / "gw", objects) as gateway:
        sock = client(port, context, "proxy.test")
        assert isinstance(sock, ssl.SSLSocket)
        assert sock.selected_alpn_protocol() == "h2"
        talk = Talk(sock)
        tunnel = talk.client.request(
            [(b":method", b"CONNECT"), (b":authority", b"%b:%d" % (HOST, far.port))], ends=False
        )
        while not talk.client.of(tunnel).fields:
            assert talk.hears()
        assert talk.client.of(tunnel).status == 200
        talk.client.h2.send_data(tunnel, b"x" * 16000)
        request = talk.client.get(b"/", b"%b:%d" % (HOST, origin.port))
        denied = talk.client.get(b"/", b"other.test")
        assert bytes(talk.answer(request).data) == b"ok"
        assert talk.answer(denied).status == 403
        while len(talk.client.of(tunnel).data) < 16000:
            assert talk.hears()
        talk.client.h2.end_stream(tunnel)
        talk.answer(tunnel)
        sock.close()
        assert gateway.stop() == 0
        kinds = sorted((record["kind"], record["status"]) for record in gateway.records)
        assert kinds == [("request", 200), ("request", 403), ("tunnel", 200)]
