"""Limits of a listener's connections, TLS with clients, and listeners that share a port."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import cast

import pytest

from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.listeners import tls_front
from egressproxy.net.tls import handshakes
from egressproxy.net.tls_peer import server_name
from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.kit import (
    ESTABLISHED,
    GET,
    GET_SENT,
    OK,
    TlsClient,
    certificate,
    connect,
    exchange,
    forward,
    https,
    reverse,
)
from tests.net.tls_contexts.test_contexts import both, shake
from tests.support import manifests as m
from tests.support.builds import of_sources
from tests.support.conversation import Conversation, compiled_spec, conversation
from tests.support.pki import Pki, chain


def test_one_connection_too_many_is_told_and_closed(converse_on: Start):
    talk = converse_on(forward(limits={"connections": 1}))
    talk.counts_octets = False  # a connection is no exchange
    second = talk.connect()
    (second >> GET).take(rb"HTTP/1.1 503 .*too many connections\n")
    second.is_closed()
    exchange(talk)
    assert talk.metrics.connections_rejected == {"connection_limit": 1}
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)
    talk.client = talk.connect()
    exchange(talk, is_new=False)


def test_one_client_too_many_connections_does_not_keep_others_out(converse: Start):
    talk = converse(forward(limits={"connectionsPerClient": 1}))
    talk.counts_octets = False
    second = talk.connect()
    (second >> GET).take(rb"HTTP/1.1 503 .*too many connections of this client\n")
    talk.client = talk.connect(address="10.0.0.10")
    exchange(talk)


def test_one_client_gets_three_quarters_of_the_connections_where_nobody_says_more(converse_on: Start):
    talk = converse_on(forward(limits={"connections": 4}))
    talk.counts_octets = False
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)
    many = [talk.connect(address="127.0.0.66") for _ in range(3)]
    last = talk.connect(address="127.0.0.66")
    (last >> GET).take(rb"HTTP/1.1 503 .*too many connections of this client\n")
    talk.client = talk.connect(address="127.0.0.7")
    exchange(talk)
    for client in many:
        client.is_open()


def test_a_limit_per_client_that_somebody_has_written_holds_instead_of_three_quarters(converse_on: Start):
    talk = converse_on(forward(limits={"connections": 4, "connectionsPerClient": 4}))
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)
    for _ in range(4):
        talk.connect(address="127.0.0.66").is_open()


def sharing(**limits: int) -> list[m.Manifest]:
    """Two listeners of one port, of which the second has limits."""
    narrow = m.policy(name="narrow", limits=limits)
    narrow["spec"]["targetRefs"][0]["sectionName"] = "two"
    one, two = (m.http_listener(8080, name, hostname=f"{name}.example") for name in ("one", "two"))
    return [m.gateway(one, two), *reverse(objects=(narrow,))[1:]]


@pytest.mark.parametrize("limits", [{"maxHeadBytes": 1024}, {"maxFields": 5}])
def test_of_the_listeners_of_a_port_the_strictest_bounds_heads(converse_on: Start, limits: dict[str, int]):
    """A head is read before it is known for whom it is."""
    talk = converse_on(sharing(**limits))
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 200) for number in range(9))
    talk.client >> b"GET / HTTP/1.1\r\nHost: two.example\r\n" + lines + b"\r\n"
    assert talk.client.answer()[0] == 431
    talk.no_dial()


@pytest.mark.parametrize("limits", [{"connections": 1}, {"connectionsPerClient": 1}])
def test_of_the_listeners_of_a_port_the_strictest_bounds_connections(converse: Start, limits: dict[str, int]):
    talk = converse(sharing(**limits))
    talk.counts_octets = False
    second = talk.connect()
    (second >> GET).take(rb"HTTP/1.1 503 .*too many connections.*\n")
    assert talk.metrics.connections_rejected == {"connection_limit": 1}


def test_an_upgrade_takes_a_tunnel_of_the_listener_that_serves_it(converse_on: Start):
    """The listeners of a port count each for itself: the tunnels of one take no place of another's."""
    talk = converse_on(sharing(tunnels=1))
    talk.counts_octets = False
    switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
    statuses = []
    for host in (b"one", b"two", b"one", b"two"):
        peer = talk.connect()
        peer >> b"GET / HTTP/1.1\r\nHost: %b.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n" % host
        talk.dialled("a.example", 80)
        talk.origin.take(rb"GET .*?\r\n\r\n")
        talk.origin >> switched
        statuses.append(int(peer.take(rb"HTTP/1.1 (\d+) .*?\r\n\r\n")[1]))
    assert statuses == [101, 101, 101, 503]


