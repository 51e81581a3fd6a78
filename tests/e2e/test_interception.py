"""Tunnels that are opened, by the real process: what a client is shown, what it may say inside, and what it is told."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest

from egressproxy.cli.ca_folder import CaFolder
from egressproxy.gateway.leaf_certificates.minting import new_ca
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, read_head, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import wait_until

HOST, OTHER = "api.origin.test", "opaque.test"
CA_PEM, CA_KEY = new_ca("interception", time(), 30)


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def world(dns: NameServer, port: int, pki: Pki, allow: list[str] | None = None, **sections: Any) -> list[m.Manifest]:
    """A forward proxy that opens tunnels to *.origin.test, and believes the test's CA."""
    sections.setdefault("intercept", {"hostnames": ["*.origin.test"], "caCertificateRef": {"name": "ca"}})
    sections.setdefault("tls", {"caBundleRefs": [{"kind": "ConfigMap", "name": "roots"}]})
    return [
        m.gateway(m.forward_listener(port)),
        m.policy([HOST, OTHER] if allow is None else allow, dns=dns.address, cidrs=ALLOW_LOOPBACK, **sections),
        tls_secret("ca", CA_PEM, CA_KEY.reveal()),
        m.config_map("roots", {"ca.crt": pki.ca_pem}),
    ]


def tunnel(port: int, authority: str) -> socket.socket:
    sock = client(port)
    sock.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    head = read_head(sock)
    assert head.startswith(b"HTTP/1.1 200 "), head
    return sock


def inside(
    port: int, authority: str, ca_pem: str = CA_PEM, name: str | None = None, alpn: tuple[str, ...] = ("http/1.1",)
) -> ssl.SSLSocket:
    """TLS with what is shown in a tunnel, by a client that is strict about it."""
    context = ssl.create_default_context(cadata=ca_pem)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(list(alpn))
    return context.wrap_socket(tunnel(port, authority), server_hostname=name or authority.partition(":")[0])


def get(authority: str, path: str = "/", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {authority}\r\n{more}\r\n".encode()


def test_a_named_host_is_opened_and_its_requests_are_routed_filtered_and_logged(dns: NameServer, shared: SharedGateway):
    pki, port = Pki(), free_port()
    with Origin(context=pki.server_context(HOST)) as origin:
        authority = f"{HOST}:{origin.port}"
        with shared.serving(world(dns, port, pki)) as gateway:
            with inside(port, authority) as sock:
                assert ask(sock, get(authority, "/v1/x?y=1")) == (200, b"ok")
                assert ask(sock, get(authority, "/again")) == (200, b"ok")
            assert origin.accepted == 1, "the connection that was verified serves the requests"
            record = gateway.wait_for_record(path="/v1/x")
            assert (record["kind"], record["status"], record["authority"]) == ("request", 200, authority)
            gateway.wait_for_record(kind="tunnel", status=200, reason="-")
            assert gateway.metric("egress_intercepted_tunnels_total", result="ok") == 1
            assert gateway.metric("egress_minted_certificates_total") == 1


def test_a_client_that_does_not_trust_the_ca_is_named_with_the_remedy(dns: NameServer, shared: SharedGateway):
    pki, port = Pki(), free_port()
    origin = Origin(context=pki.server_context(HOST))
    with origin, shared.serving(world(dns, port, pki)) as gateway:
        with pytest.raises(ssl.SSLCertVerificationError):
            inside(port, f"{HOST}:{origin.port}", pki.ca_pem)
        record = gateway.wait_for_record(reason="interception_refused")
        assert record["kind"] == "tunnel"
        assert record["rule"] == "EgressPolicy agents/default"
        assert "UNKNOWN_CA" in record["detail"]
        gateway.wait_for_diagnostics("does not trust the certificate")
        assert gateway.metric("egress_intercepted_tunnels_total", result="interception_refused") == 1


def test_the_ca_is_rotated_while_the_gateway_runs(dns: NameServer, tmp_path: Path):
    pki, port, folder = Pki(), free_port(), tmp_path / "ca"
    ca = CaFolder.create(folder, "", 30, ["origin.test"], [])
    old = (folder / "ca.crt").read_text("ascii")
    objects = [each for each in world(dns, port, pki) if each["metadata"]["name"] != "ca"]
    with Origin(context=pki.server_context(HOST)) as origin:
        authority = f"{HOST}:{origin.port}"
        gateway = GatewayProcess(tmp_path / "gw", objects, arguments=["--secret", f"agents/ca={folder}"])

        def serves(ca_pem: str) -> bool:
            try:
                with inside(port, authority, ca_pem) as sock:
                    return ask(sock, get(authority)) == (200, b"ok")
            except ssl.SSLCertVerificationError:
                return False

        def changed(write: Callable[[], CaFolder]) -> CaFolder:
            before = gateway.metric("egress_config_generation")
            made = write()
            wait_until(lambda: gateway.metric("egress_config_generation") > before)
            return made

        with gateway:
            assert serves(old)
            ca = changed(lambda: ca.rotate(keeps_old=True))
            new = ca.trusted_pem
            wait_until(lambda: serves(new))
            assert serves(old), "clients that have not got the new one yet"
            changed(ca.finish)
            wait_until(lambda: not serves(old))
            assert serves(new)
            with inside(port, authority, new) as sock:
                changed(lambda: ca.rotate(keeps_old=False))
                wait_until(lambda: not serves(new))
                assert ask(sock, get(authority)) == (200, b"ok"), "what is open goes on"
