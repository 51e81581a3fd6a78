from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.apis import framing
from egressproxy.ai.filters import tool_policy
from egressproxy.filters.testing import FilterBuildError, FilterHarness, FilterResult, exchange, response
from tests.support.properties import examples

TYPE = "egressproxy.io/ToolPolicy:v1"
ALLOWED = {"tools": {"allow": [{"names": ["search", "read_*"]}], "deny": [{"names": ["read_secret*"]}]}}
PAY = {
    "tools": {
        "allow": [
            {"names": ["search"]},
            {
                "names": ["pay"],
                "arguments": [{"path": "amount", "max": 100}, {"path": "to", "matches": "[a-z]+@shop[.]test"}],
            },
        ]
    }
}  # fmt: skip
JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}


def harness(config: dict[str, Any]) -> FilterHarness:
    return FilterHarness(config, type=TYPE, phase="request-headers", name="tools")


def ask(
    config: dict[str, Any], body: Any, answer: Any = None, path: str = "/mcp", kind: dict[str, str] = JSON
) -> FilterResult:
    told = b"" if answer is None else answer if isinstance(answer, bytes | tuple) else json.dumps(answer).encode()
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    x = exchange("POST", f"https://api.example.com{path}", JSON)
    return harness(config).run(x, request_body=sent, response=response(200, kind), response_body=told)


def rpc(method: str, number: Any = 7, **params: Any) -> dict[str, Any]:
    made = {"jsonrpc": "2.0", "method": method, "params": params}
    return made if number is None else {**made, "id": number}


def error(result: FilterResult) -> dict[str, Any]:
    assert result.local_response is not None, result
    assert result.local_response.status == 200
    found: dict[str, Any] = json.loads(result.local_response.body)
    return found


# --- MCP: calls -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["search", "read_file", "read_"])
def test_a_call_that_is_allowed_goes_on_as_it_came(name: str):
    body = json.dumps(rpc("tools/call", name=name, arguments={}), indent=3).encode()
    assert ask(ALLOWED, body).request_body == body


@pytest.mark.parametrize("name", ["delete", "Search", "read_secret", "READ_SECRET_KEY", "search ", "", "x" * 5000])
def test_a_call_that_is_not_gets_an_error_with_its_id(name: str):
    result = ask(ALLOWED, rpc("tools/call", name=name, arguments={}))
    told = error(result)
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", 7, -32602)
    assert "is not allowed" in told["error"]["message"]
    assert told["error"]["data"]["rule"] == "EgressPolicy test/policy"
    x = result.exchange
    assert (x.denied, x.reason.value, x.rule) == (True, "filter_rejected", "EgressPolicy test/policy")


@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": None}, {"name": ["search"]}])
def test_a_call_without_a_name_is_not_allowed(params: dict[str, Any]):
    assert error(ask(ALLOWED, rpc("tools/call", **params)))["error"]["code"] == -32602


def test_a_call_is_told_by_its_body_whatever_its_type_says():
    x = exchange("POST", "https://api.example.com/mcp", {"Content-Type": "text/plain"})
    result = harness(ALLOWED).run(x, request_body=json.dumps(rpc("tools/call", name="delete")).encode())
    assert error(result)["error"]["code"] == -32602


def test_a_batch_is_refused_as_a_whole():
    batch = [rpc("tools/call", 1, name="search"), rpc("tools/call", 2, name="delete"), rpc("notifications/x", None)]
    told: Any = error(ask(ALLOWED, batch))
    assert [(each["id"], "another message" in each["error"]["message"]) for each in told] == [(1, True), (2, False)]
    assert ask(ALLOWED, batch[:1]).local_response is None


def test_a_notification_that_is_not_allowed_is_refused():
    refused = ask(ALLOWED, rpc("tools/call", None, name="delete"))
    assert (refused.status, str(refused.error).count("filter ")) == (403, 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"method": "tools/call", "method": "ping", "params": {"name": "delete"}}',
        b"[1",
        b"\xff",
        b'{"a": NaN}',
        b"x=1",
    ],
)
def test_what_cannot_be_read_is_refused_unless_that_is_allowed(body: bytes):
    assert ask(ALLOWED, body).status == 400
    assert ask({**ALLOWED, "unreadable": "Allow"}, body).request_body == body


def test_a_body_that_looks_like_both_is_judged_as_both():
    body = {"method": "x", "messages": [], "tools": [{"type": "function", "function": {"name": "delete"}}]}
    assert "tools" not in json.loads(ask(ALLOWED, body).request_body)


def test_a_tunnel_is_refused():
    result = harness(ALLOWED).run(exchange("CONNECT", "api.example.com:443"))
    assert result.status == 403


