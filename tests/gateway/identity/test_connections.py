"""What a connection says of its client: its certificate, its address; in HTTP/2 and on streams, too."""

from __future__ import annotations

import time
from typing import Any

import pytest

from egressproxy.gateway.identity import authenticator, authenticators
from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.identity.test_tokens import CLUSTER, basic, bearer, identity, is_refused, is_served, tokens
from tests.gateway.kit import ESTABLISHED, GET, OK, SHARED, TlsClient, certificate, connect, forward, https
from tests.gateway.listeners.test_bound_port import demanding
from tests.gateway.listeners.test_client_identity import PKI, ROBOT, Workload, served, who
from tests.gateway.listeners.test_stream_connection import terminating
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2_client import Http2Client

ADDRESSES = {
    "clients": [
        {"cidrs": ["10.0.0.0/8"], "namespace": "wide", "serviceAccount": "any"},
        {"cidrs": ["10.1.0.0/16", "fd00::/64"], "namespace": "team", "serviceAccount": "robot"},
    ]
}


@pytest.mark.parametrize(
    ("address", "namespace"),
    [("10.9.9.9", "wide"), ("10.1.2.3", "team"), ("fd00::7", "team"), ("::ffff:10.1.2.3", "team"), ("192.0.2.1", "-")],
)
def test_the_longest_network_says_who_it_is(converse: Start, address: str, namespace: str):
    talk = converse(forward(identity={"address": ADDRESSES}))
    talk.client = talk.connect(address=address)
    for is_new in (True, False):
        record = is_served(talk, GET, is_new=is_new)
        assert record["namespace"] == namespace
    assert record.get("identity_source") == ("address" if namespace != "-" else None)


def test_where_a_client_has_to_be_known_its_address_may_do(converse: Start):
    talk = converse(tokens(address=ADDRESSES))
    assert is_served(talk, GET)["namespace"] == "wide"
    assert is_served(talk, bearer(CLUSTER.token()), is_new=False)["namespace"] == "team"
    assert is_served(talk, GET, is_new=False)["namespace"] == "wide"
    is_refused(talk, bearer(CLUSTER.token(aud="other")))
    talk.client = talk.connect(address="192.0.2.1")
    is_refused(talk, GET)


OTHERS = {"clients": [{"cidrs": ["10.0.0.0/8"], "namespace": "others", "serviceAccount": "any"}]}
INSIDE = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"


