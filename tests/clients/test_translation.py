"""The SDKs of OpenAI and Anthropic as clients whose provider speaks another API.

The SDK's own parsers read what the translation writes, and its types check what a provider of the other API would get.
There is no network: the provider and the translation stand in the transport of the SDK.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

import pytest

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.errors import error_object
from egressproxy.ai.translation.apis import DEFAULT_PATHS, api_of
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.translator import ResponseTranslator, translate_request
from egressproxy.model.strict_json import dumps
from egressproxy.model.work import at_once
from tests.ai.translation.examples import (
    ANSWERS,
    ANTHROPIC,
    BEDROCK,
    CHAT,
    ERROR_EVENTS,
    GEMINI,
    RESPONSES,
    STREAMS,
    TO_PROVIDERS,
    events,
    streamed,
    whole,
)
from tests.ai.translation.test_bedrock import validate_converse

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")
httpx = pytest.importorskip("httpx2") if "httpx2" in openai._base_client.__dict__ else pytest.importorskip("httpx")

IN_EACH_PAIR = pytest.mark.parametrize(("source", "target"), TO_PROVIDERS)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@cache
def requests_of(api: Api) -> tuple[Any, set[str]]:
    """What validates a request as the SDK's types have it, and the names of all fields."""
    from anthropic.types.message_create_params import MessageCreateParams
    from openai.types.chat.completion_create_params import CompletionCreateParams
    from openai.types.responses.response_create_params import ResponseCreateParams

    params = {CHAT: CompletionCreateParams, RESPONSES: ResponseCreateParams, ANTHROPIC: MessageCreateParams}[api]
    names = {name for kind in params.__args__ for name in get_type_hints(kind)}
    return pydantic.TypeAdapter(params), names


def check_request(api: Api, body: dict[str, Any]) -> None:
    """Fails unless the SDK of this API could have written this body."""
    if api is BEDROCK:
        validate_converse(body)
        return
    if api is GEMINI:
        types = pytest.importorskip("google.genai.types")
        for content in body["contents"]:
            types.Content.model_validate(content)
        types.GenerationConfig.model_validate(body.get("generationConfig", {}))
        return
    adapter, names = requests_of(api)
    exhaust(adapter.validate_python(body))
    older = {"temperature", "top_p"} if api is ANTHROPIC else set()  # of the version 2023-06-01
    assert set(body) - older <= names


def exhaust(value: Any) -> None:
    """Arrays are validated while one iterates over them."""
    if isinstance(value, dict):
        for inner in value.values():
            exhaust(inner)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for inner in value:
            exhaust(inner)


class Provider:
    """Answers in one API what it is asked in another, as the gateway in front of it would."""

    def __init__(self, target: Api) -> None:
        self.target = target
        self.asked: list[dict[str, Any]] = []
        self.answer: tuple[int, bytes] = 200, json.dumps(ANSWERS[target]).encode()
        self.stream = STREAMS[target]

    def __call__(self, request: Any) -> Any:
        source = api_of(request.url.raw_path)
        assert source is not None
        try:
            asked = at_once(translate_request(request.read(), source, self.target, drops=self.target in CLOUDS))
        except Untranslatable as error:
            body = dumps(error_object(source, 400, str(error), error.field))
            return httpx.Response(400, content=body, headers={"content-type": "application/json"})
        self.asked.append(json.loads(asked.body))
        check_request(self.target, self.asked[-1])
        translator = ResponseTranslator(asked)
        if asked.is_stream and self.answer[0] == 200:
            told = translator.feed(self.stream) + translator.end()
            return httpx.Response(200, content=told, headers={"content-type": "text/event-stream"})
        status, body = at_once(translator.whole(*self.answer))
        return httpx.Response(status, content=body, headers={"content-type": "application/json"})


CLOUDS = (GEMINI, BEDROCK)
PROVIDERS = (*DEFAULT_PATHS, *CLOUDS)


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Provider:
    return Provider(request.param)


