"""ModelPolicy in the data plane: the backend that it names is asked, and what it refuses has the provider's shape."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation


def start(converse: Start, *, backends: list[str], **config: Any) -> Conversation:
    extension = {
        "name": "models", "type": f"{m.OURS}/ModelPolicy:v1", "phase": "request-headers", "config": config
    }  # fmt: skip
    refs = [
        {"group": m.OURS, "kind": "Backend", "name": name, "weight": 1000 if name == "a" else 1} for name in backends
    ]
    rule = {**m.prefix_rule("/", "a"), "backendRefs": refs}
    made = [
        m.gateway(m.http_listener(8080)),
        m.policy(extensions=[extension]),
        *(m.backend(name, f"{name}.example", 80) for name in backends),
        m.http_route("route", rule),
    ]
    return converse(made)


def post(talk: Conversation, model: str) -> None:
    body = json.dumps({"model": model, "messages": []}).encode()
    fields = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{fields}"
    talk.client >> head.encode() + b"\r\n\r\n" + body


def test_a_request_goes_to_the_backend_of_its_route(converse: Start):
    talk = start(converse, backends=["a", "b"], routes=[{"models": ["big*"], "backend": "b", "model": "real"}])
    post(talk, "big-1")
    talk.dialled("b.example", 80)
    talk.origin.take(rb'(?s)POST .*?\r\n\r\n\{"model": "real", "messages": \[\]\}')
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 204 .*?\r\n\r\n")


def test_a_model_that_is_not_allowed_is_refused_in_the_shape_of_the_provider(converse: Start):
    talk = start(converse, backends=["a"], allow=["small*"])
    post(talk, "big-1")
    head = talk.client.take(rb"HTTP/1.1 403 .*?Content-Length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")
    error = json.loads(talk.client.take(rb"(?s).{%d}" % int(head[1]))[0])["error"]
    assert (error["code"], error["type"]) == ("model_denied", "permission_error")
    assert "'big-1' is not allowed" in error["message"]
    talk.no_dial()
    assert talk.record()["reason"] == "model_denied"
