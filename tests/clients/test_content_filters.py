"""The SDKs of OpenAI and Anthropic behind PIIDetector and ResponsePolicy: what they send, and what their users read.

There is no network: the filter, as the gateway builds and runs it, stands in the transport of the SDK.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from egressproxy.errors import GatewayError
from egressproxy.filters import Phase
from egressproxy.filters.testing import FilterHarness, exchange, response

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx2") if "httpx2" in openai._base_client.__dict__ else pytest.importorskip("httpx")

ALICE = "alice@example.com"
PII = "PIIDetector", {"entities": [{"name": "EMAIL", "action": "Placeholder"}]}
POLICY = "ResponsePolicy", {"entities": ["EMAIL"], "action": "Truncate"}
TOOL = {"type": "function", "function": {"name": "send", "parameters": {"type": "object", "properties": {}}}}


class Filtered:
    """A transport: a filter in front of a provider that streams these events, three bytes at a time."""

    def __init__(
        self, filter_: tuple[str, dict[str, Any]], events: list[dict[str, Any]], *, named: bool = False
    ) -> None:
        kind, config = filter_
        self._harness = FilterHarness(config, phase=Phase.REQUEST_HEADERS, type=f"egressproxy.io/{kind}:v1")
        self._body = "".join(
            (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
        ).encode()
        self.asked: dict[str, Any] = {}

    def __call__(self, request: Any) -> Any:
        fields = {"content-type": "application/json"}
        result = self._harness.run(
            exchange("POST", str(request.url), fields),
            request_body=request.read(),
            response=response(200, {"content-type": "text/event-stream"}),
            response_body=[self._body[n : n + 3] for n in range(0, len(self._body), 3)],
        )
        if isinstance(result.error, GatewayError):
            return httpx.Response(result.error.status, json={"error": {"message": result.error.message}})
        self.asked = json.loads(result.request_body)
        return httpx.Response(200, content=result.response_body, headers={"content-type": "text/event-stream"})


def client_of(sdk: Any, transport: Filtered) -> Any:
    client = httpx.Client(transport=httpx.MockTransport(transport))
    kind, base = (sdk.OpenAI, "https://gw.example/v1") if sdk is openai else (sdk.Anthropic, "https://gw.example")
    return kind(api_key="k", base_url=base, http_client=client, max_retries=0)


def chunks(*deltas: dict[str, Any], end: str = "stop") -> Iterator[dict[str, Any]]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]}


def blocks(*texts: str) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for text in texts:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def items(*texts: str) -> Iterator[dict[str, Any]]:
    answer = {"id": "r", "object": "response", "created_at": 1, "status": "in_progress", "model": "m", "output": []}
    rest = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    item = {"id": "i", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    said = {**part, "text": "".join(texts)}
    done = {**item, "status": "completed", "content": [said]}
    events = [
        {"type": "response.created", "response": {**answer, **rest}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []} for text in texts),
        {"type": "response.output_text.done", **place, "text": "".join(texts), "logprobs": []},
        {"type": "response.content_part.done", **place, "part": said},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": {**answer, **rest, "status": "completed", "output": [done]}},
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def test_openai_chat_sends_a_placeholder_and_reads_the_value():
    transport = Filtered(PII, [*chunks({"content": "to <EM"}, {"content": "AIL_1"}, {"content": ">!"})])
    client = client_of(openai, transport)
    asked = [{"role": "user", "content": f"write to {ALICE}"}]
    with client.chat.completions.stream(model="m", messages=asked) as stream:
        stream.until_done()
        answer = stream.get_final_completion()
    assert transport.asked["messages"][0]["content"] == "write to <EMAIL_1>"
    assert answer.choices[0].message.content == f"to {ALICE}!"
    assert answer.choices[0].finish_reason == "stop"


def test_openai_chat_reads_arguments_of_a_tool_with_the_value():
    begin = {"index": 0, "id": "1", "type": "function", "function": {"name": "send", "arguments": ""}}
    pieces = ['{"to": "<EMA', 'IL_1>", "b', 'ody": "\\u003cEMAIL_1\\u003e \\"hi\\""}']
    calls = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    transport = Filtered(PII, [*chunks({"tool_calls": [begin]}, *calls, end="tool_calls")])
    client = client_of(openai, transport)
    asked = [{"role": "user", "content": f"write to {ALICE}"}]
    with client.chat.completions.stream(model="m", messages=asked, tools=[TOOL]) as stream:
        stream.until_done()
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"to": ALICE, "body": f'{ALICE} "hi"'}


def test_anthropic_sends_a_placeholder_and_reads_the_value():
    transport = Filtered(PII, [*blocks("to <", "EMAIL_", "1>!")], named=True)
    client = client_of(anthropic, transport)
    asked = [{"role": "user", "content": f"write to {ALICE}"}]
    with client.messages.stream(model="m", max_tokens=9, messages=asked) as stream:
        answer = stream.get_final_message()
    assert transport.asked["messages"][0]["content"] == "write to <EMAIL_1>"
    assert (answer.content[0].text, answer.stop_reason) == (f"to {ALICE}!", "end_turn")


def test_openai_responses_sends_a_placeholder_and_reads_the_value():
    transport = Filtered(PII, [*items("to <EMAIL", "_1>", "!")], named=True)
    client = client_of(openai, transport)
    with client.responses.stream(model="m", input=f"write to {ALICE}") as stream:
        said = [event.delta for event in stream if event.type == "response.output_text.delta"]
        answer = stream.get_final_response()
    assert transport.asked["input"] == "write to <EMAIL_1>"
    assert "".join(said) == answer.output_text == f"to {ALICE}!"


def test_openai_chat_reads_the_end_of_a_truncated_stream():
    pieces = [{"content": piece} for piece in ("write to ", "alice", "@example", ".com", " now")]
    client = client_of(openai, Filtered(POLICY, [*chunks(*pieces)]))
    stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    events = list(stream)
    assert "".join(event.choices[0].delta.content or "" for event in events) == "write to "
    assert events[-1].choices[0].finish_reason == "content_filter"


def test_anthropic_reads_the_end_of_a_truncated_stream():
    client = client_of(
        anthropic, Filtered(POLICY, [*blocks("write to ", "alice", "@example", ".com", " now")], named=True)
    )
    with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        answer = stream.get_final_message()
    assert (answer.content[0].text, answer.stop_reason) == ("write to ", "refusal")


def test_openai_responses_reads_the_end_of_a_truncated_stream():
    client = client_of(openai, Filtered(POLICY, [*items("write to ", "alice", "@example", ".com", " now")], named=True))
    events = list(client.responses.create(model="m", input="hi", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "write to "
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "content_filter"