def test_a_new_limit_of_heads_holds_for_no_connection_from_before(converse: Start):
    long = GET.replace(b"\r\n\r\n", b"\r\nX-Long: %b\r\n\r\n" % (b"a" * 2000))
    talk = converse(forward())
    talk.counts_octets = False
    busy, idle = talk.client, talk.connect()
    busy >> long
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.reload(forward(limits={"maxHeadBytes": 1024}))
    idle.is_closed()
    talk.origin >> OK
    assert b"Connection: close" in busy.take(rb"HTTP/1.1 200 OK.*hi")[0]
    fresh = talk.connect()
    fresh >> long
    assert fresh.answer()[0] == 431


def test_tunnels_from_before_a_reload_that_closes_other_connections_take_places_of_the_limit(converse: Start):
    talk = converse(forward(limits={"tunnels": 1}))
    talk.client >> connect("a.example:22")
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED
    talk.reload(forward(limits={"tunnels": 1, "maxHeadBytes": 1024}))
    second = talk.connect()
    second >> connect("a.example:22")
    status, _, _, error = second.answer()
    assert (status, error["reason"]) == (503, "tunnel_limit")
    talk.client >> b"still here"
    talk.origin << b"still here"


def test_without_limits_one_client_gets_no_more_than_a_part_of_the_descriptors(converse_on: Start):
    talk = converse_on(forward())
    talk.counts_octets = False
    talk.connection_manager.clients.share = 2
    talk.connect(address="127.0.0.66").is_open()
    talk.connect(address="127.0.0.66").is_open()
    (talk.connect(address="127.0.0.66") >> GET).take(rb"HTTP/1.1 503 .*too many connections of this client\n")
    exchange(talk)
    assert talk.metrics.connections_rejected == {"connection_limit": 1}


def test_an_idle_connection_of_whoever_has_most_makes_way_for_a_client_that_has_fewer(converse_on: Start):
    talk = converse_on(forward(limits={"connections": 5, "connectionsPerClient": 5}))
    talk.counts_octets = False
    exchange(talk)
    talk.client >> GET  # busy: it stays
    many = [talk.connect(address="127.0.0.66") for _ in range(4)]
    other = talk.connect(address="127.0.0.7")
    many[0].is_closed()
    for peer in (*many[1:], other, talk.client):
        peer.is_open()
    last = talk.connect(address="127.0.0.66")  # has most itself
    (last >> GET).take(rb"HTTP/1.1 503 .*too many connections\n")
    assert len(talk.ports[0].state.connections) == 5
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK.*hi")


@pytest.mark.parametrize("begun", [b"", b"GET http", connect("a.example:80")])
def test_what_makes_way_keeps_no_descriptor(converse_on: Start, begun: bytes):
    """It is counted no more, so it must not wait for what its client may still say."""
    talk = converse_on(forward(limits={"connections": 2, "connectionsPerClient": 2}))
    talk.counts_octets = False
    talk.client >> begun
    talk.connect()
    talk.settle()
    (first, _) = talk.ports[0].state.connections
    talk.connect(address="127.0.0.7")
    assert first not in talk.ports[0].state.connections
    talk.settle()
    assert cast(ClientConnection, first).is_lost


