"""AnswerEnd: how an answer that is cut short says so, in the words of each API: it was ended by a filter of content.

Sources: OpenAI chat `finish_reason` content_filter; OpenAI responses `incomplete_details.reason` content_filter;
Anthropic `stop_reason` refusal; Gemini `finishReason` SAFETY; Bedrock `stopReason` content_filtered.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.apis.stream_events import Channel
from egressproxy.model.strict_json import dumps

#: Characters of texts that are kept for the last event.
MAX_SENT: Final = 1024 * 1024
#: The texts of a message: the type of each part, and the member that has its text.
_PARTS: Final[dict[object, tuple[str, str]]] = {
    "response.output_text": ("output_text", "text"),
    "response.refusal": ("refusal", "refusal"),
}


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


class BegunResponse:
    """What a stream of OpenAI responses has said of itself, and its texts as they were sent, for its last event.

    SDKs refuse a last event with another `id` than the first, and take its `output` for all that was said.
    """

    __slots__ = ("_items", "_response", "_size", "_texts")

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, str] = {}  # ids of messages by their place
        self._texts: dict[Channel, list[str]] = {}
        self._size = 0

    def note(self, event: Any) -> None:
        """An event that has come."""
        if type(event) is not dict:
            return
        response, item, index = event.get("response"), event.get("item"), event.get("output_index")
        if type(response) is dict and not self._response:
            kinds = (("id", str), ("created_at", (int, float)), ("model", str))
            self._response = {key: response[key] for key, kind in kinds if isinstance(response.get(key), kind)}
        elif type(item) is dict and type(index) is int and item.get("type") == "message":
            self._items[index] = item["id"] if type(item.get("id")) is str else ""

    def sent(self, channel: Channel, text: str) -> None:
        """A piece of text that goes on. No more than MAX_SENT characters are kept."""
        if text and channel.part in _PARTS and self._size <= MAX_SENT:
            self._size += len(text)
            self._texts.setdefault(channel, []).append(text)

    def cut(self) -> dict[str, Any]:
        """The response that was cut, with the texts that were sent; without them where they were too many."""
        contents: dict[int, list[tuple[object, dict[str, Any]]]] = {}
        for channel, pieces in self._texts.items() if self._size <= MAX_SENT else ():
            output, place, *_ = channel.group
            if type(output) is int:
                kind, name = _PARTS[channel.part]
                part = {"type": kind, name: "".join(pieces), **({"annotations": []} if name == "text" else {})}
                contents.setdefault(output, []).append((place, part))
        output_items = [
            {
                "id": self._items.get(output, ""), "type": "message", "role": "assistant", "status": "incomplete",
                "content": [part for _, part in sorted(parts, key=lambda each: str(each[0]).zfill(9))],
            }
            for output, parts in sorted(contents.items())
        ]  # fmt: skip
        return {
            "id": "resp_filtered", "object": "response", "created_at": 0, "status": "incomplete", "model": "",
            **self._response, "output": output_items, "incomplete_details": {"reason": "content_filter"},
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        }  # fmt: skip


def written_end(end: AnswerEnd, channels: list[Channel], begun: BegunResponse) -> bytes:
    """The last events of a stream (text/event-stream) in which these channels were open; `begun` of its response."""
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
        return _named({"type": "response.incomplete", "sequence_number": 0, "response": begun.cut()})
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
