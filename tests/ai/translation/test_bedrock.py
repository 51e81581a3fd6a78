"""Requests to Bedrock's Converse, and the framing of its streams. Answers are among those of all providers, in
test_answers and test_translator.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.aws_event_stream import AwsFraming
from egressproxy.ai.apis.framing import MAX_EVENT_BYTES
from egressproxy.ai.translation.apis import path_at
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.translator import ResponseTranslator, TranslatedRequest, translate_request
from egressproxy.model.work import at_once
from tests.ai.translation.examples import (
    ANSWERS,
    ANTHROPIC,
    BEDROCK,
    CHAT,
    LARGEST,
    RESPONSES,
    SMALLEST,
    STREAMS,
    converse,
    events,
    junk,
    places,
    request,
    streamed,
    whole,
)
from tests.ai.translation.test_gemini import CALLS, HI, SCHEMA, TOOL
from tests.ai.translation.test_tuning import CLIENTS
from tests.support.properties import examples

MODEL = "anthropic.claude-opus-4-8-v1:0"


def asked(source: Api, *, drops: bool = False, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(_translated(source, drops, more).body)
    validate_converse(body)
    return body


def _translated(source: Api, drops: bool, more: dict[str, Any], model: str | None = MODEL) -> TranslatedRequest:
    body = json.dumps({**SMALLEST[source], **more}).encode()
    return at_once(translate_request(body, source, BEDROCK, model, drops=drops))


def validate_converse(body: dict[str, Any]) -> None:
    """Fails unless Amazon's SDK could have written this body. What is base64 in JSON, it takes as bytes."""
    session = pytest.importorskip("botocore.session")
    validate = pytest.importorskip("botocore.validate")
    model = session.get_session().get_service_model("bedrock-runtime")
    shape = model.operation_model("Converse").input_shape
    report = validate.ParamValidator().validate({"modelId": "m", **body}, shape)
    assert not report.has_errors(), report.generate_report()
    unknown = _unknown(body, shape)
    assert unknown == []


def _unknown(value: Any, shape: Any) -> list[str]:
    """The members that the service model does not have."""
    if shape.type_name == "list":
        return [name for one in value for name in _unknown(one, shape.member)]
    if shape.type_name != "structure" or getattr(shape, "is_document_type", False):
        return []
    found = [name for name in value if name not in shape.members]
    return found + [
        name for key, one in value.items() if key in shape.members for name in _unknown(one, shape.members[key])
    ]


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (MODEL, b"/model/anthropic.claude-opus-4-8-v1%3A0/converse"),
        ("arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.amazon.nova-pro-v1:0",
         b"/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A123456789012%3Ainference-profile%2Feu.amazon.nova-pro-v1%3A0/converse"),
    ],
)  # fmt: skip
def test_the_model_stands_in_the_path(model: str, path: bytes):
    assert path_at(BEDROCK, b"", "", model, is_stream=False) == path
    assert path_at(BEDROCK, b"/x", "", model, is_stream=True) == b"/x" + path + b"-stream"


@pytest.mark.parametrize("model", ["", "..", "a/b", "arn:a/../b", "arn:a//b", "/a", "a?b", "a%2fb", "a b"])
def test_a_model_that_would_be_another_path_is_refused(model: str):
    with pytest.raises(Untranslatable, match="path"):
        _translated(CHAT, False, {"model": model}, None)


def test_the_smallest_request_of_every_client_is_one_text():
    for source in SMALLEST:
        body = asked(source)
        body.pop("inferenceConfig", None)
        assert body == {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}


def test_settings_stand_in_the_inference_config():
    body = asked(CHAT, max_tokens=9, temperature=0.5, top_p=0.25, stop=["a"], service_tier="priority", stream=True)
    assert body.pop("messages")
    assert body == {
        "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "topP": 0.25, "stopSequences": ["a"]},
        "serviceTier": {"type": "priority"},
    }


