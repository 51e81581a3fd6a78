"""AnswerEnd: the end of a response that a content filter has cut short, in the format of each API.

Sources: OpenAI chat `finish_reason` content_filter; OpenAI responses `incomplete_details.reason` content_filter;
Anthropic `stop_reason` refusal; Gemini `finishReason` SAFETY; Bedrock `stopReason` content_filtered.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.apis.stream_events import Channel
from egressproxy.model.strict_json import dumps

#: The most characters of text that are kept for the last event.
MAX_SENT: Final = 1024 * 1024
#: The texts of a message: the type of each part, and the member that has its text.
_PARTS: Final[dict[object, tuple[str, str]]] = {
    "response.output_text": ("output_text", "text"),
    "response.refusal": ("refusal", "refusal"),
}


class AnswerEnd(Enum):
    """The events that end a stream. NONE: the stream ends without a last event."""

    NONE = "none"
    CHAT = "chat"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


def end_of(channel: Channel) -> AnswerEnd:
    """The end of a stream with this channel."""
    if type(channel.part) is str and channel.part.startswith("response."):
        return AnswerEnd.RESPONSES
    first = channel.group[0] if channel.group else ""
    return {"choice": AnswerEnd.CHAT, "block": AnswerEnd.ANTHROPIC, "candidate": AnswerEnd.GEMINI}.get(
        first if type(first) is str else "", AnswerEnd.NONE
    )


class BegunResponse:
    """The metadata and the sent texts of a stream of OpenAI responses, for its last event.

    SDKs refuse a last event with an `id` other than the first event's, and take its `output` as the complete text.
    """

    __slots__ = ("_items", "_response", "_size", "_texts")

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, str] = {}  # index -> id of the message
        self._texts: dict[Channel, list[str]] = {}
        self._size = 0

    def note(self, event: Any) -> None:
        """Read an event of the stream."""
        if type(event) is not dict:
            return
        response, item, index = event.get("response"), event.get("item"), event.get("output_index")
        if type(response) is dict and not self._response:
            kinds = (("id", str), ("created_at", (int, float)), ("model", str))
            self._response = {key: response[key] for key, kind in kinds if isinstance(response.get(key), kind)}
        elif type(item) is dict and type(index) is int and item.get("type") == "message":
            self._items[index] = item["id"] if type(item.get("id")) is str else ""

    def sent(self, channel: Channel, text: str) -> None:
        """Record a forwarded piece of text. At most MAX_SENT characters are kept."""
        if text and channel.part in _PARTS and self._size <= MAX_SENT:
            self._size += len(text)
            self._texts.setdefault(channel, []).append(text)

    def cut(self) -> dict[str, Any]:
        """The response that was cut, with the sent texts; without them beyond MAX_SENT."""
        contents: dict[int, list[tuple[object, dict[str, Any]]]] = {}
        for channel, pieces in self._texts.items() if self._size <= MAX_SENT else ():
            output, index, *_ = channel.group
            if type(output) is int:
                kind, name = _PARTS[channel.part]
                part = {"type": kind, name: "".join(pieces), **({"annotations": []} if name == "text" else {})}
                contents.setdefault(output, []).append((index, part))
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
    """The last events of a stream (text/event-stream) with these open channels; `begun` is its response."""
    numbers = sorted({number for channel in channels if type(number := channel.group[-1]) is int})
    if end is AnswerEnd.CHAT:
        choices = [{"index": number, "delta": {}, "finish_reason": "content_filter"} for number in numbers]
        head = {"id": "chatcmpl-filtered", "object": "chat.completion.chunk", "created": 0, "model": ""}
        return _event("", {**head, "choices": choices}) + b"data: [DONE]\n\n"
    if end is AnswerEnd.ANTHROPIC:
        fields = {"delta": {"stop_reason": "refusal", "stop_sequence": None}, "usage": {"output_tokens": 0}}
        open_block = [_named({"type": "content_block_stop", "index": number}) for number in numbers[-1:]]
        return b"".join([*open_block, _named({"type": "message_delta", **fields}), _named({"type": "message_stop"})])
    if end is AnswerEnd.RESPONSES:
        return _named({"type": "response.incomplete", "sequence_number": 0, "response": begun.cut()})
    if end is AnswerEnd.GEMINI:
        content = {"role": "model", "parts": []}
        candidates = [{"content": content, "finishReason": "SAFETY", "index": number} for number in numbers]
        return _event("", {"candidates": candidates})
    return b""


def mark_as_cut(message: JsonMessage) -> None:
    """Mark a whole response as cut short, if its API has a value for that."""
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
