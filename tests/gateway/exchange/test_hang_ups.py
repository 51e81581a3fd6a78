"""Clients of HTTP/2 that hang up, under limits: what a provider was asked for counts, and holds no place."""

from __future__ import annotations

import json

import pytest

from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m

MESSAGES = [{"role": "user", "content": "x" * 400}]
ASKED = json.dumps({"model": "m", "max_tokens": 100, "messages": MESSAGES}).encode()  # some 200 tokens
HEAD = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(ASKED)))
LIMITS = {
    "tokens": [{"per": "Gateway", "limit": 300, "unit": "Day"}],
    "concurrency": [{"per": "Gateway", "limit": 1}],
}
UNAVAILABLE = b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"
PART = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3000\r\n\r\n{"


@pytest.mark.parametrize("resets", [True, False], ids=["RST_STREAM", "its connection"])
@pytest.mark.parametrize(
    ("phase", "is_counted"),
    [("request", False), ("attempt", True), ("next attempt", True), ("answer", True)],
)
def test_what_was_sent_to_a_provider_counts_and_the_place_is_free(
    converse: Start, phase: str, is_counted: bool, resets: bool
):
    talk = converse(
        [
            m.gateway(m.http_listener(8080)),
            m.policy(limits=LIMITS),
            *(m.backend(name, f"{name}.example", 80) for name in "ab"),
            m.failover("any", "a", "b"),
            m.http_route("route", m.prefix_rule("/", "any")),
        ]
    )
    client = speak_http2(talk)
    is_whole = phase != "request"
    stream = client.ask(
        b"POST", b"/v1/chat/completions", b"x", *HEAD, body=ASKED if is_whole else ASKED[:50], ends=is_whole
    )
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
    if is_counted:
        answer = client.answer(stream)
        assert (answer.status, json.loads(bytes(answer.data))["error"]["reason"]) == (429, "token_rate")
    else:
        talk.dialled("a.example", 80).take(rb"POST .*?\r\n\r\n")
    talk.everybody_leaves()