# --- arguments --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "is_allowed"),
    [
        ({"amount": 100, "to": "ada@shop.test"}, True),
        ({"amount": 99.5, "to": "ada@shop.test", "note": "x"}, True),
        ({"amount": 101, "to": "ada@shop.test"}, False),
        ({"amount": "100", "to": "ada@shop.test"}, False),
        ({"amount": True, "to": "ada@shop.test"}, False),
        ({"amount": 1}, False),
        ({"amount": 1, "to": "ada@shop.test.evil"}, False),
        ({"amount": 1, "to": "x ada@shop.test"}, False),
        ({}, False), ([], False), ("amount", False), (None, False),
    ],
)  # fmt: skip
def test_arguments_of_an_allowed_call(arguments: Any, is_allowed: bool):
    result = ask(PAY, rpc("tools/call", name="pay", arguments=arguments))
    assert (result.local_response is None) is is_allowed
    if not is_allowed:
        assert "with these arguments" in error(result)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "condition", "arguments", "is_denied"),
    [
        ("path", {"matches": "/etc/.+"}, {"path": "/etc/passwd"}, True),
        ("path", {"matches": "/etc/.+"}, {"path": "/home/x"}, False),
        ("path", {"matches": "/etc/.+"}, {}, False),
        ("path", {"matches": "/etc/.+"}, "no object", True),
        ("amount", {"min": 1000}, {"amount": 1000}, True),
        ("amount", {"min": 1000}, {"amount": "5000"}, True),
        ("amount", {"min": 1000}, {"amount": 5}, False),
        ("mode", {"oneOf": ["rw", 3]}, {"mode": "rw"}, True),
        ("mode", {"oneOf": ["rw", 3]}, {"mode": 3.0}, True),
        ("mode", {"oneOf": ["rw", 3]}, {"mode": "3"}, True),
        ("mode", {"oneOf": ["rw", 3]}, {"mode": "r"}, False),
        ("items[*].url", {"matches": "http://.+"}, {"items": [{"url": "https://a"}, {"url": "http://b"}]}, True),
        ("items[*].url", {"matches": "http://.+"}, {"items": [{"url": "https://a"}]}, False),
        ("items[1]", {"oneOf": [5]}, {"items": [1, 5]}, True),
        ("items[1]", {"oneOf": [5]}, {"items": [5]}, False),
        ("text", {"maxLength": 3}, {"text": "abc"}, True),
        ("text", {"maxLength": 3}, {"text": "abcd"}, False),
    ],
)  # fmt: skip
def test_arguments_of_a_denied_call(path: str, condition: dict[str, Any], arguments: Any, is_denied: bool):
    config = {"tools": {"deny": [{"names": ["do"], "arguments": [{"path": path, **condition}]}]}}
    result = ask(config, rpc("tools/call", name="do", arguments=arguments))
    assert (result.local_response is not None) is is_denied


@pytest.mark.parametrize(
    "config",
    [
        {}, {"tools": {"allow": [{"names": []}]}},
        {"tools": {"deny": [{"names": ["x"], "arguments": [{"path": "a"}]}]}},
        {"tools": {"deny": [{"names": ["x"], "arguments": [{"path": "a..b", "min": 1}]}]}},
        {"tools": {"deny": [{"names": ["x"], "arguments": [{"path": "a", "matches": "("}]}]}},
        {"tools": {}, "onDeny": "x"},
    ],
)  # fmt: skip
def test_a_wrong_config_is_refused(config: dict[str, Any]):
    with pytest.raises(FilterBuildError):
        harness(config)


# --- MCP: lists, resources, prompts -----------------------------------------------------------------------------------
LIST = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {"tools": [{"name": n} for n in ("search", "delete", "read_x", "read_secret")]},
}


def test_a_list_of_tools_is_shortened():
    result = ask(ALLOWED, rpc("tools/list"), LIST)
    assert json.loads(result.response_body)["result"]["tools"] == [{"name": "search"}, {"name": "read_x"}]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_list_that_comes_as_an_event_is_shortened(size: int):
    body = b": hello\n\nid: 1\nevent: message\ndata: " + json.dumps(LIST).encode() + b"\n\n"
    pieces = tuple(body[n : n + size] for n in range(0, len(body), size))
    result = ask(ALLOWED, rpc("tools/list"), pieces, kind=EVENTS)
    told = result.response_body
    assert told.startswith(b": hello\n\nid: 1\nevent: message\ndata: {")
    assert json.loads(told.rpartition(b"data: ")[2])["result"]["tools"] == [{"name": "search"}, {"name": "read_x"}]


def test_a_batch_of_answers_is_shortened():
    event = b"data: " + json.dumps([LIST, LIST]).encode() + b"\n\n"
    for told in (
        ask(ALLOWED, rpc("tools/list"), event, kind=EVENTS).response_body.removeprefix(b"data: "),
        ask(ALLOWED, rpc("tools/list"), [LIST, LIST]).response_body,
    ):
        for each in json.loads(told):
            assert each["result"]["tools"] == [{"name": "search"}, {"name": "read_x"}]


def test_a_tool_whose_arguments_decide_is_shown():
    listed = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "pay"}, {"name": "drop"}]}}
    assert json.loads(ask(PAY, rpc("tools/list"), listed).response_body)["result"]["tools"] == [{"name": "pay"}]


def test_an_answer_that_lists_nothing_passes_byte_for_byte():
    body = b'{ "jsonrpc": "2.0", "id": 1,  "result": {"content": [{"type": "text", "text": "delete"}]} }'
    assert ask(ALLOWED, rpc("tools/call", name="search"), body).response_body == body


REST = {
    "tools": {},
    "resources": {"allow": [{"names": ["file:///pub/*"]}], "deny": [{"names": ["*.key"]}]},
    "prompts": {"deny": [{"names": ["admin*"]}]},
}


@pytest.mark.parametrize(
    ("method", "params", "is_allowed"),
    [
        ("resources/read", {"uri": "file:///pub/a"}, True),
        ("resources/read", {"uri": "file:///pub/a.KEY"}, False),
        ("resources/subscribe", {"uri": "file:///etc/a"}, False),
        ("resources/read", {}, False),
        ("prompts/get", {"name": "hello"}, True),
        ("prompts/get", {"name": "ADMIN"}, False),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "admin"}}, False),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "file:///etc/a"}}, False),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "hello"}}, True),
        ("initialize", {}, True), ("ping", {}, True),
    ],
)  # fmt: skip
def test_resources_and_prompts(method: str, params: dict[str, Any], is_allowed: bool):
    assert (ask(REST, rpc(method, **params)).local_response is None) is is_allowed