def test_a_connection_that_waits_for_its_answer_to_be_read_does_not_make_way(converse_on: Start):
    talk = converse_on(forward(limits={"connections": 2, "connectionsPerClient": 2}))
    talk.counts_octets = False
    talk.client >> b"POST http://other.example/ HTTP/1.1\r\nHost: other.example\r\nContent-Length: 9\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 403 .*\r\n\r\n.*\n")
    second = talk.connect()
    other = talk.connect(address="127.0.0.7")
    second.is_closed()
    other.is_open()
    assert len(talk.ports[0].state.connections) == 2


def test_idle_tls_connections_and_unfinished_handshakes_make_way(converse: Start):
    pki = Pki()
    talk = converse(secured(pki, "", limits={"connections": 4, "connectionsPerClient": 4}))
    talk.counts_octets = False
    idle = TlsClient(talk.client, pki, "a.example").shakes_hands()
    halves = [talk.connect() for _ in range(3)]  # within their handshakes
    others = [talk.connect(address="10.0.0.77")]
    idle.reads()
    assert idle.has_ended
    others.append(talk.connect(address="10.0.0.77"))
    halves[0].is_closed()
    for peer in (*halves[1:], *others):
        peer.is_open()
    talk.connect(address="10.0.0.77").is_closed()  # they have as many by now
    assert len(talk.ports[0].state.connections) == 4


@pytest.mark.parametrize(("address", "is_same"), [("2001:db8::2", True), ("2001:db8:0:1::1", False)])
def test_an_ipv6_network_of_64_bits_counts_as_one_client(converse: Start, address: str, is_same: bool):
    talk = converse(forward(limits={"connectionsPerClient": 1}))
    talk.counts_octets = False
    talk.client.leaves()
    talk.connect(address="2001:db8::1")
    talk.client = talk.connect(address=address)
    if is_same:
        (talk.client >> GET).take(rb"HTTP/1.1 503 .*too many connections of this client\n")
    else:
        exchange(talk)


@pytest.mark.parametrize(("code", "reason"), [(errno.EMFILE, "no_descriptor"), (errno.ENOMEM, "no_memory")])
def test_without_descriptors_or_memory_clients_wait_and_it_is_said_once(
    code: int, reason: str, caplog: pytest.LogCaptureFixture
):
    talk = conversation(forward(), wire="sockets")
    talk.counts_octets = False
    talk.expects_failures = True
    (bound,) = talk.ports
    real, failures = bound._accept_one, [OSError(code, os.strerror(code)) for _ in range(3)]

    def accept_one() -> object:
        if failures:
            raise failures.pop()
        return real()

    bound._accept_one = accept_one
    talk.client = talk.connect()
    exchange(talk)
    assert not failures
    assert talk.metrics.connections_rejected == {reason: 3}
    assert len([record for record in caplog.records if "no connection can be accepted" in record.message]) == 1
    talk.close()


@of_sources
def test_a_listener_that_cannot_be_watched_again_tries_until_it_can(monkeypatch: pytest.MonkeyPatch):
    talk = conversation(forward(), wire="sockets")
    talk.counts_octets = False
    talk.expects_failures = True
    (bound,) = talk.ports
    real, start = bound._accept_one, bound.start
    failures, refusals = [OSError(errno.ENOMEM, "no memory")], [OSError(errno.ENOSPC, "no watches")] * 2

    def accept_one() -> object:
        if failures:
            raise failures.pop()
        return real()

    def start_again() -> None:
        if refusals:
            raise refusals.pop()
        start()

    bound._accept_one = accept_one
    monkeypatch.setattr(bound, "start", start_again)
    talk.client = talk.connect()
    exchange(talk)
    assert not refusals
    talk.close()


def test_a_listener_that_can_be_watched_no_more_is_watched_again_soon():
    talk = conversation(forward(), wire="sockets")
    talk.counts_octets = False
    (bound,) = talk.ports

    def lose() -> None:
        assert bound._watch is not None
        bound._watch.close()
        bound.unwatched(OSError(errno.ENOSPC, "no watches are left"))

    talk.expects_failures = True
    talk.act(lose)
    assert bound._watch is None
    talk.client = talk.connect()
    exchange(talk)
    assert talk.metrics.connections_rejected == {"no_memory": 1}
    talk.close()


