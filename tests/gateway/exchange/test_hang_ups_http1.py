"""Clients of HTTP/1.1 that hang up, under limits and hedging: what they held is free, and nothing of theirs goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.exchange.test_hang_ups import ASKED, PART, UNAVAILABLE
from tests.support import manifests as m
from tests.support.conversation import Conversation

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED)
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\n"
PHASES = ["request", "dial", "attempt", "next attempt", "back-off", "answer", "events"]


def hung_up(start: Start, phase: str, *, resets: bool, **limits: Any) -> Conversation:
    """A client hangs up in this phase."""
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
            assert (b"200 OK" in talk.client.got) == ("tokens" not in limits)  # that is held until it is whole
    if resets:
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


@pytest.mark.parametrize("resets", [True, False], ids=["RST", "FIN"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_hangs_up_is_one_record_and_frees_its_place(converse: Start, phase: str, resets: bool):
    talk = hung_up(converse, phase, resets=resets, concurrency=[{"per": "Gateway", "limit": 1}])
    talk.client = talk.connect()
    talk.client >> REQUEST
    origin = talk.dialled("a.example", 80)
    origin.take(rb"POST .*?\r\n\r\n")
    talk.everybody_leaves()


@pytest.mark.parametrize("phase", ["attempt", "next attempt", "answer"])
def test_what_a_provider_was_asked_for_counts(converse: Start, phase: str):
    talk = hung_up(converse, phase, resets=True, tokens=[{"per": "Gateway", "limit": 300, "unit": "Day"}])
    talk.client = talk.connect()
    talk.client >> REQUEST
    talk.client.take(rb"HTTP/1.1 429 .*token_rate.*")
    talk.everybody_leaves()
