"""CloudProvider: as Provider, in the APIs of Gemini (generateContent) and Bedrock (Converse).

Source: the references of the Gemini API (GenerateContentResponse) and of the Bedrock runtime (Converse and
ConverseStream).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from egressproxy.ai.apis.aws_event_stream import aws_message
from tests.support.origins.providers import INPUT, OUTPUT, Got, Turn, compressed, next_turn, wants_gzip

Value = dict[str, Any]


@dataclass(slots=True, repr=False)
class CloudProvider:
    """What it got stands in `requests`, and as it came, target and body, in `raw`."""

    requests: list[Got] = field(default_factory=list)
    raw: list[tuple[str, bytes]] = field(default_factory=list)

    def routes(self) -> list[web.AbstractRouteDef]:
        return [
            web.post("/{version:v1[a-z]*}/models/{model:[^:/]+}:{verb}", compressed(self._gemini)),
            web.post("/model/{model}/{verb}", compressed(self._bedrock)),
        ]

    async def _begin(self, request: web.Request) -> Value:
        asked: Value = await request.json()
        fields = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Got(request.path, fields, asked))
        self.raw.append((request.raw_path, await request.read()))
        return asked

    async def _gemini(self, request: web.Request) -> web.StreamResponse:
        asked = await self._begin(request)
        if request.match_info["verb"] == "countTokens":
            return web.json_response({"totalTokens": len(asked["generateContentRequest"]["contents"])})
        parts = [part for content in asked["contents"] for part in content["parts"]]
        *_, user = (part["text"] for part in parts if "text" in part)
        called = {
            part["functionCall"]["id"]: f"call_{part['functionCall']['args']['city']}"
            for part in parts
            if "id" in part.get("functionCall", {})
        }
        answered = [part["functionResponse"] for part in parts if "id" in part.get("functionResponse", {})]
        results = [(called[each["id"]], each["response"]["output"]) for each in answered]
        stream = request.match_info["verb"] == "streamGenerateContent"
        turn = next_turn({**asked, "model": request.match_info["model"], "stream": stream}, user, results)
        said = [{"text": word} for word in turn.words]
        said += [{"functionCall": {"name": "weather", "args": {"city": city}}} for _, city in turn.calls]
        usage = {
            "promptTokenCount": INPUT,
            "candidatesTokenCount": OUTPUT,
            "totalTokenCount": INPUT + OUTPUT,
        }
        common = {"modelVersion": turn.model, "responseId": "r"}
        end = {"finishReason": "STOP", "index": 0}
        if not stream:
            parts = [{"text": "".join(turn.words)}] if turn.words else said
            candidate = {"content": {"role": "model", "parts": parts}, **end}
            return web.json_response({**common, "candidates": [candidate], "usageMetadata": usage})
        events: list[Value] = []
        for part in said:
            events.append({**common, "candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]})
        events[-1]["candidates"][0] |= end
        events[-1]["usageMetadata"] = usage
        pieces = [f"data: {json.dumps(event)}\r\n\r\n".encode() for event in events]
        return await _sent(request, "text/event-stream", pieces)

    async def _bedrock(self, request: web.Request) -> web.StreamResponse:
        asked = await self._begin(request)
        if request.match_info["verb"] == "count-tokens":
            return web.json_response({"inputTokens": len(asked["input"]["converse"]["messages"])})
        blocks = [block for message in asked["messages"] for block in message["content"]]
        user = next(block["text"] for block in reversed(blocks) if "text" in block)
        stream = request.match_info["verb"] == "converse-stream"
        tools = (asked.get("toolConfig") or {}).get("tools")
        answered = [block["toolResult"] for block in blocks if "toolResult" in block]
        results = [(each["toolUseId"], each["content"][0]["text"]) for each in answered]
        turn = next_turn({"model": request.match_info["model"], "tools": tools, "stream": stream}, user, results)
        usage = {"inputTokens": INPUT, "outputTokens": OUTPUT, "totalTokens": INPUT + OUTPUT}
        reason = "tool_use" if turn.calls else "end_turn"
        if not stream:
            content: list[Value] = [{"text": "".join(turn.words)}] if turn.words else []
            content += (
                {"toolUse": {"toolUseId": name, "name": "weather", "input": {"city": city}}}
                for name, city in turn.calls
            )
            output = {"message": {"role": "assistant", "content": content}}
            told = {"output": output, "stopReason": reason, "usage": usage, "metrics": {"latencyMs": 1}}
            return web.json_response(told)
        events = _converse_events(turn)
        events += (("messageStop", {"stopReason": reason}), ("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
        return await _sent(request, "application/vnd.amazon.eventstream", [_event(*each) for each in events])

    def __repr__(self) -> str:
        return f"CloudProvider({len(self.requests)} requests)"


def _converse_events(turn: Turn) -> list[tuple[str, Value]]:
    events: list[tuple[str, Value]] = [("messageStart", {"role": "assistant"})]
    for word in turn.words:
        events.append(("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}))
    if turn.words:
        events.append(("contentBlockStop", {"contentBlockIndex": 0}))
    for number, (name, city) in enumerate(turn.calls):
        at: Value = {"contentBlockIndex": number}
        events.append(("contentBlockStart", {**at, "start": {"toolUse": {"toolUseId": name, "name": "weather"}}}))
        for piece in ('{"city": ', f'"{city}"}}'):
            events.append(("contentBlockDelta", {**at, "delta": {"toolUse": {"input": piece}}}))
        events.append(("contentBlockStop", at))
    return events


def _event(name: str, value: Value) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return aws_message(headers, json.dumps(value).encode())


async def _sent(request: web.Request, kind: str, pieces: list[bytes]) -> web.StreamResponse:
    """Each event in two writes."""
    response = web.StreamResponse(headers={"Content-Type": kind})
    if wants_gzip(request):
        response.enable_compression(web.ContentCoding.gzip)
    await response.prepare(request)
    for piece in pieces:
        cut = len(piece) // 2
        for part in (piece[:cut], piece[cut:]):
            await response.write(part)
    return response
