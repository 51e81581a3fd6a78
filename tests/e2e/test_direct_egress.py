"""The rules of docs/ways-in.md that deny direct egress, loaded as they stand there into networks of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.own_network import as_nobody, can_have_own_network, load_rules, own_network
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ways-in.md").read_text(encoding="utf-8")
REDIRECT = "nftables: redirect what this machine sends"
PROXY = "nftables: a proxy, and nothing beside it"
ROUTER = "nftables: a router, or the host of containers"
needs_network = pytest.mark.skipif(not can_have_own_network(), reason="needs root and nftables")

HOST = "origin.egress.test"
#: A server of the outside, and the address of the gateway's machine there.
OUTSIDE, OURS = "203.0.113.9", "203.0.113.1"
SERVER = """
import socket, threading
tcp, udp = socket.create_server(("", 80)), socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("", 5000))
def datagrams():
    while True:
        data, peer = udp.recvfrom(2048)
        udp.sendto(b"udp " + data, peer)
threading.Thread(target=datagrams, daemon=True).start()
print("ready", flush=True)
while True:
    with tcp.accept()[0] as sock:
        if sock.recv(65536):
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: 7\\r\\n\\r\\noutside")
"""


def block(heading: str) -> str:
    """The first block of code below this heading."""
    found = re.search(rf"^### {re.escape(heading)}\n.*?^```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=WAIT_S, capture_output=True)


def heard(*command: str, told: str = "") -> str:
    """What a program prints."""
    done = subprocess.run(command, input=told, text=True, capture_output=True, timeout=WAIT_S, check=False, cwd="/")
    return done.stdout


class Neighbour:
    """Another network, behind a cable: `device` is the end of it here. `enter` runs a command there."""

    def __init__(self, device: str, here: str, there: str) -> None:
        self._sleeper = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        pid = self._sleeper.pid
        own = os.readlink("/proc/thread-self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own)
        self.enter = ["nsenter", "-t", str(pid), "-n"]
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", "address", "add", f"{here}/24", "dev", device)
        run("ip", "link", "set", device, "up")
        run(*self.enter, "ip", "address", "add", f"{there}/24", "dev", "eth0")
        for up in ("lo", "eth0"):
            run(*self.enter, "ip", "link", "set", up, "up")
        run(*self.enter, "ip", "route", "add", "default", "via", here)

    def close(self) -> None:
        self._sleeper.terminate()
        self._sleeper.wait(WAIT_S)


@pytest.fixture
def outside() -> Iterator[Neighbour]:
    """This thread is in a network of its own, and a server in another."""
    with own_network():
        neighbour = Neighbour("eth0", OURS, OUTSIDE)
        server = subprocess.Popen([*neighbour.enter, sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield neighbour
        finally:
            server.terminate()
            server.communicate(timeout=WAIT_S)
            neighbour.close()


@pytest.fixture
def gateway(outside: Neighbour, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A forward proxy on 3128, and a transparent listener on 15001, which allow HOST."""
    with NameServer({HOST: [OUTSIDE]}) as dns:
        objects = m.gateway(
            m.forward_listener(3128), {"name": "redirected", "port": 15001, "protocol": "egressproxy.io/transparent"}
        )
        objects["spec"]["addresses"] = [{"type": "IPAddress", "value": "0.0.0.0"}]
        policy = m.policy([HOST], dns=dns.address, cidrs=[f"{OUTSIDE}/32"])
        with GatewayProcess(tmp_path / "gateway", [objects, policy]) as process:
            yield process


def curl(host: str, *options: str) -> list[str]:
    """curl, which believes that `host` is outside."""
    return ["curl", "--silent", "--max-time", "3", "--resolve", f"{host}:80:{OUTSIDE}", *options, f"http://{host}/"]


def datagram(address: str) -> list[str]:
    return ["nc", "-u", "-w", "1", address, "5000"]


def as_written(heading: str) -> str:
    """The rules of the page, where the user of the gateway is that of this process."""
    return block(heading).replace("skuid egressproxy", f"skuid {os.getuid()}")


def test_every_recipe_is_tested_here():
    headings = re.findall(r"^### (.+)$", PAGE[PAGE.index("## Deny the direct way") :], re.MULTILINE)
    assert headings == [REDIRECT, PROXY, ROUTER, "NetworkPolicy", "CiliumNetworkPolicy"]


@needs_network
def test_everything_that_this_machine_sends_is_redirected_or_dropped(outside: Neighbour, gateway: GatewayProcess):
    assert heard(*as_nobody(*curl("other.egress.test"))) == "outside"
    assert heard(*as_nobody(*datagram(OUTSIDE)), told="hi") == "udp hi"
    load_rules(as_written(REDIRECT))
    assert heard(*as_nobody(*curl(HOST))) == "outside"
    gateway.wait_for_record(authority=f"{HOST}:80", listener="redirected", status=200)
    assert "not allowed by policy" in heard(*as_nobody(*curl("other.egress.test")))
    assert heard(*as_nobody(*datagram(OUTSIDE)), told="hi") == ""
    assert heard(*curl("other.egress.test")) == "outside"  # the gateway's own user


@needs_network
def test_a_proxy_is_the_only_way(outside: Neighbour, gateway: GatewayProcess):
    through = ["--proxy", "http://127.0.0.1:3128"]
    assert heard(*as_nobody(*curl(HOST))) == "outside"
    load_rules(as_written(PROXY))
    assert heard(*as_nobody(*curl(HOST))) == ""
    assert heard(*as_nobody(*datagram(OUTSIDE)), told="hi") == ""
    assert heard(*as_nobody(*curl(HOST, *through))) == "outside"
    assert "not allowed by policy" in heard(*as_nobody(*curl("other.egress.test", *through)))


@needs_network
def test_a_router_redirects_what_comes_in_and_forwards_nothing(outside: Neighbour, gateway: GatewayProcess):
    agents = Neighbour("br-agents", "10.9.0.1", "10.9.0.7")
    try:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
        assert heard(*agents.enter, *curl("other.egress.test")) == "outside"
        assert heard(*agents.enter, *datagram(OUTSIDE), told="hi") == "udp hi"
        load_rules(as_written(ROUTER))
        assert heard(*agents.enter, *curl(HOST)) == "outside"
        record = gateway.wait_for_record(authority=f"{HOST}:80", listener="redirected", status=200)
        assert record["client"].startswith("10.9.0.7:")
        assert "not allowed by policy" in heard(*agents.enter, *curl("other.egress.test"))
        assert heard(*agents.enter, *datagram(OUTSIDE), told="hi") == ""
    finally:
        agents.close()


@pytest.mark.parametrize("heading", ["NetworkPolicy", "CiliumNetworkPolicy"])
def test_policies_of_kubernetes_let_nothing_out_but_to_the_gateway_and_dns(heading: str):
    """No cluster is here: that they say what they should is all that can be checked."""
    written: dict[str, Any] = yaml.safe_load(block(heading))
    spec = written["spec"]
    assert spec.get("podSelector", spec.get("endpointSelector")) == {}
    assert spec.get("policyTypes", ["Egress"]) == ["Egress"]
    assert len(spec["egress"]) == 2
    for rule in spec["egress"]:
        peers = rule.get("to") or rule["toEndpoints"]
        assert len(peers) == 1
        assert "egressproxy" in str(peers) or "kube-dns" in str(peers)
        assert "ipBlock" not in str(peers)
        ports = rule.get("ports") or rule["toPorts"][0]["ports"]
        assert {int(each["port"]) for each in ports} <= {1080, 3128, 53}
