from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.usage import TokenUsage
from tests.ai.translation.examples import ANSWERS as OPENAI_AND_ANTHROPIC

ANSWERS: dict[Api, dict[str, Any]] = {
    **OPENAI_AND_ANTHROPIC,
    Api.GEMINI: {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Hello there"},
                        {"functionCall": {"name": "weather", "args": {"city": "Köln"}}},
                    ],
                },
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 30,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 2,
            "cachedContentTokenCount": 20,
            "totalTokenCount": 37,
        },
        "modelVersion": "served",
        "responseId": "r",
    },
    Api.BEDROCK_CONVERSE: {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"text": "Hello there"},
                    {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Köln"}}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 10, "outputTokens": 7, "totalTokens": 37, "cacheReadInputTokens": 20},
        "metrics": {"latencyMs": 1},
    },
}
EACH = pytest.mark.parametrize("api", list(ANSWERS))


def read(api: Api) -> AiAnswer:
    return AiAnswer.read(json.dumps(ANSWERS[api]).encode())


@EACH
def test_an_answer_tells_its_texts_and_calls(api: Api):
    answer = read(api)
    assert [part.text for part in answer.texts() if part.text in ("Hello there", "Köln")] == ["Hello there", "Köln"]
    assert [(call.name, call.arguments) for call in answer.tool_calls()] == [("weather", {"city": "Köln"})]
    assert answer.model in ("served", "")


def test_what_a_schema_names_is_no_call():
    assert AiAnswer.read(b'{"outputs": [{"name": "city", "type": ["string", "null"]}]}').tool_calls() == []


@EACH
def test_usage_has_one_form(api: Api):
    usage = read(api).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (30, 7, 20)
    assert usage.reasoning_tokens == (0 if api is Api.BEDROCK_CONVERSE else 2)
    assert usage.total_tokens == 37


@EACH
def test_a_text_is_replaced(api: Api):
    answer = read(api)
    for part in answer.texts():
        if part.text == "Hello there":
            part.replace("Bye")
    assert answer.body() == answer.source == json.dumps(ANSWERS[api]).encode().replace(b"Hello there", b"Bye")


def test_log_probabilities_do_not_tell_a_text_that_was_replaced():
    body = b'{"choices":[{"index":0,"message":{"content":"secret"},"logprobs":{"content":[{"token":"sec"}]}}]}'
    answer = AiAnswer.read(body)
    assert [part.text for part in answer.texts()] == ["secret"]
    next(answer.texts()).replace("x")
    assert answer.body() == b'{"choices":[{"index":0,"message":{"content":"x"},"logprobs":null}]}'


def test_numbers_that_no_provider_counts_are_bounded():
    answer = AiAnswer.read(b'{"usage":{"prompt_tokens":1' + b"0" * 200 + b',"completion_tokens":-4}}')
    assert answer.usage == TokenUsage(10**12, 0)


@pytest.mark.parametrize("holder", ["arguments", "args", "json"])
def test_what_a_tool_calls_logprobs_is_text(holder):
    value = {"text": "secret", "logprobs": ["secret", "secret"]}
    answer = AiAnswer.read(json.dumps({holder: value}).encode())
    for part in answer.texts():
        part.replace("x")
    assert json.loads(answer.body()) == {holder: {"text": "x", "logprobs": ["x", "x"]}}
