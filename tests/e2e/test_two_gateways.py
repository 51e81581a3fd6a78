"""Two gateways in a row, as real processes: the second knows the client of the first, and believes nobody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egressproxy.model.forwarded_identity import ForwardedIdentity, sign
from egressproxy.model.secret import SecretBytes
from tests.e2e.test_http2_clients import Talk
from tests.e2e.test_parents import tunnel
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, tls_secret
from tests.support import manifests as m
from tests.support.http2_client import head
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess

pytestmark = pytest.mark.timeout(90)
KEY = "0123456789abcdef" * 2
NAMES = {"api.test": ["127.0.0.1"], "gw2.test": ["127.0.0.1"]}
ROBOT = "spiffe://cluster.local/ns/team/sa/robot"


class Rig:
    """Who asks whom: `first` and `second` are ports, `origin` is behind them."""

    def __init__(self, first: int, second: int, origin: Origin, gateways: list[GatewayProcess]) -> None:
        self.first, self.second, self.origin = first, second, origin
        self.edge, self.central = gateways

    def signed(self, method: str, *, key: str = KEY, age_s: float = 0.0, host: str = "api.test") -> bytes:
        """What a gateway with this key says of its client."""
        said = ForwardedIdentity("edge/gw", "192.0.2.7", "team", "robot")
        authority = f"{host}:{self.origin.port}"
        return sign(SecretBytes(key.encode()), said, method.encode(), authority, time.time() - age_s)

    def get(self, value: bytes = b"") -> bytes:
        fields = b"Via: 1.1 edge\r\nX-Egress-Identity: " + value + b"\r\n\r\n" if value else b"\r\n"
        return get("api.test", self.origin.port)[:-2] + fields


@contextmanager
def rig(folder: Path, spiffe_id: str = "") -> Iterator[Rig]:
    """Both gateways with one key. With `spiffe_id` the first shows a certificate with it to the second, over TLS."""
    pki = Pki()
    first, second = free_port(), free_port()
    key, ca = m.secret("key", {"key": KEY}), m.config_map("ca", {"ca.crt": pki.ca_pem})
    identity: dict[str, Any] = {"gateways": {"keyRefs": [{"name": "key"}]}}
    proxy, own = m.backend("two", "gw2.test", second), []
    listener, gateway = m.forward_listener(second), {}
    if spiffe_id:
        shown, served = pki.identified(spiffe_id), pki.issue("gw2.test")
        own = [tls_secret("mine", shown.chain_pem, shown.key_pem.reveal())]
        proxy["spec"]["destination"]["ports"][0]["tls"] = {
            "mode": "Mutual",
            "caBundleRef": [{"kind": "ConfigMap", "name": "ca"}],
            "clientCertificateRef": {"name": "mine"},
        }
        listener = m.forward_listener(second, tls={"certificateRefs": [{"name": "cert"}]})
        refs = [{"group": "", "kind": "ConfigMap", "name": "ca"}]
        gateway = {"tls": {"frontend": {"default": {"validation": {"caCertificateRefs": refs}}}}}
        identity["certificate"] = {"trustDomains": ["cluster.local"]}
    with NameServer(NAMES) as dns, Origin() as origin:
        parent: dict[str, Any] = {"name": "two"} if spiffe_id else {"name": "two", "identityKeyRef": {"name": "key"}}
        edge = [
            m.gateway(m.forward_listener(first)),
            m.policy(["api.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK, parent=parent),
            *(proxy, key, ca, *own),
        ]
        central = [
            m.gateway(listener, **gateway),
            m.policy(["api.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK, identity=identity),
            *(key, ca),
        ]
        if spiffe_id:
            central.append(tls_secret("cert", chain(served), served.private_key_pem.bytes()))
        with GatewayProcess(folder / "two", central) as behind, GatewayProcess(folder / "one", edge) as before:
            yield Rig(first, second, origin, [before, behind])


def ways(made: Rig, port: int) -> None:
    """A plain request and a tunnel, in HTTP/1 and in HTTP/2."""
    authority = f"api.test:{made.origin.port}".encode()
    with client(port) as sock:
        assert ask(sock, made.get()) == (200, b"ok")
    with client(port) as sock:
        assert tunnel(sock, "api.test", made.origin.port) == 200
    with client(port) as sock:
        talk = Talk(sock)
        assert talk.answer(talk.client.request(head(b"GET", b"/", authority))).status == 200
        stream = talk.client.request([(b":method", b"CONNECT"), (b":authority", authority)], ends=False)
        while not talk.client.of(stream).status:
            assert talk.hears()
        assert talk.client.of(stream).status == 200


def test_the_second_knows_the_client_of_the_first_whatever_it_asks_in(tmp_path: Path):
    with rig(tmp_path) as made:
        ways(made, made.first)
        made.central.wait_for_metric("egress_requests_total", 4)
        made.central.mark()
        assert len(made.central.records) == 4
        for record in made.central.records:
            assert (record["origin_client"], record["origin_gateway"]) == ("127.0.0.1", "agents/gw")


def test_a_sidecar_is_known_by_its_certificate(tmp_path: Path):
    with rig(tmp_path, ROBOT) as made:
        ways(made, made.first)
        made.edge.stop()  # connections to the second end
        made.central.mark()
        assert len(made.central.records) == 4
        for record in made.central.records:
            assert (record["namespace"], record["service_account"]) == ("team", "robot")
        assert made.central.metric("egress_requests_total", namespace="team", service_account="robot") == 4


def test_a_value_is_believed_once_by_all_workers(tmp_path: Path):
    port = free_port()
    with NameServer(NAMES) as dns, Origin() as origin:
        objects = [
            m.gateway(m.forward_listener(port)),
            m.policy(
                ["api.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK,
                identity={"gateways": {"keyRefs": [{"name": "key"}]}},
            ),
            m.secret("key", {"key": KEY}),
        ]  # fmt: skip
        with GatewayProcess(tmp_path / "gw", objects, arguments=["--workers", "2"]) as gateway:
            made = Rig(port, port, origin, [gateway, gateway])
            values = [made.signed("GET") for _ in range(8)]
            for _ in range(4):  # each connection may come to the other worker
                for value in values:
                    with client(port) as sock:
                        assert ask(sock, made.get(value)) == (200, b"ok")
            assert gateway.mark() == 32
            known = [record for record in gateway.records if record["namespace"] == "team"]
            assert len(known) == len(values)
            assert gateway.metric("egress_forwarded_identities_total", result="repeated") == 32 - len(values)
