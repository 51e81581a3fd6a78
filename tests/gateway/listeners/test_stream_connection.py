"""TLS and TCP listeners: a connection is one tunnel, chosen by the name in its ClientHello."""

from __future__ import annotations

import ssl
from ipaddress import ip_address

import pytest

from egressproxy.protocols.tls.client_hello import ACCESS_DENIED
from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import CHANGE, RETRY, client_hello
from tests.gateway.kit import TlsClient, certificate
from tests.gateway.listeners.test_bound_port import demanding
from tests.net.tls_contexts.test_contexts import shake
from tests.support import manifests as m
from tests.support.builds import of_sources
from tests.support.pki import Pki


def by_name(**sections: object) -> list[m.Manifest]:
    return [
        m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}),
        m.policy(destinations={"deny": [{"hostnames": ["denied.example"]}]}, **sections),
        m.backend("a", "a.example", 443, protocol="TCP"),
        m.tls_route("t", "a", hostnames=["a.example", "denied.example"]),
    ]


def test_a_hello_chooses_the_route_and_goes_on_whole(converse_on: Start):
    talk = converse_on(by_name())
    hello = client_hello("a.example")
    talk.client >> hello[:7]
    talk.no_dial()
    talk.client >> hello[7:] + b"early"
    talk.dialled("a.example", 443)
    talk.origin << hello + b"early"
    talk.origin >> b"answer"
    talk.client << b"answer"
    talk.client.ends()
    talk.origin.ends()
    record = talk.record()
    assert (record["kind"], record["route"], record["authority"]) == ("tunnel", "agents/t", "a.example:443")
    assert (record["bytes_in"], record["bytes_out"]) == (len(hello) + 5, 6)


@pytest.mark.parametrize(
    ("first", "reason", "alert"),
    [
        (client_hello("b.example"), "no_route", b""),
        (client_hello(None), "no_route", b""),
        (client_hello("denied.example"), "destination_denied", ACCESS_DENIED),
        (b"GET / HTTP/1.1\r\n\r\n", "not_tls", b""),
        (client_hello("b.example")[:5] + b"\x02" + client_hello("b.example")[6:], "not_tls", b""),
    ],
)
def test_whatever_has_no_route_is_dropped_and_who_speaks_tls_is_told_of_policy(
    converse_on: Start, first: bytes, reason: str, alert: bytes
):
    talk = converse_on(by_name())
    talk.client >> first
    if alert:
        talk.client << alert
    talk.client.is_closed()
    assert not talk.client.got
    record = talk.record()
    assert (record["reason"], record["bytes_in"], record["bytes_out"]) == (reason, len(first), len(alert))
    talk.no_dial()


def test_one_connection_too_many_is_dropped(converse_on: Start):
    talk = converse_on(by_name(limits={"connections": 1}))
    talk.counts_octets = False
    second = talk.connect()
    second.is_closed()
    assert talk.metrics.connections_rejected == {"connection_limit": 1}
    assert len(talk.ports[0].state.connections) == 1


def test_a_client_that_says_nothing_is_dropped_in_time(converse: Start):
    talk = converse(by_name())
    talk.after(12)
    assert talk.client.is_gone
    assert talk.record()["reason"] == "not_tls"


@pytest.mark.parametrize("way", ["ends", "leaves", "resets"])
def test_a_client_that_leaves_within_its_hello_leaves_nothing_behind(converse_on: Start, way: str):
    talk = converse_on(by_name())
    talk.client >> client_hello("a.example")[:20]
    getattr(talk.client, way)()
    talk.until(lambda: bool(talk.records))
    assert talk.record()["reason"] == "client_gone"
    talk.no_dial()


def test_a_client_that_half_closes_behind_its_hello_still_gets_the_answer(converse_on: Start):
    talk = converse_on(by_name())
    talk.client >> client_hello("a.example")
    talk.client.ends()
    talk.dialled("a.example", 443)
    talk.until(lambda: talk.origin.has_eof)
    talk.origin >> b"answer"
    talk.origin.ends()
    talk.client << b"answer"
    talk.client.is_closed()


