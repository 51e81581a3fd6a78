"""The body of an exchange that is cut, at whatever step and by whoever, is freed without the garbage collector."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import pytest

from tests.ai.backends.test_translation import provider
from tests.gateway.h2 import speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer, conversation

SIZE = 200_000
#: What may stay of an exchange in circles: heads, and objects of some bytes each.
FEW = 20_000
FILTERS: dict[str, dict[str, Any]] = {
    "CanaryKeys": {"secretRefs": [{"name": "planted"}]},
    "PIIDetector": {"entities": [{"name": "EMAIL", "action": "Placeholder"}], "applyTo": "Both"},
    "PromptGuard": {},
    "ResponsePolicy": {"deny": [{"name": "F", "pattern": "falcon", "maxLength": 40}], "action": "Truncate"},
    "ToolPolicy": {"tools": {"deny": [{"names": ["shell"]}]}},
    "TokenMeter": {},
    "Cache": {"maxBytes": 10_000_000},
    "QoSController": {"tokensPerDay": 2_000_000},
    "CredentialInjector": {
        "secretRef": {"name": "planted"}, "placeholder": "placeholder-of-a-key", "placeholderBodyBytes": 4 * SIZE,
    },
}  # fmt: skip
#: Who ends it, and when. In "answer" steps the backend has sent a part of its answer.
STEPS = ["client in request", "client in wait", "client in answer", "backend in wait", "backend in answer"]


def config(kind: str, phase: str, api: str | None) -> list[m.Manifest]:
    """One filter of this kind (or none) for the route or for its backend, which speaks this API (or any)."""
    extension = {"name": "f", "type": f"egressproxy.io/{kind}:v1", "phase": phase, "config": FILTERS.get(kind)}
    on_backend: dict[str, Any] = {"extensions": [extension]} if phase == "backend-request" else {}
    policy: dict[str, Any] = {"extensions": [extension]} if phase == "request-headers" else {}
    backend = provider("a", api, **on_backend) if api else m.backend("a", "a.example", 80, **on_backend)
    rule = m.prefix_rule("/", "a")
    secret = m.secret("planted", {"token": "sk-Live-4242424242424242"})
    return [m.gateway(m.http_listener(8080)), m.policy(**policy), secret, backend, m.http_route("route", rule)]


def asks(talk: Conversation, wire: str, step: str, is_stream: bool) -> Any:
    """A large request, whole or two thirds of it; returns the client of HTTP/2 and its stream."""
    said = {"model": "m", "stream": is_stream, "messages": [{"role": "user", "content": "word " * (SIZE // 5)}]}
    body = json.dumps(said).encode()
    part = body[: len(body) * 2 // 3] if step == "client in request" else body
    if wire == "HTTP/1":
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a.example\r\nContent-Type: application/json\r\n"
        talk.client >> head + b"Content-Length: %d\r\n\r\n" % len(body) + part
        talk.settle()
        return None
    client = speak_http2(talk)
    content = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
    stream = client.ask(b"POST", b"/v1/chat/completions", b"a.example", *content, ends=False)
    for start in range(0, len(part), 16_000):
        client.says(stream, part[start : start + 16_000], ends=False)
        client.settle()
    if part is body:
        client.says(stream, b"", ends=True)
    talk.settle()
    return client, stream


def answers(talk: Conversation, is_stream: bool) -> None:
    """A part of a large answer."""
    if is_stream:
        event = b'data: {"choices": [{"delta": {"content": "' + b"hello " * (SIZE // 20) + b'"}}]}\n\n'
        head = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        part = b"%x\r\n%b\r\n%x\r\n%b" % (len(event), event, len(event), event[:-100])
    else:
        head = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (2 * SIZE)
        part = b'{"id": "' + b"x" * SIZE
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + head + part
    talk.settle()


def in_circles() -> int:
    """The bytes and text that only a garbage collector would free, without what a test has sent and got itself."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        ours = [found for found in gc.garbage if not isinstance(found, Peer)]
        held = {id(each): each for found in ours for each in gc.get_referents(found)}
        return sum(sys.getsizeof(each) for each in held.values() if isinstance(each, bytes | bytearray | str))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def left_of(objects: list[m.Manifest], wire: str, step: str, is_stream: bool) -> int:
    """How many bytes are in circles when everybody has left a conversation that was cut at this step."""
    talk = conversation(objects, wire="memory")
    talk.counts_octets = False
    gc.collect()
    gc.disable()
    try:
        spoken = asks(talk, wire, step, is_stream)
        if step != "client in request" or talk.dialer.dials:
            talk.dialled("a.example", 80)
            talk.settle()
        if step.endswith("answer"):
            answers(talk, is_stream)
        if step.startswith("backend"):
            talk.origin.resets()
        elif spoken is None:
            talk.client.resets()
        else:
            client, stream = spoken
            client.resets(stream)
            client.settle()
        talk.settle()
        talk.everybody_leaves()
        talk.settle()
        return in_circles()
    finally:
        gc.enable()
        talk.close()


@pytest.mark.parametrize("api", [None, "AnthropicMessages", "OpenAIChat"])
@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("", ""),
        *((kind, "request-headers") for kind in FILTERS if kind != "CredentialInjector"),
        *((kind, "backend-request") for kind in ("PIIDetector", "ResponsePolicy", "CredentialInjector")),
    ],
)
def test_a_body_that_is_cut_is_freed_at_once(kind: str, phase: str, api: str | None):
    objects = config(kind, phase, api)
    left = {
        (wire, step, is_stream): left_of(objects, wire, step, is_stream)
        for wire in ("HTTP/1", "HTTP/2")
        for step in STEPS
        for is_stream in (False, True)
        if not is_stream or step.endswith("answer")
    }
    assert {way: size for way, size in left.items() if size > FEW} == {}
