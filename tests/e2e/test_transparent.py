"""Transparent listeners in a network of their own: nftables redirects, the kernel says where clients were going."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import echo
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.origins import basic
from tests.support.origins.basic import GREETING
from tests.support.origins.server import OriginServer
from tests.support.own_network import as_nobody, can_have_own_network, load_rules, own_network
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.skipif(not can_have_own_network(), reason="needs root and nftables")

ORIGIN, DENIED = "origin.egress.test", "denied.egress.test"
#: Where clients are going: nobody is there. And an address where somebody is.
NOWHERE, NOWHERE_6, OPAQUE = "10.9.0.1", "fd09::1:1", "10.9.0.9"
LISTENER = 15901
RULES = f"""
table inet egress {{
  chain output {{
    type nat hook output priority -100; policy accept;
    meta skuid 0 accept
    ip daddr 10.9.0.0/16 meta l4proto tcp redirect to :{LISTENER}
    ip6 daddr fd09::/64 meta l4proto tcp redirect to :{LISTENER}
  }}
}}
"""


class Redirected:
    """A gateway behind such rules, and what clients of it see."""

    def __init__(self, folder: Path) -> None:
        self.readable = tempfile.TemporaryDirectory()  # by everybody, as the folders of pytest are not
        Path(self.readable.name).chmod(0o755)
        self.pki = Pki(Path(self.readable.name))
        self.origin = OriginServer([basic.routes()], self.pki.server_context(ORIGIN)).start()
        self.dns = NameServer({ORIGIN: [self.origin.address], DENIED: [self.origin.address]}).start()
        listener = {"name": "redirected", "port": LISTENER, "protocol": "egressproxy.io/transparent"}
        gateway = m.gateway(listener)
        gateway["spec"]["addresses"] = [{"type": "IPAddress", "value": each} for each in ("0.0.0.0", "::")]
        allowed = [{"hostnames": [ORIGIN]}, {"cidrs": [f"{OPAQUE}/32"], "ports": [2222]}]
        policy = m.policy(dns=self.dns.address, cidrs=["127.0.0.0/8", "10.9.0.0/24"], destinations={"allow": allowed})
        self.gateway = GatewayProcess(folder / "gateway", [gateway, *self.objects(policy)]).start()

    def objects(self, policy: m.Manifest) -> list[m.Manifest]:
        """Beside the Gateway, with this policy."""
        return [policy]

    def close(self) -> None:
        self.gateway.stop()
        self.origin.stop()
        self.dns.stop()
        self.readable.cleanup()

    def curl(self, url: str, address: str, *options: str) -> subprocess.CompletedProcess[str]:
        """A client that believes that this address is the server."""
        host = url.split("/")[2]
        port = "443" if url.startswith("https") else "80"
        resolve = f"{host}:{port}:{f'[{address}]' if ':' in address else address}"
        return run(
            "curl", "--silent", "--show-error", "--max-time", "20", "--noproxy", "*",
            "--cacert", str(self.pki.ca_file), "--resolve", resolve, *options, url,
        )  # fmt: skip


def run(*command: str, told: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        as_nobody(*command), capture_output=True, text=True, input=told, timeout=WAIT_S, check=False, cwd="/"
    )


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redirected]:
    folder = tmp_path_factory.mktemp("transparent")
    with own_network(f"{OPAQUE}/24", "fd09::9/64"):
        load_rules(RULES)
        made = Redirected(folder)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("address", [NOWHERE, NOWHERE_6])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_a_client_says_decides_and_not_where_it_was_going(world: Redirected, scheme: str, address: str):
    """Nobody is at the address that the client dials: the name is resolved by the gateway."""
    if ":" in address:
        subprocess.run(["ip", "-6", "route", "add", "local", "fd09::/64", "dev", "lo"], check=False, timeout=WAIT_S)
    ended = world.curl(f"{scheme}://{ORIGIN}/", address)
    assert GREETING in ended.stdout, ended.stderr
    port = 443 if scheme == "https" else 80
    record = world.gateway.wait_for_record(authority=f"{ORIGIN}:{port}")
    assert (record["kind"], record["reason"]) == ("tunnel" if scheme == "https" else "request", "-")
    assert world.curl(f"{scheme}://{DENIED}/", address, "--fail").returncode != 0
    world.gateway.wait_for_record(authority=f"{DENIED}:{port}", reason="destination_not_allowed")


def test_a_stream_that_is_neither_goes_where_it_was_going(world: Redirected):
    listening = socket.create_server((OPAQUE, 2222))

    def serve() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.sendall(b"220 server first\n")
            echo(sock)

    threading.Thread(target=serve, daemon=True).start()
    ended = run("nc", "-N", OPAQUE, "2222", told="and back\n")
    listening.close()
    assert ended.stdout == "220 server first\nand back\n", ended.stderr
    record = world.gateway.wait_for_record(authority=f"{OPAQUE}:2222")
    assert (record["reason"], record["kind"]) == ("-", "tunnel")
    assert run("nc", "-N", OPAQUE, "2223", told="and back\n").stdout == ""
    world.gateway.wait_for_record(authority=f"{OPAQUE}:2223", reason="destination_not_allowed")


def test_who_connects_to_the_listener_itself_is_refused(world: Redirected):
    assert run("nc", "-N", "127.0.0.1", str(LISTENER), told="GET / HTTP/1.1\n").stdout == ""
    world.gateway.wait_for_record(reason="not_redirected")


def test_connections_of_the_gateway_itself_are_refused(world: Redirected):
    """The rule that lets the gateway's user out is missing: each connection would make another."""
    load_rules(f"flush ruleset\n{RULES.replace('meta skuid 0 accept', '')}")
    run("nc", "-N", OPAQUE, "2222", told="hello\n")
    world.gateway.wait_for_record(reason="loop_detected")
    assert world.gateway.wait_for_record(authority=f"{OPAQUE}:2222")
