"""Sessions of OpenAI's realtime API whose text passes filters, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.protocols.http2.head_fields import websocket_accept
from tests.gateway.backends.test_failover import asked
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_message_relay import KEY, SWITCHING, TOKENS, Side, config, filters, upgrade
from tests.support.conversation import Conversation

MODEL = "gpt-realtime"
PATH = f"/v1/realtime?model={MODEL}".encode()
TEXT = {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"]}}
CREATE = {"type": "response.create"}
CREATED = {"type": "response.created", "event_id": "s1", "response": {"id": "r", "status": "in_progress"}}
USAGE = {"input_tokens": 20, "output_tokens": 10, "total_tokens": 30, "input_token_details": {"cached_tokens": 0}}
DONE = {"type": "response.done", "event_id": "s9", "response": {
    "object": "realtime.response", "id": "r", "status": "completed", "output": [], "usage": USAGE,
}}  # fmt: skip
TOOLS = filters(ToolPolicy={"tools": {"allow": [{"names": ["look"]}]}})


def item(text: str, role: str = "user") -> dict[str, Any]:
    part = {"type": "input_text", "text": text}
    return {"type": "conversation.item.create", "item": {"type": "message", "role": role, "content": [part]}}


def delta(text: str) -> dict[str, Any]:
    place = {"event_id": "s2", "response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    return {"type": "response.output_text.delta", "delta": text, **place}


def opened(talk: Conversation, path: bytes = PATH) -> tuple[Side, Side]:
    talk.client >> upgrade(path)
    assert asked(talk, "a", b"GET").startswith(b"GET " + path + b" ")
    talk.origin >> SWITCHING % (websocket_accept(KEY), b"")
    talk.client.take(rb"(?s)HTTP/1.1 101 .*?\r\n\r\n")
    return Side(talk.client, is_client=True), Server(talk.origin, is_client=False)


class Server(Side):
    """Takes the gateway's own ids out of events: `event_id` is the latest one."""

    event_id = ""

    def hears(self) -> dict[str, Any]:
        event = super().hears()
        if event.get("event_id", "").startswith("egress_"):
            self.event_id = event.pop("event_id")
        return event


def says_text(client: Side, server: Side) -> None:
    client.says(TEXT)
    assert server.hears() == TEXT


def is_refused(client: Side, server: Side, words: str) -> None:
    told = client.hears()
    assert (told["type"], told["status"]) == ("error", 400)
    assert words in told["error"]["message"]
    assert client.is_closed_with(1008)
    server.is_closed_with(1001)


