from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.event_stream import MAX_EVENT_BYTES
from egressproxy.ai.translation.translator import ResponseTranslator, translate_request
from egressproxy.model.strict_json import MAX_PARTS
from egressproxy.model.work import at_once
from tests.ai.translation.examples import (
    ANSWERS,
    ANTHROPIC,
    ANTHROPIC_USAGE,
    BEDROCK,
    CHAT,
    ERROR_EVENTS,
    GEMINI,
    LARGEST,
    PAIRS,
    RESPONSES,
    RESPONSES_USAGE,
    SMALLEST,
    STREAMS,
    TO_PROVIDERS,
    TO_SSE,
    chat_chunk,
    events,
    request,
    streamed,
    translated,
    unnamed,
    whole,
)

WITH_SSE = pytest.mark.parametrize(("source", "target"), TO_SSE)
IN_EACH_PAIR = pytest.mark.parametrize(("source", "target"), TO_PROVIDERS)


# ---- what an answer says, in each API


def said(source: Api, answer: dict[str, Any]) -> list[Any]:
    """The texts and calls of a whole answer."""
    if source is CHAT:
        message = answer["choices"][0]["message"]
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
        return [message["content"], *((ident, f["name"], json.loads(f["arguments"])) for ident, f in calls)]
    if source is ANTHROPIC:
        return [
            block["text"] if block["type"] == "text" else (block["id"], block["name"], block["input"])
            for block in answer["content"]
        ]
    return [
        item["content"][0]["text"]
        if item["type"] == "message"
        else (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in answer["output"]
    ]


def heard(source: Api, told: list[dict[str, Any]]) -> list[Any]:
    """The texts and calls of a stream, put together from its deltas."""
    parts: list[list[Any]] = []
    if source is CHAT:
        for delta in (choice["delta"] for chunk in told for choice in chunk["choices"]):
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    parts.append([call["id"], call["function"]["name"], ""])
                parts[-1][2] += call["function"]["arguments"]
            if delta.get("content"):
                parts = parts or [[""]]
                parts[-1][0] += delta["content"]
    for event in told:
        match event.get("type"):
            case "content_block_start":
                block = event["content_block"]
                parts.append([""] if block["type"] == "text" else [block["id"], block["name"], ""])
            case "content_block_delta":
                parts[-1][-1] += event["delta"].get("text", "") + event["delta"].get("partial_json", "")
            case "response.content_part.added":
                parts.append([""])
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                parts.append([event["item"]["call_id"], event["item"]["name"], ""])
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                parts[-1][-1] += event["delta"]
    return [part[0] if len(part) == 1 else (part[0], part[1], json.loads(part[2])) for part in parts]


SAID = ["Hello there", ("call_1", "weather", {"city": "Köln"})]


@WITH_SSE
def test_a_whole_answer_says_the_same(source: Api, target: Api):
    status, answer = whole(source, target, ANSWERS[target])
    assert status == 200
    assert said(source, answer) == SAID
    assert answer["model"] == "served"
    assert answer["id"] == {CHAT: "chatcmpl-1", RESPONSES: "resp_1", ANTHROPIC: "msg_1"}[source]


@IN_EACH_PAIR
def test_a_stream_says_the_same(source: Api, target: Api):
    assert heard(source, events(streamed(source, target, [STREAMS[target]]))) == SAID


@WITH_SSE
def test_the_usage_is_told_whole_and_in_a_stream(source: Api, target: Api):
    told = events(streamed(source, target, [STREAMS[target]], **_with_usage(source)))
    last = {CHAT: -1, ANTHROPIC: -2, RESPONSES: -1}[source]
    in_stream = (told[last].get("response") or told[last])["usage"]
    for usage in (whole(source, target, ANSWERS[target])[1]["usage"], in_stream):
        if source is CHAT:
            assert usage.items() >= {"prompt_tokens": 30, "completion_tokens": 7, "total_tokens": 37}.items()
            assert usage["prompt_tokens_details"]["cached_tokens"] == 20
            assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
        elif source is RESPONSES:
            assert usage == RESPONSES_USAGE
        else:
            del (expected := dict(ANTHROPIC_USAGE))["service_tier"]
            assert usage == expected


def _with_usage(source: Api) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if source is CHAT else {}


def test_a_client_of_chat_gets_usage_in_a_stream_only_when_it_asks():
    assert b'"usage"' not in streamed(CHAT, ANTHROPIC, [STREAMS[ANTHROPIC]])


@WITH_SSE
@given(data=st.data())
def test_any_cutting_of_a_stream_gives_the_same(source: Api, target: Api, data: st.DataObject):
    stream = STREAMS[target]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert _timeless(streamed(source, target, pieces)) == _timeless(streamed(source, target, [stream]))


@WITH_SSE
@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_lines_may_end_in_carriage_returns(source: Api, target: Api, newline: bytes):
    stream = STREAMS[target].replace(b"\n", newline)
    expected = _timeless(streamed(source, target, [STREAMS[target]]))
    assert _timeless(streamed(source, target, [stream])) == expected
    assert _timeless(streamed(source, target, [stream[i : i + 1] for i in range(len(stream))])) == expected


def _timeless(stream: bytes) -> list[dict[str, Any]]:
    told = events(stream)
    for event in told:
        event.pop("created", None)
        event.get("response", {}).pop("created_at", None)
    return told


COMPLETE = {CHAT: b"data: [DONE]\n\n", RESPONSES: b"event: response.completed\n", ANTHROPIC: b"event: message_stop\n"}


@IN_EACH_PAIR
def test_a_complete_stream_looks_complete(source: Api, target: Api):
    translator = ResponseTranslator(request(source, target, stream=True))
    told, ended = translator.feed(STREAMS[target]), translator.end()
    assert COMPLETE[source] in (ended if target is GEMINI else told)  # whose streams have no last event
    assert target is GEMINI or ended == b""
    assert not translator.has_failed


#: What says in a stream that the model has said all: behind it nothing is missing.
SAID_ALL = {CHAT: b'{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "served", '
            b'"choices": []', RESPONSES: b"", ANTHROPIC: b"event: message_stop", GEMINI: b""}  # fmt: skip


@WITH_SSE
def test_a_stream_that_breaks_off_anywhere_never_looks_complete(source: Api, target: Api):
    stream = STREAMS[target]
    if SAID_ALL[target]:
        stream = stream[: stream.index(SAID_ALL[target]) - 8]
    for cut in range(0, len(stream.rstrip()) - 1, 7):
        translator = ResponseTranslator(request(source, target, stream=True))
        told = translator.feed(stream[:cut]) + translator.end()
        assert COMPLETE[source] not in told
        assert translator.has_failed
        assert is_error(source, events(told)[-1])


def is_error(source: Api, event: dict[str, Any]) -> bool:
    """Whether this is the form in which streams of the API tell an error."""
    if source is CHAT:
        return isinstance(event["error"]["message"], str) and "choices" not in event
    if source is ANTHROPIC:
        return event["type"] == "error" and isinstance(event["error"]["message"], str)
    return event["type"] == "error" or event["response"]["status"] == "failed"


@IN_EACH_PAIR
@pytest.mark.parametrize("share", [0, 0.3, 0.6])
def test_an_error_in_a_stream_is_one_for_the_client(source: Api, target: Api, share: float):
    blocks = STREAMS[target].split(b"\n\n")
    begun = b"".join(block + b"\n\n" for block in blocks[: int(len(blocks) * share)])
    told = streamed(source, target, [begun + ERROR_EVENTS[target] + STREAMS[target]])
    last = events(told)[-1]
    assert is_error(source, last)
    assert b"too much" in json.dumps(last).encode()
    assert COMPLETE[source] not in told
    if source is ANTHROPIC or source is CHAT:
        assert last["error"]["type"] == "rate_limit_error"
    else:
        assert (last.get("response", {}).get("error") or last)["code"] == "rate_limit_exceeded"


@IN_EACH_PAIR
def test_a_stream_that_is_none_ends_in_an_error(source: Api, target: Api):
    for stream in (b"", b"<html>", b"data: {\n\n", b"data: [1]\n\n", b"data: {}\n\n", b'data: "\xff"\n\n'):
        assert is_error(source, events(streamed(source, target, [stream]))[-1])


@WITH_SSE
def test_an_event_without_an_end_is_bounded(source: Api, target: Api):
    translator = ResponseTranslator(request(source, target, stream=True))
    piece, told = b"data: " + b"x" * 65530, b""
    for _ in range(MAX_EVENT_BYTES // len(piece) + 2):
        told += translator.feed(piece)
        piece = b"x" * 65536
    assert translator.has_failed
    assert b"more than" in told


# ---- errors


@IN_EACH_PAIR
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
def test_an_error_keeps_its_status_and_message(source: Api, target: Api, status: int):
    answer = {"type": "error", "error": {"type": "whatever", "message": "so it is", "code": "c"}, "request_id": "r"}
    told, body = whole(source, target, answer, status)
    assert told == status
    assert body["error"]["message"] == "so it is"
    assert ("type" in body) is (source is ANTHROPIC)


@IN_EACH_PAIR
@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"[]", b'{"error":"x"}', b"null", b'{"error":{}}'])
def test_an_error_of_another_shape_is_told_in_the_clients(source: Api, target: Api, body: bytes):
    told, answer = whole(source, target, body, 502)
    assert told == 502
    assert answer["error"]["message"] == "the backend answered 502 without a message"