def test_lists_of_resources_and_prompts_are_shortened():
    listed = {
        "jsonrpc": "2.0", "id": 1,
        "result": {
            "resources": [{"uri": "file:///pub/a"}, {"uri": "file:///x"}],
            "prompts": [{"name": "admin"}, {"name": "b"}],
            "resourceTemplates": [{"uriTemplate": "file:///pub/{x}"}, {"uriTemplate": "file:///{x}"}],
        },
    }  # fmt: skip
    result = json.loads(ask(REST, rpc("resources/list"), listed).response_body)["result"]
    assert result == {
        "resources": [{"uri": "file:///pub/a"}], "prompts": [{"name": "b"}],
        "resourceTemplates": [{"uriTemplate": "file:///pub/{x}"}],
    }  # fmt: skip


# --- chat: what is offered --------------------------------------------------------------------------------------------
def refused(said: FilterResult, status: int) -> str:
    assert said.error is not None
    assert said.error.status == status
    return str(said.error)


def offering(*names: str, **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools, **more}


def test_tools_that_are_not_allowed_are_not_offered():
    sent = json.loads(ask(ALLOWED, offering("search", "delete"), path="/v1/chat/completions").request_body)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["search"]


def test_a_request_that_offers_none_of_them_has_no_tools_at_all():
    sent = json.loads(ask(ALLOWED, offering("delete", tool_choice="auto"), path="/v1/chat/completions").request_body)
    assert sent == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


LOOK, DROP = {"type": "function", "name": "look"}, {"type": "function", "name": "drop"}


@pytest.mark.parametrize(
    ("tools", "left"),
    [
        ([LOOK, DROP, {"type": "web_search"}], [LOOK]),
        ([{"type": "namespace", "name": "db", "tools": [DROP, LOOK]}],
         [{"type": "namespace", "name": "db", "tools": [LOOK]}]),
        ([{"type": "namespace", "name": "db", "tools": [DROP]}, LOOK], [LOOK]),
        ([{"type": "namespace", "name": "other", "tools": [LOOK]}, LOOK], [LOOK]),
        ([DROP], None),
        ([{"type": "namespace", "name": "db", "tools": [DROP]}], None),
    ],
)  # fmt: skip
def test_tools_of_namespaces_and_those_that_the_input_adds_are_offers(tools: list[Any], left: list[Any] | None):
    """The answer alone would not tell: what the provider runs, a search say, is called by nobody else."""
    config, user = {"tools": {"allow": [{"names": ["look", "db"]}]}}, {"role": "user", "content": "hi"}
    choice = {} if left is None else {"tool_choice": "auto"}
    body = {"model": "m", "input": [user], "tools": tools, "tool_choice": "auto"}
    sent = json.loads(ask(config, body, path="/v1/responses").request_body)
    assert sent == {"model": "m", "input": [user], **choice, **({} if left is None else {"tools": left})}
    added = {"type": "additional_tools", "role": "developer"}
    body = {"model": "m", "input": [{**added, "tools": tools}, user], "tool_choice": "auto"}
    sent = json.loads(ask(config, body, path="/v1/responses").request_body)
    assert sent == {"model": "m", "input": [*([] if left is None else [{**added, "tools": left}]), user], **choice}


def test_a_tool_that_is_not_allowed_cannot_be_forced():
    body = offering("search", "delete", tool_choice={"type": "function", "function": {"name": "delete"}})
    assert ask(ALLOWED, body, path="/v1/chat/completions").status == 403


@pytest.mark.parametrize(
    ("tools", "left"),
    [
        ([{"functionDeclarations": [{"name": "search"}, {"name": "delete"}], "googleSearch": {}, "codeExecution": {}}],
         [{"functionDeclarations": [{"name": "search"}]}]),
        ([{"googleSearch": {}, "functionDeclarations": [{"name": "search"}]}],
         [{"functionDeclarations": [{"name": "search"}]}]),
        ([{"functionDeclarations": [{"name": "search"}], "function_declarations": [{"name": "delete"}]}],
         [{"functionDeclarations": [{"name": "search"}], "function_declarations": []}]),
        ([{"functionDeclarations": [{"name": "search"}], "name": "delete"}], None),
        ([{"googleSearch": {}, "codeExecution": {}}, {"functionDeclarations": [{"name": "search"}]}],
         [{"functionDeclarations": [{"name": "search"}]}]),
        ([{"codeExecution": {}, "urlContext": {}}], None),
    ],
)  # fmt: skip
def test_every_member_of_a_tool_of_gemini_is_one(tools: list[Any], left: list[Any] | None):
    body = {"contents": [], "tools": tools}
    sent = json.loads(ask(ALLOWED, body, path="/v1beta/models/g:generateContent").request_body)
    assert sent.get("tools") == left


#: `delete` is not allowed, and `search` is.
ALONE: list[tuple[Any, Any]] = [
    ({"googleSearch": {}}, None),
    ({"functionDeclarations": [{"name": "delete"}]}, None),
    ({"functionDeclarations": {"name": "delete"}, "search": {}}, {"search": {}}),
    ({"googleSearch": {}, "functionDeclarations": {"name": "search"}}, {"functionDeclarations": {"name": "search"}}),
    ({"type": "function", "function": {"name": "delete"}}, None),
    ([{"functionDeclarations": {"name": "delete"}}, {"name": "search"}], [{"name": "search"}]),
    (["delete", "search"], ["search"]),
    ({"functionDeclarations": {"name": "search"}}, {"functionDeclarations": {"name": "search"}}),
]


