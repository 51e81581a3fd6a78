"""PROXY headers on listeners: whose a connection is, and that nobody else may say so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, bearer, is_served
from tests.gateway.kit import GET, TlsClient, certificate, forward
from tests.gateway.listeners.test_client_identity import PKI, ROBOT, Workload, proxy, served
from tests.protocols.test_proxy_protocol import block
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.pki import Pki

LINE = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"
RULES = {
    "proxyProtocol": {"from": ["10.0.0.0/24"]},
    "address": {"clients": [{"cidrs": ["192.0.2.0/24"], "namespace": "team", "serviceAccount": "robot"}]},
}


def is_known(record: dict[str, Any]) -> None:
    assert (record["client"], record["namespace"]) == ("192.0.2.7:56324", "team")


@pytest.mark.parametrize("header", [LINE, block("192.0.2.7", 56324)], ids=["v1", "v2"])
def test_a_named_sender_says_whose_a_connection_is(converse: Start, header: bytes):
    talk = converse(forward(identity=RULES))
    is_known(is_served(talk, header + GET))
    is_known(is_served(talk, GET, is_new=False))
    other = talk.connect()
    for at in range(len(header)):
        other >> header[at : at + 1]
    talk.client = other
    is_known(is_served(talk, GET, is_new=False))


def test_on_real_sockets(converse: Start):
    talk = converse(forward(identity={**RULES, "proxyProtocol": {"from": ["10.0.0.0/24", "127.0.0.0/8"]}}))
    is_known(is_served(talk, LINE + GET))


def test_a_header_comes_before_tls(converse: Start):
    pki = Pki()
    listener = m.forward_listener(3128, tls=terminate("front"))
    talk = converse([m.gateway(listener), m.policy(["a.example"], identity=RULES), certificate(pki, "a.example")])
    talk.counts_octets = False
    talk.client >> LINE
    tls = TlsClient(talk.client, pki, "a.example").shakes_hands()
    tls >> GET
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    is_known(talk.record())


def refused(talk: Conversation, data: bytes) -> None:
    talk.client >> data
    talk.client.is_closed()
    assert not talk.records
    assert talk.metrics.connections_rejected["proxy_header"] == 1


@pytest.mark.parametrize("data", [GET, b"PROXY TCP4 a b 1 2\r\n" + GET, b"\x16\x03\x01"], ids=range(3))
def test_without_a_header_a_named_sender_is_refused(converse: Start, data: bytes):
    refused(converse(forward(identity=RULES)), data)


def test_a_sender_that_says_nothing_is_refused(converse: Start):
    talk = converse(forward(identity=RULES))
    talk.client >> LINE[:9]
    talk.after(11)
    refused(talk, b"")


def test_nobody_else_may_say_it(converse: Start):
    talk = converse(forward(identity=RULES))
    talk.client = talk.connect(address="10.0.1.1")
    assert is_served(talk, GET)["client"].startswith("10.0.1.1:")
    talk.client >> LINE + GET
    assert talk.client.answer()[0] == 400
    talk.client.is_closed()
    assert talk.record()["client"].startswith("10.0.1.1:")


def test_a_sender_may_speak_for_itself(converse: Start):
    talk = converse(forward(identity=RULES))
    assert is_served(talk, b"PROXY UNKNOWN\r\n" + GET)["client"].startswith("10.0.0.9:")


def test_a_header_in_a_header_is_no_header(converse: Start):
    talk = converse(forward(identity=RULES))
    talk.client >> LINE + LINE + GET
    status, phrase, _, _ = talk.client.answer()
    assert (status, b"the second of a connection" in phrase) == (400, True)
    assert talk.record()["client"] == "192.0.2.7:56324"


def test_limits_are_those_of_the_clients_and_not_of_the_sender(converse: Start):
    talk = converse(forward(identity=RULES, limits={"connections": 10, "connectionsPerClient": 2}))
    clients = [talk.connect() for _ in range(3)]
    for number, client in enumerate(clients):
        client >> b"PROXY TCP4 192.0.2.%d 198.51.100.1 1 443\r\n" % number
    assert len(talk.ports[0].state.connections) == 3
    assert "192.0.2.2" in talk.ports[0].state.per_client


def test_where_listeners_of_a_port_do_not_agree_no_header_is_read(converse: Start):
    target = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw", "sectionName": "one"}
    one, two = m.http_listener(8080, "one", hostname="a.example"), m.http_listener(8080, "two", hostname="b.example")
    talk = converse([m.gateway(one, two), m.policy(["a.example"], identity=RULES, targetRefs=[target])])
    talk.client >> LINE + b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert talk.client.answer()[0] == 400


def test_a_reload_that_names_senders_ends_the_connections_from_before(converse: Start):
    talk = converse(forward())
    is_served(talk, GET)
    talk.reload(forward(identity=RULES))
    talk.client.is_closed()


OTHERS = {**RULES, "proxyProtocol": {"from": ["10.0.7.0/24"]}}


@pytest.mark.parametrize("header", [LINE, block("192.0.2.7", 56324)], ids=["v1", "v2"])
def test_a_sender_that_is_removed_while_it_speaks_is_believed_no_more(converse: Start, header: bytes):
    talk = converse(forward(identity=RULES))
    talk.client >> header[:-1]
    talk.reload(forward(identity=OTHERS))
    talk.client >> header[-1:] + GET
    talk.client.is_closed()
    assert not talk.records


def test_a_second_header_inside_tls_is_no_header(converse: Start):
    pki = Pki()
    listener = m.forward_listener(3128, tls=terminate("front"))
    talk = converse([m.gateway(listener), m.policy(["a.example"], identity=RULES), certificate(pki, "a.example")])
    talk.counts_octets = False
    talk.client >> LINE
    tls = TlsClient(talk.client, pki, "a.example").shakes_hands()
    tls >> LINE.replace(b"192.0.2.7", b"192.0.2.8") + GET
    assert b" 400 " in tls.reads()
    assert talk.record()["client"] == "192.0.2.7:56324"


def test_behind_a_header_the_certificate_says_who_and_the_header_from_where(converse: Start):
    """The header comes in pieces, and with TLVs, of which one claims to be the name in a certificate."""
    tlv = b"\x20\x00\x0d\x01\x00\x00\x00\x00\x22\x00\x05admin"
    header = block("192.0.2.7", 56324, more=tlv)
    talk = converse(proxy("cluster.local", **RULES))
    talk.counts_octets = False
    for at in range(0, len(header), 7):
        talk.client >> header[at : at + 7]
    tls = TlsClient(talk.client, PKI, "a.example", Workload(ROBOT)).shakes_hands()
    record = served(talk, tls)
    told = ("client", "namespace", "service_account", "identity_source")
    assert [record[name] for name in told] == ["192.0.2.7:56324", "team", "robot", "certificate"]


def test_behind_a_header_and_tls_a_token_says_who(converse: Start):
    listener = m.forward_listener(3128, tls=terminate("front"))
    identity = {"proxyProtocol": RULES["proxyProtocol"], "token": {"issuers": [CLUSTER.written]}}
    objects = [m.gateway(listener), m.policy(["a.example"], identity=identity), certificate(PKI, "a.example")]
    talk = converse([*objects, CLUSTER.config_map])
    talk.counts_octets = False
    talk.client >> LINE
    tls = TlsClient(talk.client, PKI, "a.example").shakes_hands()
    tls >> GET
    assert b" 407 " in tls.reads()
    record = served(talk, tls, bearer(CLUSTER.token()))
    assert (record["client"], record["service_account"]) == ("192.0.2.7:56324", "robot")


def test_socks_comes_behind_a_header(converse: Start):
    listener = {"name": "socks", "port": 1080, "protocol": "egressproxy.io/socks5"}
    talk = converse([m.gateway(listener), m.policy(["a.example"], identity=RULES)])
    talk.client >> LINE + b"\x05\x01\x00"
    talk.client << b"\x05\x00"
    talk.client >> b"\x05\x01\x00\x03\x09a.example\x00\x16"
    talk.dialled("a.example", 22)
    talk.client.leaves()
    is_known(talk.record())
