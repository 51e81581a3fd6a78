"""Provider: an AI provider that serves chat completions, responses and messages, whole and as streams, as it is told.

With tools it first calls the tool `weather` for each city that the user named, and when it has their results says them;
without tools it says what the user has said. `script` has what becomes of the next requests: a status, or a Trouble.
What it got stands in `requests`. The shapes are those of the documentation of OpenAI and Anthropic.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiohttp import web

#: A request with this field gets its answer in gzip, if it accepts that.
WANTS_GZIP = "X-Wants-Gzip"

Value = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
INPUT, OUTPUT = 11, 7  # tokens
_CITY = re.compile(r"Oslo|Lima|Rome")


class Trouble(Enum):
    """What becomes of a request, beside an error status."""

    STALL = "the head comes, and nothing behind it"
    SILENCE = "nothing comes"
    BREAK = "the connection breaks within the stream, behind its first words"
    SHORT = "the stream ends in a clean way, but before its last events"
    ERROR_EVENT = "the stream ends with an error event"
    GARBAGE = "the answer is no JSON"


@dataclass(frozen=True, slots=True)
class Got:
    """One request: its path, its fields (names in lower case), its JSON."""

    path: str
    fields: dict[str, str]
    body: Value


@dataclass(slots=True)
class Turn:
    """What is said next: words, or calls of `weather` (id, city)."""

    model: str
    words: list[str]
    calls: list[tuple[str, str]]
    is_stream: bool
    wants_usage: bool


@dataclass(slots=True, repr=False)
class Provider:
    """`script` and `requests`: see above. They may be read and set from any thread."""

    script: list[int | Trouble | None] = field(default_factory=list)
    requests: list[Got] = field(default_factory=list)

    def routes(self, prefix: str = "/v1") -> list[web.AbstractRouteDef]:
        return [
            web.post(f"{prefix}/chat/completions", compressed(self._chat)),
            web.post(f"{prefix}/responses", compressed(self._responses)),
            web.post(f"{prefix}/messages", compressed(self._messages)),
        ]

    async def _begin(self, request: web.Request) -> tuple[Value, Trouble | None]:
        asked = await request.json()
        fields = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Got(request.path, fields, asked))
        told = self.script.pop(0) if self.script else None
        if isinstance(told, int):
            text = json.dumps(error_of(request.path, told))
            raise _Refused(told, text)
        if told is Trouble.SILENCE:
            await left(request)
        if told is Trouble.GARBAGE:
            raise _Refused(200, "<html>")
        return asked, told

    # --- chat completions of OpenAI --------------------------------------------------------------------------------
    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            asked, trouble = await self._begin(request)
        except _Refused as refused:
            return refused.response
        said = [each for each in asked["messages"] if each["role"] != "system"]
        results = [(each["tool_call_id"], text_of(each["content"])) for each in said if each["role"] == "tool"]
        user = next(text_of(each["content"]) for each in reversed(said) if each["role"] == "user")
        wants = (asked.get("stream_options") or {}).get("include_usage", False)
        turn = next_turn(asked, user, results, wants_usage=wants)
        usage = {
            "prompt_tokens": INPUT,
            "completion_tokens": OUTPUT,
            "total_tokens": INPUT + OUTPUT,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        common = {"id": "chatcmpl-1", "created": 1, "model": turn.model}
        reason = "tool_calls" if turn.calls else "stop"
        calls = [
            {"id": name, "type": "function", "function": {"name": "weather", "arguments": arguments(city)}}
            for name, city in turn.calls
        ]
        if not turn.is_stream:
            message: Value = {"role": "assistant", "content": "".join(turn.words) or None, "refusal": None}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
            return web.json_response({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
        deltas: list[Value] = [{"role": "assistant", "content": "" if turn.words else None}]
        deltas += ({"content": word} for word in turn.words)
        for index, call in enumerate(calls):
            begun = {**call, "index": index, "function": {"name": "weather", "arguments": ""}}
            deltas.append({"tool_calls": [begun]})
            whole = call["function"]["arguments"]
            deltas += (
                {"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in (whole[:4], whole[4:])
            )
        chunk = {**common, "object": "chat.completion.chunk"}
        events = [{**chunk, "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
        events.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if turn.wants_usage:
            events.append({**chunk, "choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        error = f"data: {json.dumps(error_of('/v1/chat/completions', 500))}\n\n"
        return await flow(request, lines, ["data: [DONE]\n\n"], error, trouble)

    # --- responses of OpenAI ---------------------------------------------------------------------------------------
    async def _responses(self, request: web.Request) -> web.StreamResponse:
        try:
            asked, trouble = await self._begin(request)
        except _Refused as refused:
            return refused.response
        items = asked["input"] if isinstance(asked["input"], list) else [{"role": "user", "content": asked["input"]}]
        results = [
            (each["call_id"], text_of(each["output"])) for each in items if each.get("type") == "function_call_output"
        ]
        user = next(text_of(each["content"]) for each in reversed(items) if each.get("role") == "user")
        turn = next_turn(asked, user, results)
        output: list[Value] = []
        if turn.words:
            content = [{"type": "output_text", "text": "".join(turn.words), "annotations": [], "logprobs": []}]
            output.append(
                {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
            )
        for number, (name, city) in enumerate(turn.calls):
            output.append(
                {
                    "id": f"fc_{number}",
                    "type": "function_call",
                    "call_id": name,
                    "name": "weather",
                    "arguments": arguments(city),
                    "status": "completed",
                }
            )
        usage = {
            "input_tokens": INPUT,
            "output_tokens": OUTPUT,
            "total_tokens": INPUT + OUTPUT,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        whole: Value = {
            "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "error": None,
            "incomplete_details": None, "instructions": None, "metadata": {}, "model": turn.model, "output": output,
            "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": asked.get("tools", []),
            "top_p": 1.0, "usage": usage,
        }  # fmt: skip
        if not turn.is_stream:
            return web.json_response(whole)
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        events: list[Value] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(output):
            events += item_events(item, index, turn.words)
        last = {"type": "response.completed", "response": whole}
        numbered = [named({**event, "sequence_number": number}) for number, event in enumerate([*events, last])]
        error = named({"type": "error", "code": "server_error", "message": "it broke", "param": None})
        return await flow(request, numbered[:-1], numbered[-1:], error, trouble)

    # --- messages of Anthropic -------------------------------------------------------------------------------------
    async def _messages(self, request: web.Request) -> web.StreamResponse:
        try:
            asked, trouble = await self._begin(request)
        except _Refused as refused:
            return refused.response
        if "max_tokens" not in asked or "anthropic-version" not in request.headers:
            return web.json_response(error_of("/v1/messages", 400), status=400)
        blocks = [
            block
            for message in asked["messages"]
            for block in (
                message["content"]
                if isinstance(message["content"], list)
                else [{"type": "text", "text": message["content"], "role": message["role"]}]
            )
        ]
        results = [
            (each["tool_use_id"], text_of(each.get("content", ""))) for each in blocks if each["type"] == "tool_result"
        ]
        users = [text_of(each["content"]) for each in asked["messages"] if each["role"] == "user"]
        user = next(text for text in reversed(users) if text)
        turn = next_turn(asked, user, results)
        content: list[Value] = [{"type": "text", "text": "".join(turn.words)}] if turn.words else []
        content += (
            {"type": "tool_use", "id": name, "name": "weather", "input": {"city": city}} for name, city in turn.calls
        )
        reason = "tool_use" if turn.calls else "end_turn"
        usage = {"input_tokens": INPUT - 3, "cache_read_input_tokens": 3, "output_tokens": OUTPUT}
        whole = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": turn.model, "content": content,
            "stop_reason": reason, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        if not turn.is_stream:
            return web.json_response(whole, headers={"request-id": "req_1"})
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        events: list[Value] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
        for index, block in enumerate(content):
            if block["type"] == "text":
                empty: Value = {"type": "text", "text": ""}
                deltas: list[Value] = [{"type": "text_delta", "text": word} for word in turn.words]
            else:
                empty = {**block, "input": {}}
                written = json.dumps(block["input"])
                deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", written[:4], written[4:])]
            events.append({"type": "content_block_start", "index": index, "content_block": empty})
            events += ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
            events.append({"type": "content_block_stop", "index": index})
        stop = {"stop_reason": reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": OUTPUT}})
        lines = [named(event) for event in events]
        error = named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
        return await flow(request, lines, [named({"type": "message_stop"})], error, trouble)

    def __repr__(self) -> str:
        return f"Provider({len(self.requests)} requests)"


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        kind = "application/json" if status != 200 else "text/html"
        fields = {"Retry-After": "1"} if status == 429 else {}
        self.response = web.Response(status=status, text=text, content_type=kind, headers=fields)


def error_of(path: str, status: int) -> Value:
    """The body of an error, in the shape of the API at this path."""
    if path.endswith("/messages"):
        return {"type": "error", "error": {"type": "overloaded_error", "message": f"told {status}"}}
    return {"error": {"message": f"told {status}", "type": "server_error", "param": None, "code": None}}


def next_turn(asked: Value, user: str, results: Sequence[tuple[str, str]], *, wants_usage: bool = True) -> Turn:
    """What the model says next."""
    cities = _CITY.findall(user)
    calls = [(f"call_{city}", city) for city in cities] if asked.get("tools") and not results else []
    text = f"You said: {user}"
    if results:
        known = {name.removeprefix("call_"): said for name, said in results}
        text = "It is " + " and ".join(f"{known.get(city, 'unknown')} in {city}" for city in cities) + "."
    words = [] if calls else re.findall(r"\s*\S+", text)
    return Turn(asked["model"], words, calls, bool(asked.get("stream")), wants_usage)


def text_of(content: Any) -> str:
    """The text of a message, whatever form its content has."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") in ("text", "input_text", "output_text"))