def test_a_conversation_with_calls():
    results = [{"role": "tool", "tool_call_id": ident, "content": said} for ident, said in (("c1", "wet"), ("c2", ""))]
    system = {"role": "system", "content": "be brief"}
    body = asked(CHAT, messages=[system, HI, CALLS, *results, {"role": "user", "content": "so?"}], tools=[TOOL])
    assert body["system"] == [{"text": "be brief"}]
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"text": "a moment"},
                {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"at": "sea"}}},
                {"toolUse": {"toolUseId": "c2", "name": "hear", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"text": "wet"}]}},
                {"toolResult": {"toolUseId": "c2", "content": []}},
                {"text": "so?"},
            ],
        },
    ]
    assert body["toolConfig"] == {
        "tools": [{"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}}]
    }


def test_an_id_that_bedrock_refuses_is_another_one_there():
    calls = {**CALLS, "tool_calls": [{**CALLS["tool_calls"][0], "id": "call_1|fc_2"}]}  # type: ignore[dict-item]
    told = {"role": "tool", "tool_call_id": "call_1|fc_2", "content": "x"}
    _, called, answered = asked(CHAT, messages=[HI, calls, told], tools=[TOOL])["messages"]
    ident = called["content"][1]["toolUse"]["toolUseId"]
    assert answered["content"][0]["toolResult"]["toolUseId"] == ident != "call_1|fc_2"


def test_a_failed_tool_and_an_image_that_a_tool_shows():
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    uses = [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [png], "is_error": True}
    messages = [HI, {"role": "assistant", "content": uses}, {"role": "user", "content": [result]}]
    tools = [{"name": "f", "input_schema": SCHEMA}]
    assert asked(ANTHROPIC, messages=messages, tools=tools)["messages"][2]["content"] == [
        {
            "toolResult": {
                "toolUseId": "c1",
                "content": [{"image": {"format": "png", "source": {"bytes": "AAAA"}}}],
                "status": "error",
            }
        }
    ]


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", None),
        ("required", {"any": {}}),
        ({"type": "function", "function": {"name": "f"}}, {"tool": {"name": "f"}}),
    ],
)
def test_the_choice_of_a_tool(choice: Any, written: dict[str, Any] | None):
    assert asked(CHAT, tools=[TOOL], tool_choice=choice)["toolConfig"].get("toolChoice") == written


def test_tools_that_must_not_be_called_are_not_offered():
    assert "toolConfig" not in asked(CHAT, tools=[TOOL], tool_choice="none")
    with pytest.raises(Untranslatable, match="no choice of none"):
        asked(CHAT, messages=[HI, CALLS, HI], tools=[TOOL], tool_choice="none")


def test_a_message_that_says_nothing_is_left_out():
    """Bedrock refuses messages without content, and texts of blanks."""
    silent: list[Any] = [{"role": "assistant", "content": blank} for blank in ("", "\n", [])]
    made = asked(CHAT, messages=[{"role": "system", "content": " "}, HI, *silent, HI, {**CALLS, "content": " "}, {
        "role": "tool", "tool_call_id": "c1", "content": "\n"}], tools=[TOOL])  # fmt: skip
    assert "system" not in made
    assert [[next(iter(block)) for block in one["content"]] for one in made["messages"]] == [
        ["text", "text"], ["toolUse", "toolUse"], ["toolResult"],
    ]  # fmt: skip
    assert made["messages"][2]["content"][0]["toolResult"]["content"] == []


def test_an_answer_as_json_and_the_effort():
    output = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    config = asked(CHAT, response_format=output, reasoning_effort="high")["outputConfig"]
    schema = config["textFormat"]["structure"]["jsonSchema"]
    assert json.loads(schema.pop("schema")) == SCHEMA
    assert config == {
        "effort": "high", "textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"name": "n"}}},
    }  # fmt: skip


REFUSED: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"messages": [HI, {"role": "assistant", "content": "The best is"}]}, "messages[1]"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"), (CHAT, {"messages": [HI, CALLS, HI]}, "tools"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/heic;base64,AAAA"}}]}]}, "messages[0].content[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more", "field"), REFUSED)
def test_what_bedrock_cannot_be_asked_is_refused(source: Api, more: dict[str, Any], field: str):
    with pytest.raises(Untranslatable) as refused:
        asked(source, drops=True, **more)
    assert refused.value.field.startswith(field)


