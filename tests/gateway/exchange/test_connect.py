"""CONNECT and upgrades, from the decision to the last octet."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest

from egressproxy.filters.base import Filter
from egressproxy.gateway.exchange.relay import ServedTunnel
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.tls.client_hello import MISSING_EXTENSION, UNRECOGNIZED_NAME
from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.kit import (
    ESTABLISHED,
    GET,
    OK,
    OK_PASSED,
    VIA,
    TlsClient,
    certificate,
    connect,
    exchange,
    forward,
)
from tests.support import manifests as m
from tests.support.conversation import Conversation, conversation, scripted_filter
from tests.support.pki import Pki

UPGRADE = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UPGRADE_SENT = b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCHED_PASSED = b"HTTP/1.1 101 Switching Protocols\r\n" + VIA + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def client_hello(name: str | None) -> bytes:
    """What a real TLS client says first."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    if name is None:
        context.check_hostname = False
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def tls_routed(**sections: object) -> list[m.Manifest]:
    """A tunnel to a.example:443 is matched by a TLSRoute, and so has to be TLS."""
    backend = m.backend("a", "a.example", 443, protocol="TCP")
    return forward(backend, m.tls_route("t", "a", hostnames=["a.example"]), **sections)


def tunnel(talk: Conversation, authority: str = "a.example:443") -> None:
    talk.client >> connect(authority)
    host, _, port = authority.partition(":")
    talk.dialled(host, int(port))
    talk.client << ESTABLISHED


# --- octets --------------------------------------------------------------------------------------------------------
def test_connect_forwards_octets_that_came_early(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> connect("a.example:22") + b"SSH-2.0-early\r\n"
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED
    talk.origin << b"SSH-2.0-early\r\n"
    talk.origin >> b"SSH-2.0-server\r\n"
    talk.client << b"SSH-2.0-server\r\n"


@pytest.mark.parametrize("first", ["client", "origin"])
def test_each_side_of_a_tunnel_may_end_by_itself(converse_on: Start, first: str):
    talk = converse_on(forward())
    tunnel(talk, "a.example:22")
    one, other = (talk.client, talk.origin) if first == "client" else (talk.origin, talk.client)
    one >> b"question"
    one.ends()
    other << b"question"
    talk.until(lambda: other.has_eof)
    assert other.has_eof
    other >> b"a long answer"
    other.ends()
    one << b"a long answer"
    one.is_closed()
    record = talk.record()
    assert (record["kind"], record["status"], record["reason"]) == ("tunnel", 200, "-")
    sizes = (
        (len(b"question"), len(b"a long answer")) if first == "client" else (len(b"a long answer"), len(b"question"))
    )
    assert record["bytes_in"] == len(connect("a.example:22")) + sizes[0]
    assert record["bytes_out"] == len(ESTABLISHED) + sizes[1]


def test_the_end_of_a_silent_client_goes_on_and_the_server_may_still_speak(converse_on: Start):
    talk = converse_on(forward())
    tunnel(talk, "a.example:22")
    talk.client.ends()
    talk.until(lambda: talk.origin.has_eof)
    talk.origin >> b"banner"
    talk.origin.ends()
    talk.client << b"banner"
    talk.client.is_closed()


def test_a_server_may_speak_first(converse_on: Start):
    talk = converse_on(forward())
    tunnel(talk, "a.example:25")
    talk.origin >> b"220 mail\r\n"
    talk.client << b"220 mail\r\n"


def test_a_reset_goes_through(converse_on: Start):
    talk = converse_on(forward())
    tunnel(talk, "a.example:22")
    talk.client >> b"x"
    talk.origin << b"x"
    talk.origin.resets()
    talk.until(lambda: talk.client.is_gone)
    assert talk.client.is_gone
    if talk.is_memory:
        assert talk.client.transport.was_aborted
    else:
        assert isinstance(talk.client.error, ConnectionResetError)


@pytest.mark.parametrize("slow", ["client", "origin"])
def test_back_pressure_goes_through_a_tunnel(converse: Start, slow: str):
    talk = converse(forward())
    tunnel(talk, "a.example:22")
    one, other = (talk.client, talk.origin) if slow == "client" else (talk.origin, talk.client)
    one.stalls()
    other >> b"x" * 1_000_000
    assert other.transport.is_paused
    assert one.transport.get_write_buffer_size() < 200_000
    one.reads_on()
    one << b"x" * 1_000_000


def test_a_slow_reader_gets_the_rest_though_the_other_end_has_left(converse: Start):
    talk = converse(forward())
    tunnel(talk, "a.example:22")
    talk.client.stalls()
    talk.origin >> b"x" * 60_000
    talk.origin.leaves()
    transport = talk.client.transport
    for _ in range(4):
        talk.after(8)
        assert not talk.client.is_gone, "it still takes something"
        transport._buffer[0] = transport._buffer[0][1000:]
        transport._size -= 1000
    talk.after(21)
    assert talk.client.is_gone
    talk.counts_octets = False


def test_a_tunnel_that_carries_nothing_is_closed_after_its_idle_time(converse: Start):
    talk = converse(forward(traffic={"timeouts": {"tunnelIdle": "30s"}}))
    tunnel(talk, "a.example:22")
    for _ in range(3):
        talk.after(20)
        talk.origin >> b"."
    talk.client << b"..."
    talk.after(35)
    assert talk.client.is_gone
    assert talk.record()["reason"] == "client_timeout"


# --- the guard -----------------------------------------------------------------------------------------------------
def test_a_client_hello_for_the_authority_passes_in_pieces(converse_on: Start):
    talk = converse_on(forward())
    tunnel(talk)
    hello = client_hello("a.example")
    talk.client >> hello[:10]
    talk.origin.hears_nothing()
    talk.client >> hello[10:]
    talk.origin << hello


@pytest.mark.parametrize("name", ["b.example", None])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_client_hello_for_another_name_or_for_none_goes_nowhere(converse_on: Start, name: str | None, is_early: bool):
    talk = converse_on(forward())
    hello = client_hello(name)
    talk.client >> connect("a.example:443") + (hello if is_early else b"")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    if not is_early:
        talk.client >> hello
    talk.client << (UNRECOGNIZED_NAME if name else MISSING_EXTENSION)  # RFC 6066 section 3, RFC 8446 section 9.2
    talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)
    talk.origin.is_closed()
    record = talk.record()
    assert record["reason"] == "sni_mismatch"
    assert record["detail"].startswith("SNI b.example" if name else "no SNI: set `sni: Any` on the entry")
    assert record["bytes_out"] == len(ESTABLISHED) + len(UNRECOGNIZED_NAME)
    assert talk.series("denied") == 1