def arguments(city: str) -> str:
    return json.dumps({"city": city})


def item_events(item: Value, index: int, words: Sequence[str]) -> list[Value]:
    """The events of one item of a Response."""
    at: Value = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "message":
        part = item["content"][0]
        of_part = {**at, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        inner: list[Value] = [
            {"type": "response.content_part.added", **of_part, "part": empty},
            *({"type": "response.output_text.delta", **of_part, "delta": word, "logprobs": []} for word in words),
            {"type": "response.output_text.done", **of_part, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **of_part, "part": part},
        ]
        begun = {**item, "status": "in_progress", "content": []}
    else:
        whole = item["arguments"]
        parts = (whole[:4], whole[4:])
        inner = [
            *({"type": "response.function_call_arguments.delta", **at, "delta": part} for part in parts),
            {"type": "response.function_call_arguments.done", **at, "arguments": whole, "name": item["name"]},
        ]
        begun = {**item, "status": "in_progress", "arguments": ""}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *inner,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def named(event: Value) -> str:
    """An event with its type as its name."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def wants_gzip(request: web.Request) -> bool:
    return WANTS_GZIP in request.headers and "gzip" in request.headers.get("Accept-Encoding", "")


def compressed(handler: Handler) -> Handler:
    """This handler, with its whole answers in gzip where the request wants them so; `flow` sees to streams."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        if wants_gzip(request) and not response.prepared:
            response.enable_compression(web.ContentCoding.gzip)
        return response

    return handle


async def left(request: web.Request) -> None:
    """Until the client has left."""
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def flow(
    request: web.Request, lines: Sequence[str], last: Sequence[str], error: str, trouble: Trouble | None
) -> web.StreamResponse:
    """Send the events of a stream one by one, cut in the middle, or what is told instead."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    if wants_gzip(request):
        response.enable_compression(web.ContentCoding.gzip)
    await response.prepare(request)
    if trouble is Trouble.STALL:
        await left(request)
    half = lines if trouble is None or trouble is Trouble.SHORT else lines[: len(lines) // 2 + 1]
    for line in half:
        cut = len(line) // 2
        for part in (line[:cut], line[cut:]):
            await response.write(part.encode())
            await asyncio.sleep(0)
    if trouble is Trouble.BREAK:
        assert request.transport is not None
        await asyncio.sleep(0.05)  # so that what was said is out before the reset
        request.transport.abort()
    elif trouble is Trouble.ERROR_EVENT:
        await response.write(error.encode())
    elif trouble is None:
        for line in last:
            await response.write(line.encode())
    return response
