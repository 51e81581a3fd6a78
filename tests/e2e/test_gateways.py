"""Several Gateways in one process: their addresses, what cannot be bound, and what their status says of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from egressproxy.config.reading.load import read_all
from egressproxy.processes.loader.compilation import compiled
from tests.e2e.world import read_head
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

NOWHERE = "192.0.2.1"  # TEST-NET-1 (RFC 5737)


def gateway(name: str, port: int, *addresses: str) -> list[m.Manifest]:
    """A Gateway, and a route that redirects to the Gateway's name."""
    made = m.gateway(m.http_listener(port), name=name)
    made["spec"]["addresses"] = [{"type": "IPAddress", "value": address} for address in addresses]
    redirect = {"type": "RequestRedirect", "requestRedirect": {"hostname": f"{name}.answers"}}
    return [made, m.http_route(name, {"filters": [redirect]}, parent=name)]


def answer_at(address: str, port: int) -> str:
    """Which Gateway answers there."""
    with socket.create_connection((address, port), WAIT_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
        head = read_head(sock).decode()
    return head.partition("location: http://")[2].partition(".")[0]


def status_of(process: GatewayProcess, name: str) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The addresses and conditions of a Gateway."""
    path = f"/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways/{name}"
    status: dict[str, Any] = json.loads(process.admin(path)[1])["status"]
    conditions = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
    return [each["value"] for each in status["addresses"]], conditions


def test_gateways_on_one_port_each_answer_at_an_address_of_their_own(tmp_path: Path):
    port = free_port()
    objects = [*gateway("one", port), *gateway("two", port), *gateway("three", port)]
    with GatewayProcess(tmp_path / "gw", objects, arguments=["--bind", "127.0.33.0/24"]) as process:
        found = {name: status_of(process, name)[0][0] for name in ("one", "two", "three")}
        assert len(set(found.values())) == 3
        for name, address in found.items():
            assert address.startswith("127.0.33.")
            assert answer_at(address, port) == name
        before = process.metric("egress_config_generation")
        process.replace([*gateway("one", port), *gateway("three", port)])
        process.wait_for_metric("egress_config_generation", before + 1)
        assert {name: status_of(process, name)[0][0] for name in ("one", "three")} == {
            name: found[name] for name in ("one", "three")
        }
        assert answer_at(found["three"], port) == "three"
        checked = compiled(read_all((process.config,)), ("127.0.33.0/24",))
        assert {one.gateway: one.addresses for one in checked.spec.listeners} == {
            f"agents/{name}": (found[name],) for name in ("one", "three")
        }


def test_an_address_that_this_machine_does_not_have_closes_that_address_alone(tmp_path: Path):
    port = free_port()
    lost, kept = gateway("lost", port, NOWHERE, "127.0.0.1"), gateway("kept", port, "127.0.34.1")
    with GatewayProcess(tmp_path / "gw", [*lost, *kept]) as process:
        addresses, conditions = status_of(process, "lost")
        assert addresses == ["127.0.0.1"]
        assert conditions["Accepted"] == ("True", "Accepted")
        assert conditions["Programmed"] == ("False", "AddressNotUsable")
        assert [answer_at("127.0.0.1", port), answer_at("127.0.34.1", port)] == ["lost", "kept"]
        assert f"{NOWHERE} (cannot assign requested address)" in process.stderr

        before = process.metric("egress_config_generation")
        process.replace([*gateway("lost", port, "127.0.0.1"), *gateway("kept", port, NOWHERE)])
        process.wait_for_metric("egress_config_generation", before + 1)
        addresses, conditions = status_of(process, "lost")
        assert addresses == ["127.0.0.1"]
        assert conditions["Programmed"] == ("True", "Programmed")
        assert status_of(process, "kept")[0] == []
        assert status_of(process, "kept")[1]["Programmed"] == ("False", "AddressNotUsable")
        assert answer_at("127.0.0.1", port) == "lost"
        with pytest.raises(OSError):
            answer_at("127.0.34.1", port)
