"""What a data plane notes for Events, and of which object."""

from __future__ import annotations

import pytest

from egressproxy.errors import Denied
from egressproxy.telemetry.event_aggregator import InvolvedObject
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, connect, exchange, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation

GATEWAY = InvolvedObject("Gateway", "agents", "gw")
POLICY = InvolvedObject("EgressPolicy", "agents", "default")
LIMIT = {"requests": [{"per": "Route", "limit": 1, "window": "1h"}]}


def noted(talk: Conversation) -> list[tuple[str, int, InvolvedObject, InvolvedObject | None]]:
    return [(each.reason, each.count, each.regarding, each.related) for each in talk.metrics.notices.take()]


def test_a_request_that_passes_notes_nothing(converse: Start):
    talk = converse(forward())
    exchange(talk)
    assert noted(talk) == []


def test_a_denial_is_of_the_gateway(converse: Start):
    talk = converse(forward(allow=("b.example",)))
    for _ in range(3):
        talk.client >> GET
        assert talk.client.answer()[0] == 403
    assert noted(talk) == [("DestinationNotAllowed", 3, GATEWAY, POLICY)]


def test_a_denial_that_something_else_names_is_not_noted(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Denied, "is_listed_elsewhere", True)
    talk = converse(forward(allow=("b.example",)))
    talk.client >> GET
    assert talk.client.answer()[0] == 403
    assert noted(talk) == []


def test_a_denial_in_a_tunnel_that_is_open_is_noted(converse: Start):
    talk = converse(
        [
            m.gateway(m.forward_listener(3128)),
            m.policy(["a.example"]),
            m.backend("a", "a.example", 443),
            m.tls_route("inner", "a", hostnames=["a.example"], section="forward"),
        ]
    )
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client >> b"GET / HTTP/1.1\r\n\r\n"
    talk.until(lambda: bool(talk.records))
    assert noted(talk) == [("NotTls", 1, InvolvedObject("TLSRoute", "agents", "inner"), GATEWAY)]


def test_a_limit_of_a_route_is_of_the_route(converse: Start):
    talk = converse(reverse(limits=LIMIT))
    request = b"GET / HTTP/1.1\r\nHost: any.example\r\n\r\n"
    talk.client >> request
    talk.dialled("a.example", 80)
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.until(lambda: bool(talk.records))
    other = talk.connect()
    for _ in range(2):
        other >> request
        assert other.answer()[0] == 429
    assert noted(talk) == [("RequestRate", 2, InvolvedObject("HTTPRoute", "agents", "route"), POLICY)]


def test_a_connection_beyond_the_limit_is_noted(converse: Start):
    talk = converse(forward(limits={"connections": 1}))
    talk.counts_octets = False  # a connection is no exchange
    second = talk.connect()
    (second >> GET).take(rb"HTTP/1.1 503 .*too many connections\n")
    second.is_closed()
    assert noted(talk) == [("ConnectionLimit", 1, GATEWAY, None)]


@pytest.mark.parametrize(
    ("limits", "says", "remedy"),
    [
        ({"connections": 1, "connectionsPerClient": 0}, "as limits.connections allows", "raise limits.connections"),
        ({"connectionsPerClient": 1}, "limits.connectionsPerClient allows", "raise limits.connectionsPerClient"),
        ({"connections": 4}, "three quarters of limits.connections", "raise limits.connectionsPerClient"),
        ({}, "three eighths of the connections that the file descriptors", "raise the limit of open files"),
    ],
)
def test_a_connection_beyond_a_limit_is_noted_with_the_limit_and_its_remedy(
    converse: Start, limits: dict[str, int], says: str, remedy: str
):
    talk = converse(forward(limits=limits))
    talk.counts_octets = False
    talk.connection_manager.clients.share = 1
    for _ in range(limits.get("connections", 1) * 3 // 4 - 1):
        talk.connect()
    (talk.connect() >> GET).take(rb"HTTP/1.1 503 .*too many connections.*\n")
    (notice,) = talk.metrics.notices.take()
    assert says in notice.message
    assert f": {remedy}" in notice.message


def test_a_backend_that_is_not_valid_is_noted_and_a_path_without_a_route_is_not(converse: Start):
    talk = converse(reverse(m.prefix_rule("/gone", "no-such")))
    for path in (b"/gone", b"/gone", b"/elsewhere"):
        talk.client >> b"GET " + path + b" HTTP/1.1\r\nHost: any.example\r\n\r\n"
        talk.client.answer()
    assert noted(talk) == [("BackendInvalid", 2, InvolvedObject("HTTPRoute", "agents", "route"), GATEWAY)]