@pytest.mark.parametrize(("tools", "left"), ALONE)
def test_a_tool_without_an_array_around_it_is_offered_too(tools: Any, left: Any):
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "tools": tools}
    said = ask(ALLOWED, body, path="/v1beta/models/g:generateContent")
    assert said.error is None
    sent = json.loads(said.request_body)
    assert sent == {key: each for key, each in body.items() if key != "tools" or left is not None} | (
        {} if left is None else {"tools": left}
    )


def test_items_of_the_input_without_an_array_around_them_add_tools_too():
    added = {"type": "additional_tools", "tools": {"type": "web_search"}}
    sent = json.loads(ask(ALLOWED, {"model": "m", "input": added}, path="/v1/responses").request_body)
    assert sent == {"model": "m", "input": {"type": "additional_tools"}}


def test_a_search_that_is_asked_for_by_options_is_a_tool_that_is_forced():
    body = {"model": "m", "messages": [], "web_search_options": {}}
    assert "tool 'web_search'" in refused(ask(ALLOWED, body, path="/v1/chat/completions"), 403)
    allowed = {"tools": {"allow": [{"names": ["web_search"]}]}}
    assert json.loads(ask(allowed, body, path="/v1/chat/completions").request_body) == body


IN_BATCHES: dict[str, Callable[[Any], Any]] = {
    "/v1/messages/batches": lambda tools: {"requests": [{}, {"custom_id": "a", "params": {"tools": tools}}]},
    "/v1beta/models/g:batchGenerateContent": lambda tools: {
        "batch": {"input_config": {"requests": {"requests": [{"request": {"contents": [], "tools": tools}}]}}}
    },
    "/v1beta/models/h:batchGenerateContent": lambda tools: {
        "batch": {"inputConfig": {"requests": {"requests": {"request": {"contents": [], "tools": tools}}}}}
    },
}


@pytest.mark.parametrize("path", IN_BATCHES)
def test_what_the_requests_of_a_batch_offer_has_to_be_allowed(path: str):
    search = IN_BATCHES[path]([{"name": "search"}])
    assert json.loads(ask(ALLOWED, search, path=path).request_body) == search
    for tools in ([{"name": "search"}, {"name": "delete"}], {"googleSearch": {}}):
        assert "batch offers tool" in refused(ask(ALLOWED, IN_BATCHES[path](tools), path=path), 403)
    other = json.dumps(IN_BATCHES[path]([{"name": "search"}])).replace("requests", "Requests").encode()
    refused(ask(ALLOWED, other, path=path), 400)


@pytest.mark.parametrize(
    "tool", [{"type": "function", "name": "delete"}, {"type": "mcp", "server_label": "x"}], ids=str
)
def test_what_the_session_of_a_realtime_secret_offers_has_to_be_allowed(tool: Any):
    path = "/v1/realtime/client_secrets"
    session = {"session": {"type": "realtime", "tools": [{"type": "function", "name": "search"}]}}
    assert json.loads(ask(ALLOWED, session, path=path).request_body) == session
    session["session"]["tools"] = [tool]
    assert "session offers tool" in refused(ask(ALLOWED, session, path=path), 403)


