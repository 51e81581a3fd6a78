"""Endpoints that die and return under load, with the real process: what requests cost, and what is told."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.e2e.test_retries import ask, to_pods
from tests.e2e.world import client, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import WAIT_S, wait_until

PASSIVE = {"consecutive5XxErrors": 3, "baseEjectionTime": "500ms", "maxEjectionTime": "1s", "maxEjectionPercent": 50}


class Mortal:
    """An origin on one port that can die, with all its connections, and return."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0, status: bytes = b"200 OK") -> None:
        self.address = address
        self.port = port or free_port()
        self.status = status
        self.asked = 0
        self.checked = 0
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.live()

    def live(self) -> None:
        self._listener = socket.create_server((self.address, self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def die(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for sock in list(self._sockets):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self._sockets.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            while True:
                head, _ = read_message(sock)
                if b"egressproxy-health-check" in head:
                    self.checked += 1
                else:
                    self.asked += 1
                sock.sendall(b"HTTP/1.1 " + self.status + b"\r\nContent-Length: 2\r\n\r\nok")
        except (OSError, AssertionError, EOFError):
            pass
        finally:
            self._sockets.discard(sock)
            sock.close()

    def __enter__(self) -> Mortal:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()


class Load:
    """Clients that ask one request after the other, each on one connection, until `stop`; statuses in `seen`."""

    def __init__(self, port: int, clients: int) -> None:
        self.seen: list[int] = []
        self.failures: list[str] = []
        self._port = port
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            with client(self._port) as sock:
                while not self._is_over:
                    self.seen.append(ask(sock)[0])
        except Exception as error:
            self.failures.append(repr(error))

    def wait_for(self, count: int) -> None:
        """Until so many more requests were answered."""
        goal = len(self.seen) + count
        wait_until(lambda: len(self.seen) >= goal or bool(self.failures), "requests are answered")

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not self.failures


def explained(gateway: GatewayProcess, port: int) -> list[dict[str, Any]]:
    status, text = gateway.admin(f"/explain?listener=http&url=http://127.0.0.1:{port}/")
    assert status == 200, text
    found = json.loads(text)
    return found["backends"][0]["endpoints"]


def test_no_request_fails_or_costs_more_than_one_failed_attempt_while_an_endpoint_dies_and_returns(
    tmp_path: Path,
):
    port = free_port()
    with ExitStack() as stack:
        origins = [stack.enter_context(Mortal()) for _ in range(3)]
        objects = to_pods(port, *(origin.port for origin in origins), retry={"attempts": 1, "backoff": "0s"})
        objects.append(m.policy(traffic={"healthCheck": {"passive": PASSIVE}}))
        gateway = stack.enter_context(GatewayProcess(tmp_path, objects, arguments=["--workers", "2"]))
        load = Load(port, 4)
        load.wait_for(100)
        mortal = origins[0]
        for _ in range(3):
            mortal.die()
            load.wait_for(400)
            wait_until(lambda: gateway.metric("egress_endpoint_ejections_total") >= 1, "it is ejected")
            mortal.live()
            before = mortal.asked
            wait_until(lambda before=before: mortal.asked > before + 20, "it serves again")
        load.stop()
        assert set(load.seen) == {200}
        wait_until(lambda: len(gateway.records) >= len(load.seen), "all is logged")
        records = gateway.records
        assert max(record.get("attempts", 1) for record in records) == 2
        # Three failures in a row, and one request for each trial: not one for each request that came.
        retried = sum(record.get("attempts", 1) == 2 for record in records)
        assert retried < len(load.seen) / 10
        states = {endpoint["address"]: endpoint["health"] for endpoint in explained(gateway, port)}
        assert states[f"127.0.0.1:{origins[1].port}"] == "healthy"
        status, events = gateway.admin("/api/v1/namespaces/agents/events")
        told = {item["reason"]: item for item in json.loads(events)["items"]}
        assert status == 200
        assert {"EndpointEjected", "EndpointReturned"} <= told.keys()
        assert told["EndpointEjected"]["involvedObject"]["kind"] == "Service"


def test_health_checks_take_a_dead_endpoint_out_before_requests_find_it_and_bring_it_back(shared: SharedGateway):
    port = free_port()
    check = {"type": "HTTP", "interval": "300ms", "timeout": "1s", "unhealthyThreshold": 1, "healthyThreshold": 1}
    with Mortal() as one, Mortal() as other:
        objects = [*to_pods(port, one.port, other.port), m.policy(traffic={"healthCheck": {"active": check}})]
        with shared.serving(objects) as gateway:
            wait_until(lambda: one.checked > 1 and other.checked > 1, "both are asked")
            one.die()
            label = {"backend": "agents/pods", "endpoint": f"127.0.0.1:{one.port}", "state": "unhealthy"}
            wait_until(lambda: gateway.metric("egress_endpoint_health", **label) == 1, "it is unhealthy")
            with client(port) as sock:
                assert {ask(sock)[0] for _ in range(10)} == {200}
            assert all(record.get("attempts", 1) == 1 for record in gateway.records)
            other.die()
            label["endpoint"] = f"127.0.0.1:{other.port}"
            wait_until(lambda: gateway.metric("egress_endpoint_health", **label) == 1, "the other is, too")
            with client(port) as sock:
                status, _, body = ask(sock)
                assert (status, b"no_healthy_endpoint" in body) == (503, True)
            one.live()
            healthy = {"backend": "agents/pods", "endpoint": f"127.0.0.1:{one.port}", "state": "healthy"}
            wait_until(lambda: gateway.metric("egress_endpoint_health", **healthy) == 1, "it is back")
            with client(port) as sock:
                assert ask(sock)[0] == 200


def test_endpoints_of_the_gateways_zone_are_preferred(tmp_path: Path):
    port = free_port()
    with Mortal() as near, Mortal() as far:
        objects = to_pods(port, near.port, far.port)
        for each in objects:
            if each["kind"] == "EndpointSlice":
                zone = "a" if each["ports"][0]["port"] == near.port else "b"
                each["endpoints"][0]["hints"] = {"forZones": [{"name": zone}]}
        with GatewayProcess(tmp_path, objects, arguments=["--zone", "a"]), client(port) as sock:
            assert {ask(sock)[0] for _ in range(10)} == {200}
            assert (near.asked, far.asked) == (10, 0)
