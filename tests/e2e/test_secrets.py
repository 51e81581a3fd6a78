"""Secrets out of mounted folders and the environment, with the real process."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import time

import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.ir.gateway import CertificateIR
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_head, read_message, terminate, tls_secret
from tests.support import manifests as m
from tests.support.mounted import mount
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.other_processes import AS_IN_A_CONTAINER, can_look_into, is_closed_to_others
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until
from tests.support.writing import Client

HOST = "origin.test"


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def injecting(name: str, origin: Origin) -> m.Manifest:
    config = {
        "secretRef": {"name": name, "key": "token"}, "header": "X-Key", "template": "{}", "allowPlaintext": True,
    }  # fmt: skip
    extension = {"name": "key", "type": "egressproxy.io/CredentialInjector:v1", "config": config}
    return m.backend(name, HOST, origin.port, extensions=[extension])


def descendants(pid: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                yield int(entry.name)
                yield from descendants(int(entry.name))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_mounted_secret_is_in_force_and_a_rotated_one_by_itself(dns: NameServer, tmp_path: Path, workers: str):
    mounted, port = tmp_path / "mounted", free_port()
    mount(mounted, {"token": "first-value\n"})
    heads: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        while True:
            heads.append(read_message(sock)[0])
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(serve) as origin:
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK),
            injecting("mounted", origin),
            injecting("variable", origin),
            m.http_route("r", m.prefix_rule("/mounted", "mounted"), m.prefix_rule("/variable", "variable")),
        ]
        arguments = [
            "--secret", f"agents/mounted={mounted}", "--secret-env", "agents/variable:token=EGRESS_KEY",
            "--workers", workers, "--state-dir", str(tmp_path / "state"), "--api-writes", "--log-level", "debug",
        ]  # fmt: skip
        environment = {"EGRESS_KEY": "value-of-the-environment"}
        with GatewayProcess(tmp_path / "gw", objects, arguments=arguments, environment=environment) as gateway:

            def sent(path: str) -> bytes:
                with client(port) as sock:
                    assert ask(sock, get(HOST, port, path, absolute=False))[0] == 200
                return heads[-1]

            assert b"x-key: first-value\r\n" in sent("/mounted").lower()
            assert b"x-key: value-of-the-environment\r\n" in sent("/variable").lower()
            mount(mounted, {"token": "second-value"})
            wait_until(lambda: b"x-key: second-value\r\n" in sent("/mounted").lower())
            status, shown = gateway.admin("/api/v1/namespaces/agents/secrets")
            assert status == 200
            assert '"mounted"' in shown
            api = Client(gateway)
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mounted"}, "stringData": {"token": "z"}}
            for answer in (
                api.send("POST", "/api/v1/namespaces/agents/secrets", body),
                api.send("PUT", "/api/v1/namespaces/agents/secrets/mounted", body),
                api.send("DELETE", "/api/v1/namespaces/agents/secrets/mounted"),
            ):
                assert answer[0] in (403, 409, 422), answer
            assert b"second-value" in sent("/mounted")
            for text in (shown, gateway.stderr, gateway.admin("/config")[1], gateway.admin("/model")[1]):
                assert not any(hidden in text for hidden in ("first-value", "second-value", "value-of-the-environment"))
            for pid in (gateway.pid, *descendants(gateway.pid)) if os.geteuid() == 0 else ():
                assert b"value-of-the-environment" not in Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{gateway.pid}/cmdline").read_bytes()
            assert b"EGRESS_KEY" in command
            assert b"value-of-the-environment" not in command
    assert os.environ.get("EGRESS_KEY") is None


@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_other_process_of_the_same_user_reads_the_memory_of_a_gateway(tmp_path: Path, workers: str):
    port, arguments = free_port(), ["--workers", workers]
    ca_pem, ca_key = new_ca("interception", time(), 30)
    intercept = {"hostnames": ["a.example"], "caCertificateRef": {"name": "ca"}}
    objects = [
        m.gateway(m.forward_listener(port)),
        m.policy([], intercept=intercept),
        tls_secret("ca", ca_pem, ca_key.reveal()),
    ]
    with GatewayProcess(tmp_path / "gw", objects, arguments=arguments, within=AS_IN_A_CONTAINER) as gateway:
        before = {*descendants(gateway.pid)}
        with client(port) as sock:
            sock.sendall(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n")
            assert b" 200 " in read_head(sock)
        assert {*descendants(gateway.pid)} - before, "the process that signs runs"
        for pid in (gateway.pid, *descendants(gateway.pid)):
            assert not can_look_into(pid)
    with subprocess.Popen([*AS_IN_A_CONTAINER, "cat"], stdin=subprocess.PIPE) as other:
        wait_until(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "cat\n")
        assert can_look_into(other.pid) or is_closed_to_others()


def test_a_rotated_secret_drops_neither_connections_nor_counters(dns: NameServer, tmp_path: Path):
    mounted, port = tmp_path / "mounted", free_port()
    mount(mounted, {"token": "first-value\n"})
    heads: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        while True:
            heads.append(read_message(sock)[0].lower())
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(serve) as origin:
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(dns=dns.address, cidrs=ALLOW_LOOPBACK),
            injecting("mounted", origin),
            m.http_route("r", m.prefix_rule("/", "mounted")),
        ]
        arguments = ["--secret", f"agents/mounted={mounted}", "--workers", "2"]
        with GatewayProcess(tmp_path / "gw", objects, arguments=arguments) as gateway, client(port) as sock:

            def sends(value: bytes) -> bool:
                assert ask(sock, get(HOST, port, absolute=False))[0] == 200
                return b"x-key: " + value + b"\r\n" in heads[-1]

            assert sends(b"first-value")
            counted = gateway.metric("egress_filter_total", filter="key")
            assert counted >= 1
            mount(mounted, {"token": "second-value"})
            wait_until(lambda: sends(b"second-value"))
            assert origin.accepted == 1
            assert gateway.metric("egress_filter_total", filter="key") > counted


def test_a_certificate_that_is_half_written_leaves_the_last_good_pair_in_force(tmp_path: Path):
    pki, folder, port = Pki(), tmp_path / "web", free_port()
    folder.mkdir()

    def write(key: str, text: str) -> None:
        (folder / key).write_text(text)  # in place, as a program does that knows no better

    def presented() -> bytes:
        context = ssl.create_default_context(cadata=pki.ca_pem)
        with client(port) as sock, context.wrap_socket(sock, server_hostname="web.test") as tls:
            return tls.getpeercert(binary_form=True) or b""

    def der(certificate: CertificateIR) -> bytes:
        return ssl.PEM_cert_to_DER_cert(certificate.chain_pem.split("-----END")[0] + "-----END CERTIFICATE-----")

    first, second = pki.certificate("web.test"), pki.certificate("web.test")
    write("tls.crt", first.chain_pem)
    write("tls.key", first.key_pem.reveal().decode())
    listener = m.http_listener(port, protocol="HTTPS", tls=terminate("web"))
    arguments = ["--secret", f"agents/web={folder}", "--workers", "2"]
    with GatewayProcess(tmp_path / "gw", [m.gateway(listener)], arguments=arguments) as gateway:
        assert presented() == der(first)
        write("tls.crt", second.chain_pem)
        gateway.wait_for_diagnostics("tls.key does not belong to the first certificate of tls.crt: what it held before")
        assert {presented() for _ in range(8)} == {der(first)}
        shown = gateway.admin("/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways/gw")[1]
        assert "egressproxy.io/LastGoodInForce" in shown
        write("tls.key", second.key_pem.reveal().decode())
        wait_until(lambda: {presented() for _ in range(8)} == {der(second)})
        assert "PRIVATE" not in gateway.stderr
