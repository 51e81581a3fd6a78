"""A client is shown certificates of its own CA, on every way in; after its withdrawal its connections are closed."""

from __future__ import annotations

from time import time

import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.gateway.listeners import transparent_connection
from egressproxy.model.authority import parse_authority
from egressproxy.operators.explain.decision import decide
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from tests.e2e.world import tls_secret
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import SWITCHED, SWITCHED_PASSED
from tests.gateway.exchange.test_interception import CA_KEY, CA_PEM, INSIDE, SENT, UPGRADE, StreamTls, Trusting, undated
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.kit import ESTABLISHED, OK, OK_PASSED, TlsClient, connect
from tests.gateway.listeners.test_opened_stream import passing
from tests.support import manifests as m
from tests.support.conversation import Conversation

OWN_PEM, OWN_KEY = new_ca("of one client", time(), 30)
EVERYBODY = {"address": {"clients": [{"cidrs": ["0.0.0.0/0", "::/0"], "namespace": "agents", "serviceAccount": "one"}]}}
ONE, TWO = ({"namespace": "agents", "serviceAccount": name} for name in ("one", "two"))
WAYS = ["forward-proxy", "socks5", "transparent", "TLS"]


class TrustingOwn(Trusting):
    def __init__(self) -> None:
        super().__init__()
        self.ca_pem = OWN_PEM


def manifests(way: str, *entries: tuple[str, m.Manifest], default: bool = True) -> list[m.Manifest]:
    """`entries`: the name of a Secret, and the subject."""
    by_subject = [{"subjects": [subject], "caCertificateRef": {"name": name}} for name, subject in entries]
    intercept = {"hostnames": ["*.example"], "bySubject": by_subject}
    if default:
        intercept["caCertificateRef"] = {"name": "ca"}
    secrets = [tls_secret("ca", CA_PEM, CA_KEY.reveal()), tls_secret("own", OWN_PEM, OWN_KEY.reveal())]
    if way == "TLS":
        gateway, *_, backend, route = passing()
        return [gateway, m.policy(("a.example",), intercept=intercept, identity=EVERYBODY), *secrets, backend, route]
    return [
        m.gateway({"name": "other", "port": 1080, "protocol": f"egressproxy.io/{way}"}),
        m.policy(("a.example",), intercept=intercept, identity=EVERYBODY),
        m.backend("a", "a.example", 443),
        m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"]),
        *secrets,
    ]


def begin(talk: Conversation, way: str) -> None:
    """As far as the ClientHello."""
    if way == "forward-proxy":
        talk.client >> connect("a.example:443")
        talk.client << ESTABLISHED
    elif way == "socks5":
        talk.client >> b"\x05\x01\x00" + b"\x05\x01\x00\x03\x09a.example\x01\xbb"
        talk.client << b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6)


@pytest.fixture(autouse=True)
def redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = parse_authority(b"93.184.216.99:443")
    monkeypatch.setattr(transparent_connection, "destination_of", lambda _transport: dialled)


def start(converse: Start, objects: list[m.Manifest]) -> Conversation:
    talk = converse(objects)
    talk.counts_octets = False
    for cache in talk.snapshot.leaf_caches._made.values():
        for host in ("a.example", "b.example"):
            talk.run(cache.context(host))
    return talk


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
@pytest.mark.parametrize("way", WAYS[:3])
def test_a_client_is_shown_its_own_ca_until_that_is_withdrawn(converse: Start, way: str, alpn: str):
    talk = start(converse, manifests(way, ("own", ONE)))
    begin(talk, way)
    tls = TlsClient(talk.client, TrustingOwn(), "a.example", alpn=(alpn,)).shakes_hands()
    if alpn == "h2":
        peer = Http2Peer(tls)
        stream = peer.ask(scheme=b"https")
    else:
        tls >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    if alpn == "h2":
        assert peer.answer(stream).status == 200
    else:
        assert undated(tls.reads()) == OK_PASSED
    talk.reload(manifests(way, ("own", ONE), default=False))
    assert not talk.client.is_gone
    talk.reload(manifests(way, ("gone", ONE)))
    assert talk.client.is_gone
    assert not talk.ports[0].state.connections


