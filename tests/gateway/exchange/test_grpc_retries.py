"""Retries of calls of gRPC by their status (`traffic.retries.retryOn.triggers`), and what a server says of them."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.ir.policy import RetryIR
from tests.config.compile.kit import FORWARD, PLAIN, ROUTE, compiled, policy, rule
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_grpc_answers import CONTENT, MESSAGE, call, fields_of, reached, routed
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin

FINE = [(b"grpc-status", b"0")]


def asked(
    converse: Start, *triggers: str, attempts: int = 1, **more: Any
) -> tuple[Conversation, Http2Peer, int, Http2Origin]:
    """A call has come to its backend, under a policy that retries these."""
    retries = {"attempts": attempts, "backoff": "1ms", "retryOn": {"triggers": list(triggers)}}
    talk = converse(routed(traffic={"retries": retries, **more}))
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    origin.waits_for(1)
    return talk, client, stream, origin


def fails(origin: Http2Origin, stream: int, status: int, *more: tuple[bytes, bytes]) -> None:
    origin.responds(stream, None, CONTENT, (b"grpc-status", b"%d" % status), *more)


@pytest.mark.parametrize(
    ("trigger", "status"),
    [("cancelled", 1), ("deadline-exceeded", 4), ("resource-exhausted", 8), ("internal", 13), ("unavailable", 14)],
)
def test_a_call_that_ends_with_a_status_of_the_rule_goes_again(converse: Start, trigger: str, status: int):
    talk, client, stream, origin = asked(converse, trigger)
    fails(origin, 1, status)
    (_, second) = origin.waits_for(2).values()
    assert bytes(second.data) == MESSAGE
    origin.responds(3, MESSAGE, CONTENT, trailers=FINE)
    answer = client.answer(stream)
    assert (bytes(answer.data), fields_of(answer)[b"grpc-status"]) == (MESSAGE, b"0")
    record = talk.record()
    assert (record["attempts"], record["grpc_status"]) == (2, "OK")
    assert record["detail"] == f"retried after status {trigger.upper().replace('-', '_')}"
    assert [each["outcome"] for each in record["attempts_detail"]] == [trigger.upper().replace("-", "_"), "200"]


@pytest.mark.parametrize("status", [0, 2, 5, 13, 14])
def test_other_statuses_are_the_answer(converse: Start, status: int):
    _, client, stream, origin = asked(converse, "cancelled", "resource-exhausted")
    fails(origin, 1, status)
    answer = client.answer(stream)
    assert (answer.is_whole, fields_of(answer)[b"grpc-status"]) == (True, b"%d" % status)


def test_without_triggers_every_status_is_the_answer(converse: Start):
    _, client, stream, origin = asked(converse)
    fails(origin, 1, 14)
    assert fields_of(client.answer(stream))[b"grpc-status"] == b"14"


def test_the_last_failure_is_the_answer(converse: Start):
    _, client, stream, origin = asked(converse, "unavailable")
    fails(origin, 1, 14)
    origin.waits_for(2)
    fails(origin, 3, 14, (b"grpc-message", b"still"))
    fields = fields_of(client.answer(stream))
    assert (fields[b"grpc-status"], fields[b"grpc-message"]) == (b"14", b"still")


def test_a_status_behind_a_message_is_the_answer(converse: Start):
    _, client, stream, origin = asked(converse, "unavailable")
    origin.responds(1, MESSAGE, CONTENT, trailers=[(b"grpc-status", b"14")])
    answer = client.answer(stream)
    assert (bytes(answer.data), fields_of(answer)[b"grpc-status"]) == (MESSAGE, b"14")


def test_what_is_no_grpc_is_the_answer(converse: Start):
    _, client, stream, origin = asked(converse, "unavailable")
    origin.responds(1, None, (b"content-type", b"text/plain"), (b"grpc-status", b"14"))
    assert client.answer(stream).is_whole


# --- grpc-retry-pushback-ms ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("said", [b"-1", b"junk", b"007", b"", b"99999999999"])
def test_a_server_that_wants_no_retry_gets_none(converse: Start, said: bytes):
    _, client, stream, origin = asked(converse, "unavailable")
    fails(origin, 1, 14, (b"grpc-retry-pushback-ms", said))
    assert fields_of(client.answer(stream))[b"grpc-status"] == b"14"


def test_a_server_says_when_it_wants_the_call_again(converse: Start):
    talk, client, stream, origin = asked(converse, "unavailable")
    fails(origin, 1, 14, (b"grpc-retry-pushback-ms", b"100"))
    assert len(origin.server.calls) == 1
    began = talk.loop.time()
    while len(origin.server.calls) < 2:
        talk.settle()
        origin.goes_on()
    assert talk.loop.time() - began > 0.05
    origin.responds(3, MESSAGE, CONTENT, trailers=FINE)
    assert bytes(client.answer(stream).data) == MESSAGE


def test_a_pause_for_which_the_call_has_no_time_is_no_retry(converse: Start):
    _, client, stream, origin = asked(converse, "unavailable", timeouts={"request": "10s"})
    fails(origin, 1, 14, (b"grpc-retry-pushback-ms", b"20000"))
    assert fields_of(client.answer(stream))[b"grpc-status"] == b"14"


# --- outlier detection -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "is_out"), [(2, True), (13, True), (14, True), (15, True), (0, False), (4, False), (12, False)]
)
def test_a_server_that_fails_calls_is_ejected(converse: Start, status: int, is_out: bool):
    passive = {"consecutive5XxErrors": 2, "maxEjectionPercent": 100}
    talk = converse(routed(traffic={"healthCheck": {"passive": passive}}))
    client = speak_http2(talk)
    stream = call(client)
    origin = reached(talk)
    for number in (1, 3):
        origin.waits_for((number + 1) // 2)
        fails(origin, number, status)
        assert fields_of(client.answer(stream))[b"grpc-status"] == b"%d" % status
        stream = call(client)
    if is_out:
        assert b"no_healthy_endpoint" in fields_of(client.answer(stream))[b"grpc-message"]
    else:
        origin.waits_for(3)
        fails(origin, 5, 0)
        assert client.answer(stream).is_whole


# --- configuration ---------------------------------------------------------------------------------------------------
def test_triggers_are_those_of_envoy_gateway():
    written = "traffic: {retries: {retryOn: {triggers: [unavailable, cancelled, unavailable]}}}"
    made = compiled(FORWARD, PLAIN, ROUTE, policy(written))
    assert rule(made).retry == RetryIR(1, (), 0.025, 0.25, None, (1, 14))
