"""An answer of 200 that tells of a failure, in its first event or as its whole body, counts as the status of that."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from egressproxy.filters.base import BodyMode, Filter
from egressproxy.gateway import answers
from egressproxy.model.exchange import Exchange
from tests.ai.apis.test_first_event import CREATED, MESSAGE, OVERLOADED, PING, ROLE, TEXT, chunk, data
from tests.ai.backends.test_aliases import CHAT, endpoint, post
from tests.ai.backends.test_translation import config, provider
from tests.gateway.backends.test_failover import asked
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer, scripted_filter
from tests.support.http2 import Http2Origin

EVENTS = b"Content-Type: text/event-stream\r\n"
JSON = b"Content-Type: application/json\r\n"
ASKS = b'{"model": "m", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
PATHS = {
    "AnthropicMessages": b"/v1/messages",
    "OpenAIChat": b"/v1/chat/completions",
    "OpenAIResponses": b"/v1/responses",
}
GEMINI = b"/v1beta/models/m:streamGenerateContent?alt=sse"

GOOD_CHAT = ROLE + chunk({"content": "from the second"}) + chunk({}, finish_reason="stop") + b"data: [DONE]\n\n"
GOOD_MESSAGES = b"".join(
    data({"type": kind, **more}, kind)
    for kind, more in (
        ("message_start", {"message": {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [],
                                       "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}}}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "from the second"}}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}),
        ("message_stop", {}),
    )
)  # fmt: skip
GOOD_RESPONSES = CREATED + data({"type": "response.output_item.added", "output_index": 0, "item": {}})
GOOD_GEMINI = data({"candidates": [{"content": {"parts": [{"text": "from the second"}]}}]})
BUSY = data({"error": {"message": "busy", "type": "server_error"}})
FAILED = data({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, "response.failed")
REFUSED = data({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, "error")


#: Of a conversation, by the name of the backend.
CONNECTIONS: dict[str, Peer] = {}


def two(api: str, rule: dict[str, Any] | None = None, **failover: Any) -> list[m.Manifest]:
    """A Failover of two providers with this API; "": of Backends that say nothing of theirs."""
    apis = (api,) if api else ()
    group = m.failover("any", endpoint("a", 0), endpoint("b", 1), attemptsHeader=True, **failover)
    return config(provider("a", *apis), provider("b", *apis), group, to="any", rule=rule)


def responds(talk: Conversation, body: bytes, *fields: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(fields or (EVENTS,))
    talk.origin >> head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def streams(talk: Conversation, *pieces: bytes, fields: bytes = EVENTS) -> None:
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + fields + b"Transfer-Encoding: chunked\r\n\r\n"
    for piece in pieces:
        talk.origin >> b"%x\r\n%b\r\n" % (len(piece), piece)


def ends(talk: Conversation) -> None:
    talk.origin >> b"0\r\n\r\n"


def wait_for(talk: Conversation, condition: Callable[[], bool]) -> None:
    """Timers of the loop are none that conversations in memory wait for."""
    for _ in range(500):
        if condition():
            return
        talk.run(asyncio.sleep(0.01))


def heard(talk: Conversation) -> tuple[bytes, bytes]:
    """The head that the client has, and what has come behind it."""
    head = talk.client.take(rb"(?s)HTTP/1\.1 \d+ .*?\r\n\r\n")[0]
    return head, talk.client.take(rb"(?s).*")[0]


def outcomes(talk: Conversation) -> list[tuple[str, str]]:
    return [(each["backend"], each["outcome"]) for each in talk.record().get("attempts_detail", ())]


# --- the next endpoint -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("first_byte", [{}, {"firstByte": "3s"}], ids=["", "firstByte"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    ("api", "path", "failure", "status", "good"),
    [
        ("AnthropicMessages", b"/v1/messages", OVERLOADED, 529, GOOD_MESSAGES),
        ("AnthropicMessages", b"/v1/messages", MESSAGE + PING + OVERLOADED, 529, GOOD_MESSAGES),
        ("OpenAIChat", b"/v1/chat/completions", BUSY + b"data: [DONE]\n\n", 500, GOOD_CHAT),
        ("OpenAIResponses", b"/v1/responses", FAILED, 500, GOOD_RESPONSES),
        ("OpenAIResponses", b"/v1/responses", CREATED + FAILED, 500, GOOD_RESPONSES),
        ("", GEMINI, data({"error": {"code": 503, "status": "UNAVAILABLE"}}), 503, GOOD_GEMINI),
        ("", b"/anything", OVERLOADED, 529, GOOD_CHAT),
        ("AnthropicMessages", b"/v1/messages", b"", 502, GOOD_MESSAGES),
        ("OpenAIChat", b"/v1/chat/completions", b": ping\n\ndata: [DONE]\n\n", 502, GOOD_CHAT),
    ],
)
def test_a_failure_in_the_first_event_goes_to_the_next_endpoint(
    converse: Start, api: str, path: bytes, failure: bytes, status: int, good: bytes, is_chunked: bool,
    first_byte: dict[str, Any],
):  # fmt: skip
    talk = converse(two(api, **first_byte))
    talk.client >> post(ASKS, path)
    asked(talk, "a", b"POST")
    if is_chunked:
        streams(talk, *([failure] if failure else []))
        ends(talk)
    else:
        responds(talk, failure)
    asked(talk, "b", b"POST")
    talk.client.hears_nothing()
    responds(talk, good)
    head, body = heard(talk)
    assert body == good
    assert f'"agents/a";outcome={status};'.encode() in head
    assert outcomes(talk) == [("agents/a", str(status)), ("agents/b", "200")]
    assert talk.series("failovers") == 1


@pytest.mark.parametrize("source", ["AnthropicMessages", "OpenAIChat", "OpenAIResponses"])
@pytest.mark.parametrize(
    ("target", "failure", "good"),
    [
        ("AnthropicMessages", MESSAGE + OVERLOADED, GOOD_MESSAGES),
        ("AnthropicMessages", b"", GOOD_MESSAGES),
        ("OpenAIChat", BUSY, GOOD_CHAT),
        ("OpenAIChat", b"", GOOD_CHAT),
    ],
)
def test_so_it_is_where_the_answer_is_translated(
    converse: Start, source: str, target: str, failure: bytes, good: bytes
):
    talk = converse(two(target))
    body = ASKS if source != "OpenAIResponses" else b'{"model": "m", "stream": true, "input": "hi"}'
    talk.client >> post(body, PATHS[source])
    asked(talk, "a", b"POST")
    responds(talk, failure)
    asked(talk, "b", b"POST")
    talk.client.hears_nothing()
    streams(talk, good)
    ends(talk)
    _, got = heard(talk)
    assert b"from the second" in got
    assert b"error" not in got.replace(b'"error":null', b"")
    assert [each for _, each in outcomes(talk)] == ["500" if b"busy" in failure else "529" if failure else "502", "200"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_coded_answer_is_read_and_goes_on_as_it_came(converse: Start, coding: str):
    code = gzip.compress if coding == "gzip" else zlib.compress
    fields = EVENTS + b"Content-Encoding: %b\r\n" % coding.encode()
    talk = converse(two("OpenAIChat"))
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    responds(talk, code(BUSY), fields)
    asked(talk, "b", b"POST")
    coded = code(GOOD_CHAT)
    streams(talk, coded[:20], coded[20:], fields=fields)
    ends(talk)
    _, body = heard(talk)
    assert coded[20:] in body


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (b"/v1/messages", {"type": "error", "error": {"type": "overloaded_error", "message": "a"}}, 529),
        (b"/v1/chat/completions", {"error": {"message": "a", "type": "server_error"}}, 500),
        (b"/v1/responses", {"object": "response", "status": "failed", "error": {"code": "server_error"}}, 500),
        (b"/v1beta/models/m:generateContent", {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, 429),
    ],
)
def test_a_whole_body_that_is_an_error_goes_to_the_next_endpoint(
    converse: Start, path: bytes, body: dict[str, Any], status: int
):
    talk = converse(two(""))
    talk.client >> post(CHAT, path)
    asked(talk, "a", b"POST")
    responds(talk, json.dumps(body).encode(), JSON)
    asked(talk, "b", b"POST")
    responds(talk, b'{"good": true}', JSON)
    assert heard(talk)[1] == b'{"good": true}'
    assert outcomes(talk)[0] == ("agents/a", str(status))


def test_a_backend_of_http2(converse: Start):
    objects = [
        m.backend("a", "a.example", 80, protocol="HTTP2"), m.backend("b", "b.example", 80, protocol="HTTP2"),
        m.failover("any", endpoint("a", 0), endpoint("b", 1)),
    ]  # fmt: skip
    talk = converse(config(*objects, to="any"))
    talk.client >> post(ASKS)
    for name, pieces in (("a", [BUSY]), ("b", [ROLE, chunk({"content": "from the second"})])):
        origin = Http2Origin(talk, talk.dialled(f"{name}.example", 80))
        (stream,) = origin.waits_for(1)
        talk.client.hears_nothing()
        origin.responds(stream, None, (b"content-type", b"text/event-stream"), is_last=False)
        for number, piece in enumerate(pieces):
            origin.server.h2.send_data(stream, piece, end_stream=number == len(pieces) - 1)
            origin.goes_on()
    talk.client.take(rb"(?s)HTTP/1.1 200 .*from the second.*0\r\n\r\n")


def test_the_retries_of_a_rule_go_by_it_too(converse: Start):
    retry = {"attempts": 1, "codes": [529], "backoff": "0s"}
    talk = converse(config(provider("a"), rule={"retry": retry}))
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    talk.origin << ASKS
    responds(talk, OVERLOADED)
    wait_for(talk, lambda: bool(talk.origin.got))
    asked(talk, "a", b"POST", is_new=False)
    responds(talk, GOOD_CHAT)
    assert heard(talk)[1] == GOOD_CHAT


class Upper(Filter):
    def __init__(self, mode: BodyMode) -> None:
        self.body_mode = mode  # type: ignore[misc]

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.replace(b"from the second", b"FROM THE SECOND")


@pytest.mark.parametrize("mode", [BodyMode.STREAM, BodyMode.BUFFER])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_filters_see_what_was_held(converse: Start, mode: BodyMode, is_chunked: bool):
    objects = two("OpenAIChat")
    objects[1] = m.policy(extensions=[scripted_filter("upper", "response-body")])
    talk = converse(objects, filters={"upper": Upper(mode)})
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    responds(talk, BUSY)
    asked(talk, "b", b"POST")
    if is_chunked:
        streams(talk, GOOD_CHAT[:200], GOOD_CHAT[200:])
        ends(talk)
    else:
        responds(talk, GOOD_CHAT)
    _, body = heard(talk)
    assert b"FROM THE SECOND" in body
    assert b"[DONE]" in body
    assert b"busy" not in body


# --- the client's own ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("failover", "said"),
    [
        ({}, REFUSED),
        ({"codes": [500]}, OVERLOADED),
        ({}, MESSAGE + TEXT + OVERLOADED),
        ({"maxReplayBytes": 1}, OVERLOADED),
    ],
    ids=["a fault of the request", "none of the codes", "behind text", "a body that is not kept"],
)
def test_what_is_for_the_client_goes_on_as_it_came(converse: Start, failover: dict[str, Any], said: bytes):
    talk = converse(two("AnthropicMessages", **failover))
    talk.client >> post(ASKS, b"/v1/messages")
    asked(talk, "a", b"POST")
    responds(talk, said)
    assert heard(talk)[1] == said
    talk.no_dial()


def test_where_nobody_is_left_the_client_has_the_last_answer(converse: Start):
    talk = converse(two("AnthropicMessages"))
    talk.client >> post(ASKS, b"/v1/messages")
    for name in ("a", "b"):
        asked(talk, name, b"POST")
        responds(talk, OVERLOADED)
    head, body = heard(talk)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == OVERLOADED
    assert [each for _, each in outcomes(talk)] == ["529", "529"]


def test_from_its_first_event_on_a_stream_flows(converse: Start):
    talk = converse(two("OpenAIChat"))
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    text = chunk({"content": "a"})
    streams(talk, b": comment\n\n", ROLE, text[:30])
    talk.client.hears_nothing()
    talk.origin >> b"%x\r\n%b\r\n" % (len(text) - 30, text[30:])
    _, body = heard(talk)
    assert ROLE in body
    assert text in body.replace(b"\r\n", b"").replace(b"%x" % len(text), b"") or text[30:] in body
    talk.origin >> b"2\r\nab\r\n"
    talk.client << b"2\r\nab\r\n"
    ends(talk)
    talk.client << b"0\r\n\r\n"
    assert "attempts" not in talk.record()


def test_a_stream_that_opens_and_says_nothing_is_not_held_for_long(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "HELD_S", 0.05)
    talk = converse(two("AnthropicMessages"))
    talk.client >> post(ASKS, b"/v1/messages")
    asked(talk, "a", b"POST")
    streams(talk, MESSAGE)
    talk.client.hears_nothing()
    wait_for(talk, lambda: bool(talk.client.got))
    assert MESSAGE in heard(talk)[1]
    streams_on = b"%x\r\n%b\r\n" % (len(PING), PING)
    talk.origin >> streams_on
    talk.client << streams_on


def test_what_breaks_off_before_its_first_event_goes_to_the_next_endpoint(converse: Start):
    talk = converse(two("OpenAIChat"))
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    streams(talk, ROLE)
    talk.origin.leaves()
    asked(talk, "b", b"POST")
    responds(talk, GOOD_CHAT)
    assert heard(talk)[1] == GOOD_CHAT
    assert outcomes(talk)[0] == ("agents/a", "upstream_incomplete")


def test_a_client_that_leaves_while_the_answer_is_held_ends_it(converse: Start):
    talk = converse(two("OpenAIChat"))
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    streams(talk, ROLE)
    talk.client.resets()
    assert talk.origin.is_gone
    assert talk.record()["reason"] == "client_gone"


def answers_with(talk: Conversation, name: str, body: bytes, *, is_new: bool) -> None:
    """The one connection of this backend gets the next request, and answers it."""
    if is_new:
        talk.dialled(f"{name}.example", 80)
        CONNECTIONS[name] = talk.origin
    talk.origin = CONNECTIONS[name]
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n" + re.escape(ASKS))
    responds(talk, body)


def test_a_provider_that_fails_like_this_is_put_aside(converse: Start):
    talk = converse(two("OpenAIChat"))
    for number in range(4):
        talk.client >> post(ASKS)
        if number < 3:
            answers_with(talk, "a", BUSY, is_new=not number)
        answers_with(talk, "b", GOOD_CHAT, is_new=not number)
        assert heard(talk)[1] == GOOD_CHAT


@pytest.mark.parametrize(
    "objects",
    [
        config(provider("a", "OpenAIChat")),
        config(provider("a"), rule={"retry": {"attempts": 1}}),
    ],
    ids=["no failover", "no codes"],
)
def test_without_codes_nothing_is_held(converse: Start, objects: list[m.Manifest]):
    talk = converse(objects)
    talk.client >> post(ASKS)
    asked(talk, "a", b"POST")
    streams(talk, b": comment\n\n")
    talk.client.take(rb"(?s)HTTP/1.1 200 .*: comment\n\n")


def test_what_is_no_post_and_no_stream_is_not_held(converse: Start):
    talk = converse(two(""))
    talk.client >> b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"
    asked(talk, "a")
    streams(talk)
    talk.client.take(rb"(?s)HTTP/1.1 200 .*?\r\n\r\n")