def test_what_comes_before_the_dial_is_done_is_bounded(converse: Start):
    talk = converse(by_name())
    talk.client >> client_hello("a.example") + b"x" * 1_000_000
    assert talk.client.transport.is_paused
    talk.dialled("a.example", 443)
    talk.origin.take(rb".*?x{1000000}")


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_second_hello_has_to_name_the_host_that_chose_the_route(converse_on: Start, is_asked: bool):
    talk = converse_on(by_name())
    first = client_hello("a.example")
    talk.client >> first + (b"" if is_asked else CHANGE + client_hello("b.example"))
    talk.dialled("a.example", 443)
    if is_asked:
        talk.origin << first
        talk.origin >> RETRY
        talk.client << RETRY
        talk.client >> CHANGE + client_hello("b.example")
    talk.until(lambda: talk.client.has_eof and talk.origin.has_eof)
    assert b"b.example" not in talk.origin.got
    assert talk.record()["reason"] == "sni_mismatch"


def test_a_second_hello_for_the_same_host_passes(converse_on: Start):
    talk = converse_on(by_name())
    hello = client_hello("a.example")
    talk.client >> hello
    talk.dialled("a.example", 443)
    talk.origin << hello
    talk.origin >> RETRY
    talk.client >> CHANGE + hello
    talk.origin << CHANGE + hello
    talk.origin >> b"more"
    talk.client << RETRY + b"more"


# --- terminated ----------------------------------------------------------------------------------------------------
def terminating(pki: Pki, **sections: object) -> list[m.Manifest]:
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": terminate("front")}
    return [m.gateway(listener), m.policy(**sections), certificate(pki, "a.example"), *by_name()[2:]]


@pytest.mark.parametrize("is_dialling", [False, True])
def test_a_client_that_leaves_behind_its_handshake_leaves_no_tunnel_behind(converse: Start, is_dialling: bool):
    """In the turn of the loop in which the handshake ends, or while the upstream is dialled after it."""
    pki = Pki()
    talk = converse(terminating(pki, limits={"tunnels": 1}))
    talk.counts_octets = False  # the log counts what is inside TLS
    tls = TlsClient(talk.client, pki, "a.example")
    talk.client >> tls.hello()
    last = tls.last_flight()

    def finish() -> None:
        talk.client.transport.deliver(last)
        if not is_dialling:
            talk.client.transport.lose(None)

    talk.act(finish)
    if is_dialling:
        dial = talk.pending_dial()
        talk.client.leaves()
        assert dial is not None
        assert dial.future.cancelled()
    talk.until(lambda: bool(talk.records))
    assert talk.record()["reason"] == "client_gone"


def test_a_client_whose_reset_is_found_by_the_last_write_of_its_handshake_is_not_dialled_for(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    """The tickets that follow a handshake meet a connection that is gone: nobody is told of it any more."""
    pki = Pki()
    talk = converse(terminating(pki))
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "a.example")
    talk.client >> tls.hello()
    last = tls.last_flight()
    monkeypatch.setattr(talk.client.transport, "write", lambda _data: talk.client.transport.abort())
    talk.client >> last
    talk.no_dial()
    assert talk.record()["reason"] == "client_gone"


@of_sources
def test_a_tunnel_that_cannot_begin_takes_its_upstream_with_it(converse: Start, monkeypatch: pytest.MonkeyPatch):
    def fail(*_arguments: object, **_named: object) -> None:
        raise AttributeError("transport")

    monkeypatch.setattr("egressproxy.gateway.exchange.relay.TransportTunnel.start", fail)
    talk = converse(by_name())
    talk.expects_failures = True
    talk.client >> client_hello("a.example")
    talk.dialled("a.example", 443)
    assert talk.origin.is_gone
    talk.client.is_closed()
    assert talk.record()["reason"] == "internal"


