"""From a start to an answer to an end, on whatever Python runs this: `make smoke PYTHON=…`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, terminate, tls_secret
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess

FIELDS = b"Accept: */*\r\nUser-Agent: smoke (a test)\r\nX_Y: 1\r\nConnection: keep-alive\r\nCookie: a=b; c=d\r\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_are_answered_and_the_end_is_clean(workers: int, tmp_path: Path):
    pki, forward, https = Pki(), free_port(), free_port()
    front = pki.issue("front.test")
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin:
        objects = [
            m.gateway(
                m.forward_listener(forward),
                {"name": "https", "port": https, "protocol": "HTTPS", "tls": terminate("front")},
            ),
            m.policy(["origin.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK),
            tls_secret("front", chain(front), front.private_key_pem.bytes()),
            m.backend("o", "origin.test", origin.port),
            m.http_route("r", m.prefix_rule("/", "o"), section="https"),
        ]
        with GatewayProcess(tmp_path / "gw", objects, arguments=["--workers", str(workers)]) as gateway:
            with client(forward) as sock:
                request = get("origin.test", origin.port).replace(b"\r\n\r\n", b"\r\n" + FIELDS + b"\r\n")
                assert ask(sock, request) == (200, b"ok")
                assert ask(sock, get("other.test", origin.port))[0] == 403
            with client(https, pki.client_context(), "front.test") as sock:
                assert ask(sock, get("front.test", https, absolute=False)) == (200, b"ok")
            gateway.replace([*objects[:-1], m.http_route("r", m.prefix_rule("/a", "o"), section="https")])
            gateway.wait_for_metric("egress_config_generation", 2)
            assert gateway.stop() == 0
