"""Certificates, keys and authorities in mounted Secrets are exchanged while the process serves."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.e2e.tls_lab.authority import Certificate, issue, server
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, terminate
from tests.support import manifests as m
from tests.support.mounted import mount
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

HOST, FRONT = "origin.test", "front.test"
OLD, NEW = (issue(f"{age} Root", is_ca=True) for age in ("Old", "New"))


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as name_server:
        yield name_server


def pair(certificate: Certificate) -> dict[str, str]:
    return {"tls.crt": certificate.pem, "tls.key": certificate.key_pem}


def of_client(name: str) -> Certificate:
    return issue(name, OLD, usages=[ExtendedKeyUsageOID.CLIENT_AUTH])


def trusting(*roots: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cadata="".join(root.pem for root in roots))


def issuer_of(sock: socket.socket) -> str:
    assert isinstance(sock, ssl.SSLSocket)
    issuer = (sock.getpeercert() or {})["issuer"]
    return str(issuer[0][0][1])  # type: ignore[index]


def test_mounted_certificates_keys_and_authorities_are_exchanged(dns: NameServer, tmp_path: Path):
    folders = {name: tmp_path / name for name in ("front", "client", "ca")}
    mount(folders["front"], pair(issue(FRONT, OLD)))
    mount(folders["client"], pair(of_client("first")))
    mount(folders["ca"], {"ca.crt": OLD.pem})
    port = free_port()
    with Origin(context=server(issue(HOST, OLD), clients=OLD.pem)) as origin:
        backend = m.backend("o", HOST, origin.port)
        backend["spec"]["destination"]["ports"][0]["tls"] = {
            "mode": "Mutual", "caBundleRef": [{"kind": "Secret", "name": "ca"}],
            "clientCertificateRef": {"name": "client"},
        }  # fmt: skip
        objects = [
            m.gateway({"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK), backend, m.http_route("r", m.prefix_rule("/", "o")),
        ]  # fmt: skip
        arguments = ["--workers", "2"]
        for name, folder in folders.items():
            arguments += ["--secret", f"agents/{name}={folder}"]
        plain = get(FRONT, port, absolute=False)
        with (
            GatewayProcess(tmp_path / "gw", objects, arguments=arguments) as gateway,
            client(port, trusting(OLD), FRONT) as kept,
        ):
            assert ask(kept, plain) == (200, b"ok")
            assert origin.peers == ["first"]

            def shows(root: str) -> bool:
                with client(port, trusting(OLD, NEW), FRONT) as sock:
                    return issuer_of(sock) == root

            mount(folders["front"], pair(issue(FRONT, NEW)))
            wait_until(lambda: shows("New Root"), "the new certificate is shown")
            assert ask(kept, plain) == (200, b"ok"), "connections of clients stay"

            def asked_by(name: str) -> bool:
                with client(port, trusting(NEW), FRONT) as sock:
                    assert ask(sock, plain) == (200, b"ok")
                return origin.peers[-1] == name

            mount(folders["client"], pair(of_client("second")))
            wait_until(lambda: asked_by("second"), "the new certificate is shown to the backend")

            def is_refused() -> bool:
                with client(port, trusting(NEW), FRONT) as sock:
                    return ask(sock, plain)[0] == 502

            mount(folders["ca"], {"ca.crt": NEW.pem})
            wait_until(is_refused, "the backend's authority is no longer trusted")
            gateway.wait_for_record(reason="upstream_tls_certificate")
            mount(folders["ca"], {"ca.crt": NEW.pem + OLD.pem})
            wait_until(lambda: not is_refused(), "both authorities are trusted")


def test_a_key_that_comes_after_its_certificate_makes_the_pair_whole(dns: NameServer, tmp_path: Path):
    """As a tool writes them that knows no `..data`: one file after the other."""
    folder, port = tmp_path / "front", free_port()
    folder.mkdir()
    old, new = pair(issue(FRONT, OLD)), pair(issue(f"{FRONT}", NEW, key=issue("other", NEW).key))
    for key, value in old.items():
        (folder / key).write_text(value)
    objects = [
        m.gateway({"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}),
        m.policy(dns=dns.address), m.backend("o", HOST, 9), m.http_route("r", m.prefix_rule("/", "o")),
    ]  # fmt: skip
    with GatewayProcess(tmp_path / "gw", objects, arguments=["--secret", f"agents/front={folder}"]) as gateway:
        client(port, trusting(OLD), FRONT).close()
        (folder / "tls.crt").write_text(new["tls.crt"])
        gateway.wait_for_diagnostics("tls.key does not belong to the first certificate of tls.crt")
        (folder / "tls.key").write_text(new["tls.key"])

        def shows_new() -> bool:
            try:
                client(port, trusting(NEW), FRONT).close()
            except OSError:
                return False
            return True

        wait_until(shows_new, "the new pair is in force")


def test_a_trust_bundle_is_a_folder_of_pem_files_for_all_namespaces(dns: NameServer, tmp_path: Path):
    """It is named by Backends and policies without a ReferenceGrant, and read again when a file comes or goes."""
    folder, port = tmp_path / "authorities", free_port()
    folder.mkdir()
    (folder / "README").write_text("authorities of the laboratory")
    (folder / "old.pem").write_text(f"# the old one\n{OLD.pem}")
    with Origin(context=server(issue(HOST, NEW))) as origin:
        backend = m.backend("o", HOST, origin.port)
        bundle = {"group": "certificates.k8s.io", "kind": "ClusterTrustBundle", "name": "lab.test:ca"}
        backend["spec"]["destination"]["ports"][0]["tls"] = {"mode": "Simple", "caBundleRef": [bundle]}
        objects = [
            m.gateway(m.http_listener(port)), m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK), backend,
            m.http_route("r", m.prefix_rule("/", "o")),
        ]  # fmt: skip
        arguments = ["--trust-bundle", f"lab.test:ca={folder}"]
        with GatewayProcess(tmp_path / "gw", objects, arguments=arguments) as gateway, client(port) as sock:

            def status() -> int:
                return ask(sock, get("x", port, absolute=False))[0]

            assert status() == 502
            record = gateway.wait_for_record(reason="upstream_tls_certificate")
            assert "signed by ClusterTrustBundle lab.test:ca" in record["detail"]
            (folder / "new.crt").write_text(NEW.pem)
            gateway.wait_for_diagnostics("configuration 2 is in service")
            assert status() == 200
            (folder / "new.crt").unlink()
            gateway.wait_for_diagnostics("configuration 3 is in service")
            assert status() == 502
            labels = {"use": "ca", "kind": "ClusterTrustBundle", "namespace": "", "name": "lab.test:ca"}
            assert gateway.metric("egress_certificate_expiry_timestamp_seconds", **labels) > 0
