"""Source addresses by the real process: what servers, parents and health checks see of the gateway, pools included."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.scripted_proxy import BasicProxy
from tests.support.tokens import TokenIssuer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(90)


class SeeingOrigin(Origin):
    """Answers each request with the address that it came from, and counts connections by it."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        super().__init__(self._tell)

    def _tell(self, sock: socket.socket) -> None:
        peer = sock.getpeername()[0]
        self.seen[peer] += 1
        while True:
            read_message(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(peer), peer.encode()))


def told(port: int, host: str, origin: int, *fields: str) -> tuple[int, str]:
    lines = "".join(f"{field}\r\n" for field in fields)
    with client(port) as sock:
        status, body = ask(sock, get(host, origin).removesuffix(b"\r\n") + lines.encode() + b"\r\n")
    return status, body.decode()


def tunnel(port: int, host: str, origin: int) -> str:
    with client(port) as sock:
        sock.sendall(f"CONNECT {host}:{origin} HTTP/1.1\r\nHost: {host}:{origin}\r\n\r\n".encode())
        assert b" 200 " in read_message(sock)[0]
        return ask(sock, get(host, origin, absolute=False))[1].decode()


def test_policies_backends_checks_and_tunnels_each_go_out_from_their_own(tmp_path: Path):
    forward, reverse = free_port(), free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, SeeingOrigin() as origin, SeeingOrigin() as checked:
        own = m.ip_backend("own", origin.port)
        own["spec"]["sourceAddress"] = {"addresses": ["127.0.0.3"]}
        health = m.ip_backend("health", checked.port)
        health["spec"]["sourceAddress"] = {"addresses": ["127.0.0.4", "::1"]}
        check = {"healthCheck": {"active": {"type": "HTTP", "http": {"path": "/"}, "interval": "1s"}}}
        objects = [
            m.gateway(m.forward_listener(forward), m.http_listener(reverse)),
            m.policy(
                ["a.test"],
                dns=dns.address,
                cidrs=ALLOW_LOOPBACK,
                traffic=check,
                sourceAddress={"addresses": ["127.0.0.2"]},
            ),
            own,
            health,
            m.http_route("own", m.prefix_rule("/own", "own"), m.prefix_rule("/health", "health"), section="http"),
        ]
        with GatewayProcess(tmp_path / "gw", objects) as gateway:
            assert told(forward, "a.test", origin.port) == (200, "127.0.0.2")
            assert tunnel(forward, "a.test", origin.port) == "127.0.0.2"
            with client(reverse) as sock:
                assert ask(sock, b"GET /own HTTP/1.1\r\nHost: x\r\n\r\n") == (200, b"127.0.0.3")
            wait_until(lambda: checked.seen["127.0.0.4"] >= 2, "no health check has come")
            assert set(checked.seen) == {"127.0.0.4"}
            # Another source has connections of its own, though idle ones lead to the same place.
            objects[1]["spec"]["sourceAddress"] = {"addresses": ["127.0.0.5"]}
            gateway.replace(objects)
            gateway.wait_for_metric("egress_config_generation", 2)
            assert told(forward, "a.test", origin.port) == (200, "127.0.0.5")
            # One that is not there: nothing goes out from another.
            before = set(origin.seen)
            objects[1]["spec"]["sourceAddress"] = {"addresses": ["192.0.2.7"]}
            gateway.replace(objects)
            gateway.wait_for_metric("egress_config_generation", 3)
            status, body = told(forward, "a.test", origin.port)
            assert (status, "source address of the configuration" in body) == (503, True)
            assert "192.0.2.7" not in body
            record = gateway.wait_for_record(status=503)
            assert (record["reason"], "192.0.2.7 of sourceAddress" in record["detail"]) == (
                "upstream_connect_failed",
                True,
            )
            assert set(origin.seen) == before == {"127.0.0.2", "127.0.0.3", "127.0.0.5"}


def test_a_parent_is_reached_from_the_source_of_what_is_behind_it(two_workers: SharedGateway):
    forward = free_port()
    peers: list[str] = []

    class Proxy(BasicProxy):
        def _serve(self, sock: Any) -> None:
            peers.append(sock.getpeername()[0])
            super()._serve(sock)

    with NameServer({"proxy.test": ["127.0.0.1"]}) as dns, Origin() as origin, Proxy("robot", "c0rrect-horse") as proxy:
        parent = {"name": "corp", "credentialsRef": {"name": "login"}, "allowPlaintext": True}
        objects = [
            m.gateway(m.forward_listener(forward)),
            m.policy(
                ["api.test"],
                dns=dns.address,
                cidrs=ALLOW_LOOPBACK,
                parent=parent,
                sourceAddress={"addresses": ["127.0.0.2"]},
            ),
            m.backend("corp", "proxy.test", proxy.port),
            m.secret("login", {"username": "robot", "password": "c0rrect-horse"}, kind="kubernetes.io/basic-auth"),
        ]
        with two_workers.serving(objects), client(forward) as sock:
            assert ask(sock, get("api.test", origin.port)) == (200, b"ok")
    assert set(peers) == {"127.0.0.2"}


def test_each_identity_has_its_own_address_and_its_own_connections(tmp_path: Path):
    port, cluster = free_port(), TokenIssuer()
    pool = [f"127.0.1.{number}" for number in range(1, 5)]
    with NameServer({"*": ["127.0.0.1"]}) as dns, SeeingOrigin() as origin:
        vip = m.policy(
            ["a.test"], name="vip", subjects=[{"namespace": "vip"}], sourceAddress={"addresses": ["127.0.2.1"]}
        )
        vip["spec"]["targetRefs"][0]["sectionName"] = "forward"  # more specific
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                ["a.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK, sourceAddress={"pool": pool},
                identity={"token": {"issuers": [cluster.written]}}, traffic={"connections": {"shareTenants": True}},
            ),
            vip,
            cluster.config_map,
        ]  # fmt: skip

        def seen(namespace: str, account: str) -> str:
            token = cluster.token(f"system:serviceaccount:{namespace}:{account}")
            status, body = told(port, "a.test", origin.port, f"Proxy-Authorization: Bearer {token}")
            assert status == 200, body
            return body

        with GatewayProcess(tmp_path / "gw", objects):
            first = {account: seen("team", account) for account in map(str, range(12))}
            assert set(first.values()) <= set(pool)
            assert len(set(first.values())) > 1
            assert sum(origin.seen.values()) == len(first), "each has a connection of its own"
            assert {account: seen("team", account) for account in first} == first
            assert sum(origin.seen.values()) == len(first), "and gets it again"
            assert seen("vip", "a") == "127.0.2.1"