def test_a_listener_that_waits_for_descriptors_may_be_closed():
    talk = conversation(forward(), wire="sockets")
    talk.counts_octets = False
    talk.expects_failures = True
    (bound,) = talk.ports

    def accept_one() -> object:
        raise OSError(errno.ENFILE, "too many")

    bound._accept_one = accept_one
    with socket.create_connection(("127.0.0.1", bound._sock.getsockname()[1])):
        talk.until(lambda: bool(talk.metrics.connections_rejected))
        talk.act(bound.stop_accepting)
        talk.settle()
    talk.close()


# --- TLS with clients ----------------------------------------------------------------------------------------------
def secured(pki: Pki, *hostnames: str, **sections: object) -> list[m.Manifest]:
    """An HTTPS listener for each hostname, all on one port and with one certificate, and a route for all of them."""
    names = [name for name in hostnames if name] or ["a.example"]
    route = m.http_route("r", m.prefix_rule("/", "a"))
    return [https(*hostnames), m.policy(**sections), certificate(pki, *names), m.backend("a", "a.example", 80), route]


def test_connections_count_from_their_first_octet_inside_tls(converse_on: Start):
    pki = Pki()
    talk = converse_on(secured(pki, "", limits={"connections": 1}))
    talk.counts_octets = False
    talk.client >> TlsClient(talk.client, pki, "a.example").hello()[:10]
    assert len(talk.ports[0].state.connections) == 1
    second = talk.connect()
    second.is_closed()
    assert talk.metrics.connections_rejected == {"connection_limit": 1}
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)
    talk.client = talk.connect()
    assert asked(talk, TlsClient(talk.client, pki, "a.example").shakes_hands(), "a.example")[0] == 200
    assert len(talk.ports[0].state.connections) == 1


def test_a_handshake_that_takes_too_long_is_ended(converse: Start, monkeypatch: pytest.MonkeyPatch):
    pki = Pki()
    talk = converse(secured(pki, "", traffic={"timeouts": {"tlsHandshake": "5s"}}))
    talk.counts_octets = False
    quick = TlsClient(talk.connect(), pki, "a.example").shakes_hands()
    talk.client >> TlsClient(talk.client, pki, "a.example").hello()[:10]
    ahead = 4.0
    real = talk.loop.time
    monkeypatch.setattr(talk.loop, "time", lambda: real() + ahead)
    talk.settle()
    talk.client.is_open()
    ahead = 6.0
    talk.settle()
    assert talk.client.is_gone
    quick.peer.is_open()
    assert len(talk.ports[0].state.connections) == 1


@pytest.mark.parametrize("octets", [0, 10])
def test_a_connection_in_its_handshake_goes_with_its_listener(converse_on: Start, octets: int):
    pki = Pki()
    talk = converse_on(secured(pki, ""))
    talk.counts_octets = False
    hello = TlsClient(talk.client, pki, "a.example").hello()
    if octets:
        talk.client >> hello[:octets]
    talk.act(talk.ports[0].stop_accepting)
    talk.act(talk.ports[0].close_idle)
    talk.client.is_closed()
    talk.until(lambda: not talk.ports[0].state.connections)
    assert not talk.ports[0].state.connections
    assert not talk.records


def test_a_connection_without_a_request_goes_with_its_listener_and_one_with_a_request_is_served(converse: Start):
    pki = Pki()
    talk = converse(secured(pki, ""))
    talk.counts_octets = False
    idle = TlsClient(talk.client, pki, "a.example").shakes_hands()
    busy = TlsClient(talk.connect(), pki, "a.example").shakes_hands()
    busy >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.act(talk.ports[0].stop_accepting)
    talk.act(talk.ports[0].close_idle)
    assert idle.reads() == b""
    assert idle.has_ended
    assert not busy.has_ended
    talk.origin >> OK
    assert busy.reads().startswith(b"HTTP/1.1 200 ")
    assert busy.has_ended


