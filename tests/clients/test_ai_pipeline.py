"""All content filters at once between the SDKs of OpenAI, Anthropic, Google and Amazon and providers of their APIs.

Each call is made whole and as a stream, in gzip and without: personal data leaves as a placeholder and comes back, a
prompt, an answer and a tool are denied with the exception of the SDK, tokens are counted and limited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.cloud_providers import CloudProvider
from tests.support.origins.providers import INPUT, OUTPUT, WANTS_GZIP, Got, Provider
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
genai = pytest.importorskip("google.genai")
genai_errors = pytest.importorskip("google.genai.errors")
boto3 = pytest.importorskip("boto3")
botocore_exceptions = pytest.importorskip("botocore.exceptions")
botocore_config = pytest.importorskip("botocore.config")

ALICE, CARD = "alice@example.com", "4111 1111 1111 1111"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
KEY = "the-key-of-nobody"
#: A call reserves a little more than MAX_OUTPUT tokens, and takes INPUT + OUTPUT in the end: the fourth never fits.
TOKENS, MAX_OUTPUT = 70, 20
_numbers = count(1)


@dataclass(slots=True)
class Said:
    """An answer: its text, the calls of tools in it, and the word for its end."""

    text: str
    calls: list[dict[str, Any]]
    end: str


class Sdk(Protocol):
    """Asks one question. `tools`: names of tools that are offered. Raises what the SDK raises."""

    def __call__(self, url: str, fields: dict[str, str], text: str, *, stream: bool, tools: list[str]) -> Said: ...


def chat(url: str, fields: dict[str, str], text: str, *, stream: bool, tools: list[str]) -> Said:
    sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_headers=fields)
    offered = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in tools]
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_completion_tokens": MAX_OUTPUT}
    asked |= {"model": fields["X-Model"]} | ({"tools": offered} if offered else {})
    if not stream:
        (choice,) = sdk.chat.completions.create(**asked).choices
        calls = [json.loads(call.function.arguments) for call in choice.message.tool_calls or []]
        return Said(choice.message.content or "", calls, choice.finish_reason)
    said, end = "", ""
    pieces: dict[int, str] = {}
    for chunk in sdk.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        said += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            pieces[call.index] = pieces.get(call.index, "") + (call.function.arguments or "")
        end = choice.finish_reason or end
    return Said(said, [json.loads(piece) for piece in pieces.values()], end)


def responses(url: str, fields: dict[str, str], text: str, *, stream: bool, tools: list[str]) -> Said:
    sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_headers=fields)
    offered = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in tools]
    asked: dict[str, Any] = {"model": fields["X-Model"], "input": text, "max_output_tokens": MAX_OUTPUT}
    asked |= {"tools": offered} if offered else {}
    events = list(sdk.responses.create(**asked, stream=True)) if stream else []
    answer = events[-1].response if stream else sdk.responses.create(**asked)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    calls = [json.loads(item.arguments) for item in answer.output if item.type == "function_call"]
    end = answer.incomplete_details.reason if answer.incomplete_details else answer.status
    return Said("".join(deltas) if stream else answer.output_text, calls, end)


def messages(url: str, fields: dict[str, str], text: str, *, stream: bool, tools: list[str]) -> Said:
    sdk = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, default_headers=fields)
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": MAX_OUTPUT}
    offered = [{"name": name, "input_schema": SCHEMA} for name in tools]
    asked |= {"model": fields["X-Model"]} | ({"tools": offered} if offered else {})
    if stream:
        with sdk.messages.stream(**asked) as events:
            answer = events.get_final_message()
    else:
        answer = sdk.messages.create(**asked)
    texts = [block.text for block in answer.content if block.type == "text"]
    return Said(
        "".join(texts), [block.input for block in answer.content if block.type == "tool_use"], answer.stop_reason
    )


def gemini(url: str, fields: dict[str, str], text: str, *, stream: bool, tools: list[str]) -> Said:
    retries = genai.types.HttpRetryOptions(attempts=1)
    options = genai.types.HttpOptions(base_url=url, headers=fields, retry_options=retries)
    sdk = genai.Client(api_key=KEY, http_options=options)
    offered = [genai.types.FunctionDeclaration(name=name, parameters_json_schema=SCHEMA) for name in tools]
    config = genai.types.GenerateContentConfig(
        max_output_tokens=MAX_OUTPUT, tools=[genai.types.Tool(function_declarations=offered)] if offered else None
    )
    asked: dict[str, Any] = {"model": fields["X-Model"], "contents": text, "config": config}
    ask = sdk.models.generate_content_stream if stream else sdk.models.generate_content
    answers = list(ask(**asked)) if stream else [ask(**asked)]
    found = [part for answer in answers for part in (answer.candidates[0].content.parts or []) if answer.candidates]
    calls = [dict(part.function_call.args) for part in found if part.function_call]
    end = answers[-1].candidates[0].finish_reason
    return Said("".join(part.text or "" for part in found), calls, end.value if end else "")


def converse(url: str, fields: dict[str, str], text: str, *, stream: bool, tools: list[str]) -> Said:
    config = botocore_config.Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": KEY}
    sdk = boto3.client("bedrock-runtime", region_name="eu-central-1", endpoint_url=url, config=config, **keys)
    sdk.meta.events.register(
        "before-sign", lambda request, **_: [request.headers.add_header(*f) for f in fields.items()]
    )
    asked: dict[str, Any] = {"modelId": fields["X-Model"], "messages": [{"role": "user", "content": [{"text": text}]}]}
    asked["inferenceConfig"] = {"maxTokens": MAX_OUTPUT}
    offered = [{"toolSpec": {"name": name, "inputSchema": {"json": SCHEMA}}} for name in tools]
    asked |= {"toolConfig": {"tools": offered}} if offered else {}
    if not stream:
        answer = sdk.converse(**asked)
        content = answer["output"]["message"]["content"]
        calls = [block["toolUse"]["input"] for block in content if "toolUse" in block]
        return Said("".join(block.get("text", "") for block in content), calls, answer["stopReason"])
    said, end = "", ""
    inputs: dict[int, str] = {}
    for event in sdk.converse_stream(**asked)["stream"]:
        if "contentBlockDelta" in event:
            delta, at = event["contentBlockDelta"]["delta"], event["contentBlockDelta"]["contentBlockIndex"]
            said += delta.get("text", "")
            if "toolUse" in delta:
                inputs[at] = inputs.get(at, "") + delta["toolUse"]["input"]
        end = event.get("messageStop", {}).get("stopReason", end)
    return Said(said, [json.loads(text) for text in inputs.values()], end)


SDKS: dict[str, Sdk] = {
    "chat": chat, "responses": responses, "messages": messages, "gemini": gemini, "converse": converse,
}  # fmt: skip
DENIED: dict[str, type[Exception]] = {
    "chat": openai.PermissionDeniedError, "responses": openai.PermissionDeniedError,
    "messages": anthropic.PermissionDeniedError, "gemini": genai_errors.ClientError,
    "converse": botocore_exceptions.ClientError,
}  # fmt: skip
LIMITED = DENIED | {
    "chat": openai.RateLimitError, "responses": openai.RateLimitError, "messages": anthropic.RateLimitError,
}  # fmt: skip
#: Of a stream that has begun; the SDK of Amazon has an exception of its own for it.
BROKEN = DENIED | {
    "chat": openai.APIError, "responses": openai.APIError, "messages": anthropic.APIStatusError,
    "gemini": genai_errors.APIError, "converse": botocore_exceptions.EventStreamError,
}  # fmt: skip


class World:
    """A gateway with every content filter in front of one provider."""

    def __init__(self, stack: ExitStack, folder: Any) -> None:
        self._providers = Provider(), CloudProvider()
        tables = [each.routes() for each in self._providers]
        origin = stack.enter_context(OriginServer(tables, Pki().server_context("127.0.0.1")))
        port = free_port()
        configs: dict[str, dict[str, Any]] = {
            "QoSController": {"tokensPerDay": TOKENS, "per": ["Header"], "header": "X-Team"},
            "PromptGuard": {"deny": [{"name": "falcon", "pattern": r"project\s+falcon"}]},
            "ToolPolicy": {
                "tools": {
                    "allow": [{"names": ["weather"], "arguments": [{"path": "city", "oneOf": ["Oslo", "Rome"]}]}],
                },
            },
            "ResponsePolicy": {"entities": ["CARD"], "action": "Truncate"},
            "PIIDetector": {"entities": [{"name": "EMAIL", "action": "Placeholder"}]},
            "TokenMeter": {"prices": [{"models": ["*"], "input": 1, "output": 2}]},
        }
        extensions = [
            {"name": kind.lower(), "type": f"{m.OURS}/{kind}:v1", "phase": "request-headers", "config": config}
            for kind, config in configs.items()
        ]
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(cidrs=["127.0.0.0/8"], extensions=extensions),
            m.ip_backend("a", origin.plain_port, origin.address),
            m.http_route("route", m.prefix_rule("/", "a")),
        ]
        self.gateway = stack.enter_context(GatewayProcess(folder, objects))
        self.url = f"http://127.0.0.1:{port}"

    def got(self, model: str) -> list[Got]:
        """What the provider got for this model."""
        return [
            got
            for provider in self._providers
            for got in provider.requests
            if got.body.get("model") == model or f"/{model}" in got.path
        ]


@dataclass(slots=True)
class Caller:
    """One SDK in one way; `team` counts alone."""

    world: World
    api: str
    is_stream: bool
    team: str
    model: str
    fields: dict[str, str]

    def asks(self, text: str, *tools: str) -> Said:
        return SDKS[self.api](self.world.url, self.fields, text, stream=self.is_stream, tools=list(tools))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("pipeline") / "g")


@pytest.fixture(params=SDKS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def is_stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def caller(request: pytest.FixtureRequest, world: World, api: str, is_stream: bool) -> Caller:
    model = f"model-{next(_numbers)}"
    fields = {"X-Team": model, "X-Model": model} | ({WANTS_GZIP: "1"} if request.param else {})
    return Caller(world, api, is_stream, model, model, fields)


def test_an_address_leaves_as_a_placeholder_and_comes_back(caller: Caller):
    said = caller.asks(f"write to {ALICE}, now")
    assert said.text == f"You said: write to {ALICE}, now"
    (got,) = caller.world.got(caller.model)
    assert "write to <EMAIL_1>, now" in json.dumps(got.body)
    assert ALICE not in json.dumps(got.body)
    record = caller.world.gateway.wait_for_record(**{"gen_ai.request.model": caller.model})
    assert (record["gen_ai.usage.input_tokens"], record["gen_ai.usage.output_tokens"]) == (INPUT, OUTPUT)
    assert record["ai_cost"] == pytest.approx((INPUT + 2 * OUTPUT) / 1e6)


def test_a_prompt_that_is_denied_raises_with_our_reason(caller: Caller):
    with pytest.raises(DENIED[caller.api], match="falcon"):
        caller.asks("what is project Falcon?")
    assert caller.world.got(caller.model) == []


def test_tools_are_offered_and_called_as_the_policy_says(caller: Caller):
    said = caller.asks("weather in Oslo", "weather", "delete")
    assert said.calls == [{"city": "Oslo"}]
    (got,) = caller.world.got(caller.model)
    assert '"weather"' in json.dumps(got.body)
    assert '"delete"' not in json.dumps(got.body)


def test_a_call_with_other_arguments_raises_with_our_reason(caller: Caller):
    expected = BROKEN if caller.is_stream else DENIED
    with pytest.raises(expected[caller.api], match="the model calls tool 'weather'"):
        caller.asks("weather in Lima", "weather")


def test_an_answer_ends_before_what_it_must_not_say(caller: Caller):
    ends = {
        "chat": "content_filter", "responses": "content_filter", "messages": "refusal", "gemini": "SAFETY",
        "converse": "content_filtered",
    }  # fmt: skip
    if caller.api == "converse" and caller.is_stream:  # in this framing nothing can be cut
        with pytest.raises(botocore_exceptions.EventStreamError, match="the answer is cut"):
            caller.asks(f"my card is {CARD}")
        return
    said = caller.asks(f"my card is {CARD}")
    assert (said.text, said.end) == ("You said: my card is ", ends[caller.api])


def test_tokens_are_counted_until_none_are_left(caller: Caller):
    for _ in range(3):
        assert caller.asks("hi").text == "You said: hi"
    with pytest.raises(LIMITED[caller.api], match=f"more than {TOKENS} tokens in a day"):
        caller.asks("hi")
    assert len(caller.world.got(caller.model)) == 3


def test_no_key_of_a_client_is_in_log_metrics_or_diagnostics(world: World):
    told = world.gateway.stderr + world.gateway.admin("/metrics")[1] + world.gateway.access_log_path.read_text()
    for secret in (KEY, ALICE, CARD):
        assert secret not in told
