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
    [("unavailable", 14)],
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


def test_a_status_behind_a_message_is_the_answer(converse: Start):
    _, client, stream, origin = asked(converse, "unavailable")
    origin.responds(1, MESSAGE, CONTENT, trailers=[(b"grpc-status", b"14")])
    answer = client.answer(stream)
    assert (bytes(answer.data), fields_of(answer)[b"grpc-status"]) == (MESSAGE, b"14")


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
