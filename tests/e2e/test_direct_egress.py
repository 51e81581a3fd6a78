"""The rules of docs/ways-in.md that deny direct egress, loaded as they stand there into networks of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
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
OUTSIDE6, OURS6 = "2001:db8:9::9", "2001:db8:9::1"
BOTH = pytest.mark.parametrize("outside_at", [OUTSIDE, OUTSIDE6], ids=["IPv4", "IPv6"])
#: UDP of any kind, and QUIC, which browsers and curl speak at this port.
PORTS = (5000, 443)
SERVER = """
import socket, threading
tcp = socket.create_server(("", 80), family=socket.AF_INET6, dualstack_ipv6=True)
def datagrams(port):
    udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    udp.bind(("", port))
    while True:
        data, peer = udp.recvfrom(2048)
        udp.sendto(b"udp " + data, peer)
for port in (5000, 443):
    threading.Thread(target=datagrams, args=(port,), daemon=True).start()
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
    """Another network, behind a cable: `device` is the end of it here, with these addresses of IPv4 and IPv6. `enter`
    runs a command there.
    """

    def __init__(self, device: str, here: tuple[str, str], there: tuple[str, str]) -> None:
        self._sleeper = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        pid = self._sleeper.pid
        own = os.readlink("/proc/thread-self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own)
        self.enter = ["nsenter", "-t", str(pid), "-n"]
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        for enter, address, at in (([], here, device), (self.enter, there, "eth0")):
            run(*enter, "ip", "address", "add", f"{address[0]}/24", "dev", at)
            run(*enter, "ip", "address", "add", f"{address[1]}/64", "dev", at, "nodad")
            for up in ("lo", at):
                run(*enter, "ip", "link", "set", up, "up")
        for gateway in here:
            run(*self.enter, "ip", "route", "add", "default", "via", gateway)

    def close(self) -> None:
        self._sleeper.terminate()
        self._sleeper.wait(WAIT_S)


@pytest.fixture
def outside() -> Iterator[Neighbour]:
    """This thread is in a network of its own, and a server in another."""
    with own_network():
        neighbour = Neighbour("eth0", (OURS, OURS6), (OUTSIDE, OUTSIDE6))
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
def gateway(outside: Neighbour, outside_at: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A forward proxy on 3128, and a transparent listener on 15901, which allow HOST, `outside_at`."""
    with NameServer({HOST: [outside_at]}) as dns:
        objects = m.gateway(
            m.forward_listener(3128), {"name": "redirected", "port": 15901, "protocol": "egressproxy.io/transparent"}
        )
        objects["spec"]["addresses"] = [{"type": "IPAddress", "value": each} for each in ("0.0.0.0", "::")]
        policy = m.policy([HOST], dns=dns.address, cidrs=[outside_at])
        with GatewayProcess(tmp_path / "gateway", [objects, policy]) as process:
            yield process


def curl(host: str, address: str, *options: str) -> list[str]:
    """curl, which believes that `host` has this address."""
    where = f"{host}:80:[{address}]" if ":" in address else f"{host}:80:{address}"
    return ["curl", "--silent", "--max-time", "3", "--resolve", where, *options, f"http://{host}/"]


def datagrams(address: str, enter: Callable[..., list[str]]) -> list[str]:
    """What comes back of a datagram to each port."""
    return [heard(*enter("nc", "-u", "-w", "1", address, str(port)), told="hi") for port in PORTS]


def lost_neighbours() -> None:
    """Nobody on the cable is known any more, as after a while: they have to be asked where they are."""
    run("ip", "neighbour", "flush", "all")


def as_written(heading: str) -> str:
    """The rules of the page, where the user of the gateway is that of this process."""
    return block(heading).replace("skuid egressproxy", f"skuid {os.getuid()}")


def test_every_recipe_is_tested_here():
    headings = re.findall(r"^### (.+)$", PAGE[PAGE.index("## Deny the direct way") :], re.MULTILINE)
    assert headings == [REDIRECT, PROXY, ROUTER, "NetworkPolicy", "CiliumNetworkPolicy"]


@needs_network
@BOTH
def test_everything_that_this_machine_sends_is_redirected_or_dropped(
    outside: Neighbour, gateway: GatewayProcess, outside_at: str
):
    assert heard(*as_nobody(*curl("other.egress.test", outside_at))) == "outside"
    assert datagrams(outside_at, as_nobody) == ["udp hi"] * 2
    load_rules(as_written(REDIRECT))
    lost_neighbours()
    assert heard(*as_nobody(*curl(HOST, outside_at))) == "outside"
    gateway.wait_for_record(authority=f"{HOST}:80", listener="redirected", status=200)
    assert "not allowed by policy" in heard(*as_nobody(*curl("other.egress.test", outside_at)))
    assert datagrams(outside_at, as_nobody) == ["", ""]
    assert heard(*curl("other.egress.test", outside_at)) == "outside"  # the gateway's own user


@needs_network
@BOTH
def test_a_proxy_is_the_only_way(outside: Neighbour, gateway: GatewayProcess, outside_at: str):
    through = ["--proxy", "http://127.0.0.1:3128"]
    assert heard(*as_nobody(*curl(HOST, outside_at))) == "outside"
    load_rules(as_written(PROXY))
    lost_neighbours()
    assert heard(*as_nobody(*curl(HOST, outside_at))) == ""
    assert datagrams(outside_at, as_nobody) == ["", ""]
    assert heard(*as_nobody(*curl(HOST, outside_at, *through))) == "outside"
    assert "not allowed by policy" in heard(*as_nobody(*curl("other.egress.test", outside_at, *through)))


@needs_network
@BOTH
def test_a_router_redirects_what_comes_in_and_forwards_nothing(
    outside: Neighbour, gateway: GatewayProcess, outside_at: str
):
    agents = Neighbour("br-agents", ("10.9.0.1", "2001:db8:7::1"), ("10.9.0.7", "2001:db8:7::7"))

    def there(*command: str) -> list[str]:
        return [*agents.enter, *command]

    try:
        for switch in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            Path(f"/proc/sys/net/{switch}").write_text("1", encoding="ascii")
        assert heard(*there(*curl("other.egress.test", outside_at))) == "outside"
        assert datagrams(outside_at, there) == ["udp hi"] * 2
        load_rules(as_written(ROUTER))
        lost_neighbours()
        assert heard(*there(*curl(HOST, outside_at))) == "outside"
        record = gateway.wait_for_record(authority=f"{HOST}:80", listener="redirected", status=200)
        assert record["client"].startswith(("10.9.0.7:", "[2001:db8:7::7]:", "2001:db8:7::7"))
        assert "not allowed by policy" in heard(*there(*curl("other.egress.test", outside_at)))
        assert datagrams(outside_at, there) == ["", ""]
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
