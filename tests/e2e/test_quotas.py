"""Limits with keys, with real processes: two workers of one gateway, and two gateways with a Redis."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, client, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.redis_server import PASSWORD, redis_server
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(180)
HOST = "origin.test"
PER_TEAM = {"per": "Header", "header": "X-Team"}


def origin_backend(port: int, name: str = "origin", protocol: str = "HTTP11") -> m.Manifest:
    destination = {
        "type": "Ip",
        "ip": {"address": "127.0.0.1"},
        "ports": [{"number": port, "protocol": protocol, "tls": {"mode": "None"}}],
    }
    return m.manifest("egressproxy.io/v1alpha1", "Backend", name, "agents", spec={"destination": destination})


def objects(port: int, origin: Origin, **limits: object) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(port)),
        m.http_route("all", m.prefix_rule("/", "origin"), hostnames=[HOST]),
        origin_backend(origin.port),
        m.policy(limits=limits),
    ]


def statuses(
    ports: list[int], *, clients: int, each: int, team: str = "a", body: bytes = b"", path: str = "/"
) -> Counter[int]:
    """How many answers of each status many clients get at once, spread over the ports."""
    seen: list[int] = []
    begin = threading.Barrier(clients)
    fields = {"Host": HOST, "X-Team": team, "Content-Type": "application/json"}

    def run(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", ports[number % len(ports)], timeout=WAIT_S)
        begin.wait()
        for _ in range(each):
            connection.request("POST", path, body, fields)
            answer = connection.getresponse()
            answer.read()
            seen.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(seen)


def test_two_workers_pass_exactly_the_limit_of_each_key(tmp_path: Path):
    port = free_port()
    with Origin() as origin:
        limits = {
            "requests": [{**PER_TEAM, "limit": 100, "unit": "Day"}, {"per": "Gateway", "limit": 260, "unit": "Hour"}]
        }
        written = objects(port, origin, **limits)
        with GatewayProcess(tmp_path / "gw", written, arguments=["--workers", "2"]) as gateway:
            for team in ("a", "b"):
                assert statuses([port], clients=16, each=15, team=team) == {200: 100, 429: 140}
            assert statuses([port], clients=16, each=15, team="c") == {200: 60, 429: 180}, "of all together"
            with client(port) as sock:
                sock.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Team: a\r\n\r\n".encode())
                head, body = read_message(sock)
            assert b'RateLimit-Policy: "requests-day-header";q=100;w=86400' in head
            assert b'RateLimit: "requests-day-header";r=0;t=' in head
            assert json.loads(body)["error"]["reason"] == "request_rate"
            written[-1]["spec"]["limits"]["requests"] = [{**PER_TEAM, "limit": 105, "unit": "Day"}]
            gateway.replace(written)
            wait_until(lambda: statuses([port], clients=1, each=1)[200] == 1, "the reload is served")
            assert statuses([port], clients=8, each=10)[200] == 4, "what was spent stays spent"


def test_two_workers_pass_no_more_tokens_than_there_are(tmp_path: Path):
    port = free_port()
    usage = {"prompt_tokens": 30, "completion_tokens": 20}
    said = json.dumps({"choices": [], "usage": usage}).encode()

    def provider(sock):
        while True:
            read_message(sock)
            sock.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
            )

    messages = [{"role": "user", "content": "y" * 104}]
    asked = json.dumps({"model": "m", "max_tokens": 20, "messages": messages}).encode()
    with Origin(provider) as origin:
        written = objects(port, origin, tokens=[{**PER_TEAM, "limit": 2000, "unit": "Day"}])
        with GatewayProcess(tmp_path / "gw", written, arguments=["--workers", "2"]):
            seen = statuses([port], clients=8, each=10, body=asked, path="/v1/chat/completions")
            assert seen == {200: 40, 429: 40}, "50 tokens each, reserved as 50 and settled as 50"


def test_two_gateways_with_a_redis_pass_exactly_the_limit(tmp_path: Path):
    ports = [free_port(), free_port()]
    with Origin() as origin, redis_server() as redis, ExitStack() as stack:
        gateways = []
        for number, port in enumerate(ports):
            store = {
                "type": "Redis",
                "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "redis"},
                "secretRef": {"name": "redis-password"},
                "timeout": "5s",
            }
            written = [
                *objects(port, origin, requests=[{**PER_TEAM, "limit": 100, "unit": "Day"}], store=store),
                origin_backend(redis.port, "redis", "TCP"),
                m.secret("redis-password", {"token": PASSWORD}),
            ]
            gateway = GatewayProcess(tmp_path / f"gw{number}", written, arguments=["--workers", "2"])
            gateways.append(stack.enter_context(gateway))
        assert statuses(ports, clients=16, each=15) == {200: 100, 429: 140}
        assert statuses(ports, clients=16, each=15, team="b") == {200: 100, 429: 140}
        told = [gateway.metric("egress_limit_store_requests_total", result="ok") for gateway in gateways]
        assert sum(told) == 200
        redis.kill()
        wait_until(lambda: all(gateway.metric("egress_limit_store_up") == 0 for gateway in gateways), "it is away")
        passed = statuses(ports, clients=16, each=15, team="c")[200]
        assert 0 < passed <= 200
        for gateway in gateways:
            assert PASSWORD not in gateway.stderr + gateway.admin("/metrics")[1] + gateway.access_log_path.read_text()


def test_two_gateways_whose_redis_is_stopped_pass_what_was_left_once(tmp_path: Path):
    ports = [free_port(), free_port()]
    with Origin() as origin, redis_server() as redis, ExitStack() as stack:
        gateways = []
        for number, port in enumerate(ports):
            store = {
                "type": "Redis",
                "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "redis"},
                "secretRef": {"name": "redis-password"},
                "timeout": "1s",
            }
            written = [
                *objects(port, origin, requests=[{**PER_TEAM, "limit": 400, "unit": "Day"}], store=store),
                origin_backend(redis.port, "redis", "TCP"),
                m.secret("redis-password", {"token": PASSWORD}),
            ]
            gateway = GatewayProcess(tmp_path / f"gw{number}", written, arguments=["--workers", "2"])
            gateways.append(stack.enter_context(gateway))
        for gateway in gateways:
            wait_until(
                lambda gateway=gateway: gateway.metric("egress_limit_store_up") == 2, "no worker waits for clients"
            )
        assert statuses(ports, clients=4, each=25) == {200: 100}
        for port in ports * 2:  # one by one, so that both machines know what is left, but for one exchange
            assert statuses([port], clients=1, each=1) == {200: 1}
        redis.hang()
        for gateway in gateways:
            wait_until(lambda gateway=gateway: gateway.metric("egress_limit_store_up") == 0, "a worker does not notice")
        assert statuses(ports[:1], clients=8, each=40) == {200: 148, 429: 172}
        redis.go_on()
        for gateway in gateways:
            wait_until(lambda gateway=gateway: gateway.metric("egress_limit_store_up") == 2, "a worker is not back")
        passed = statuses(ports, clients=8, each=60)[200]
        assert 0 < passed <= 400 - 104 - 148


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_redis_is_reached_over_tls_and_only_with_a_certificate_of_its_own(tmp_path: Path, is_trusted: bool):
    pki, port = Pki(), free_port()
    leaf = pki.issue("redis.test")
    certificate = chain(leaf), leaf.private_key_pem.bytes().decode()
    with Origin() as origin, redis_server(certificate) as redis, NameServer({"*": ["127.0.0.1"]}) as dns:
        store = {
            "type": "Redis",
            "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "redis"},
            "secretRef": {"name": "redis-password"},
            "timeout": "5s",
            "onFailure": "Deny",
        }
        limits = {"requests": [{**PER_TEAM, "limit": 10, "unit": "Day"}], "store": store}
        written = [
            *objects(port, origin)[:-1],
            m.policy(limits=limits, dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.backend("redis", "redis.test", redis.tls_port, tls=True, ca="ca", protocol="TCP"),
            m.config_map("ca", {"ca.crt": (pki if is_trusted else Pki()).ca_pem}),
            m.secret("redis-password", {"token": PASSWORD}),
        ]
        with GatewayProcess(tmp_path / "gw", written) as gateway:
            seen = statuses([port], clients=4, each=5)
            assert seen == ({200: 10, 429: 10} if is_trusted else {503: 20})
            told = gateway.admin("/metrics")[1]
            assert ('egress_limit_store_up{filter="limits"} 1' in told) is is_trusted
