"""AnswerEnd: how an answer that is cut short says so, in the words of each API: it was ended by a filter of content.

Sources: OpenAI chat `finish_reason` content_filter; OpenAI responses `incomplete_details.reason` content_filter;
Anthropic `stop_reason` refusal; Gemini `finishReason` SAFETY; Bedrock `stopReason` content_filtered.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from egressproxy.ai_apis.message import JsonMessage
from egressproxy.ai_apis.stream_events import Channel
from egressproxy.ai_apis.strict_json import dumps

__all__ = ["AnswerEnd", "end_of", "mark_as_cut", "written_end"]


class AnswerEnd(Enum):
    """The events with which a stream ends. NONE: nothing says it; the stream just ends."""

    NONE = "none"
    CHAT = "chat"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


def end_of(channel: Channel) -> AnswerEnd:
    """How the stream that has this channel ends."""
    if type(channel.part) is str and channel.part.startswith("response."):
        return AnswerEnd.RESPONSES
    first = channel.group[0] if channel.group else ""
    return {"choice": AnswerEnd.CHAT, "block": AnswerEnd.ANTHROPIC, "candidate": AnswerEnd.GEMINI}.get(
        first if type(first) is str else "", AnswerEnd.NONE
    )


def written_end(end: AnswerEnd, channels: list[Channel]) -> bytes:
    """The last events of a stream (text/event-stream) in which these channels were open."""
    numbers = sorted({number for channel in channels if type(number := channel.group[-1]) is int})
    if end is AnswerEnd.CHAT:
        choices = [{"index": number, "delta": {}, "finish_reason": "content_filter"} for number in numbers]
        head = {"id": "chatcmpl-filtered", "object": "chat.completion.chunk", "created": 0, "model": ""}
        return _event("", {**head, "choices": choices}) + b"data: [DONE]\n\n"
    if end is AnswerEnd.ANTHROPIC:
        told = {"delta": {"stop_reason": "refusal", "stop_sequence": None}, "usage": {"output_tokens": 0}}
        open_block = [_named({"type": "content_block_stop", "index": number}) for number in numbers[-1:]]
        return b"".join([*open_block, _named({"type": "message_delta", **told}), _named({"type": "message_stop"})])
    if end is AnswerEnd.RESPONSES:
        response = {
            "id": "resp_filtered", "object": "response", "created_at": 0, "status": "incomplete", "model": "",
            "output": [],
            "incomplete_details": {"reason": "content_filter"},
        }  # fmt: skip
        return _named({"type": "response.incomplete", "sequence_number": 0, "response": response})
    if end is AnswerEnd.GEMINI:
        content = {"role": "model", "parts": []}
        candidates = [{"content": content, "finishReason": "SAFETY", "index": number} for number in numbers]
        return _event("", {"candidates": candidates})
    return b""


def mark_as_cut(message: JsonMessage) -> None:
    """Have a whole answer say that it was cut short, where its API has a word for that."""
    value = message.value
    for key, member, word in (("choices", "finish_reason", "content_filter"), ("candidates", "finishReason", "SAFETY")):
        if type(value.get(key)) is list:
            for index in range(len(value[key])):
                message.put((key, index, member), word)
    if "stop_reason" in value:
        message.put(("stop_reason",), "refusal")
    if "stopReason" in value:
        message.put(("stopReason",), "content_filtered")
    if value.get("object") == "response":
        message.put(("status",), "incomplete")
        message.put(("incomplete_details",), {"reason": "content_filter"})


def _named(value: dict[str, Any]) -> bytes:
    return _event(value["type"], value)


def _event(name: str, value: dict[str, Any]) -> bytes:
    return (b"event: %s\n" % name.encode() if name else b"") + b"data: %s\n\n" % dumps(value)
