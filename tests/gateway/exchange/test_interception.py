"""Tunnels that are opened: what is served inside, by which connection, and how it counts.

The backend `a` is plain, so that these conversations can read what it gets; tests/e2e has TLS on both sides.
"""

from __future__ import annotations

import re
from time import time

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.exchange.interception import OpenedTls
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.gateway.listeners import transparent_connection
from egressproxy.model.authority import parse_authority
from egressproxy.protocols.tls.client_hello import UNRECOGNIZED_NAME
from tests.e2e.world import tls_secret
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import SWITCHED, SWITCHED_PASSED
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.kit import ESTABLISHED, OK, OK_PASSED, TlsClient, connect, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.pki import Pki

CA_PEM, CA_KEY = new_ca("interception", time(), 30)
SENT = b"GET / HTTP/1.1\r\nHost: a.example:443\r\nVia: 1.1 gw\r\n\r\n"
INSIDE = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class Trusting(Pki):
    """Of a client that trusts the CA of the interception."""

    def __init__(self) -> None:
        super().__init__()
        self.ca_pem = CA_PEM


def opening(*more: m.Manifest, allow: tuple[str, ...] = ("a.example",), **sections: object) -> list[m.Manifest]:
    """A forward proxy that opens tunnels to *.example, with a route for a.example to a plain backend."""
    return forward(
        m.backend("a", "a.example", 443),
        m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"]),
        tls_secret("ca", CA_PEM, CA_KEY.reveal()),
        *more,
        allow=allow,
        intercept={"hostnames": ["*.example"], "caCertificateRef": {"name": "ca"}},
        **sections,
    )


def start(converse: Start, objects: list[m.Manifest] | None = None) -> Conversation:
    talk = converse(opening() if objects is None else objects)
    talk.counts_octets = False
    leaves = talk.ports[0].state.port.first.certificate_caches
    assert leaves is not None
    found = leaves.match("a.example")
    assert found is not None
    for host in ("a.example", "b.example"):
        talk.run(found.context(host))  # minted already, so that nothing waits for a thread
    return talk


def undated(answer: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*\r\n", b"", answer)


def inside(talk: Conversation, host: str = "a.example", alpn: tuple[str, ...] = ("http/1.1",)) -> TlsClient:
    talk.client >> connect(f"{host}:443")
    talk.client << ESTABLISHED
    return TlsClient(talk.client, Trusting(), host, alpn=alpn).shakes_hands()


def test_requests_inside_go_by_the_routes_and_the_connection_is_kept(converse: Start):
    talk = start(converse)
    tls = inside(talk)
    for number in range(2):
        tls >> INSIDE
        if not number:
            talk.dialled("a.example", 443)
        talk.origin << SENT
        talk.origin >> OK
        assert undated(tls.reads()) == OK_PASSED
    (connection,) = talk.ports[0].state.connections
    assert isinstance(connection, OpenedTls)
    assert talk.metrics.interceptions.results == {"ok": 1}
    kinds = [(each["kind"], each["method"], each["route"], each["status"]) for each in talk.log.lines]
    assert kinds == [("tunnel", "CONNECT", "-", 200), *[("request", "GET", "agents/r", 200)] * 2]
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)


def test_http2_inside_is_served_by_a_backend_of_http1(converse: Start):
    talk = start(converse)
    peer = Http2Peer(inside(talk, alpn=("h2", "http/1.1")))
    stream = peer.ask(scheme=b"https")
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    answer = peer.answer(stream)
    assert (answer.status, bytes(answer.data)) == (200, b"hi")
    wrong = peer.ask(authority=b"b.example", scheme=b"https")
    assert peer.answer(wrong).status == 421
    plain = peer.ask(scheme=b"http")
    assert peer.answer(plain).status == 400
    tunnel = peer.connects(b"a.example:443")
    assert peer.answer(tunnel).status == 405