def test_any_sni_passes_where_the_policy_says_so(converse_on: Start):
    allow = [{"hostnames": ["a.example"], "sni": "Any"}]
    talk = converse_on([m.gateway(m.forward_listener(3128)), m.policy(destinations={"allow": allow})])
    tunnel(talk)
    talk.client >> client_hello("b.example")
    talk.origin << client_hello("b.example")[:5]


def test_a_tunnel_of_a_tls_route_has_to_be_tls(converse_on: Start):
    talk = converse_on(tls_routed())
    tunnel(talk)
    talk.client >> b"SSH-2.0-x\r\n"
    talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)
    talk.origin.is_closed()
    assert talk.record()["reason"] == "not_tls"


def test_a_tunnel_of_a_tls_route_is_cut_when_no_hello_comes(converse: Start):
    talk = converse(tls_routed())
    tunnel(talk)
    talk.after(12)
    assert talk.client.is_gone
    assert talk.record()["reason"] == "not_tls"


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_server_says_before_the_hello_is_held_back(converse_on: Start, ends: bool):
    talk = converse_on(tls_routed())
    tunnel(talk)
    talk.origin >> b"banner"
    if ends:
        talk.origin.ends()
    talk.client.hears_nothing()
    hello = client_hello("a.example")
    talk.client >> hello
    talk.origin << hello
    talk.client << b"banner"
    if ends:
        talk.until(lambda: talk.client.has_eof)
        assert talk.client.has_eof


def test_what_a_server_says_before_the_hello_does_not_grow_without_bound(converse: Start):
    talk = converse(tls_routed())
    talk.client >> connect("a.example:443")
    dial = talk.pending_dial()
    assert dial is not None
    talk.dialled("a.example", 443)
    talk.origin >> b"x" * 1_000_000
    assert talk.origin.transport.is_paused
    talk.client >> client_hello("a.example")
    talk.client << ESTABLISHED + b"x" * 1_000_000


def test_a_server_that_speaks_while_the_tunnel_is_being_made_is_paused_too(converse: Start):
    """Octets that came while the transport was parked: the pause that they cause must not be undone."""
    talk = converse(tls_routed())
    talk.client >> connect("a.example:443")
    dial = talk.pending_dial()
    assert dial is not None
    from tests.support.conversation import MemoryPeer, MemoryTransport

    talk.dialer.dials.clear()
    peer = MemoryPeer(talk)
    talk.origins.append(peer)

    def accept() -> None:
        protocol = dial.factory()
        transport = MemoryTransport(peer, protocol, ("93.184.216.1", 443))
        protocol.connection_made(transport)
        transport.deliver(b"x" * 300_000)
        dial.future.set_result((transport, protocol, dial.endpoints[0]))

    talk.act(accept)
    assert peer.transport.is_paused
    talk.client >> client_hello("a.example")
    talk.client << ESTABLISHED + b"x" * 300_000


RETRY = bytes.fromhex("160303002c020000280303cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c00130100")
TAKEN = RETRY[:11] + bytes(32) + RETRY[43:]  # a ServerHello
CHANGE = b"\x14\x03\x03\x00\x01\x01"


