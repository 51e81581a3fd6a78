"""SOCKS5, several parents, destinations past them, and gateways in a row: the real process."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.test_http2_clients import Talk
from tests.e2e.test_parents import PASSWORD, needs, tunnel
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, tls_secret
from tests.support import manifests as m
from tests.support.http2_client import head
from tests.support.manifests import Manifest
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import SharedGateway
from tests.support.scripted_proxy import SocksProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(90)
LOGIN = {"credentialsRef": {"name": "login"}, "allowPlaintext": True}
NAMES = {"one.test": ["127.0.0.1"], "two.test": ["127.0.0.1"], "past.test": ["127.0.0.1"]}


def objects(port: int, dns: str, parent: dict[str, Any], *backends: Manifest) -> list[Manifest]:
    return [
        m.gateway(m.forward_listener(port)),
        m.policy(["api.test", "past.test"], dns=dns, cidrs=ALLOW_LOOPBACK, parent=parent),
        m.secret("login", {"username": "robot", "password": PASSWORD}, kind="kubernetes.io/basic-auth"),
        *backends,
    ]


def test_everything_goes_through_a_socks_proxy_but_what_is_listed(shared: SharedGateway):
    forward = free_port()
    with NameServer(NAMES) as dns, Origin() as origin, SocksProxy("robot", PASSWORD) as proxy:
        parent = {"name": "one", **LOGIN, "noProxy": [{"hostnames": ["past.test"], "ports": [origin.port]}]}
        made = objects(forward, dns.address, parent, m.backend("one", "one.test", proxy.port, protocol="SOCKS5"))
        with shared.serving(made) as gateway:
            with client(forward) as sock:
                assert ask(sock, get("api.test", origin.port)) == (200, b"ok")
            with client(forward) as sock:
                assert tunnel(sock, "api.test", origin.port) == 200
                assert ask(sock, get("api.test", origin.port, absolute=False)) == (200, b"ok")
            assert proxy.asked == [("api.test", origin.port)] * 2
            with client(forward) as sock:
                assert ask(sock, get("past.test", origin.port)) == (200, b"ok")
            with client(forward) as sock:
                assert tunnel(sock, "past.test", origin.port) == 200
            assert len(proxy.asked) == 2
            with client(forward) as sock:
                assert tunnel(sock, "api.test", free_port()) == 503
            assert gateway.wait_for_record(status=503)["reason"] == "upstream_refused"
            assert PASSWORD not in gateway.stderr + str(gateway.records) + gateway.admin("/metrics")[1]


@pytest.mark.parametrize("is_tls", [False, True])
def test_two_gateways_that_are_each_others_parents_do_not_go_round(
    is_tls: bool, shared: SharedGateway, second: SharedGateway
):
    """Over TLS the client asks in HTTP/2."""
    pki = Pki()
    one, two = free_port(), free_port()
    ca = m.config_map("ca", {"ca.crt": pki.ca_pem})

    def gateway_of(name: str, port: int, parent: str, parent_port: int) -> list[Manifest]:
        upstream = m.backend(parent, f"{parent}.test", parent_port, tls=is_tls, ca="ca" if is_tls else None)
        made = [*objects(port, dns.address, {"name": parent}, upstream), ca]
        if is_tls:
            leaf = pki.issue(f"{name}.test")
            made[0] = m.gateway(m.forward_listener(port, tls={"certificateRefs": [{"name": "cert"}]}))
            made.append(tls_secret("cert", chain(leaf), leaf.private_key_pem.bytes()))
        return made

    def statuses() -> Iterator[int]:
        """Of a CONNECT and of a plain request."""
        if not is_tls:
            with client(one) as sock:
                yield tunnel(sock, "api.test", 443)
            with client(one) as sock:
                yield ask(sock, get("api.test", 8080))[0]
            return
        context = pki.client_context()
        context.set_alpn_protocols(["h2"])
        with client(one, context, "one.test") as sock:
            talk = Talk(sock)
            fields = [(b":method", b"CONNECT"), (b":authority", b"api.test:443")]
            yield talk.answer(talk.client.request(fields)).status
            yield talk.answer(talk.client.request(head(b"GET", b"/", b"api.test:8080"))).status

    with (
        NameServer(NAMES) as dns,
        shared.serving(gateway_of("one", one, "two", two)) as gateway,
        second.serving(gateway_of("two", two, "one", one)) as other,
    ):
        assert list(statuses()) == [502, 508]
        gateway.wait_for_record(status=508, reason="loop_detected")
        assert other.wait_for_record(status=502)["reason"] == "parent_refused"
        other.mark()
        assert len(other.records) == 2


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    port = int(command[command.index("-p") + 1])
    try:
        wait_until(lambda: _listens(port))
        yield
    finally:
        process.terminate()
        process.wait(20)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("password", "expected"), [(PASSWORD, 200), ("another", 502)])
def test_microsocks(password: str, expected: int, shared: SharedGateway):
    needs("microsocks")
    forward, port = free_port(), free_port()
    with Origin() as origin, running("microsocks", "-i", "127.0.0.1", "-p", str(port), "-u", "robot", "-P", password):
        ip = {"type": "Ip", "ip": {"address": "127.0.0.1"}, "ports": [{"number": port, "protocol": "SOCKS5"}]}
        made = [
            m.gateway(m.forward_listener(forward)),
            m.policy(
                cidrs=ALLOW_LOOPBACK,
                destinations={"allow": [{"cidrs": ALLOW_LOOPBACK}]},
                parent={"name": "one", **LOGIN},
            ),
            m.manifest(f"{m.OURS}/v1alpha1", "Backend", "one", "agents", spec={"destination": ip}),
            m.secret("login", {"username": "robot", "password": PASSWORD}),
        ]
        with shared.serving(made):
            with client(forward) as sock:
                assert ask(sock, get("127.0.0.1", origin.port))[0] == expected
            with client(forward) as sock:
                assert tunnel(sock, "127.0.0.1", origin.port) == expected
