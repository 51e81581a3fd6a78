"""Answers and streams of the APIs, as their providers send them: one text, and one call of a tool."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.aws_event_stream import aws_message
from egressproxy.ai.translation.apis import DEFAULT_PATHS
from egressproxy.ai.translation.translator import ResponseTranslator, TranslatedRequest, translate_request
from egressproxy.model.work import at_once

CHAT, RESPONSES, ANTHROPIC = Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.ANTHROPIC
GEMINI, BEDROCK = Api.GEMINI, Api.BEDROCK_CONVERSE
PAIRS = [(source, target) for source in DEFAULT_PATHS for target in DEFAULT_PATHS if source is not target]
#: Clients with providers, some of which are translated to and not from.
TO_PROVIDERS = [*PAIRS, *((source, target) for source in DEFAULT_PATHS for target in (GEMINI, BEDROCK))]

#: Of these the streams are server-sent events, and the answers tell an id and a model.
TO_SSE = [pair for pair in TO_PROVIDERS if pair[1] is not BEDROCK]

SMALLEST: dict[Api, dict[str, Any]] = {
    CHAT: {"model": "asked", "messages": [{"role": "user", "content": "Hello"}]},
    RESPONSES: {"model": "asked", "input": "Hello"},
    ANTHROPIC: {"model": "asked", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]},
}

#: A request with most of what can be translated.
LARGEST: dict[Api, dict[str, Any]] = {
    CHAT: {
        "model": "asked",
        "messages": [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}},
                ],
            },
            {
                "role": "assistant",
                "content": "a moment",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a cat"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "stream_options": {"include_usage": True},
        "prompt_cache_options": {"mode": "implicit"},
        "stream": True,
    },
    RESPONSES: {
        "model": "asked",
        "instructions": "be brief",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what is this"},
                    {"type": "input_image", "image_url": "https://a.example/cat.png", "detail": "auto"},
                ],
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a moment"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a cat"}]},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "stream_options": {"include_obfuscation": False},
    },
    ANTHROPIC: {
        "model": "asked",
        "max_tokens": 10,
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this"},
                    {"type": "image", "source": {"type": "url", "url": "https://a.example/cat.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "a moment"},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a cat"}]}
                ],
            },
        ],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "u"},
    },
}

CHAT_USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 7,
    "total_tokens": 37,
    "prompt_tokens_details": {"cached_tokens": 20, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
RESPONSES_USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 37,
}
ANTHROPIC_USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 20,
    "cache_creation_input_tokens": 0,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 2},
    "service_tier": "standard",
}
BEDROCK_USAGE = {"inputTokens": 10, "cacheReadInputTokens": 20, "outputTokens": 7, "totalTokens": 37}
GEMINI_USAGE = {
    "promptTokenCount": 30,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 2,
    "cachedContentTokenCount": 20,
    "totalTokenCount": 37,
}

#: "Hello there", then a call of `weather` with {"city": "Köln"}.
ANSWERS: dict[Api, dict[str, Any]] = {
    CHAT: {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "served",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "logprobs": None,
                "message": {
                    "role": "assistant",
                    "content": "Hello there",
                    "refusal": None,
                    "annotations": [],
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city":"Köln"}'},
                        }
                    ],
                },
            }
        ],
        "usage": CHAT_USAGE,
    },
    RESPONSES: {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "status": "completed",
        "model": "served",
        "error": None,
        "incomplete_details": None,
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello there", "annotations": []}],
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "weather",
                "arguments": '{"city":"Köln"}',
                "status": "completed",
            },
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": RESPONSES_USAGE,
    },
    ANTHROPIC: {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": "abc"},
            {"type": "text", "text": "Hello there"},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": ANTHROPIC_USAGE,
    },
    GEMINI: {
        "candidates": [
            {
                "index": 0,
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Hm", "thought": True},
                        {"text": "Hello "},
                        {"text": "there"},
                        {
                            "functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Köln"}},
                            "thoughtSignature": "c2ln",
                        },
                    ],
                },
            }
        ],
        "usageMetadata": GEMINI_USAGE,
        "modelVersion": "served",
        "responseId": "1",
    },
    BEDROCK: {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "abc"}}},
                    {"text": "Hello there"},
                    {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Köln"}}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": BEDROCK_USAGE,
        "metrics": {"latencyMs": 1},
    },
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every object and array in a value, with each of its keys or indexes."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in [(value, key), *places(one)]]


#: Values that stand where nobody expects them.
junk = st.sampled_from(
    ["null", "true", "0", "-1", "1.5", '""', '"x"', "[]", "[1]", "[{}]", "{}", '{"type":"x"}', "9" * 30, '"\\ud800"']
).map(json.loads)


def named(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events
    )


def unnamed(*chunks: dict[str, Any]) -> bytes:
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)


def converse(*events: tuple[str, dict[str, Any]]) -> bytes:
    """Messages of an Amazon event stream."""
    common = {":content-type": "application/json", ":message-type": "event"}
    return b"".join(aws_message({":event-type": name, **common}, json.dumps(value).encode()) for name, value in events)


def chat_chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "served",
        "choices": [choice],
        "obfuscation": "x",
        **more,
    }


def _call(index: int, **call: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **call}]}


def _numbered(*events: dict[str, Any]) -> bytes:
    return named(*({**event, "sequence_number": number} for number, event in enumerate(events)))


def gemini_chunk(*parts: dict[str, Any], **ending: Any) -> dict[str, Any]:
    """A chunk of a stream of Gemini's; `ending` are members of the candidate."""
    candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}, **ending}
    usage = {"promptTokenCount": 30, "totalTokenCount": 30}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "served", "responseId": "1"}