@pytest.mark.parametrize("shown", ["right", "foreign", "none"])
def test_a_terminated_stream_asks_for_the_certificate_of_its_client(converse: Start, shown: str):
    pki, authority = Pki(), Pki()
    talk = converse(demanding(terminating(pki), authority))
    talk.counts_octets = False
    who = {"right": authority, "foreign": pki, "none": None}[shown]
    tls = TlsClient(talk.client, pki, "a.example", who).shakes_hands()
    if shown == "right":
        talk.dialled("a.example", 443)
        tls >> b"inside"
        talk.origin << b"inside"
        return
    talk.no_dial()
    assert talk.record()["reason"] == "client_certificate"
    said = "none was shown" if shown == "none" else "certificate in certificate chain"
    assert said in talk.record()["detail"]
    at_fault, remedy = "it is not trusted: its chain ends in a root", "its root, or the certificate itself into"
    assert [words in talk.record()["detail"] for words in (at_fault, remedy)] == [shown == "foreign"] * 2


# --- a listener that goes ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("octets", [0, 20])
def test_a_stream_without_its_hello_goes_with_its_listener(converse_on: Start, octets: int):
    talk = converse_on(by_name())
    if octets:
        talk.client >> client_hello("a.example")[:octets]
    talk.act(talk.ports[0].stop_accepting)
    talk.act(talk.ports[0].close_idle)
    talk.client.is_closed()
    assert talk.record()["reason"] == "client_gone"
    talk.no_dial()


def test_a_stream_that_is_served_outlives_its_listener(converse_on: Start):
    talk = converse_on(by_name())
    hello = client_hello("a.example")
    talk.client >> hello
    talk.dialled("a.example", 443)
    talk.origin << hello
    talk.act(talk.ports[0].stop_accepting)
    talk.act(talk.ports[0].close_idle)
    talk.origin >> b"still here"
    talk.client << b"still here"


def test_a_stream_that_was_accepted_as_its_listener_went_is_not_served(converse: Start):
    talk = converse(by_name())
    talk.act(talk.ports[0].stop_accepting)
    late = talk.connect()
    late >> client_hello("a.example")
    talk.no_dial()
    late.is_closed()
    assert not late.got
    assert talk.record()["reason"] == "no_route"


# --- filters -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "section",
    [
        {"limits": {"maxBodyBytes": 1000}},
        {
            "extensions": [
                {
                    "name": "fields", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers",
                    "config": {"request": {"set": [{"name": "X-A", "value": "b"}], "remove": ["X-B"]}},
                }
            ]
        },
    ],
)  # fmt: skip
def test_filters_of_requests_leave_streams_alone(converse_on: Start, section: dict[str, object]):
    talk = converse_on(by_name(**section))
    hello = client_hello("a.example")
    talk.client >> hello
    talk.dialled("a.example", 443)
    talk.origin << hello
    talk.origin >> b"answer"
    talk.client << b"answer"


def test_a_session_for_another_name_opens_no_stream(converse: Start):
    """The hello names the host that chose the route; in TLS 1.2 what is resumed is the session, and its name."""
    pki = Pki()
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": terminate("front")}
    backend, route = m.backend("a", "a.example", 443, protocol="TCP"), m.tls_route("t", "a", hostnames=["*.example"])
    talk = converse([m.gateway(listener), m.policy(), certificate(pki, "a.example", "b.example"), backend, route])
    talk.counts_octets = False
    context = talk.ports[0].state.port.first.terminate
    assert context is not None
    client = pki.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    session = shake(context, client, name="b.example").session
    for name in ("a.example", "b.example"):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client.wrap_bio(incoming, outgoing, server_hostname=name, session=session)
        peer = talk.client = talk.connect()
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        peer >> outgoing.read()
        talk.settle()
        incoming.write(bytes(peer.received))
        tls.do_handshake()
        assert tls.session_reused
        peer >> outgoing.read()
        if name == "b.example":
            talk.dialled("a.example", 443)
        else:
            talk.no_dial()
            assert talk.record()["reason"] == "sni_mismatch"


# --- a deny means the place ----------------------------------------------------------------------------------------
DENY_A = {"deny": [{"hostnames": ["a.example"]}]}