@pytest.mark.parametrize("alpn", [("http/1.1",), ("h2",)])
def test_a_tunnel_on_a_stream_of_http2_is_opened_as_well(converse: Start, alpn: tuple[str, ...]):
    talk = start(converse)
    outer = speak_http2(talk)
    stream = outer.connects(b"a.example:443")
    assert outer.answer(stream).status == 200
    tls = StreamTls(outer, stream, alpn)
    if alpn == ("h2",):
        inner = Http2Peer(tls)  # type: ignore[arg-type]
        asked = inner.ask(scheme=b"https")
    else:
        tls >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    if alpn == ("h2",):
        assert inner.answer(asked).status == 200
    else:
        assert undated(tls.reads()) == OK_PASSED
    outer.resets(stream)
    assert not talk.client.is_gone
    (connection,) = talk.ports[0].state.connections
    assert not connection.streams  # type: ignore[attr-defined]


def test_an_upgrade_inside_becomes_a_tunnel(converse: Start):
    talk = start(converse)
    tls = inside(talk)
    tls >> UPGRADE
    talk.dialled("a.example", 443)
    talk.origin.take(rb"GET / HTTP/1\.1\r\n(?s:.*)Upgrade: websocket\r\n\r\n")
    talk.origin >> SWITCHED
    assert undated(tls.reads()) == SWITCHED_PASSED
    tls >> b"ping"
    talk.origin << b"ping"
    talk.origin >> b"pong"
    assert tls.reads() == b"pong"


def test_a_denial_has_the_shape_of_the_provider(converse: Start):
    talk = start(converse)
    tls = inside(talk, "b.example")
    body = b'{"model":"m","messages":[]}'
    (
        tls
        >> (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: b.example\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        + body
    )
    answer = tls.reads()
    assert answer.startswith(b"HTTP/1.1 403 Denied: b.example is not allowed")
    assert b'"code": "destination_not_allowed"' in answer or b'"code":"destination_not_allowed"' in answer


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_a_server_that_cannot_be_reached_is_told_once_and_the_next_connection_tries_again(converse: Start, alpn: str):
    talk = start(converse, opening(allow=("a.example", "b.example")))
    talk.client >> connect("b.example:443")
    talk.refused("b.example", 443, UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503))
    talk.client << ESTABLISHED
    tls = TlsClient(talk.client, Trusting(), "b.example", alpn=(alpn,)).shakes_hands()
    if alpn == "h2":
        peer = Http2Peer(tls)
        assert peer.answer(peer.ask(authority=b"b.example", scheme=b"https")).status == 503
        assert peer.goaways
    else:
        tls >> INSIDE.replace(b"a.example", b"b.example")
        answer = tls.reads()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Connection: close\r\n" in answer
        assert tls.has_ended
    talk.client = talk.connect()
    talk.client >> connect("b.example:443")
    talk.refused("b.example", 443, UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503))
    talk.client << ESTABLISHED


def routed_over_tls(*rules: m.Manifest, **sections: object) -> list[m.Manifest]:
    """Rules for a.example, whose backend `t` speaks TLS."""
    objects = [each for each in opening(**sections) if each["kind"] != "HTTPRoute"]
    return [*objects, m.backend("t", "a.example", 443, tls=True), m.http_route("r", *rules, hostnames=["a.example"])]


def test_the_server_of_a_rule_for_all_requests_is_verified_first(converse: Start):
    talk = start(converse, routed_over_tls(m.prefix_rule("/", "t")))
    talk.client >> connect("a.example:443")
    talk.refused("a.example", 443, UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503))
    talk.client << ESTABLISHED
    tls = TlsClient(talk.client, Trusting(), "a.example").shakes_hands()
    tls >> INSIDE
    assert tls.reads().startswith(b"HTTP/1.1 503 ")


def test_the_name_of_the_gateway_itself_is_no_host_whose_tunnel_is_opened(converse: Start):
    objects = opening()
    policy = next(each for each in objects if each["kind"] == "EgressPolicy")
    policy["spec"]["intercept"]["hostnames"] += ["*.internal"]
    talk = start(converse, objects)
    talk.client >> connect("egress.internal:443")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "destination_not_allowed")


