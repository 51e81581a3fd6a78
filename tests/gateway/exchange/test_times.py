"""What a scrape says of times: until the backend answered, until the client was answered, and what is in progress."""

from __future__ import annotations

import pytest

from egressproxy.gateway.backends import upstream_call
from egressproxy.gateway.exchange import accounting, connect, response_body
from egressproxy.telemetry.series import BUCKETS_S
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, GET_SENT, OK, OK_PASSED, forward
from tests.gateway.kit import connect as connect_to
from tests.support.conversation import Conversation

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
HEAD_PASSED = b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 4\r\n\r\n"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (accounting, response_body, connect, upstream_call):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def times(talk: Conversation, name: str) -> dict[float, int]:
    """How many were within each bound and not within the one below, by this bound; those with none are left out."""
    found: dict[float, int] = {}
    for series in talk.metrics.gather().series.values():
        for bound, number in zip((*BUCKETS_S, float("inf")), getattr(series, name), strict=False):
            found[bound] = found.get(bound, 0) + number
    return {bound: number for bound, number in found.items() if number}


def active(talk: Conversation) -> int:
    return sum(1 for bound in talk.ports for state in bound.states for _ in state.requests())


def test_a_streamed_response_begins_with_its_head_and_a_whole_one_with_its_end(converse: Start, clock: Clock):
    talk = converse(forward())
    assert active(talk) == 0
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    assert active(talk) == 1
    clock.now += 0.2
    talk.origin >> HEAD
    talk.client << HEAD_PASSED
    assert active(talk) == 1, "its body is to come"
    assert times(talk, "answers") == {0.25: 1}
    clock.now += 30
    talk.origin >> b"body"
    talk.client << b"body"
    assert talk.record()["status"] == 200
    assert active(talk) == 0
    assert times(talk, "first_bytes") == {0.25: 1}
    talk.client >> GET
    talk.origin << GET_SENT
    clock.now += 2
    talk.origin >> OK
    talk.client << OK_PASSED
    assert times(talk, "first_bytes") == times(talk, "answers") == {0.25: 1, 2.5: 1}
    assert times(talk, "durations") == {2.5: 1, 60.0: 1}


def test_a_tunnel_begins_when_it_is_open_and_is_then_no_request(converse: Start, clock: Clock):
    talk = converse(forward())
    talk.client >> connect_to("a.example:443")
    assert talk.pending_dial() is not None
    assert active(talk) == 1
    clock.now += 0.02
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    assert active(talk) == 0
    clock.now += 900
    talk.client.leaves()
    assert talk.record()["kind"] == "tunnel"
    assert times(talk, "first_bytes") == times(talk, "answers") == {0.025: 1}
    assert times(talk, "durations") == {3600.0: 1}


def test_who_leaves_before_an_answer_has_had_no_first_byte(converse: Start, clock: Clock):
    talk = converse(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    clock.now += 3
    talk.client.leaves()
    assert talk.record()["status"] == 499
    assert times(talk, "first_bytes") == times(talk, "answers") == {}
    assert times(talk, "durations") == {10.0: 1}
