from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ai.apis import offered_tools
from egressproxy.ai.apis import request as request_room
from egressproxy.ai.apis.apis import Api, operation_of
from egressproxy.ai.apis.request import AiRequest, estimated_tokens, plain_chat
from egressproxy.ai.apis.texts import TextKind, TextRole, found_texts
from egressproxy.model.strict_json import OtherSpelling, Unreadable
from egressproxy.model.work import at_once
from tests.ai.apis.bodies import PATHS, REQUESTS

EACH = pytest.mark.parametrize("api", list(REQUESTS))


def read(api: Api, **more: Any) -> AiRequest:
    return AiRequest.read(json.dumps({**REQUESTS[api], **more}, indent=1).encode(), operation_of(PATHS[api]))


@EACH
def test_the_texts_are_told_with_who_says_them(api: Api):
    said = {(part.text, part.role, part.kind) for part in read(api).texts() if part.role is not TextRole.NONE}
    assert said == {
        ("be brief", TextRole.SYSTEM, TextKind.TEXT),
        ("plain", TextRole.USER, TextKind.TEXT),
        ("what is this", TextRole.USER, TextKind.TEXT),
        ("a document", TextRole.USER, TextKind.TEXT),
        ("hm", TextRole.ASSISTANT if api is not Api.OPENAI_RESPONSES else TextRole.USER, TextKind.REASONING),
        ("deep", TextRole.ASSISTANT, TextKind.ARGUMENTS),
        ("a cat", TextRole.TOOL, TextKind.RESULT),
    }
    others = {(part.text, part.kind) for part in read(api).texts() if part.role is TextRole.NONE}
    assert others == {("looks", TextKind.DEFINITION)}


@EACH
def test_a_text_is_replaced_and_the_rest_stays_as_it_came(api: Api):
    request = read(api)
    for part in request.texts():
        if not part.is_signed:
            part.replace(part.text.upper())
    expected = request.source.decode()
    for word in ("be brief", '"plain"', "what is this", "a document", "deep", "a cat", "looks"):
        expected = expected.replace(word, word.upper())
    if api in (Api.OPENAI_CHAT, Api.OPENAI_RESPONSES):
        expected = expected.replace(r"{\"id\": \"DEEP\", \"n\": 1}", r"{\"id\":\"DEEP\",\"n\":1}").replace(
            '"hm"', '"HM"'
        )
    elif api is Api.GEMINI:
        expected = expected.replace('"hm"', '"HM"')
    assert request.body().decode() == expected


@EACH
def test_what_nobody_changes_is_the_very_body(api: Api):
    request = read(api)
    source = request.source
    assert list(request.texts())
    assert request.body() is source


def test_signed_thinking_is_not_replaced():
    (part,) = [part for part in read(Api.ANTHROPIC).texts() if part.kind is TextKind.REASONING]
    with pytest.raises(ValueError, match=r"`?messages\[2\]\.content\[0\]\.thinking is signed"):
        part.replace("other")


@EACH
def test_tools_calls_and_images_are_told(api: Api):
    request = read(api)
    assert [tool.name for tool in request.tools] == ["look"]
    assert [(call.name, call.id, call.arguments) for call in request.tool_calls()] == [
        ("look", "c1", {"id": "deep", "n": 1})
    ]
    assert [(image.media_type, image.size) for image in request.images] == [("image/png", 6)]


@EACH
def test_tools_are_withheld(api: Api):
    request = read(api)
    request.withhold_tools([tool for tool in request.tools if tool.name == "look"])
    assert AiRequest.read(request.body(), request.operation).tools == []


@EACH
def test_model_limit_and_temperature_are_told_and_set(api: Api):
    request = read(api)
    assert request.max_output_tokens == 100
    assert request.temperature == 0.5
    request.set_max_output_tokens(7)
    request.set_temperature(0)
    request.set_model("other")
    again = AiRequest.read(request.body(), request.operation)
    assert (again.max_output_tokens, again.temperature) == (7, 0)
    in_path = {
        Api.GEMINI: "gemini-x",
        Api.BEDROCK_CONVERSE: "anthropic.claude-x:0",
        Api.BEDROCK_INVOKE: "anthropic.claude-x:0",
    }
    assert again.model == in_path.get(api, "other")


@EACH
def test_a_limit_is_added_where_the_api_has_it(api: Api):
    body = {key: value for key, value in REQUESTS[api].items() if "max_" not in key and "Config" not in key}
    request = AiRequest.read(json.dumps(body).encode(), operation_of(PATHS[api]))
    assert request.max_output_tokens is None
    request.set_max_output_tokens(5)
    request.set_temperature(1.5)
    again = AiRequest.read(request.body(), request.operation)
    assert (again.max_output_tokens, again.temperature) == (5, 1.5)


def test_a_model_in_the_path_and_one_in_the_body_are_both_told():
    path = b"/openai/deployments/mine/chat/completions"
    request = AiRequest.read(b'{"model":"other","messages":[]}', operation_of(path))
    assert request.models == ("mine", "other")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"model":"a","model":"b"}', b'{"Model":"a"}', b'{"model":"a","MESSAGES":[]}',
        b'{"a":"\\ud800"}', b'{"a":NaN}', b"\xff{}", b"[" * 200 + b"]" * 200, b'{"a":[' + b"{}," * 60000 + b"{}]}",
    ],
)  # fmt: skip
def test_what_two_readers_could_understand_differently_is_unreadable(body: bytes):
    with pytest.raises(Unreadable):
        AiRequest.read(body)


