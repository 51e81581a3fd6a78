"""Streams of each API, as providers send them: "Hello there", then a call of `weather` with {"city": "Köln"}."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.aws_event_stream import AwsFraming, aws_message
from egressproxy.ai.apis.framing import Framing, JsonArrayFraming, SseFraming
from egressproxy.ai.apis.streams import StreamReader
from tests.ai.translation.examples import STREAMS as OPENAI_AND_ANTHROPIC


def _gemini(parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0, **more}],
        "modelVersion": "served",
        "responseId": "r",
    }


GEMINI_EVENTS = [
    _gemini([{"text": "Hm", "thought": True}]),
    _gemini([{"text": "Hello "}]),
    _gemini([{"text": "there"}]),
    {
        **_gemini([{"functionCall": {"name": "weather", "args": {"city": "Köln"}}}], finishReason="STOP"),
        "usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 7},
    },
]
_CONVERSE: list[tuple[str, dict[str, Any]]] = [
    ("messageStart", {"role": "assistant", "p": "abc"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm"}}, "p": "ab"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "abc"}}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Hello "}, "p": "abcd"}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "there"}}),
    ("contentBlockStop", {"contentBlockIndex": 1}),
    ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "c", "name": "weather"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"city":'}}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '"Köln"}'}}}),
    ("contentBlockStop", {"contentBlockIndex": 2}),
    ("messageStop", {"stopReason": "tool_use"}),
    ("metadata", {"usage": {"inputTokens": 30, "outputTokens": 7, "totalTokens": 37}, "metrics": {"latencyMs": 1}}),
]


def aws(name: str, value: Any) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return aws_message(headers, json.dumps(value, ensure_ascii=False).encode())


def payloads(stream: bytes) -> list[bytes]:
    return [frame.payload for frame in SseFraming().feed(stream)]


STREAMS: dict[str, bytes] = {
    **{api.value: stream for api, stream in OPENAI_AND_ANTHROPIC.items()},
    "Gemini as events": b"".join(b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in GEMINI_EVENTS),
    "Gemini as an array": json.dumps(GEMINI_EVENTS, indent=1, ensure_ascii=False)
    .replace("\n },", "\n }\n,\r\n")
    .encode(),
    "Bedrock Converse": b"".join(aws(*event) for event in _CONVERSE),
    "Bedrock InvokeModel": b"".join(
        aws("chunk", {"bytes": b64encode(payload).decode(), "p": "abc"})
        for payload in payloads(OPENAI_AND_ANTHROPIC[Api.ANTHROPIC])
    ),
}


def framing(name: str) -> Framing:
    if name.startswith("Bedrock"):
        return AwsFraming()
    return JsonArrayFraming() if name.endswith("array") else SseFraming()


def told(name: str, stream: bytes) -> tuple[dict[Any, str], list[str]]:
    """The text of each channel of a stream, as a client puts it together, and the texts that are told whole."""
    channels: dict[Any, str] = {}
    wholes: list[str] = []
    for event in StreamReader(framing(name)).feed(stream):
        for delta in event.deltas:
            channels[delta.channel] = channels.get(delta.channel, "") + delta.text
        wholes += [whole.found.text for whole in event.wholes if not whole.found.is_signed]
    return channels, wholes