def test_a_reload_that_gives_addresses_to_others_says_nothing_of_credentials(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    """Pods come and go all the time: nobody has to show a token again for that, nor to open a tunnel."""
    token, checked = CLUSTER.token(), list[Any]()
    verify = authenticators._Verifier.verify
    monkeypatch.setattr(authenticators._Verifier, "verify", lambda *shown: checked.append(shown) or verify(*shown))
    talk = converse(tokens(address=ADDRESSES))
    talk.client >> bearer(token, connect("a.example:80"))
    talk.client << ESTABLISHED
    talk.reload(tokens(address=OTHERS))
    assert is_served(talk, INSIDE)["namespace"] == "team"
    talk.client = talk.connect()
    assert is_served(talk, bearer(token), is_new=False)["namespace"] == "team"
    assert len(checked) == 1


def test_a_reload_that_gives_an_address_to_another_holds_for_its_next_request(converse: Start):
    talk = converse(tokens(address=ADDRESSES))
    tunnel = talk.connect()
    tunnel >> connect("a.example:80")
    tunnel << ESTABLISHED
    assert is_served(talk, GET)["namespace"] == "wide"
    talk.reload(tokens(address=OTHERS))
    assert is_served(talk, GET, is_new=False)["namespace"] == "others"
    talk.client = tunnel
    is_refused(talk, INSIDE, 403)
    talk.client = talk.connect()
    is_served(talk, GET, is_new=False)
    talk.reload(tokens())
    is_refused(talk, GET)


def test_without_credentials_there_is_nothing_to_ask_for(converse: Start):
    talk = converse(forward(identity={"address": ADDRESSES, "required": True}))
    talk.client = talk.connect(address="192.0.2.1")
    talk.client >> GET
    status, phrase, fields, error = talk.client.answer()
    assert (status, phrase) == (403, b"Denied: the gateway does not know this client"), "407 asks for a credential"
    assert error["reason"] == "credentials_required"
    assert error["remedy"] == (
        "connect with a client certificate that the gateway believes, or from an address that it knows (identity of "
        "the EgressPolicy)"
    )
    assert "Proxy-Authenticate" not in fields


# --- certificates ----------------------------------------------------------------------------------------------------


def proxy(**more: Any) -> list[m.Manifest]:
    listener = m.forward_listener(3128, tls=terminate("front"))
    made = [m.gateway(listener), m.policy(["a.example"], identity=more, traffic=SHARED), certificate(PKI, "a.example")]
    return [*demanding(made, PKI), CLUSTER.config_map]


@pytest.fixture
def asks(converse: Start) -> Any:
    def start(objects: list[m.Manifest], whose: Any, **more: Any) -> tuple[Conversation, TlsClient]:
        talk = converse(objects)
        talk.counts_octets = False
        return talk, TlsClient(talk.client, PKI, "a.example", whose, **more).shakes_hands()

    return start


TRUSTED = {"certificate": {"trustDomains": ["cluster.local"]}}


def test_a_certificate_makes_known_and_what_is_shown_goes_before_it(asks: Any):
    talk, tls = asks(proxy(**TRUSTED, **identity()), Workload(ROBOT))
    assert who(served(talk, tls)) == ("team", "robot")
    shown = bearer(CLUSTER.token("system:serviceaccount:other:user"))
    assert who(served(talk, tls, shown, is_new=False)) == ("other", "user")
    assert who(served(talk, tls, is_new=False)) == ("team", "robot")
    tls.reads()
    tls >> bearer(CLUSTER.token(aud="another"))
    talk.record(3)
    assert tls.reads().startswith(b"HTTP/1.1 407 the token is for another audience\r\n")


def test_a_reload_that_gives_addresses_to_others_says_nothing_of_certificates(asks: Any):
    objects = proxy(**TRUSTED, address=ADDRESSES)
    talk, tls = asks(objects, Workload(ROBOT))
    tls >> connect("a.example:80")
    assert tls.reads() == ESTABLISHED
    objects[1]["spec"]["identity"]["address"] = OTHERS
    talk.reload(objects)
    assert who(served(talk, tls, INSIDE)) == ("team", "robot")


def test_a_certificate_that_expires_ends_its_connection(asks: Any, monkeypatch: pytest.MonkeyPatch):
    talk, tls = asks(proxy(**TRUSTED), Workload(ROBOT))
    served(talk, tls)
    tls.reads()
    monkeypatch.setattr(authenticator, "time", lambda: time.time() + 50 * 365 * 86400)
    tls >> GET
    assert tls.reads().startswith(b"HTTP/1.1 403 Denied: the client certificate of this connection has expired\r\n")
    assert talk.record()["reason"] == "client_certificate"
    assert tls.has_ended


def test_a_certificate_that_expires_is_nobody_on_the_other_listeners_of_its_port(
    asks: Any, monkeypatch: pytest.MonkeyPatch
):
    """A policy of one listener says whose ids are believed, and that is so on its port."""
    only = m.policy(name="only", identity=TRUSTED)
    only["spec"]["targetRefs"][0]["sectionName"] = "l0"
    made = [https("b.example", "a.example"), m.policy(), only, certificate(PKI, "a.example")]
    made += [m.backend("a", "a.example", 80), m.http_route("route", m.prefix_rule("/", "a"))]
    talk, tls = asks(demanding(made, PKI), Workload(ROBOT))
    asked = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert who(served(talk, tls, asked)) == ("team", "robot")
    tls.reads()
    monkeypatch.setattr(authenticator, "time", lambda: time.time() + 50 * 365 * 86400)
    tls >> asked
    assert tls.reads().startswith(b"HTTP/1.1 403 Denied: the client certificate of this connection has expired\r\n")


@pytest.mark.parametrize("kind", ["dnsName", "uri"])
def test_a_client_may_be_known_by_another_name_of_its_certificate(asks: Any, kind: str):
    written = {"dnsName": "robot.example", "uri": "https://robot.example/"}
    client = {kind: written[kind], "namespace": "team", "serviceAccount": "robot"}
    objects = proxy(certificate={"clients": [client]})
    talk, tls = asks(objects, Workload("Robot.example", "https://robot.example/"))
    assert who(served(talk, tls)) == ("team", "robot")
    talk, tls = asks(objects, Workload("robot.example.test", "https://robot.example/2"))
    assert who(served(talk, tls)) == ("-", "-")


def test_two_names_of_different_clients_make_nobody_known(asks: Any):
    clients = [
        {"dnsName": "robot.example", "namespace": "team", "serviceAccount": "robot"},
        {"uri": "https://other.example/", "namespace": "team", "serviceAccount": "other"},
    ]
    talk, tls = asks(proxy(certificate={"clients": clients}), Workload("robot.example", "https://other.example/"))
    assert who(served(talk, tls)) == ("-", "-")


# --- HTTP/2 ----------------------------------------------------------------------------------------------------------


def test_each_stream_of_http2_is_of_its_own_client(asks: Any):
    talk, tls = asks(proxy(**identity()), Workload("x.example"), alpn=("h2",))
    client = Http2Client()
    shown = [
        (b"proxy-authorization", b"Bearer " + CLUSTER.token(f"system:serviceaccount:{name}:a").encode())
        for name in ("one", "two")
    ]

    def asked(*fields: tuple[bytes, bytes]) -> int:
        stream = client.get(b"/", b"a.example", *fields)
        tls >> client.outgoing()
        return stream

    for number, name in ((0, "one"), (1, "two"), (0, "one")):
        count = len(talk.records)
        asked(shown[number])
        if not count:
            talk.dialled("a.example", 80)
        sent = talk.origin.take(rb"GET / .*?\r\n\r\n")[0]
        assert b"uthorization" not in sent
        talk.origin >> OK
        assert talk.record(count)["namespace"] == name
    stream = asked()
    client.take(tls.reads())
    answer = client.of(stream)
    assert answer.status == 407
    assert answer[b"proxy-authenticate"].startswith(b"B")


def test_a_call_of_grpc_is_told_in_its_own_words(asks: Any):
    _, tls = asks(proxy(**identity()), Workload("x.example"), alpn=("h2",))
    client = Http2Client()
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/a.B/C")]
    stream = client.request([*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers")])
    tls >> client.outgoing()
    client.take(tls.reads())
    assert dict(client.of(stream).fields)[b"grpc-status"] == b"16"  # UNAUTHENTICATED


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_whose_tls_ends_here_is_known_by_its_certificate_or_refused(asks: Any):
    required = {**TRUSTED, "required": True}
    talk, tls = asks(demanding(terminating(PKI, identity=required), PKI), Workload(ROBOT))
    talk.dialled("a.example", 443)
    tls >> b"inside"
    talk.origin << b"inside"
    talk.client.resets()
    assert who(talk.record()) == ("team", "robot")
    talk, tls = asks(demanding(terminating(PKI, identity=required), PKI), Workload("stranger.example"))
    assert talk.record()["reason"] == "credentials_required"
    talk.no_dial()


def test_a_password_shows_nothing_on_another_port(converse: Start):
    """A listener without `identity` ignores what is meant for a proxy, and passes nothing on."""
    talk = converse(forward())
    is_served(talk, basic("a", "b"))
    is_served(talk, bearer("a.b.c"), is_new=False)