FORCED: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "delete"}}]}}}, None),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "delete"}]}}, None),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "delete"}}, {"type": "function", "function": {"name": "search"}}]}}},
     {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "search"}}]}}}),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "custom", "name": "delete"}, {"type": "function", "name": "search"}]}},
     {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "search"}]}}),
    ({"tool_choice": {"type": "custom", "name": "delete"}}, None),
    ({"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["delete"]}}}, None),
    ({"tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["delete"]}}}, None),
    ({"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["search", "delete"]}}},
     {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["search"]}}}),
]  # fmt: skip


@pytest.mark.parametrize(("forced", "left"), FORCED)
def test_a_tool_that_is_not_allowed_is_none_of_those_that_may_be_chosen(
    forced: dict[str, Any], left: dict[str, Any] | None
):
    result = ask(ALLOWED, offering("search", "delete", **forced), path="/v1/chat/completions")
    if left is None:
        assert result.status == 403
    else:
        sent = json.loads(result.request_body)
        assert {name: sent[name] for name in left} == left


def test_a_search_that_is_not_allowed_cannot_be_forced():
    body = {**offering("search", tool_choice={"type": "web_search"})}
    body["tools"].append({"type": "web_search"})
    assert ask(ALLOWED, body, path="/v1/responses").status == 403


# --- chat: what the model calls ---------------------------------------------------------------------------------------
def chat_answer(name: str, arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"model": "m", "choices": [{"index": 0, "message": {"tool_calls": [call]}}]}


ANSWERS = {
    "chat": chat_answer,
    "responses": lambda n, a: {
        "output": [{"type": "function_call", "name": n, "arguments": json.dumps(a), "call_id": "1"}]
    },
    "anthropic": lambda n, a: {"type": "message", "content": [{"type": "tool_use", "id": "1", "name": n, "input": a}]},
    "gemini": lambda n, a: {"candidates": [{"content": {"parts": [{"functionCall": {"name": n, "args": a}}]}}]},
    "bedrock": lambda n, a: {
        "output": {"message": {"content": [{"toolUse": {"name": n, "toolUseId": "1", "input": a}}]}}
    },
}


@pytest.mark.parametrize("api", ANSWERS)
def test_an_answer_that_calls_what_is_not_allowed_is_refused(api: str):
    for name, arguments, is_allowed in (
        ("search", {}, True), ("drop", {}, False), ("pay", {"amount": 5, "to": "a@shop.test"}, True),
        ("pay", {"amount": 500, "to": "a@shop.test"}, False),
    ):  # fmt: skip
        answer = ANSWERS[api](name, arguments)
        result = ask(PAY, offering("search", "pay"), answer, "/v1/chat/completions")
        if is_allowed:
            assert json.loads(result.response_body) == answer
        else:
            assert result.status == 403
            assert result.error is not None
            assert f"'{name}'" in result.error.message


def events(*values: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in values)


def chat_stream(name: str, arguments: str) -> bytes:
    def delta(**more: Any) -> dict[str, Any]:
        return {"model": "m", "choices": [{"index": 0, "delta": more, "finish_reason": None}]}

    parts = [arguments[n : n + 3] for n in range(0, len(arguments), 3)]
    begun = delta(tool_calls=[{"index": 0, "id": "1", "function": {"name": name, "arguments": ""}}])
    pieces = [delta(tool_calls=[{"index": 0, "function": {"arguments": part}}]) for part in parts]
    end = {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return events(delta(content="well"), begun, *pieces, end) + b"data: [DONE]\n\n"


def anthropic_stream(name: str, arguments: str) -> bytes:
    parts = [arguments[n : n + 3] for n in range(0, len(arguments), 3)]
    block = {"type": "tool_use", "id": "1", "name": name, "input": {}}
    return events(
        {"type": "message_start", "message": {"model": "m", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "well"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": block},
        *[
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": p}}
            for p in parts
        ],
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )


def responses_stream(name: str, arguments: str) -> bytes:
    item = {"type": "function_call", "name": name, "call_id": "1", "arguments": ""}
    whole = {**item, "arguments": arguments}
    return events(
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "well"},
        {"type": "response.output_item.added", "output_index": 1, "item": item},
        *[
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": arguments[n : n + 3]}
            for n in range(0, len(arguments), 3)
        ],
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": arguments},
        {"type": "response.output_item.done", "output_index": 1, "item": whole},
        {"type": "response.completed", "response": {"output": [whole]}},
    )


def gemini_stream(name: str, arguments: str) -> bytes:
    parts = [{"functionCall": {"name": name, "args": json.loads(arguments)}}]
    return events(
        {"candidates": [{"content": {"parts": [{"text": "well"}]}}]}, {"candidates": [{"content": {"parts": parts}}]}
    )


STREAMS = {"chat": chat_stream, "anthropic": anthropic_stream, "responses": responses_stream, "gemini": gemini_stream}
GOOD, BAD = '{"amount": 5, "to": "a@shop.test"}', '{"amount": 500, "to": "a@shop.test"}'


@pytest.mark.parametrize("api", STREAMS)
@settings(max_examples=examples(100), deadline=None)
@given(
    call=st.sampled_from([("search", "{}", True), ("drop", "{}", False), ("pay", GOOD, True), ("pay", BAD, False)]),
    cuts=st.lists(st.integers(1, 1500), max_size=8),
)
def test_a_stream_is_judged_however_it_is_cut(api: str, call: tuple[str, str, bool], cuts: list[int]):
    name, arguments, is_allowed = call
    body = STREAMS[api](name, arguments)
    at = [0, *sorted({cut for cut in cuts if cut < len(body)}), len(body)]
    pieces = tuple(body[a:b] for a, b in pairwise(at))
    result = ask(PAY, offering("search", "pay"), pieces, "/v1/chat/completions", EVENTS)
    if is_allowed:
        assert result.error is None
        assert result.response_body == body
    else:
        assert result.error is not None
        assert result.error.status == 403


@pytest.mark.parametrize("api", ["chat", "anthropic", "responses"])
def test_text_is_not_held_back_and_a_call_is(api: str):
    body = STREAMS[api]("pay", GOOD)
    x = exchange("POST", "https://api.example.com/v1/chat/completions", JSON)
    pieces = tuple(event + b"\n\n" for event in body.split(b"\n\n")[:-1])
    result = harness(PAY).run(
        x, request_body=json.dumps(offering("pay")).encode(), response=response(200, EVENTS), response_body=pieces
    )
    first = next(n for n, piece in enumerate(pieces) if b'"pay"' in piece)
    assert result.response_pieces[:first] == pieces[:first]
    assert result.response_pieces[first] == b""
    assert result.response_body == body


def chat_piece(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, **more}]}


def one(name: str, arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"index": 0, "function": {"name": name, "arguments": arguments}, **more}


PAID = {"amount": 500, "to": "a@shop.test"}
SECOND: list[tuple[dict[str, Any], ...]] = [
    (chat_piece(one("search", id="1"), one("drop", id="2")),),
    (chat_piece(one("search", id="1")), chat_piece(one("drop", id="2"))),
    (chat_piece(one("search")), chat_piece(one("drop"))),
    (chat_piece(one("search", id="1")), chat_piece(one("pay", BAD, id="2"))),
    (chat_piece(one("pay", BAD, id="1")), chat_piece(one("search", id="2"))),
    (chat_piece(one("pay", BAD, id="1"), one("pay", GOOD, id="2")),),
    (chat_piece(one("pay", PAID, id="1")),),
    (chat_piece(one("search", id="1"), message={"tool_calls": [one("drop", id="2")]}),),
    ({**chat_piece(one("search", id="1")), "content": [{"type": "tool_use", "name": "drop", "input": {}}]},),
    ({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "1", "name": "search",
      "input": {}}, "message": {"content": [{"type": "tool_use", "id": "2", "name": "drop", "input": {}}]}},),
    (chat_piece({"index": 0, "function": {"name": "drop"}}),),
    ({"choices": [{"index": 0, "message": {"tool_calls": [{"id": "1", "function": {"name": "drop"}}]}}]},),
]  # fmt: skip


@pytest.mark.parametrize("events_", SECOND)
@pytest.mark.parametrize("policy", [{}, {"tools": {"deny": [{"names": ["drop"]}, {"names": ["pay"], "arguments": [
    {"path": "amount", "min": 100}]}]}}])  # fmt: skip
def test_no_call_hides_behind_another_one(events_: tuple[dict[str, Any], ...], policy: dict[str, Any]):
    result = ask(policy or PAY, offering("search", "pay"), events(*events_), "/v1/chat/completions", EVENTS)
    assert result.error is not None
    assert result.error.status == 403


def test_several_calls_that_come_whole_are_judged_one_by_one():
    calls = [one("search", "{}", id="1"), one("pay", GOOD, id="2"), one("pay", json.loads(GOOD), id="3")]
    for body in (events(chat_piece(*calls)), events(*map(chat_piece, calls))):
        result = ask(PAY, offering("search", "pay"), body, "/v1/chat/completions", EVENTS)
        assert result.error is None
        assert result.response_body == body


def test_a_stream_that_ends_within_a_call_is_judged_by_what_came():
    body = b"".join(event + b"\n\n" for event in chat_stream("pay", GOOD).split(b"\n\n")[:5])
    assert ask(PAY, offering("pay"), body, "/v1/chat/completions", EVENTS).error is not None


# --- what others read -------------------------------------------------------------------------------------------------
HIDDEN_CALL = json.dumps({"choices": [{"delta": {"tool_calls": [
    {"index": 0, "id": "c", "function": {"name": "delete", "arguments": "{}"}}]}}]}).encode()  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        b'{"x": NaN, ' + HIDDEN_CALL[1:],
        b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b", " + HIDDEN_CALL[1:],
        b'{"x": [' + b"[]," * 60_000 + b"0], " + HIDDEN_CALL[1:],
    ],
)
def test_an_event_that_looks_like_json_and_cannot_be_read_does_not_pass(event: bytes):
    result = ask(ALLOWED, offering("search"), b"data: " + event + b"\n\n", "/v1/chat/completions", EVENTS)
    assert result.error is not None
    assert b"delete" not in result.response_body


