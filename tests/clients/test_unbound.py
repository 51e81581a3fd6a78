"""Unbound as the DNS server of the gateway: over UDP, TCP, TLS and HTTPS, names of addresses included."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.world import Require
from tests.e2e.world import ALLOW_LOOPBACK, ask, client, get, origins
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S


class Unbound:
    """Answers for `test.`: a.test is 127.0.0.2, whose name is a.test; b.test is 127.0.0.3, whose name is another."""

    def __init__(self, folder: Path) -> None:
        self.pki = Pki(folder)
        self.plain, self.tls, self.https = free_port(), free_port(), free_port()
        leaf = self.pki.issue("dns.test")
        (folder / "key.pem").write_bytes(leaf.private_key_pem.bytes())
        (folder / "chain.pem").write_text(chain(leaf))
        (folder / "unbound.conf").write_text(f"""
server:
  chroot: ""
  username: ""
  directory: "{folder}"
  pidfile: ""
  do-daemonize: no
  use-syslog: no
  interface: 127.0.0.1@{self.plain}
  interface: 127.0.0.1@{self.tls}
  interface: 127.0.0.1@{self.https}
  tls-port: {self.tls}
  https-port: {self.https}
  tls-service-key: "{folder}/key.pem"
  tls-service-pem: "{folder}/chain.pem"
  access-control: 127.0.0.0/8 allow
  local-zone: "test." static
  local-data: "a.test. 60 IN A 127.0.0.2"
  local-data: "b.test. 60 IN A 127.0.0.3"
  local-zone: "127.in-addr.arpa." static
  local-data-ptr: "127.0.0.2 a.test"
  local-data-ptr: "127.0.0.3 elsewhere.test"
remote-control:
  control-enable: no
""")
        program = shutil.which("unbound") or "/usr/sbin/unbound"
        command = [program, "-d", "-c", str(folder / "unbound.conf")]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + WAIT_S
        for port in (self.plain, self.tls, self.https):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "unbound does not start"
                    assert self._process.poll() is None, "unbound has ended"
                    time.sleep(0.02)

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=WAIT_S)


@pytest.fixture
def unbound(tmp_path: Path, require: Require) -> Iterator[Unbound]:
    if not Path("/usr/sbin/unbound").exists():
        require("unbound")
    folder = tmp_path / "unbound"
    folder.mkdir()
    server = Unbound(folder)
    yield server
    server.stop()


@pytest.mark.parametrize("transport", ["udp", "tcp", "tls", "https"])
def test_names_and_names_of_addresses_are_looked_up(tmp_path: Path, transport: str, unbound: Unbound):
    ports = {"tls": unbound.tls, "https": unbound.https}
    authority = f"127.0.0.1:{ports.get(transport, unbound.plain)}"
    written = {"tls": f"tls://{authority}#dns.test", "https": f"https://{authority}/dns-query#dns.test"}
    policy = m.policy(["*.test"], cidrs=ALLOW_LOOPBACK)
    policy["spec"]["dns"] = {
        "servers": [written.get(transport, f"{transport}://{authority}")],
        "reverseCheck": "Enforce",
    }
    port = free_port()
    trust = {"SSL_CERT_FILE": str(unbound.pki.ca_file)}
    objects = [m.gateway(m.forward_listener(port)), policy]
    with origins() as (origin, _), GatewayProcess(tmp_path, objects, environment=trust) as gateway:

        def outcome(host: str) -> tuple[int, bytes]:
            with client(port) as sock:
                return ask(sock, get(host, origin))

        assert outcome("a.test") == (200, b"127.0.0.2")
        status, body = outcome("b.test")
        assert (status, b"reverse_dns_denied" in body) == (403, True)
        status, body = outcome("none.test")
        assert (status, b"dns_nxdomain" in body) == (503, True)
        (place,) = json.loads(gateway.admin("/dns?name=a.test")[1])["places"]
        assert {each["server"] for each in place["answers"]} == {f"{transport}://{authority}"}
        assert place["answers"][0]["addresses"] == ["127.0.0.2"]


def test_a_server_whose_certificate_is_for_another_name_is_not_asked(tmp_path: Path, unbound: Unbound):
    policy = m.policy(["*.test"], cidrs=ALLOW_LOOPBACK)
    policy["spec"]["dns"] = {
        "servers": [f"https://127.0.0.1:{unbound.https}/dns-query#other.test", f"tls://127.0.0.1:{unbound.tls}"]
    }
    port = free_port()
    trust = {"SSL_CERT_FILE": str(unbound.pki.ca_file)}
    objects = [m.gateway(m.forward_listener(port)), policy]
    with GatewayProcess(tmp_path, objects, environment=trust) as gateway, client(port) as sock:
        status, body = ask(sock, get("a.test", 80))
        assert (status, b"dns_error" in body) == (503, True)
        record = gateway.wait_for_record(authority="a.test:80")
        assert "certificate verify failed" in record["detail"]