def test_a_session_of_text_passes(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    server.says({"type": "session.created", "event_id": "s", "session": {
        "id": "x", "model": MODEL, "instructions": "secret", "audio": {"input": {}},
    }})  # fmt: skip
    assert client.hears()["session"] == {"id": "x", "model": MODEL}
    says_text(client, server)
    client.says(item("hi"))
    assert server.hears() == item("hi")
    server.says({"type": "conversation.item.added", "item": {"id": "i", "role": "user", "content": [{"text": "hi"}]}})
    assert client.hears()["item"] == {"id": "i", "role": "user", "content": []}
    client.says(CREATE)
    assert server.hears() == {**CREATE, "response": {}}
    part = {"type": "response.content_part.added", "output_index": 0, "part": {"type": "text", "text": ""}}
    said = {"type": "conversation.item.done", "item": {"id": "a", "role": "assistant", "content": [{"text": "x"}]}}
    limits = {"type": "rate_limits.updated", "event_id": "s3", "rate_limits": [{"name": "tokens", "remaining": 3}]}
    server.says(CREATED, limits, part, delta("hello"), said, DONE)
    heard = [client.hears() for _ in range(6)]
    assert [each["type"] for each in heard] == [
        "response.created", "rate_limits.updated", "response.content_part.added", "response.output_text.delta",
        "conversation.item.done", "response.done",
    ]  # fmt: skip
    assert heard[1] == limits
    assert heard[2]["part"]["type"] == "text"
    assert heard[4]["item"]["content"] == []
    assert heard[5] == DONE
    assert [(each["method"], each["path"], each["status"]) for each in talk.records] == [
        ("POST", "/v1/realtime", 200)
    ] * 3


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "not known here"),
        ({"type": "conversation.item.retrieve", "item_id": "i"}, "not known here"),
        ({"type": "response.create"}, "output_modalities"),
        ({"type": "conversation.item.delete", "item_id": "i", "event_id": "egress_1"}, "gateway's own"),
        ({"type": "session.update", "session": {"type": "realtime", "model": "other"}}, "keeps the model"),
        ({"type": "session.update", "session": {"type": "transcription"}}, "type of the session"),
        ({"type": "session.update", "session": {"type": "realtime", "output_modalities": ["audio"]}}, "audio"),
        ({"type": "session.update", "session": {"type": "realtime", "audio": {}}}, "'audio'"),
        ({"type": "session.update", "session": {"type": "realtime", "prompt": {"id": "p"}}}, "'prompt'"),
        ({"type": "session.update", "session": {"type": "realtime", "tools": [{"type": "mcp"}]}}, "functions"),
        ({"type": "session.update", "session": {"type": "realtime", "Tools": []}}, "which some read as `tools`"),
        ({"type": "session.update", "session": {"type": "realtime"}, "tools": []}, "'tools'"),
        ({"type": "session.update"}, "no session"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "A"}]},
            },
            "no text",
        ),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": []}]},
            },
            "no text",
        ),
        ({"type": "conversation.item.create", "item": {"type": "mcp_call", "name": "x"}}, "not known here"),
        (
            {"type": "conversation.item.create", "item": {"type": "message", "role": {"a": "b"}, "content": []}},
            "no text",
        ),
        ({"type": "session.update", "session": {"type": "realtime", "instructions": "x" * 200_000}}, "more than"),
        (
            {"type": "response.create", "response": {"output_modalities": ["text"], "input": [{"type": "x"}]}},
            "not known here",
        ),
        (
            {"type": "response.create", "response": {"output_modalities": ["text"], "model": "other"}},
            "'model'",
        ),
    ],
    ids=str,
)
def test_what_is_not_understood_ends_the_session(converse: Start, event: dict[str, Any], words: str):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    client.says(event)
    is_refused(client, server, words)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_audio.delta", "delta": "AAAA"},
        {"type": "response.output_audio_transcript.delta", "delta": "hi"},
        {"type": "response.content_part.added", "part": {"type": "audio", "transcript": ""}},
        {"type": "response.unknown"},
        {"type": "response.created"},
        {"type": "response.done", "response": {"status": "new"}},
        {"type": "response.done", "response": {"status": {}}},
    ],
    ids=str,
)
def test_audio_of_the_server_and_what_is_not_known_end_the_session(converse: Start, event: dict[str, Any]):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    says_text(client, server)
    client.says(CREATE)
    server.hears()
    server.says(CREATED, event)
    assert client.hears()["type"] == "response.created"
    assert client.hears()["type"] == "error"
    client.is_closed_with(1008)


