"""No body keeps the loop: the longest step of each filter that reads bodies, with each shape of body, is a short one.

The bodies are as large as it takes to see that; what takes longer with more of it would take far longer here.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.backends.model_field import find_model, with_model
from egressproxy.ai.filters.tool_pins import ToolPin, ToolPins, ToolPinsConfig
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.translator import ResponseTranslator, translate_request
from egressproxy.filters import FilterContext, Phase
from egressproxy.filters.testing import FilterHarness
from egressproxy.model.work import Work, at_once
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics
from tests.support.steps import longest_part, longest_step, pieces

#: Units of some two milliseconds. What is known to be atomic (reading one long string, freeing what was read) is below.
MOST = 16.0
CHAT, OTHER = "/v1/chat/completions", "/other"
JSON, FORM, LINES, TEXT = "application/json", "application/x-www-form-urlencoded", "application/x-ndjson", "text/plain"
EVENTS = "text/event-stream"
EMAIL = {"name": "EMAIL", "action": "Placeholder"}
SECRETS = {"s/k": b"sk-Live-4242424242424242"}
FILTERS: dict[str, dict[str, Any]] = {
    "PromptGuard": {"applyTo": "Both", "deny": [{"name": "f", "pattern": "falcon"}]},
    "PIIDetector": {"applyTo": "Both", "entities": [EMAIL, {"name": "CARD", "action": "Redact"}]},
    "ResponsePolicy": {
        "deny": [{"name": "F", "pattern": "falcon", "maxLength": 40}], "entities": ["EMAIL"], "toolCalls": "Offered",
    },
    "ToolPolicy": {"tools": {"deny": [{"names": ["shell"]}]}},
    "ModelPolicy": {"deny": ["x"], "routes": [{"textContains": ["falcon"], "minTokens": 5, "model": "n"}]},
    "TokenMeter": {},
    "QoSController": {"tokensPerDay": 20_000_000},
    "Cache": {"shareAnonymous": True, "maxEntryBytes": 8_000_000},
    "Audit": {"folder": tempfile.mkdtemp()},
    "CanaryKeys": {"secretRefs": [{"name": "s", "key": "k"}]},
}  # fmt: skip


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "m", **more}, separators=(",", ":")).encode()


def said(text: str) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"' + text.encode() + b'"}]}'


def event(text: bytes) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text


def choices(indices: range, rest: bytes) -> bytes:
    return b'data: {"choices":[%b]}\n\n' % b",".join(b'{"index":%d,"delta":%b}' % (each, rest) for each in indices)


#: Name: type, path, body.
REQUESTS: dict[str, tuple[str, str, bytes]] = {
    "many texts": (JSON, CHAT, chat(input=["ab"] * 30_000)),
    "an array": (JSON, OTHER, json.dumps(["ab"] * 30_000).encode()),
    "many turns": (JSON, CHAT, chat(messages=[{"role": "user", "content": "hi"}] * 12_000)),
    "many values": (JSON, CHAT, chat(messages=[{"role": "user", "content": f"a{n}@b.example"} for n in range(9_000)])),
    "numbers": (JSON, CHAT, chat(messages=[], a=[123456789] * 45_000)),
    "wide": (JSON, CHAT, chat(**{f"k{number}": "v" for number in range(40_000)})),
    "deep": (JSON, CHAT, b'{"messages":[],"a":[' + b",".join([b"[" * 90 + b"1" + b"]" * 90] * 250) + b"]}"),
    "one long text": (JSON, CHAT, said("some words to read " * 100_000)),
    "escapes": (JSON, CHAT, said(r"\u0061" * 400_000)),
    "arguments": (JSON, CHAT, chat(messages=[{"role": "assistant", "arguments": json.dumps(["ab"] * 40_000)}])),
    "long texts, tools and a stream": (
        JSON,
        CHAT,
        chat(
            messages=[{"role": "user", "content": "some words " * 250_000}] * 4,
            tools=[{"type": "function", "function": {"name": name}} for name in ("shell", "other")],
            stream=True,
        ),
    ),
    "many tools": (JSON, CHAT, chat(messages=[], tools=[{"type": "function", "function": {"name": "f"}}] * 20_000)),
    "calls": (
        JSON,
        OTHER,
        json.dumps([{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "f"}}] * 8_000).encode(),
    ),
    "denied calls": (
        JSON,
        OTHER,
        json.dumps(
            [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "shell"}}] * 16_000
        ).encode(),
    ),
    "an image": (
        JSON,
        CHAT,
        chat(
            messages=[
                {"role": "user", "content": [{"image_url": {"url": "data:image/png;base64," + "iVBO" * 2_000_000}}]}
            ]
        ),
    ),
    "a form": (FORM, OTHER, b"a=b&" * 500_000),
    "a long form": (FORM, OTHER, b"a=" + b"%61" * 600_000),
    "long texts with values": (
        JSON,
        CHAT,
        chat(messages=[{"role": "user", "content": "some words " * 200_000 + f"a{n}@b.example"} for n in range(5)]),
    ),
    "blank lines": (LINES, OTHER, b"\n" * 15_000 + b" " * 4_000_000),
    "lines": (LINES, OTHER, b'{"a":"b"}\n' * 15_000),
    "text": (TEXT, OTHER, b"some words to read\n" * 60_000),
}
ANSWERS: dict[str, tuple[str, str, bytes]] = {
    **{name: REQUESTS[name] for name in ("many texts", "deep", "one long text", "escapes", "wide")},
    "many choices": (JSON, CHAT, REQUESTS["many turns"][2].replace(b"messages", b"choices")),
    "tiny events": (EVENTS, CHAT, b"data: {}\n\n" * 14_000),
    "events of a letter": (EVENTS, CHAT, event(b"a") * 4_000),
    "events that are text": (EVENTS, CHAT, b"data: a\n\n" * 7_000),
    "empty lines": (EVENTS, CHAT, b"\n" * 65_536),
    "a huge event": (EVENTS, CHAT, event(b"some words to read " * 100_000)),
    "an event of many lines": (EVENTS, CHAT, b"a\n" * 1_000_000 + b"\n"),
    "an event that ends many texts": (
        EVENTS,
        CHAT,
        choices(range(1_900), b'{"content":"a"}') + choices(range(5_000, 9_000), b'{},"finish_reason":"stop"'),
    ),
    "an event of many texts": (EVENTS, CHAT, b'data: {"a":[' + b'"ab",' * 30_000 + b'"a"]}\n\n'),
    "text": REQUESTS["text"],
}  # fmt: skip
#: Those that look at no answer, and at no request.
ONLY_REQUESTS, ONLY_ANSWERS = {"ModelPolicy", "CanaryKeys"}, {"ResponsePolicy"}
#: Those that look at nothing but JSON.
OF_JSON = {"ModelPolicy", "TokenMeter", "QoSController", "ToolPolicy"}
#: Those that get a request in pieces.
IN_PIECES = {"CanaryKeys"}


def harness(kind: str) -> FilterHarness:
    secrets = SECRETS if kind == "CanaryKeys" else None
    type_ = f"egressproxy.io/{kind}:v1"
    return FilterHarness(FILTERS[kind], phase=Phase.REQUEST_HEADERS, type=type_, secrets=secrets, timeout_s=60)


def asks(kind: str, shape: str) -> bool:
    return kind not in ONLY_ANSWERS and (kind not in OF_JSON or REQUESTS[shape][0] == JSON)


@pytest.mark.parametrize(
    ("kind", "shape"), [(kind, shape) for kind in FILTERS for shape in REQUESTS if asks(kind, shape)]
)
def test_no_request_keeps_the_loop(kind: str, shape: str):
    media_type, path, body = REQUESTS[shape]
    cut = pieces(body) if kind in IN_PIECES else [body]
    assert longest_step(harness(kind), cut, media_type, path=path, is_answer=False, most=MOST) < MOST


@pytest.mark.parametrize("shape", ANSWERS)
@pytest.mark.parametrize("kind", [kind for kind in FILTERS if kind not in ONLY_REQUESTS])
def test_no_answer_keeps_the_loop(kind: str, shape: str):
    media_type, path, body = ANSWERS[shape]
    cut = [body] if media_type == JSON else pieces(body)
    assert longest_step(harness(kind), cut, media_type, path=path, is_answer=True, most=MOST) < MOST


@pytest.mark.parametrize(
    "tools",
    [
        [("x" * 3_000_000, {})],
        [("é\u200d" * 500_000, {})],
        [("a b", {})] * 3_000,
        [("", {str(number): {"a": "b"} for number in range(6_000)})],
    ],
    ids=["long", "joiners", "many", "schema"],
)
def test_no_list_of_tools_keeps_the_loop(tools: list[tuple[str, Any]]):
    config = ToolPinsConfig(tools=(ToolPin("0", f"sha256:{'0' * 64}"),))
    meter = FilterMeter(FilterMetrics(), "pins", "egressproxy.io/ToolPins:v1")
    context = FilterContext(config, {}, "pins", "Backend agents/a", "Backend agents/a", meter=meter)
    listed = [{"name": str(at), "description": each[0], "inputSchema": each[1]} for at, each in enumerate(tools)]

    def judging() -> Work[None]:
        pins = ToolPins(config, context)
        for tool in listed:
            yield from pins.judging(tool, "agents/a", None, set())

    assert longest_part(judging, MOST) < MOST


@pytest.mark.parametrize("said", [["hi <EMAIL_1>"] * 12_000, ["some words <EMAIL_1> " * 40_000]], ids=["many", "long"])
def test_no_answer_keeps_the_loop_in_which_values_come_back(said: list[str]):
    config = {"applyTo": "Requests", "entities": [EMAIL]}
    detector = FilterHarness(config, phase=Phase.REQUEST_HEADERS, type="egressproxy.io/PIIDetector:v1", timeout_s=60)
    body = chat(choices=[{"index": 0, "message": {"role": "assistant", "content": each}} for each in said])
    assert longest_step(detector, [body], JSON, path=CHAT, is_answer=True, most=MOST) < MOST


@pytest.mark.parametrize("target", [Api.ANTHROPIC, Api.OPENAI_RESPONSES])
def test_no_translation_keeps_the_loop(target: Api):
    body = chat(messages=[{"role": "user", "content": "hi"}] * 18_000)
    assert longest_part(lambda: translate_request(body, Api.OPENAI_CHAT, target), most=MOST) < MOST


@pytest.mark.parametrize("content", [["some words " * 1_400_000], ["hi"] * 19_000], ids=["long", "many"])
def test_no_translation_of_an_answer_keeps_the_loop(content: list[str]):
    asked = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}'
    request = at_once(translate_request(asked, Api.OPENAI_CHAT, Api.ANTHROPIC))
    answer = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    body = json.dumps({**answer, "content": [{"type": "text", "text": each} for each in content]}).encode()
    assert at_once(ResponseTranslator(request).whole(200, body))[0] == 200
    assert longest_part(lambda: ResponseTranslator(request).whole(200, body), most=MOST) < MOST


#: Those that filters refuse, and that are read for their model all the same.
OF_MODELS = {
    **{name: body for name, (kind, path, body) in REQUESTS.items() if (kind, path) == (JSON, CHAT)},
    "a member over and over": b'{"model":"m"' + b',"a":""' * 100_000 + b"}",
    "long names": b'{"model":"m",' + b",".join(b'"%d%b":1' % (each, b"a" * 60_000) for each in range(200)) + b"}",
    "blanks": b'{"a":"\\n","model":"m"' + b" " * 30_000_000 + b"}",
    "a long number": b'{"model":"m","a":1.' + b"1" * 30_000_000 + b"}",
}


@pytest.mark.parametrize("shape", OF_MODELS)
def test_no_body_keeps_the_loop_while_its_model_is_replaced(shape: str):
    body = OF_MODELS[shape]

    def renamed() -> Work[object]:
        try:
            named = yield from find_model(body)
        except Untranslatable:
            return
        if named is not None:
            yield from with_model(named, "other")

    assert longest_part(renamed, most=MOST) < MOST