@pytest.mark.parametrize("manifests", [forward(), tls_routed()])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_second_hello_for_another_name_goes_nowhere(converse_on: Start, manifests: list[m.Manifest], is_asked: bool):
    """A HelloRetryRequest is easily provoked, and the server serves the name in the hello that follows it."""
    talk = converse_on(manifests)
    tunnel(talk)
    first = client_hello("a.example")
    talk.client >> first
    talk.origin << first
    if is_asked:
        talk.origin >> RETRY
        talk.client << RETRY
    talk.client >> CHANGE + client_hello("b.example")
    talk.client << UNRECOGNIZED_NAME
    talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)
    talk.origin.is_closed()
    assert talk.record()["reason"] == "sni_mismatch"


@pytest.mark.parametrize("manifests", [forward(), tls_routed()])
def test_a_second_hello_for_the_same_name_passes(converse_on: Start, manifests: list[m.Manifest]):
    talk = converse_on(manifests)
    tunnel(talk)
    hello = client_hello("a.example")
    talk.client >> hello
    talk.origin << hello
    talk.origin >> RETRY
    talk.client << RETRY
    talk.client >> CHANGE + hello[:50]
    talk.origin << CHANGE
    talk.origin.hears_nothing()
    talk.client >> hello[50:]
    talk.origin << hello
    talk.origin >> TAKEN
    talk.client << TAKEN
    talk.client >> client_hello("b.example")  # whatever it is to be, it is no ClientHello any more
    talk.origin << client_hello("b.example")[:5]


@pytest.mark.parametrize("curve", [None, "secp521r1"])
def test_a_real_handshake_goes_through_with_a_retry_and_without(converse_on: Start, curve: str | None):
    """A server for one curve alone asks for another key: no client offers it in its first hello."""
    pki = Pki()
    context = pki.server_context("a.example")
    if curve is not None:
        context.set_ecdh_curve(curve)
    talk = converse_on(forward())
    tunnel(talk)
    to_client, to_server, said, answered = (ssl.MemoryBIO() for _ in range(4))
    client = pki.client_context().wrap_bio(to_client, said, server_hostname="a.example")
    server = context.wrap_bio(to_server, answered, server_side=True)
    flights = 0
    for _ in range(4):
        for end, out, peer, other, into in (
            (client, said, talk.client, talk.origin, to_server),
            (server, answered, talk.origin, talk.client, to_client),
        ):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
            if octets := out.read():
                flights += end is client
                peer >> octets
                other << octets
                into.write(octets)
    assert flights == (2 if curve is None else 3)
    client.write(b"inside")
    sealed = said.read()
    talk.client >> sealed
    talk.origin << sealed
    to_server.write(sealed)
    assert server.read() == b"inside"


def test_half_a_record_goes_on_when_the_server_has_answered(converse_on: Start):
    talk = converse_on(forward())
    tunnel(talk)
    hello = client_hello("a.example")
    talk.client >> hello + CHANGE[:4]
    talk.origin << hello
    talk.origin.hears_nothing()
    talk.origin >> TAKEN
    talk.origin << CHANGE[:4]
    talk.client << TAKEN


@pytest.mark.parametrize("manifests", [forward(), tls_routed()])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_hello_that_is_not_whole_in_time_ends_the_tunnel(
    converse: Start, manifests: list[m.Manifest], is_second: bool
):
    talk = converse(manifests)
    tunnel(talk)
    hello = client_hello("a.example")
    if is_second:
        talk.client >> hello
        talk.origin >> RETRY
    for at in range(5):
        talk.client >> hello[at : at + 1]
        talk.after(2.5)
    assert talk.client.is_gone
    assert talk.record()["reason"] == "client_timeout"


@pytest.mark.parametrize("octets", [b"", client_hello("a.example")[:20]], ids=["nothing", "a piece of a hello"])
@pytest.mark.parametrize("port", [80, 443])
def test_without_a_time_for_heads_the_idle_time_holds(converse: Start, octets: bytes, port: int):
    timeouts = {"requestHeaders": "0s", "idle": "30s", "tunnelIdle": "30s"}
    backend = m.backend("a", "a.example", 443, tls=True)
    talk = converse(forward(backend, m.tls_route("t", "a", hostnames=["a.example"]), traffic={"timeouts": timeouts}))
    talk.client >> connect(f"a.example:{port}")
    talk.client >> octets
    if port == 443 or octets:
        talk.dialled("a.example", 443)
    talk.after(20)
    talk.client.is_open()
    talk.after(15)
    assert talk.client.is_gone
    assert talk.record()["reason"] == "client_timeout"


def test_a_server_may_take_its_time_for_its_answer(converse: Start):
    talk = converse(tls_routed())
    tunnel(talk)
    talk.client >> client_hello("a.example")
    talk.after(50)
    talk.client.is_open()
    talk.origin >> TAKEN
    talk.client << TAKEN


@pytest.mark.parametrize("is_held", [True, False])
def test_a_client_that_ends_behind_its_hello(converse_on: Start, is_held: bool):
    talk = converse_on(forward())
    tunnel(talk)
    hello = client_hello("a.example")
    talk.client >> hello + (CHANGE[:4] if is_held else b"")
    talk.origin << hello
    talk.client.ends()
    talk.until(lambda: talk.origin.has_eof)
    if is_held:
        talk.client.is_closed()
    else:
        talk.origin >> TAKEN
        talk.origin.ends()
        talk.client << TAKEN


