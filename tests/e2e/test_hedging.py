"""Hedging, with the real process: what one endpoint that is slow now and then costs its clients, and its neighbours."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.test_failover import place
from tests.e2e.test_resilience import Load, Mortal
from tests.e2e.test_retries import to_pods
from tests.e2e.world import client, read_message
from tests.support import manifests as m
from tests.support.fault_server import Fault, FaultServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

REQUESTS = 400


class Sluggish(Mortal):
    """An origin that takes `slow_s` for each tenth request."""

    slow_s = 0.0

    def _serve(self, sock: socket.socket) -> None:
        try:
            while True:
                read_message(sock)
                self.asked += 1
                if self.slow_s and self.asked % 10 == 0:
                    time.sleep(self.slow_s)
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (OSError, AssertionError, EOFError):
            pass
        finally:
            self._sockets.discard(sock)
            sock.close()


@dataclass
class Drilled:
    """What came of it: `p99_s` of the requests, how many requests the origins have got, hedges by outcome."""

    p99_s: float
    asked: int
    statuses: list[int]
    hedges: dict[str, int]

    @property
    def extra(self) -> int:
        return self.asked - len(self.statuses)


def drilled(tmp_path: Path, slow_s: float, requests: int, traffic: dict[str, Any]) -> Drilled:
    """One of three endpoints is slow for every tenth of its requests."""
    port = free_port()
    with ExitStack() as stack:
        origins = [stack.enter_context(Sluggish()) for _ in range(3)]
        origins[0].slow_s = slow_s
        objects = [*to_pods(port, *(origin.port for origin in origins)), m.policy(traffic=traffic)]
        gateway = stack.enter_context(GatewayProcess(tmp_path, objects))
        load = Load(port, 4)
        load.wait_for(requests)
        load.stop()
        wait_until(lambda: len(gateway.records) >= len(load.seen), "all is logged")
        times = sorted(record["duration_ms"] / 1000 for record in gateway.records)
        hedges = {
            outcome: int(gateway.metric("egress_hedges_total", outcome=outcome))
            for outcome in ("won", "cancelled", "failed", "over_budget")
        }
        return Drilled(times[len(times) * 99 // 100], sum(each.asked for each in origins), load.seen, hedges)


def budget(percent: int) -> dict[str, Any]:
    return {"attempts": 0, "budget": {"percent": percent, "minPerSecond": 0, "interval": "60s"}}


def test_the_slowest_hundredth_of_requests_is_as_slow_as_the_delay_and_the_budget_holds(tmp_path: Path):
    slow_s, hedging = 0.6, {"hedgingDelay": "50ms"}
    for name in ("without", "with", "bound"):
        (tmp_path / name).mkdir()
    without = drilled(tmp_path / "without", slow_s, REQUESTS, {})
    assert set(without.statuses) == {200}
    assert without.p99_s >= slow_s
    assert without.extra == 0
    hedged = drilled(tmp_path / "with", slow_s, REQUESTS, {"hedging": hedging, "retries": budget(20)})
    assert set(hedged.statuses) == {200}
    assert hedged.p99_s < slow_s / 2
    assert 0 < hedged.extra <= len(hedged.statuses) * 0.2
    assert hedged.hedges["won"] > 0
    assert hedged.hedges["failed"] == 0
    bound = drilled(tmp_path / "bound", slow_s, REQUESTS, {"hedging": hedging, "retries": budget(1)})
    assert set(bound.statuses) == {200}
    assert 0 < bound.extra <= len(bound.statuses) * 0.01
    assert bound.hedges["over_budget"] > 0


class Hasty(threading.Thread):
    """A client that asks again and again, and now and then leaves before it is answered. `statuses` of the others."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.statuses: list[int] = []
        self.failures: list[str] = []
        self._port = port
        self._random = random.Random(seed)
        self.start()

    def run(self) -> None:
        sock = client(self._port)
        try:
            for _ in range(150):
                sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                if self._random.random() < 0.1:
                    time.sleep(self._random.random() * 0.06)
                    sock.close()
                    sock = client(self._port)
                else:
                    self.statuses.append(int(read_message(sock)[0].split(b" ", 2)[1]))
        except (OSError, AssertionError) as error:
            self.failures.append(repr(error))
        finally:
            sock.close()


def test_nothing_is_lost_and_nothing_is_left_where_providers_fail_in_every_way_under_hedged_requests(tmp_path: Path):
    port, chance = free_port(), random.Random(7)
    faults = [
        each for each in Fault if each not in (Fault.NONE, Fault.TRUNCATED, Fault.RESET_AFTER_HEAD, Fault.THROTTLED)
    ]
    traffic = {
        "hedging": {"hedgingDelay": "20ms", "maxAttempts": 3},
        "retries": {"attempts": 3, "backoff": "1ms", "budget": {"percent": 100, "minPerSecond": 1000}},
        "healthCheck": {"passive": {"consecutive5XxErrors": 3, "baseEjectionTime": "300ms"}},
        "circuitBreaker": {"maxParallelRetries": 100},
        "timeouts": {"backendRequest": "400ms"},
    }
    with ExitStack() as stack:
        servers = [stack.enter_context(FaultServer(name)) for name in ("first", "second", "third")]
        for server in servers[:2]:  # the third can always be asked
            server.says(*(chance.choice(faults) if chance.random() < 0.2 else Fault.NONE for _ in range(5000)))
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(cidrs=["127.0.0.0/8"], traffic=traffic),
            *map(place, servers),
            m.failover("any", "first", "second", "third", firstByte="300ms"),
            m.http_route("route", m.prefix_rule("/", "any")),
        ]
        gateway = stack.enter_context(GatewayProcess(tmp_path, objects))
        clients = [Hasty(port, seed) for seed in range(4)]
        for each in clients:
            each.join(WAIT_S)
        assert [each.failures for each in clients] == [[]] * 4
        assert {status for each in clients for status in each.statuses} == {200}
        wait_until(lambda: len(gateway.records) == 600, "all is logged")
        assert gateway.metric("egress_hedges_total", outcome="won") > 0
        wait_until(
            lambda: gateway.metric("egress_upstream_connections", state="active") == 0, "every attempt gives all back"
        )
        assert gateway.metric("egress_circuit_breakers_open") == 0
        assert "internal" not in gateway.stderr
