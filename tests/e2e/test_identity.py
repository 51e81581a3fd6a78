"""Clients that show tokens, by the real process: keys that are fetched from the issuer, and tunnels that are opened."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from time import time
from typing import Any

import bcrypt
import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, read_head, read_message, tls_secret
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


def test_keys_come_by_way_of_the_parent(dns: NameServer, shared: SharedGateway, second: SharedGateway):
    """The gateway's own name server knows no issuer: the parent alone finds it."""
    pki, cluster = Pki(), TokenIssuer(f"https://{LOGIN}")
    port, far = free_port(), free_port()

    def keys(sock: socket.socket) -> None:
        while True:
            read_message(sock)
            body = cluster.jwks().encode()
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    near = NameServer({"far.test": ["127.0.0.1"]})
    with near, Origin() as origin, Origin(keys, pki.server_context(LOGIN)) as login:
        refs = [{"kind": "ConfigMap", "name": "roots"}]
        issuer = {**cluster.written, "jwksURI": f"https://{LOGIN}:{login.port}/keys", "caCertificateRefs": refs}
        del issuer["jwksRef"]
        parent = [m.gateway(m.forward_listener(far)), m.policy([HOST, LOGIN], dns=dns.address, cidrs=ALLOW_LOOPBACK)]
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                [HOST], dns=near.address, cidrs=ALLOW_LOOPBACK, identity={"token": {"issuers": [issuer]}},
                parent={"name": "far"},
            ),
            m.backend("far", "far.test", far),
            m.config_map("roots", {"ca.crt": pki.ca_pem}),
        ]  # fmt: skip
        with (
            second.serving(parent),
            shared.serving(objects) as gateway,
            client(port) as sock,
        ):
            assert ask(sock, get(f"{HOST}:{origin.port}", cluster.token())) == (200, b"ok")
            assert gateway.wait_for_record(status=200)["service_account"] == "robot"


def stalls(sock: socket.socket, _keys: bytes) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{")
    sock.recv(1)  # until the gateway has left


def never_ends(sock: socket.socket, _keys: bytes) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        sock.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def leads_elsewhere(sock: socket.socket, keys: bytes) -> None:
    head = b"HTTP/1.1 307 Elsewhere\r\nLocation: https://%b/other\r\nContent-Length: %d\r\n\r\n"
    sock.sendall(head % (LOGIN.encode(), len(keys)) + keys)


@pytest.mark.parametrize("answers", [stalls, never_ends, leads_elsewhere])
def test_an_issuer_that_does_harm_makes_nobody_known_and_nobody_wait_for_long(
    dns: NameServer, shared: SharedGateway, answers: Callable[[socket.socket, bytes], None]
):
    pki, port, cluster, asked = Pki(), free_port(), TokenIssuer(f"https://{LOGIN}"), 0
    basic = bcrypt.hashpw(b"open", bcrypt.gensalt(4)).decode()

    def answer(sock: socket.socket) -> None:
        nonlocal asked
        while True:
            read_message(sock)
            asked += 1
            answers(sock, cluster.jwks().encode())

    with Origin() as origin, Origin(answer, pki.server_context(LOGIN)) as login:
        refs = [{"kind": "ConfigMap", "name": "roots"}]
        issuer = {**cluster.written, "jwksURI": f"https://{LOGIN}:{login.port}/keys", "caCertificateRefs": refs}
        del issuer["jwksRef"]
        identity = {"token": {"issuers": [issuer]}, "basic": {"secretRef": {"name": "users"}}}
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy([HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK, identity=identity),
            m.config_map("roots", {"ca.crt": pki.ca_pem}),
            m.secret("users", {"ci": basic}),
        ]
        authority = f"{HOST}:{origin.port}"
        with shared.serving(objects) as gateway, client(port) as waiting, client(port) as other:
            waiting.sendall(get(authority, cluster.token()))
            known = get(authority, "Y2k6b3Blbg==", field="Proxy-Authorization: Basic ")
            assert ask(other, known) == (200, b"ok"), "others do not wait for that issuer"
            assert read_head(waiting).startswith(b"HTTP/1.1 407 ")
            gateway.wait_for_diagnostics(f"the keys of https://{LOGIN} cannot be fetched")
        assert asked == 1


@pytest.mark.parametrize("field", ["Proxy-Authorization", "X-Agent-Token"])
def test_inside_of_a_tunnel_that_is_opened_the_client_is_that_of_its_connect(
    dns: NameServer, shared: SharedGateway, field: str
):
    pki, port, cluster = Pki(), free_port(), TokenIssuer()
    heard: list[bytes] = []

    def answer(sock: socket.socket) -> None:
        while True:
            heard.append(read_message(sock)[0])
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(answer, pki.server_context(HOST)) as origin:
        token: dict[str, Any] = {"issuers": [cluster.written]}
        if field != "Proxy-Authorization":
            token["header"] = field
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                [HOST],
                dns=dns.address,
                cidrs=ALLOW_LOOPBACK,
                identity={"token": token},
                intercept={"hostnames": [HOST], "caCertificateRef": {"name": "ca"}},
                tls={"caBundleRefs": [{"kind": "ConfigMap", "name": "roots"}]},
            ),
            tls_secret("ca", CA_PEM, CA_KEY.reveal()),
            m.config_map("roots", {"ca.crt": pki.ca_pem}),
            cluster.config_map,
        ]
        authority = f"{HOST}:{origin.port}"
        with shared.serving(objects) as gateway, client(port) as sock:
            connect = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
            assert ask(sock, f"{connect}\r\n".encode())[0] == 407
            sock.sendall(f"{connect}{field}: Bearer {cluster.token()}\r\n\r\n".encode())
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            context = ssl.create_default_context(cadata=CA_PEM)
            with context.wrap_socket(sock, server_hostname=HOST) as inner:
                other = cluster.token("system:serviceaccount:other:user")
                request = (
                    f"GET / HTTP/1.1\r\nHost: {authority}\r\nAuthorization: of-the-origin\r\n{field}: {other}\r\n\r\n"
                )
                assert ask(inner, request.encode()) == (200, b"ok")
            record = gateway.wait_for_record(kind="request", status=200)
            assert (record["namespace"], record["service_account"]) == ("team", "robot")
            assert b"of-the-origin" in heard[0]
            assert other.encode()[:30] not in heard[0]
            assert cluster.token()[:30] not in gateway.stderr