def test_no_name_is_looked_up_before_the_filters_of_a_request_have_let_it_pass(converse: Start):
    """Whoever serves its DNS would have read it: past a limit on requests, and past keys that are watched for."""
    limits = {"requests": [{"per": "Gateway", "limit": 1, "window": "1h"}]}
    talk = start(converse, opening(allow=("b.example",), limits=limits))
    for status in (503, 429):
        talk.client = talk.connect()
        tls = inside(talk, "b.example")
        talk.no_dial()
        assert "b.example" not in talk.names.zone
        tls >> INSIDE.replace(b"a.example", b"b.example")
        if status == 503:
            talk.refused("b.example", 443, UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503))
            del talk.names.zone["b.example"]
        assert tls.reads().startswith(b"HTTP/1.1 %d " % status)


def test_where_it_depends_on_the_request_who_serves_it_each_request_says_what_is_wrong(converse: Start):
    for objects in (
        routed_over_tls(m.prefix_rule("/v1", "t")),
        routed_over_tls(m.prefix_rule("/", "t"), m.prefix_rule("/v1", "a")),
        opening(),
    ):
        talk = start(converse, objects)
        inside(talk)
        talk.no_dial()


def test_a_connection_that_waits_for_its_next_request_makes_way(converse: Start):
    talk = start(converse)
    inside(talk)
    (connection,) = talk.ports[0].state.connections
    talk.act(connection.close_if_idle)
    assert not talk.ports[0].state.connections
    assert talk.client.is_gone


def test_a_tunnel_on_a_stream_makes_way_as_well(converse: Start):
    talk = start(converse)
    outer = speak_http2(talk)
    stream = outer.connects(b"a.example:443")
    tls = StreamTls(outer, stream, ("http/1.1",))
    tls >> INSIDE
    talk.dialled("a.example", 443)
    (connection,) = talk.ports[0].state.connections
    talk.act(connection.close_if_idle)
    assert not outer.answer(stream).is_whole, "a request is being served"
    talk.origin << SENT
    talk.origin >> OK
    assert undated(tls.reads()) == OK_PASSED
    talk.act(connection.close_if_idle)
    assert outer.answer(stream).is_whole
    assert not connection.streams  # type: ignore[attr-defined]


def test_a_tunnel_with_any_name_carries_none_that_is_to_be_opened(converse: Start):
    entry = {"hostnames": ["any.test"], "sni": "Any"}
    objects = opening(destinations={"allow": [entry]})
    talk = start(converse, objects)
    talk.client >> connect("any.test:443")
    talk.dialled("any.test", 443)
    talk.client << ESTABLISHED
    talk.client >> TlsClient(talk.client, Trusting(), "a.example").hello()
    record = talk.record()
    assert (record["reason"], record["detail"]) == ("sni_mismatch", "SNI a.example")
    assert talk.origin.got == b""
    assert talk.client.got == UNRECOGNIZED_NAME


def test_a_client_that_leaves_in_the_handshake_is_no_denial(converse: Start):
    talk = start(converse)
    talk.client >> connect("a.example:443")
    talk.client << ESTABLISHED
    talk.client >> TlsClient(talk.client, Trusting(), "a.example").hello()[:50]
    talk.client.leaves()
    record = talk.record()
    assert (record["kind"], record["reason"]) == ("tunnel", "client_gone")
    assert not talk.metrics.interceptions.results
    assert not talk.ports[0].state.connections


def test_a_client_that_leaves_without_a_word_inside_may_not_trust_the_ca(converse: Start):
    talk = start(converse)
    inside(talk)
    assert not talk.log.lines, "nothing is known of it yet"
    talk.client.leaves()
    record = talk.record()
    assert (record["kind"], record["status"], record["reason"]) == ("tunnel", 200, "-")
    assert "it may not trust the CA" in record["detail"]
    assert talk.metrics.interceptions.results == {"unused": 1}
    assert not talk.ports[0].state.connections


