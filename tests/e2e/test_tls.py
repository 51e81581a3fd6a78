"""TLS on every side of the real process, and certificates that change while it runs."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, echo, get, read_head, terminate, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import wait_until

HOST = "origin.test"
FRONT = "front.test"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def secret_of(name: str, leaf: trustme.LeafCert) -> m.Manifest:
    return tls_secret(name, chain(leaf), leaf.private_key_pem.bytes())


def policy(dns: NameServer, allow: list[str] | None = None) -> m.Manifest:
    return m.policy(allow, dns=dns.address, cidrs=ALLOW_LOOPBACK)


def test_an_https_listener_terminates_tls(dns: NameServer, shared: SharedGateway):
    pki, port = Pki(), free_port()
    with Origin() as origin:
        objects = [
            m.gateway({"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}),
            policy(dns),
            secret_of("front", pki.issue(FRONT)),
            m.backend("o", HOST, origin.port),
            m.http_route("r", m.prefix_rule("/", "o")),
        ]
        with shared.serving(objects) as gateway:
            with client(port, pki.client_context(), FRONT) as sock:
                assert ask(sock, get(FRONT, port, absolute=False)) == (200, b"ok")
            gateway.wait_for_record(status=200, listener="https")


def test_clients_show_a_certificate_of_the_authority_of_their_port(dns: NameServer, shared: SharedGateway):
    pki, first, second = Pki(), Pki(), Pki()
    ports = {"one": free_port(), "two": free_port(), "open": free_port()}
    authorities = {"one": first, "two": second, "open": second}

    def validation(name: str, mode: str = "AllowValidOnly") -> m.Manifest:
        refs = [{"group": "", "kind": "ConfigMap", "name": f"ca-{name}"}]
        return {"validation": {"caCertificateRefs": refs, "mode": mode}}

    listeners = [
        {"name": name, "port": port, "protocol": "HTTPS", "tls": terminate("front")} for name, port in ports.items()
    ]
    per_port = [
        {"port": ports["two"], "tls": validation("two")},
        {"port": ports["open"], "tls": validation("open", "AllowInsecureFallback")},
    ]
    frontend = {"default": validation("one"), "perPort": per_port}
    with Origin() as origin:
        objects = [
            m.gateway(*listeners, tls={"frontend": frontend}),
            policy(dns),
            secret_of("front", pki.issue(FRONT)),
            m.backend("o", HOST, origin.port),
            m.http_route("r", m.prefix_rule("/", "o")),
            *(m.config_map(f"ca-{name}", {"ca.crt": authority.ca_pem}) for name, authority in authorities.items()),
        ]
        with shared.serving(objects):
            for name, port in ports.items():
                for shown in (first, second, None):
                    context = pki.client_context(shown.issue("client.test") if shown is not None else None)
                    if name == "open" or shown is authorities[name]:
                        with client(port, context, FRONT) as sock:
                            assert ask(sock, get(FRONT, port, absolute=False)) == (200, b"ok")
                    else:
                        with pytest.raises(OSError), client(port, context, FRONT) as sock:  # an alert, or a reset
                            ask(sock, get(FRONT, port, absolute=False))


def test_a_forward_proxy_may_be_reached_over_tls(dns: NameServer, shared: SharedGateway):
    pki, port = Pki(), free_port()
    listener = m.forward_listener(port, tls=terminate("front"))
    objects = [m.gateway(listener), policy(dns, [HOST]), secret_of("front", pki.issue(FRONT))]
    with Origin(echo) as origin, shared.serving(objects):  # noqa: SIM117 (TLS needs the listener)
        with client(port, pki.client_context(), FRONT) as sock:
            sock.sendall(f"CONNECT {HOST}:{origin.port} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            sock.sendall(b"x" * 100_000)
            got = 0
            while got < 100_000:
                got += len(sock.recv(65536))


@pytest.mark.parametrize("mode", ["Passthrough", "Terminate"])
def test_a_tls_listener_leads_by_name(dns: NameServer, shared: SharedGateway, mode: str):
    pki, port = Pki(), free_port()
    origin = Origin(echo, pki.server_context(HOST) if mode == "Passthrough" else None)
    tls = {"mode": "Passthrough"} if mode == "Passthrough" else terminate("front")
    objects = [
        m.gateway({"name": "tls", "port": port, "protocol": "TLS", "tls": tls}),
        policy(dns),
        secret_of("front", pki.issue(HOST)),
        m.backend("o", HOST, origin.port, protocol="TCP"),
        m.tls_route("t", "o", hostnames=[HOST]),
    ]
    with origin, shared.serving(objects) as gateway:
        with client(port, pki.client_context(), HOST) as sock:
            sock.sendall(b"through")
            assert sock.recv(100) == b"through"
        gateway.wait_for_record(kind="tunnel", status=200, route="agents/t")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            client(port, pki.client_context(), "other.test")
        gateway.wait_for_record(reason="no_route")


def test_origination_trusts_what_the_config_map_says_and_shows_its_certificate(dns: NameServer, shared: SharedGateway):
    """Then both change, and the next request has the new ones."""
    pki, other, port = Pki(), Pki(), free_port()
    context = pki.server_context(HOST)
    context.verify_mode = ssl.CERT_REQUIRED
    pki.ca.configure_trust(context)

    def objects(ca: str, name: str) -> list[m.Manifest]:
        tls = {
            "mode": "Mutual", "caBundleRef": [{"kind": "ConfigMap", "name": "ca"}],
            "clientCertificateRef": {"name": "client"},
        }  # fmt: skip
        backend = m.backend("o", HOST, origin.port)
        backend["spec"]["destination"]["ports"][0]["tls"] = tls
        return [
            m.gateway(m.http_listener(port)), policy(dns), m.config_map("ca", {"ca.crt": ca}), backend,
            secret_of("client", pki.issue(f"{name}.test", cn=name)), m.http_route("r", m.prefix_rule("/", "o")),
        ]  # fmt: skip

    with Origin(context=context) as origin:  # noqa: SIM117 (the manifests need its port)
        with shared.serving(objects(pki.ca_pem, "first")) as gateway, client(port) as sock:
            request = get("x", port, absolute=False)
            assert ask(sock, request) == (200, b"ok")
            assert origin.peers == ["first"]
            gateway.reload(objects(pki.ca_pem, "second"))
            assert ask(sock, request) == (200, b"ok")
            assert origin.peers == ["first", "second"], "no connection of the old certificate is used again"
            gateway.reload(objects(other.ca_pem, "second"))
            assert ask(sock, request)[0] == 502
            gateway.wait_for_record(status=502, reason="upstream_tls_certificate")


def test_a_gateway_shows_its_certificate_to_its_backends_and_to_those_of_no_other(
    dns: NameServer, shared: SharedGateway
):
    pki, port, other = Pki(), free_port(), free_port()
    context = pki.server_context(HOST)
    context.load_verify_locations(cadata=pki.ca_pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    ref = {"clientCertificateRef": {"name": "me"}}
    with Origin(context=context) as origin:
        objects = [
            m.gateway(m.http_listener(port), tls={"backend": ref}),
            m.gateway(m.http_listener(other), name="other"),
            policy(dns),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK, target="other", name="second"),
            secret_of("me", pki.issue("gateway.test", cn="gateway.test")),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.backend("o", HOST, origin.port, tls=True, ca="ca"),
            m.http_route("r", m.prefix_rule("/", "o")),
            m.http_route("s", m.prefix_rule("/", "o"), parent="other"),
        ]
        with shared.serving(objects):
            for listener, shown in ((port, "gateway.test"), (other, "-"), (port, "gateway.test")):
                with client(listener) as sock:
                    assert ask(sock, get(FRONT, listener, absolute=False)) == (200, b"ok")
                assert shown in origin.peers
            assert origin.peers == ["gateway.test", "-"], "each Gateway keeps its own connections"


def service(name: str, port: int) -> list[m.Manifest]:
    """A Service whose one endpoint is this port of loopback."""
    labels = {"kubernetes.io/service-name": name}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "agents"},
         "spec": {"ports": [{"name": "tls", "port": 443, "appProtocol": "HTTPS"}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
         "metadata": {"name": name, "namespace": "agents", "labels": labels},
         "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "tls", "port": port}]},
    ]  # fmt: skip


def tls_policy(name: str, hostname: str, *names: m.Manifest, ca: str = "ca") -> m.Manifest:
    validation = {"hostname": hostname, "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": ca}]}
    if names:
        validation["subjectAltNames"] = list(names)
    spec = {"targetRefs": [{"group": "", "kind": "Service", "name": name}], "validation": validation}
    return m.manifest(f"{m.GATEWAY_API}/v1", "BackendTLSPolicy", name, "agents", spec=spec)


def test_a_service_is_reached_as_its_policy_says_or_not_at_all(dns: NameServer, tmp_path: Path, shared: SharedGateway):
    pki, other, port, tcp, tls = Pki(), Pki(), free_port(), free_port(), free_port()
    shown = pki.identified("spiffe://td/ns", HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "server.pem").write_bytes(shown.chain_pem.encode() + shown.key_pem.reveal())
    context.load_cert_chain(tmp_path / "server.pem")
    names: list[str | None] = []
    context.sni_callback = lambda _peer, name, _context: names.append(name)
    uri, dns_name = {"type": "URI", "uri": "spiffe://td/ns"}, {"type": "Hostname", "hostname": HOST}
    policies = {
        "name": tls_policy("name", HOST),
        "uri": tls_policy("uri", "sni.test", uri),
        "either": tls_policy("either", "sni.test", {"type": "URI", "uri": "spiffe://td/x"}, dns_name),
        "wrong-name": tls_policy("wrong-name", "wrong.test"),
        "wrong-uri": tls_policy("wrong-uri", HOST, {"type": "URI", "uri": "spiffe://td/NS"}),
        "wrong-ca": tls_policy("wrong-ca", HOST, ca="other"),
        "no-ca": tls_policy("no-ca", HOST, ca="gone"),
    }
    with Origin(context=context) as origin:
        rules = [
            {"matches": [{"path": {"type": "PathPrefix", "value": f"/{name}"}}],
             "backendRefs": [{"name": name, "port": 443}]}
            for name in (*policies, "none")
        ]  # fmt: skip
        to_name = [{"backendRefs": [{"name": "name", "port": 443}]}]
        parents = [{"name": "gw", "sectionName": "tcp"}]
        objects = [
            m.gateway(
                m.http_listener(port),
                {"name": "tcp", "port": tcp, "protocol": "TCP"},
                {"name": "tls", "port": tls, "protocol": "TLS", "tls": terminate("front")},
            ),
            policy(dns),
            secret_of("front", pki.issue(FRONT)),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.config_map("other", {"ca.crt": other.ca_pem}),
            m.http_route("r", *rules, section="http"),
            m.manifest(
                f"{m.GATEWAY_API}/v1alpha2", "TCPRoute", "s", "agents", spec={"parentRefs": parents, "rules": to_name}
            ),
            m.manifest(
                f"{m.GATEWAY_API}/v1", "TLSRoute", "t", "agents",
                spec={"parentRefs": [{"name": "gw", "sectionName": "tls"}], "hostnames": [FRONT], "rules": to_name},
            ),
            *policies.values(),
            *(each for name in (*policies, "none") for each in service(name, origin.port)),
        ]  # fmt: skip
        with shared.serving(objects):
            for name, status in (
                ("name", 200), ("uri", 200), ("either", 200), ("wrong-name", 502), ("wrong-uri", 502),
                ("wrong-ca", 502), ("no-ca", 500), ("none", 500),
            ):  # fmt: skip
                with client(port) as sock:
                    assert (name, ask(sock, get(FRONT, port, f"/{name}", absolute=False))[0]) == (name, status)
            assert names[:3] == [HOST, "sni.test", "sni.test"]
            with client(tcp) as sock:
                assert ask(sock, get(FRONT, tcp, absolute=False)) == (200, b"ok")
            with client(tls, pki.client_context(), FRONT) as sock:
                assert ask(sock, get(FRONT, tls, absolute=False)) == (200, b"ok")
            assert names[-2:] == [HOST, HOST]


def test_an_end_of_tls_without_close_notify_is_no_end_of_a_response(dns: NameServer, shared: SharedGateway):
    pki, port = Pki(), free_port()

    def cut(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\npart")
        raw = socket.socket(fileno=sock.detach())  # a FIN, and no close_notify
        raw.shutdown(socket.SHUT_RDWR)
        raw.close()

    with Origin(cut, pki.server_context(HOST)) as origin:
        objects = [
            m.gateway(m.http_listener(port)),
            policy(dns),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.backend("o", HOST, origin.port, tls=True, ca="ca"),
            m.http_route("r", m.prefix_rule("/", "o")),
        ]
        with shared.serving(objects) as gateway, client(port) as sock:
            sock.sendall(get("x", port, absolute=False))
            assert b"chunked" in read_head(sock)
            got = b""
            try:
                while piece := sock.recv(1000):
                    got += piece
            except ConnectionResetError:
                pass
            assert not got.endswith(b"0\r\n\r\n")
            gateway.wait_for_record(reason="upstream_incomplete")


def test_a_new_certificate_of_a_listener_is_shown_to_the_next_client(dns: NameServer, shared: SharedGateway):
    old, new, port = Pki(), Pki(), free_port()

    def objects(pki: Pki) -> list[m.Manifest]:
        listener = {"name": "https", "port": port, "protocol": "HTTPS", "tls": terminate("front")}
        route = m.http_route("r", m.prefix_rule("/", "o"))
        return [m.gateway(listener), policy(dns), secret_of("front", pki.issue(FRONT)), m.backend("o", HOST, 9), route]

    with shared.serving(objects(old)) as gateway:
        client(port, old.client_context(), FRONT).close()
        gateway.reload(objects(new))
        client(port, new.client_context(), FRONT).close()
        with pytest.raises(ssl.SSLCertVerificationError):
            client(port, old.client_context(), FRONT)


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
