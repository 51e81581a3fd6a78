"""Nothing of a request to an AI provider is left when it is over, however it ends, without the garbage collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from egressproxy.ai.backends.answers import TranslatedStream
from egressproxy.ai.backends.call import AiCall
from egressproxy.ai.translation.translator import ResponseTranslator, TranslatedRequest
from egressproxy.gateway.answers import WholeAnswer
from egressproxy.gateway.backends.failover import FailoverState
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.model.exchange import Exchange
from egressproxy.protocols.http1.upstream import UpstreamConnection
from tests.ai.backends.test_aliases import CHAT, endpoint, post
from tests.ai.backends.test_translation import EVENTS, config, provider, respond, stream
from tests.support import manifests as m
from tests.support.conversation import Conversation, conversation
from tests.support.leftovers import Leftovers, leftovers_of

left = leftovers_of(
    AiCall,
    ClientConnection,
    FailoverState,
    Exchange,
    ReplayableBody,
    ResponseTranslator,
    WholeAnswer,
    TranslatedRequest,
    TranslatedStream,
    UpstreamConnection,
)

STREAM = CHAT.replace(b'"n":1.0e0', b'"stream": true')
WHOLE = CHAT.replace(b', "n":1.0e0', b"")
MESSAGE = (
    b'{"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [{"type": "text", "text": "hi"}], '
    b'"stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 1}}'
)
BAD = b'{"model": "a", "model": "b"}'


def a_whole_answer(talk: Conversation) -> None:
    begins(talk, WHOLE)
    respond(talk, MESSAGE, b"Content-Type: application/json\r\n")
    talk.client.take(rb"HTTP/1.1 200 .*hi")


def garbage(talk: Conversation) -> None:
    begins(talk, WHOLE)
    respond(talk, b"garbage")
    talk.client.take(rb"HTTP/1.1 502")


def an_error(talk: Conversation) -> None:
    begins(talk, WHOLE)
    respond(talk, b"no", status=400)
    talk.client.take(rb"HTTP/1.1 400")


def a_short_stream(talk: Conversation) -> None:
    begins(talk, STREAM)
    respond(talk, b"data: {}\n\n", EVENTS)
    talk.client.take(rb"(?s)HTTP/1.1 200.*error")


def a_broken_stream(talk: Conversation) -> None:
    begins(talk, STREAM)
    stream(talk, b"data: x")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    talk.origin.resets()


def a_client_that_leaves_the_stream(talk: Conversation) -> None:
    begins(talk, STREAM)
    stream(talk, b"data: x")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    talk.client.resets()


def a_client_that_leaves_within_its_body(talk: Conversation) -> None:
    talk.client >> post(WHOLE)[:-5]
    talk.settle()
    talk.client.resets()


def a_request_that_cannot_be_read(talk: Conversation) -> None:
    talk.client >> post(BAD)
    talk.client.take(rb"HTTP/1.1 400")


def one_that_nobody_else_can_serve(talk: Conversation) -> None:
    talk.client >> post(BAD, b"/v1/messages")
    talk.dialled("b.example", 80).take(rb"POST .*}")
    respond(talk, b"no", status=503)
    talk.client.take(rb"HTTP/1.1 503")


def begins(talk: Conversation, body: bytes) -> None:
    talk.client >> post(body)
    talk.dialled("b.example", 80).take(rb"(?s)POST /v1/messages .*?}")


@pytest.mark.parametrize(
    "ends",
    [
        a_whole_answer,
        garbage,
        an_error,
        a_short_stream,
        a_broken_stream,
        a_client_that_leaves_the_stream,
        a_client_that_leaves_within_its_body,
        a_request_that_cannot_be_read,
        one_that_nobody_else_can_serve,
    ],
)
def test_nothing_is_left(left: Leftovers, ends: Callable[[Conversation], None]):
    endpoints = [endpoint("b", 0), endpoint("c", 1, modelAlias="other")]
    providers = [provider("b", "AnthropicMessages"), provider("c", "OpenAIResponses")]
    talk = conversation(config(*providers, m.failover("any", *endpoints, codes=[503]), to="any"), wire="sockets")
    if ends is garbage:  # and the next one is not there
        talk.close()
        talk = conversation(config(providers[0], to="b"), wire="sockets")
    ends(talk)
    assert left.of(talk) == Counter()
    talk.close()