def plain_stream(**sections: object) -> list[m.Manifest]:
    """A TCP listener with one route to `a`."""
    rules = [{"backendRefs": [{"group": m.OURS, "kind": "Backend", "name": "a"}]}]
    spec = {"parentRefs": [{"name": "gw"}], "rules": rules}
    return [
        m.gateway({"name": "tcp", "port": 5432, "protocol": "TCP"}),
        m.policy(**sections),
        m.backend("a", "a.example", 5432, protocol="TCP"),
        m.manifest(f"{m.GATEWAY_API}/v1", "TCPRoute", "t", "agents", spec=spec),
    ]


def test_a_deny_holds_for_the_backend_of_a_tcp_route(converse_on: Start):
    talk = converse_on(plain_stream(destinations=DENY_A))
    talk.client >> b"select 1"
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["rule"]) == ("destination_denied", "EgressPolicy agents/default")
    assert "a.example" in record["detail"]
    talk.no_dial()


def test_a_deny_holds_for_the_backend_of_a_tls_route_under_another_name(converse_on: Start):
    talk = converse_on(
        [
            m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}),
            m.policy(destinations=DENY_A),
            m.backend("a", "a.example", 443, protocol="TCP"),
            m.tls_route("t", "a", hostnames=["front.example"]),
        ]
    )
    talk.client >> client_hello("front.example")
    talk.client << ACCESS_DENIED
    talk.client.is_closed()
    assert talk.record()["reason"] == "destination_denied"
    talk.no_dial()


def test_in_report_mode_a_stream_passes_and_is_noted(converse_on: Start):
    talk = converse_on(plain_stream(destinations=DENY_A, mode="Report"))
    talk.client >> b"select 1"
    talk.dialled("a.example", 5432)
    talk.origin << b"select 1"
    talk.client.ends()
    talk.origin.ends()
    assert talk.record()["would_deny"] == ["destination_denied"]


# --- a route to a Dynamic backend permits what it names ------------------------------------------------------------
@pytest.mark.parametrize(
    ("hostnames", "allow", "is_permitted"),
    [
        ((), (), False),
        ((), ("a.example",), True),
        (("a.example",), (), True),
        (("*.example",), None, True),
        (("*.example",), ("b.example",), False),
    ],
)
def test_a_stream_to_where_its_hello_says_opens_no_more_than_policy_allows(
    converse_on: Start, hostnames: tuple[str, ...], allow: tuple[str, ...] | None, is_permitted: bool
):
    talk = converse_on(
        [
            m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}),
            m.policy(allow),
            m.dynamic(),
            m.tls_route("t", "any", hostnames=hostnames),
        ]
    )
    hello = client_hello("a.example")
    talk.client >> hello
    if is_permitted:
        talk.dialled("a.example", 443)
        talk.origin << hello
        talk.client.leaves()
    else:
        talk.client << ACCESS_DENIED
        talk.client.is_closed()
        assert talk.record()["reason"] == "destination_not_allowed"
        talk.no_dial()


def test_a_stream_to_a_name_that_leads_into_a_denied_range_is_dropped(converse_on: Start):
    talk = converse_on(plain_stream(destinations={"deny": [{"cidrs": ["93.184.216.0/24"]}]}))
    talk.names.zone["a.example"] = (ip_address("93.184.216.34"),)
    talk.client >> b"select 1"
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["rule"]) == ("resolved_denied", "EgressPolicy agents/default")
    talk.no_dial()


def test_behind_its_handshake_a_client_is_sent_nothing_in_plain_text(converse_on: Start):
    """It would be garbage there, or an attack."""
    pki = Pki()
    talk = converse_on(terminating(pki))
    talk.names.zone["a.example"] = (ip_address("10.0.0.1"),)
    talk.counts_octets = False
    TlsClient(talk.client, pki, "a.example").shakes_hands()
    talk.until(lambda: bool(talk.records))
    assert talk.record()["reason"] == "resolved_denied"
    assert not bytes(talk.client.received).endswith(ACCESS_DENIED)
