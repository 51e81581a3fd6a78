"""The FilterType of docs/filters/types.md in a real process, and the catalogue that the API shows."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import yaml

from tests.e2e.world import Origin, client, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "filters" / "types.md").read_text(encoding="utf-8")
TYPE = "acme.example.com/Stamp:v1"


def block(language: str, start: str) -> str:
    found = [each for each in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if each.startswith(start)]
    assert len(found) == 1
    return str(found[0])


def ask(port: int, team: str) -> tuple[bytes, bytes]:
    with client(port) as sock:
        sock.sendall(f"GET /here HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Team: {team}\r\n\r\n".encode())
        return read_message(sock)


def test_the_type_of_the_page_runs_is_listed_and_pointed_to(tmp_path: Path):
    port, heads = free_port(), list[bytes]()

    def serve(sock: socket.socket) -> None:
        heads.append(read_message(sock)[0])
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with Origin(serve) as origin:
        policy = {
            "apiVersion": "egressproxy.io/v1alpha1",
            "kind": "EgressPolicy",
            "metadata": {"name": "stamp", "namespace": "agents"},
            "spec": {
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
                **yaml.safe_load(block("yaml", "extensions:")),
            },
        }
        here = {
            "apiVersion": "egressproxy.io/v1alpha1",
            "kind": "Backend",
            "metadata": {"name": "here", "namespace": "agents"},
            "spec": {"destination": {"type": "Ip", "ip": {"address": "127.0.0.1"}, "ports": [{"number": origin.port}]}},
        }
        gateway_class = {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": "egressproxy"},
            "spec": {"controllerName": "egressproxy.io/gateway-controller"},
        }
        route = m.http_route("here", m.prefix_rule("/here", "here"), section="http")
        gateway = GatewayProcess(
            tmp_path,
            [gateway_class, m.gateway(m.http_listener(port)), here, route, policy],
            arguments=["--workers", "2"],
        )
        (gateway.config / "type.yaml").write_text(
            block("yaml", "apiVersion: egressproxy.io/v1alpha1\nkind: FilterType")
        )
        (gateway.config / "stamp_type.py").write_text(block("python", "from egressproxy.filters"))
        with gateway:
            assert ask(port, "research")[1] == b"ok"
            assert b"\r\nx-cost-center: 4711\r\n" in heads[0].lower()
            assert ask(port, "strangers")[0].startswith(b"HTTP/1.1 403 ")

            status, data = gateway.admin("/api/v1/namespaces/egressproxy-system/configmaps/egressproxy-filter-catalog")
            assert status == 200
            shown = json.loads(data)["data"]
            (entry,) = [each for each in json.loads(shown["catalog.json"])["types"] if each["type"] == TYPE]
            assert (entry["source"], entry["phases"]) == ("FilterType stamp", ["request-headers"])
            assert json.loads(shown[entry["schema"]])["required"] == ["centers"]

            data = gateway.admin("/apis/gateway.networking.k8s.io/v1/gatewayclasses/egressproxy")[1]
            conditions = {each["type"]: each for each in json.loads(data)["status"]["conditions"]}
            assert TYPE in conditions["egressproxy.io/FilterCatalog"]["message"]

            data = gateway.admin("/apis/egressproxy.io/v1alpha1/filtertypes/stamp")[1]
            assert json.loads(data)["status"]["conditions"][0]["reason"] == "Accepted"
