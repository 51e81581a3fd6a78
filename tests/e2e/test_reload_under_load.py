"""No request is lost while the configuration changes: 100,000 requests, 50 changes, a bad one among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import manifests
from tests.support.load_process import LoadProcess
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = 24
BAD_CHANGE = 3
HOST = "origin.egress.test"


@pytest.fixture
def load() -> Iterator[LoadProcess]:
    made = LoadProcess("tests.support.load")
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
def test_no_request_is_lost_while_the_configuration_changes(
    load: LoadProcess, tmp_path: Path, requests: int, changes: int
):
    ports = [free_port() for _ in range(3)]
    with NameServer({"*": ["127.0.0.1"]}) as dns:
        first = configuration(0, ports, load.origin_port, dns.address)
        with GatewayProcess(tmp_path / "gateway", first) as gateway:
            generation = gateway.metric("egress_config_generation")
            absolute = f"http://{HOST}:{load.origin_port}"
            targets = [("127.0.0.1", ports[0], absolute), ("127.0.0.1", ports[1], "")]
            load.begin(targets=targets, connections=CONNECTIONS, requests=requests)

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
