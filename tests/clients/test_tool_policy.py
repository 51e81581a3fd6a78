"""The SDKs of OpenAI and Anthropic behind a ToolPolicy: what is offered, and what a denied call raises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from aiohttp import web

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
seen: list[dict[str, Any]] = []


async def chat(request: web.Request) -> web.StreamResponse:
    """Calls the tool that `user` names, in a stream if one is asked for."""
    asked = await request.json()
    seen.append(asked)
    call = {"index": 0, "id": "1", "type": "function", "function": {"name": asked["user"], "arguments": "{}"}}
    told = {"id": "1", "created": 1, "model": "m"}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
        return web.json_response({**told, "object": "chat.completion", "choices": choices})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for delta in ({"content": "well"}, {"tool_calls": [call]}):
        choices = [{"index": 0, "delta": delta, "finish_reason": None}]
        event = {**told, "object": "chat.completion.chunk", "choices": choices}
        await response.write(b"data: %b\n\n" % json.dumps(event).encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def messages(request: web.Request) -> web.Response:
    """Calls the tool that the metadata name."""
    asked = await request.json()
    seen.append(asked)
    content = [{"type": "tool_use", "id": "1", "name": asked["metadata"]["user_id"], "input": {"q": 1}}]
    usage = {"input_tokens": 1, "output_tokens": 1}
    told = {"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use", "usage": usage}
    return web.json_response({**told, "content": content})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as stack:
        routes = [web.post("/v1/chat/completions", chat), web.post("/v1/messages", messages)]
        origin = stack.enter_context(OriginServer([routes], Pki().server_context("127.0.0.1")))
        port = free_port()
        config = {"tools": {"allow": [{"names": ["search"]}]}}
        extension = {
            "name": "tools", "type": f"{m.OURS}/ToolPolicy:v1", "phase": "request-headers", "config": config,
        }  # fmt: skip
        own = m.policy(cidrs=[f"{origin.address}/32"], extensions=[extension])
        own["spec"]["dns"] = {"hosts": {"api.test": [origin.address]}}
        objects = [
            m.gateway(m.http_listener(port)), own, m.http_route("all", m.prefix_rule("/", "api")),
            m.backend("api", "api.test", origin.plain_port),
        ]  # fmt: skip
        stack.enter_context(GatewayProcess(tmp_path_factory.mktemp("tools") / "g", objects))
        yield f"http://127.0.0.1:{port}"


def tools(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


def test_openai_offers_and_calls_what_is_allowed(url: str):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="m", messages=HELLO, tools=tools("search", "delete"), user="search")
    assert answer.choices[0].message.tool_calls[0].function.name == "search"
    assert [tool["function"]["name"] for tool in seen[-1]["tools"]] == ["search"]


def test_openai_raises_for_a_call_that_is_denied(url: str):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.PermissionDeniedError, match="the model calls tool 'delete', which is not allowed"):
        client.chat.completions.create(model="m", messages=HELLO, tools=tools("search"), user="delete")


def test_openai_raises_in_a_stream_before_the_call(url: str):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    said: list[str | None] = []
    stream = client.chat.completions.create(
        model="m", messages=HELLO, tools=tools("search"), user="delete", stream=True
    )

    def read() -> None:
        for chunk in stream:
            said.append(chunk.choices[0].delta.content)
            assert chunk.choices[0].delta.tool_calls is None

    with pytest.raises(openai.APIError, match="the model calls tool 'delete', which is not allowed"):
        read()
    assert said == ["well"]


def test_anthropic_raises_for_a_call_that_is_denied(url: str):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    offered: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("search", "delete")]

    def ask(tool: str) -> Any:
        return client.messages.create(
            model="m", max_tokens=9, messages=HELLO, tools=offered, metadata={"user_id": tool}
        )

    assert ask("search").content[0].name == "search"
    assert [tool["name"] for tool in seen[-1]["tools"]] == ["search"]
    with pytest.raises(anthropic.PermissionDeniedError, match="the model calls tool 'delete', which is not allowed"):
        ask("delete")