_BEGUN = {**ANSWERS[RESPONSES], "status": "in_progress", "output": [], "usage": None}
_MESSAGE = {"item_id": "msg_1", "output_index": 1, "content_index": 0}

STREAMS: dict[Api, bytes] = {
    CHAT: unnamed(
        chat_chunk({"role": "assistant", "content": "", "refusal": None}),
        chat_chunk({"content": "Hello "}),
        chat_chunk({"content": "there"}),
        chat_chunk(_call(0, id="call_1", type="function", function={"name": "weather", "arguments": ""})),
        chat_chunk(_call(0, function={"arguments": '{"city":'})),
        chat_chunk(_call(0, function={"arguments": '"Köln"}'})),
        chat_chunk({}, "tool_calls"),
        {**chat_chunk({}), "choices": [], "usage": CHAT_USAGE},
    )
    + b"data: [DONE]\n\n",
    RESPONSES: _numbered(
        {"type": "response.created", "response": _BEGUN},
        {"type": "response.in_progress", "response": _BEGUN},
        {"type": "response.output_item.added", "output_index": 0, "item": ANSWERS[RESPONSES]["output"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": ANSWERS[RESPONSES]["output"][0]},
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": {"type": "message", "id": "msg_1", "status": "in_progress", "role": "assistant", "content": []},
        },
        {
            "type": "response.content_part.added",
            **_MESSAGE,
            "part": {"type": "output_text", "text": "", "annotations": []},
        },
        {"type": "response.output_text.delta", **_MESSAGE, "delta": "Hello ", "logprobs": []},
        {"type": "response.output_text.delta", **_MESSAGE, "delta": "there", "logprobs": []},
        {"type": "response.output_text.done", **_MESSAGE, "text": "Hello there", "logprobs": []},
        {
            "type": "response.content_part.done",
            **_MESSAGE,
            "part": ANSWERS[RESPONSES]["output"][1]["content"][0],
        },
        {"type": "response.output_item.done", "output_index": 1, "item": ANSWERS[RESPONSES]["output"][1]},
        {
            "type": "response.output_item.added",
            "output_index": 2,
            "item": {**ANSWERS[RESPONSES]["output"][2], "arguments": "", "status": "in_progress"},
        },
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 2,
            "delta": '{"city":"Köln"}',
        },
        {
            "type": "response.function_call_arguments.done",
            "item_id": "fc_1",
            "output_index": 2,
            "arguments": '{"city":"Köln"}',
        },
        {"type": "response.output_item.done", "output_index": 2, "item": ANSWERS[RESPONSES]["output"][2]},
        {"type": "response.completed", "response": ANSWERS[RESPONSES]},
    ),
    ANTHROPIC: named(
        {
            "type": "message_start",
            "message": {
                **ANSWERS[ANTHROPIC],
                "content": [],
                "stop_reason": None,
                "usage": {**ANTHROPIC_USAGE, "output_tokens": 1, "output_tokens_details": None},
            },
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "abc"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello "}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "there"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"city":'}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"Köln"}'}},
        {"type": "content_block_stop", "index": 2},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2}},
        },
        {"type": "message_stop"},
    ),
    GEMINI: unnamed(
        gemini_chunk({"text": "Hm", "thought": True}),
        gemini_chunk({"text": "Hello "}),
        gemini_chunk({"text": "there"}),
        gemini_chunk({"functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Köln"}}}),
        {**gemini_chunk({"text": "", "thoughtSignature": "c2ln"}, finishReason="STOP"), "usageMetadata": GEMINI_USAGE},
    ),
    BEDROCK: converse(
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm"}}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Hello "}}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "there"}}),
        ("contentBlockStop", {"contentBlockIndex": 1}),
        (
            "contentBlockStart",
            {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "call_1", "name": "weather"}}},
        ),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"city":'}}}),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '"Köln"}'}}}),
        ("contentBlockStop", {"contentBlockIndex": 2}),
        ("messageStop", {"stopReason": "tool_use"}),
        ("metadata", {"usage": BEDROCK_USAGE, "metrics": {"latencyMs": 1}}),
    ),
}

