"""What a request of one API becomes in another."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.anthropic import request_reader as anthropic_reader
from egressproxy.ai.translation.anthropic import request_writer as anthropic_writer
from egressproxy.ai.translation.apis import DEFAULT_PATHS
from egressproxy.ai.translation.bedrock import request_writer as bedrock_writer
from egressproxy.ai.translation.conversation import (
    Conversation,
    Effort,
    OutputFormat,
    Role,
    Text,
    Tool,
    ToolChoice,
    ToolForm,
    Turn,
)
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.gemini import request_writer as gemini_writer
from egressproxy.ai.translation.openai_chat import request_reader as chat_reader
from egressproxy.ai.translation.openai_chat import request_writer as chat_writer
from egressproxy.ai.translation.openai_responses import request_reader as responses_reader
from egressproxy.ai.translation.openai_responses import request_writer as responses_writer
from egressproxy.ai.translation.translator import translate_request
from egressproxy.ai.translation.tuning import Losses
from egressproxy.model.work import at_once
from tests.ai.translation.conversations import conversations, meaning
from tests.ai.translation.examples import (
    ANTHROPIC,
    BEDROCK,
    CHAT,
    GEMINI,
    LARGEST,
    PAIRS,
    RESPONSES,
    junk,
    places,
    request,
    translated,
)
from tests.support.properties import examples

IN_EACH_PAIR = pytest.mark.parametrize(("source", "target"), PAIRS)
READERS = {
    CHAT: lambda value: at_once(chat_reader.read_request(value, Losses.none())),
    RESPONSES: lambda value: at_once(responses_reader.read_request(value, Losses.none())),
    ANTHROPIC: lambda value: at_once(anthropic_reader.read_request(value, Losses.none())),
}


WRITERS: dict[Api, Any] = {
    CHAT: chat_writer, RESPONSES: responses_writer, ANTHROPIC: anthropic_writer, GEMINI: gemini_writer,
    BEDROCK: bedrock_writer,
}  # fmt: skip


def write(api: Api, conversation: Conversation) -> bytes:
    return json.dumps(at_once(WRITERS[api].write_request(conversation, conversation.model))).encode()


@IN_EACH_PAIR
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_conversation_means_the_same_there_and_back(source: Api, target: Api, data: st.DataObject):
    conversation = data.draw(conversations(source, target))
    there = at_once(translate_request(write(source, conversation), source, target)).body
    back = at_once(translate_request(there, target, source)).body
    assert meaning(READERS[source](json.loads(back))) == meaning(conversation)


#: Something to say of every attribute of a conversation.
SAID: dict[str, Any] = {
    "model": "other",
    "turns": (Turn(Role.USER, (Text("other"),)),),
    "max_tokens": 7,
    "temperature": 0.3,
    "top_p": 0.3,
    "stop": ("x",),
    "tools": (Tool("f"),),
    "tool_choice": ToolChoice("required"),
    "has_parallel_calls": False,
    "effort": Effort.LOW,
    "verbosity": "low",
    "output_format": OutputFormat({"type": "object"}),
    "is_prefilled": True,
    "is_stream": True,
    "wants_usage": False,
    "user": "u",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "names": {"a": "b"},
    "forms": {"f": ToolForm("f", is_custom=True)},
    "losses": Losses.of(CHAT),
}
#: What a writer may keep to itself: what the translator of the answer needs, and a hint for a cache.
UNSAID = (
    {(name, api) for api in WRITERS for name in ("wants_usage", "names", "forms", "losses")}
    | {(name, api) for api in (ANTHROPIC, GEMINI, BEDROCK) for name in ("prompt_cache_key", "is_prefilled")}
    | {(name, api) for api in (GEMINI, BEDROCK) for name in ("model", "is_stream")}  # in the path
)


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("attribute", [field.name for field in fields(Conversation)])
def test_every_attribute_of_a_conversation_is_written_or_refused(target: Api, attribute: str):
    tools = (Tool("g"),) if attribute == "has_parallel_calls" else ()
    plain = Conversation(model="m", turns=(Turn(Role.USER, (Text("hi"),)),), tools=tools)
    said = replace(plain, **{attribute: SAID[attribute]})
    try:
        is_silent = write(target, said) == write(target, plain)
    except Untranslatable:
        is_silent = False
    assert is_silent is ((attribute, target) in UNSAID)


def test_the_repr_of_a_conversation_shows_nothing_of_what_was_said():
    secret = json.dumps(LARGEST[CHAT]).replace("be brief", "SECRET").replace("what is this", "SECRET")
    secret = secret.replace("a cat", "SECRET").replace("a moment", "SECRET").replace('"{}"', '"SECRET"')
    body = {**json.loads(secret), "user": "SECRET", "stop": "SECRET", "metadata": {"a": "SECRET"}}
    assert "SECRET" not in repr(READERS[CHAT](body))


# ---- one by one


USER = {"role": "user", "content": "hi"}
CALLED: list[dict[str, Any]] = [
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": ident, "type": "function", "function": {"name": "look", "arguments": arguments}}
            for ident, arguments in (("c1", '{"at": "sea"}'), ("c2", ""))
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "wet"},
    {"role": "tool", "tool_call_id": "c2", "content": "dry"},
    {"role": "user", "content": "so?"},
]


def test_results_of_tools_and_what_the_user_adds_are_one_message_of_anthropic():
    assert translated(CHAT, ANTHROPIC, messages=CALLED)["messages"] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "sea"}},
                {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "wet"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "dry"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]


def test_calls_of_tools_are_items_of_a_response():
    assert translated(CHAT, RESPONSES, messages=CALLED)["input"] == [
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "sea"}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "wet"},
        {"type": "function_call_output", "call_id": "c2", "output": "dry"},
        {"type": "message", "role": "user", "content": "so?"},
    ]


def test_calls_that_are_items_become_one_message_of_chat():
    items = [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a moment"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "wet"},
        {"type": "function_call_output", "call_id": "c2", "output": "dry"},
    ]
    messages = translated(RESPONSES, CHAT, input=items)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["content"] == "a moment"
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c1", "c2"]


def test_texts_of_an_assistant_are_messages_of_their_own_in_a_response():
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = translated(ANTHROPIC, RESPONSES, messages=[USER, {"role": "assistant", "content": content}, USER])
    assert [(item["role"], item["content"]) for item in asked["input"]] == [
        ("user", "hi"),
        ("assistant", "a"),
        ("assistant", "b"),
        ("user", "hi"),
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_prompts_go_where_each_api_has_them(role: str):
    messages = [{"role": role, "content": "be brief"}, USER]
    assert translated(CHAT, ANTHROPIC, messages=messages)["system"] == "be brief"
    two = translated(CHAT, ANTHROPIC, messages=[{"role": "system", "content": "be kind"}, *messages])
    assert two["system"] == [{"type": "text", "text": "be kind"}, {"type": "text", "text": "be brief"}]
    later = translated(CHAT, ANTHROPIC, messages=[USER, messages[0]])["messages"]
    assert later == [USER, {"role": "system", "content": "be brief"}]
    assert translated(ANTHROPIC, CHAT, system="be brief")["messages"][0] == {"role": "system", "content": "be brief"}
    assert translated(ANTHROPIC, RESPONSES, system="be brief")["instructions"] == "be brief"
    assert translated(RESPONSES, ANTHROPIC, instructions="be brief")["system"] == "be brief"


def test_what_is_not_stored_is_not_stored_at_openai_either():
    assert translated(CHAT, RESPONSES)["store"] is False
    assert translated(ANTHROPIC, RESPONSES)["store"] is False
    assert translated(RESPONSES, CHAT, store=False).get("store") is None


def test_anthropic_gets_a_limit_of_tokens():
    assert translated(CHAT, ANTHROPIC)["max_tokens"] == 8192
    for name in ("max_tokens", "max_completion_tokens"):
        assert translated(CHAT, ANTHROPIC, **{name: 5})["max_tokens"] == 5
        assert translated(CHAT, RESPONSES, **{name: 5})["max_output_tokens"] == 5


def test_parallel_calls_stand_in_the_choice_of_anthropic():
    tools = [{"type": "function", "function": {"name": "look"}}]
    asked = translated(CHAT, ANTHROPIC, tools=tools, parallel_tool_calls=False)
    assert asked["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert asked["tools"] == [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
    asked = translated(CHAT, ANTHROPIC, tools=tools, parallel_tool_calls=False, tool_choice="required")
    assert asked["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert "tool_choice" not in translated(CHAT, ANTHROPIC, parallel_tool_calls=False)
    back = translated(
        ANTHROPIC,
        CHAT,
        tools=[{"name": "look", "input_schema": {}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert (back["tool_choice"], back["parallel_tool_calls"]) == ("required", False)


def test_a_function_of_responses_is_told_that_it_is_not_strict():
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert translated(CHAT, RESPONSES, tools=tools)["tools"][0]["strict"] is False


def test_usage_is_always_asked_for_in_streams_of_chat():
    assert translated(ANTHROPIC, CHAT, stream=True)["stream_options"] == {"include_usage": True}


def test_effort_is_translated():
    assert translated(CHAT, ANTHROPIC, reasoning_effort="high")["output_config"] == {"effort": "high"}
    assert translated(CHAT, ANTHROPIC, reasoning_effort="none")["thinking"] == {"type": "disabled"}
    assert translated(CHAT, RESPONSES, reasoning_effort="minimal")["reasoning"] == {"effort": "minimal"}
    assert translated(ANTHROPIC, CHAT, thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert "reasoning_effort" not in translated(ANTHROPIC, CHAT, thinking={"type": "adaptive"})


def test_an_error_of_a_tool_is_said_in_words():
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no such file", "is_error": True}
    messages = [USER, {"role": "assistant", "content": []}, {"role": "user", "content": [result]}]
    assert translated(ANTHROPIC, CHAT, messages=messages)["messages"][-1]["content"] == "Error: no such file"
    del result["content"]
    assert translated(ANTHROPIC, RESPONSES, messages=messages)["input"][-1]["output"] == "Error"


def test_images_go_by_url_and_as_data():
    data, url = "data:image/png;base64,AAAA", "https://a.example/x.png"
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in (data, url)]
    asked = translated(CHAT, ANTHROPIC, messages=[{"role": "user", "content": parts}])
    assert [block["source"] for block in asked["messages"][0]["content"]] == [
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "url", "url": url},
    ]
    back = translated(ANTHROPIC, RESPONSES, messages=asked["messages"])
    assert [part["image_url"] for part in back["input"][0]["content"]] == [data, url]


def test_what_the_model_declined_stays_in_the_conversation():
    messages = [USER, {"role": "assistant", "content": None, "refusal": "no, sorry"}, USER]
    assert translated(CHAT, RESPONSES, messages=messages)["input"][1]["content"] == [
        {"type": "refusal", "refusal": "no, sorry"}
    ]
    assert translated(CHAT, ANTHROPIC, messages=messages)["messages"][1]["content"] == "no, sorry"
    items = [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no, sorry"}]}]
    assert translated(RESPONSES, CHAT, input=items)["messages"][0] == messages[1]


def test_who_the_user_is_has_one_field_at_anthropic():
    for more in ({"user": "u"}, {"safety_identifier": "u"}, {"user": "u", "safety_identifier": "u"}):
        assert translated(CHAT, ANTHROPIC, **more)["metadata"] == {"user_id": "u"}
    assert translated(ANTHROPIC, CHAT, metadata={"user_id": "u"})["user"] == "u"
    assert translated(CHAT, RESPONSES, safety_identifier="u")["safety_identifier"] == "u"
    assert translated(RESPONSES, CHAT, safety_identifier="u")["safety_identifier"] == "u"


def test_an_empty_text_beside_a_call_says_nothing():
    messages = call("{}")
    messages[1]["content"] = ""
    content = translated(CHAT, ANTHROPIC, messages=messages)["messages"][1]["content"]
    assert [block["type"] for block in content] == ["tool_use"]


@pytest.mark.parametrize("ident", ["functions.look:0", "call_1|fc_2", "x" * 65, "\u00fc"])
def test_an_id_that_anthropic_refuses_is_another_one_there(ident: str):
    asked = call("{}")
    asked[1]["tool_calls"] = [{**asked[1]["tool_calls"][0], "id": each} for each in (ident, "a-B_1")]
    results = [{"role": "tool", "tool_call_id": each, "content": "x"} for each in (ident, "a-B_1")]
    _, called, told = translated(CHAT, ANTHROPIC, messages=[*asked[:2], *results])["messages"]
    ids = [block["id"] for block in called["content"]]
    assert [block["tool_use_id"] for block in told["content"]] == ids
    assert re.fullmatch("call_[0-9a-f]{24} a-B_1", " ".join(ids))


def test_texts_of_blanks_say_nothing_to_anthropic():
    """It refuses blocks without text, and messages of the user without content."""
    blank = {"role": "assistant", "content": "\n\n"}
    messages = [USER, blank, USER, {**call("{}")[1], "content": "\n"}, {
        "role": "tool", "tool_call_id": "c", "content": " "}, {"role": "user", "content": "  "}]  # fmt: skip
    blanks = [{"role": "system", "content": " "}, *messages, {"role": "developer", "content": ""}]
    made = translated(CHAT, ANTHROPIC, messages=blanks)
    assert "system" not in made
    *_, asked, used = made["messages"]
    assert [block["type"] for block in asked["content"]] == ["tool_use"]
    assert used["content"] == [{"type": "tool_result", "tool_use_id": "c"}]


def test_the_type_of_an_image_may_be_written_in_capitals():
    asked = translated(CHAT, ANTHROPIC, messages=image("data:Image/PNG;base64,AAAA"))
    assert asked["messages"][0]["content"][0]["source"]["media_type"] == "image/png"


# ---- what is refused, by name


def image(url: str = "https://a.example/x.png", **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, **more}}]}]


def blocks(*content: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}, USER]}


def call(arguments: str) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": arguments}
    return [USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}, USER]


IMAGE_BLOCK = {"type": "image", "source": {"type": "url", "url": "https://a.example/x.png"}}
CALL_BLOCK = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
TEXT_BLOCK = {"type": "text", "text": "a"}

REFUSED: list[tuple[Api, Api, dict[str, Any], str]] = [
    # of chat
    (CHAT, ANTHROPIC, {"temperature": 1.5}, "temperature"),
    (CHAT, RESPONSES, {"temperature": 3}, "temperature"),
    (CHAT, RESPONSES, {"temperature": True}, "temperature"),
    (CHAT, RESPONSES, {"stop": "x"}, "stop"),
    (CHAT, ANTHROPIC, {"stop": ["x", 1]}, "stop"),
    (CHAT, ANTHROPIC, {"n": 2}, "n"),
    (CHAT, ANTHROPIC, {"seed": 1}, "seed"),
    (CHAT, RESPONSES, {"seed": 1}, "seed"),
    (CHAT, ANTHROPIC, {"store": True}, "store"),
    (CHAT, ANTHROPIC, {"logprobs": True}, "logprobs"),
    (CHAT, RESPONSES, {"frequency_penalty": 0.1}, "frequency_penalty"),
    (CHAT, RESPONSES, {"logit_bias": {"1": 2}}, "logit_bias"),
    (CHAT, RESPONSES, {"modalities": ["audio"]}, "modalities"),
    (CHAT, ANTHROPIC, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, ANTHROPIC, {"function_call": "auto"}, "function_call"),
    (CHAT, ANTHROPIC, {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    (CHAT, ANTHROPIC, {"max_tokens": 0}, "max_tokens"),
    (CHAT, ANTHROPIC, {"reasoning_effort": "minimal"}, "reasoning_effort"),
    (CHAT, RESPONSES, {"reasoning_effort": "endless"}, "reasoning_effort"),
    (CHAT, ANTHROPIC, {"verbosity": "low"}, "verbosity"),
    (CHAT, ANTHROPIC, {"metadata": {"a": "b"}}, "metadata"),
    (CHAT, RESPONSES, {"metadata": {"a": 1}}, "metadata.a"),
    (CHAT, ANTHROPIC, {"service_tier": "flex"}, "service_tier"),
    (CHAT, ANTHROPIC, {"user": "a", "safety_identifier": "b"}, "user"),
    (CHAT, ANTHROPIC, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, ANTHROPIC, {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
     "response_format.json_schema.schema"),
    (CHAT, ANTHROPIC,
     {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "description": "d"}}},
     "response_format.json_schema.description"),
    (CHAT, ANTHROPIC, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (CHAT, ANTHROPIC, {"tools": [{"type": "custom", "custom": {"name": "c", "format": {
        "type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}}}]}, "tools[0].custom.format"),
    (CHAT, ANTHROPIC, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    (RESPONSES, ANTHROPIC, {"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
    (CHAT, ANTHROPIC, {"tool_choice": "any"}, "tool_choice"),
    (CHAT, ANTHROPIC, {"stream_options": {"x": 1}}, "stream_options.x"),
    (CHAT, ANTHROPIC, {"messages": []}, "messages"),
    (CHAT, ANTHROPIC, {"messages": "hi"}, "messages"),
    (CHAT, ANTHROPIC, {"messages": [{"role": "system", "content": "a"}]}, "messages"),
    (CHAT, ANTHROPIC, {"messages": [USER, {"role": "assistant", "content": "so"}]}, "messages[1]"),
    (CHAT, ANTHROPIC, {"messages": [{"role": "function", "content": "a", "name": "f"}]}, "messages[0].role"),
    (CHAT, ANTHROPIC, {"messages": [{"role": "user", "content": "a", "name": "Bo"}]}, "messages[0].name"),
    (CHAT, ANTHROPIC, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, ANTHROPIC, {"messages": [USER, 1]}, "messages[1]"),
    (CHAT, ANTHROPIC, {"messages": image(detail="high")}, "messages[0].content[0].image_url"),
    (CHAT, ANTHROPIC, {"messages": image("data:image/tiff;base64,AA")}, "messages[0].content[0].image_url"),
    (CHAT, ANTHROPIC, {"messages": image("file:///etc/passwd")}, "messages[0].content[0].image_url"),
    (CHAT, ANTHROPIC, {"messages": image("data:image/png,raw")}, "messages[0].content[0].image_url"),
    (CHAT, ANTHROPIC, {"messages": call("[]")}, "messages[1].tool_calls[0].function.arguments"),
    (CHAT, ANTHROPIC, {"messages": call('{"a":1,"a":2}')}, "messages[1].tool_calls[0].function.arguments"),
    (CHAT, ANTHROPIC, {"messages": call("{")}, "messages[1].tool_calls[0].function.arguments"),
    (CHAT, ANTHROPIC, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
     "messages[0].content[0].input_audio"),
    # of responses
    (RESPONSES, CHAT, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, CHAT, {"conversation": "c"}, "conversation"),
    (RESPONSES, CHAT, {"prompt": {"id": "p"}}, "prompt"),
    (RESPONSES, CHAT, {"store": True}, "store"),
    (RESPONSES, CHAT, {"background": True}, "background"),
    (RESPONSES, CHAT, {"truncation": "auto"}, "truncation"),
    (RESPONSES, CHAT, {"include": ["message.output_text.logprobs"]}, "include"),
    (RESPONSES, CHAT, {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    (RESPONSES, CHAT, {"max_tool_calls": 1}, "max_tool_calls"),
    (RESPONSES, CHAT, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (RESPONSES, CHAT, {"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    (RESPONSES, CHAT, {"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
    (RESPONSES, ANTHROPIC, {"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input[0].type"),
    (RESPONSES, CHAT, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
     "input[0].content[0].type"),
    (RESPONSES, CHAT, {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
     "input[0].content[0].file_id"),
    (RESPONSES, CHAT, {"input": [{**CALL_ITEM, "caller": {"type": "program", "caller_id": "p"}}]}, "input[0].caller"),
    (RESPONSES, CHAT, {"input": 1}, "input"),
    (RESPONSES, CHAT, {"input": None}, "input"),
    (RESPONSES, ANTHROPIC, {"text": {"verbosity": "low"}}, "text.verbosity"),
    (RESPONSES, ANTHROPIC, {"text": {"format": {"type": "json_object"}}}, "text.format"),
    (RESPONSES, ANTHROPIC, {"reasoning": {"effort": "minimal"}}, "reasoning.effort"),
    # of Anthropic
    (ANTHROPIC, CHAT, {"top_k": 1}, "top_k"),
    (ANTHROPIC, CHAT, {"temperature": 1.1}, "temperature"),
    (ANTHROPIC, CHAT, {"max_tokens": None}, "max_tokens"),
    (ANTHROPIC, CHAT, {"stop_sequences": ["1", "2", "3", "4", "5"]}, "stop_sequences"),
    (ANTHROPIC, RESPONSES, {"stop_sequences": ["1"]}, "stop_sequences"),
    (ANTHROPIC, CHAT, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
    (ANTHROPIC, CHAT, {"thinking": {"type": "adaptive", "display": "summarized"}}, "thinking.display"),
    (ANTHROPIC, CHAT, {"thinking": {"type": "between_tools"}}, "thinking.type"),
    (ANTHROPIC, CHAT, {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "output_config.effort"),
    (ANTHROPIC, CHAT, {"speed": "fast"}, "speed"),
    (ANTHROPIC, CHAT, {"inference_geo": "eu"}, "inference_geo"),
    (ANTHROPIC, CHAT, {"container": "c"}, "container"),
    (ANTHROPIC, CHAT, {"mcp_servers": [{}]}, "mcp_servers"),
    (ANTHROPIC, CHAT, {"metadata": {"other": "x"}}, "metadata.other"),
    (ANTHROPIC, CHAT, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    (ANTHROPIC, CHAT, {"tools": [{"name": "t", "input_schema": {}, "defer_loading": True}]}, "tools[0].defer_loading"),
    (ANTHROPIC, CHAT, {"tools": [{"name": "t", "input_schema": {}, "input_examples": [1]}]}, "tools[0].input_examples"),
    (ANTHROPIC, CHAT, {"tools": [{"name": "t", "input_schema": {}, "allowed_callers": ["code_execution_20260120"]}]},
     "tools[0].allowed_callers"),
    (ANTHROPIC, CHAT, {"messages": [USER, {"role": "assistant", "content": "The best is ("}]}, "messages[1]"),
    (ANTHROPIC, RESPONSES, {"messages": [USER, {"role": "assistant", "content": "so"}]}, "messages[1]"),
    (ANTHROPIC, CHAT, blocks({"type": "thinking", "thinking": "h", "signature": "s"}, role="assistant"),
     "messages[0].content[0].type"),
    (ANTHROPIC, CHAT, blocks({"type": "redacted_thinking", "data": "s"}, role="assistant"),
     "messages[0].content[0].type"),
    (ANTHROPIC, CHAT, blocks({"type": "document", "source": {}}), "messages[0].content[0].type"),
    (ANTHROPIC, CHAT, blocks({**TEXT_BLOCK, "citations": [{}]}), "messages[0].content[0].citations"),
    (ANTHROPIC, CHAT, blocks(CALL_BLOCK, TEXT_BLOCK, role="assistant"), "messages[0].content[1]"),
    (ANTHROPIC, CHAT, blocks({"type": "image", "source": {"type": "file", "file_id": "f"}}),
     "messages[0].content[0].source.type"),
    (ANTHROPIC, CHAT, blocks({"type": "image", "source": {"type": "base64", "data": "AA"}}),
     "messages[0].content[0].source.media_type"),
    (ANTHROPIC, CHAT, blocks({**IMAGE_BLOCK, "transformations": {"oversized_image": "error"}}),
     "messages[0].content[0].transformations"),
    (ANTHROPIC, CHAT, blocks({**CALL_BLOCK, "caller": {"type": "code_execution_20260120"}}, role="assistant"),
     "messages[0].content[0].caller"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "more", "field"), REFUSED)
def test_what_cannot_be_said_is_refused_by_name(source: Api, target: Api, more: dict[str, Any], field: str):
    with pytest.raises(Untranslatable) as caught:
        request(source, target, **more)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
HINTED = {**CACHED, "prompt_cache_breakpoint": {"mode": "explicit"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(api: Api, *content: dict[str, Any], role: str = "user", **more: Any) -> dict[str, Any]:
    """A conversation that begins with this message."""
    if api is RESPONSES:
        return {"input": [{"role": role, "content": list(content), **more}, USER]}
    return {"messages": [{"role": role, "content": list(content), **more}, USER]}


def results(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
                                                        "content": list(content), **more}]}, USER]}  # fmt: skip


#: The rows of what is left out in docs/translation.md, member by member: what stands beside what means the same.
NOTHING: dict[str, Any] = {}
LEFT_OUT: list[tuple[Api, dict[str, Any], dict[str, Any]]] = [
    # hints for caches, in every place that may have one
    (CHAT, CACHED, NOTHING),
    (CHAT, {"prompt_cache_retention": "24h"}, NOTHING),
    (CHAT, {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}, NOTHING),
    (CHAT, said(CHAT, {"type": "text", "text": "a", **HINTED}), said(CHAT, {"type": "text", "text": "a"})),
    (CHAT, said(CHAT, {"type": "text", "text": "a"}, role="system", **CACHED),
     said(CHAT, {"type": "text", "text": "a"}, role="system")),
    (CHAT, said(CHAT, {"type": "text", "text": "a"}, **CACHED), said(CHAT, {"type": "text", "text": "a"})),
    (CHAT, said(CHAT, {"type": "text", "text": "a"}, role="assistant", **CACHED),
     said(CHAT, {"type": "text", "text": "a"}, role="assistant")),
    (CHAT, {"messages": [{"role": "user", "content": [{**image()[0]["content"][0], **HINTED}]}]},
     {"messages": image()}),
    (CHAT, {"tools": [{"type": "function", "function": FUNCTION, **CACHED}]},
     {"tools": [{"type": "function", "function": FUNCTION}]}),
    (CHAT, {"tools": [{"type": "function", "function": {**FUNCTION, **CACHED}}]},
     {"tools": [{"type": "function", "function": FUNCTION}]}),
    (RESPONSES, CACHED, NOTHING),
    (RESPONSES, {"prompt_cache_retention": "24h"}, NOTHING),
    (RESPONSES, {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}, NOTHING),
    (RESPONSES, said(RESPONSES, {"type": "input_text", "text": "a", **HINTED}),
     said(RESPONSES, {"type": "input_text", "text": "a"})),
    (RESPONSES, said(RESPONSES, {"type": "input_text", "text": "a"}, **CACHED),
     said(RESPONSES, {"type": "input_text", "text": "a"})),
    (RESPONSES, {"tools": [{"type": "function", **FUNCTION, **CACHED}]},
     {"tools": [{"type": "function", **FUNCTION}]}),
    (RESPONSES, {"input": [{**CALL_ITEM, **CACHED}, USER]}, {"input": [CALL_ITEM, USER]}),
    (ANTHROPIC, CACHED, NOTHING),
    (ANTHROPIC, {"system": [{**TEXT_BLOCK, **CACHED}]}, {"system": [TEXT_BLOCK]}),
    (ANTHROPIC, blocks({**TEXT_BLOCK, **CACHED}), blocks(TEXT_BLOCK)),
    (ANTHROPIC, blocks({**IMAGE_BLOCK, **CACHED}), blocks(IMAGE_BLOCK)),
    (ANTHROPIC, blocks({**CALL_BLOCK, **CACHED}, role="assistant"), blocks(CALL_BLOCK, role="assistant")),
    (ANTHROPIC, results({**TEXT_BLOCK, **CACHED}, **CACHED), results(TEXT_BLOCK)),
    (ANTHROPIC, {"tools": [{"name": "f", "input_schema": {}, **CACHED}]},
     {"tools": [{"name": "f", "input_schema": {}}]}),
    # defaults of chat
    *((CHAT, {name: value}, NOTHING) for name, value in {
        "n": 1, "store": False, "logprobs": False, "top_logprobs": 0, "frequency_penalty": 0, "presence_penalty": 0.0,
        "logit_bias": {}, "modalities": ["text"], "functions": [], "service_tier": "auto", "metadata": {},
        "response_format": {"type": "text"}, "stream_options": {"include_obfuscation": True}, "tools": [], "stop": [],
        "seed": None}.items()),
    (CHAT, said(CHAT, {"type": "text", "text": "a"}, role="assistant", annotations=[]),
     said(CHAT, {"type": "text", "text": "a"}, role="assistant")),
    (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [{**CHAT_CALL, "index": 0}]},
                         {"role": "tool", "tool_call_id": "c", "content": "a", "name": "f"}]},
     {"messages": [USER, {"role": "assistant", "tool_calls": [CHAT_CALL]},
                   {"role": "tool", "tool_call_id": "c", "content": "a"}]}),
    # defaults of responses
    *((RESPONSES, {name: value}, NOTHING) for name, value in {
        "store": False, "background": False, "truncation": "disabled", "top_logprobs": 0, "context_management": [],
        "reasoning": {"context": "auto", "mode": "standard"}, "service_tier": "auto", "include": [], "metadata": {},
        "text": {"format": {"type": "text"}}, "stream_options": {"include_obfuscation": False}, "tools": []}.items()),
    (RESPONSES, {"include": ["reasoning.encrypted_content"]}, NOTHING),
    (RESPONSES, {"input": [USER, {**CALL_ITEM, "id": "fc_1", "status": "completed"},
                           {"type": "function_call_output", "call_id": "c", "output": "a", "id": "o", "name": "f",
                            "status": "completed"}]},
     {"input": [USER, CALL_ITEM, {"type": "function_call_output", "call_id": "c", "output": "a"}]}),
    (RESPONSES, said(RESPONSES, {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                     role="assistant", id="msg_1", status="completed", phase="final"),
     said(RESPONSES, {"type": "output_text", "text": "a"}, role="assistant")),
    # defaults of Anthropic
    *((ANTHROPIC, {name: value}, NOTHING) for name, value in {
        "service_tier": "auto", "speed": "standard", "thinking": {"type": "adaptive", "display": "omitted"},
        "mcp_servers": [], "system": [], "stop_sequences": [], "metadata": {}}.items()),
    (ANTHROPIC, blocks({**CALL_BLOCK, "caller": {"type": "direct"}}, role="assistant"),
     blocks(CALL_BLOCK, role="assistant")),
    (ANTHROPIC, blocks({**TEXT_BLOCK, "citations": []}), blocks(TEXT_BLOCK)),
    (ANTHROPIC, blocks({**IMAGE_BLOCK, "transformations": {"oversized_image": "downsize"}}), blocks(IMAGE_BLOCK)),
    (ANTHROPIC, {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["direct"], "defer_loading": False,
                            "input_examples": [], "eager_input_streaming": True}]},
     {"tools": [{"name": "f", "input_schema": {}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more", "plain"), LEFT_OUT)
def test_what_changes_no_meaning_is_left_out(source: Api, more: dict[str, Any], plain: dict[str, Any]):
    for target in DEFAULT_PATHS:
        if target is not source:
            assert request(source, target, **more).body == request(source, target, **plain).body


DATA_URLS = {
    "data:image/png;base64,AAAA": ("image/png", "AAAA"),
    "DATA:image/png;BASE64,AAAA": ("image/png", "AAAA"),
    " data:image/png;base64,AAAA\n": ("image/png", "AAAA"),
    "data:image/jpg;base64,AAAA": ("image/jpeg", "AAAA"),
    "data:image/jpeg;charset=utf-8;base64,AAAA": ("image/jpeg", "AAAA"),
    "data:image/png;name=a.png;base64,AAAA": ("image/png", "AAAA"),
    "data: image/png; base64, AAAA": ("image/png", "AAAA"),
    "data:image/webp;base64,AA\r\nAA": ("image/webp", "AAAA"),
    "data:image/gif;base64,AAA": ("image/gif", "AAA="),
    "data:image/gif;base64,AA%3D%3D": ("image/gif", "AA=="),
    "data:image/gif;base64,_-8=": ("image/gif", "/+8="),
}


@pytest.mark.parametrize("url", DATA_URLS)
def test_an_image_in_a_url_may_be_written_as_clients_do(url: str):
    media_type, data = DATA_URLS[url]
    plain = {"type": "base64", "media_type": media_type, "data": data}
    for source, more in (
        (CHAT, {"messages": image(url)}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}),
        (RESPONSES, said(RESPONSES, {"type": "input_image", "image_url": url})),
    ):
        content = translated(source, ANTHROPIC, **more)["messages"][0]["content"]
        assert (content[0] if type(content) is list else content)["source"] == plain


@pytest.mark.parametrize(
    "url", ["data:image/png,raw", "data:;base64,AA", "data:image/png;base64", "data:image/png;base64,", "ftp://a"]
)
def test_what_is_no_image_in_a_url_is_refused(url: str):
    with pytest.raises(Untranslatable):
        request(CHAT, ANTHROPIC, messages=image(url))


def test_images_that_tools_show_follow_the_results_of_all_calls():
    shown = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    items = [
        USER,
        {**CALL_ITEM, "call_id": "a"},
        {**CALL_ITEM, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": [shown]},
        {"type": "function_call_output", "call_id": "b", "output": "text"},
    ]
    for behind in ([], [USER]):
        messages = translated(RESPONSES, CHAT, input=[*items, *behind])["messages"]
        roles = ["user", "assistant", "tool", "tool", "user", *(one["role"] for one in behind)]
        assert [message["role"] for message in messages] == roles
        assert messages[4]["content"][-1] == {"type": "image_url", "image_url": {"url": shown["image_url"]}}
    content = [
        {"type": "tool_result", "tool_use_id": "c", "content": [TEXT_BLOCK, IMAGE_BLOCK]},
        {"type": "text", "text": "so?"},
    ]
    messages = translated(ANTHROPIC, CHAT, messages=[USER, {"role": "user", "content": content}])["messages"]
    assert [message["role"] for message in messages] == ["user", "tool", "user"]
    assert messages[1]["content"] == "a"
    assert [part["type"] for part in messages[2]["content"]] == ["text", "image_url", "text"]


@IN_EACH_PAIR
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_request_it_is_translated_or_refused(source: Api, target: Api, data: st.DataObject):
    body = json.loads(json.dumps(LARGEST[source]))
    for _ in range(data.draw(st.integers(1, 2))):
        place, key = data.draw(st.sampled_from(places(body)))
        place[key] = data.draw(junk)
    with suppress(Untranslatable):
        at_once(translate_request(json.dumps(body).encode(), source, target))