def test_text_in_events_passes_and_an_event_that_is_cut_is_left_out():
    told = b"data: hello [1]\n\n" + b"data: " + HIDDEN_CALL[:60]
    result = ask(ALLOWED, offering("search"), told, "/v1/chat/completions", EVENTS)
    assert (result.error, result.response_body) == (None, b"data: hello [1]\n\n")


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "text/event-streams"])
def test_an_answer_of_a_provider_has_a_type_that_is_read(kind: str):
    told = b"data: " + HIDDEN_CALL + b"\n\n"
    refused = ask(ALLOWED, offering("search"), told, "/v1/chat/completions", {"Content-Type": kind})
    assert refused.error is not None
    assert refused.error.status == 502
    allowed = {**ALLOWED, "unreadable": "Allow"}
    assert ask(allowed, offering("search"), told, "/v1/chat/completions", {"Content-Type": kind}).error is None
    assert ask(ALLOWED, rpc("ping"), b"hello", kind={"Content-Type": kind}).response_body == b"hello"


def test_accepted_says_nothing_that_a_client_of_mcp_reads():
    x = exchange("POST", "https://api.example.com/messages/?session_id=1", JSON)
    accepted = response(202, {})
    call = json.dumps(rpc("tools/call", name="search")).encode()
    assert harness(ALLOWED).run(x, request_body=call, response=accepted, response_body=b"Accepted").error is None


def test_accepted_by_a_provider_is_an_answer():
    x = exchange("POST", "https://api.example.com/v1/chat/completions", JSON)
    asked = json.dumps(offering("search")).encode()
    told = json.dumps(chat_answer("delete", {})).encode()
    assert harness(ALLOWED).run(x, request_body=asked, response=response(202, {}), response_body=told).error is not None


def test_two_content_types_of_an_answer_are_none():
    x = exchange("POST", "https://api.example.com/v1/chat/completions", JSON)
    told = response(200, {"Content-Type": "text/event-stream"})
    told.fields.add(b"content-type", b"application/json")
    body = json.dumps(chat_answer("delete", {})).encode()
    result = harness(ALLOWED).run(
        x, request_body=json.dumps(offering("search")).encode(), response=told, response_body=body
    )
    assert result.error is not None


def test_a_call_beside_the_arguments_of_another_one_is_judged():
    answer = chat_answer("delete", "{}")
    answer["choices"][0]["message"]["tool_calls"][0] |= {"name": "search", "arguments": "{}"}
    assert ask(ALLOWED, offering("search"), answer, "/v1/chat/completions").error is not None


@pytest.mark.parametrize(
    "offered",
    [
        {"tools": [{"type": "function", "name": "search", "function": {"name": "delete"}}]},
        {"tools": [{"type": "mcp", "name": "search", "server_url": "https://evil.test"}]},
        {"mcp_servers": [{"type": "url", "name": "search", "url": "https://evil.test"}]},
        {"additionalModelRequestFields": {"tools": [{"name": "delete", "input_schema": {}}]}},
    ],
)
def test_a_tool_is_offered_by_none_of_its_names_and_at_no_other_place(offered: dict[str, Any]):
    body = {"model": "m", "messages": [], **offered}
    sent = ask(ALLOWED, body, path="/v1/chat/completions").request_body
    assert b"delete" not in sent
    assert b"evil" not in sent
    tools = [{"name": "search", "input_schema": {}}, *offered.get("tools", ())]
    sent = ask(ALLOWED, {**body, "tools": tools}, path="/v1/chat/completions").request_body
    assert b"delete" not in sent
    assert b"evil" not in sent
    assert b"input_schema" in sent