@IN_EACH_PAIR
@pytest.mark.parametrize("body", [b"", b"ok", b"[]", b"{}", b'{"choices":7,"content":7,"output":7}', b"[" * 5000])
def test_a_success_that_cannot_be_read_is_a_bad_gateway(source: Api, target: Api, body: bytes):
    told, answer = whole(source, target, body)
    assert told == 502
    assert "cannot be translated" in answer["error"]["message"]


@IN_EACH_PAIR
def test_an_answer_of_too_many_parts_is_not_read(source: Api, target: Api):
    told, answer = whole(source, target, {**ANSWERS[target], "unknown": [{}] * MAX_PARTS * 2})
    assert told == 502
    assert "too many parts" in answer["error"]["message"]


@WITH_SSE
def test_an_event_of_too_many_parts_ends_the_stream(source: Api, target: Api):
    said = streamed(source, target, [unnamed({"unknown": [{}] * MAX_PARTS * 2})])
    assert b"too many parts" in said


@pytest.mark.parametrize("source", [CHAT, RESPONSES])
def test_calls_whose_arguments_have_too_many_parts_together_are_not_read(source: Api):
    one = json.dumps({"a": [{}] * 1000})
    message = {"role": "assistant", "tool_calls": [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": one}} for n in range(30)
    ]}  # fmt: skip
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": one} for n in range(30)]
    more = {"messages": [{"role": "user", "content": "hi"}, message]} if source is CHAT else {"input": calls}
    with pytest.raises(Untranslatable, match="arguments have too many parts"):
        request(source, ANTHROPIC, **more)