@pytest.mark.parametrize("way", WAYS)
def test_the_entry_of_another_client_is_not_for_this_one(converse: Start, way: str):
    talk = start(converse, manifests(way, ("own", TWO)))
    begin(talk, way)
    host = "b.example" if way == "TLS" else "a.example"  # a server that is not dialled before
    TlsClient(talk.client, Trusting(), host, alpn=("http/1.1",)).shakes_hands()


@pytest.mark.parametrize("entry", [("own", TWO), ("gone", ONE)])
@pytest.mark.parametrize("way", WAYS)
def test_without_a_ca_the_tunnel_is_refused(converse: Start, way: str, entry: tuple[str, m.Manifest]):
    talk = start(converse, manifests(way, entry, default=False))
    if way == "forward-proxy":
        talk.client >> connect("a.example:443")
        assert talk.client.answer()[0] == 403
    elif way == "socks5":
        talk.client >> b"\x05\x01\x00" + b"\x05\x01\x00\x03\x09a.example\x01\xbb"
        talk.client.take(rb"\x05\x00\x05\x02\x00\x01(?s:.*)")
    else:
        begin(talk, way)
        talk.client >> TlsClient(talk.client, Trusting(), "a.example", alpn=("http/1.1",)).hello()
        talk.until(lambda: talk.client.is_gone)
    talk.no_dial()
    record = talk.record()
    assert (record["reason"], record["rule"]) == ("destination_denied", "EgressPolicy agents/default")


def test_a_withdrawal_ends_a_tunnel_on_a_stream_of_http2_alone(converse: Start):
    talk = start(converse, manifests("forward-proxy", ("own", ONE)))
    outer = speak_http2(talk)
    stream = outer.connects(b"a.example:443")
    assert outer.answer(stream).status == 200
    tls = StreamTls(outer, stream, ("http/1.1",), TrustingOwn())
    tls >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    assert undated(tls.reads()) == OK_PASSED
    talk.reload(manifests("forward-proxy"))
    assert not talk.client.is_gone
    assert not next(iter(talk.ports[0].state.connections)).streams  # type: ignore[attr-defined]


def test_a_withdrawal_in_the_middle_of_a_handshake(converse: Start):
    talk = start(converse, manifests("forward-proxy", ("own", ONE)))
    talk.client >> connect("a.example:443")
    talk.client << ESTABLISHED
    tls = TlsClient(talk.client, TrustingOwn(), "a.example", alpn=("http/1.1",))
    talk.client >> tls.hello()
    talk.until(lambda: bool(talk.client.received))
    talk.reload(manifests("forward-proxy", default=True))
    talk.client >> tls.last_flight()
    tls >> INSIDE
    talk.no_dial()
    assert talk.client.is_gone
    assert talk.record()["reason"] == "destination_denied"


def test_an_explanation_says_that_there_is_no_ca(converse: Start):
    talk = start(converse, manifests("forward-proxy", ("own", TWO), default=False))
    decided = decide(talk.snapshot, HypotheticalRequest("CONNECT", "a.example:443", ()), b"gw")
    assert decided.error is not None
    assert "there is no CA for this client" in decided.error.message


def test_a_withdrawal_ends_a_websocket_inside(converse: Start):
    talk = start(converse, manifests("forward-proxy", ("own", ONE)))
    begin(talk, "forward-proxy")
    tls = TlsClient(talk.client, TrustingOwn(), "a.example", alpn=("http/1.1",)).shakes_hands()
    tls >> UPGRADE
    talk.dialled("a.example", 443)
    talk.origin.take(rb"GET / HTTP/1\.1\r\n(?s:.*)Upgrade: websocket\r\n\r\n")
    talk.origin >> SWITCHED
    assert undated(tls.reads()) == SWITCHED_PASSED
    talk.reload(manifests("forward-proxy"))
    assert talk.client.is_gone


def test_a_client_without_a_ca_is_told_so_by_self_service(converse: Start):
    talk = start(converse, manifests("forward-proxy", ("own", TWO), default=False))
    url = b"http://egress.internal/check?url=https://a.example/"
    talk.client >> b"GET %b HTTP/1.1\r\nHost: egress.internal\r\n\r\n" % url
    talk.client.take(rb'(?s)HTTP/1\.1 200 .*"allowed": ?false.*there is no CA for this client')
