"""Clients of HTTP/2 that hang up, under limits: what a provider was asked for counts, and holds no place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation

MESSAGES = [{"role": "user", "content": "x" * 400}]
ASKED = json.dumps({"model": "m", "max_tokens": 100, "messages": MESSAGES}).encode()  # some 200 tokens
HEAD = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(ASKED)))
UNAVAILABLE = b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
PART = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3000\r\n\r\n{"


ROUTE = m.http_route("route", m.prefix_rule("/", "a"))
PHASES = ["request", "attempt", "next attempt", "answer"]
hangs_up = pytest.mark.parametrize("resets", [True, False], ids=["RST_STREAM", "its connection"])


def asked_again(start: Start, phase: str, *, resets: bool, **limits: Any) -> tuple[Conversation, int, dict[str, Any]]:
    """A client hangs up in this phase, and another one asks the same.

    Gives the status and body of its answer; 0 and nothing where the request has come to a provider.
    """
    talk = start(
        [
            m.gateway(m.http_listener(8080)),
            m.policy(limits=limits),
            *(m.backend(name, f"{name}.example", 80) for name in "ab"),
            m.failover("any", "a", "b"),
            m.http_route("route", m.prefix_rule("/", "any")),
        ]
    )
    client = speak_http2(talk)
    is_whole = phase != "request"
    body = ASKED if is_whole else ASKED[:50]
    stream = client.ask(b"POST", b"/v1/chat/completions", b"x", *HEAD, body=body, ends=is_whole)
    if is_whole:
        origin = talk.dialled("a.example", 80)
        origin.take(rb"POST .*?\r\n\r\n")
        if phase == "next attempt":
            origin >> UNAVAILABLE
            talk.dialled("b.example", 80).take(rb"POST .*?\r\n\r\n")
        elif phase == "answer":
            origin >> PART
    if resets:
        client.resets(stream)
    else:
        talk.client.leaves()
        talk.settle()
    talk.client = talk.connect()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/v1/chat/completions", b"x", *HEAD, body=ASKED)
    if talk.dialer.dials:
        return talk, 0, {}
    answer = client.answer(stream)
    return talk, answer.status, json.loads(bytes(answer.data))


@hangs_up
@pytest.mark.parametrize("phase", PHASES)
def test_what_a_provider_was_asked_for_counts(converse: Start, phase: str, resets: bool):
    rule = {"per": "Gateway", "limit": 300, "unit": "Day"}
    talk, status, said = asked_again(converse, phase, resets=resets, tokens=[rule])
    if phase == "request":
        assert status == 0
    else:
        assert (status, said["error"]["reason"]) == (429, "token_rate")
    talk.everybody_leaves()


@hangs_up
@pytest.mark.parametrize("phase", PHASES)
def test_the_place_of_a_client_that_has_left_is_free(converse: Start, phase: str, resets: bool):
    talk, status, said = asked_again(converse, phase, resets=resets, concurrency=[{"per": "Gateway", "limit": 1}])
    assert (status, said) == (0, {})
    talk.everybody_leaves()


def test_a_client_that_ends_its_side_is_not_waited_for_until_it_reads(converse: Start):
    talk = converse([m.gateway(m.http_listener(8080)), m.policy(), m.backend("a", "a.example", 80), ROUTE])
    client = speak_http2(talk)
    client.ask(b"GET", b"/", b"x")
    origin = talk.dialled("a.example", 80)
    origin.take(rb"GET .*?\r\n\r\n")
    talk.client.stalls()  # type: ignore[attr-defined]
    origin >> PART
    talk.client.ends()
    assert talk.record()["reason"] == "client_gone"
    assert talk.open == 0
