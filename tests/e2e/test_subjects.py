"""Policies with subjects by the real process: tenants with tokens, each with destinations and limits of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.tokens import TokenIssuer

pytestmark = pytest.mark.timeout(90)
TENANTS = 40


def tenant(number: int, host: str = "") -> m.Manifest:
    return m.policy(
        [host or f"api{number}.test"],
        name=f"tenant{number}",
        subjects=[{"namespace": f"tenant{number}"}],
        limits={"requests": [{"per": "Identity", "limit": 2, "window": "1h"}]},
    )


def test_tenants_have_what_is_theirs_in_every_worker_and_over_a_reload(tmp_path: Path):
    port, cluster = free_port(), TokenIssuer()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin:
        identity = {"token": {"issuers": [cluster.written]}, "required": False}
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(["common.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK, identity=identity),
            cluster.config_map,
            *map(tenant, range(TENANTS)),
        ]

        def asked(who: int | None, host: str) -> int:
            authority = f"{host}:{origin.port}"
            lines = f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n"
            if who is not None:
                token = cluster.token(f"system:serviceaccount:tenant{who}:robot")
                lines += f"Proxy-Authorization: Bearer {token}\r\n"
            with client(port) as sock:
                return ask(sock, f"{lines}\r\n".encode())[0]

        with GatewayProcess(tmp_path / "gw", objects, arguments=["--workers", "2"]) as gateway:
            assert asked(None, "common.test") == 200
            assert asked(None, "api1.test") == 403
            for who in range(3):
                assert asked(who, f"api{who}.test") == 200
                assert asked(who, f"api{who + 1}.test") == 403
            assert asked(0, "common.test") == 200
            assert asked(0, "common.test") == 429
            assert asked(1, "common.test") == 200
            record = gateway.wait_for_record(status=429)
            assert (record["namespace"], record["service_account"]) == ("tenant0", "robot")
            gateway.replace([*objects[:3], tenant(2, "other.test"), tenant(0)])
            gateway.wait_for_metric("egress_config_generation", 2)
            assert asked(0, "api0.test") == 429, "what was counted stays"
            assert asked(1, "api1.test") == 403
            assert asked(2, "api2.test") == 403
            assert asked(2, "other.test") == 200