ODD = b'data: {"a": NaN}\n\n'


@pytest.mark.parametrize("cuts", [[], [40], [60, 200], list(range(20, 400, 20))])
def test_events_that_cannot_be_read_pass_once_where_that_is_allowed_and_others_are_judged(cuts: list[int]):
    allowed = {**ALLOWED, "unreadable": "Allow"}
    said = events(rpc("notifications/progress", progress=1)) + ODD + events(rpc("notifications/progress", progress=2))
    marks = [0, *(each for each in cuts if each < len(said)), len(said)]
    pieces = tuple(said[begin:end] for begin, end in pairwise(marks))
    result = ask(allowed, rpc("tools/call", name="search"), pieces, kind=EVENTS)
    assert (result.error, result.response_body) == (None, said)
    call = ODD + chat_stream("delete", "{}")
    assert ask(allowed, offering("search"), (call,), "/v1/chat/completions", EVENTS).error is not None


def test_a_stream_whose_framing_breaks_passes_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 300)
    said = (events(rpc("ping")) + b"data: " + b"x" * 200, b"x" * 200, b"\n\n", ODD)
    allowed = {**ALLOWED, "unreadable": "Allow"}
    assert ask(allowed, rpc("ping"), said, kind=EVENTS).response_body == b"".join(said)
    refused = ask(ALLOWED, rpc("ping"), said, kind=EVENTS)
    assert refused.error is not None
    assert "has more than" in refused.error.message


# --- names that some servers and clients read in every case -----------------------------------------------------------
def is_refused(result: FilterResult, status: int) -> bool:
    return (
        result.error is not None and result.error.status == status and "some servers take for" in result.error.message
    )


CALL = rpc("tools/call", name="search", arguments={"Name": "free"})
LENIENT = pytest.mark.parametrize("more", [{}, {"unreadable": "Allow"}])


@LENIENT
@pytest.mark.parametrize(
    "message",
    [
        {**CALL, "params": {"name": "search", "Name": "shell"}},
        {**CALL, "Params": {"name": "shell"}},
        {**CALL, "param\u017f": {"name": "shell"}},
        {**CALL, "params": {"name": "search", "argument\u017f": {}}},
        {**CALL, "Method": "tools/call"},
        {"METHOD": "tools/call", "params": {"name": "shell"}},
        {"jsonrpc": "2.0", "METHOD": "tools/call", "params": {"name": "shell"}},
        rpc("resources/read", uri="file:///pub/a", URI="file:///etc/a"),
        rpc("prompts/get", name="a", Name="admin"),
        rpc("completion/complete", ref={"name": "a", "Name": "admin"}),
        rpc("completion/complete", ref={"name": "a"}, Ref={"name": "admin"}),
    ],
)
def test_a_message_that_some_servers_read_otherwise_is_refused(message: dict[str, Any], more: dict[str, Any]):
    for body in (message, [CALL, message]):
        assert is_refused(ask({**ALLOWED, **more}, body), 400)


def test_arguments_and_members_of_other_methods_have_any_names():
    for message in (CALL, [CALL], rpc("x/y", name="a", Name="b")):
        assert ask(ALLOWED, message).request_body == json.dumps(message).encode()


@LENIENT
@pytest.mark.parametrize(
    "offered",
    [
        {"tools": [{"type": "function", "function": {"name": "search", "Name": "delete"}}]},
        {"tools": [{"type": "function", "function": {"name": "search"}, "Function": {"name": "delete"}}]},
        {"tools": [{"name": "search", "NAME": "delete"}]},
        {"tools": [{"functionDeclarations": [{"name": "search", "Name": "delete"}]}]},
        {"tools": [{"name": "search"}], "Tools": [{"name": "delete"}]},
        {"tools": [{"type": "namespace", "name": "search", "Tools": [{"name": "delete"}]}]},
        {"tools": [], "input": [{"type": "additional_tools", "Tools": [{"name": "delete"}]}]},
        {"tools": [], "Input": [{"type": "additional_tools", "tools": [{"name": "delete"}]}]},
        {"tools": [], "input": [{"tools": [{"name": "search", "tools": [{"Name": "delete", "name": "search"}]}]}]},
        {"toolConfig": {"tools": [{"toolSpec": {"name": "search", "Name": "delete"}}]}},
        {"tools": [], "tool_choice": {"type": "function", "function": {"Name": "delete"}}},
        {"tools": [], "Tool_Choice": {"type": "function", "function": {"name": "delete"}}},
        {"tools": [], "tool_choice": {"type": "allowed_tools", "mode": "auto", "Tools": [{"name": "delete"}]}},
        {"tools": [], "tool_choice": {"Allowed_Tools": {"tools": [{"function": {"name": "delete"}}]}}},
        {"tools": [], "tool_choice": {"allowed_tools": {"tools": [{"function": {"Name": "delete"}}]}}},
        {"tools": [], "toolConfig": {"FunctionCallingConfig": {"allowedFunctionNames": ["delete"]}}},
        {"tools": [], "tool_config": {"function_calling_config": {"Allowed_Function_Names": ["delete"]}}},
        {"tools": [], "Tool_Config": {"function_calling_config": {"allowed_function_names": ["delete"]}}},
    ],
)
def test_an_offer_that_some_servers_read_otherwise_is_refused(offered: dict[str, Any], more: dict[str, Any]):
    body = {"model": "m", "messages": [], **offered}
    assert is_refused(ask({**ALLOWED, **more}, body, path="/v1/chat/completions"), 400)


