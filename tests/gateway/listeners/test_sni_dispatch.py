"""Ports that HTTPS and TLS listeners share: the ClientHello says whose a connection is."""

from __future__ import annotations

import pytest

from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.kit import GET, GET_SENT, OK, TlsClient, certificate
from tests.gateway.listeners.test_bound_port import asked, demanding
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.pki import Pki

PASSED = "passed.web.example"
ENDED = "ended.web.example"


def shared(pki: Pki, *, hostname: str = "*.web.example", **sections: object) -> list[m.Manifest]:
    """HTTPS for this hostname; one name below it is passed through, and another ends here and goes on as a stream."""
    web = {"name": "web", "port": 8443, "protocol": "HTTPS", "hostname": hostname, "tls": terminate("front")}
    passed = {"name": "passed", "port": 8443, "protocol": "TLS", "hostname": PASSED, "tls": {"mode": "Passthrough"}}
    ended = {"name": "ended", "port": 8443, "protocol": "TLS", "hostname": ENDED, "tls": terminate("front")}
    return [
        m.gateway(passed, web, ended),
        m.policy(**sections),
        certificate(pki, "*.web.example", "other.example"),
        m.backend("a", "a.example", 80),
        m.backend("t", "t.example", 443, protocol="TCP"),
        m.http_route("r", m.prefix_rule("/", "a"), section="web"),
        m.tls_route("p", "t", hostnames=[PASSED], section="passed"),
        m.tls_route("e", "t", hostnames=[ENDED], section="ended"),
    ]


def start(converse: Start, pki: Pki, **sections: object) -> Conversation:
    talk = converse(shared(pki, **sections))
    talk.counts_octets = False
    return talk


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_name_of_the_https_listener_is_served_in_http(converse: Start, pieces: int):
    pki = Pki()
    talk = start(converse, pki)
    tls = TlsClient(talk.client, pki, "one.web.example")
    hello = tls.hello()
    step = len(hello) // pieces + 1
    for at in range(0, len(hello), step):
        talk.client >> hello[at : at + step]
    talk.until(lambda: bool(talk.client.received))
    talk.client >> tls.last_flight()
    assert asked(talk, tls, "one.web.example") == (200, "-")
    assert asked(talk, tls, "two.web.example") == (200, "-")
    assert [record["listener"] for record in talk.records] == ["web", "web"]


def test_a_name_that_is_passed_through_reaches_its_backend_unread(converse: Start):
    talk = start(converse, Pki())
    hello = client_hello(PASSED)
    talk.client >> hello[:9]
    talk.no_dial()
    talk.client >> hello[9:] + b"early"
    talk.dialled("t.example", 443)
    talk.origin << hello + b"early"
    talk.origin >> b"answer"
    talk.client << b"answer"
    talk.client.ends()
    talk.origin.ends()
    assert (talk.record()["listener"], talk.record()["route"]) == ("passed", "agents/p")


def test_a_name_of_a_terminated_stream_goes_on_in_plain_text(converse: Start):
    pki = Pki()
    talk = start(converse, pki)
    tls = TlsClient(talk.client, pki, ENDED).shakes_hands()
    talk.dialled("t.example", 443)
    tls >> b"inside"
    talk.origin << b"inside"


@pytest.mark.parametrize("sni", [None, "other.example"])
def test_who_names_nobody_is_answered_in_http(converse: Start, sni: str | None):
    pki = Pki()
    talk = start(converse, pki)
    tls = TlsClient(talk.client, pki, sni).shakes_hands()
    assert asked(talk, tls, "other.example") == (404, "no_route")


@pytest.mark.parametrize(
    ("sni", "host", "answer"),
    [
        ("one.web.example", PASSED, (421, "misdirected")),
        ("one.web.example", ENDED, (421, "misdirected")),
        ("other.example", "one.web.example", (421, "misdirected")),
        (None, PASSED, (404, "no_route")),
    ],
)
def test_http_does_not_reach_what_is_a_streams(converse: Start, sni: str | None, host: str, answer: tuple[int, str]):
    pki = Pki()
    talk = start(converse, pki)
    assert asked(talk, TlsClient(talk.client, pki, sni).shakes_hands(), host) == answer


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00"])
def test_what_is_no_client_hello_is_dropped_and_said(converse: Start, first: bytes):
    talk = start(converse, Pki())
    talk.client >> first
    talk.client.is_closed()
    assert talk.record()["reason"] == "not_tls"


