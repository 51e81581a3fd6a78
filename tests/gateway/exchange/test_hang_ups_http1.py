"""Clients of HTTP/1.1 that hang up, under limits and hedging: what they held is free, and nothing of theirs goes on."""

from __future__ import annotations

from typing import Any

import pytest
from h2.errors import ErrorCodes

from tests.gateway.backends.test_mirror import mirrored
from tests.gateway.backends.test_mirror import results as results_of_mirrors
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import SWITCHED
from tests.gateway.exchange.test_connection_manager import POST
from tests.gateway.exchange.test_hang_ups import ASKED, PART, UNAVAILABLE
from tests.gateway.exchange.test_hedging import asked as asked_of_pod
from tests.gateway.exchange.test_hedging import hedging
from tests.gateway.exchange.test_http2_both_sides import H2C
from tests.gateway.exchange.test_interception import INSIDE, inside, opening
from tests.gateway.exchange.test_interception import start as start_opening
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import (
    GET,
    GET_SENT,
    OK,
    OK_PASSED,
    TlsClient,
    certificate,
    connect,
    forward,
    https,
    reverse,
)
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin
from tests.support.pki import Pki

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED)
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n"
PHASES = ["request", "dial", "attempt", "next attempt", "back-off", "answer", "events"]


def hung_up(start: Start, phase: str, way: str, **limits: Any) -> Conversation:
    """A client hangs up in this phase: by RST, by a FIN that is late, or it is gone altogether."""
    traffic = {"retries": {"attempts": 2, "backoff": "30s", "codes": [503]}}
    talk = start(
        [
            m.gateway(m.http_listener(8080)),
            m.policy(limits=limits, **({"traffic": traffic} if phase == "back-off" else {})),
            *(m.backend(name, f"{name}.example", 80) for name in "ab"),
            m.failover("any", "a", "b"),
            m.http_route("route", m.prefix_rule("/", "a" if phase == "back-off" else "any")),
        ]
    )
    talk.counts_octets = False
    talk.client >> (REQUEST[:-50] if phase == "request" else REQUEST)
    if phase == "dial":
        assert talk.until(lambda: bool(talk.dialer.dials))
    else:
        origin = talk.dialled("a.example", 80)
        origin.take(rb"POST .*?\r\n\r\n")
        if phase in ("next attempt", "back-off"):
            origin >> UNAVAILABLE
        if phase == "next attempt":
            talk.dialled("b.example", 80).take(rb"POST .*?\r\n\r\n")
        elif phase in ("answer", "events"):
            origin >> (PART if phase == "answer" else EVENTS)
            talk.settle()
            assert "tokens" not in limits or b"200 OK" not in talk.client.got  # that is held until it is whole
    if way == "FIN":
        talk.after(0.5)
        talk.client.ends()
    elif way == "RST":
        talk.client.resets()
    else:
        talk.client.leaves()
    assert talk.until(lambda: bool(talk.records))
    (record,) = talk.records
    assert record["reason"] == "client_gone"
    assert talk.open == 0
    if phase == "dial":
        assert talk.dialer.dials.pop().future.cancelled()
    talk.no_dial()
    return talk