@LENIENT
@pytest.mark.parametrize("kind", [JSON, EVENTS])
@pytest.mark.parametrize("member", ["jsonrpc", "result", *("tools", "resources", "resourceTemplates", "prompts")])
def test_a_list_that_some_clients_read_otherwise_is_refused(member: str, kind: dict[str, str], more: dict[str, Any]):
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {member: [{"name": "delete"}]}})
    told = text.replace(f'"{member}"', f'"{member.capitalize()}"').encode()
    for each in (told, b"[%b]" % told):
        answer = b"data: %b\n\n" % each if kind is EVENTS else each
        assert is_refused(ask({**ALLOWED, **more}, rpc("tools/list"), answer, kind=kind), 502)


@pytest.mark.parametrize(("key", "name"), tool_policy._LISTS)
def test_an_element_of_a_list_that_some_clients_read_otherwise_is_refused(key: str, name: str):
    element = {name: "search", name.upper(): "delete", "inputSchema": {"Name": {}}}
    listed = {"jsonrpc": "2.0", "id": 1, "result": {key: [element]}}
    assert is_refused(ask({"tools": {}}, rpc("tools/list"), listed), 502)
    del element[name.upper()]
    assert ask({"tools": {}}, rpc("tools/list"), listed).response_body == json.dumps(listed).encode()


#: How members of calls may be spelled that are read.
SPELLED = {
    "chat": {"function": "Function", "name": "Name", "arguments": "argument\u017f"},
    "responses": {"name": "NAME", "arguments": "Arguments", "type": "Type"},
    "anthropic": {"name": "Name", "type": "TYPE", "input": "Input"},
    "gemini": {"functionCall": "functioncall", "name": "Name", "args": "Args"},
    "bedrock": {"toolUse": "ToolUse", "name": "Name", "input": "INPUT"},
}


@LENIENT
@pytest.mark.parametrize(("api", "member"), [(api, member) for api, all_ in SPELLED.items() for member in all_])
def test_a_call_that_some_clients_read_otherwise_is_refused(api: str, member: str, more: dict[str, Any]):
    answer = json.dumps(ANSWERS[api]("drop", {"a": 1}), ensure_ascii=False)
    told = answer.replace(f'"{member}"', f'"{SPELLED[api][member]}"').encode()
    result = ask({**PAY, **more}, offering("search"), told, "/v1/chat/completions")
    assert is_refused(result, 502) or (member == "function" and result.status == 403)  # the name is found all the same


def test_a_second_name_of_a_call_is_refused():
    answer = chat_answer("search", {})
    answer["choices"][0]["message"]["tool_calls"][0]["function"]["Name"] = "delete"
    assert is_refused(ask(ALLOWED, offering("search"), answer, "/v1/chat/completions"), 502)


def test_what_is_no_call_may_have_any_names_in_an_answer():
    answer = {**chat_answer("search", {"Name": 1}), "metadata": {"Name": "a", "Type": "b", "name": "c"}}
    assert ask(ALLOWED, offering("search"), answer, "/v1/chat/completions").error is None


IN_STREAMS = {
    "chat": ("choices", "delta", "tool_calls", "function", "name", "arguments", "index"),
    "responses": ("type", "item", "name", "arguments", "delta", "output_index"),
    "anthropic": ("type", "content_block", "name", "input", "delta", "partial_json", "index"),
    "gemini": ("functionCall", "name", "args"),
}


@LENIENT
@pytest.mark.parametrize(("api", "member"), [(api, member) for api, all_ in IN_STREAMS.items() for member in all_])
def test_an_event_that_some_clients_read_otherwise_is_refused(api: str, member: str, more: dict[str, Any]):
    told = STREAMS[api]("pay", BAD).replace(f'"{member}"'.encode(), f'"{member.upper()}"'.encode())
    result = ask({**PAY, **more}, offering("pay"), told, "/v1/chat/completions", EVENTS)
    assert is_refused(result, 502) or (result.error is not None and result.error.status == 403)
    assert b"pay" not in result.response_body


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("amount", {"amount": 5, "Amount": 500}),
        ("amount", {"AMOUNT": 5}),
        ("cost", {"cost": 5, "co\u017ft": 500}),
        ("order.amount", {"order": {"amount": 5}, "Order": {"amount": 500}}),
        ("order.amount", {"order": {"amount": 5, "Amount": 500}}),
        ("items[*].amount", {"items": [{"amount": 5}, {"amount": 5, "Amount": 500}]}),
    ],
)
def test_a_condition_about_a_member_that_some_servers_read_otherwise(path: str, arguments: dict[str, Any]):
    allow = {"tools": {"allow": [{"names": ["pay"], "arguments": [{"path": path, "max": 100}]}]}}
    deny = {"tools": {"deny": [{"names": ["pay"], "arguments": [{"path": path, "min": 101}]}]}}
    for config in (allow, deny):
        told = error(ask(config, rpc("tools/call", name="pay", arguments=arguments)))
        assert "with these arguments" in told["error"]["message"]
        plain = {"amount": 5, "cost": 5, "order": {"amount": 5}, "items": [{"amount": 5}], "Note": 1, "NOTE": 2}
        assert ask(config, rpc("tools/call", name="pay", arguments=plain)).local_response is None