@pytest.mark.parametrize("octets", [0, 20])
def test_a_client_without_its_hello_counts_has_its_time_and_leaves_nothing_behind(converse: Start, octets: int):
    talk = start(converse, Pki(), limits={"connections": 1})
    talk.client >> client_hello(PASSED)[:octets]
    assert len(talk.ports[0].state.connections) == 1
    second = talk.connect()
    second.is_closed()
    assert talk.metrics.connections_rejected == {"connection_limit": 1}
    talk.after(11)
    assert talk.client.is_gone
    assert not talk.ports[0].state.connections


def test_a_limit_of_one_connection_leaves_room_for_that_one(converse: Start):
    pki = Pki()
    talk = start(converse, pki, limits={"connections": 1})
    assert asked(talk, TlsClient(talk.client, pki, "one.web.example").shakes_hands(), "one.web.example")[0] == 200
    assert len(talk.ports[0].state.connections) == 1


@pytest.mark.parametrize("way", ["ends", "leaves", "resets"])
def test_a_client_that_leaves_within_its_hello_is_forgotten(converse: Start, way: str):
    talk = start(converse, Pki())
    talk.client >> client_hello(PASSED)[:20]
    getattr(talk.client, way)()
    talk.until(lambda: not talk.ports[0].state.connections)
    assert not talk.records


def test_a_hello_that_is_not_whole_goes_with_its_listener(converse: Start):
    talk = start(converse, Pki())
    talk.client >> client_hello(PASSED)[:20]
    talk.act(talk.ports[0].stop_accepting)
    talk.act(talk.ports[0].close_idle)
    talk.client.is_closed()


@pytest.mark.parametrize("sni", ["one.web.example", ENDED])
@pytest.mark.parametrize("is_right", [True, False])
def test_client_certificates_are_asked_for_in_both(converse: Start, sni: str, is_right: bool):
    pki, authority = Pki(), Pki()
    talk = converse(demanding(shared(pki), authority))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, sni, authority if is_right else None).shakes_hands()
    if not is_right:
        talk.until(lambda: talk.client.has_eof or talk.client.is_gone)
        talk.no_dial()
        assert talk.metrics.connections_rejected or talk.record()["reason"] == "client_certificate"
    elif sni == ENDED:
        talk.dialled("t.example", 443)
    else:
        assert asked(talk, tls, sni) == (200, "-")


def test_a_reload_that_adds_a_stream_keeps_the_connections_of_http(converse: Start):
    pki = Pki()
    objects = shared(pki)
    alone = shared(pki)
    alone[0]["spec"]["listeners"] = [one for one in alone[0]["spec"]["listeners"] if one["name"] == "web"]
    talk = converse(alone)
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, PASSED).shakes_hands()
    assert asked(talk, tls, PASSED) == (200, "-")
    talk.reload(objects)
    assert asked(talk, tls, PASSED) == (404, "no_route")
    assert asked(talk, tls, "one.web.example") == (421, "misdirected")


def test_a_forward_proxy_over_tls_has_the_names_that_are_nobody_elses(converse: Start):
    pki = Pki()
    proxy = m.forward_listener(8443, tls=terminate("front"))
    passed = {"name": "passed", "port": 8443, "protocol": "TLS", "hostname": PASSED, "tls": {"mode": "Passthrough"}}
    talk = converse(
        [
            m.gateway(passed, proxy),
            m.policy(["a.example"]),
            certificate(pki, "proxy.example"),
            m.backend("t", "t.example", 443, protocol="TCP"),
            m.tls_route("p", "t", hostnames=[PASSED], section="passed"),
        ]
    )
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "proxy.example").shakes_hands()
    tls >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.until(lambda: bool(talk.records))
    assert tls.reads().startswith(b"HTTP/1.1 200")
    stream = talk.connect()
    stream >> client_hello(PASSED)
    talk.dialled("t.example", 443)