def test_through_a_proxy_over_tls_the_alert_comes_inside_of_it(converse_on: Start):
    pki = Pki()
    gateway = m.gateway(m.forward_listener(3128, tls=terminate("front")))
    talk = converse_on([gateway, m.policy(["a.example"]), certificate(pki, "proxy.example")])
    talk.counts_octets = False
    client = TlsClient(talk.client, pki, "proxy.example").shakes_hands()
    client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.until(lambda: bool(talk.client.received))
    assert client.reads() == ESTABLISHED
    client >> client_hello("b.example")
    talk.until(lambda: bool(talk.client.received))
    assert client.reads() == UNRECOGNIZED_NAME
    talk.origin.is_closed()
    record = talk.record()
    assert (record["reason"], record["bytes_out"]) == ("sni_mismatch", len(ESTABLISHED) + len(UNRECOGNIZED_NAME))


# --- the guard in mode Report --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["b.example", None])
def test_report_mode_lets_a_foreign_name_pass_and_counts_it(converse_on: Start, name: str | None):
    talk = converse_on(forward(mode="Report"))
    tunnel(talk)
    hello = client_hello(name)
    talk.client >> hello
    talk.origin << hello
    talk.client.leaves()
    talk.origin.leaves()
    assert talk.record()["would_deny"] == ["sni_mismatch"]
    assert (talk.series("would_deny"), talk.series("denied")) == (1, 0)


@pytest.mark.parametrize("of_gateway", [{"allow": ("a.example",)}, {"deny": ("b.example",)}])
def test_a_listener_in_report_mode_lets_no_foreign_name_pass_where_its_gateway_restricts(
    converse_on: Start, of_gateway: dict[str, tuple[str, ...]]
):
    destinations = {kind: [{"hostnames": list(names)}] for kind, names in of_gateway.items()}
    reporting = m.policy(name="reporting", mode="Report")
    reporting["spec"]["targetRefs"][0]["sectionName"] = "forward"
    talk = converse_on([m.gateway(m.forward_listener(3128)), m.policy(destinations=destinations), reporting])
    tunnel(talk)
    talk.client >> client_hello("b.example")
    talk.until(lambda: talk.client.has_eof or talk.client.is_gone)
    assert talk.record()["reason"] == "sni_mismatch"


def test_report_mode_counts_every_rule_that_a_tunnel_breaks(converse_on: Start):
    talk = converse_on(forward(allow=("c.example",), mode="Report"))
    tunnel(talk)
    talk.client >> client_hello("b.example")
    talk.client.leaves()
    talk.origin.leaves()
    assert talk.record()["would_deny"] == ["destination_not_allowed", "sni_mismatch"]


@pytest.mark.parametrize("way", ["says another thing", "says half a hello and waits", "waits", "ends"])
def test_report_mode_lets_a_tunnel_pass_that_ought_to_be_tls_and_is_not(converse: Start, way: str):
    """Where the server speaks first, it is heard first."""
    talk = converse(tls_routed(mode="Report"))
    tunnel(talk)
    said = {"says another thing": b"SSH-2.0-x\r\n", "says half a hello and waits": client_hello("a.example")[:20]}
    octets = said.get(way, b"")
    talk.origin >> b"banner"
    talk.client << b"banner"
    if octets:
        talk.client >> octets
    if way == "ends":
        talk.client.ends()
        talk.origin.is_closed()
    else:
        talk.after(12)
        talk.client.is_open()
    talk.origin << octets
    talk.origin >> b"more"
    talk.client << b"more"
    talk.client.leaves()
    talk.origin.leaves()
    assert talk.record()["would_deny"] == ["not_tls"]
    assert talk.series("denied") == 0


def test_report_mode_says_nothing_of_a_tunnel_that_keeps_the_rules(converse_on: Start):
    talk = converse_on(forward(mode="Report"))
    tunnel(talk)
    talk.client >> client_hello("a.example")
    talk.client.leaves()
    talk.origin.leaves()
    assert "would_deny" not in talk.record()


# --- refusals ------------------------------------------------------------------------------------------------------
def test_a_refused_connect_says_so_and_the_connection_stays(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> connect("b.example:443")
    status, phrase, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "destination_not_allowed")
    assert phrase.startswith(b"Denied: b.example")
    assert "http_request_denied" in fields["Proxy-Status"]
    tunnel(talk, "a.example:22")


def test_octets_behind_a_refused_connect_are_no_request(converse_on: Start):
    """They were meant for the tunnel: read as requests they would be smuggled (the codec's contract)."""
    talk = converse_on(forward())
    talk.client >> connect("b.example:443") + GET
    status, _, fields, _ = talk.client.answer()
    assert status == 403
    assert fields["Connection"] == "close"
    talk.until(lambda: talk.client.has_eof)
    talk.client.is_closed()
    talk.no_dial()
    assert len(talk.records) == 1


