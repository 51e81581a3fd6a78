"""Limits of tokens, with the SDKs of OpenAI and Anthropic as clients and providers of every API behind the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.test_ai_failover import APIS, World, anthropic, openai
from tests.support.origins.providers import INPUT, OUTPUT, Trouble
from tests.support.waiting import wait_until

LIMIT = 100_000
WORDS = "one two three four five six"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tokens = [{"per": "Gateway", "limit": LIMIT, "unit": "Day"}]
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("ai"), stack, {"limits": {"tokens": tokens, "rateLimitHeaders": "Always"}})


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    for provider in world.providers.values():
        provider.script.clear()
        provider.requests.clear()


class Settled:
    """What was settled since it was made."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before = self._read()

    def _read(self) -> tuple[float, float]:
        read = self._world.gateway.metric
        labels = {"filter": "limits", "limit": "tokens-day-gateway"}
        allowed = read("egress_limit_exchanges_total", **labels, result="allowed")
        return allowed, read("egress_limit_amount_total", **labels, what="settled")

    def after(self, exchanges: int) -> float:
        """Tokens of so many exchanges, when all of them have ended."""
        allowed, settled = self._read()
        assert allowed - self._before[0] == exchanges
        return settled - self._before[1]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("backend", APIS)
@pytest.mark.parametrize("api", APIS)
def test_what_a_provider_tells_is_settled_in_every_api(world: World, api: str, backend: str, stream: bool):
    settled = Settled(world)
    client = world.client(api, f"/{backend}")
    client.says(WORDS)
    said = client.asks(stream=stream)
    assert said.tokens == (INPUT, OUTPUT)
    wait_until(lambda: settled.after(1) == INPUT + OUTPUT, f"{settled.after(1)} tokens are settled")


@pytest.mark.parametrize("backend", APIS)
def test_a_chat_stream_is_asked_for_its_usage_and_the_client_does_not_see_it(world: World, backend: str):
    settled = Settled(world)
    sdk = world.client("OpenAIChat", f"/{backend}").sdk
    chunks = list(sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": WORDS}], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == f"You said: {WORDS}"
    assert not any(chunk.usage for chunk in chunks)
    wait_until(lambda: settled.after(1) == INPUT + OUTPUT, f"{settled.after(1)} tokens are settled")


@pytest.mark.parametrize("api", APIS)
def test_a_request_that_goes_to_another_provider_is_settled_once(world: World, api: str):
    settled = Settled(world)
    world.providers[api].script = [429] * 4
    client = world.client(api, f"/first/{api}")
    client.says(WORDS)
    assert client.asks(stream=False).text == f"You said: {WORDS}"
    wait_until(lambda: settled.after(1) == INPUT + OUTPUT, f"{settled.after(1)} tokens are settled")


@pytest.mark.parametrize("api", APIS)
def test_a_stream_that_breaks_off_is_settled_by_what_was_seen(world: World, api: str):
    settled = Settled(world)
    world.providers[api].script = [Trouble.BREAK]
    client = world.client(api, f"/{api}")
    client.says(WORDS)
    with pytest.raises(Exception):  # noqa: B017 (each SDK has another one)
        client.asks(stream=True)
    wait_until(lambda: 1 < settled.after(1) < 60, f"{settled.after(1)} tokens are settled")


@pytest.mark.parametrize("api", APIS)
def test_what_a_provider_refuses_takes_nothing(world: World, api: str):
    settled = Settled(world)
    world.providers[api].script = [500]
    client = world.client(api, f"/{api}")
    client.says(WORDS)
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
        client.asks(stream=False)
    assert settled.after(1) == 0


def test_the_sdks_raise_their_rate_limit_errors_and_read_what_is_left(tmp_path: Path):
    tokens = [{"per": "Gateway", "limit": 60, "unit": "Day"}]
    with ExitStack() as stack:
        world = World(tmp_path, stack, {"limits": {"tokens": tokens, "rateLimitHeaders": "Always"}})
        first = world.client("OpenAIChat", "/OpenAIChat").sdk.chat.completions.with_raw_response
        answer = first.create(model="m", max_tokens=20, messages=[{"role": "user", "content": "Hi"}])
        assert answer.headers["x-ratelimit-limit-tokens"] == "60"
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 60
        for api, error in (("OpenAIChat", openai), ("OpenAIResponses", openai), ("AnthropicMessages", anthropic)):
            client = world.client(api, f"/{api}")
            client.says("word " * 30)
            with pytest.raises(error.RateLimitError) as raised:
                client.asks(stream=False)
            assert "more than 60 tokens in a day" in str(raised.value)
            assert int(raised.value.response.headers["retry-after"]) > 0
            assert 'tokens-day-gateway";r=42;' in raised.value.response.headers["ratelimit"]