@pytest.mark.parametrize("is_tls", [True, False])
def test_what_was_accepted_as_its_listener_went_is_not_served(converse: Start, is_tls: bool):
    talk = converse(secured(Pki(), "") if is_tls else forward())
    talk.counts_octets = False
    talk.client.leaves()
    talk.act(talk.ports[0].stop_accepting)
    late = talk.connect()
    late.is_closed()
    assert not talk.ports[0].state.connections
    assert talk.metrics.connections_rejected == {}


# --- certificates of clients ---------------------------------------------------------------------------------------
def demanding(objects: list[m.Manifest], authority: Pki, mode: str = "AllowValidOnly") -> list[m.Manifest]:
    """These objects, with a Gateway that asks its clients for a certificate of this authority."""
    refs = [{"group": "", "kind": "ConfigMap", "name": "clients"}]
    objects[0]["spec"]["tls"] = {"frontend": {"default": {"validation": {"caCertificateRefs": refs, "mode": mode}}}}
    return [*objects, m.config_map("clients", {"ca.crt": authority.ca_pem})]


def proxy_over_tls(pki: Pki) -> list[m.Manifest]:
    listener = m.forward_listener(3128, tls=terminate("front"))
    return [m.gateway(listener), m.policy(["a.example"]), certificate(pki, "a.example")]


@pytest.mark.parametrize("is_forward", [False, True])
def test_a_client_with_the_right_certificate_is_served(converse_on: Start, is_forward: bool):
    pki, authority = Pki(), Pki()
    talk = converse_on(demanding(proxy_over_tls(pki) if is_forward else secured(pki, ""), authority))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example", authority).shakes_hands()
    if not is_forward:
        assert asked(talk, tls, "a.example") == (200, "-")
        return
    tls >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.until(lambda: bool(talk.records))
    assert tls.reads().startswith(b"HTTP/1.1 200")


def revoking(pki: Pki, authority: Pki, lists: str) -> list[m.Manifest]:
    """A forward proxy over TLS whose policy has these revocation lists for its clients."""
    refs = [{"group": "", "kind": "ConfigMap", "name": "revoked"}]
    gateway, _, key = proxy_over_tls(pki)
    policy = m.policy(["a.example"], identity={"certificate": {"crlRefs": refs}})
    return [*demanding([gateway, policy, key], authority), m.config_map("revoked", {"crl.pem": lists})]


def test_a_client_whose_certificate_is_not_revoked_is_served(converse_on: Start):
    pki, authority = Pki(), Pki()
    talk = converse_on(revoking(pki, authority, authority.crl()))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example", authority).shakes_hands()
    tls >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.until(lambda: bool(talk.records))
    assert tls.reads().startswith(b"HTTP/1.1 200")


def test_a_listener_stays_closed_whose_revocation_lists_cannot_be_read():
    pki, authority = Pki(), Pki()
    assert len(compiled_spec(revoking(pki, authority, authority.crl())).listeners) == 1
    assert compiled_spec(revoking(pki, authority, "no list")).listeners == ()


def test_a_client_whose_certificate_is_revoked_gets_an_alert(converse_on: Start, monkeypatch: pytest.MonkeyPatch):
    pki, authority = Pki(), Pki()
    revoked = authority.issue("client.example")
    monkeypatch.setattr(authority, "issue", lambda *_: revoked)
    talk = converse_on(revoking(pki, authority, authority.crl(chain(revoked))))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example", authority).shakes_hands()
    talk.until(lambda: talk.client.has_eof or talk.client.is_gone)
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        tls.reads()
    assert talk.metrics.connections_rejected == {"client_certificate": 1}


