"""API keys with the SDKs: the key of the gateway in place of the provider's, which no provider gets to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli.main import main
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.origins import ai
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

HOST = "provider.egress.test"
SECRET = "the-key-of-the-provider"
QUESTION: list[Any] = [{"role": "user", "content": "three small words"}]


def keys(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["keys", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


class World:
    """A gateway before a provider, whose key it adds; and a client for each SDK."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        pki = Pki(folder)
        self.origin = stack.enter_context(OriginServer([ai.routes()], pki.server_context(HOST)))
        dns = stack.enter_context(NameServer({HOST: [self.origin.address]}))
        self.port = free_port()
        injector = {
            "name": "key", "type": f"{m.OURS}/CredentialInjector:v1",
            "config": {"secretRef": {"name": "provider"}, "allowPlaintext": True},
        }  # fmt: skip
        models = {"name": "models", "type": f"{m.OURS}/ModelPolicy:v1", "config": {}}
        objects = [
            m.gateway(m.http_listener(self.port)),
            m.policy(
                dns=dns.address, cidrs=["127.0.0.0/8"], extensions=[models],
                identity={"apiKeys": {"secretRefs": [{"name": "keys"}]}},
            ),
            m.secret("provider", {"token": SECRET}),
            m.backend("provider", HOST, self.origin.plain_port, extensions=[injector]),
            m.http_route("openai", m.prefix_rule("/openai", "provider")),
            m.http_route("anthropic", m.prefix_rule("/anthropic", "provider")),
        ]  # fmt: skip
        self.gateway = GatewayProcess(folder / "gateway", objects)
        self.file = self.gateway.config / "keys.yaml"
        self.key = self.new("all")
        self.narrow = self.new("narrow", "--routes", "openai", "--models", "gpt-*")
        stack.enter_context(self.gateway)

    def new(self, name: str, *more: str) -> str:
        return keys("new", "--name", name, "--secret", "agents/keys", "--secret-file", str(self.file), *more)

    def openai(self, key: str) -> Any:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/openai/v1", api_key=key, max_retries=0)

    def anthropic(self, key: str) -> Any:
        return anthropic.Anthropic(base_url=f"http://127.0.0.1:{self.port}/anthropic", api_key=key, max_retries=0)

    def asks_openai(self, key: str, model: str = "gpt-test") -> str:
        answer = self.openai(key).chat.completions.create(model=model, messages=QUESTION)
        return str(answer.choices[0].message.content)

    def asks_anthropic(self, key: str) -> str:
        answer = self.anthropic(key).messages.create(model="messages-test", max_tokens=50, messages=QUESTION)
        return str(answer.content[0].text)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_the_sdks_show_a_key_of_the_gateway_until_it_is_revoked(world: World):
    assert world.asks_openai(world.key) == "three small words"
    assert world.asks_anthropic(world.key) == "three small words"
    pieces = world.openai(world.key).chat.completions.create(model="gpt-test", messages=QUESTION, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces).split() == ["three", "small", "words"]
    seen = [*world.origin.requests("/openai/v1/chat/completions"), *world.origin.requests("/anthropic/v1/messages")]
    assert len(seen) == 3
    for request in seen:
        assert "egk_" not in str(request.fields)
        assert dict(request.fields)["Authorization"] == f"Bearer {SECRET}"

    assert world.asks_openai(world.narrow) == "three small words"
    with pytest.raises(openai.PermissionDeniedError, match="not for model 'other'"):
        world.asks_openai(world.narrow, "other")
    with pytest.raises(anthropic.PermissionDeniedError, match="not for the route agents/anthropic"):
        world.asks_anthropic(world.narrow)
    with pytest.raises(openai.AuthenticationError, match="unknown, or revoked"):
        world.asks_openai("egk_wrong")
    with pytest.raises(anthropic.AuthenticationError, match="authentication is required"):
        world.asks_anthropic("sk-ant-of-the-provider")

    with world.openai(world.key) as client:  # keeps its connection
        client.chat.completions.create(model="gpt-test", messages=QUESTION)
        (entry,) = [line.split()[0] for line in keys("list", str(world.file)).splitlines() if line.startswith("all-")]
        keys("revoke", entry, str(world.file))

        def is_refused() -> bool:
            try:
                client.chat.completions.create(model="gpt-test", messages=QUESTION)
            except openai.AuthenticationError:
                return True
            return False

        wait_until(is_refused)
    assert world.asks_openai(world.narrow) == "three small words"
    records = world.gateway.records
    named = {record.get("identity") for record in records if record["status"] == 200}
    assert named == {"agents/keys#all", "agents/keys#narrow"}
    assert "egk_" not in str(records) + world.gateway.stderr
