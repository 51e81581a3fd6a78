"""What a provider was asked for counts for limits on tokens, whoever keeps its answer from the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.filters.base import Filter, Rejected
from egressproxy.model.exchange import Exchange
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_hang_ups import ASKED
from tests.gateway.kit import reverse
from tests.support.conversation import Conversation, scripted_filter

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED)
SAID = json.dumps({"choices": [{"message": {"role": "assistant", "content": "no"}}], "usage": {"total_tokens": 0}})
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(SAID),
    SAID.encode(),
)
LIMITS: dict[str, Any] = {"limits": {"tokens": [{"per": "Gateway", "limit": 300, "unit": "Day"}]}}


class RefusesHeads(Filter):
    def response_headers(self, x: Exchange) -> None:
        raise Rejected("not this one")


class RefusesBodies(Filter):
    max_buffer_bytes = 10_000

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        raise Rejected("not this one")


def refused_the_second_time(talk: Conversation) -> None:
    talk.client = talk.connect()
    talk.client >> REQUEST
    talk.client.take(rb"HTTP/1.1 429 .*token_rate.*")
    talk.everybody_leaves()


@pytest.mark.parametrize("filter", [RefusesHeads(), RefusesBodies()], ids=["head", "body"])
@pytest.mark.parametrize("priority", [-5, 5])
def test_an_answer_that_a_filter_keeps_back_has_taken_tokens(converse: Start, filter: Filter, priority: int):
    phase = "response-headers" if isinstance(filter, RefusesHeads) else "response-body"
    step = scripted_filter("refuses", phase=phase, priority=priority)
    talk = converse(reverse(extensions=[step], **LIMITS), filters={"refuses": filter})
    talk.client >> REQUEST
    talk.dialled("a.example", 80).take(rb"POST .*?\r\n\r\n")
    talk.origin >> ANSWER
    talk.client.take(rb"HTTP/1.1 403 .*")
    refused_the_second_time(talk)


@pytest.mark.parametrize("timeouts", [{"request": "50ms"}, {"backendRequest": "50ms"}], ids=["request", "attempt"])
def test_a_provider_that_is_given_up_may_have_taken_tokens(converse: Start, timeouts: dict[str, str]):
    talk = converse(reverse(traffic={"timeouts": timeouts}, **LIMITS))
    talk.client >> REQUEST
    talk.dialled("a.example", 80).take(rb"POST .*?\r\n\r\n")
    talk.after(1)
    talk.client.take(rb"HTTP/1.1 504 .*")
    refused_the_second_time(talk)


def test_a_provider_that_was_never_reached_has_taken_none(converse: Start):
    talk = converse(reverse(traffic={"timeouts": {"request": "50ms"}}, **LIMITS))
    for _ in range(2):
        talk.client = talk.connect()
        talk.client >> REQUEST
        talk.after(1)
        talk.client.take(rb"HTTP/1.1 504 .*")