@pytest.mark.parametrize("target", ["a.example", "a.example:0", "a.example:99999", "127.1:80", "u@a.example:443"])
def test_a_connect_without_a_right_authority_is_refused(converse_on: Start, target: str):
    talk = converse_on(forward())
    talk.client >> connect(target)
    assert talk.client.answer()[0] == 400
    talk.no_dial()


def test_a_reverse_listener_makes_no_tunnels(converse_on: Start):
    talk = converse_on([m.gateway(m.http_listener(8080)), m.policy(["a.example"])])
    talk.client >> connect("a.example:443")
    assert talk.client.answer()[0] == 405


def test_one_client_gets_three_quarters_of_the_tunnels_where_nobody_says_more(converse_on: Start):
    talk = converse_on(forward(limits={"tunnels": 4}))
    busy = [talk.connect(address="127.0.0.66") for _ in range(4)]
    for client in busy[:3]:
        client >> connect("a.example:22")
        talk.dialled("a.example", 22)
        client << ESTABLISHED
    busy[3] >> connect("a.example:22")
    status, _, _, error = busy[3].answer()
    assert (status, error["reason"]) == (503, "tunnel_limit")
    assert "this client" in error["message"]
    talk.client >> connect("a.example:22")
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED
    busy[0].resets()
    talk.until(lambda: talk.ports[0].state.tunnels == 3)
    again = talk.connect(address="127.0.0.66")
    again >> connect("a.example:22")
    talk.dialled("a.example", 22)
    again << ESTABLISHED


def test_the_limit_of_tunnels_holds_and_is_given_back(converse_on: Start):
    talk = converse_on(forward(limits={"tunnels": 1}))
    tunnel(talk, "a.example:22")
    second = talk.connect()
    second >> connect("a.example:22")
    status, _, fields, error = second.answer()
    assert (status, error["reason"], fields["Retry-After"]) == (503, "tunnel_limit", "1")
    assert error["message"] == "this listener already has 1 tunnel"
    talk.client.leaves()
    talk.origin.leaves()
    talk.until(lambda: len(talk.records) == 2)
    talk.client = second
    tunnel(talk, "a.example:22")


def test_a_slot_is_given_back_when_the_dial_fails(converse: Start):
    talk = converse(forward(limits={"tunnels": 1}))
    for _ in range(3):
        talk.client >> connect("a.example:22")
        talk.pending_dial()
        talk.client.leaves()
        talk.dialer.dials.clear()
        talk.client = talk.connect()
    tunnel(talk, "a.example:22")


# --- HTTP inside ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_tunnel_to_port_80_is_read_as_http(converse_on: Start, version: bytes):
    talk = converse_on(forward())
    request = b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.client >> b"CONNECT a.example:80 HTTP/" + version + b"\r\n" + b"Host: a.example:80\r\n\r\n" + request
    talk.client << ESTABLISHED
    talk.dialled("a.example", 80)
    talk.origin << b"GET /x HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> request
    talk.origin << b"GET /x HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED
    assert [record["kind"] for record in talk.records] == ["tunnel", "request", "request"]


@pytest.mark.parametrize(
    "inside",
    [b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a.example:81\r\n\r\n",
     b"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"],
)  # fmt: skip
def test_http_inside_a_tunnel_goes_nowhere_else(converse_on: Start, inside: bytes):
    talk = converse_on(forward(allow=("a.example", "b.example")))
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> inside
    assert talk.client.answer()[0] == 400
    talk.no_dial()