def openai_client(provider: Provider) -> Any:
    client = httpx.Client(transport=httpx.MockTransport(provider))
    return openai.OpenAI(api_key="k", base_url="http://gateway.example/v1", http_client=client, max_retries=0)


def anthropic_client(provider: Provider) -> Any:
    client = httpx.Client(transport=httpx.MockTransport(provider))
    return anthropic.Anthropic(api_key="k", base_url="http://gateway.example", http_client=client, max_retries=0)


def other_than(source: Api) -> Any:
    return pytest.mark.parametrize("provider", [api for api in PROVIDERS if api is not source], indirect=True)


# ---- shapes


@IN_EACH_PAIR
def test_a_whole_answer_has_the_shape_of_the_sdk(source: Api, target: Api):
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    model = {CHAT: ChatCompletion, RESPONSES: Response, ANTHROPIC: Message}[source]
    model.model_validate(whole(source, target, ANSWERS[target])[1])


@IN_EACH_PAIR
@pytest.mark.parametrize("fails", [False, True])
def test_each_event_of_a_stream_has_the_shape_of_the_sdk(source: Api, target: Api, fails: bool):
    from anthropic.types import RawMessageStreamEvent
    from openai.types.chat import ChatCompletionChunk
    from openai.types.responses import ResponseStreamEvent

    kind = {CHAT: ChatCompletionChunk, RESPONSES: ResponseStreamEvent, ANTHROPIC: RawMessageStreamEvent}[source]
    adapter = pydantic.TypeAdapter(kind)
    stream = STREAMS[target]
    if fails:
        stream = stream[: len(stream) // 2].rpartition(b"\n\n")[0] + b"\n\n" + ERROR_EVENTS[target]
    told = [event for event in events(streamed(source, target, [stream])) if event != {"type": "ping"}]
    if fails and source is not RESPONSES:
        assert "error" in told.pop()
    for event in told:
        adapter.validate_python(event)


# ---- OpenAI chat


CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "description": "the weather", "parameters": SCHEMA}}]


@other_than(CHAT)
def test_chat_completions_with_an_image_and_a_schema(provider: Provider):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    openai_client(provider).chat.completions.create(
        model="m",
        messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": [image]}],
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
        reasoning_effort="low",
        max_completion_tokens=1000,
        parallel_tool_calls=False,
        tools=CHAT_TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        user="u",
    )
    assert "AAAA" in json.dumps(provider.asked[-1])


# ---- OpenAI responses


# ---- Anthropic


# ---- errors


def _calls(source: Api, provider: Provider, **more: Any) -> Callable[[], Any]:
    if source is ANTHROPIC:
        client = anthropic_client(provider)
        return lambda: client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], **more
        )
    if source is CHAT:
        client = openai_client(provider)
        return lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **more)
    return lambda: openai_client(provider).responses.create(model="m", input="hi", **more)


@IN_EACH_PAIR
@pytest.mark.parametrize(
    ("status", "name"), [(401, "AuthenticationError"), (429, "RateLimitError"), (500, "InternalServerError")]
)
def test_errors_are_those_of_the_sdk(source: Api, target: Api, status: int, name: str):
    provider = Provider(target)
    provider.answer = status, dumps(error_object(target, status, "so it is"))
    sdk = anthropic if source is ANTHROPIC else openai
    with pytest.raises(getattr(sdk, name), match="so it is"):
        _calls(source, provider)()


def test_the_sdk_for_azure_is_a_client_of_chat_completions():
    provider = Provider(ANTHROPIC)
    client = httpx.Client(transport=httpx.MockTransport(provider))
    azure = openai.AzureOpenAI(
        api_key="k",
        api_version="2024-10-21",
        azure_endpoint="http://gateway.example",
        http_client=client,
        max_retries=0,
    )
    told = azure.chat.completions.create(model="mine", messages=[{"role": "user", "content": "hi"}])
    assert told.choices[0].message.content == "Hello there"
    assert provider.asked[-1]["model"] == "mine"
