"""The SDKs of OpenAI and Anthropic, each served by providers of every API: streams, tools, usage, errors."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.cloud_providers import CloudProvider
from tests.support.origins.providers import Provider, Trouble
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess, SharedGateway

if importlib.util.find_spec("openai") is None or importlib.util.find_spec("anthropic") is None:
    if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
        pytest.fail("the SDKs of OpenAI and Anthropic are not installed")
    pytest.skip("the SDKs of OpenAI and Anthropic are not installed", allow_module_level=True)

import anthropic
import openai

APIS = ("OpenAIChat", "OpenAIResponses", "AnthropicMessages")
#: APIs that have providers here, and no clients.
CLOUDS = ("Gemini", "BedrockConverse")
QUESTION = "How warm is it in Oslo and in Lima?"
ANSWER = "It is 3 in Oslo and 20 in Lima."
WEATHER = {"Oslo": "3", "Lima": "20"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
KEY = "the-clients-own-key"


@dataclass
class Said:
    """What a client has seen of one answer. `arrivals` counts the pieces in which the text came."""

    text: str = ""
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # id, name, arguments
    reason: str | None = None
    tokens: tuple[int, int] = (0, 0)
    arrivals: int = 0
    raw: Any = None


class ChatClient:
    """Chat completions."""

    def __init__(self, url: str) -> None:
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=20)
        self.messages: list[Any] = [{"role": "system", "content": "Be brief."}]

    def says(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def results(self, answers: dict[str, str]) -> None:
        self.messages += ({"role": "tool", "tool_call_id": key, "content": text} for key, text in answers.items())

    def asks(self, *, stream: bool, tools: bool = False, model: str = "gpt-5", **more: Any) -> Said:
        if tools:
            more["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
        asked = {"model": model, "messages": self.messages, "max_completion_tokens": 100, **more}
        said = Said()
        if stream:
            # The SDK itself joins the pieces.
            with self.sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                said.arrivals = sum(event.type == "content.delta" and bool(event.delta) for event in events)
                whole: Any = events.get_final_completion()
        else:
            whole = self.sdk.chat.completions.create(**asked)
        message = whole.choices[0].message
        said.raw, said.text, said.reason = whole, message.content or "", whole.choices[0].finish_reason
        said.tokens = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        for call in message.tool_calls or ():
            said.calls.append((call.id, call.function.name, json.loads(call.function.arguments)))
        told: dict[str, Any] = {"role": "assistant", "content": message.content}
        if said.calls:
            told["tool_calls"] = [
                {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(values)}}
                for key, name, values in said.calls
            ]
        self.messages.append(told)
        return said


class ResponsesClient:
    """Responses, without a memory at the provider."""

    def __init__(self, url: str) -> None:
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=20)
        self.items: list[Any] = []

    def says(self, text: str) -> None:
        self.items.append({"role": "user", "content": text})

    def results(self, answers: dict[str, str]) -> None:
        self.items += (
            {"type": "function_call_output", "call_id": key, "output": text} for key, text in answers.items()
        )

    def asks(self, *, stream: bool, tools: bool = False, model: str = "gpt-5", **more: Any) -> Said:
        if tools:
            more["tools"] = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
        asked = {
            "model": model, "input": self.items, "instructions": "Be brief.", "store": False,
            "max_output_tokens": 100, **more,
        }  # fmt: skip
        said = Said()
        if stream:
            with self.sdk.responses.stream(**asked) as events:
                said.arrivals = sum(event.type == "response.output_text.delta" for event in events)
                whole: Any = events.get_final_response()
        else:
            whole = self.sdk.responses.create(**asked)
        said.raw, said.text, said.reason = whole, whole.output_text, whole.status
        said.tokens = (whole.usage.input_tokens, whole.usage.output_tokens)
        for item in whole.output:
            if item.type == "function_call":
                said.calls.append((item.call_id, item.name, json.loads(item.arguments)))
                call = {"type": "function_call", "call_id": item.call_id, "name": item.name}
                self.items.append({**call, "arguments": item.arguments})
            elif item.type == "message":
                self.items.append({"role": "assistant", "content": whole.output_text})
        return said


class MessagesClient:
    """Messages."""

    def __init__(self, url: str) -> None:
        self.sdk = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=20)
        self.messages: list[Any] = []

    def says(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def results(self, answers: dict[str, str]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": key, "content": text} for key, text in answers.items()]
        self.messages.append({"role": "user", "content": blocks})

    def asks(self, *, stream: bool, tools: bool = False, model: str = "claude-x", **more: Any) -> Said:
        if tools:
            more["tools"] = [{"name": "weather", "input_schema": SCHEMA}]
        asked = {"model": model, "max_tokens": 100, "system": "Be brief.", "messages": self.messages, **more}
        said = Said()
        if stream:
            with self.sdk.messages.stream(**asked) as events:
                said.arrivals = sum(event.type == "text" for event in events)
                whole: Any = events.get_final_message()
        else:
            whole = self.sdk.messages.create(**asked)
        said.raw, said.reason = whole, whole.stop_reason
        said.tokens = (whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0), whole.usage.output_tokens)
        for block in whole.content:
            if block.type == "text":
                said.text += block.text
            elif block.type == "tool_use":
                said.calls.append((block.id, block.name, block.input))
        self.messages.append({"role": "assistant", "content": [block.model_dump() for block in whole.content]})
        return said


Client = ChatClient | ResponsesClient | MessagesClient
CLIENTS: dict[str, Callable[[str], Client]] = {
    "OpenAIChat": ChatClient, "OpenAIResponses": ResponsesClient, "AnthropicMessages": MessagesClient,
}  # fmt: skip
#: How each API says that an answer is whole, and that it calls tools.
REASONS = {
    "OpenAIChat": ("stop", "tool_calls"),
    "OpenAIResponses": ("completed", "completed"),
    "AnthropicMessages": ("end_turn", "tool_use"),
}
PATHS = {
    "OpenAIChat": "/v1/chat/completions", "OpenAIResponses": "/v1/responses", "AnthropicMessages": "/v1/messages",
}  # fmt: skip

#: Of a whole answer and of a stream.
CLOUD_PATHS = {
    "Gemini": ("/v1beta/models/gemini-3-pro:generateContent", "/v1beta/models/gemini-3-pro:streamGenerateContent"),
    "BedrockConverse": ("/model/amazon.nova-pro-v1:0/converse", "/model/amazon.nova-pro-v1:0/converse-stream"),
}
MODELS = {"Gemini": "gemini-3-pro", "BedrockConverse": "amazon.nova-pro-v1:0"}


class World:
    """A gateway, and for each API one provider that serves it alone; /API leads to that, /any through all of them."""

    def __init__(
        self,
        folder: Path | SharedGateway,
        stack: ExitStack,
        policy: Mapping[str, Any] | None = None,
        **failover: Any,
    ) -> None:
        self.providers = {api: Provider() for api in APIS}
        self.clouds = {api: CloudProvider() for api in CLOUDS}
        context = Pki().server_context("127.0.0.1")
        self.port = free_port()
        secret = m.manifest(
            "v1", "Secret", "key", "agents", stringData={"key": "the-providers-key", "id": "AKIAPROVIDER"}
        )
        written = m.policy(cidrs=["127.0.0.0/8"], **(policy or {}))
        objects = [m.gateway(m.http_listener(self.port)), written, secret]
        for api, provider in [*self.providers.items(), *self.clouds.items()]:
            server = stack.enter_context(OriginServer([provider.routes()], context))
            ports = [
                {
                    "number": server.plain_port, "protocol": "HTTP11", "tls": {"mode": "None"},
                    "protocolOptions": {"ai": {"apis": [api]}},
                }
            ]  # fmt: skip
            config: dict[str, Any] = {"secretRef": {"name": "key", "key": "key"}, "allowPlaintext": True}
            if api == "AnthropicMessages":
                config["header"] = "x-api-key"
            if api == "Gemini":
                config["header"] = "x-goog-api-key"
            if api == "BedrockConverse":
                refs = {
                    "accessKeyIdRef": {"name": "key", "key": "id"},
                    "secretAccessKeyRef": {"name": "key", "key": "key"},
                }
                config = {"aws": {"service": "bedrock", "region": "eu-central-1", "accessKey": refs}}
                config["allowPlaintext"] = True
            injector = {"type": f"{m.OURS}/CredentialInjector:v1", "phase": "backend-request", "config": config}
            spec = {
                "destination": {"type": "Ip", "ip": {"address": server.address}, "ports": ports},
                "extensions": [{"name": "key", **injector}],
            }
            objects.append(m.manifest(f"{m.OURS}/v1alpha1", "Backend", api.lower(), "agents", spec=spec))
        rules = [m.prefix_rule(f"/{api}", api.lower(), rewrite="/") for api in (*APIS, *CLOUDS)]
        for first in APIS:
            second = "AnthropicMessages" if first != "AnthropicMessages" else "OpenAIChat"
            endpoints = [
                {
                    "backendRef": {"group": m.OURS, "kind": "Backend", "name": api.lower()},
                    "priority": number, "modelAlias": f"model-of-{api}",
                }
                for number, api in enumerate((first, second))
            ]  # fmt: skip
            name = f"first-{first.lower()}"
            objects.append(m.failover(name, *endpoints, firstByte="500ms", attemptsHeader=True, **failover))
            rules.append(m.prefix_rule(f"/first/{first}", name, rewrite="/"))
        objects.append(m.http_route("route", *rules))
        serving = folder.serving(objects) if isinstance(folder, SharedGateway) else GatewayProcess(folder, objects)
        self.gateway = stack.enter_context(serving)

    def client(self, api: str, path: str) -> Client:
        return CLIENTS[api](f"http://127.0.0.1:{self.port}{path}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("ai"), stack)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGateway]:
    gateway = SharedGateway(tmp_path_factory.mktemp("shared") / "gw")
    yield gateway
    gateway.stop()


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    for provider in world.providers.values():
        provider.script.clear()
        provider.requests.clear()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("backend", APIS)
@pytest.mark.parametrize("api", APIS)
def test_a_conversation_with_tools_in_several_turns(world: World, api: str, backend: str, stream: bool):
    client = world.client(api, f"/{backend}")
    finished, called = REASONS[api]
    client.says("Hello there")
    said = client.asks(stream=stream)
    assert (said.text, said.calls, said.reason) == ("You said: Hello there", [], finished)
    client.says(QUESTION)
    said = client.asks(stream=stream, tools=True)
    assert [(name, values) for _, name, values in said.calls] == [
        ("weather", {"city": "Oslo"}),
        ("weather", {"city": "Lima"}),
    ]
    assert said.reason == called
    client.results({key: WEATHER[values["city"]] for key, _, values in said.calls})
    said = client.asks(stream=stream, tools=True)
    assert (said.text, said.reason, said.tokens) == (ANSWER, finished, (11, 7))
    if stream:
        assert said.arrivals == len(ANSWER.split())
    got = world.providers[backend].requests
    assert len(got) == 3
    for each in got:
        assert each.path == PATHS[backend]
        assert "the-providers-key" in str(each.fields)
        if backend == "AnthropicMessages" and api != backend:
            assert each.fields["anthropic-version"] == "2023-06-01"
        assert KEY not in str(each.fields)
    others = [each for name, each in world.providers.items() if name != backend]
    assert not any(each.requests for each in others)
    record = world.gateway.wait_for_record(ai_api=api, ai_backend_api=backend)
    assert (record["status"], record["reason"]) == (200, "-")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("backend", CLOUDS)
@pytest.mark.parametrize("api", APIS)
def test_a_conversation_with_a_provider_in_a_cloud(world: World, api: str, backend: str, stream: bool):
    client = world.client(api, f"/{backend}")
    finished, called = REASONS[api]
    client.says(QUESTION)
    said = client.asks(stream=stream, tools=True, model=MODELS[backend])
    assert [values for _, _, values in said.calls] == [{"city": "Oslo"}, {"city": "Lima"}]
    assert said.reason == called
    client.results({key: WEATHER[values["city"]] for key, _, values in said.calls})
    said = client.asks(stream=stream, tools=True, model=MODELS[backend])
    assert (said.text, said.reason, said.tokens) == (ANSWER, finished, (11, 7))
    if stream:
        assert said.arrivals == len(ANSWER.split())
    got = world.clouds[backend].requests[-1]
    assert got.path == CLOUD_PATHS[backend][stream]
    if backend == "BedrockConverse":
        assert signed_for_bedrock(got.fields, *world.clouds[backend].raw[-1])
    else:
        assert "the-providers-key" in str(got.fields)
    assert KEY not in str(got.fields)
    record = world.gateway.wait_for_record(ai_api=api, ai_backend_api=backend)
    assert (record["status"], record["reason"]) == (200, "-")


@pytest.mark.parametrize("backend", CLOUDS)
def test_tokens_are_counted_by_a_provider_in_a_cloud(world: World, backend: str):
    client = MessagesClient(f"http://127.0.0.1:{world.port}/{backend}")
    told = client.sdk.messages.count_tokens(model=MODELS[backend], messages=[{"role": "user", "content": "hi"}])
    assert told.input_tokens == 1
    assert KEY not in str(world.clouds[backend].requests[-1].fields)


def signed_for_bedrock(fields: dict[str, str], target: str, body: bytes) -> bool:
    """Whether botocore has the same signature for what came."""
    from datetime import datetime
    from unittest import mock

    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signed = fields["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    kept = {name: fields[name] for name in signed if name != "x-amz-date"}
    again = AWSRequest("POST", f"http://{fields['host']}{target}", headers=kept, data=body)
    now = datetime.strptime(fields["x-amz-date"], "%Y%m%dT%H%M%SZ")
    with mock.patch("botocore.auth.get_current_datetime", return_value=now, create=True):
        SigV4Auth(Credentials("AKIAPROVIDER", "the-providers-key"), "bedrock", "eu-central-1").add_auth(again)
    return bool(again.headers["Authorization"] == fields["authorization"])


@pytest.mark.parametrize(
    ("trouble", "stream"), [(429, True), (529, False), (Trouble.SILENCE, False), (Trouble.STALL, True)]
)
@pytest.mark.parametrize("api", APIS)
def test_a_provider_of_another_api_serves_where_the_own_one_fails_before_its_first_token(
    shared: SharedGateway, api: str, trouble: int | Trouble, stream: bool
):
    with ExitStack() as stack:  # with providers of its own: none is put aside yet
        check_failover(World(shared, stack), api, trouble, stream=stream)


def check_failover(world: World, api: str, trouble: int | Trouble, *, stream: bool) -> None:
    other = "AnthropicMessages" if api != "AnthropicMessages" else "OpenAIChat"
    world.providers[api].script = [trouble] * 4
    client = world.client(api, f"/first/{api}")
    client.says(QUESTION)
    for _ in range(3):  # once it is asked in vain, and then it is put aside
        said = client.asks(stream=stream, tools=True)
        if not said.calls:
            break
        client.results({key: WEATHER[values["city"]] for key, _, values in said.calls})
    assert said.text == ANSWER
    got = world.providers[other].requests
    assert {each.body["model"] for each in got} == {f"model-of-{other}"}
    assert KEY not in str([each.fields for each in got])
    assert 1 <= len(world.providers[api].requests) <= 2


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", APIS)
@pytest.mark.parametrize("trouble", [Trouble.BREAK, Trouble.SHORT, Trouble.ERROR_EVENT])
def test_a_stream_that_breaks_behind_its_first_token_is_an_error(
    world: World, api: str, backend: str, trouble: Trouble
):
    if api == backend:
        return  # it passes as it is
    if trouble is Trouble.SHORT and backend != "OpenAIResponses":
        return  # it has told why it stopped: that is its end
    world.providers[backend].script = [trouble]
    client = world.client(api, f"/{backend}")
    client.says("one two three four five six")
    with pytest.raises(Exception) as raised:
        client.asks(stream=True)
    names = {each.__name__ for each in type(raised.value).__mro__}
    # RuntimeError: what the helper for Responses raises without their last event, also behind an error event.
    assert names & {"APIError", "RemoteProtocolError", "ReadError", "RuntimeError"}, raised.value


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", APIS)
def test_errors_have_the_shape_of_the_clients_api(world: World, api: str, backend: str):
    world.providers[backend].script = [429]
    client = world.client(api, f"/{backend}")
    client.says("Hello")
    expected = anthropic.RateLimitError if api == "AnthropicMessages" else openai.RateLimitError
    with pytest.raises(expected) as raised:
        client.asks(stream=True)
    assert "told 429" in str(raised.value)
    assert raised.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(("api", "backend"), [("OpenAIChat", "AnthropicMessages"), ("AnthropicMessages", "OpenAIChat")])
def test_what_cannot_be_translated_is_named(world: World, api: str, backend: str):
    client = world.client(api, f"/{backend}")
    client.says("Hello")
    more = {"logprobs": True} if api == "OpenAIChat" else {"extra_body": {"container": "c"}}
    expected = anthropic.BadRequestError if api == "AnthropicMessages" else openai.BadRequestError
    with pytest.raises(expected) as raised:
        client.asks(stream=False, **more)
    assert ("logprobs" if api == "OpenAIChat" else "container") in str(raised.value)
    assert not world.providers[backend].requests


@pytest.mark.parametrize("api", APIS)
def test_what_the_other_api_does_not_have_goes_to_nobody_else(world: World, api: str):
    """The own provider serves it; where that fails, its error is told, and no other is asked."""
    client = world.client(api, f"/first/{api}")
    client.says("Hello")
    more: dict[str, Any] = {"extra_body": {"top_k": 3}} if api == "AnthropicMessages" else {"service_tier": "flex"}
    assert client.asks(stream=False, **more).text == "You said: Hello"
    world.providers[api].script = [529]
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
        client.asks(stream=False, **more)
    assert raised.value.status_code == 529
    assert "outcome=untranslatable" in raised.value.response.headers["x-egress-attempts"]
    assert sum(len(each.requests) for each in world.providers.values()) == 2


@pytest.mark.parametrize("api", APIS)
def test_the_sdks_show_our_own_errors(world: World, api: str):
    client = world.client(api, "/nowhere")
    client.says("Hello")
    with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)) as raised:
        client.asks(stream=False)
    assert "no route for this request" in str(raised.value)
