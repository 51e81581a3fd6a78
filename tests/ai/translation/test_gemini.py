"""Requests to Gemini. Answers and streams are among those of all providers, in test_answers and test_translator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.translator import TranslatedRequest, translate_request
from egressproxy.model.work import at_once
from tests.ai.translation.examples import ANTHROPIC, CHAT, GEMINI, LARGEST, RESPONSES, SMALLEST
from tests.ai.translation.test_tuning import CLIENTS

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
HI = {"role": "user", "content": "hi"}
CALLS = {
    "role": "assistant",
    "content": "a moment",
    "tool_calls": [
        {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}
        for ident, name, arguments in (("c1", "look", '{"at": "sea"}'), ("c2", "hear", ""))
    ],
}


def asked(source: Api, *, model: str = "gemini-3-pro", drops: bool = False, **more: Any) -> dict[str, Any]:
    made = _translated(source, model, drops, more)
    body: dict[str, Any] = json.loads(made.body)
    return body


def _translated(source: Api, model: str, drops: bool, more: dict[str, Any]) -> TranslatedRequest:
    body = json.dumps({**SMALLEST[source], **more}).encode()
    return at_once(translate_request(body, source, GEMINI, model, drops=drops))


def test_the_smallest_request_of_every_client_is_one_text():
    for source in SMALLEST:
        body = asked(source)
        body.pop("generationConfig", None)
        assert body == {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}


def test_settings_stand_in_the_generation_config():
    body = asked(CHAT, max_tokens=9, temperature=1.5, top_p=0.5, stop=["a"], service_tier="flex", stream=True)
    assert body["generationConfig"] == {"maxOutputTokens": 9, "temperature": 1.5, "topP": 0.5, "stopSequences": ["a"]}
    assert body["serviceTier"] == "flex"
    assert "model" not in body
    assert "stream" not in body


def test_system_prompts_are_one_instruction():
    system = [{"role": "system", "content": "a"}, HI, {"role": "developer", "content": "b"}, HI]
    body = asked(CHAT, messages=system)
    assert body["systemInstruction"] == {"parts": [{"text": "a"}, {"text": "b"}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}, {"text": "hi"}]}]


def test_calls_and_their_results_are_turns_of_model_and_user():
    results = [{"role": "tool", "tool_call_id": ident, "content": said} for ident, said in (("c1", "wet"), ("c2", ""))]
    contents = asked(CHAT, messages=[HI, CALLS, *results, {"role": "user", "content": "so?"}])["contents"]
    assert contents[1:] == [
        {
            "role": "model",
            "parts": [
                {"text": "a moment"},
                {
                    "functionCall": {"id": "c1", "name": "look", "args": {"at": "sea"}},
                    "thoughtSignature": "skip_thought_signature_validator",
                },
                {"functionCall": {"id": "c2", "name": "hear", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "look", "response": {"output": "wet"}}},
                {"functionResponse": {"id": "c2", "name": "hear", "response": {"output": ""}}},
                {"text": "so?"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("model", "is_signed"), [("gemini-3.1-pro", True), ("gemini-flash-latest", True), ("gemini-2.5-pro", False)]
)
def test_models_that_refuse_calls_without_a_signature_get_one(model: str, is_signed: bool):
    messages = [HI, CALLS, {"role": "tool", "tool_call_id": "c1", "content": "wet"}]
    call = asked(CHAT, model=model, messages=messages)["contents"][1]["parts"][1]
    assert ("thoughtSignature" in call) is is_signed


def test_a_message_that_says_nothing_is_left_out():
    silent = {"role": "assistant", "content": ""}
    contents = [{"role": "user", "parts": [{"text": "hi"}, {"text": "hi"}]}]
    assert asked(CHAT, messages=[HI, silent, HI])["contents"] == contents


def test_a_failed_tool_and_an_image_that_a_tool_shows():
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [png]},
        {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
    ]
    uses = [{"type": "tool_use", "id": ident, "name": "f", "input": {}} for ident in ("c1", "c2")]
    messages = [HI, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    parts = asked(ANTHROPIC, messages=messages)["contents"][2]["parts"]
    assert [part.get("functionResponse", {}).get("response") for part in parts] == [
        {"output": "Behind the results stands an image."}, {"error": "no"}, None, None,
    ]  # fmt: skip
    assert parts[2:] == [
        {"text": "What the tool showed (c1):"},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    ]


@pytest.mark.parametrize(
    ("more", "config"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "none"}, {"mode": "NONE"}),
        ({"tool_choice": "required"}, {"mode": "ANY"}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}},
         {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, {"mode": "VALIDATED"}),
    ],
)  # fmt: skip
def test_the_choice_of_a_tool_is_a_mode(more: dict[str, Any], config: dict[str, Any] | None):
    body = asked(CHAT, **{"tools": [TOOL], **more})
    assert body.get("toolConfig") == (None if config is None else {"functionCallingConfig": config})
    assert "tools" in body


def test_a_tool_keeps_its_schema():
    declared = {"name": "f", "description": "d", "parametersJsonSchema": SCHEMA}
    assert asked(CHAT, tools=[TOOL])["tools"] == [{"functionDeclarations": [declared]}]


def test_an_answer_as_json():
    output = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    config = asked(CHAT, response_format=output)["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    config = asked(CHAT, response_format={"type": "json_object"})["generationConfig"]
    assert config == {"responseMimeType": "application/json"}


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-3-pro", "low", {"thinkingLevel": "LOW"}),
        ("gemini-3-pro", "max", {"thinkingLevel": "HIGH"}),
        ("gemini-3-pro", "none", {"thinkingLevel": "LOW"}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW"}),
        ("gemini-3-flash", "none", {"thinkingLevel": "MINIMAL"}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "medium", {"thinkingBudget": 8192}),
        ("gemini-2.5-flash", "xhigh", {"thinkingBudget": 24576}),
    ],
)
def test_effort_is_a_level_or_a_budget(model: str, effort: str, thinking: dict[str, Any]):
    body = asked(CHAT, model=model, drops=True, reasoning_effort=effort)
    assert body["generationConfig"] == {"thinkingConfig": thinking}


def test_images_stand_in_the_request():
    image = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AAAA"}}
    parts = asked(CHAT, messages=[{"role": "user", "content": [image]}])["contents"][0]["parts"]
    assert parts == [{"inlineData": {"mimeType": "image/jpeg", "data": "AAAA"}}]


REFUSED: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"messages": [HI, {"role": "assistant", "content": "The best is"}]}, "messages[1]"),
    (CHAT, {"messages": [{"role": "system", "content": "a"}]}, "messages"),
    (CHAT, {"messages": [{"role": "tool", "tool_call_id": "c9", "content": "a"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]}]}, "messages[0].content[0]"),
    (ANTHROPIC, {"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "AAAA"}}]}]},
     "messages[0].content[0]"),
    (ANTHROPIC, {"stop_sequences": list("abcdef")}, "stop_sequences"),
    (ANTHROPIC, {"messages": [HI, {"role": "assistant", "content": "The best is"}]}, "messages[1]"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more", "field"), REFUSED)
def test_what_gemini_cannot_be_asked_is_refused(source: Api, more: dict[str, Any], field: str):
    with pytest.raises(Untranslatable) as refused:
        asked(source, drops=True, **more)
    assert refused.value.field.startswith(field)


DROPPED: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    (RESPONSES, {"tools": [{"type": "function", "name": "f"}], "parallel_tool_calls": False}, "parallel_tool_calls"),
    (ANTHROPIC, {"tools": [{"name": "f", "input_schema": {}}],
                 "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
     "tool_choice.disable_parallel_tool_use"),
    (CHAT, {"user": "u"}, "user"),
    (CHAT, {"safety_identifier": "s"}, "safety_identifier"),
    (ANTHROPIC, {"metadata": {"user_id": "u"}}, "metadata.user_id"),
    (CHAT, {"metadata": {"a": "b"}}, "metadata"),
    (CHAT, {"service_tier": "scale"}, "service_tier"),
    (CHAT, {"verbosity": "low"}, "verbosity"),
    (CHAT, {"reasoning_effort": "xhigh"}, "reasoning_effort"),
    (ANTHROPIC, {"thinking": {"type": "disabled"}}, "thinking.type"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more", "field"), DROPPED)
def test_what_only_tunes_is_left_out_and_told_or_refused(source: Api, more: dict[str, Any], field: str):
    assert _translated(source, "gemini-3-pro", True, more).dropped == (field,)
    with pytest.raises(Untranslatable, match="cannot be translated") as refused:
        asked(source, **more)
    assert refused.value.field == field


@pytest.mark.parametrize("name", CLIENTS)
def test_the_default_request_of_a_client_comes_through(name: str):
    source, body = CLIENTS[name]
    assert _translated(source, "gemini-3-pro", True, body).body


@pytest.mark.parametrize("model", ["", "..", "a/b", "../x", "a?b", "a:b", "a%2fb", "x" * 300])
def test_a_model_that_would_be_another_path_is_refused(model: str):
    with pytest.raises(Untranslatable, match="path"):
        _translated(CHAT, "", False, {"model": model})


@pytest.mark.parametrize("source", [CHAT, ANTHROPIC])
def test_googles_sdk_knows_every_field(source: Api):
    types = pytest.importorskip("google.genai.types")
    body = {**LARGEST[source], "messages": [*LARGEST[source]["messages"], HI]}
    text = json.dumps(body).replace('"type": "url", "url": "https://a.example/cat.png"',
                                    '"type": "base64", "media_type": "image/png", "data": "AAAA"')  # fmt: skip
    made = asked(source, drops=True, **json.loads(text))
    for content in made.pop("contents"):
        types.Content.model_validate(content)
    types.Content.model_validate(made.pop("systemInstruction"))
    for tool in made.pop("tools"):
        types.Tool.model_validate(tool)
    types.ToolConfig.model_validate(made.pop("toolConfig"))
    types.GenerationConfig.model_validate(made.pop("generationConfig"))
    assert made == {}
