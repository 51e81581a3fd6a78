"""Requests to AI providers are as long as these take them: with screenshots some ten MiB."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ai.backends.test_translation import provider
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.manifests import Manifest

FILTERS: dict[str, dict[str, Any]] = {
    "TokenMeter": {},
    "ModelPolicy": {"deny": ["other"]},
    "QoSController": {"tokensPerDay": 100_000_000},
    "PromptGuard": {},
    "PIIDetector": {"entities": [{"name": "EMAIL", "action": "Report"}]},
    "ToolPolicy": {"tools": {"deny": [{"names": ["shell"]}]}},
}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eHh4" * 2_400_000}}
LONG = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [BLOCK]}]}).encode()


def filtered(kind: str, **more: Any) -> list[Manifest]:
    extension = {
        "name": "f", "type": f"egressproxy.io/{kind}:v1", "phase": "request-headers", "config": FILTERS[kind] | more,
    }  # fmt: skip
    rule = m.prefix_rule("/", "a")
    return [
        m.gateway(m.http_listener(8080)), m.policy(extensions=[extension]), m.backend("a", "a.example", 80),
        m.http_route("route", rule),
    ]  # fmt: skip


def translated(**ai: Any) -> list[Manifest]:
    backend = provider("a", "OpenAIChat")
    backend["spec"]["destination"]["ports"][0]["protocolOptions"]["ai"].update(ai)
    return [
        m.gateway(m.http_listener(8080)), m.policy(), backend, m.http_route("route", m.prefix_rule("/", "a")),
    ]  # fmt: skip


def posts(talk: Conversation, body: bytes = LONG) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: a.example\r\nContent-Type: application/json\r\n"
    talk.client >> head + b"anthropic-version: 2023-06-01\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("objects", [*(filtered(kind) for kind in FILTERS), translated()], ids=[*FILTERS, "translated"])
def test_a_long_request_is_read(converse: Start, objects: list[Manifest]):
    talk = converse(objects)
    posts(talk)
    talk.dialled("a.example", 80)
    talk.settle()
    assert len(talk.origin.received) > len(LONG) - 1000


@pytest.mark.parametrize(
    "objects",
    [*(filtered(kind, maxBodyBytes=2048) for kind in FILTERS), translated(maxBodyBytes=2048)],
    ids=[*FILTERS, "translated"],
)
def test_each_has_a_bound_of_its_own(converse: Start, objects: list[Manifest]):
    talk = converse(objects)
    posts(talk, LONG[:2049])
    status, _, _, error = talk.client.answer()
    assert status == 413
    assert "2048 bytes" in error["message"]


def test_a_request_beyond_the_bound_of_all_is_refused(converse: Start):
    talk = converse(filtered("TokenMeter", maxBodyBytes=64 * 1024 * 1024))
    posts(talk, bytes(32 * 1024 * 1024 + 1))
    status, _, _, error = talk.client.answer()
    assert status == 413
    assert "limits.maxBufferedBytes" in error["message"]
