"""ModelPolicy and TokenMeter between the SDKs of OpenAI and Anthropic and providers of their APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.providers import Provider
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")


Ask = Callable[..., str]


class World:
    """A gateway with both filters in front of one provider."""

    def __init__(self, stack: ExitStack, gateway: GatewayProcess, provider: Provider, port: int) -> None:
        self.gateway = stack.enter_context(gateway)
        self.provider = provider
        self.url = f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        provider = Provider()
        origin = stack.enter_context(OriginServer([provider.routes()], Pki().server_context("127.0.0.1")))
        port = free_port()
        models = {"allow": ["real-*"], "aliases": [{"name": "fast", "model": "real-1"}], "maxOutputTokens": 50}
        prices = [{"models": ["real-*"], "input": 1, "output": 2}]
        extensions = [
            {"name": "models", "type": "ModelPolicy", "phase": "request-headers", "config": models},
            {"name": "meter", "type": "TokenMeter", "phase": "request-headers", "config": {"prices": prices}},
        ]
        objects = [
            m.gateway(m.http_listener(port)),
            m.policy(cidrs=["127.0.0.0/8"], extensions=extensions),
            m.ip_backend("a", origin.plain_port, origin.address),
            m.http_route("route", m.prefix_rule("/", "a")),
        ]
        yield World(stack, GatewayProcess(tmp_path_factory.mktemp("filters"), objects), provider, port)


def chat(world: World, model: str, *, stream: bool) -> str:
    sdk = openai.OpenAI(base_url=f"{world.url}/v1", api_key="k", max_retries=0)
    messages = [{"role": "user", "content": "one two three"}]
    if not stream:
        return str(sdk.chat.completions.create(model=model, messages=messages).choices[0].message.content)
    chunks = list(sdk.chat.completions.create(model=model, messages=messages, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), "nobody asked for usage"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def message(world: World, model: str, *, stream: bool) -> str:
    sdk = anthropic.Anthropic(base_url=world.url, api_key="k", max_retries=0)
    messages = [{"role": "user", "content": "one two three"}]
    if not stream:
        return str(sdk.messages.create(model=model, max_tokens=90, messages=messages).content[0].text)
    with sdk.messages.stream(model=model, max_tokens=90, messages=messages) as events:
        return str(events.get_final_text())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("ask", "limit"), [(chat, "max_completion_tokens"), (message, "max_tokens")])
def test_a_request_is_renamed_bounded_and_metered(world: World, ask: Ask, limit: str, stream: bool):
    assert ask(world, "fast", stream=stream) == "You said: one two three"
    got = world.provider.requests[-1].body
    assert (got["model"], got[limit]) == ("real-1", 50)
    key = {"gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 7, "gen_ai.request.model": "real-1"}
    record = world.gateway.wait_for_record(**key)
    assert record["ai_cost"] == pytest.approx((11 + 2 * 7) / 1e6)


@pytest.mark.parametrize("ask", [chat, message])
def test_another_model_is_refused_with_the_exception_of_the_sdk(world: World, ask: Ask):
    expected = openai.PermissionDeniedError if ask is chat else anthropic.PermissionDeniedError
    with pytest.raises(expected, match="model 'other' is not allowed"):
        ask(world, "other", stream=True)


def test_the_metrics_have_opentelemetrys_names(world: World):
    chat(world, "fast", stream=True)
    text = world.gateway.admin("/metrics")[1]
    for name in ("gen_ai_client_token_usage_bucket", "gen_ai_server_time_to_first_token_seconds_count"):
        labels = 'backend="agents/a",filter="meter",gen_ai_operation_name="chat",gen_ai_provider_name="openai"'
        assert f"{name}{{{labels}" in text
    assert world.gateway.metric("egress_model_policy_total", filter="models", result="changed") > 0
