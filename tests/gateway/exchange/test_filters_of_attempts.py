"""Filters of a backend hold something for each attempt: it is given back once, however the attempts end."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.filters.base import Filter
from egressproxy.model.exchange import Exchange
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_hedging import GET, asked, passes
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter


class Holding(Filter):
    """Holds one thing for each attempt, and says what came of it."""

    def __init__(self) -> None:
        self.held: set[object] = set()
        self.attempts = 0
        self.completed = 0

    def backend_request(self, x: Exchange) -> None:
        """Hold something; of another attempt it lets go of what the one before has held."""
        if x.notes is not None:
            self.held.discard(x.notes.get("holding"))
        self.attempts += 1
        mine = object()
        self.held.add(mine)
        x.note("holding", mine)

    def complete(self, x: Exchange) -> None:
        """Let it go."""
        assert x.notes is not None
        self.completed += 1
        self.held.discard(x.notes.pop("holding", None))


def hedged_with_retries(start: Start, level: str) -> tuple[Conversation, Holding]:
    """Two rounds of attempts at one backend, two at once in each."""
    filter = Holding()
    step = scripted_filter("holding", phase="backend-request")
    of_backend: dict[str, Any] = {"extensions": [step]} if level == "backend" else {}
    of_policy: dict[str, Any] = {"extensions": [step]} if level == "policy" else {}
    objects = [
        m.gateway(m.http_listener(8080)),
        m.policy(
            traffic={"hedging": {"hedgingDelay": "10ms"}, "retries": {"attempts": 1, "backoff": "1ms"}}, **of_policy
        ),
        m.backend("a", "a.example", 80, **of_backend),
        m.http_route("route", m.prefix_rule("/", "a")),
    ]
    return start(objects, filters={"holding": filter}), filter


@pytest.mark.parametrize("level", ["backend", "policy"])
@pytest.mark.parametrize("ending", ["won", "lost", "both fail", "client leaves"])
def test_what_attempts_of_a_second_round_hold_is_given_back(converse: Start, level: str, ending: str):
    talk, filter = hedged_with_retries(converse, level)
    talk.client >> GET
    for origin in [asked(talk)[1], asked(talk)[1]]:
        origin.leaves()
    first, second = asked(talk)[1], asked(talk)[1]
    assert filter.attempts == 4
    if ending == "client leaves":
        talk.client.resets()
    elif ending == "both fail":
        first.leaves()
        second.leaves()
        talk.client.take(rb"HTTP/1.1 503 .*")
    else:
        (second if ending == "won" else first) >> OK
        talk.client << OK_PASSED
    passes(talk, lambda: talk.records)
    assert not filter.held
    talk.everybody_leaves()
