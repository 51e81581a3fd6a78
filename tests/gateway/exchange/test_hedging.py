"""Hedging: a request that is slow goes to another endpoint, too; the first good answer is the client's."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from h2.errors import ErrorCodes

from egressproxy.gateway.backends.retries import NO_RETRIES, RetryPolicy
from egressproxy.gateway.exchange.hedging import HedgedAttempt, HedgedCall
from egressproxy.ir.policy import HedgingIR
from egressproxy.model.exchange import Exchange
from tests.gateway.backends.test_retries import to_pods
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer
from tests.support.http2 import Http2Origin
from tests.support.waiting import WAIT_S

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ASKED = rb"GET .*?\r\n\r\n"
FIRST, SECOND, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def hedging(*addresses: str, traffic: dict[str, Any] | None = None, **more: Any) -> list[m.Manifest]:
    """One route to a Service with these endpoints, under a policy with hedging."""
    spec = {"hedgingDelay": "10ms", **more}
    return [m.policy(traffic={"hedging": spec, **(traffic or {})}), *to_pods(*(addresses or (FIRST, SECOND)))]


def to_backends(*names: str, **more: Any) -> list[m.Manifest]:
    """One route to the Failover `any` of backends with these names, under a policy with hedging."""
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(traffic={"hedging": {"hedgingDelay": "10ms", **more}}),
        *(m.backend(name, f"{name}.example", 80) for name in names),
        m.failover("any", *names, attemptsHeader=True),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]


def passes(talk: Conversation, has_come: Callable[[], object]) -> None:
    """Time passes on the loop until it has come to that."""
    end = monotonic() + WAIT_S
    while not has_come():
        assert monotonic() < end, "it never came to that"
        talk.run(asyncio.sleep(0.002))


def dialled(talk: Conversation) -> tuple[str, Peer]:
    """The gateway dials an endpoint, at once or when the delay is over; gives its name, and its connection."""
    passes(talk, lambda: talk.dialer.dials)
    address, port = talk.dialer.dials[0].endpoints[0]
    name = talk.names.name_of(address)
    return name, talk.dialled(name, port)


def asked(talk: Conversation) -> tuple[str, Peer]:
    """As `dialled`; the endpoint has the request."""
    name, origin = dialled(talk)
    origin.take(ASKED)
    return name, origin


def nothing_more(talk: Conversation) -> None:
    """No attempt begins, for some times the delay."""
    talk.run(asyncio.sleep(0.05))
    talk.no_dial()


def outcomes(talk: Conversation) -> dict[str, int]:
    """egress_hedges_total, of all series."""
    found: Counter[str] = Counter()
    for series in talk.metrics._series.values():
        found.update(series.hedges)
    return dict(found)


def trail(talk: Conversation) -> list[str]:
    return [attempt["outcome"] for attempt in talk.record()["attempts_detail"]]


# --- who wins -----------------------------------------------------------------------------------------------------
def test_an_answer_within_the_delay_is_that_of_the_only_attempt(converse: Start):
    talk = converse(hedging(hedgingDelay="60s"))
    talk.client >> GET
    _, origin = asked(talk)
    origin >> OK
    talk.client << OK_PASSED
    nothing_more(talk)
    assert talk.idle == 1
    assert "attempts" not in talk.record()
    assert outcomes(talk) == {}


def test_a_hedge_that_is_faster_is_the_answer_and_the_slow_attempt_is_cancelled(converse: Start):
    talk = converse(hedging())
    talk.client >> GET
    first, slow = asked(talk)
    second, fast = asked(talk)
    assert {first, second} == {FIRST, SECOND}
    fast >> OK
    talk.client << OK_PASSED
    assert slow.is_gone
    assert not fast.is_gone
    assert talk.open == talk.idle == 1
    record = talk.record()
    assert (record["attempts"], record["detail"], record["upstream"]) == (2, "hedged", f"{second}:8080")
    assert trail(talk) == ["hedged", "200"]
    assert outcomes(talk) == {"won": 1}


def test_a_hedge_that_is_still_dialled_is_given_up(converse: Start):
    talk = converse(hedging())
    talk.client >> GET
    _, first = asked(talk)
    passes(talk, lambda: talk.dialer.dials)
    first >> OK
    talk.client << OK_PASSED
    assert talk.dialer.dials.pop().future.cancelled()
    assert talk.open == 1


def test_a_body_goes_on_to_the_client_as_it_comes(converse: Start):
    talk = converse(hedging())
    talk.client >> GET
    asked(talk)
    _, hedge = asked(talk)
    hedge >> b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 4\r\n\r\nab"
    hedge >> b"cd"
    talk.client << b"cd"
    assert talk.idle == 1


def test_interim_responses_are_passed_on(converse: Start):
    talk = converse(hedging())
    talk.client >> GET
    _, first = asked(talk)
    first >> b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    talk.client << b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nVia: 1.1 gw\r\n\r\n"
    _, hedge = asked(talk)
    hedge >> OK
    talk.client << OK_PASSED
    assert first.is_gone


# --- what fails ---------------------------------------------------------------------------------------------------


def test_an_explanation_tells_of_it():
    spec = HedgingIR(0.2, 3, (503,), ("GET", "HEAD"))
    (note,) = RetryPolicy(NO_RETRIES, None, monotonic, spec).notes()
    assert note == (
        "GET, HEAD without an answer after 0.2 s begins another attempt, at another endpoint; up to 3 go on at once"
    )


# --- what bounds it -----------------------------------------------------------------------------------------------


def test_hedges_count_in_the_parallel_retries_of_the_circuit_breaker(converse: Start):
    talk = converse(hedging(FIRST, SECOND, traffic={"circuitBreaker": {"maxParallelRetries": 1}}))
    talk.client >> GET
    _, first = asked(talk)
    _, hedge = asked(talk)
    other = talk.connect()
    other >> GET
    _, third = asked(talk)
    nothing_more(talk)
    third >> OK
    other << OK_PASSED
    assert outcomes(talk) == {"circuit_open": 1}
    hedge >> OK
    talk.client << OK_PASSED
    assert first.is_gone
    host_sets = [each.host_set for each in talk.snapshot.clusters.values() if each.host_set is not None]
    assert [each.retries for each in host_sets] == [0]


@pytest.mark.parametrize("version", [1, 2])
def test_a_gateway_that_is_short_of_memory_begins_no_further_attempt(converse: Start, version: int):
    talk = converse(hedging())
    talk.connection_manager.ends_connections = True
    if version == 2:
        client = speak_http2(talk)
        stream = client.ask(b"GET", b"/", b"x")
    else:
        talk.client >> GET
    _, origin = asked(talk)
    nothing_more(talk)
    origin >> OK
    if version == 2:
        assert client.answer(stream).status == 200
    else:
        talk.client.take(rb"HTTP/1.1 200 .*?hi")


def test_the_loser_has_not_failed(converse: Start):
    """One failure would eject it."""
    passive = {"consecutive5XxErrors": 1, "maxEjectionPercent": 100}
    talk = converse(hedging(traffic={"healthCheck": {"passive": passive}}))
    for _ in range(3):
        talk.client >> GET
        peers = [asked(talk)[1], asked(talk)[1]]
        peers[1] >> b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
        talk.client.take(rb"HTTP/1.1 200 .*?hi")
    host_sets = [each.host_set for each in talk.snapshot.clusters.values() if each.host_set is not None]
    states = [health.state.value for each in host_sets for health in each.healths()]
    assert states == ["healthy", "healthy"]


# --- backends -----------------------------------------------------------------------------------------------------
def test_a_hedge_goes_to_the_next_backend_of_a_failover(converse: Start):
    talk = converse(to_backends("a", "b"))
    talk.client >> GET
    name, slow = dialled(talk)
    assert (name, slow.take(ASKED)[0].count(b"Host: a.example")) == ("a.example", 1)
    name, fast = dialled(talk)
    assert (name, fast.take(ASKED)[0].count(b"Host: b.example")) == ("b.example", 1)
    fast >> OK
    head = talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")[0]
    assert b'X-Egress-Attempts: "agents/a";outcome=hedged;ms=' in head
    assert b'"agents/b";outcome=200' in head
    assert talk.record()["backend"] == "agents/b"
    assert slow.is_gone


@pytest.mark.parametrize("is_dialled", [True, False])
def test_a_mirror_gets_one_copy_beside_what_is_sent_first(converse: Start, is_dialled: bool):
    mirror = {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "c"}}
    objects = [
        m.gateway(m.http_listener(8080)),
        m.policy(traffic={"hedging": {"hedgingDelay": "10ms"}}),
        *(m.backend(name, f"{name}.example", 80) for name in ("a", "b", "c")),
        m.failover("any", "a", "b"),
        m.http_route("route", m.prefix_rule("/", "any", filters=[{"type": "RequestMirror", "requestMirror": mirror}])),
    ]
    talk = converse(objects)
    talk.client >> GET
    places = set()
    if is_dialled:
        places.add(asked(talk)[0])
    else:
        passes(talk, lambda: len(talk.dialer.dials) == 2)
        held = talk.dialer.dials.pop(0)  # the first attempt still waits for its connection
    for _ in range(2):
        name, peer = asked(talk)
        places.add(name)
        if name == "b.example":
            fast = peer
    fast >> OK
    talk.client << OK_PASSED
    assert places == {"b.example", "c.example"} | ({"a.example"} if is_dialled else set())
    assert is_dialled or held.future.cancelled()
    talk.no_dial()


# --- the end ------------------------------------------------------------------------------------------------------
def test_a_client_that_leaves_ends_every_attempt(converse: Start):
    talk = converse(hedging())
    talk.client >> GET
    _, first = asked(talk)
    _, hedge = asked(talk)
    talk.client.leaves()
    talk.until(lambda: bool(talk.records))
    assert first.is_gone
    assert hedge.is_gone
    assert talk.open == 0
    assert talk.record()["reason"] == "client_gone"
    assert outcomes(talk) == {"cancelled": 1}


def test_the_time_of_the_request_ends_every_attempt(converse: Start):
    talk = converse(hedging(traffic={"timeouts": {"request": "50ms"}}))
    talk.client >> GET
    _, first = asked(talk)
    _, hedge = asked(talk)
    passes(talk, lambda: talk.client.got)
    talk.client.take(rb"HTTP/1.1 504 .*")
    assert first.is_gone
    assert hedge.is_gone
    assert talk.record()["reason"] == "request_timeout"


def test_each_attempt_has_its_own_time(converse: Start):
    talk = converse(hedging(traffic={"timeouts": {"backendRequest": "60ms"}}, hedgingDelay="40ms"))
    talk.client >> GET
    _, first = asked(talk)
    _, hedge = asked(talk)
    passes(talk, lambda: first.is_gone)
    hedge >> OK
    talk.client << OK_PASSED
    assert trail(talk) == ["upstream_timeout", "200"]


def test_a_backend_that_thinks_for_longer_than_idle_is_waited_for(converse: Start):
    talk = converse(hedging(traffic={"timeouts": {"idle": "1s"}}))
    talk.client >> GET
    _, first = asked(talk)
    asked(talk)
    talk.after(5)
    first >> OK
    talk.client << OK_PASSED


def test_a_body_that_stalls_behind_a_hedge_is_given_up_after_idle(converse: Start):
    talk = converse(hedging(traffic={"timeouts": {"idle": "1s"}}))
    talk.client >> GET
    _, first = asked(talk)
    asked(talk)
    first >> b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"
    talk.after(5)
    assert talk.client.is_gone
    assert talk.record()["reason"] == "upstream_timeout"


def test_a_reload_in_between_leaves_nothing(converse: Start):
    talk = converse(hedging())
    talk.client >> GET
    _, first = asked(talk)
    _, hedge = asked(talk)
    talk.reload([m.policy(), *to_pods(THIRD)])
    hedge >> OK
    talk.client << OK_PASSED
    assert first.is_gone
    assert hedge.is_gone  # its backend is no more


def test_over_sockets(converse_on: Start):
    """The hedge has the answer, and the connection of the slow attempt is closed."""
    talk = converse_on(
        [
            m.gateway(m.http_listener(8080)),
            m.policy(traffic={"hedging": {"hedgingDelay": "20ms"}}),
            m.backend("a", "a.example", 80),
            m.http_route("route", m.prefix_rule("/", "a")),
        ]
    )
    talk.client >> GET
    slow = talk.dialled("a.example", 80)
    slow.take(ASKED)
    passes(talk, lambda: talk.dialer.dials)
    fast = talk.dialled("a.example", 80)
    fast.take(ASKED)
    fast >> OK
    talk.client << OK_PASSED
    talk.until(lambda: slow.has_eof)
    assert slow.has_eof


# --- HTTP/2 -------------------------------------------------------------------------------------------------------
def over_h2(*names: str) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(traffic={"hedging": {"hedgingDelay": "10ms"}}),
        *(m.backend(name, f"{name}.example", 80, protocol="H2C") for name in names),
        m.failover("any", *names),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]


def test_over_http_2_the_stream_of_the_loser_is_reset_and_no_other(converse: Start):
    talk = converse(over_h2("a", "b"))
    client = speak_http2(talk)
    stream = client.ask(b"GET", b"/", b"front.example")
    slow = Http2Origin(talk, dialled(talk)[1])
    slow.waits_for(1)
    fast = Http2Origin(talk, dialled(talk)[1])
    fast.waits_for(1)
    fast.server.h2.send_headers(1, [(b":status", b"200")])
    fast.server.h2.send_data(1, b"hi", end_stream=True)
    fast.goes_on()
    answer = client.answer(stream)
    assert (answer.status, bytes(answer.data)) == (200, b"hi")
    slow.goes_on()
    assert slow.server.calls[1].reset == ErrorCodes.CANCEL
    other = client.ask(b"GET", b"/", b"front.example")
    slow.waits_for(2)
    slow.server.h2.send_headers(3, [(b":status", b"200")], end_stream=True)
    slow.goes_on()
    assert client.answer(other).status == 200


def test_over_http_2_both_attempts_at_a_name_may_be_on_one_connection(converse: Start):
    talk = converse(over_h2("a"))
    client = speak_http2(talk)
    stream = client.ask(b"GET", b"/", b"front.example")
    origin = Http2Origin(talk, dialled(talk)[1])
    origin.waits_for(1)
    passes(talk, lambda: origin.goes_on() or len(origin.server.calls) == 2)
    origin.server.h2.send_headers(3, [(b":status", b"200")], end_stream=True)
    origin.goes_on()
    assert client.answer(stream).status == 200
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL


def test_a_client_that_resets_its_stream_resets_every_attempt(converse: Start):
    talk = converse(over_h2("a", "b"))
    client = speak_http2(talk)
    stream = client.ask(b"GET", b"/", b"front.example")
    origins = [Http2Origin(talk, dialled(talk)[1])]
    origins[0].waits_for(1)
    origins.append(Http2Origin(talk, dialled(talk)[1]))
    origins[1].waits_for(1)
    client.resets(stream)
    for origin in origins:
        origin.goes_on()
        assert origin.server.calls[1].reset == ErrorCodes.CANCEL


# --- what is left -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ["won", "lost", "failed", "retried", "left"])
def test_nothing_is_left_of_it_for_the_collector_of_cycles(converse: Start, ending: str):
    kinds = (Exchange, HedgedAttempt, HedgedCall)
    gc.collect()
    gc.disable()
    try:
        before = Counter(type(each) for each in gc.get_objects() if type(each) in kinds)
        talk = converse(hedging(FIRST, SECOND, THIRD, traffic={"retries": {"attempts": int(ending == "retried")}}))
        talk.client >> GET
        _, first = asked(talk)
        _, hedge = asked(talk)
        if ending == "won":
            hedge >> OK
            talk.client << OK_PASSED
        elif ending == "lost":
            first >> OK
            talk.client << OK_PASSED
        elif ending == "failed":
            hedge.leaves()
            first.leaves()
            talk.client.take(rb"HTTP/1.1 502 .*")
        elif ending == "retried":
            hedge.leaves()
            first.leaves()
            _, third = asked(talk)
            third >> OK
            talk.client << OK_PASSED
        talk.client.leaves()
        talk.until(lambda: not talk.ports[0].state.connections)
        talk.act(lambda: None)
        after = Counter(type(each) for each in gc.get_objects() if type(each) in kinds)
    finally:
        gc.enable()
    assert after == before