#: Each API's error in a stream: too many requests.
ERROR_EVENTS = {
    CHAT: unnamed({"error": {"message": "too much", "type": "rate_limit_exceeded", "code": "rate_limit_exceeded"}}),
    RESPONSES: named(
        {
            "type": "response.failed",
            "response": {
                **ANSWERS[RESPONSES],
                "status": "failed",
                "error": {"code": "rate_limit_exceeded", "message": "too much"},
            },
        }
    ),
    ANTHROPIC: named({"type": "error", "error": {"type": "rate_limit_error", "message": "too much"}}),
    GEMINI: unnamed({"error": {"code": 429, "message": "too much", "status": "RESOURCE_EXHAUSTED"}}),
    BEDROCK: aws_message(
        {":exception-type": "throttlingException", ":content-type": "application/json", ":message-type": "exception"},
        b'{"message": "too much"}',
    ),
}


def request(source: Api, target: Api, **more: Any) -> TranslatedRequest:
    """The smallest request of one API, with these fields, for a backend of another."""
    return at_once(translate_request(json.dumps({**SMALLEST[source], **more}).encode(), source, target))


def translated(source: Api, target: Api, **more: Any) -> dict[str, Any]:
    """What the backend gets of it."""
    body: dict[str, Any] = json.loads(request(source, target, **more).body)
    return body


def whole(source: Api, target: Api, answer: dict[str, Any] | bytes, status: int = 200) -> tuple[int, dict[str, Any]]:
    """What a client of `source` gets for this answer of a backend of `target`."""
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    told, body = at_once(ResponseTranslator(request(source, target)).whole(status, data))
    return told, json.loads(body)


def streamed(source: Api, target: Api, pieces: Iterable[bytes], **more: Any) -> bytes:
    """What a client of `source` gets for this stream of a backend of `target`."""
    translator = ResponseTranslator(request(source, target, stream=True, **more))
    return b"".join([*map(translator.feed, pieces), translator.end()])


def events(stream: bytes) -> list[dict[str, Any]]:
    """The objects of a stream, without `[DONE]` and what keeps it alive."""
    blocks = [block.rpartition(b"data: ")[2] for block in stream.split(b"\n\n") if b"data: " in block]
    return [json.loads(block) for block in blocks if block != b"[DONE]"]
