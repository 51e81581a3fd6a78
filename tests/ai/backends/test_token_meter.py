"""TokenMeter names the provider that has answered, whatever API the client speaks and whoever was asked before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api
from tests.ai.apis.streams import STREAMS
from tests.ai.backends.test_aliases import body_of, endpoint, post
from tests.ai.backends.test_translation import EVENTS, JSON, provider, respond
from tests.ai.translation.examples import ANSWERS
from tests.gateway.backends.test_failover import answer
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation

METER = {"name": "meter", "type": f"{m.OURS}/TokenMeter:v1", "phase": "request-headers"}


def config(*objects: m.Manifest, to: str = "a", **rule: Any) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=[METER]),
        *objects,
        m.http_route("route", m.prefix_rule("/", to, **rule)),
    ]


def ask(talk: Conversation, *, is_stream: bool) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": is_stream}
    talk.client >> post(json.dumps(asked).encode())


def serve(talk: Conversation, api: Api, *, is_stream: bool) -> None:
    if is_stream:
        respond(talk, STREAMS[api.value], EVENTS)
        talk.client.take(rb"(?s)HTTP/1.1 200 .*\[DONE\]")
    else:
        respond(talk, json.dumps(ANSWERS[api]).encode(), JSON)
        talk.client.take(rb"(?s)HTTP/1.1 200 .*}")


def providers(talk: Conversation) -> set[tuple[str, str]]:
    """Backends and the names of their providers, as all metrics of the meter have them."""
    found: set[tuple[str, str]] = set()
    for name, family in talk.metrics.gather().families.items():
        if name.startswith(("gen_ai_", "egress_ai_tokens")):
            for labels in family.values:
                said = dict(zip(family.labels, labels, strict=True))
                found.add((said["backend"], said["gen_ai_provider_name"]))
    return found


STREAMED = pytest.mark.parametrize("is_stream", [False, True])


@STREAMED
@pytest.mark.parametrize(("api", "name"), [(Api.ANTHROPIC, "anthropic"), (Api.OPENAI_CHAT, "openai")])
def test_the_provider_of_a_request_that_may_be_translated_is_named(
    converse: Start, api: Api, name: str, is_stream: bool
):
    talk = converse(config(provider("a", api.value)))
    ask(talk, is_stream=is_stream)
    body_of(talk, "a")
    serve(talk, api, is_stream=is_stream)
    assert providers(talk) == {("agents/a", name)}


@STREAMED
@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (Api.OPENAI_CHAT, Api.ANTHROPIC, "anthropic"),
        (Api.ANTHROPIC, Api.OPENAI_CHAT, "openai"),
    ],
)
def test_of_a_failover_the_provider_that_has_answered_is_named(
    converse: Start, first: Api, second: Api, name: str, is_stream: bool
):
    group = m.failover("any", endpoint("a", 0), endpoint("b", 1, modelAlias="m"))
    talk = converse(config(provider("a", first.value), provider("b", second.value), group, to="any"))
    ask(talk, is_stream=is_stream)
    body_of(talk, "a")
    answer(talk, 503)
    body_of(talk, "b")
    serve(talk, second, is_stream=is_stream)
    assert providers(talk) == {("agents/b", name)}


def known(host: str, *apis: str) -> m.Manifest:
    made = provider("a", *apis)
    made["spec"]["destination"]["fqdn"]["hostname"] = host
    return made


@pytest.mark.parametrize("apis", [(), ("OpenAIChat",)])
@pytest.mark.parametrize(
    ("host", "name"), [("api.mistral.ai", "mistral_ai"), ("mine.openai.azure.com", "azure.ai.openai")]
)
def test_a_host_that_is_known_says_more_than_the_api(converse: Start, apis: tuple[str, ...], host: str, name: str):
    talk = converse(config(known(host, *apis)))
    ask(talk, is_stream=False)
    talk.dialled(host, 80)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n{.*}")
    serve(talk, Api.OPENAI_CHAT, is_stream=False)
    assert providers(talk) == {("agents/a", name)}


def test_the_host_that_a_client_names_hides_no_translation(converse: Start):
    rewrite = {"type": "URLRewrite", "urlRewrite": {"hostname": "api.openai.com"}}
    talk = converse(config(provider("a", "AnthropicMessages"), filters=[rewrite]))
    ask(talk, is_stream=False)
    body_of(talk, "a")
    serve(talk, Api.ANTHROPIC, is_stream=False)
    assert providers(talk) == {("agents/a", "anthropic")}
