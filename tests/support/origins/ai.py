"""Endpoints shaped like those of OpenAI (below /openai/v1) and Anthropic (below /anthropic/v1), plain and streaming.

Every answer is the last user message, word by word where it streams. The server records the credential that came.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

OPENAI_MODEL, ANTHROPIC_MODEL = "gpt-test", "messages-test"


def routes() -> list[web.AbstractRouteDef]:
    return [web.post("/openai/v1/chat/completions", completions), web.post("/anthropic/v1/messages", messages)]


async def completions(request: web.Request) -> web.StreamResponse:
    """Chat completions; a stream ends with [DONE] and stays open a moment, as clients leave before it ends."""
    asked = await request.json()
    text = last_message(asked)
    if not asked.get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return web.json_response(completion("chat.completion", choice, usage=usage(text)))
    response = await event_stream(request)
    for word in words(text):
        delta = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
        await send(response, completion("chat.completion.chunk", delta))
    await send(response, completion("chat.completion.chunk", {"index": 0, "delta": {}, "finish_reason": "stop"}))
    await response.write(b"data: [DONE]\n\n")
    return response


def completion(kind: str, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "chat-1", "object": kind, "created": 1, "model": OPENAI_MODEL, "choices": [choice], **more}


def usage(text: str) -> dict[str, int]:
    count = len(text.split())
    return {"prompt_tokens": count, "completion_tokens": count, "total_tokens": 2 * count}


async def messages(request: web.Request) -> web.StreamResponse:
    """Messages; a stream is the documented sequence of named events."""
    asked = await request.json()
    text = last_message(asked)
    if not asked.get("stream"):
        return web.json_response(message([{"type": "text", "text": text}], "end_turn"))
    response = await event_stream(request)
    await send_named(response, {"type": "message_start", "message": message([], None)})
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    await send_named(response, start)
    for word in words(text):
        delta = {"type": "text_delta", "text": word}
        await send_named(response, {"type": "content_block_delta", "index": 0, "delta": delta})
    await send_named(response, {"type": "content_block_stop", "index": 0})
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    await send_named(response, {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 3}})
    await send_named(response, {"type": "message_stop"})
    return response


def message(content: list[dict[str, Any]], stop_reason: str | None) -> dict[str, Any]:
    return {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": ANTHROPIC_MODEL,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 3},
    }


def last_message(asked: dict[str, Any]) -> str:
    content: str = asked["messages"][-1]["content"]
    return content


def words(text: str) -> list[str]:
    """The text in pieces that join to it again."""
    pieces = text.split(" ")
    return [piece if number == 0 else f" {piece}" for number, piece in enumerate(pieces)]


async def event_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


async def send_named(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
