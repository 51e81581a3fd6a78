"""TLS listeners of mode Passthrough whose policy opens the streams to some hosts: these are served as in a CONNECT."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.exchange.interception import OpenedTls
from egressproxy.operators.explain.decision import decide
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from egressproxy.protocols.tls.client_hello import ACCESS_DENIED
from tests.e2e.world import tls_secret
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.exchange.test_interception import CA_KEY, CA_PEM, INSIDE, Trusting, inside, opening, start
from tests.gateway.h2 import Http2Peer
from tests.gateway.kit import TlsClient
from tests.support import manifests as m
from tests.support.conversation import Conversation


def passing(*listeners: m.Manifest, allow: tuple[str, ...] = ("a.example",), **sections: Any) -> list[m.Manifest]:
    """A listener that passes TLS by TLSRoutes, and opens *.example, with other listeners beside it."""
    return [
        m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}, *listeners),
        m.policy(allow, intercept={"hostnames": ["*.example"], "caCertificateRef": {"name": "ca"}}, **sections),
        tls_secret("ca", CA_PEM, CA_KEY.reveal()),
        m.backend("o", "o.test", 443, protocol="TCP"),
        m.tls_route("t", "o", hostnames=["o.test", "a.example"]),
    ]


def refused(talk: Conversation, host: str) -> TlsClient:
    """A client inside of a stream to this host, whose server cannot be reached."""
    tls = TlsClient(talk.client, Trusting(), host, alpn=("http/1.1",))
    talk.client >> tls.hello()
    talk.refused(host, 443, UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503))
    talk.until(lambda: bool(talk.client.received))
    talk.client >> tls.last_flight()
    return tls


def test_the_server_is_verified_and_what_is_wrong_is_told_inside(converse: Start):
    talk = start(converse, passing())
    tls = refused(talk, "a.example")
    tls >> INSIDE
    assert tls.reads().startswith(b"HTTP/1.1 503 ")
    talk.until(lambda: len(talk.records) == 2)
    told = ("kind", "method", "listener", "authority", "status")
    assert sorted([each[name] for name in told] for each in talk.records) == [
        ["request", "GET", "tls", "a.example:443", 503],
        ["tunnel", "-", "tls", "a.example:443", 200],
    ]
    assert talk.metrics.interceptions.results == {"ok": 1}
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_what_policy_does_not_allow_is_denied_inside(converse: Start, alpn: str):
    talk = start(converse, passing())
    tls = TlsClient(talk.client, Trusting(), "b.example", alpn=(alpn,)).shakes_hands()
    if alpn == "h2":
        peer = Http2Peer(tls)
        assert peer.answer(peer.ask(authority=b"b.example", scheme=b"https")).status == 403
        assert peer.answer(peer.ask(authority=b"o.test", scheme=b"https")).status == 421
    else:
        tls >> INSIDE.replace(b"a.example", b"b.example")
        assert b"HTTP/1.1 403 Denied: b.example is not allowed" in tls.reads()
    (connection,) = talk.ports[0].state.connections
    assert isinstance(connection, OpenedTls)
    talk.no_dial()


@pytest.mark.parametrize(("via", "reason"), [("OURS", Reason.LOOP_DETECTED), ("x", Reason.DESTINATION_NOT_ALLOWED)])
@pytest.mark.parametrize("is_stream", [True, False])
def test_what_has_passed_here_is_a_loop_inside_and_in_explanations(
    converse: Start, is_stream: bool, via: str, reason: Reason
):
    talk = start(converse, passing() if is_stream else opening())
    if is_stream:
        tls = TlsClient(talk.client, Trusting(), "b.example", alpn=("http/1.1",)).shakes_hands()
        asked = "CONNECT", "b.example:443"
    else:
        tls = inside(talk, "b.example")
        asked = "GET", "https://b.example/"
    pseudonym = talk.connection_manager.pseudonym
    value = f"1.1 {via.replace('OURS', pseudonym.decode())}"
    tls >> INSIDE.replace(b"a.example\r\n", f"b.example\r\nVia: {value}\r\n".encode())
    assert tls.reads().startswith(b"HTTP/1.1 508 " if via == "OURS" else b"HTTP/1.1 403 ")
    record = next(each for each in talk.records if each["kind"] == "request")
    decided = decide(talk.snapshot, HypotheticalRequest(*asked, (("Via", value),)), pseudonym)
    assert decided.error is not None
    assert record["reason"] == decided.error.reason.value == reason.value


def test_others_pass_opaque_by_their_routes(converse: Start):
    talk = start(converse, passing())
    hello = client_hello("o.test")
    talk.client >> hello
    talk.dialled("o.test", 443)
    talk.origin << hello


def test_a_stream_that_is_opened_takes_a_place_of_the_tunnels(converse: Start):
    talk = start(converse, passing(limits={"tunnels": 1}))
    first = talk.client
    refused(talk, "a.example")
    assert talk.ports[0].state.tunnels == 1
    second = talk.connect()
    second >> client_hello("a.example")
    second.is_closed()
    assert talk.records[-1]["reason"] == "tunnel_limit"
    first.leaves()
    talk.until(lambda: not talk.ports[0].state.tunnels)
    assert not talk.ports[0].state.connections


@pytest.mark.parametrize("leaves_at", ["the dial", "the handshake"])
def test_nothing_is_left_of_a_client_that_leaves_before(converse: Start, leaves_at: str):
    talk = start(converse, passing(limits={"tunnels": 1}))
    talk.client >> client_hello("a.example")
    if leaves_at == "the handshake":
        talk.refused("a.example", 443, UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503))
        talk.until(lambda: bool(talk.client.received))
    else:
        talk.pending_dial()
    talk.client.leaves()
    assert talk.record()["reason"] == ("interception_refused" if leaves_at == "the handshake" else "client_gone")
    assert not talk.ports[0].state.connections
    assert not talk.ports[0].state.tunnels


def test_each_listener_of_a_port_opens_what_its_own_policy_says(converse: Start):
    other = {"name": "other", "port": 8443, "protocol": "TLS", "hostname": "b.example", "tls": {"mode": "Passthrough"}}
    deny = m.policy(name="other", destinations={"deny": [{"hostnames": ["b.example"]}]})
    deny["spec"]["targetRefs"][0]["sectionName"] = "other"
    talk = start(converse, [*passing(other, allow=("a.example", "b.example")), deny])
    tls = TlsClient(talk.client, Trusting(), "b.example", alpn=("http/1.1",)).shakes_hands()
    tls >> INSIDE.replace(b"a.example", b"b.example")
    assert tls.reads().startswith(b"HTTP/1.1 403 ")
    (record,) = [each for each in talk.records if each["kind"] == "request"]
    assert (record["listener"], record["reason"]) == ("other", "destination_denied")


def test_a_reload_that_opens_nothing_any_more_ends_what_was_opened(converse: Start):
    talk = start(converse, passing())
    tls = TlsClient(talk.client, Trusting(), "b.example", alpn=("http/1.1",)).shakes_hands()
    without = [each for each in passing() if each["kind"] != "EgressPolicy"]
    talk.reload([*without, m.policy(["b.example"])])
    tls >> INSIDE.replace(b"a.example", b"b.example")
    assert tls.reads().startswith(b"HTTP/1.1 404 ")
    talk.no_dial()


def test_a_listener_that_ends_tls_itself_denies_the_name(converse: Start):
    pki = Trusting()
    leaf = pki.issue("a.example")
    objects = passing()[1:]
    tls = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"certificateRefs": [{"name": "own"}]}}
    talk = start(
        converse,
        [
            m.gateway(tls),
            tls_secret("own", leaf.cert_chain_pems[0].bytes().decode(), leaf.private_key_pem.bytes()),
            *objects,
        ],
    )
    talk.client >> client_hello("a.example")
    talk.client << ACCESS_DENIED
    assert talk.record()["reason"] == "destination_denied"