def test_a_field_that_nobody_knows_is_a_text():
    request = AiRequest.read(b'{"messages":[{"role":"user","content":[{"type":"new_part","new":{"text":"hidden"}}]}]}')
    assert [(part.text, part.role, part.where) for part in request.texts()] == [
        ("hidden", TextRole.USER, "messages[0].content[0].new.text")
    ]


def test_a_message_of_mcp_tells_its_call():
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":{"q":"a"}}}'
    request = AiRequest.read(body)
    assert [(call.name, call.arguments) for call in request.tool_calls()] == [("look", {"q": "a"})]
    assert ("a", TextKind.ARGUMENTS) in [(part.text, part.kind) for part in request.texts()]


@pytest.mark.parametrize(
    ("more", "tells", "options"),
    [
        ({"stream": True}, False, {"include_usage": True}),
        ({"stream": True, "stream_options": {"x": 1}}, False, {"x": 1, "include_usage": True}),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, {"include_usage": True}),
        ({}, True, None),
    ],
)
def test_usage_is_asked_for_where_a_stream_would_not_tell_it(more: Any, tells: bool, options: Any):
    request = read(Api.OPENAI_CHAT, **more)
    assert request.ask_for_usage() is not tells
    assert json.loads(request.body()).get("stream_options") == options


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("a" * 401, 101), ("日本語", 3), ("Привет", 4)])
def test_tokens_are_estimated_by_script(text: str, tokens: int):
    assert estimated_tokens(text) == tokens


@EACH
def test_the_tokens_of_a_request_are_its_texts_messages_and_images(api: Api):
    request = read(api)
    texts = sum(estimated_tokens(part.text) for part in request.texts())
    assert texts < at_once(request.estimated_input_tokens()) - 1000 < texts + 30


TEXTS = st.text(max_size=12) | st.sampled_from(["", "data:x", '{"a":"b"}', "user", "日本語"])
VALUES = st.none() | st.booleans() | st.integers() | TEXTS
MESSAGES = st.fixed_dictionaries(
    {
        "role": TEXTS | VALUES,
        "content": TEXTS | VALUES | st.lists(st.fixed_dictionaries({"type": TEXTS, "text": TEXTS})),
    }
) | st.dictionaries(st.sampled_from(["role", "content", "name", "type", "thinking", "tool_calls"]), VALUES)
CONVERSATIONS = st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS}), max_size=4)
COUNTS = ["max_tokens", "max_completion_tokens", "generationConfig", "n", "best_of"]
NAMES = ["model", "system", "instructions", "prompt", "user", "type", "role", "id", "name", "thought", "stop", "data"]


@given(
    st.dictionaries(st.sampled_from([*NAMES, "input", "arguments", "url", "stream"]), VALUES, max_size=3),
    st.dictionaries(st.sampled_from(COUNTS), st.none() | st.booleans() | st.integers(-1, 9) | st.floats(0, 9)),
    CONVERSATIONS | st.lists(MESSAGES | VALUES, max_size=3) | VALUES,
    st.sampled_from(["messages", "contents", "input"]),
)
def test_the_tokens_of_a_plain_conversation_are_those_that_the_walk_over_its_texts_adds_up_to(
    said, counts, messages, key
):
    value = {"model": "m", **said, **counts, key: messages}
    plain = plain_chat(value)
    if plain is not None:
        tokens = sum(estimated_tokens(found.text) for found in found_texts(value)) + 4 * len(value["messages"])
        request = AiRequest(b"", value, None)
        assert plain == (tokens, request.max_output_tokens, request.choices)


@given(CONVERSATIONS.filter(bool), st.text(max_size=9))
def test_a_plain_conversation_needs_no_walk(messages, system):
    value = {"model": "m", "max_tokens": 9, "system": system, "messages": messages, "temperature": 0.5, "stream": True}
    assert plain_chat(value) is not None


def test_the_largest_limit_counts_and_all_are_set():
    request = AiRequest.read(b'{"messages":[],"max_tokens":5,"max_completion_tokens":9}')
    assert request.max_output_tokens == 9
    request.set_max_output_tokens(3)
    assert request.body() == b'{"messages":[],"max_tokens":3,"max_completion_tokens":3}'


READ = [
    *request_room._LIMITS.paths,
    *request_room._TEMPERATURES.paths,
    *request_room._CHOICES.paths,
    *offered_tools._OFFERS,
    *((name,) for name in ("model", "stream", "messages", "input", "contents", "prompt", "system", "instructions")),
    *((name, "model") for name in request_room._OTHER_MODELS),
    *(("tools", *names) for names in (("type",), ("name",), ("function", "name"), ("custom", "name"))),
    *(("tools", *names) for names in (("toolSpec", "name"), ("functionDeclarations", "name"))),
    ("tools", "function_declarations", "name"),
    ("functions", "name"),
    ("mcp_servers",),
    ("stream_options", "include_usage"),
    ("background",),
    *(("tool_choice", *names) for names in (("type",), ("name",), ("function", "name"), ("custom", "name"))),
    ("function_call", "name"),
    ("toolConfig", "toolChoice", "tool", "name"),
]


@pytest.mark.parametrize("path", READ, ids=".".join)
@pytest.mark.parametrize("is_array", [False, True])
def test_a_member_that_is_read_is_refused_in_another_case(path: tuple[str, ...], is_array: bool):
    for at, name in enumerate(path):
        value: Any = 1
        for step in reversed((*path[:at], name.upper(), *path[at + 1 :])):
            value = {step: [value] if is_array and type(value) is dict else value}
        with pytest.raises(OtherSpelling, match=f"it has '{name.upper()}'.* take for `{name}`: write `{name}`"):
            AiRequest.read(json.dumps(value).encode())