def test_no_tunnel_inside_a_tunnel(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> connect("a.example:443")
    assert talk.client.answer()[0] == 405


def both_ways(*, allow: tuple[str, ...] = (), **sections: object) -> list[m.Manifest]:
    """An HTTPRoute and a TLSRoute to the same TLS backend for a.example, as for a provider with a base URL."""
    backend = m.backend("a", "a.example", 443, tls=True)
    rule = m.prefix_rule("/v1", "a")
    routes = (m.http_route("h", rule, hostnames=["a.example"]), m.tls_route("t", "a", hostnames=["a.example"]))
    return forward(backend, *routes, allow=allow, **sections)


def alone(kind: str) -> list[m.Manifest]:
    """A route of one kind alone names a.example:80, and no policy allows it."""
    if kind == "http":
        backend, route = (
            m.backend("a", "a.example", 80),
            m.http_route("h", m.prefix_rule("/", "a"), hostnames=["a.example"]),
        )
    else:
        backend, route = m.backend("a", "a.example", 80, protocol="TCP"), m.tls_route("t", "a", hostnames=["a.example"])
    return forward(backend, route, allow=("b.example",))


INSIDE = b"GET /v1/x HTTP/1.1\r\nHost: a.example\r\n\r\n"
DENIED_ALERT = b"\x15\x03\x03\x00\x02\x02\x31"


@pytest.mark.parametrize("is_early", [True, False])
def test_http_in_a_tunnel_to_port_80_goes_by_the_http_route_though_a_tls_route_names_the_host(
    converse_on: Start, is_early: bool
):
    """undici tunnels plain http so; the backend has TLS, which the gateway opens."""
    talk = converse_on(both_ways())
    early = INSIDE.replace(b"/v1/x", b"/v2/x") if is_early else b""
    talk.client >> connect("a.example:80") + early
    talk.client << ESTABLISHED
    if not is_early:
        talk.client >> INSIDE.replace(b"/v1/x", b"/v2/x")
    assert talk.client.answer()[0] == 403
    talk.no_dial()
    talk.client >> INSIDE
    talk.dialled("a.example", 443)
    talk.origin.take(rb"\x16\x03")
    talk.counts_octets = False  # the client does not wait for its answer
    talk.client.leaves()
    talk.origin.leaves()
    talk.until(lambda: len(talk.records) == 3)
    assert [record["kind"] for record in talk.records] == ["tunnel", "request", "request"]
    assert [record["route"] for record in talk.records] == ["-", "-", "agents/h"]


@pytest.mark.parametrize("cut", [1, 3, 5000])
@pytest.mark.parametrize("is_early", [True, False])
def test_tls_in_a_tunnel_to_port_80_goes_by_the_tls_route(converse_on: Start, cut: int, is_early: bool):
    talk = converse_on(both_ways())
    hello = client_hello("a.example")
    talk.client >> connect("a.example:80") + (hello[:cut] if is_early else b"")
    talk.client << ESTABLISHED
    if not is_early:
        talk.no_dial()
        talk.client >> hello[:cut]
    talk.dialled("a.example", 443)
    talk.client >> hello[cut:]
    talk.origin << hello
    talk.origin >> b"answer"
    talk.client << b"answer"
    talk.client.leaves()
    talk.origin.leaves()
    record = talk.record()
    assert (record["route"], record["authority"], record["reason"]) == ("agents/t", "a.example:80", "-")
    assert record["bytes_in"] == len(connect("a.example:80")) + len(hello)
    assert record["bytes_out"] == len(ESTABLISHED) + len(b"answer")


@pytest.mark.parametrize("name", ["b.example", None])
@pytest.mark.parametrize("manifests", [both_ways(), forward()])
def test_tls_in_a_tunnel_to_port_80_has_to_name_the_host(
    converse_on: Start, name: str | None, manifests: list[m.Manifest]
):
    talk = converse_on(manifests)
    talk.client >> connect("a.example:80") + client_hello(name)
    assert talk.pending_dial()
    talk.dialled("a.example", talk.dialer.dials[0].endpoints[0][1])
    talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)
    talk.origin.is_closed()
    assert talk.record()["reason"] == "sni_mismatch"


def test_tls_in_a_tunnel_to_port_80_goes_by_the_policy_where_no_route_is(converse_on: Start):
    talk = converse_on(forward())
    hello = client_hello("a.example")
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> hello
    talk.dialled("a.example", 80)
    talk.origin << hello


def test_any_name_in_a_tunnel_to_port_80_is_one_in_a_hello(converse_on: Start):
    """`sni: Any` lifts the comparison: what is neither TLS nor HTTP is refused all the same."""
    allow = [{"hostnames": ["a.example"], "sni": "Any"}]
    for first, passes in ((client_hello("b.example"), True), (b"\x16\x03\x01GET /v1 HTTP/1.1\r\n\r\n", False)):
        talk = converse_on([m.gateway(m.forward_listener(3128)), m.policy(destinations={"allow": allow})])
        talk.client >> connect("a.example:80") + first
        talk.dialled("a.example", 80)
        if passes:
            talk.origin << first
        else:
            talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)  # noqa: B023   called at once
            talk.origin.is_closed()


def test_a_connect_to_port_80_is_refused_where_neither_way_could_be_allowed(converse_on: Start):
    for manifests in (alone("http"), alone("tls"), forward(allow=("b.example",))):
        talk = converse_on(manifests)
        talk.client >> connect("c.example:80")
        status, _, _, error = talk.client.answer()
        assert (status, error["reason"]) == (403, "destination_not_allowed")
        talk.no_dial()


@pytest.mark.parametrize("is_early", [True, False])
def test_tls_that_only_http_is_allowed_for_is_closed_with_an_alert(converse_on: Start, is_early: bool):
    talk = converse_on(alone("http"))
    hello = client_hello("a.example")
    talk.client >> connect("a.example:80") + (hello if is_early else b"")
    talk.client << ESTABLISHED
    if not is_early:
        talk.client >> hello
    talk.client << DENIED_ALERT
    talk.client.is_closed()
    talk.no_dial()
    record = talk.record()
    assert (record["kind"], record["status"], record["reason"]) == ("tunnel", 200, "destination_not_allowed")
    assert talk.series("denied") == 1


def test_http_that_only_tls_is_allowed_for_is_refused_request_by_request(converse_on: Start):
    talk = converse_on(alone("tls"))
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    for _ in range(2):
        talk.client >> INSIDE
        status, _, _, error = talk.client.answer()
        assert (status, error["reason"]) == (403, "destination_not_allowed")
    talk.no_dial()


