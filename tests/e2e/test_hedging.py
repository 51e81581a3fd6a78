"""Hedging, with the real process: what one endpoint that is slow now and then costs its clients, and its neighbours."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.test_resilience import Load, Mortal
from tests.e2e.test_retries import to_pods
from tests.e2e.world import read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

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
