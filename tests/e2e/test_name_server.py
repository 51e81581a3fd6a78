"""A listener of DNS in a network of its own, for clients whose queries nftables redirects: dig, and glibc."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import pytest

from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.own_network import NOBODY, as_nobody, can_have_own_network, load_rules, own_network
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

ORIGIN, DENIED = "origin.egress.test", "denied.egress.test"
#: Where clients believe that their name server is. Nobody is there.
ELSEWHERE = "10.9.0.53"
RULES = """
table inet egress {
  chain output {
    type nat hook output priority -100; policy accept;
    meta skuid 0 accept
    meta l4proto { tcp, udp } th dport 53 redirect to :15353
  }
}
"""


def objects(port: int, dns: str, **sections: object) -> list[m.Manifest]:
    gateway = m.gateway({"name": "dns", "port": port, "protocol": "egressproxy.io/dns"})
    return [gateway, m.policy([ORIGIN, "*.loop.test"], dns=dns, cidrs=["10.9.0.0/16"], **sections)]


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer({ORIGIN: ["10.9.0.9", "fd09::9"], DENIED: ["10.9.0.9"]}) as made:
        yield made


def ask(port: int, name: str, *, tcp: bool = False) -> tuple[str, list[str]]:
    query = dns.message.make_query(name, "A")
    over = dns.query.tcp if tcp else dns.query.udp
    found = over(query, "127.0.0.1", WAIT_S, port)
    return dns.rcode.to_text(found.rcode()), [each.to_text() for records in found.answer for each in records]


@pytest.mark.skipif(not can_have_own_network(), reason="needs root and nftables")
@pytest.mark.skipif(shutil.which("dig") is None, reason="needs dig")
def test_redirected_clients_learn_the_names_that_policy_allows(tmp_path: Path):
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(f"nameserver {ELSEWHERE}\n")

    def getaddrinfo(name: str) -> set[str]:
        """The addresses that glibc tells a program of another user."""
        mount = f"mount --bind {resolv} /etc/resolv.conf && exec setpriv --reuid={NOBODY} --clear-groups"
        command = ["unshare", "--mount", "sh", "-c", f"{mount} getent ahosts {name}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        return {line.split()[0] for line in ended.stdout.splitlines()}

    def dig(*arguments: str) -> str:
        command = as_nobody("dig", f"@{ELSEWHERE}", "+tries=1", "+timeout=20", *arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd="/").stdout

    with own_network("10.9.0.9/24", "fd09::9/64"):
        load_rules(RULES)
        with NameServer({ORIGIN: ["10.9.0.9", "fd09::9"], DENIED: ["10.9.0.9"]}) as names:
            manifests = objects(15353, names.address, message="ask the platform team")
            manifests[0]["spec"]["addresses"] = [{"type": "IPAddress", "value": "0.0.0.0"}]
            manifests[1]["spec"]["addresses"]["allow"][0]["cidrs"].append("fd09::/64")
            with GatewayProcess(tmp_path / "gateway", manifests) as gateway:
                assert dig("+short", ORIGIN) == "10.9.0.9\n"
                assert dig("+short", "+tcp", ORIGIN, "AAAA") == "fd09::9\n"
                told = dig(DENIED)
                assert "status: REFUSED" in told
                assert "EDE: 15 (Blocked)" in told
                assert "ask the platform team" in told
                assert "EDE: 21 (Not Supported)" in dig("-x", "10.9.0.9")
                assert getaddrinfo(ORIGIN) == {"10.9.0.9", "fd09::9"}
                assert getaddrinfo(DENIED) == set()
                resolv.write_text(f"nameserver {ELSEWHERE}\nsearch team.svc.cluster.local\noptions ndots:5\n")
                assert getaddrinfo(ORIGIN) == {"10.9.0.9", "fd09::9"}, "as in a Pod"
                manifests[1]["spec"]["nameServer"] = {"denials": "NXDomain"}
                gateway.reload(manifests)
                assert "status: NXDOMAIN" in dig(DENIED)
                assert names.asked(DENIED) == 0
                assert gateway.metric("egress_name_server_queries_total", type="AAAA", result="noerror") >= 2
                record = gateway.wait_for_record(authority=f"{DENIED}:443")
                assert (record["method"], record["reason"]) == ("A", "destination_not_allowed")


def test_workers_share_the_socket_and_a_reload_moves_it(tmp_path: Path, names: NameServer):
    """One of datagrams as the others: bound once, closed with its listener."""
    port, other = free_port(), free_port()
    with GatewayProcess(tmp_path, objects(port, names.address), arguments=["--workers", "2"]) as gateway:
        for is_tcp in (False, True):
            assert ask(port, ORIGIN, tcp=is_tcp) == ("NOERROR", ["10.9.0.9"])
            assert ask(port, DENIED, tcp=is_tcp) == ("REFUSED", [])
        gateway.reload(objects(other, names.address))
        assert ask(other, ORIGIN) == ("NOERROR", ["10.9.0.9"])
        with socket.socket(type=socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", port))
        assert gateway.metric("egress_name_server_queries_total", type="A", result="noerror") == 3


def test_a_gateway_that_is_its_own_name_server_says_so(tmp_path: Path):
    port = free_port()
    with GatewayProcess(tmp_path, objects(port, f"127.0.0.1:{port}")) as gateway:
        assert ask(port, "a.loop.test") == ("REFUSED", [])
        assert gateway.wait_for_record(authority="a.loop.test:443")["reason"] == "loop_detected"