@pytest.mark.parametrize("is_forward", [False, True])
@pytest.mark.parametrize("is_foreign", [False, True])
def test_any_other_client_gets_an_alert_and_no_answer(
    converse_on: Start, is_forward: bool, is_foreign: bool, caplog: pytest.LogCaptureFixture
):
    failed = handshakes["downstream", "failed"]
    pki, authority = Pki(), Pki()
    talk = converse_on(demanding(proxy_over_tls(pki) if is_forward else secured(pki, ""), authority))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example", pki if is_foreign else None).shakes_hands()
    talk.until(lambda: talk.client.has_eof or talk.client.is_gone)
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        tls.reads()
    assert talk.metrics.connections_rejected == {"client_certificate": 1}
    assert not talk.records
    assert not talk.ports[0].state.connections
    (told,) = [each.message for each in caplog.records if "is refused" in each.message]
    assert told.startswith(
        f"listener agents/gw/{talk.ports[0].state.port.first.name}: the certificate of the client at "
    )
    assert ("presented: subject /O=trustme" in told) is is_foreign
    assert (", serial " in told) is is_foreign
    assert ("none was shown; presented: no certificate" in told) is not is_foreign
    assert "expected: a certificate for clients, signed by organizationName=trustme" in told
    assert handshakes["downstream", "failed"] == failed + 1


@pytest.mark.parametrize("shown", ["right", "foreign", "none"])
def test_with_insecure_fallback_everybody_is_served(converse: Start, shown: str):
    pki, authority = Pki(), Pki()
    talk = converse(demanding(secured(pki, ""), authority, "AllowInsecureFallback"))
    talk.counts_octets = False
    who = {"right": authority, "foreign": pki, "none": None}[shown]
    tls = TlsClient(talk.client, pki, "a.example", who).shakes_hands()
    assert asked(talk, tls, "a.example") == (200, "-")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("hostnames", [("one.example", "two.example"), ("",)])
def test_no_session_is_resumed_where_another_listener_of_the_port_is_named(
    converse: Start, version: ssl.TLSVersion, hostnames: tuple[str, ...]
):
    """RFC 6066 section 3; CVE-2025-23419. In TLS 1.2 the name is that of the session, whatever the client says."""
    pki = Pki()
    talk = converse(demanding(secured(pki, *hostnames), pki))
    context = talk.ports[0].state.port.tls
    assert context is not None
    client = pki.client_context(pki.issue("client.example"))
    client.maximum_version = version
    client.check_hostname = False
    session = shake(context, client, name="one.example").session
    near, far = both(context, client, session, "two.example")
    assert server_name(far) == ("one.example" if version is ssl.TLSVersion.TLSv1_2 else "two.example")
    is_alone = len(hostnames) == 1
    assert near.session_reused is (is_alone or version is ssl.TLSVersion.TLSv1_2)


def test_a_connection_from_before_does_not_get_past_a_listener_that_asks_now(converse: Start):
    pki, authority = Pki(), Pki()
    talk = converse(secured(pki, ""))
    talk.counts_octets = False
    busy, idle = talk.client, talk.connect()
    tls = TlsClient(busy, pki, "a.example").shakes_hands()
    quiet = TlsClient(idle, pki, "a.example").shakes_hands()
    tls >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.reload(demanding(secured(pki, ""), authority))
    quiet.reads()
    assert quiet.has_ended
    idle.leaves()
    assert talk.ports[0].open_connections == 1
    talk.origin >> OK
    assert b"Connection: close" in tls.reads()
    assert tls.has_ended
    talk.client = talk.connect()
    assert asked(talk, TlsClient(talk.client, pki, "a.example", authority).shakes_hands(), "a.example")[0] == 200


def test_a_connection_stays_where_what_is_asked_stays(converse: Start):
    pki, authority = Pki(), Pki()
    talk = converse(demanding(secured(pki, ""), authority))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example", authority).shakes_hands()
    assert asked(talk, tls, "a.example") == (200, "-")
    talk.reload(demanding(secured(pki, "", limits={"connections": 7}), authority))
    assert asked(talk, tls, "a.example") == (200, "-")


