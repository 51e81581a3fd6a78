"""Limits with keys, with real processes: two workers of one gateway, and two gateways with a Redis."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from egressproxy.operators.audit.verification import verified
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, read_head, read_message
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.redis_server import PASSWORD, RedisServer, redis_server
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(180)
HOST = "origin.test"
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: origin.test\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
PER_TEAM = {"per": "Header", "header": "X-Team"}


def redis_store(timeout: str) -> m.Manifest:
    """The Redis that the Backend `redis` is, with the password of a Secret."""
    return {
        "type": "Redis",
        "backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "redis"},
        "secretRef": {"name": "redis-password"},
        "timeout": timeout,
    }


def objects(port: int, origin: Origin, **limits: object) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(port)),
        m.http_route("all", m.prefix_rule("/", "origin"), hostnames=[HOST]),
        m.ip_backend("origin", origin.port),
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


@contextmanager
def two_gateways(
    folder: Path, ports: list[int], limit: int, timeout: str
) -> Iterator[tuple[RedisServer, list[GatewayProcess]]]:
    """Two gateways that count together: so many requests in a day of each team."""
    with Origin() as origin, redis_server() as redis, ExitStack() as stack:
        gateways = []
        for number, port in enumerate(ports):
            requests = [{**PER_TEAM, "limit": limit, "unit": "Day"}]
            written = [
                *objects(port, origin, requests=requests, store=redis_store(timeout)),
                m.ip_backend("redis", redis.port, protocol="TCP"),
                m.secret("redis-password", {"token": PASSWORD}),
            ]
            gateway = GatewayProcess(folder / f"gw{number}", written, arguments=["--workers", "2"])
            gateways.append(stack.enter_context(gateway))
        yield redis, gateways


def test_two_gateways_with_a_redis_pass_exactly_the_limit(tmp_path: Path):
    ports = [free_port(), free_port()]
    with two_gateways(tmp_path, ports, limit=100, timeout="5s") as (redis, gateways):
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
    with two_gateways(tmp_path, ports, limit=400, timeout="1s") as (redis, gateways):
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


def test_a_redis_is_reached_over_tls_that_is_verified(tmp_path: Path):
    pki, port = Pki(), free_port()
    leaf = pki.issue("redis.test")
    certificate = chain(leaf), leaf.private_key_pem.bytes().decode()
    with Origin() as origin, redis_server(certificate) as redis, NameServer({"*": ["127.0.0.1"]}) as dns:
        store = {**redis_store("5s"), "onFailure": "Deny"}
        limits = {"requests": [{**PER_TEAM, "limit": 10, "unit": "Day"}], "store": store}
        written = [
            *objects(port, origin)[:-1],
            m.policy(limits=limits, dns=dns.address, cidrs=ALLOW_LOOPBACK),
            m.backend("redis", "redis.test", redis.tls_port, tls=True, ca="ca", protocol="TCP"),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.secret("redis-password", {"token": PASSWORD}),
        ]
        with GatewayProcess(tmp_path / "gw", written) as gateway:
            seen = statuses([port], clients=4, each=5)
            assert seen == {200: 10, 429: 10}
            assert 'egress_limit_store_up{filter="limits"} 1' in gateway.admin("/metrics")[1]


def test_clients_that_hang_up_leave_one_record_each_and_no_place_of_two_workers(tmp_path: Path):
    port, places, asked = free_port(), 8, threading.Semaphore(0)
    all_are_here = threading.Barrier(places)
    event = b'data: {"choices":[{"index":0,"delta":{"content":"abcdefgh"}}]}\n\n'
    (tmp_path / "audit").mkdir()

    def provider(sock):
        _, body = read_message(sock)
        asked.release()
        if b"stream" in body:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            sock.sendall(b"%b%x\r\n%b\r\n" % (head, len(event), event))
        elif b"waits" not in body:
            all_are_here.wait(WAIT_S)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        sock.recv(1)

    def hang_up(phase):
        body = json.dumps(
            {"model": "waits", "messages": [], **({"stream": True} if phase == "events" else {})}
        ).encode()
        with client(port) as sock:
            if phase == "at once":  # on a connection that was accepted
                assert ask(sock, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 404
            sock.sendall(HEAD % len(body) + (body[:-5] if phase == "upload" else body))
            if phase == "answer":
                assert asked.acquire(timeout=WAIT_S)
            elif phase == "events":
                read_head(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with ExitStack() as stack:
        origin = stack.enter_context(Origin(provider))
        written = objects(port, origin)[:-1]
        tokens = {"type": "Tokens", "limit": 10**6, "unit": "Day"}
        config: m.Manifest = {"limits": [tokens, {"type": "Concurrency", "limit": places}]}
        redis = stack.enter_context(redis_server())
        config["store"] = {**redis_store("5s"), "timeout": 5}
        written += [m.ip_backend("redis", redis.port, protocol="TCP"), m.secret("redis-password", {"token": PASSWORD})]
        audit = {"name": "audit", "type": "egressproxy.io/Audit:v1", "phase": "request-headers", "priority": 0}
        audit["config"] = {"folder": str(tmp_path / "audit")}
        qos = {"name": "qos", "type": "egressproxy.io/QoSController:v1", "phase": "request-headers", "config": config}
        written.append(m.policy(extensions=[audit, qos]))
        gateway = GatewayProcess(tmp_path / "gw", written, arguments=["--workers", "2"])
        stack.enter_context(gateway)
        phases = ["upload", "answer", "events", "at once"] * places
        for phase in phases:
            hang_up(phase)
        all_known = len(phases) + places  # and each 404
        wait_until(lambda: len(gateway.records) == all_known, "each has a record")
        assert sum(record["reason"] == "client_gone" for record in gateway.records) == len(phases)
        body = b'{"model": "m", "messages": []}'
        seen = statuses([port], clients=places, each=1, body=body, path="/v1/chat/completions")
        assert seen == {200: places}, "all places are free"
        wait_until(lambda: len(gateway.records) == all_known + places, "each has a record")
        wait_until(lambda: audited(tmp_path / "audit") == len(phases) + places, "each is audited once")
        assert "Warning" not in gateway.stderr


def audited(folder: Path) -> int:
    return sum(report.records - report.files for report in verified(folder, None))
