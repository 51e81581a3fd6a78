"""Circuit breakers count what is under way at an endpoint: tunnels, upgrades, and requests that a parent carries."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from tests.gateway.backends.test_endpoints import PODS
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer

ONE_REQUEST = {"circuitBreaker": {"maxParallelRequests": 1}}
ONE_CONNECTION = {"circuitBreaker": {"maxConnections": 1}}
BREAKERS = pytest.mark.parametrize("traffic", [ONE_REQUEST, ONE_CONNECTION], ids=["requests", "connections"])


def tunnel(talk: Conversation, host: str, port: int = 443) -> tuple[Peer, Peer]:
    """A CONNECT on a connection of its own, that is answered 200; its two ends."""
    client = talk.connect()
    client >> connect(f"{host}:{port}")
    origin = talk.dialled(host, port)
    client << ESTABLISHED
    return client, origin


def refused(talk: Conversation, request: bytes) -> str:
    """The limit that a request on a new connection meets."""
    client = talk.connect()
    client >> request
    talk.no_dial()
    status, _, _, body = client.answer()
    assert (status, body["reason"]) == (503, "circuit_open")
    return str(body["message"]).rpartition("(")[2].rstrip(")")


@BREAKERS
def test_a_tunnel_to_a_destination_that_clients_name(converse: Start, traffic: dict[str, Any]):
    talk = converse(forward(allow=("a.example", "b.example"), traffic=traffic))
    client, _ = tunnel(talk, "a.example")
    limit = "maxParallelRequests" if traffic is ONE_REQUEST else "maxConnections"
    assert refused(talk, connect("a.example:443")) == limit
    other, _ = tunnel(talk, "b.example")  # another destination
    client.leaves()
    tunnel(talk, "a.example")
    other.leaves()


@BREAKERS
def test_a_tunnel_to_the_name_of_a_backend(converse: Start, traffic: dict[str, Any]):
    objects = [m.backend("a", "a.example", 443, protocol="TCP"), m.tls_route("t", "a", hostnames=["a.example"])]
    talk = converse(forward(*objects, traffic=traffic))
    client, _ = tunnel(talk, "a.example")
    refused(talk, connect("a.example:443"))
    client.leaves()
    tunnel(talk, "a.example")


@BREAKERS
def test_a_tunnel_to_the_pods_of_a_service(converse: Start, traffic: dict[str, Any]):
    spec = {"parentRefs": [{"name": "gw"}], "hostnames": ["a.example"]}
    rules = {"rules": [{"backendRefs": [{"name": "pods", "port": 80}]}]}
    routed = m.manifest("gateway.networking.k8s.io/v1", "TLSRoute", "t", "agents", spec={**spec, **rules})
    talk = converse(forward(routed, *pods(*PODS[:2]), traffic=traffic))
    clients = []
    for _ in range(2):
        clients.append(talk.connect())
        clients[-1] >> connect("a.example:443")
        dial = talk.pending_dial()
        assert dial is not None
        talk.dialled(str(dial.endpoints[0][0]), 8080)
        clients[-1] << ESTABLISHED
    refused(talk, connect("a.example:443"))
    assert talk.open == 2
    for client in clients:
        client.leaves()
    assert talk.open == 0


@BREAKERS
def test_a_stream_of_a_tcp_listener(converse: Start, traffic: dict[str, Any]):
    backend = {"group": "egressproxy.io", "kind": "Backend", "name": "a"}
    spec = {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [backend]}]}
    objects = [
        m.gateway({"name": "tcp", "port": 9000, "protocol": "TCP"}),
        m.policy(traffic=traffic),
        m.backend("a", "a.example", 9001, protocol="TCP"),
        m.manifest(f"{m.GATEWAY_API}/v1", "TCPRoute", "t", "agents", spec=spec),
    ]
    talk = converse(objects)
    talk.dialled("a.example", 9001)
    second = talk.connect()
    talk.no_dial()
    assert second.is_gone
    assert talk.record()["reason"] == "circuit_open"
    talk.client.leaves()
    talk.connect()
    talk.dialled("a.example", 9001)


def test_a_dial_that_fails_counts_no_more(converse: Start):
    talk = converse(forward(traffic=ONE_REQUEST))
    for _ in range(2):
        talk.client = talk.connect()
        talk.client >> connect("a.example:443")
        fault = UpstreamFault(Reason.CONNECT_REFUSED, "no", status=503, retry=RetrySafety.SAFE)
        talk.refused("a.example", 443, fault)
        assert talk.client.answer()[3]["reason"] == "upstream_refused"


def test_an_idle_connection_makes_way_for_a_tunnel(converse: Start):
    talk = converse(forward(traffic=ONE_CONNECTION))
    talk.client >> GET.replace(b"a.example", b"a.example:8443")
    idle = talk.dialled("a.example", 8443)
    idle.take(rb"GET .*?\r\n\r\n")
    idle >> OK
    talk.client << OK_PASSED
    tunnel(talk, "a.example", 8443)
    assert idle.is_gone
    assert talk.open == 1


def test_a_tunnel_outlives_the_policy_that_counted_it(converse: Start):
    talk = converse(forward(traffic=ONE_REQUEST))
    client, _ = tunnel(talk, "a.example")
    talk.reload(forward(traffic={"circuitBreaker": {"maxParallelRequests": 2}}))
    tunnel(talk, "a.example")
    tunnel(talk, "a.example")
    refused(talk, connect("a.example:443"))
    client.leaves()


def test_tunnels_without_a_circuit_breaker_are_not_counted(converse: Start):
    talk = converse(forward(traffic={"healthCheck": {"passive": {}}}))
    tunnel(talk, "a.example")
    assert talk.open == 0


@BREAKERS
def test_a_websocket_counts_until_it_ends(converse: Start, traffic: dict[str, Any]):
    talk = converse(reverse(traffic=traffic))
    asks = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk.client >> asks
    origin = talk.dialled("a.example", 80)
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    assert talk.open == 1
    if traffic is ONE_REQUEST:
        refused(talk, GET)
    talk.client.leaves()
    assert talk.open == 0


# --- parents ---------------------------------------------------------------------------------------------------------
def behind(traffic: dict[str, Any]) -> list[m.Manifest]:
    """What the policy allows goes through a parent."""
    return forward(m.backend("corp", "corp.example", 3128), parent={"name": "corp"}, traffic=traffic)


def test_plain_http_that_a_parent_carries(converse: Start):
    talk = converse(behind(ONE_REQUEST))
    talk.client >> GET
    parent = talk.dialled("corp.example", 3128)
    parent.take(rb"GET http://a.example/ .*?\r\n\r\n")
    assert refused(talk, GET) == "maxParallelRequests"
    parent >> OK
    talk.client << OK_PASSED
    talk.client >> GET
    parent.take(rb"GET http://a.example/ .*?\r\n\r\n")
    parent >> OK
    talk.client << OK_PASSED


def test_plain_http_waits_for_the_parent_uncounted_and_is_refused_when_it_would_be_sent(converse: Start):
    talk = converse(behind(ONE_REQUEST))
    clients = [talk.client, talk.connect()]
    for client in clients:
        client >> GET
    first = talk.dialled("corp.example", 3128)
    talk.dialled("corp.example", 3128)
    assert clients[1].answer()[3]["reason"] == "circuit_open"
    first.take(rb"GET http://a.example/ .*?\r\n\r\n")
    first >> OK
    clients[0] << OK_PASSED


def test_a_tunnel_through_a_parent(converse: Start):
    talk = converse(behind(ONE_REQUEST))
    client = talk.connect()
    client >> connect("a.example:443")
    parent = talk.dialled("corp.example", 3128)
    parent.take(rb"CONNECT a.example:443 .*?\r\n\r\n")
    parent >> b"HTTP/1.1 200 OK\r\n\r\n"
    client << ESTABLISHED
    refused(talk, connect("a.example:443"))
    client.leaves()