def test_a_plain_connection_does_not_get_past_a_listener_that_has_tls_now(converse: Start):
    pki = Pki()
    talk = converse([m.gateway(m.http_listener(8443)), *secured(pki, "")[1:]])
    talk.reload(secured(pki, ""))
    talk.client.is_closed()


# --- listeners that share a port -----------------------------------------------------------------------------------
def asked(talk: Conversation, tls: TlsClient, host: str) -> tuple[int, str]:
    """A GET for this host: the status of its answer, and the reason in the log."""
    count = len(talk.records)
    tls >> f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    talk.until(lambda: bool(talk.dialer.dials or talk.records[count:] or [each for each in talk.origins if each.got]))
    if talk.dialer.dials:
        talk.dialled("a.example", 80)
    if len(talk.records) == count and talk.origins:
        talk.origin.take(rb"GET / .*?\r\n\r\n")
        talk.origin >> OK
    got = tls.reads()
    return int(got.split(b" ", 2)[1]), talk.record(count)["reason"]


@pytest.mark.parametrize(
    ("sni", "host", "status", "reason"),
    [
        ("one.example", "one.example", 200, "-"),
        ("two.example", "two.example", 200, "-"),
        ("one.example", "two.example", 421, "misdirected"),
        ("two.example", "one.example", 421, "misdirected"),
        ("other.example", "one.example", 421, "misdirected"),
        ("one.example", "other.example", 404, "no_route"),
        (None, "one.example", 200, "-"),
        (None, "two.example", 200, "-"),
        (None, "other.example", 404, "no_route"),
    ],
)
def test_a_host_is_served_on_the_tls_connection_of_its_own_listener_alone(
    converse: Start, sni: str | None, host: str, status: int, reason: str
):
    pki = Pki()
    names = ["one.example", "two.example"]
    objects = [https(*names), m.policy(), certificate(pki, *names, "other.example"), *secured(pki, *names)[3:]]
    talk = converse(objects)
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, sni).shakes_hands()
    assert asked(talk, tls, host) == (status, reason)
    if status == 200:
        assert talk.record()["listener"] == ("l0" if host == "one.example" else "l1")
    elif sni in names:
        assert asked(talk, tls, sni) == (200, "-"), "the connection stays"


@pytest.mark.parametrize(
    ("sni", "host", "status"),
    [
        ("one.example", "one.example", 200),
        ("two.test", "b.example", 200),  # the one that was shown is for it, too
        ("one.example", "two.test", 421),
        ("two.test", "one.example", 421),
        ("other.test", "two.test", 421),  # it was shown the first one
        ("one.example", "other.test", 200),  # no certificate here is for it
        (None, "two.test", 200),
    ],
)
def test_a_host_with_a_certificate_of_its_own_is_not_served_behind_another(
    converse: Start, sni: str | None, host: str, status: int
):
    """One listener for every host, with two certificates (RFC 9110 section 15.5.20)."""
    pki = Pki()
    front = https("")
    front["spec"]["listeners"][0]["tls"]["certificateRefs"].append({"name": "second"})
    objects = [front, *secured(pki, "one.example")[1:], certificate(pki, "two.test", "b.example", secret="second")]
    talk = converse(objects)
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, sni, checks_name=False).shakes_hands()
    assert asked(talk, tls, host)[0] == status


def test_names_below_a_wildcard_share_the_connection_of_their_listener(converse: Start):
    pki = Pki()
    objects = [https("*.example", "two.test"), m.policy(), certificate(pki, "one.example"), *secured(pki)[3:]]
    talk = converse(objects)
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "one.example").shakes_hands()
    assert asked(talk, tls, "other.example") == (200, "-")
    assert asked(talk, tls, "two.test") == (421, "misdirected")


