"""No request is lost while the configuration changes: 100,000 requests, 50 changes, a bad one among them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = 24
BAD_CHANGE = 3
HOST = "origin.egress.test"


class Load:
    """The generator as a process; `finish` tells it to end and returns its report."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.load"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.origin_port: int = self._read()["origin"]

    def begin(self, targets: list[tuple[str, int, str]], requests: int) -> None:
        assert self._process.stdin is not None
        asked = {"targets": targets, "connections": CONNECTIONS, "requests": requests}
        self._process.stdin.write(json.dumps(asked) + "\n")

    def finish(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the load generator ended with status {self._process.poll()}"
        read: dict[str, Any] = json.loads(line)
        return read


@pytest.fixture
def load() -> Iterator[Load]:
    made = Load()
    yield made
    made.stop()


def configuration(number: int, ports: list[int], origin_port: int, dns: str) -> list[manifests.Manifest]:
    """The configuration after `number` changes. What serves the load stays right; everything about it changes by turns.

    Names that are allowed, timeouts (and with them connection pools), a filter on the route, a further listener.
    """
    forward, reverse, extra = ports
    timeouts = {"connect": f"{5 + number % 3}s", "idle": "60s"}
    fields = {"set": [{"name": "X-Change", "value": str(number)}]}
    rule = manifests.prefix_rule("/", "origin")
    if number % 2:
        rule["filters"] = [{"type": "RequestHeaderModifier", "requestHeaderModifier": fields}]
    listeners = [manifests.forward_listener(forward), manifests.http_listener(reverse)]
    if number % 4 == 3:
        listeners.append(manifests.http_listener(extra, "extra"))
    return [
        manifests.gateway(*listeners),
        manifests.policy(
            [HOST, f"name-{number}.egress.test"], dns=dns, cidrs=["127.0.0.0/8"], traffic={"timeouts": timeouts}
        ),
        manifests.backend("origin", HOST, origin_port),
        manifests.http_route("all", rule, section="http"),
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("requests", "changes"), [(5_000, 6), pytest.param(100_000, 50, marks=pytest.mark.nightly)])
def test_no_request_is_lost_while_the_configuration_changes(load: Load, tmp_path: Path, requests: int, changes: int):
    ports = [free_port() for _ in range(3)]
    with NameServer({"*": ["127.0.0.1"]}) as dns:
        first = configuration(0, ports, load.origin_port, dns.address)
        with GatewayProcess(tmp_path / "gateway", first) as gateway:
            generation = gateway.metric("egress_config_generation")
            absolute = f"http://{HOST}:{load.origin_port}"
            load.begin([("127.0.0.1", ports[0], absolute), ("127.0.0.1", ports[1], "")], requests)

            for number in range(1, changes + 1):
                if number == BAD_CHANGE:
                    gateway.replace_text("kind: Gateway\nspec: [this is not")
                    gateway.wait_for_metric("egress_config_last_reload_success", 0)
                    assert gateway.metric("egress_config_generation") == generation
                    assert gateway.admin("/readyz")[0] == 200
                    continue
                gateway.replace(configuration(number, ports, load.origin_port, dns.address))
                generation += 1
                gateway.wait_for_metric("egress_config_generation", generation)
                assert gateway.metric("egress_config_last_reload_success") == 1

            report = load.finish()

            assert report["lost"] == 0, report
            assert report["answered"] >= requests
            # The last requests are counted when their answers are complete, which the client may see first.
            wait_until(lambda: gateway.metric("egress_requests_total", code="200") >= report["answered"])
            assert gateway.metric("egress_requests_total") == report["answered"]
        assert gateway.stop() == 0