def test_an_answer_whose_calls_have_too_many_parts_together_is_not_read():
    one = json.dumps({"a": [{}] * 1000})
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": one}} for n in range(30)]
    answer = json.loads(json.dumps(ANSWERS[CHAT]))
    answer["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": calls}
    told, answer = whole(ANTHROPIC, CHAT, answer)
    assert told == 502
    assert "too many parts" in answer["error"]["message"]


@IN_EACH_PAIR
def test_a_client_that_waits_for_a_stream_gets_an_error_for_an_answer_that_is_none(source: Api, target: Api):
    told, _ = at_once(
        ResponseTranslator(request(source, target, stream=True)).whole(200, json.dumps(ANSWERS[target]).encode())
    )
    assert told == 502


# ---- requests


@IN_EACH_PAIR
def test_the_model_is_the_clients_or_the_one_that_is_given(source: Api, target: Api):
    body = json.dumps(SMALLEST[source]).encode()
    has_model = target not in (GEMINI, BEDROCK)  # in whose path it stands
    assert json.loads(at_once(translate_request(body, source, target)).body).get("model", "asked") == "asked"
    asked = at_once(translate_request(body, source, target, "other"))
    assert json.loads(asked.body).get("model") == ("other" if has_model else None)
    assert asked.client_model == "asked"