def test_a_client_that_leaves_when_it_has_seen_the_certificate_does_not_trust_it(converse: Start):
    talk = start(converse)
    talk.client >> connect("a.example:443")
    talk.client << ESTABLISHED
    talk.client >> TlsClient(talk.client, Trusting(), "a.example").hello()
    talk.until(lambda: bool(talk.client.received))
    talk.client.leaves()
    assert talk.record()["reason"] == "interception_refused"


def test_a_handshake_has_its_time(converse: Start, monkeypatch: pytest.MonkeyPatch):
    talk = start(converse, opening(traffic={"timeouts": {"tlsHandshake": "5s"}}))
    talk.client >> connect("a.example:443")
    talk.client << ESTABLISHED
    ahead, real = 4.0, talk.loop.time
    monkeypatch.setattr(talk.loop, "time", lambda: real() + ahead)
    talk.settle()
    talk.client.is_open()
    ahead = 6.0
    talk.settle()
    assert talk.client.is_gone
    assert talk.record()["reason"] == "client_timeout"


def test_a_tunnel_goes_on_behind_a_reload_and_new_ones_are_opaque_without_the_section(converse: Start):
    talk = start(converse)
    tls = inside(talk)
    before = talk.ports[0].state.port.first.certificate_caches
    talk.reload(opening(m.backend("other", "c.example", 80)))
    after = talk.ports[0].state.port.first.certificate_caches
    assert before is not None
    assert after is not None
    assert after.match("a.example") is before.match("a.example"), "an equal CA keeps its leaves"
    tls >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    assert undated(tls.reads()) == OK_PASSED
    talk.reload(forward())
    second = talk.connect()
    second >> connect("a.example:22")
    talk.dialled("a.example", 22)
    second << ESTABLISHED


class StreamTls(TlsClient):
    """TLS inside a tunnel on a stream of HTTP/2."""

    def __init__(self, outer: Http2Peer, stream: int, alpn: tuple[str, ...], pki: Pki | None = None) -> None:
        super().__init__(outer.wire, pki or Trusting(), "a.example", alpn=alpn)  # type: ignore[arg-type]
        self.outer, self.stream = outer, stream
        outer.says(stream, self.hello())
        self._take()
        assert self._try()
        outer.says(stream, self._outgoing.read())

    def _take(self) -> None:
        data = self.outer.answer(self.stream).data
        self._incoming.write(bytes(data))
        data.clear()

    def __rshift__(self, data: bytes) -> TlsClient:
        self._tls.write(data)
        self.outer.says(self.stream, self._outgoing.read())
        return self


# --- how many there may be -------------------------------------------------------------------------------------------
def tunnels_active(talk: Conversation) -> int:
    return sum(each.tunnels_active for each in talk.metrics.gather().series.values())


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_a_tunnel_that_is_opened_counts_as_one_until_it_ends(converse: Start, alpn: str):
    talk = start(converse, opening(limits={"tunnels": 1}))
    first = talk.client
    inside(talk, alpn=(alpn,))
    assert talk.ports[0].state.tunnels == tunnels_active(talk) == 1
    talk.client = talk.connect()
    talk.client >> connect("a.example:443")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "tunnel_limit")
    first.leaves()
    talk.until(lambda: not talk.ports[0].state.tunnels)
    assert tunnels_active(talk) == 0
    inside(talk)


def test_a_tunnel_on_a_stream_counts_until_the_stream_ends(converse: Start):
    talk = start(converse, opening(limits={"tunnels": 1}))
    outer = speak_http2(talk)
    stream = outer.connects(b"a.example:443")
    StreamTls(outer, stream, ("http/1.1",))
    assert outer.answer(outer.connects(b"a.example:443")).status == 503
    outer.resets(stream)
    talk.until(lambda: not talk.ports[0].state.tunnels)
    assert outer.answer(outer.connects(b"a.example:443")).status == 200