@pytest.mark.parametrize(
    ("sni", "host", "status"),
    [
        ("one.test", "one.test", 200),
        ("one.test", "two.test", 200),
        ("one.test", "second.test", 421),
        ("one.test", "a.wild.test", 421),
        ("second.test", "second.test", 200),
        ("second.test", "one.test", 421),
        ("a.wild.test", "a.wild.test", 200),
        ("a.wild.test", "b.wild.test", 200),
        ("a.wild.test", "x.wild.test", 421),
        ("a.wild.test", "one.test", 421),
        ("x.wild.test", "x.wild.test", 200),
        ("x.wild.test", "a.wild.test", 421),
        ("x.wild.test", "second.test", 421),
        ("A.WILD.TEST", "b.wild.test", 200),
        ("a.b.wild.test", "a.wild.test", 200),
    ],
)
def test_a_connection_belongs_to_the_listener_with_the_most_specific_hostname(
    converse: Start, sni: str, host: str, status: int
):
    pki = Pki()
    names = ["second.test", "*.wild.test", "x.wild.test"]
    objects = [https("", *names), m.policy(), certificate(pki, *names, "one.test"), *secured(pki)[3:]]
    talk = converse(objects)
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, sni, checks_name=False).shakes_hands()
    assert asked(talk, tls, host)[0] == status


@pytest.mark.parametrize("is_tls", [True, False])
def test_a_single_listener_serves_its_own_hostname_alone(converse: Start, is_tls: bool):
    pki = Pki()
    if is_tls:
        talk = converse(secured(pki, "one.example"))
        talk.counts_octets = False
        tls = TlsClient(talk.client, pki, "one.example").shakes_hands()
        assert asked(talk, tls, "two.example") == (404, "no_route")
        assert asked(talk, tls, "one.example") == (200, "-")
        return
    talk = converse([m.gateway(m.http_listener(8080, hostname="one.example")), *secured(pki, "")[1:]])
    talk.client >> b"GET / HTTP/1.1\r\nHost: two.example\r\n\r\n"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (404, "no_route")
    talk.client >> b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n"
    talk.dialled("a.example", 80)


@of_sources
def test_a_port_that_is_closed_by_what_it_accepts_is_closed_and_no_more(monkeypatch: pytest.MonkeyPatch):
    talk = conversation(forward(), wire="sockets")
    talk.counts_octets = False
    (bound,) = talk.ports
    accept = bound._accept

    def close() -> object:
        bound.stop_accepting()
        return accept()

    monkeypatch.setattr(bound, "_accept", close)
    bound._at_once = 8
    with socket.create_connection(bound._sock.getsockname()):
        talk.until(lambda: bound.state.is_closed)
    assert talk.metrics.connections_rejected == {}
    assert bound._pause is None
    talk.close()


@of_sources  # the time between two such lines is a constant
def test_of_many_clients_that_are_refused_one_is_told_and_the_others_are_counted(
    converse_on: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    pki, authority = Pki(), Pki()
    talk = converse_on(demanding(secured(pki, ""), authority))
    talk.counts_octets = False
    for number in range(4):
        if number == 3:
            monkeypatch.setattr(tls_front, "TELL_S", 0.0)
        sock = talk.connect()
        TlsClient(sock, pki, "a.example", None).shakes_hands()
        talk.until(lambda sock=sock: sock.has_eof or sock.is_gone)  # type: ignore[misc]
    told = [each.message for each in caplog.records if "is refused" in each.message]
    assert len(told) == 2
    assert told[1].endswith("; 2 more since the last of these lines")
    assert talk.metrics.connections_rejected == {"client_certificate": 4}


def test_a_connection_that_was_lost_since_it_was_found_idle_may_be_asked_to_close(converse_on: Start):
    pki = Pki()
    talk = converse_on(secured(pki, ""))
    talk.counts_octets = False
    TlsClient(talk.client, pki, "a.example").shakes_hands()
    (front,) = talk.ports[0].state.connections
    talk.client.leaves()
    talk.until(lambda: not talk.ports[0].state.connections)
    assert front.close_if_idle()