@pytest.mark.parametrize("way", ["RST", "FIN", "gone"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_hangs_up_is_one_record_and_frees_its_place(converse: Start, phase: str, way: str):
    talk = hung_up(converse, phase, way, concurrency=[{"per": "Gateway", "limit": 1}])
    talk.client = talk.connect()
    talk.client >> REQUEST
    origin = talk.dialled("a.example", 80)
    origin.take(rb"POST .*?\r\n\r\n")
    talk.everybody_leaves()


@pytest.mark.parametrize("phase", ["attempt", "next attempt", "answer"])
def test_what_a_provider_was_asked_for_counts(converse: Start, phase: str):
    talk = hung_up(converse, phase, "RST", tokens=[{"per": "Gateway", "limit": 300, "unit": "Day"}])
    talk.client = talk.connect()
    talk.client >> REQUEST
    talk.client.take(rb"HTTP/1.1 429 .*token_rate.*")
    talk.everybody_leaves()


# --- a FIN --------------------------------------------------------------------------------------------------------
TO_A = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
LAST_PASSED = OK_PASSED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
AT_ANY_TIME = {"halfClose": True}


def asked(talk: Conversation, request: bytes = GET, sent: bytes = rb"(GET|POST) .*?\r\n\r\n") -> Conversation:
    talk.client >> request
    talk.dialled("a.example", 80).take(sent)
    return talk


def was_left(talk: Conversation) -> None:
    """Nothing goes on for a client that has left."""
    assert talk.record()["reason"] == "client_gone"
    assert talk.open == 0
    assert talk.client.has_eof
    assert all(dial.future.cancelled() for dial in talk.dialer.dials)


@pytest.mark.parametrize("stage", ["dns", "dial", "body to come", "response", "streamed", "not taken"])
def test_a_client_that_ends_its_side_while_it_waits_has_left(converse: Start, stage: str):
    talk = converse(forward())
    talk.counts_octets = False
    if stage == "dns":
        talk.names.hold("a.example")
        talk.client >> GET
    elif stage == "dial":
        talk.client >> GET
        assert talk.pending_dial()
    elif stage == "body to come":
        talk.client >> POST + b"Content-Length: 4\r\n\r\nbody"  # whole, and nobody takes it yet
        assert talk.pending_dial()
    else:
        asked(talk)
        if stage == "not taken":
            talk.client.stalls()  # type: ignore[attr-defined]
        if stage != "response":
            talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"
    talk.after(0.5)
    talk.client.ends()
    was_left(talk)
    assert talk.client.transport.was_aborted  # type: ignore[attr-defined]
    assert talk.record()["status"] == (200 if stage in ("streamed", "not taken") else 499)


@pytest.mark.parametrize("request_", [GET, POST + b"Content-Length: 4\r\n\r\nbody"], ids=["head", "body"])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.25])
def test_a_client_that_ends_its_side_with_its_request_gets_the_response(
    converse: Start, seconds: float, request_: bytes
):
    talk = asked(converse(forward()), request_)
    if seconds:
        talk.after(seconds)
    talk.client.ends()
    talk.after(2)
    talk.origin >> OK
    talk.client << LAST_PASSED
    talk.client.is_closed()


def test_the_time_begins_with_the_last_bytes_of_the_request(converse: Start):
    talk = asked(converse(forward()), POST + b"Content-Length: 4\r\n\r\nbo")
    talk.after(3)
    talk.client >> b"dy"
    talk.after(0.2)
    talk.client.ends()
    talk.origin >> OK
    talk.client << LAST_PASSED


@pytest.mark.parametrize("place", ["gw", "route"])
def test_with_half_close_a_client_may_end_its_side_at_any_time(converse: Start, place: str):
    allow = m.policy(name="more", traffic=AT_ANY_TIME)
    if place == "route":
        allow["spec"]["targetRefs"] = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "route"}]
    talk = asked(converse([*reverse(), allow]), TO_A)
    talk.after(2)
    talk.client.ends()
    talk.origin >> OK
    talk.client << LAST_PASSED


def test_with_half_close_the_response_is_waited_for_as_long_as_idle_says(converse: Start):
    talk = asked(converse(forward(traffic={**AT_ANY_TIME, "timeouts": {"idle": "5s"}})))
    talk.after(1)
    talk.client.ends()
    talk.after(11)
    assert talk.client.answer()[0] == 504


def test_pipelined_requests_are_served_though_the_client_has_ended(converse: Start):
    talk = asked(converse(forward()), GET + GET, GET_SENT)
    talk.after(1)
    talk.client.ends()
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << LAST_PASSED


def test_an_empty_line_behind_the_request_is_no_other_one(converse: Start):
    talk = asked(converse(forward()), GET + b"\r\n")
    talk.counts_octets = False
    talk.after(1)
    talk.client.ends()
    was_left(talk)


def test_a_stream_of_the_backend_is_reset_and_its_connection_goes_on(converse: Start):
    talk = converse(H2C)
    talk.client >> TO_A
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    origin.waits_for(1)
    talk.after(0.5)
    talk.client.ends()
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL
    assert talk.record()["reason"] == "client_gone"
    assert (talk.open, talk.idle) == (1, 1)


