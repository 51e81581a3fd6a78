"""Events of the real program, in one process and with two workers, as the API shows them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.world import ask, client, get
from tests.support import manifests as m
from tests.support.kubectl import find_kubectl
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

FAILING = """
from egressproxy.filters.base import Filter

class Failing(Filter):
    def request_headers(self, x):
        raise ValueError(f"words of a filter: {x.path}")
"""
EXTENSION = {
    "name": "failing", "type": "egressproxy.io/Python:v1", "phase": "request-headers", "config": {"path": "failing.py"},
}  # fmt: skip


def objects(
    forward: int, http: int, *, has_backend: bool = True, more: tuple[m.Manifest, ...] = ()
) -> list[m.Manifest]:
    route = m.http_route("api", m.prefix_rule("/", "origin"), section="http")
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "api"}
    fails = m.policy(name="fails", targetRefs=[target], extensions=[EXTENSION])
    made = [m.gateway(m.forward_listener(forward), m.http_listener(http), *more), m.policy(["ok.test"]), route, fails]
    return [*made, m.backend("origin", "origin.test", 80)] if has_backend else made


def events(gateway: GatewayProcess, path: str = "/apis/events.k8s.io/v1/events") -> list[dict[str, Any]]:
    status, body = gateway.admin(path)
    assert status == 200
    found: list[dict[str, Any]] = json.loads(body)["items"]
    return found


def wait_for(gateway: GatewayProcess, reason: str, count: int = 1, *, kind: str = "") -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while True:
        for event in events(gateway):
            is_wanted = event["reason"] == reason and kind in ("", event["regarding"]["kind"])
            if is_wanted and event["deprecatedCount"] >= count:
                return event
        assert time.monotonic() < deadline, f"no {reason}: {events(gateway)}\n{gateway.stderr[-2000:]}"
        time.sleep(0.05)


def uid(gateway: GatewayProcess, plural: str, name: str) -> str:
    group = "egressproxy.io/v1alpha1" if plural == "egresspolicies" else "gateway.networking.k8s.io/v1"
    found: str = json.loads(gateway.admin(f"/apis/{group}/namespaces/agents/{plural}/{name}")[1])["metadata"]["uid"]
    return found


def test_each_thing_that_goes_wrong_is_an_event(tmp_path: Path):
    forward, http = free_port(), free_port()
    gateway = GatewayProcess(tmp_path / "gw", objects(forward, http), arguments=["--workers", "2"])
    (gateway.config / "failing.py").write_text(FAILING)
    with gateway:
        for _ in range(8):
            with client(forward) as sock:
                assert ask(sock, get("evil.test", 80, "/private?token=hidden"))[0] == 403
        denied = wait_for(gateway, "DestinationNotAllowed", 8)
        assert denied["regarding"]["uid"] == uid(gateway, "gateways", "gw")
        assert denied["related"]["uid"] == uid(gateway, "egresspolicies", "default")
        assert 'evil.test is not allowed by policy agents/default: add {hostnames: ["evil.test"]' in denied["note"]
        assert denied["series"]["count"] == denied["deprecatedCount"] == 8

        with client(http) as sock:
            assert ask(sock, get("any.test", 80, "/private?token=hidden", absolute=False))[0] == 502
        failed = wait_for(gateway, "FilterFailed")
        assert failed["regarding"]["name"] == "fails"
        assert "filter failing (egressproxy.io/Python:v1) failed in phase request-headers: ValueError" in failed["note"]

        gateway.replace(objects(forward, http, has_backend=False))
        broke = wait_for(gateway, "ReferenceBroken")
        assert broke["regarding"]["uid"] == uid(gateway, "httproutes", "api")
        assert broke["note"].startswith("BackendNotFound: ")

        gateway.replace_text("kind: [")
        rejected = wait_for(gateway, "ConfigurationRejected")
        assert rejected["regarding"]["name"] == "gw"
        assert "configuration 2 stays in service: " in rejected["note"]

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            gateway.replace(objects(forward, http, more=(m.http_listener(port, "taken"),)))
            unbound = wait_for(gateway, "ListenerNotBound")
            assert f"listener agents/gw/taken: cannot bind 127.0.0.1 port {port}" in unbound["note"]

        gateway.replace(objects(forward, http))
        assert wait_for(gateway, "ConfigurationAccepted")["type"] == "Normal"

        everything = json.dumps(events(gateway)) + gateway.stderr
        assert "private" not in everything
        assert "hidden" not in everything
        assert "words of a filter" not in everything
        assert gateway.metric("egress_events_total", type="Warning", reason="DestinationNotAllowed") == 8
        assert gateway.metric("egress_events_total", type="Normal") == 1
        assert gateway.stderr.count("egressproxy.events DestinationNotAllowed on Gateway agents/gw") <= 4
        assert json.loads(gateway.admin("/config")[1])["items"][0]["kind"] != "Event"


def test_kubectl_gets_them_and_describes_an_object_with_its_own(tmp_path: Path):
    program = find_kubectl()
    forward, http = free_port(), free_port()
    with GatewayProcess(tmp_path / "gw", objects(forward, http)[:3]) as gateway:
        with client(forward) as sock:
            assert ask(sock, get("evil.test", 80))[0] == 403
        wait_for(gateway, "DestinationNotAllowed")

        def kubectl(*arguments: str) -> str:
            server = [program, "--server", f"http://127.0.0.1:{gateway.admin_port}", "-n", "agents"]
            environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/local/bin"}
            done = subprocess.run(
                [*server, *arguments], capture_output=True, text=True, timeout=WAIT_S, env=environment
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        listed = kubectl("get", "events")
        assert listed.startswith("LAST SEEN")
        assert "gateway/gw" in listed
        described = kubectl("describe", "gateway/gw").partition("\nEvents:")[2]
        assert "DestinationNotAllowed" in described
        assert "egressproxy.io/gateway-controller" in described
        assert "DestinationNotAllowed" not in kubectl("describe", "httproute/api")
        assert "DestinationNotAllowed" in kubectl(
            "get", "events", "--field-selector", "involvedObject.kind=Gateway,type=Warning", "-o", "name", "-o", "wide"
        )
