"""Clients that show tokens, by the real process: keys that are fetched from the issuer, and tunnels that are opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import time

import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import SharedGateway
from tests.support.tokens import TokenIssuer

HOST, LOGIN = "api.origin.test", "login.test"
CA_PEM, CA_KEY = new_ca("interception", time(), 30)


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def get(authority: str, token: str, path: str = "/", field: str = "Proxy-Authorization: Bearer ") -> bytes:
    return f"GET http://{authority}{path} HTTP/1.1\r\nHost: {authority}\r\n{field}{token}\r\n\r\n".encode()


def test_keys_are_fetched_from_the_issuer_over_tls_that_is_verified(dns: NameServer, shared: SharedGateway):
    pki, port, cluster = Pki(), free_port(), TokenIssuer(f"https://{LOGIN}")
    asked: list[bytes] = []

    def keys(sock: socket.socket) -> None:
        while True:
            head, _ = read_message(sock)
            asked.append(head.split(b"\r\n")[0])
            body = cluster.jwks().encode()
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with Origin() as origin, Origin(keys, pki.server_context(LOGIN)) as login:
        written = {**cluster.written, "jwksURI": f"https://{LOGIN}:{login.port}/keys?v=1"}
        del written["jwksRef"]
        trusting = {**written, "caCertificateRefs": [{"kind": "ConfigMap", "name": "roots"}]}
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK, identity={"token": {"issuers": [trusting]}}),
            m.config_map("roots", {"ca.crt": pki.ca_pem}),
        ]
        authority = f"{HOST}:{origin.port}"
        with shared.serving(objects) as gateway, client(port) as sock:
            assert ask(sock, get(authority, cluster.token())) == (200, b"ok")
            assert ask(sock, get(authority, cluster.token(aud="other")))[0] == 407
            assert asked == [b"GET /keys?v=1 HTTP/1.1"]
            assert gateway.wait_for_record(status=200)["service_account"] == "robot"
        objects[1] = m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK, identity={"token": {"issuers": [written]}})
        with shared.serving(objects) as gateway, client(port) as sock:
            assert ask(sock, get(authority, cluster.token()))[0] == 407
            gateway.wait_for_diagnostics(f"the keys of https://{LOGIN} cannot be fetched")
        assert len(asked) == 1
