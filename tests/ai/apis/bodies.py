"""Requests and answers of each API, as clients and providers send them."""

from __future__ import annotations

from typing import Any

from egressproxy.ai.apis.apis import Api

PATHS: dict[Api, bytes] = {
    Api.OPENAI_CHAT: b"/v1/chat/completions",
    Api.OPENAI_RESPONSES: b"/v1/responses",
    Api.OPENAI_COMPLETIONS: b"/v1/completions",
    Api.OPENAI_EMBEDDINGS: b"/v1/embeddings",
    Api.ANTHROPIC: b"/v1/messages",
    Api.GEMINI: b"/v1beta/models/gemini-x:generateContent",
    Api.BEDROCK_CONVERSE: b"/model/anthropic.claude-x%3A0/converse",
    Api.BEDROCK_INVOKE: b"/model/anthropic.claude-x%3A0/invoke",
}

ANTHROPIC_BODY: dict[str, Any] = {
    "max_tokens": 100,
    "temperature": 0.5,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "plain"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJDRA=="}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a document"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"id": "deep", "n": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a cat"}]},
            ],
        },
    ],
    "tools": [{"name": "look", "description": "looks", "input_schema": {"type": "object"}}],
}

REQUESTS: dict[Api, dict[str, Any]] = {
    Api.OPENAI_CHAT: {
        "model": "m",
        "max_tokens": 100,
        "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "plain"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJDRA=="}},
                    {
                        "type": "file",
                        "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a document"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"id": "deep", "n": 1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}}}
        ],
    },
    Api.OPENAI_RESPONSES: {
        "model": "m",
        "max_output_tokens": 100,
        "temperature": 0.5,
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": "plain"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what is this"},
                    {"type": "input_image", "image_url": "data:image/png;base64,QUJDRA=="},
                    {"type": "input_file", "filename": "a document", "file_data": "data:application/pdf;base64,AAAA"},
                ],
            },
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"id": "deep", "n": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
        ],
        "tools": [{"type": "function", "name": "look", "description": "looks", "parameters": {"type": "object"}}],
    },
    Api.ANTHROPIC: {"model": "m", **ANTHROPIC_BODY},
    Api.GEMINI: {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "plain"}]},
            {
                "role": "user",
                "parts": [
                    {"text": "what is this"},
                    {"inlineData": {"mimeType": "image/png", "data": "QUJDRA=="}},
                    {"text": "a document"},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"id": "c1", "name": "look", "args": {"id": "deep", "n": 1}}},
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"id": "c1", "name": "look", "response": {"result": "a cat"}}}],
            },
        ],
        "tools": [{"functionDeclarations": [{"name": "look", "description": "looks"}]}],
        "generationConfig": {"maxOutputTokens": 100, "temperature": 0.5},
    },
    Api.BEDROCK_CONVERSE: {
        "system": [{"text": "be brief"}],
        "messages": [
            {"role": "user", "content": [{"text": "plain"}]},
            {
                "role": "user",
                "content": [
                    {"text": "what is this"},
                    {"image": {"format": "png", "source": {"bytes": "QUJDRA=="}}},
                    {"text": "a document"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
                    {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"id": "deep", "n": 1}}},
                ],
            },
            {
                "role": "user",
                "content": [{"toolResult": {"toolUseId": "c1", "content": [{"json": {"name": "a cat"}}]}}],
            },
        ],
        "toolConfig": {
            "tools": [
                {"toolSpec": {"name": "look", "description": "looks", "inputSchema": {"json": {"type": "object"}}}}
            ]
        },
        "inferenceConfig": {"maxTokens": 100, "temperature": 0.5},
    },
    Api.BEDROCK_INVOKE: {"anthropic_version": "bedrock-2023-05-31", **ANTHROPIC_BODY},
}
