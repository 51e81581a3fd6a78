"""Endings of answers, refusals, and what providers send that no other API has a form for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.apis import DEFAULT_PATHS
from egressproxy.ai.translation.event_stream import MAX_EVENT_BYTES
from egressproxy.ai.translation.translator import ResponseTranslator
from egressproxy.model.work import at_once
from tests.ai.translation.examples import (
    ANSWERS,
    ANTHROPIC,
    BEDROCK,
    CHAT,
    GEMINI,
    RESPONSES,
    STREAMS,
    TO_PROVIDERS,
    TO_SSE,
    chat_chunk,
    converse,
    events,
    gemini_chunk,
    junk,
    named,
    places,
    request,
    streamed,
    unnamed,
    whole,
)
from tests.support.properties import examples

IN_EACH_PAIR = pytest.mark.parametrize(("source", "target"), TO_PROVIDERS)


def answer(api: Api, ending: dict[str, Any], text: str | None = "so") -> dict[str, Any]:
    """An answer of one text with this ending."""
    made: dict[str, Any] = json.loads(json.dumps(ANSWERS[api]))
    if api is CHAT:
        message = {"role": "assistant", "content": text, **ending.pop("message", {})}
        made["choices"][0] = {"index": 0, "message": message, **ending}
    elif api is ANTHROPIC:
        made |= {"content": [{"type": "text", "text": text}] if text else [], **ending}
    elif api is GEMINI:
        made["candidates"] = [{"content": {"parts": [{"text": text}] if text else []}, **ending}]
    elif api is BEDROCK:
        made |= {"output": {"message": {"content": [{"text": text}] if text else []}}, **ending}
    else:
        parts = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        parts += ending.pop("parts", [])
        made |= {"output": [{"type": "message", "role": "assistant", "content": parts}], **ending}
    return made


def ending_of(api: Api, told: dict[str, Any]) -> Any:
    """Why an answer ends."""
    if api is CHAT:
        return told["choices"][0]["finish_reason"]
    if api is ANTHROPIC:
        return told["stop_reason"]
    return told["status"] if told["status"] == "completed" else told["incomplete_details"]["reason"]


BEGUN: tuple[str, dict[str, Any]] = ("messageStart", {"role": "assistant"})
SAYING: tuple[str, dict[str, Any]] = ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "so"}})
ENDINGS: dict[Api, dict[str, dict[str, Any]]] = {
    CHAT: {
        "end": {"finish_reason": "stop"},
        "length": {"finish_reason": "length"},
        "filtered": {"finish_reason": "content_filter"},
    },
    RESPONSES: {
        "end": {"status": "completed"},
        "length": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        "filtered": {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
    },
    ANTHROPIC: {
        "end": {"stop_reason": "end_turn"},
        "length": {"stop_reason": "max_tokens"},
        "filtered": {"stop_reason": "refusal"},
    },
    GEMINI: {
        "end": {"finishReason": "STOP"},
        "length": {"finishReason": "MAX_TOKENS"},
        "filtered": {"finishReason": "SAFETY"},
    },
    BEDROCK: {
        "end": {"stopReason": "end_turn"},
        "length": {"stopReason": "max_tokens"},
        "filtered": {"stopReason": "guardrail_intervened"},
    },
}
WORDS = {
    CHAT: {"end": "stop", "length": "length", "filtered": "content_filter"},
    RESPONSES: {"end": "completed", "length": "max_output_tokens", "filtered": "content_filter"},
    ANTHROPIC: {"end": "end_turn", "length": "max_tokens", "filtered": "refusal"},
}


@IN_EACH_PAIR
@pytest.mark.parametrize("ending", ["end", "length", "filtered"])
def test_an_answer_ends_for_the_same_reason(source: Api, target: Api, ending: str):
    status, told = whole(source, target, answer(target, dict(ENDINGS[target][ending])))
    assert status == 200
    assert ending_of(source, told) == WORDS[source][ending]


@IN_EACH_PAIR
@pytest.mark.parametrize("ending", ["length", "filtered"])
def test_a_stream_ends_for_the_same_reason(source: Api, target: Api, ending: str):
    more = ENDINGS[target][ending]
    if target is CHAT:
        stream = unnamed(chat_chunk({"content": "so"}), chat_chunk({}, more["finish_reason"])) + b"data: [DONE]\n\n"
    elif target is ANTHROPIC:
        stream = STREAMS[target].replace(
            b'"stop_reason": "tool_use"', b'"stop_reason": "%s"' % more["stop_reason"].encode()
        )
    elif target is GEMINI:
        stream = unnamed(gemini_chunk({"text": "so"}), gemini_chunk(**more))
    elif target is BEDROCK:
        stream = converse(BEGUN, SAYING, ("messageStop", more), ("metadata", {}))
    else:
        blocks = STREAMS[target].split(b"\n\n")
        last = {"type": "response.incomplete", "response": {**ANSWERS[RESPONSES], **more}}
        stream = b"\n\n".join(blocks[:-2]) + b"\n\n" + named(last)
    told = events(streamed(source, target, [stream]))
    if source is CHAT:
        assert told[-1]["choices"][0]["finish_reason"] == WORDS[CHAT][ending]
    elif source is ANTHROPIC:
        assert told[-2]["delta"]["stop_reason"] == WORDS[ANTHROPIC][ending]
    else:
        assert told[-1]["type"] == "response.incomplete"
        assert ending_of(RESPONSES, told[-1]["response"]) == WORDS[RESPONSES][ending]


def test_a_stop_sequence_and_a_full_context_have_words_in_chat():
    for reason, word in (("stop_sequence", "stop"), ("model_context_window_exceeded", "length")):
        told = whole(CHAT, ANTHROPIC, answer(ANTHROPIC, {"stop_reason": reason, "stop_sequence": "x"}))[1]
        assert ending_of(CHAT, told) == word


def test_a_call_that_was_forced_ends_as_every_call():
    forced = json.loads(json.dumps(ANSWERS[CHAT]))
    forced["choices"][0]["finish_reason"] = "stop"
    assert whole(ANTHROPIC, CHAT, forced)[1]["stop_reason"] == "tool_use"
    stream = STREAMS[CHAT].replace(b'"finish_reason": "tool_calls"', b'"finish_reason": "stop"')
    assert events(streamed(ANTHROPIC, CHAT, [stream]))[-2]["delta"]["stop_reason"] == "tool_use"


REFUSALS = {
    CHAT: answer(CHAT, {"finish_reason": "stop", "message": {"refusal": "no, sorry"}}, None),
    RESPONSES: answer(RESPONSES, {"status": "completed", "parts": [{"type": "refusal", "refusal": "no, sorry"}]}, None),
    ANTHROPIC: answer(
        ANTHROPIC,
        {
            "stop_reason": "refusal",
            "stop_details": {"type": "refusal", "category": None, "explanation": "no, sorry"},
        },
        None,
    ),
    GEMINI: {"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": "no, sorry"}},
}


#: Bedrock has no place for one.
WITH_REFUSALS = pytest.mark.parametrize(("source", "target"), TO_SSE)


@WITH_REFUSALS
def test_a_refusal_is_told_in_the_place_that_each_api_has(source: Api, target: Api):
    told = whole(source, target, REFUSALS[target])[1]
    if source is CHAT:
        assert told["choices"][0]["message"]["refusal"] == "no, sorry"
        assert told["choices"][0]["message"]["content"] is None
    elif source is RESPONSES:
        assert told["output"][0]["content"] == [{"type": "refusal", "refusal": "no, sorry"}]
    else:
        assert told["stop_reason"] == "refusal"
        assert told["stop_details"]["explanation"] == "no, sorry"


REFUSING_STREAMS = {
    CHAT: unnamed(chat_chunk({"refusal": "no, "}), chat_chunk({"refusal": "sorry"}), chat_chunk({}, "stop"))
    + b"data: [DONE]\n\n",
    RESPONSES: named(
        {"type": "response.created", "response": {**ANSWERS[RESPONSES], "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}},
        {"type": "response.content_part.added", "output_index": 0, "part": {"type": "refusal", "refusal": ""}},
        {"type": "response.refusal.delta", "output_index": 0, "delta": "no, sorry"},
        {"type": "response.content_part.done", "output_index": 0, "part": {"type": "refusal", "refusal": "no, sorry"}},
        {"type": "response.completed", "response": REFUSALS[RESPONSES]},
    ),
    ANTHROPIC: named(
        {"type": "message_start", "message": {**REFUSALS[ANTHROPIC], "stop_reason": None}},
        {"type": "message_delta", "delta": REFUSALS[ANTHROPIC], "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ),
    GEMINI: unnamed(REFUSALS[GEMINI]),
}


@WITH_REFUSALS
def test_a_refusal_in_a_stream_is_told_in_the_place_that_each_api_has(source: Api, target: Api):
    told = events(streamed(source, target, [REFUSING_STREAMS[target]]))
    if source is CHAT:
        deltas = [chunk["choices"][0]["delta"] for chunk in told]
        assert "".join(delta.get("refusal", "") for delta in deltas) == "no, sorry"
    elif source is RESPONSES:
        last = told[-1]["response"]
        assert last["output"][0]["content"] == [{"type": "refusal", "refusal": "no, sorry"}]
        assert "".join(event["delta"] for event in told if event["type"] == "response.refusal.delta") == "no, sorry"
    else:
        assert told[-2]["delta"]["stop_details"]["explanation"] == "no, sorry"


def test_a_stream_of_azure_begins_with_a_chunk_about_its_filters():
    first = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []}
    told = events(streamed(ANTHROPIC, CHAT, [unnamed(first) + STREAMS[CHAT]]))
    assert told[0]["message"]["id"] == "msg_1"


def test_calls_that_come_whole_with_one_index_are_several():
    calls = [{"index": 0, "id": i, "function": {"name": "f", "arguments": "{}"}} for i in ("a", "b")]
    chunks = [chat_chunk({"tool_calls": [call]}, "") for call in calls]
    stream = unnamed(*chunks, chat_chunk({}, "tool_calls")) + b"data: [DONE]\n\n"
    output = events(streamed(RESPONSES, CHAT, [stream]))[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"]) for item in output] == [("a", "{}"), ("b", "{}")]


def test_a_call_that_comes_whole_is_told_once():
    item = {**ANSWERS[RESPONSES]["output"][2]}
    for begun in ("", item["arguments"]):
        stream = named(
            {"type": "response.created", "response": ANSWERS[RESPONSES]},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": begun}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": ANSWERS[RESPONSES]},
        )
        told = events(streamed(ANTHROPIC, RESPONSES, [stream]))
        deltas = [event["delta"]["partial_json"] for event in told if event["type"] == "content_block_delta"]
        assert deltas == [item["arguments"]]


def test_a_response_repeats_what_was_asked_for():
    asked = request(RESPONSES, CHAT, temperature=0.5, metadata={"a": "b"}, instructions="be brief")
    _, body = at_once(ResponseTranslator(asked).whole(200, json.dumps(ANSWERS[CHAT]).encode()))
    told = json.loads(body)
    assert (told["temperature"], told["metadata"], told["instructions"]) == (0.5, {"a": "b"}, "be brief")
    assert (told["top_p"], told["tools"], told["store"]) == (1.0, [], False)


def test_the_time_of_an_answer_is_the_providers_where_it_tells_one():
    assert whole(CHAT, RESPONSES, ANSWERS[RESPONSES])[1]["created"] == 1700000000
    assert whole(RESPONSES, CHAT, ANSWERS[CHAT])[1]["created_at"] == 1700000000
    assert whole(CHAT, ANTHROPIC, ANSWERS[ANTHROPIC])[1]["created"] > 1700000000


def test_half_a_surrogate_pair_at_the_edge_of_a_delta_stays_what_it_is():
    stream = unnamed(chat_chunk({"content": "\ud83d"}), chat_chunk({"content": "\ude00"}), chat_chunk({}, "stop"))
    told = events(streamed(ANTHROPIC, CHAT, [stream + b"data: [DONE]\n\n"]))
    texts = [event["delta"]["text"] for event in told if event["type"] == "content_block_delta"]
    assert texts == ["\ud83d", "\ude00"]


def test_the_code_of_an_error_is_told_between_the_apis_of_openai():
    error = {"error": {"message": "too long", "type": "x", "param": None, "code": "context_length_exceeded"}}
    assert whole(CHAT, RESPONSES, error, 400)[1]["error"]["code"] == "context_length_exceeded"
    assert whole(CHAT, ANTHROPIC, error, 400)[1]["error"]["code"] is None


def test_a_call_without_arguments_has_an_empty_object():
    call = {"type": "tool_use", "id": "c", "name": "now", "input": {}}
    stream = named(
        {"type": "message_start", "message": ANSWERS[ANTHROPIC]},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    )
    told = events(streamed(RESPONSES, ANTHROPIC, [stream]))
    assert told[-1]["response"]["output"][0]["arguments"] == "{}"
    chunks = [chunk["choices"][0]["delta"] for chunk in events(streamed(CHAT, ANTHROPIC, [stream]))]
    assert "".join(d["tool_calls"][0]["function"]["arguments"] for d in chunks if "tool_calls" in d) == "{}"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
NO_FORM: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"choices": []}, "0 choices"),
    (CHAT, answer(CHAT, {"finish_reason": "stop", "message": {"audio": {"id": "a"}}}), "audio"),
    (CHAT, answer(CHAT, {"finish_reason": "stop", "message": {"images": [{"type": "image_url"}]}}), "images"),
    (CHAT, answer(CHAT, {"finish_reason": "stop", "message": {"content": [{"type": "image_url"}]}}), "image_url"),
    (CHAT, answer(CHAT, {"finish_reason": "stop", "message": {"tool_calls": [{"type": "custom"}]}}), "no function"),
    (CHAT, answer(CHAT, {"finish_reason": "error"}), "finish_reason"),
    (CHAT, answer(CHAT, {"finish_reason": None, "message": {"content": ""}}), "finish_reason"),
    (RESPONSES, {**ANSWERS[RESPONSES], "output": [{"type": "web_search_call"}]}, "web_search_call"),
    (RESPONSES, {**ANSWERS[RESPONSES], "status": "failed", "error": {"message": "it broke"}}, "it broke"),
    (RESPONSES, {**ANSWERS[RESPONSES], "status": "queued"}, "queued"),
    (RESPONSES, answer(RESPONSES, {"parts": [{"type": "output_audio"}]}), "output_audio"),
    (ANTHROPIC, answer(ANTHROPIC, {"stop_reason": "pause_turn"}), "pause_turn"),
    (ANTHROPIC, answer(ANTHROPIC, {"stop_reason": None}), "stop_reason"),
    (ANTHROPIC, {**ANSWERS[ANTHROPIC], "content": [{"type": "server_tool_use"}]}, "server_tool_use"),
    (ANTHROPIC, {**ANSWERS[ANTHROPIC], "usage": {"input_tokens": "many"}}, "input_tokens"),
    (BEDROCK, {"output": {}}, "stopReason"),
    (BEDROCK, answer(BEDROCK, {"stopReason": "malformed_tool_use"}), "broken off"),
    (BEDROCK, {"output": {"message": {"content": [{"video": {}}]}}}, "video"),
    (BEDROCK, {"output": {"message": {"content": [{"toolUse": {"type": "server_tool_use"}}]}}}, "type"),
    (BEDROCK, {**ANSWERS[BEDROCK], "usage": {"inputTokens": "many"}}, "inputTokens"),
    (GEMINI, {}, "no candidate"),
    (GEMINI, {"candidates": [{}, {}]}, "2 candidates"),
    (GEMINI, answer(GEMINI, {}), "finishReason"),
    (GEMINI, answer(GEMINI, {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "f("}), "broken off"),
    (GEMINI, {"candidates": [{"content": {"parts": [{"inlineData": {}}]}}]}, "inlineData"),
    (GEMINI, {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "willContinue": True}}]}}]},
     "willContinue"),
    (GEMINI, {**ANSWERS[GEMINI], "usageMetadata": {"promptTokenCount": "many"}}, "promptTokenCount"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "body", "why"), NO_FORM)
def test_an_answer_that_has_no_form_in_the_clients_api_is_a_bad_gateway(target: Api, body: dict[str, Any], why: str):
    for source in DEFAULT_PATHS:
        if source is not target:
            status, told = whole(source, target, body)
            assert status == 502
            assert why in told["error"]["message"]


def test_arguments_that_are_no_object_have_no_form_at_anthropic():
    message = {"tool_calls": [CALL]}
    status, told = whole(ANTHROPIC, CHAT, answer(CHAT, {"finish_reason": "tool_calls", "message": message}))
    assert status == 502
    assert "arguments" in told["error"]["message"]


@pytest.mark.parametrize("source", [CHAT, RESPONSES])
def test_a_number_that_no_double_holds_is_a_bad_gateway(source: Api):
    body = json.dumps(ANSWERS[ANTHROPIC]).replace('"K\\u00f6ln"', "1e999").encode()
    assert whole(source, ANTHROPIC, body)[0] == 502


BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
START = {"type": "message_start", "message": ANSWERS[ANTHROPIC]}
CREATED = {"type": "response.created", "response": ANSWERS[RESPONSES]}
CALLING = chat_chunk({"tool_calls": [{"index": 1, "id": "c", "function": {"name": "f", "arguments": ""}}]})
BROKEN: list[tuple[Api, bytes, str]] = [
    (CHAT, unnamed(chat_chunk({})) + b"data: [DONE]\n\n", "without a finish_reason"),
    (CHAT, unnamed(CALLING, chat_chunk({"tool_calls": [{"index": 0}]}), chat_chunk({}, "stop")), "has no name"),
    (CHAT, unnamed(CALLING, chat_chunk({"content": "x"}), chat_chunk({"tool_calls": [{"index": 1}]})), "goes on"),
    (CHAT, unnamed({**chat_chunk({}), "choices": [{"index": 1, "delta": {}}]}), "more than one choice"),
    (CHAT, unnamed(chat_chunk({"audio": {"id": "a"}})), "audio"),
    (CHAT, unnamed(chat_chunk({"images": [{"type": "image_url"}]})), "images"),
    (CHAT, unnamed(chat_chunk({"content": "so"}), chat_chunk({}, "error")), "broken off"),
    (RESPONSES, named({"type": "response.completed", "response": ANSWERS[RESPONSES]}), "does not begin"),
    (RESPONSES, named(CREATED, CREATED), "begins twice"),
    (RESPONSES, named(CREATED, {"type": "response.output_text.delta", "output_index": 0, "delta": "x"}), "not open"),
    (RESPONSES, named(CREATED, {"type": "response.output_item.added", "item": {"type": "mcp_call"}}), "mcp_call"),
    (ANTHROPIC, named(BLOCK), "does not begin"),
    (ANTHROPIC, named(START, START), "begins twice"),
    (ANTHROPIC, named(START, BLOCK, BLOCK), "inside another"),
    (ANTHROPIC, named(START, BLOCK, {"type": "message_stop"}), "inside a block"),
    (ANTHROPIC, named(START, {"type": "message_stop"}), "without a stop_reason"),
    (ANTHROPIC, named(START, {**BLOCK, "content_block": {"type": "server_tool_use"}}), "server_tool_use"),
    (ANTHROPIC, named(START, BLOCK, {"type": "content_block_delta", "index": 1, "delta": {}}), "not open"),
    (ANTHROPIC, named(START, BLOCK, {"type": "content_block_delta", "index": 0, "delta": {"type": "new"}}), "'new'"),
    (GEMINI, unnamed(gemini_chunk({"text": "so"})), "before the answer was complete"),
    (GEMINI, unnamed(gemini_chunk({"text": "so"}), gemini_chunk(finishReason="OTHER")), "broken off"),
    (GEMINI, unnamed(gemini_chunk({"executableCode": {"code": "1"}})), "executableCode"),
    (GEMINI, b"data: []\n\n", "not an object"),
    (BEDROCK, converse(SAYING), "does not begin"),
    (BEDROCK, converse(BEGUN, BEGUN), "begins twice"),
    (BEDROCK, converse(BEGUN, SAYING, ("metadata", {})), "before the answer was complete"),
    (BEDROCK, converse(BEGUN, SAYING)[:-3], "within an event"),
    (BEDROCK, converse(BEGUN) + converse(SAYING).replace(b"so", b"no"), "wrong checksum"),
    (BEDROCK, converse(BEGUN) + b"\xff" * 16, "wrong checksum"),
    (BEDROCK, converse(BEGUN, ("contentBlockDelta", {"delta": {"toolUse": {"input": "{}"}}})), "not open"),
    (BEDROCK, converse(BEGUN, ("contentBlockDelta", {"delta": {"image": {}}})), "image"),
    (BEDROCK, converse(BEGUN, ("contentBlockStart", {"start": {"toolResult": {}}})), "toolResult"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "stream", "why"), BROKEN)
def test_a_stream_that_has_no_form_in_the_clients_api_ends_in_an_error(target: Api, stream: bytes, why: str):
    for source in DEFAULT_PATHS:
        if source is not target:
            last = events(streamed(source, target, [stream]))[-1]
            assert why in json.dumps(last)


def test_what_keeps_a_stream_open_is_passed_on():
    assert streamed(CHAT, ANTHROPIC, [named({"type": "ping"})]).startswith(b": keep-alive\n\n")
    assert streamed(RESPONSES, CHAT, [b": OPENROUTER PROCESSING\n\n"]).startswith(b": keep-alive\n\n")
    assert streamed(ANTHROPIC, CHAT, [b": OPENROUTER PROCESSING\n\n"]).startswith(b"event: ping\n")


@IN_EACH_PAIR
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_stands_in_an_answer_the_client_gets_json(source: Api, target: Api, data: st.DataObject):
    body = json.loads(json.dumps(ANSWERS[target]))
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = data.draw(st.sampled_from(places(body)))
        place[key] = data.draw(junk)
    assert whole(source, target, body)[0] in (200, 502)


@pytest.mark.parametrize(("source", "target"), TO_SSE)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_stream_the_client_gets_events(source: Api, target: Api, data: st.DataObject):
    told = events(STREAMS[target])
    place, key = data.draw(st.sampled_from(places(told)))
    place[key] = data.draw(junk)
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in told) + b"data: [DONE]\n\n"
    translator = ResponseTranslator(request(source, target, stream=True))
    heard = events(translator.feed(stream) + translator.end())
    assert all(isinstance(event, dict) for event in heard)
    assert translator.has_failed or heard


def test_parts_without_text_are_bounded_where_they_are_kept():
    translator = ResponseTranslator(request(RESPONSES, ANTHROPIC, stream=True))
    block = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    translator.feed(named({"type": "message_start", "message": ANSWERS[ANTHROPIC]}))
    one = named(
        {"type": "content_block_start", "index": 0, "content_block": block}, {"type": "content_block_stop", "index": 0}
    )
    told = b""
    for _ in range(MAX_EVENT_BYTES // 1024):
        told = translator.feed(one) or told
    assert translator.has_failed
    assert b"too long to be repeated" in told


# ---- what servers write that are like OpenAI's


def lenient(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"choices": [choice], "model": "m", "usage": {"prompt_tokens": 3.0, "completion_tokens": 2.0}, **more}


def lenient_call(**call: Any) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"type": "function", **call}]}


TOLERATED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"content": "Hi"}, None, "end_turn"),
    ({"content": "Hi"}, "", "end_turn"),
    ({"content": "Hi"}, "eos", "end_turn"),
    ({"content": "Hi"}, "STOP", "end_turn"),
    ({"content": "Hi"}, "model_length", "max_tokens"),
    ({"content": "Hi"}, "MAX_TOKENS", "max_tokens"),
    ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hi"}]}, "stop", "end_turn"),
    ({"content": "Hi", "annotations": [{"type": "url_citation"}]}, "stop", "end_turn"),
    (lenient_call(id="a", function={"name": "f", "arguments": {"a": 1}}), "tool_calls", "tool_use"),
    (lenient_call(function={"name": "f", "arguments": '{"a": 1}'}), "function_call", "tool_use"),
    (lenient_call(id=None, function={"name": "f", "arguments": '{"a": 1}'}), None, "tool_use"),
    ({"content": "", "function_call": {"name": "f", "arguments": '{"a": 1}'}}, "function_call", "tool_use"),
]


@pytest.mark.parametrize(("message", "finish", "stop"), TOLERATED)
def test_what_servers_like_openai_write_is_taken(message: dict[str, Any], finish: str | None, stop: str):
    status, told = whole(ANTHROPIC, CHAT, lenient(message, finish))
    assert (status, told["stop_reason"]) == (200, stop)
    assert told["usage"]["input_tokens"] == 3
    assert told["id"].startswith("msg_")
    (block,) = told["content"]
    if stop == "tool_use":
        assert (block["name"], block["input"]) == ("f", {"a": 1})
        assert block["id"]
    else:
        assert block["text"] == "Hi"


def piece(index: int | None = None, **call: Any) -> dict[str, Any]:
    return chat_chunk({"tool_calls": [call if index is None else {"index": index, **call}]})


def called(name: str, arguments: Any = "") -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


DONE = b"data: [DONE]\n\n"
TWO_CALLS: list[list[dict[str, Any]]] = [
    [piece(0, id="a", function=called("f")), piece(1, id="b", function=called("g")),
     piece(0, function={"arguments": '{"a"'}), piece(1, function={"arguments": '{"b"'}),
     piece(0, function={"arguments": ":1}"}), piece(1, function={"arguments": ":2}"})],
    [piece(1, id="b", function=called("f", '{"a":1}')), piece(0, id="a", function=called("g", '{"b":2}'))],
    [piece(function=called("f", '{"a":1}')), piece(function=called("g", '{"b":2}'))],
    [piece(function=called("f", {"a": 1})), piece(function=called("g", {"b": 2}))],
    [piece(0, id="", function=called("f", '{"a":1}')), piece(0, id="", function=called("g", '{"b":2}'))],
    [piece(0, id="a"), piece(0, function=called("f", '{"a":1}')), piece(1, function=called("g", '{"b":2}'))],
    [piece(0, id="a", function=called("f", '{"a"')), piece(0, id="a", function=called("f", ":1}")),
     piece(1, id="b", function=called("g", '{"b":')), piece(1, id="x", function={"arguments": "2}"})],
]  # fmt: skip


@pytest.mark.parametrize("source", [ANTHROPIC, RESPONSES])
@pytest.mark.parametrize("chunks", TWO_CALLS)
@pytest.mark.parametrize("end", [DONE, b""])
def test_calls_of_a_stream_come_one_behind_the_other(source: Api, chunks: list[dict[str, Any]], end: bytes):
    stream = unnamed(chat_chunk({"content": "Hi"}), *chunks, chat_chunk({}, "eos")) + end
    for size in (len(stream), 7):
        translator = ResponseTranslator(request(source, CHAT, stream=True))
        told = b"".join(translator.feed(stream[at : at + size]) for at in range(0, len(stream), size))
        told += translator.end()
        assert not translator.has_failed
        if source is RESPONSES:
            items = events(told)[-1]["response"]["output"][1:]
            calls = [(item["name"], json.loads(item["arguments"])) for item in items]
            idents = [item["call_id"] for item in items]
        else:
            read = events(told)
            begun = [e for e in read if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use"]
            said = [
                "".join(
                    e["delta"]["partial_json"]
                    for e in read
                    if e["type"] == "content_block_delta" and e["index"] == one["index"]
                )
                for one in begun
            ]
            calls = [(one["content_block"]["name"], json.loads(text)) for one, text in zip(begun, said, strict=True)]
            idents = [one["content_block"]["id"] for one in begun]
            order = [(e["type"][14:], e["index"]) for e in read if e["type"].startswith("content_block_st")]
            assert order == [(kind, index) for index in range(3) for kind in ("start", "stop")]
            assert read[-2]["delta"]["stop_reason"] == "tool_use"
        assert calls == [("f", {"a": 1}), ("g", {"b": 2})]
        assert all(idents)
        assert len(set(idents)) == 2


def test_a_stream_is_complete_behind_its_reason_to_stop():
    chunk = chat_chunk({"content": "Hi"})
    for stream in (
        unnamed(chunk, chat_chunk({}, "stop")),
        unnamed(chunk) + DONE,
        unnamed(chunk, chat_chunk({}, "eos")),
    ):
        assert events(streamed(ANTHROPIC, CHAT, [stream]))[-1]["type"] == "message_stop"
    assert events(streamed(ANTHROPIC, CHAT, [unnamed(chunk)]))[-1]["type"] == "error"
    ended = named(START, {"type": "message_delta", "delta": {"stop_reason": "new"}, "usage": {}})
    assert events(streamed(CHAT, ANTHROPIC, [ended]))[-1]["choices"][0]["finish_reason"] == "stop"
    assert "error" in events(streamed(CHAT, ANTHROPIC, [named(START)]))[-1]


def test_calls_that_wait_for_others_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.ai.translation.openai_chat.streams.MAX_EVENT_BYTES", 10_000)
    chunks = [piece(index, id=f"c{index}", function=called("f")) for index in range(20)]
    assert "too long to be kept" in events(streamed(ANTHROPIC, CHAT, [unnamed(*chunks)]))[-1]["error"]["message"]


def test_citations_are_left_out_and_the_text_stays():
    said = {"type": "text", "text": "Hi", "citations": [{"type": "web_search_result_location"}]}
    assert whole(CHAT, ANTHROPIC, {**ANSWERS[ANTHROPIC], "content": [said]})[0] == 200
    assert (
        whole(
            CHAT, RESPONSES, answer(RESPONSES, {"parts": [{"type": "output_text", "text": "Hi", "annotations": [1]}]})
        )[0]
        == 200
    )
    cited = {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}}
    told = streamed(CHAT, ANTHROPIC, [named(START, BLOCK, cited)])
    assert b"citations" not in told


def test_a_prompt_that_gemini_has_blocked_is_declined():
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    told = whole(CHAT, GEMINI, blocked)[1]
    assert told["choices"][0]["finish_reason"] == "content_filter"
    assert told["choices"][0]["message"]["refusal"] == "The prompt was blocked: SAFETY."
    assert told["usage"]["prompt_tokens"] == 3
    last = events(streamed(ANTHROPIC, GEMINI, [unnamed(blocked)]))[-2]
    assert last["delta"]["stop_details"]["explanation"] == "The prompt was blocked: SAFETY."


def test_gemini_may_leave_out_ids_and_arguments_of_calls():
    parts = [{"functionCall": {"name": "f"}}, {"functionCall": {"name": "f", "args": {"a": 1}}}]
    body = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    calls = whole(CHAT, GEMINI, body)[1]["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ["{}", '{"a":1}']
    assert len({call["id"] for call in calls}) == 2
    blocks = whole(ANTHROPIC, GEMINI, body)[1]["content"]
    assert [block["input"] for block in blocks] == [{}, {"a": 1}]


def test_an_error_of_google_may_stand_in_an_array():
    body = json.dumps([{"error": {"code": 429, "message": "slower", "status": "RESOURCE_EXHAUSTED"}}]).encode()
    assert whole(ANTHROPIC, GEMINI, body, 429)[1]["error"] == {"type": "rate_limit_error", "message": "slower"}


def test_a_call_of_bedrock_without_arguments_has_an_empty_object():
    start = ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "c", "name": "f"}}})
    stream = converse(
        BEGUN, start, ("contentBlockStop", {"contentBlockIndex": 0}), ("messageStop", {"stopReason": "tool_use"})
    )
    told = events(streamed(CHAT, BEDROCK, [stream]))
    assert [
        call["function"]["arguments"] for chunk in told for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ] == [
        "",
        "{}",
    ]
    assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_cited_text_of_bedrock_is_text():
    cited = {"citationsContent": {"content": [{"text": "so"}], "citations": []}}
    body = {"output": {"message": {"content": [cited]}}, "stopReason": "end_turn"}
    assert whole(CHAT, BEDROCK, body)[1]["choices"][0]["message"]["content"] == "so"


def test_an_error_of_bedrock_is_a_message_alone():
    body = b'{"message": "slower"}'
    assert whole(ANTHROPIC, BEDROCK, body, 429)[1]["error"] == {"type": "rate_limit_error", "message": "slower"}