@pytest.mark.parametrize("first", [b"SSH-2.0-x\r\n", b"\x00\x01", b"\x19\x03", b"\r\n\x16\x03\x01"])
def test_what_is_neither_tls_nor_http_is_refused_in_a_tunnel_to_port_80(converse_on: Start, first: bytes):
    talk = converse_on(both_ways(allow=("a.example",)))
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.client >> first
    status, _, fields, error = talk.client.answer()
    assert (status, fields["Connection"]) == (400, "close")
    assert error["reason"] == "bad_request_line"
    talk.no_dial()


def test_a_client_that_waits_for_the_server_in_a_tunnel_to_port_80_is_cut_in_time(converse: Start):
    talk = converse(both_ways())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.after(8)
    talk.client.is_open()
    talk.after(4)
    assert talk.client.is_gone
    talk.no_dial()
    assert talk.record()["reason"] == "client_timeout"


def test_half_a_head_in_a_tunnel_to_port_80_has_its_time(converse: Start):
    talk = converse(both_ways())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    for at in range(5):
        talk.client >> INSIDE[at : at + 1]
        talk.after(2.5)
    assert talk.client.answer()[0] == 408


@pytest.mark.parametrize("way", ["ends", "leaves", "resets", "drained"])
def test_a_client_that_leaves_a_tunnel_to_port_80_without_a_word(converse_on: Start, way: str):
    talk = converse_on(both_ways())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    if way == "drained":
        talk.act(talk.ports[0].close_idle)
    else:
        getattr(talk.client, way)()
    talk.until(lambda: bool(talk.records))
    is_end = way == "ends" or (way == "leaves" and not talk.is_memory)
    assert talk.record()["reason"] == ("-" if is_end else "client_gone")
    talk.client.is_closed()


def test_what_a_tunnel_to_port_80_may_carry_is_decided_when_it_is_said(converse_on: Start):
    talk = converse_on(both_ways())
    talk.client >> connect("a.example:80")
    talk.client << ESTABLISHED
    talk.reload(forward(allow=("b.example",)))
    talk.client >> client_hello("a.example")
    talk.client << DENIED_ALERT
    talk.client.is_closed()
    talk.no_dial()


class Forbidding(Filter):
    """Answers every request."""

    def request_headers(self, x: Exchange) -> LocalResponse | None:
        return LocalResponse(418)


def test_a_filter_that_answers_a_tunnel_to_port_80_closes_it(converse_on: Start):
    extensions = [scripted_filter("no")]
    talk = converse_on(both_ways(extensions=extensions), filters={"no": Forbidding()})
    talk.client >> connect("a.example:80") + client_hello("a.example")
    talk.client << ESTABLISHED
    talk.until(lambda: talk.client.has_eof)
    talk.no_dial()
    assert talk.record()["reason"] == "filter_rejected"


@pytest.mark.parametrize("first", [client_hello("a.example"), INSIDE])
def test_report_mode_notes_of_a_tunnel_to_port_80_what_its_way_breaks(converse_on: Start, first: bytes):
    talk = converse_on(forward(allow=("b.example",), mode="Report"))
    talk.client >> connect("a.example:80") + first
    talk.client << ESTABLISHED
    talk.dialled("a.example", 80)
    talk.counts_octets = False  # the client does not wait for its answer
    talk.client.leaves()
    talk.origin.leaves()
    talk.until(lambda: talk.open == 0)
    assert [record["would_deny"] for record in talk.records] == [["destination_not_allowed"]] * len(talk.records)


def test_the_limit_of_tunnels_holds_for_tls_in_a_tunnel_to_port_80(converse_on: Start):
    talk = converse_on(both_ways(limits={"tunnels": 1}))
    talk.client >> connect("a.example:80") + client_hello("a.example")
    talk.client << ESTABLISHED
    talk.dialled("a.example", 443)
    second = talk.connect()
    second >> connect("a.example:80") + client_hello("a.example")
    second << ESTABLISHED
    talk.until(lambda: second.has_eof or second.is_gone)
    talk.no_dial()
    assert talk.records[-1]["reason"] == "tunnel_limit"


