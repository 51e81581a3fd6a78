"""ToolPolicy behind a translation for a provider of another API: a denied tool is neither offered nor called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ai.backends.test_aliases import post
from tests.ai.backends.test_translation import JSON, config, provider, respond
from tests.gateway.backends.test_failover import asked
from tests.gateway.conftest import Start
from tests.support import manifests as m

NAMES = ("look", "shell")
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in NAMES]
ASKED = {"model": "m-1", "messages": [{"role": "user", "content": "hi"}], "tools": FUNCTIONS}
DENY = {"name": "tools", "type": f"{m.OURS}/ToolPolicy:v1", "config": {"tools": {"deny": [{"names": ["shell"]}]}}}
PART = {"functionCall": {"name": "shell", "args": {}}}
CALLS = {
    "Gemini": {"candidates": [{"content": {"role": "model", "parts": [PART]}, "finishReason": "STOP"}]},
    "AnthropicMessages": {
        "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "content": [{"type": "tool_use", "id": "t", "name": "shell", "input": {}}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "BedrockConverse": {
        "output": {
            "message": {
                "role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "shell", "input": {}}}],
            },
        },
        "stopReason": "tool_use", "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    },
}  # fmt: skip


@pytest.mark.parametrize(("api", "answer"), CALLS.items())
def test_a_denied_tool_is_neither_offered_nor_called(converse: Start, api: str, answer: Any):
    made = config(provider("a", api))
    made[1] = m.policy(extensions=[DENY])
    talk = converse(made)
    talk.client >> post(json.dumps(ASKED).encode())
    size = int(asked(talk, "a", b"POST").lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    sent = talk.origin.take(b"(?s).{%d}" % size)[0]
    assert b"look" in sent
    assert b"shell" not in sent
    respond(talk, json.dumps(answer).encode(), JSON)
    status, phrase, _, _ = talk.client.answer()
    assert (status, b"the model calls tool 'shell'" in phrase) == (403, True)