@IN_EACH_PAIR
def test_the_repr_of_a_request_shows_nothing_that_was_said(source: Api, target: Api):
    assert "Hello" not in repr(request(source, target))


@IN_EACH_PAIR
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model":"a","model":"b"}', "the key 'model' twice"),
        (b'{"temperature":NaN}', "NaN is not a number"),
        (b'{"temperature":-Infinity}', "-Infinity is not a number"),
        (b'{"temperature":1e999}', "too large"),
        (b'{"max_tokens":' + b"9" * 400 + b"}", "300 digits"),
        (b'{"model":"\\ud800"}', "surrogate"),
        (b'{"model":"\xff"}', "not UTF-8, at byte 10"),
        (b'{"tools":' + b"[" * 101 + b"]" * 101 + b"}", "100 levels"),
        (b'{"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "100 levels"),
    ],
)
def test_a_body_that_is_not_json_with_one_meaning_is_refused(source: Api, target: Api, body: bytes, why: str):
    with pytest.raises(Untranslatable, match=why):
        at_once(translate_request(body, source, target))


@IN_EACH_PAIR
@given(name=st.from_regex(r"x_[a-z]{1,8}", fullmatch=True), value=st.sampled_from([0, "", False, {}, [], "a", 1.5]))
def test_any_field_that_is_not_known_is_refused_by_name(source: Api, target: Api, name: str, value: Any):
    with pytest.raises(Untranslatable) as caught:
        request(source, target, **{name: value})
    assert caught.value.field == name


@IN_EACH_PAIR
def test_a_field_that_is_null_is_not_there(source: Api, target: Api):
    assert translated(source, target, x_whatever=None, temperature=None, tools=None) == translated(source, target)


def _places(value: Any, path: str = "") -> list[tuple[dict[str, Any], str]]:
    found = []
    if isinstance(value, dict):
        found.append((value, path))
        for name, inner in value.items():
            if name not in ("parameters", "input_schema", "schema") and not (name == "input" and path):
                found += _places(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _places(inner, f"{path}[{index}]")
    return found


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("hint", ["cache_control", "prompt_cache_breakpoint"])
def test_a_hint_for_caches_is_left_out_wherever_it_stands(source: Api, target: Api, hint: str):
    body = json.loads(json.dumps(LARGEST[source]))
    plain = at_once(translate_request(json.dumps(body).encode(), source, target)).body
    for place, path in _places(body):
        if not path.endswith("cache_control"):
            place.setdefault(hint, {"type": "ephemeral"})
    assert at_once(translate_request(json.dumps(body).encode(), source, target)).body == plain


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_field_that_is_not_known_is_refused_wherever_it_stands(source: Api, target: Api):
    body = json.loads(json.dumps(LARGEST[source]))
    at_once(translate_request(json.dumps(body).encode(), source, target))
    checked = 0
    for place, path in _places(body):
        if path.endswith("cache_control"):
            continue
        place["x_new"] = 1
        with pytest.raises(Untranslatable) as caught:
            at_once(translate_request(json.dumps(body).encode(), source, target))
        assert caught.value.field == (f"{path}.x_new" if path else "x_new")
        del place["x_new"]
        checked += 1
    assert checked >= 12


def test_the_names_of_parts_of_an_unknown_kind_are_told():
    body = [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]
    with pytest.raises(Untranslatable) as caught:
        request(CHAT, ANTHROPIC, messages=body)
    assert caught.value.field == "messages[0].content[0].file"


def test_chunks_of_chat_may_come_without_an_end_of_the_last_line():
    stream = unnamed(chat_chunk({"content": "Hi"}), chat_chunk({}, "stop")) + b"data: [DONE]"
    assert heard(ANTHROPIC, events(streamed(ANTHROPIC, CHAT, [stream]))) == ["Hi"]