# --- upgrades ------------------------------------------------------------------------------------------------------
def test_an_upgrade_becomes_a_tunnel(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> UPGRADE
    talk.dialled("a.example", 80)
    talk.origin << UPGRADE_SENT
    talk.origin >> SWITCHED + b"early"
    talk.client << SWITCHED_PASSED + b"early"
    talk.client >> b"\x81\x02hi"
    talk.origin << b"\x81\x02hi"
    talk.origin.leaves()
    talk.client.is_closed()
    talk.client.leaves()
    record = talk.record()
    assert (record["kind"], record["status"]) == ("request", 101)
    assert record["bytes_in"] == len(UPGRADE) + 4
    assert talk.open == 0


def test_an_upgrade_to_what_nobody_asked_for_is_a_502(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> UPGRADE
    talk.dialled("a.example", 80)
    talk.origin << UPGRADE_SENT
    talk.origin >> SWITCHED.replace(b"websocket", b"h2c")
    assert talk.client.answer()[0] == 502
    talk.until(lambda: talk.origin.has_eof)
    assert talk.origin.has_eof


def test_a_refused_upgrade_is_an_ordinary_response(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> UPGRADE
    talk.dialled("a.example", 80)
    talk.origin << UPGRADE_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    exchange(talk)  # on another upstream connection: who is behind this one may believe in the upgrade


def test_upgraded_connections_count_against_the_limit_of_tunnels(converse_on: Start):
    talk = converse_on(forward(limits={"tunnels": 1}))

    def upgrade() -> None:
        talk.client >> UPGRADE
        talk.dialled("a.example", 80)
        talk.origin << UPGRADE_SENT
        talk.origin >> SWITCHED

    upgrade()
    talk.client << SWITCHED_PASSED
    upgraded, origin = talk.client, talk.origin
    talk.client = talk.connect()
    upgrade()
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"], fields["Retry-After"]) == (503, "tunnel_limit", "1")
    talk.origin.is_closed()
    third = talk.connect()
    third >> connect("a.example:22")
    assert third.answer()[0] == 503
    upgraded.leaves()
    origin.leaves()
    talk.until(lambda: not talk.ports[0].state.tunnels)
    talk.client = talk.connect()
    upgrade()
    talk.client << SWITCHED_PASSED


class Slow(Filter):
    """Keeps the response head until it is let go."""

    def __init__(self) -> None:
        self.waiting: list[object] = []

    async def backend_response(self, x: Exchange) -> LocalResponse | None:
        import asyncio

        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]  # type: ignore[misc]
        return None


@pytest.mark.parametrize("way", ["ends", "resets"])
def test_an_upstream_that_is_gone_when_the_switch_is_decided_is_a_502(converse: Start, way: str):
    slow = Slow()
    talk = converse(forward(extensions=[scripted_filter("slow", "backend-response")]), filters={"slow": slow})
    talk.client >> UPGRADE
    talk.dialled("a.example", 80)
    talk.origin << UPGRADE_SENT
    talk.origin >> SWITCHED
    getattr(talk.origin, way)()
    talk.act(lambda: slow.waiting[0].set_result(None))  # type: ignore[attr-defined]
    assert talk.client.answer()[0] == 502


# --- a deny means the place ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["Enforce", "Report"])
def test_a_deny_holds_for_the_backend_that_a_tunnel_is_routed_to(converse_on: Start, mode: str):
    objects = [
        m.gateway(m.forward_listener(3128)),
        m.policy(mode=mode, destinations={"deny": [{"hostnames": ["b.example"]}]}),
        m.backend("b", "b.example", 443, protocol="TCP"),
        m.tls_route("t", "b", hostnames=["a.example"]),
    ]
    talk = converse_on(objects)
    talk.client >> connect("a.example:443")
    if mode == "Report":
        talk.dialled("b.example", 443)
        talk.client << ESTABLISHED
        hello = client_hello("a.example")
        talk.client >> hello
        talk.origin << hello
        talk.client.ends()
        talk.origin.ends()
        assert talk.record()["would_deny"] == ["destination_denied"]
        return
    status, _, _, error = talk.client.answer()
    assert (status, error["message"]) == (403, "b.example is denied by policy agents/default")
    talk.no_dial()


# --- a route to a Dynamic backend permits what it names ------------------------------------------------------------
@pytest.mark.parametrize(
    ("hostnames", "allow", "authority", "is_permitted"),
    [
        ((), ("ok.example",), "other.example:443", False),
        ((), ("ok.example",), "ok.example:443", True),
        (("a.example",), ("ok.example",), "a.example:443", True),
        (("a.example",), ("ok.example",), "a.example:8443", True),
        (("*.a.example",), ("ok.example",), "b.a.example:443", False),
        (("*.a.example",), None, "b.a.example:443", True),
        ((), ("ok.example",), "93.184.216.34:443", False),
    ],
)
def test_a_tls_route_to_a_dynamic_backend_permits_the_names_that_it_has(
    converse_on: Start, hostnames: tuple[str, ...], allow: tuple[str, ...] | None, authority: str, is_permitted: bool
):
    route = m.tls_route("t", "any", hostnames=hostnames)
    talk = converse_on([m.gateway(m.forward_listener(3128)), m.policy(allow), m.dynamic(), route])
    talk.client >> connect(authority)
    if not is_permitted:
        assert talk.client.answer()[0] == 403
        talk.no_dial()
        return
    host, _, port = authority.partition(":")
    talk.dialled(host, int(port))
    talk.client << ESTABLISHED
    talk.client.leaves()


def test_a_tunnel_does_not_keep_the_tables_of_its_configuration():
    talk = conversation(forward(), wire="sockets")
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    (tunnel,) = talk.ports[0].state.connections
    assert isinstance(tunnel, ServedTunnel)
    assert tunnel.pipeline.listener is None
    talk.close()