def test_a_response_that_nobody_has_asked_for_ends_the_session(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    server.says(CREATED)
    client.is_closed_with(1014)


def test_ids_and_codes_of_events_beside_a_response_are_words(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    said = {"text": ["a secret"]}
    server.says(
        {"type": "conversation.item.added", "event_id": said, "previous_item_id": None,
         "item": {"id": "i", "role": "ann@corp.example", "status": said}},
        {"type": "session.updated", "session": {"output_modalities": ["text", "a secret"], "expires_at": 7}},
        {"type": "rate_limits.updated", "rate_limits": [{"name": "tokens", "a secret": 1, "limit": 2}, said]},
        {"type": "error", "error": {"type": "invalid_request_error", "code": "a secret", "param": "session.tools[0]"}},
    )  # fmt: skip
    heard = [client.hears() for _ in range(4)]
    assert heard[0] == {"type": "conversation.item.added", "previous_item_id": None, "item": {"id": "i", "content": []}}
    assert heard[1]["session"] == {"expires_at": 7}
    assert heard[2]["rate_limits"] == [{"name": "tokens", "limit": 2}, {}]
    assert heard[3]["error"].keys() == {"type", "param", "message"}


def test_the_model_of_the_session_is_judged_at_each_event(converse: Start):
    talk = converse(config(*filters(ModelPolicy={"allow": ["gpt-5"]})))
    client, server = opened(talk)
    for event in (TEXT, item("hi")):
        client.says(event)
        told = client.hears()
        assert (told["status"], told["error"]["code"]) == (403, "model_denied")
    server.hears_nothing()


def test_no_alias_holds_and_a_bound_is_set(converse: Start):
    policy = {"aliases": [{"name": MODEL, "model": "other"}]}
    talk = converse(config(*filters(ModelPolicy=policy)))
    client, server = opened(talk)
    client.says(TEXT)
    assert client.hears()["status"] == 400
    server.hears_nothing()
    talk = converse(config(*filters(ModelPolicy={"maxOutputTokens": 100})))
    client, server = opened(talk)
    client.says(TEXT, item("hi"), CREATE)
    assert server.hears()["session"]["max_output_tokens"] == 100
    assert server.hears() == item("hi")
    assert server.hears()["response"] == {"max_output_tokens": 100}


def test_a_limit_that_is_no_number_is_lowered(converse: Start):
    talk = converse(config(*filters(ModelPolicy={"maxOutputTokens": 100})))
    client, server = opened(talk)
    client.says({"type": "session.update", "session": {"type": "realtime", "max_output_tokens": "inf"}})
    assert server.hears()["session"]["max_output_tokens"] == 100


def test_a_session_whose_update_was_refused_does_not_count_as_one_of_text(converse: Start):
    talk = converse(config(*filters(PromptGuard={"deny": [{"name": "n", "pattern": "secret"}]})))
    client, server = opened(talk)
    session = {**TEXT["session"], "instructions": "a secret"}  # type: ignore[dict-item]
    client.says({"type": "session.update", "session": session})
    assert client.hears()["error"]["code"] == "content_denied"
    client.says(CREATE)
    is_refused(client, server, "output_modalities")


def test_what_the_model_says_is_looked_at(converse: Start):
    rules = {"deny": [{"name": "n", "pattern": "secret", "maxLength": 10}]}
    talk = converse(config(*filters(ResponsePolicy=rules)))
    client, server = opened(talk)
    says_text(client, server)
    client.says(CREATE)
    server.hears()
    server.says(CREATED, delta("a sec"), delta("ret"), DONE)
    heard = [client.hears() for _ in range(2)]
    while heard[-1]["type"] != "error":
        heard.append(client.hears())
    assert heard[-1]["error"]["code"] == "content_denied"
    assert "ret" not in "".join(each.get("delta", "") for each in heard).replace("a sec", "")
    client.is_closed_with(1008)


def test_tools_that_are_not_allowed_are_taken_out_and_calls_of_them_refused(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("look", "shell")]
    client.says({"type": "session.update", "session": {**TEXT["session"], "tools": tools}})  # type: ignore[dict-item]
    assert [each["name"] for each in server.hears()["session"]["tools"]] == ["look"]
    client.says({**CREATE, "response": {"tools": tools}})
    assert [each["name"] for each in server.hears()["response"]["tools"]] == ["look"]
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "shell", "arguments": "{}"}
    server.says(CREATED, {"type": "response.output_item.done", "output_index": 0, "item": call})
    assert client.hears()["type"] == "response.created"
    assert client.hears()["error"]["code"] == "filter_rejected"
    client.is_closed_with(1008)


def test_texts_of_items_and_instructions_are_looked_at(converse: Start):
    pii = filters(PIIDetector={"entities": [{"name": "EMAIL", "action": "Placeholder"}], "applyTo": "Requests"})
    talk = converse(config(*pii))
    client, server = opened(talk)
    session = {**TEXT["session"], "instructions": "you write to ann@corp.example"}  # type: ignore[dict-item]
    client.says({"type": "session.update", "session": session}, item("tell bob@corp.example"), CREATE)
    assert server.hears()["session"]["instructions"] == "you write to <EMAIL_1>"
    assert server.hears()["item"]["content"][0]["text"] == "tell <EMAIL_2>"
    server.hears()
    server.says(CREATED, delta("<EMA"), delta("IL_1>, <EMAIL_2>"), DONE)
    heard = [client.hears()]
    while heard[-1]["type"] != "response.done":
        heard.append(client.hears())
    assert "".join(each.get("delta", "") for each in heard) == "ann@corp.example, bob@corp.example"


def test_tokens_are_asked_for_at_each_response_and_counted_from_its_end(converse: Start):
    talk = converse(config(*filters(QoSController={"limits": TOKENS, "outputTokens": 10})))
    client, server = opened(talk)
    says_text(client, server)
    for _ in range(2):
        client.says(item("hi"), CREATE)
        server.hears()
        server.hears()
        server.says(CREATED, DONE)
        client.hears()
        assert client.hears() == DONE
    client.says(CREATE)  # 60 of 50 tokens are used
    told = client.hears()
    assert (told["status"], told["error"]["code"]) == (429, "token_rate")
    server.hears_nothing()


def test_an_error_of_another_event_does_not_end_the_response(converse: Start):
    talk = converse(config(*TOOLS))
    client, server = opened(talk)
    says_text(client, server)
    client.says(CREATE)
    server.hears()
    error = {"type": "invalid_request_error", "code": "x", "message": "no", "param": None}
    server.says({"type": "error", "event_id": "s", "error": {**error, "event_id": "e0"}}, CREATED, DONE)
    told = client.hears()
    assert (told["error"]["code"], told["error"]["event_id"]) == ("x", "e0")
    assert "see `code`" in told["error"]["message"]
    assert [client.hears()["type"] for _ in range(2)] == ["response.created", "response.done"]
    client.says({"type": "conversation.item.delete", "item_id": "none", "event_id": "e1"})
    client.says({**CREATE, "event_id": "e1"})
    assert [server.hears()["type"] for _ in range(2)] == ["conversation.item.delete", "response.create"]
    server.says({"type": "error", "event_id": "s", "error": {**error, "event_id": "e1"}})  # of the first one
    assert client.hears()["error"]["event_id"] == "e1"
    server.says({"type": "error", "event_id": "s", "error": {**error, "event_id": server.event_id}})
    told = client.hears()
    assert (told["error"]["event_id"], told["error"]["message"]) == ("e1", "no")
    talk.until(lambda: len(talk.records) == 3)
    assert talk.records[-1]["status"] == 400


@pytest.mark.parametrize(
    "lenient",
    [
        filters(ModelPolicy={"unreadable": "Allow"}),
        filters(ToolPolicy={"tools": {"allow": [{"names": ["look"]}]}, "unreadable": "Allow"}),
        filters(PIIDetector={"entities": [{"name": "EMAIL", "action": "Block"}], "unreadable": "Allow"}),
        filters(TokenMeter={}),
        filters(QoSController={"limits": TOKENS, "mode": "Report"}),
    ],
    ids=str,
)
def test_audio_passes_unseen_where_no_filter_needs_to_see_it(converse: Start, lenient: list[Any]):
    talk = converse(config(*lenient))
    client, server = opened(talk)
    client.says({"type": "input_audio_buffer.append", "audio": "AAAA"})
    assert server.hears()["audio"] == "AAAA"
    talk = converse(config(*lenient, *[{**each, "name": "strict"} for each in TOOLS]))
    client, server = opened(talk)
    client.says({"type": "input_audio_buffer.append", "audio": "AAAA"})
    is_refused(client, server, "not known here")


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/realtime", b"/v1/realtime?model=", b"/v1/realtime?model=a&model=b", b"/v1/realtime?call_id=x",
        b"/v1/realtime?intent=transcription", b"/v1/realtime?model=a&intent=x", b"/v1//realtime?model=a",
        b"/v1/realtime/?model=a", b"/v1/realtime/translations?model=a", b"/v1/realtime?model=%ff",
        b"/v1/realtime?model=a+b", b"/v1/%72ealtime?model=a",
    ],
)  # fmt: skip
def test_other_sessions_stay_closed(converse: Start, path: bytes):
    talk = converse(config(*filters(ModelPolicy={"allow": ["*"]})))
    talk.client >> upgrade(path)
    assert talk.client.answer()[0] == 403
    talk.no_dial()
