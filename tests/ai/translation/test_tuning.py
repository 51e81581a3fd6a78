"""What a request may lose on its way to another API, and that agents' own requests come through every pair of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.apis import DEFAULT_PATHS
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.translator import ResponseTranslator, TranslatedRequest, translate_request
from egressproxy.ai.translation.tuning import TUNING
from egressproxy.model.work import at_once
from tests.ai.translation.examples import (
    ANTHROPIC,
    CHAT,
    RESPONSES,
    SMALLEST,
    chat_chunk,
    events,
    unnamed,
)

SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}}
CACHED = {"cache_control": {"type": "ephemeral"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}

#: What agents and chat programs send without being asked to, in a later turn of a conversation.
CLIENTS: dict[str, tuple[Api, dict[str, Any]]] = {
    "claude code": (ANTHROPIC, {
        "model": "claude-opus-4-8", "max_tokens": 32000, "stream": True,
        "system": [{"type": "text", "text": "You are Claude Code", **CACHED}],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "tools": [{"name": "Read", "description": "d", "input_schema": SCHEMA, "eager_input_streaming": True, **CACHED},
                  {"name": "Late", "input_schema": SCHEMA, "defer_loading": True}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "s"},
                {"type": "text", "text": "a moment"},
                {"type": "tool_use", "id": "c1", "name": "Read", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "Find", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image", "source": PNG}]},
                {"type": "tool_result", "tool_use_id": "c2",
                 "content": [{"type": "tool_reference", "tool_name": "Late"}], **CACHED}]},
        ],
    }),
    "claude code without thinking": (ANTHROPIC, {
        "model": "claude-haiku", "max_tokens": 512, "temperature": 1, "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"}, "messages": [{"role": "user", "content": "title?"}], "tools": [],
    }),
    "codex": (RESPONSES, {
        "model": "gpt-5.2-codex", "instructions": "You are Codex", "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i"}, "service_tier": "priority",
        "tools": [
            {"type": "function", "name": "exec_command", "description": "d", "strict": False, "parameters": SCHEMA},
            {"type": "custom", "name": "apply_patch", "description": "Edit files", "format": GRAMMAR},
            {"type": "namespace", "name": "mcp__files__", "description": "d",
             "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False},
                       {"type": "custom", "name": "write", "format": GRAMMAR}]},
            {"type": "web_search", "external_web_access": False}],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", "content": None},
            {"type": "function_call", "call_id": "c0", "name": "look", "namespace": "mcp__files__", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c0", "output": "files"},
            {"type": "custom_tool_call", "id": "ctc_1", "status": "completed", "call_id": "c1", "name": "apply_patch",
             "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}],
    }),
    "codex with its tools in an item": (RESPONSES, {
        "model": "gpt-6.2-sol", "tool_choice": "auto", "parallel_tool_calls": False, "store": False, "stream": True,
        "reasoning": {"effort": "high", "context": "all_turns"}, "include": ["reasoning.encrypted_content"],
        "input": [
            {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [
                {"type": "namespace", "name": "functions", "description": "", "tools": [
                    {"type": "custom", "name": "exec", "description": "d", "format": GRAMMAR},
                    {"type": "function", "name": "wait", "strict": False, "parameters": SCHEMA}]},
                {"type": "web_search"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}],
             "internal_chat_message_metadata_passthrough": {"turn_id": "t"}},
            {"type": "configuration_update", "reasoning": {"effort": "low"}}],
    }),
    "open webui": (CHAT, {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "session_id": "s",
        "chat_id": "c", "seed": 1, "frequency_penalty": 0.5, "min_p": 0.1, "chat_template_kwargs": {"a": True},
    }),
    "n8n": (CHAT, {
        "model": "m", "messages": [{"role": "user", "content": "hi", "name": "Bo"}], "max_completion_tokens": -1,
        "n": 1, "temperature": 1.5, "presence_penalty": 0.1, "timeout": None,
    }),
    "an echo of a reasoning server": (CHAT, {
        "model": "m", "store": True, "metadata": {"a": "b"}, "reasoning_effort": "minimal", "verbosity": "low",
        "service_tier": "priority", "tools": [{"type": "function", "function": {"name": "f"}}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "reasoning_details": [{}], "tool_calls": [
                {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": "so"}],
    }),
    "openrouter's clients": (CHAT, {
        "model": "m", "usage": {"include": True}, "transforms": ["middle-out"], "reasoning": {"effort": "high"},
        "messages": [{"role": "system", "content": [{"type": "text", "text": "s", **CACHED}]},
                     {"role": "user", "content": "hi", **CACHED}],
    }),
}  # fmt: skip


def lossy(source: Api, target: Api, body: dict[str, Any]) -> TranslatedRequest:
    return at_once(translate_request(json.dumps(body).encode(), source, target, drops=True))


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("target", DEFAULT_PATHS)
def test_the_default_request_of_a_client_comes_through(name: str, target: Api):
    source, body = CLIENTS[name]
    if source is not target:
        made = lossy(source, target, body)
        assert set(made.dropped) <= TUNING[source]
        there = json.loads(made.body)
        # By our own measure it is a request of that API, with nothing more to lose on the way back.
        assert lossy(target, source, there).dropped == ()


def test_what_claude_code_loses_is_told():
    source, body = CLIENTS["claude code"]
    made = lossy(source, CHAT, body)
    assert made.dropped == (
        "context_management",
        "messages[].content[].redacted_thinking",
        "messages[].content[].thinking",
        "thinking.budget_tokens",
        "tools[].defer_loading",
    )
    there = json.loads(made.body)
    assert there["reasoning_effort"] == "high"
    assert [message["role"] for message in there["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    assert there["messages"][4]["content"] == "The tool Late can be called."
    assert there["messages"][5]["content"][1]["image_url"] == {"url": "data:image/png;base64,AAAA"}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
USED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
SEARCHED = [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    {"type": "text", "text": "so", "citations": [{"type": "web_search_result_location"}]},
]
HI = {"role": "user", "content": "hi"}
TOLD: list[tuple[Api, dict[str, Any], tuple[str, ...]]] = [
    (CHAT, {"messages": [HI, {"role": "assistant", "content": None, "reasoning_content": "hm"}, HI]},
     ("messages[].reasoning_content",)),
    (CHAT, {"messages": [HI, {"role": "assistant", "tool_calls": [USED]},
                         {"role": "tool", "tool_call_id": "c", "content": [IMAGE]}]}, ()),
    (CHAT, {"messages": [HI, {"role": "assistant", "content": "a", "annotations": [{}]}, HI]},
     ("messages[].annotations",)),
    (CHAT, {"models": ["m"], "route": "fallback"}, ("models", "route")),
    (RESPONSES, {"stream_options": {"include_usage": True}}, ()),
    (RESPONSES, {"input": [{**HI, "internal_chat_message_metadata_passthrough": {"turn_id": "t"}}]},
     ("input[].internal_chat_message_metadata_passthrough",)),
    (RESPONSES, {"tools": [{"type": "function", "name": "f", "allowed_callers": ["direct", "programmatic"]}]},
     ("tools[].allowed_callers",)),
    (ANTHROPIC, {"metadata": {"user_id": "u", "SECRET": "x"}}, ("metadata",)),
    (ANTHROPIC, {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["direct", "code_execution"]}]},
     ("tools[].allowed_callers",)),
    (ANTHROPIC, {"messages": [HI, {"role": "assistant", "content": SEARCHED}, HI]},
     ("messages[].content[].citations", "messages[].content[].server_tool_use",
      "messages[].content[].web_search_tool_result")),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more", "told"), TOLD)
def test_what_is_left_out_is_told_by_its_name(source: Api, more: dict[str, Any], told: tuple[str, ...]):
    for target in DEFAULT_PATHS:
        if target is not source:
            assert lossy(source, target, {**SMALLEST[source], **more}).dropped == told


def test_a_turn_of_nothing_but_thoughts_is_left_out():
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]}
    user = {"role": "user", "content": "hi"}
    made = lossy(ANTHROPIC, CHAT, {"model": "m", "max_tokens": 9, "messages": [user, thought, user]})
    assert json.loads(made.body)["messages"] == [user, user]


#: What changes the question, or who may do what, is refused whatever the Backend says.
NEVER: list[tuple[Api, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_object"}}),
    (CHAT, {"n": 2}),
    (CHAT, {"logprobs": True}),
    (CHAT, {"logit_bias": {"1": -100}}),
    (CHAT, {"tools": [{"type": "web_search"}]}),
    (CHAT, {"tool_choice": "any"}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}),
    (CHAT, {"web_search_options": {}}),
    (CHAT, {"provider": {"data_collection": "deny"}}),
    (CHAT, {"new_field": 1}),
    (CHAT, {"max_tokens": 0}),
    (CHAT, {"max_tokens": -2}),
    (CHAT, {"temperature": 3}),
    (RESPONSES, {"previous_response_id": "resp_1"}),
    (RESPONSES, {"background": True}),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"tools": [{"type": "web_search"}]}),
    (RESPONSES, {"tools": [{"type": "mcp", "server_label": "l"}, {"type": "function", "name": "f"}]}),
    (RESPONSES, {"tools": [{"type": "local_shell"}, {"type": "function", "name": "f"}]}),
    (RESPONSES, {"tool_choice": {"type": "web_search"}, "tools": [{"type": "function", "name": "f"}]}),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}),
    (RESPONSES, {"input": [{"type": "compaction", "encrypted_content": "x"}]}),
    (ANTHROPIC, {"inference_geo": "eu"}),
    (ANTHROPIC, {"container": "c"}),
    (ANTHROPIC, {"mcp_servers": [{"type": "url"}]}),
    (ANTHROPIC, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    (ANTHROPIC, {"tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": {}}]}),
    (ANTHROPIC, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The best is ("}]}),
    (ANTHROPIC, {"thinking": {"type": "new"}}),
    (ANTHROPIC, {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "more"), NEVER)
def test_what_changes_the_question_is_never_left_out(source: Api, more: dict[str, Any]):
    for target in DEFAULT_PATHS:
        if target is not source and not (target is RESPONSES and "response_format" in more):
            with pytest.raises(Untranslatable):
                lossy(source, target, {**SMALLEST[source], **more})


def test_a_search_is_left_out_beside_tools_of_the_client():
    mine = {"name": "f", "input_schema": {}}
    made = lossy(ANTHROPIC, CHAT, {**SMALLEST[ANTHROPIC], "tools": [{"type": "web_search_20250305"}, mine]})
    assert made.dropped == ("tools[].web_search",)
    assert [tool["function"]["name"] for tool in json.loads(made.body)["tools"]] == ["f"]


def test_what_is_told_is_never_text_of_the_client():
    body = {**SMALLEST[CHAT], "seed": 1, "metadata": {"SECRET": "SECRET"}, "session_id": "SECRET"}
    made = lossy(CHAT, ANTHROPIC, body)
    assert made.dropped == ("metadata", "seed", "session_id")


def test_nothing_is_left_out_where_the_other_api_has_it():
    body = {**SMALLEST[CHAT], "metadata": {"a": "b"}, "verbosity": "low", "temperature": 1.5, "service_tier": "flex"}
    made = lossy(CHAT, RESPONSES, body)
    assert made.dropped == ()
    assert json.loads(made.body)["temperature"] == 1.5


def test_what_has_something_near_it_becomes_that():
    there = json.loads(lossy(CHAT, ANTHROPIC, {**SMALLEST[CHAT], "temperature": 1.5}).body)
    assert there["temperature"] == 1
    there = json.loads(lossy(CHAT, ANTHROPIC, {**SMALLEST[CHAT], "reasoning_effort": "minimal"}).body)
    assert there["output_config"] == {"effort": "low"}
    user = {"user": "u", "safety_identifier": "s"}
    assert json.loads(lossy(CHAT, ANTHROPIC, {**SMALLEST[CHAT], **user}).body)["metadata"] == {"user_id": "s"}


# ---- custom tools and namespaces

CODEX = CLIENTS["codex"][1]


def test_a_custom_tool_is_a_function_with_one_text():
    made = lossy(RESPONSES, ANTHROPIC, CODEX)
    assert "tools[].format" in made.dropped
    there = json.loads(made.body)
    names = [tool["name"] for tool in there["tools"]]
    assert names == ["exec_command", "apply_patch", "mcp__files__look", "mcp__files__write"]
    patch = there["tools"][1]
    assert patch["input_schema"]["required"] == ["input"]
    assert GRAMMAR["definition"] in patch["description"]
    calls = [block for message in there["messages"] for block in message["content"] if type(block) is dict]
    uses = [(block["name"], block["input"]) for block in calls if block["type"] == "tool_use"]
    assert uses == [("mcp__files__look", {}), ("apply_patch", {"input": "*** Begin Patch"})]


def test_tools_in_an_item_are_offered_and_its_settings_hold():
    made = lossy(RESPONSES, CHAT, CLIENTS["codex with its tools in an item"][1])
    assert made.dropped == (
        "input[].internal_chat_message_metadata_passthrough", "input[].tools[].tools[].format",
        "input[].tools[].web_search", "reasoning.context",
    )  # fmt: skip
    there = json.loads(made.body)
    assert [tool["function"]["name"] for tool in there["tools"]] == ["functions__exec", "functions__wait"]
    assert there["reasoning_effort"] == "low"
    assert [message["role"] for message in there["messages"]] == ["user"]


def test_the_later_one_of_two_tools_and_of_two_formats_holds():
    schema = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    body = {
        "model": "m", "tools": [{"type": "function", "name": "f", "description": "old"}], "text": {"format": schema},
        "input": [{"role": "user", "content": "hi"},
                  {"type": "additional_tools", "role": "developer",
                   "tools": [{"type": "function", "name": "f", "description": "new"}]},
                  {"type": "configuration_update", "text": {"format": {"type": "text"}}}],
    }  # fmt: skip
    there = json.loads(at_once(translate_request(json.dumps(body).encode(), RESPONSES, CHAT)).body)
    assert [tool["function"]["description"] for tool in there["tools"]] == ["new"]
    assert "response_format" not in there


def test_a_custom_tool_without_a_grammar_loses_nothing():
    tool = {"type": "custom", "name": "run", "format": {"type": "text"}}
    body = {**SMALLEST[RESPONSES], "tools": [tool], "tool_choice": {"type": "custom", "name": "run"}}
    there = json.loads(at_once(translate_request(json.dumps(body).encode(), RESPONSES, CHAT)).body)
    assert there["tool_choice"] == {"type": "function", "function": {"name": "run"}}


CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": '{"input": "*** \\"P\\""}'}},
    {"id": "c2", "type": "function", "function": {"name": "mcp__files__look", "arguments": '{"at": 1}'}},
    {"id": "c3", "type": "function", "function": {"name": "exec_command", "arguments": ""}},
]
ITEMS = [
    ("custom_tool_call", "apply_patch", None, '*** "P"'),
    ("function_call", "look", "mcp__files__", '{"at": 1}'),
    ("function_call", "exec_command", None, "{}"),
]


def seen(items: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (item["type"], item["name"], item.get("namespace"), item.get("input", item.get("arguments"))) for item in items
    ]


def test_calls_of_the_clients_own_tools_come_back_in_its_form():
    translator = ResponseTranslator(lossy(RESPONSES, CHAT, {**CODEX, "stream": False}))
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    answer = {"id": "a", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    status, body = at_once(translator.whole(200, json.dumps(answer).encode()))
    assert status == 200
    assert seen(json.loads(body)["output"]) == ITEMS


def test_calls_of_the_clients_own_tools_come_back_in_its_stream():
    chunks = []
    for index, call in enumerate(copy.deepcopy(CALLS)):
        arguments = call["function"].pop("arguments")
        chunks.append(chat_chunk({"tool_calls": [{"index": index, **call}]}))
        chunks += [chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": one}}]}) for one in arguments]
    stream = unnamed(*chunks, chat_chunk({}, "tool_calls")) + b"data: [DONE]\n\n"
    translator = ResponseTranslator(lossy(RESPONSES, CHAT, CODEX))
    told = events(translator.feed(stream) + translator.end())
    assert seen(told[-1]["response"]["output"]) == ITEMS
    custom = [event for event in told if event["type"].startswith("response.custom_tool_call_input")]
    assert [(event["type"].rpartition(".")[2], event.get("delta", event.get("input"))) for event in custom] == [
        ("delta", '*** "P"'),
        ("done", '*** "P"'),
    ]
    items = [event["item"] for event in told if event["type"] == "response.output_item.added"]
    assert {event["item_id"] for event in custom} == {items[0]["id"]}
    assert items[0]["input"] == ""
    assert seen([event["item"] for event in told if event["type"] == "response.output_item.done"]) == ITEMS


def test_calls_of_custom_tools_of_chat_come_back_in_its_form():
    tool = {"type": "custom", "custom": {"name": "run", "description": "d"}}
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
    ]
    for is_stream in (False, True):
        body = {"model": "m", "messages": said, "tools": [tool], "stream": is_stream}
        made = lossy(CHAT, ANTHROPIC, body)
        assert json.loads(made.body)["messages"][1]["content"][0]["input"] == {"input": "ls"}
        translator = ResponseTranslator(made)
        block = {"type": "tool_use", "id": "c", "name": "run", "input": {"input": "pwd"}}
        message = {"id": "m", "model": "m", "content": [block], "stop_reason": "tool_use", "usage": {}}
        if not is_stream:
            told = json.loads(at_once(translator.whole(200, json.dumps(message).encode()))[1])
            call = told["choices"][0]["message"]["tool_calls"][0]
            assert call == {"id": "c", "type": "custom", "custom": {"name": "run", "input": "pwd"}}
            continue
        parts: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ]
        deltas = [e["choices"][0]["delta"] for e in events(translator.feed(unnamed(*parts))) if e["choices"]]
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert [call.get("custom", {}).get("input") for call in calls] == ["", "pwd"]
        assert "arguments" not in json.dumps(calls)


def test_a_model_that_does_not_keep_to_the_one_text_is_heard_all_the_same():
    translator = ResponseTranslator(lossy(RESPONSES, CHAT, {**CODEX, "stream": False}))
    for arguments in ('{"patch": "x"}', "no json", "[1]"):
        call = {"id": "c", "type": "function", "function": {"name": "apply_patch", "arguments": arguments}}
        answer = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "stop"}]}
        told = json.loads(at_once(translator.whole(200, json.dumps(answer).encode()))[1])
        assert told["output"][0]["input"] == arguments


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_those_that_are_offered(mode: str):
    tools = [{"type": "function", "name": name} for name in ("a", "b", "c")]
    allowed = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": n} for n in ("a", "c")]}
    there = json.loads(lossy(RESPONSES, CHAT, {**SMALLEST[RESPONSES], "tools": tools, "tool_choice": allowed}).body)
    assert [tool["function"]["name"] for tool in there["tools"]] == ["a", "c"]
    assert there["tool_choice"] == mode
    body = {
        **SMALLEST[CHAT],
        "tools": [{"type": "function", "function": {"name": name}} for name in ("a", "b")],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "b"}}]},
        },
    }
    there = json.loads(lossy(CHAT, ANTHROPIC, body).body)
    assert [tool["name"] for tool in there["tools"]] == ["b"]