def test_a_handshake_that_fails_gives_its_place_back(converse: Start):
    talk = start(converse, opening(limits={"tunnels": 1}))
    talk.client >> connect("a.example:443")
    talk.client << ESTABLISHED
    assert talk.ports[0].state.tunnels == 1
    talk.client >> b"SSH-2.0-client\r\n"
    talk.record()
    assert talk.ports[0].state.tunnels == tunnels_active(talk) == 0


def test_an_upgrade_inside_is_no_second_tunnel(converse: Start):
    talk = start(converse, opening(limits={"tunnels": 1}))
    tls = inside(talk)
    tls >> UPGRADE
    talk.dialled("a.example", 443)
    talk.origin.take(rb"GET / HTTP/1\.1\r\n(?s:.*)Upgrade: websocket\r\n\r\n")
    talk.origin >> SWITCHED
    assert undated(tls.reads()) == SWITCHED_PASSED
    assert talk.ports[0].state.tunnels == 1
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.tunnels)


# --- other ways in ---------------------------------------------------------------------------------------------------
def by_listener(protocol: str) -> list[m.Manifest]:
    _, *others = opening()
    return [m.gateway({"name": "other", "port": 1080, "protocol": f"egressproxy.io/{protocol}"}), *others]


def is_opened(talk: Conversation, tls: TlsClient) -> None:
    tls >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin << SENT
    talk.origin >> OK
    assert undated(tls.reads()) == OK_PASSED
    kinds = [(each["kind"], each["method"], each["route"], each["listener"]) for each in talk.log.lines]
    assert kinds == [("tunnel", "CONNECT", "-", "other"), ("request", "GET", "agents/r", "other")]


def test_a_tunnel_of_socks_is_opened(converse: Start):
    talk = start(converse, by_listener("socks5"))
    talk.client >> b"\x05\x01\x00" + b"\x05\x01\x00\x03\x09a.example\x01\xbb"
    talk.client << b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6)
    is_opened(talk, TlsClient(talk.client, Trusting(), "a.example", alpn=("http/1.1",)).shakes_hands())


def test_a_redirected_connection_is_opened(converse: Start, monkeypatch: pytest.MonkeyPatch):
    dialled = parse_authority(b"93.184.216.99:443")
    monkeypatch.setattr(transparent_connection, "destination_of", lambda _transport: dialled)
    talk = start(converse, by_listener("transparent"))
    is_opened(talk, TlsClient(talk.client, Trusting(), "a.example", alpn=("http/1.1",)).shakes_hands())


def test_a_redirected_connection_to_a_server_that_is_not_reached_is_told_inside(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    dialled = parse_authority(b"93.184.216.99:443")
    monkeypatch.setattr(transparent_connection, "destination_of", lambda _transport: dialled)
    talk = start(converse, by_listener("transparent"))
    talk.names.faults["b.example"] = lambda: UpstreamFault(Reason.DNS_NXDOMAIN, "b.example does not exist", status=503)
    tls = TlsClient(talk.client, Trusting(), "b.example", alpn=("http/1.1",)).shakes_hands()
    tls >> INSIDE.replace(b"a.example", b"b.example")
    assert b"HTTP/1.1 403 Denied: b.example is not allowed" in tls.reads()


def test_a_reload_on_other_terms_serves_nothing_in_a_tunnel_that_is_being_opened(converse: Start):
    """The client has shown what the listener asked of it before, and its handshake is held back until then."""
    talk = start(converse)
    talk.client >> connect("a.example:443")
    talk.client << ESTABLISHED
    tls = TlsClient(talk.client, Trusting(), "a.example", alpn=("http/1.1",))
    talk.client >> tls.hello()
    talk.until(lambda: bool(talk.client.received))
    talk.reload(opening(allow=("other.example",), limits={"maxHeadBytes": 4096}))
    talk.client >> tls.last_flight()
    tls >> INSIDE
    talk.no_dial()
    assert talk.client.is_gone
    assert talk.record()["reason"] == "no_route"