@pytest.mark.parametrize("word", ["close_notify", "FIN"])
def test_in_tls_a_close_notify_says_it_too(converse: Start, word: str):
    pki = Pki()
    route = m.http_route("r", m.prefix_rule("/", "a"))
    talk = converse([https(""), certificate(pki, "a.example"), m.policy(), m.backend("a", "a.example", 80), route])
    talk.counts_octets = False
    client = TlsClient(talk.client, pki, "a.example").shakes_hands()
    client >> TO_A
    talk.dialled("a.example", 80).take(rb"GET .*?\r\n\r\n")
    talk.after(0.5)
    if word == "close_notify":
        client.ends()
    else:
        talk.client.ends()
    was_left(talk)


@pytest.mark.parametrize("word", ["close_notify", "FIN"])
def test_so_it_is_inside_a_tunnel_that_is_opened(converse: Start, word: str):
    talk = start_opening(converse)
    client = inside(talk)
    client >> INSIDE
    talk.dialled("a.example", 443).take(rb"GET .*?\r\n\r\n")
    talk.after(0.5)
    if word == "close_notify":
        client.ends()
    else:
        talk.client.ends()
    was_left(talk)


def test_half_close_holds_inside_a_tunnel_that_is_opened(converse: Start):
    talk = start_opening(converse, opening(traffic=AT_ANY_TIME))
    client = inside(talk)
    client >> INSIDE
    talk.dialled("a.example", 443).take(rb"GET .*?\r\n\r\n")
    talk.after(0.5)
    client.ends()
    talk.origin >> OK
    assert client.reads().endswith(b"\r\n\r\nhi")


@pytest.mark.parametrize("is_stream", [False, True], ids=["HTTP/1.1", "a stream of HTTP/2"])
def test_so_it_is_in_a_tunnel_to_port_80(converse: Start, is_stream: bool):
    talk = converse(forward())
    talk.counts_octets = False
    if is_stream:
        peer = speak_http2(talk)
        stream = peer.connects(b"a.example:80")
        peer.says(stream, TO_A)
    else:
        talk.client >> connect("a.example:80")
        talk.client >> TO_A
    talk.dialled("a.example", 80).take(rb"GET .*?\r\n\r\n")
    talk.after(0.5)
    if is_stream:
        peer.says(stream, b"", ends=True)
        assert not talk.client.is_gone
    else:
        talk.client.ends()
    assert talk.record()["reason"] == "client_gone"
    assert talk.open == 0


def test_every_attempt_ends_where_requests_are_hedged(converse: Start):
    talk = converse(hedging())
    talk.client >> TO_A
    _, first = asked_of_pod(talk)
    _, hedge = asked_of_pod(talk)
    talk.after(0.5)
    talk.client.ends()
    was_left(talk)
    assert first.is_gone
    assert hedge.is_gone


def test_a_mirror_keeps_no_backend_at_work(converse: Start):
    """As where a client resets: its copy is whole, and goes on; one that is not whole is dropped."""
    talk = converse(mirrored())
    talk.client >> TO_A
    origin, mirror = talk.dialled("a.example", 80), talk.dialled("b.example", 80)
    talk.after(0.5)
    talk.client.ends()
    assert talk.record()["reason"] == "client_gone"
    assert origin.is_gone
    mirror.take(rb"GET .*?\r\n\r\n")
    mirror >> OK
    assert results_of_mirrors(talk) == {"ok": 1}


def test_a_tunnel_keeps_its_half_at_any_time(converse: Start):
    talk = converse(forward())
    talk.client >> connect("a.example:443")
    assert talk.pending_dial()
    talk.after(1)
    talk.client.ends()
    talk.dialled("a.example", 443)
    talk.client << b"HTTP/1.1 200 Connection established\r\n\r\n"
    talk.client.is_open()


def test_an_upgraded_connection_keeps_its_half_at_any_time(converse: Start):
    talk = asked(converse(forward()), TO_A.replace(b"GET /", b"GET http://a.example/").replace(
        b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"))  # fmt: skip
    talk.origin >> SWITCHED
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    talk.after(1)
    talk.client.ends()
    talk.origin >> b"still"
    talk.client << b"still"