DROPPED: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"temperature": 1.5}, "temperature"),
    (CHAT, {"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    (CHAT, {"reasoning_effort": "minimal"}, "reasoning_effort"),
    (ANTHROPIC, {"thinking": {"type": "disabled"}}, "thinking.type"),
    (ANTHROPIC, {"metadata": {"user_id": "u"}}, "metadata.user_id"),
    (RESPONSES, {"safety_identifier": "s"}, "safety_identifier"),
    (CHAT, {"metadata": {"a": "b"}}, "metadata"),
    (CHAT, {"service_tier": "scale"}, "service_tier"),
    (CHAT, {"verbosity": "low"}, "verbosity"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more", "field"), DROPPED)
def test_what_only_tunes_is_left_out_and_told_or_refused(source: Api, more: dict[str, Any], field: str):
    assert _translated(source, True, more).dropped == (field,)
    with pytest.raises(Untranslatable) as refused:
        asked(source, **more)
    assert refused.value.field == field


@pytest.mark.parametrize("name", CLIENTS)
def test_the_default_request_of_a_client_comes_through(name: str):
    source, body = CLIENTS[name]
    validate_converse(json.loads(_translated(source, True, body).body))


@pytest.mark.parametrize("source", [CHAT, ANTHROPIC])
def test_amazons_sdk_knows_every_field(source: Api):
    body = {**LARGEST[source], "messages": [*LARGEST[source]["messages"], HI]}
    text = json.dumps(body).replace('"type": "url", "url": "https://a.example/cat.png"',
                                    '"type": "base64", "media_type": "image/png", "data": "AAAA"')  # fmt: skip
    assert asked(source, drops=True, **json.loads(text))["toolConfig"]


# --- answers ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", SMALLEST)
def test_an_answer_has_an_id_and_the_model_that_was_asked(source: Api):
    told = whole(source, BEDROCK, ANSWERS[BEDROCK])[1]
    assert told["model"] == "asked"
    assert len(told["id"]) > 20
    first = events(streamed(source, BEDROCK, [STREAMS[BEDROCK]]))[0]
    assert (first.get("message") or first.get("response") or first)["model"] == "asked"


def test_what_was_read_from_a_cache_is_told_beside_the_input():
    usage = whole(CHAT, BEDROCK, ANSWERS[BEDROCK])[1]["usage"]
    in_stream = events(streamed(CHAT, BEDROCK, [STREAMS[BEDROCK]], stream_options={"include_usage": True}))[-1]["usage"]
    assert usage == in_stream
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30, 7)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 20


def deltas(told: list[dict[str, Any]]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in told if chunk.get("choices")]


def test_any_cutting_of_a_stream_gives_the_same():
    stream = STREAMS[BEDROCK]
    in_one = deltas(events(streamed(CHAT, BEDROCK, [stream])))
    for size in (1, 7, 64):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert deltas(events(streamed(CHAT, BEDROCK, pieces))) == in_one


def test_a_stream_that_breaks_off_before_its_reason_never_looks_complete():
    stream = STREAMS[BEDROCK]
    for cut in range(0, stream.index(b"messageStop"), 11):
        translator = ResponseTranslator(request(CHAT, BEDROCK, stream=True))
        told = translator.feed(stream[:cut]) + translator.end()
        assert translator.has_failed
        assert b"[DONE]" not in told


def test_a_byte_that_is_another_one_ends_the_stream():
    stream = STREAMS[BEDROCK]
    for at in range(0, stream.rindex(b"messageStop"), 13):
        broken = stream[:at] + bytes((stream[at] ^ 1,)) + stream[at + 1 :]
        translator = ResponseTranslator(request(CHAT, BEDROCK, stream=True))
        told = translator.feed(broken) + translator.end()
        assert translator.has_failed
        assert b"[DONE]" not in told


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_stream_the_client_gets_events(data: st.DataObject):
    told = [(frame.name, json.loads(frame.payload)) for frame in AwsFraming().feed(STREAMS[BEDROCK])]
    place, key = data.draw(st.sampled_from(places([value for _, value in told])))
    if isinstance(place, list) and key < len(told) and place[key] is told[key][1]:
        told[key] = (told[key][0], data.draw(junk))
    else:
        place[key] = data.draw(junk)
    source = data.draw(st.sampled_from([CHAT, RESPONSES, ANTHROPIC]))
    assert events(streamed(source, BEDROCK, [converse(*told)]))


def test_an_event_is_bounded():
    prelude = struct.pack(">II", MAX_EVENT_BYTES + 1, 0)
    told = streamed(CHAT, BEDROCK, [prelude + struct.pack(">I", zlib.crc32(prelude))])
    assert b"more than %d bytes" % MAX_EVENT_BYTES in told
