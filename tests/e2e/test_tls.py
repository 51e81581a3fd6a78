"""TLS on every side of the real process, and certificates that change while it runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, terminate, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import wait_until

FRONT = "front.test"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def secret_of(name: str, leaf: trustme.LeafCert) -> m.Manifest:
    return tls_secret(name, chain(leaf), leaf.private_key_pem.bytes())


def policy(dns: NameServer, allow: list[str] | None = None) -> m.Manifest:
    return m.policy(allow, dns=dns.address, cidrs=ALLOW_LOOPBACK)


def test_a_certificate_that_expires_while_it_is_served_is_told(
    dns: NameServer, shared: SharedGateway, two_workers: SharedGateway
):
    """Its end is a metric of the configuration, however many processes serve it; a new one takes its place."""
    pki = Pki()
    name = "egress_certificate_expiry_timestamp_seconds"
    at = {"use": "listener", "kind": "Secret", "namespace": "agents", "name": "front"}

    def objects(port: int, seconds: float) -> list[m.Manifest]:
        return [
            m.gateway({"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}),
            policy(dns),
            secret_of("front", pki.issue(FRONT, span_s=(-60, seconds))),
        ]

    gateways = (shared, two_workers)
    for each in gateways:
        each.started()  # which may take its time
    begun = time.time()
    with ExitStack() as stack:
        ports = {
            stack.enter_context(each.serving(objects(port := free_port(), 15))): port for each in (shared, two_workers)
        }
        for gateway in ports:  # both wait for the same end
            assert begun + 14 <= gateway.metric(name, **at) <= begun + 20
        for gateway, port in ports.items():
            gateway.wait_for_diagnostics("the certificate of Secret agents/front has expired on ")
            gateway.wait_for_diagnostics("a certificate has begun or ended to be valid")
            gateway.replace(objects(port, 9000))
            wait_until(lambda gateway=gateway: gateway.metric(name, **at) > begun + 8000)
            gateway.replace([m.gateway(m.forward_listener(port))])
            wait_until(lambda gateway=gateway: gateway.metric(name, **at) == 0)


def test_a_certificate_that_came_by_a_reload_is_told_at_its_own_end(dns: NameServer, shared: SharedGateway):
    """The look at the end of the one before it would come too late."""
    pki, port = Pki(), free_port()

    def objects(seconds: float) -> list[m.Manifest]:
        listener = {"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}
        return [m.gateway(listener), policy(dns), secret_of("front", pki.issue(FRONT, span_s=(-60, seconds)))]

    with shared.serving(objects(9000)) as gateway:
        gateway.reload(objects(5))
        gateway.wait_for_diagnostics("the certificate of Secret agents/front has expired on ")


@pytest.mark.parametrize("is_told", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_where_the_systems_authorities_change_connections_of_lost_trust_are_not_used_again(
    tmp_path: Path, is_told: bool
):
    pki, other, port, roots = Pki(), Pki(), free_port(), tmp_path / "roots.pem"
    roots.write_text(pki.ca_pem)
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin(context=pki.server_context("origin.test")) as origin:
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.backend("o", "origin.test", origin.port, tls=True),
            m.http_route("r", m.prefix_rule("/", "o")),
        ]
        environment = {"SSL_CERT_FILE": str(roots), "SSL_CERT_DIR": str(tmp_path / "none")}
        arguments = ["--workers", "2"]
        with GatewayProcess(tmp_path / "gw", objects, environment=environment, arguments=arguments) as gateway:

            def status() -> int:
                with client(port) as sock:
                    return ask(sock, get("origin.test", port, absolute=False))[0]

            assert {status() for _ in range(8)} == {200}
            roots.write_text(other.ca_pem)
            if is_told:
                os.kill(gateway.pid, signal.SIGHUP)
            wait_until(lambda: {status() for _ in range(8)} == {502})
            assert "signed by a CA of the system" in gateway.wait_for_record(status=502)["detail"]
            roots.write_text(pki.ca_pem + other.ca_pem)
            os.kill(gateway.pid, signal.SIGHUP)
            wait_until(lambda: {status() for _ in range(8)} == {200})
