"""`run --source kubernetes` on a real API server: what it says is in force, is told in status, and outlives its end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.real_api_server import RealApiServer, real_api_server
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
SLICE = "/apis/discovery.k8s.io/v1beta1/namespaces/team/endpointslices"
POLICIES = "/apis/egressproxy.io/v1alpha1/namespaces/team/egresspolicies"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with real_api_server(tmp_path_factory.mktemp("apiserver")) as made:
        made.kubectl("create", "namespace", "team")
        told = made.kubectl("create", "--validate=false", "-f", str(ROOT / "deploy/crds"))
        assert "error" not in told.lower(), told
        wait_until(lambda: made.request("GET", POLICIES)[0] == 200, "our kinds are not served")
        yield made


def policy(name: str, **spec: Any) -> dict[str, Any]:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    return {
        "apiVersion": "egressproxy.io/v1alpha1",
        "kind": "EgressPolicy",
        "metadata": {"name": name},
        "spec": {"targetRefs": [target], **spec},
    }


def addresses(*last: int) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1beta1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": [f"127.0.0.{each}"]} for each in last],
    }


def asked(port: int, host: str) -> dict[str, Any]:
    """What the gateway says of a request for a host: nothing listens behind it, so that it is always an error."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
        sock.sendall(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return found


def test_a_gateway_follows_an_api_server_and_outlives_its_end(server: RealApiServer, tmp_path: Path):
    port = free_port()
    route = m.http_route("web", {"backendRefs": [{"name": "web", "port": 80}]}, hostnames=["web.test"])
    objects = [m.gateway(m.forward_listener(port)), route]
    for each in objects:
        each["metadata"]["namespace"] = "team"
    ports = [{"name": "http", "port": 80}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": ports}}
    assert server.request("POST", "/api/v1/namespaces/team/services", service)[0] == 201
    assert server.request("POST", SLICE, addresses(2))[0] == 201
    allow = policy("allow", destinations={"allow": [{"hostnames": ["*.test"]}]})
    assert server.request("POST", POLICIES, allow)[0] == 201
    options = ("--source", "kubernetes", "--kubeconfig", str(server.kubeconfig), "--state-dir", str(tmp_path / "state"))
    environment = {"POD_NAMESPACE": "team"}
    with GatewayProcess(tmp_path / "one", objects, arguments=options, environment=environment) as gateway:
        assert asked(port, "a.test")["reason"] != "destination_not_allowed"
        assert asked(port, "a.invalid")["reason"] == "destination_not_allowed"
        wait_until(lambda: "status" in server.request("GET", f"{POLICIES}/allow")[1], "no status is written")
        lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/egressproxy-egressproxy"
        assert server.request("GET", lease)[1]["spec"]["holderIdentity"]
        # Other addresses, without a reload.
        assert asked(port, "web.test")["reason"] == "upstream_refused"
        generation = gateway.metric("egress_config_generation")
        slice_ = server.request("GET", f"{SLICE}/web-1")[1]
        server.request("PUT", f"{SLICE}/web-1", {**slice_, "endpoints": []})
        wait_until(lambda: asked(port, "web.test")["reason"] == "no_endpoint", "the address is still there")
        assert gateway.metric("egress_config_generation") == generation
        # The API server ends in the midst, and comes back without our kinds for a while.
        server.restart()
        assert asked(port, "a.test")["reason"] != "destination_not_allowed"
        deny = policy("deny", destinations={"deny": [{"hostnames": ["a.test"]}]})
        wait_until(lambda: server.request("POST", POLICIES, deny)[0] in (201, 409), "it takes no objects")
        wait_until(lambda: asked(port, "a.test")["reason"] == "destination_denied", "the deny is not in force")
        events = "/apis/events.k8s.io/v1/namespaces/team/events"
        wait_until(
            lambda: any(each["reason"] == "DestinationDenied" for each in server.request("GET", events)[1]["items"]),
            "no Event is written",
        )
        server.request("DELETE", f"{POLICIES}/allow")
        wait_until(lambda: asked(port, "b.test")["reason"] == "destination_not_allowed", "it is allowed still")
