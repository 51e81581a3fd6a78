"""Which connections to backends are resumed: those to the same target under the same trust, and no others."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.e2e.tls_lab.authority import issue, server
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_message, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import pin
from tests.support.process import SharedGateway
from tests.support.tokens import TokenIssuer

HOST = "origin.test"
ROOT = issue("Lab Root", is_ca=True)
GOOD = issue(HOST, ROOT)
CLIENTS = [issue(name, ROOT, usages=[ExtendedKeyUsageOID.CLIENT_AUTH]) for name in ("one", "two")]


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as name_server:
        yield name_server


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_of_one_backend_and_one_trust(dns: NameServer, shared: SharedGateway, version: ssl.TLSVersion):
    port = free_port()
    resumed: list[tuple[bool, str]] = []

    def serve(sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        read_message(sock)
        subject: Any = (sock.getpeercert() or {}).get("subject", ((("", "-"),),))
        resumed.append((bool(sock.session_reused), subject[0][0][1]))
        sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")

    context = server(GOOD, maximum=version)
    context.load_verify_locations(cadata=ROOT.pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    with Origin(serve, context) as origin:

        def backend(name: str, **tls: Any) -> m.Manifest:
            made = m.backend(name, HOST, origin.port, tls=True, ca="ca")
            made["spec"]["destination"]["ports"][0]["tls"].update(tls)
            return made

        def objects(shown: int, pinned: str) -> list[m.Manifest]:
            backends = [
                backend("plain"), backend("other"), backend("pinned", pins=[pinned]),
                backend("listed", crlRefs=[{"kind": "ConfigMap", "name": "crl"}]),
                backend("mutual", mode="Mutual", clientCertificateRef={"name": "client"}),
            ]  # fmt: skip
            names = [each["metadata"]["name"] for each in backends]
            return [
                m.gateway(m.http_listener(port)), m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK), *backends,
                m.config_map("ca", {"ca.crt": ROOT.pem}), m.config_map("crl", {"crl.pem": ROOT.crl()}),
                tls_secret("client", CLIENTS[shown].pem, CLIENTS[shown].key_pem.encode()),
                *(m.http_route(name, m.prefix_rule(f"/{name}", name)) for name in names),
            ]  # fmt: skip

        with shared.serving(objects(0, pin(GOOD.pem))) as gateway, client(port) as sock:

            def asked(name: str) -> tuple[bool, str]:
                assert ask(sock, get("x", port, f"/{name}", absolute=False)) == (200, b"ok")
                return resumed[-1]

            assert [asked("plain") for _ in range(3)] == [(False, "-"), (True, "-"), (True, "-")]
            assert [asked("other") for _ in range(2)] == [(False, "-"), (True, "-")]
            assert [asked("pinned") for _ in range(2)] == [(False, "-"), (True, "-")]
            assert [asked("listed") for _ in range(2)] == [(False, "-"), (False, "-")]
            assert [asked("mutual") for _ in range(2)] == [(False, "one"), (True, "one")]
            counted = {
                result: gateway.metric("egress_tls_handshakes_total", side="upstream", result=result)
                for result in ("full", "resumed", "failed")
            }
            assert counted == {"full": 6.0, "resumed": 5.0, "failed": 0.0}
            gateway.reload(objects(1, pin(ROOT.pem)))
            assert [asked("mutual") for _ in range(2)] == [(False, "two"), (True, "two")]
            assert asked("plain") == (True, "-"), "its trust is what it was"
            assert ask(sock, get("x", port, "/pinned", absolute=False))[0] == 502
            gateway.wait_for_record(reason="upstream_tls_certificate")


def test_no_session_is_resumed_for_another_tenant(dns: NameServer, shared: SharedGateway):
    port, cluster = free_port(), TokenIssuer()
    resumed: list[bool] = []

    def serve(sock: socket.socket) -> None:
        assert isinstance(sock, ssl.SSLSocket)
        read_message(sock)
        resumed.append(bool(sock.session_reused))
        sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")

    with Origin(serve, server(GOOD)) as origin:

        def objects(**connections: bool) -> list[m.Manifest]:
            identity = {"token": {"issuers": [cluster.written]}}
            sections = {"traffic": {"connections": connections}} if connections else {}
            return [
                m.gateway(m.http_listener(port)), cluster.config_map, m.config_map("ca", {"ca.crt": ROOT.pem}),
                m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK, identity=identity, **sections),
                m.backend("plain", HOST, origin.port, tls=True, ca="ca"),
                m.http_route("r", m.prefix_rule("/", "plain")),
            ]  # fmt: skip

        def asked(tenant: str, account: str = "robot") -> bool:
            token = cluster.token(f"system:serviceaccount:{tenant}:{account}")
            line = f"Authorization: Bearer {token}\r\n\r\n".encode()
            with client(port) as sock:
                request = get("x", port, "/", absolute=False).removesuffix(b"\r\n") + line
                assert ask(sock, request) == (200, b"ok")
            return resumed[-1]

        with shared.serving(objects()) as gateway:
            assert [asked("one") for _ in range(3)] == [False, True, True]
            assert [asked("two") for _ in range(2)] == [False, True]
            assert [asked("one"), asked("one", "another"), asked("two")] == [True] * 3
            gateway.reload(objects(shareTenants=True))
            assert [asked("one"), asked("two"), asked("three")] == [False, True, True]
