"""The first event of an answer, or a short body, that tells of a failure: the status that it stands for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.apis import Api, Operation, operation_of
from egressproxy.ai.apis.aws_event_stream import aws_message
from egressproxy.ai.apis.errors import error_in_stream, error_object
from egressproxy.ai.apis.first_event import GOOD, MAX_LOOKED_AT, NOTHING_SAID, FirstEvent, may_tell

SSE = b"text/event-stream"
JSON = b"application/json"
AWS = b"application/vnd.amazon.eventstream"
CHAT = operation_of(b"/v1/chat/completions")
GEMINI = operation_of(b"/v1beta/models/m:streamGenerateContent")


def said(kind: bytes, *pieces: bytes, operation: Operation | None = None, ends: bool = False) -> int:
    """The status after these pieces, each in two halves."""
    first = FirstEvent(kind, operation)
    for piece in pieces:
        half = len(piece) // 2
        first.feed(piece[:half])
        first.feed(piece[half:])
    if ends:
        first.end()
    return first.status


def data(value: Any, name: str = "") -> bytes:
    event = f"event: {name}\n".encode() if name else b""
    return event + b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any], **more: Any) -> bytes:
    return data({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]})


OVERLOADED = data({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")
MESSAGE = data({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1}}}, "message_start")
PING = data({"type": "ping"}, "ping")
TEXT = data({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}})
CREATED = data({"type": "response.created", "response": {"status": "in_progress", "error": None}}, "response.created")
ROLE = chunk({"role": "assistant", "content": ""})


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([OVERLOADED], 529),
        ([b": hello\n\n", MESSAGE, PING, OVERLOADED], 529),
        ([OVERLOADED.replace(b"\n", b"\r\n")], 529),
        ([MESSAGE, PING], 0),
        ([MESSAGE, TEXT, OVERLOADED], GOOD),
        ([data({"error": {"message": "busy", "type": "server_error"}})], 500),
        ([data({"error": {"message": "busy", "type": "server_error", "code": "rate_limit_exceeded"}})], 429),
        ([data({"error": {"message": "slow down", "type": "tokens", "code": None}})], 429),
        ([data({"error": {"message": "no", "type": "invalid_request_error"}})], 400),
        ([data({"error": {"message": "no", "type": "invalid_request_error", "code": "context_length_exceeded"}})], 400),
        ([data({"error": {"message": "upstream", "code": 502}, "choices": []})], 502),
        ([data({"error": {"message": "busy", "code": "503"}})], 503),
        ([data({"error": "out of memory"})], 500),
        ([data({"object": "error", "type": "InternalServerError", "message": "a", "code": 500})], 500),
        ([data({"object": "error", "type": "BadRequestError", "message": "a"})], 400),
        ([ROLE, data({"error": {"type": "overloaded_error"}})], 529),
        ([data({"choices": [], "prompt_filter_results": []}), ROLE], 0),
        ([ROLE, chunk({"content": "a"})], GOOD),
        ([chunk({}, finish_reason="stop")], GOOD),
        ([chunk({"tool_calls": [{"index": 0}]})], GOOD),
        ([CREATED], 0),
        ([CREATED, data({"type": "response.failed", "response": {"error": {"code": "server_error"}}})], 500),
        ([data({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}})], 429),
        ([data({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}})], 400),
        ([data({"type": "error", "code": "server_error", "message": "a", "param": None}, "error")], 500),
        ([data({"type": "error", "error": None, "message": "a"}, "error")], 500),
        ([CREATED, data({"type": "response.output_item.added", "item": {}})], GOOD),
        ([data({"error": {"code": 503, "message": "a", "status": "UNAVAILABLE"}})], 503),
        ([data({"error": {"status": "RESOURCE_EXHAUSTED"}})], 429),
        ([data({"error": {"status": "INVALID_ARGUMENT"}})], 400),
        ([data({"candidates": [{"content": {"parts": [{"text": "a"}]}}]})], GOOD),
        ([b"data: no json\n\n"], GOOD),
        ([b": a comment\n\n", b"retry: 10\n\n"], 0),
        ([b": " + bytes(MAX_LOOKED_AT)], GOOD),
    ],
)
def test_events(events: list[bytes], status: int):
    assert said(SSE, *events) == status
    assert said(SSE, b"".join(events)) == status


@pytest.mark.parametrize("events", [[], [b": a\n\n"], [b"data: [DONE]\n\n"], [ROLE, b"data: [DONE]\n\n"], [MESSAGE]])
def test_a_stream_that_ends_and_has_said_nothing(events: list[bytes]):
    assert said(SSE, *events, ends=True) == NOTHING_SAID


def test_a_last_event_may_lack_its_empty_line():
    assert said(SSE, OVERLOADED.rstrip(), ends=True) == 529
    assert said(SSE, chunk({"content": "a"}).rstrip(), ends=True) == GOOD


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "a"}}, 529),
        ({"error": {"message": "a", "type": "server_error", "code": None}}, 500),
        ({"error": {"message": "a", "type": "invalid_request_error"}}, 400),
        ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}], 429),
        ({"object": "response", "status": "failed", "error": {"code": "server_error"}}, 500),
        ({"object": "response", "status": "completed", "error": None}, GOOD),
        ({"choices": [{"message": {"content": 'an "error"'}}]}, GOOD),
    ],
)
def test_bodies(value: Any, status: int):
    assert said(JSON, json.dumps(value).encode(), operation=CHAT) == 0
    assert said(JSON, json.dumps(value).encode(), operation=CHAT, ends=True) == status


def test_a_body_that_is_none():
    assert said(JSON, operation=CHAT, ends=True) == NOTHING_SAID
    assert said(JSON, b'{"error"', operation=CHAT, ends=True) == GOOD
    assert said(JSON, b" " * (MAX_LOOKED_AT + 2), operation=CHAT) == GOOD


def test_an_array_of_gemini_is_a_stream():
    assert said(JSON, b'[{"error": {"code": 503}}\n', operation=GEMINI) == 503
    assert said(JSON, b'[{"candidates": []}\n', operation=GEMINI) == GOOD
    assert said(JSON, b"[]", operation=GEMINI, ends=True) == NOTHING_SAID


def test_messages_of_bedrock():
    for name, status in (("throttlingException", 429), ("internalServerException", 500), ("validationException", 400)):
        headers = {":exception-type": name, ":message-type": "exception"}
        assert said(AWS, aws_message(headers, b'{"message": "a"}')) == status
    start = aws_message({":event-type": "messageStart"}, b'{"role": "assistant"}')
    delta = aws_message({":event-type": "contentBlockDelta"}, b'{"delta": {"text": "a"}}')
    assert said(AWS, start) == 0
    assert said(AWS, start, delta) == GOOD


@pytest.mark.parametrize("api", [Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.ANTHROPIC, Api.GEMINI])
@pytest.mark.parametrize("status", [400, 429, 500, 503, 529])
def test_what_the_gateway_writes_is_read(api: Api, status: int):
    expected = {503: (500, 503), 529: (500, 529)}.get(status, (status,))
    assert said(SSE, error_in_stream(api, SSE, status, "a", "b")) in expected
    assert said(JSON, json.dumps(error_object(api, status, "a")).encode(), operation=CHAT, ends=True) in expected


def test_what_is_looked_at():
    assert may_tell(SSE, -1, None)
    assert may_tell(AWS, -1, None)
    assert may_tell(JSON, 10, CHAT)
    assert not may_tell(JSON, 10, None)
    assert not may_tell(JSON, MAX_LOOKED_AT + 1, CHAT)
    assert not may_tell(b"text/html", 10, CHAT)
