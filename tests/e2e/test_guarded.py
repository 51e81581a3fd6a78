"""Reloads that would allow what was denied lately, and those who say that this is meant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def opened(port: int, dns: NameServer, *allow: str) -> list[m.Manifest]:
    return [m.gateway(m.forward_listener(port)), m.policy(allow, dns=dns.address, cidrs=ALLOW_LOOPBACK)]


def reload(gateway: GatewayProcess, *arguments: str) -> tuple[int, str]:
    done = gateway.verb("reload", *arguments)
    return done.exit_code, done.output


def test_what_was_denied_lately_is_not_opened_unless_that_is_acknowledged(dns: NameServer, tmp_path: Path):
    port = free_port()
    arguments = ["--guarded", "--workers", "2"]
    with (
        Origin() as origin,
        GatewayProcess(tmp_path / "gw", opened(port, dns, "a.test"), arguments=arguments) as gateway,
    ):
        with client(port) as sock:
            assert ask(sock, get("a.test", origin.port)) == (200, b"ok")
            assert ask(sock, get("b.test", origin.port))[0] == 403
        gateway.replace(opened(port, dns, "a.test", "b.test"))
        gateway.wait_for_metric("egress_config_last_reload_success", 0)
        status, text = reload(gateway)
        assert status == 1
        assert "it would allow a request that was denied lately:" in text
        assert f"GET b.test:{origin.port}/ on agents/gw/forward: deny (destination_not_allowed) -> allow" in text
        found = re.search(r"egressproxy reload --acknowledge ([0-9a-f]{12})\n", text)
        assert found is not None
        with client(port) as sock:
            assert ask(sock, get("b.test", origin.port))[0] == 403, "the old configuration stays"
        assert gateway.metric("egress_config_reloads_total", result="guarded") >= 1
        _, objects = gateway.admin("/apis/gateway.networking.k8s.io/v1/gateways")
        (condition,) = [
            each
            for each in json.loads(objects)["items"][0]["status"]["conditions"]
            if each["type"] == "egressproxy.io/ReloadRejected"
        ]
        assert (condition["reason"], found[1] in condition["message"]) == ("Guarded", True)
        assert reload(gateway, "--acknowledge", "0" * 12)[0] == 1, "another configuration than this one"
        assert reload(gateway, "--acknowledge", found[1]) == (0, "the configuration is in service\n")
        with client(port) as sock:
            assert ask(sock, get("b.test", origin.port)) == (200, b"ok")
        assert reload(gateway) == (0, "the configuration is in service\n")
