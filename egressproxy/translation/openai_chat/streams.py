"""The stream of a chat completion (ChatCompletionChunk of OpenAI's SDK), read and written. It is complete with `data:
[DONE]`, behind a `finish_reason`.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai_apis.apis import Api
from egressproxy.ai_apis.errors import error_object
from egressproxy.ai_apis.strict_json import dumps, dumps_text, loads
from egressproxy.translation.answer_fields import (
    count,
    needed_text,
    no_more_than,
    object_in,
    objects_in,
    seconds,
    text,
    without_prefix,
)
from egressproxy.translation.conversation import (
    Delta,
    Failed,
    Finished,
    KeepAlive,
    PartEnded,
    PartKind,
    PartStarted,
    Started,
    Stop,
    StreamEvent,
    Usage,
)
from egressproxy.translation.errors import BadAnswer
from egressproxy.translation.event_stream import event_of_data
from egressproxy.translation.openai_chat.answers import FINISH_REASONS, read_usage, stop_of, written_usage

_DONE: Final = b"[DONE]"
_ENDED: Final = PartEnded()


class ChatStreamReader:
    """Chunks of a chat completion to events. What the reader hands out raises BadAnswer where it cannot be read."""

    __slots__ = ("_kind", "_started", "_stop", "_tool_id", "_tool_index", "_usage")

    def __init__(self) -> None:
        self._started = False
        self._kind: PartKind | None = None  # of the part that is open
        self._tool_index = -1
        self._tool_id = ""
        self._stop: Stop | None = None
        self._usage = Usage()

    def read(self, name: bytes, data: bytes) -> list[StreamEvent]:
        """The events that this event of the stream holds. Raises BadAnswer, Unreadable."""
        if data == _DONE:
            if self._stop is None:
                raise BadAnswer("the stream ends without a finish_reason")
            return [*self._close(), Finished(self._stop, None, self._usage)]
        chunk = loads(data)
        if type(chunk) is not dict:
            raise BadAnswer("a chunk is not an object")
        if chunk.get("error") is not None:
            return [failed(chunk["error"])]
        events: list[StreamEvent] = []
        choices = objects_in(chunk, "choices")
        if not self._started and choices:  # Azure tells of its filters before, in a chunk without an id
            self._started = True
            ident, model = needed_text(chunk, "id"), text(chunk, "model") or ""
            events.append(Started(ident, model, seconds(chunk, "created"), self._usage))
        if chunk.get("usage") is not None:
            self._usage = read_usage(object_in(chunk, "usage"))
        for choice in choices:
            if choice.get("index", 0) != 0:
                raise BadAnswer("the stream has more than one choice")
            self._read_delta(object_in(choice, "delta"), events)
            self._stop = stop_of(choice, self._tool_index >= 0) or self._stop
        return events

    def _read_delta(self, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        if said := text(delta, "content"):
            self._say(PartKind.TEXT, said, events)
            if len(delta) == 1:
                return
        if refused := text(delta, "refusal"):
            self._say(PartKind.REFUSAL, refused, events)
        for call in objects_in(delta, "tool_calls"):
            self._call(call, events)
        no_more_than(delta, "function_call")
        no_more_than(delta, "audio")
        no_more_than(delta, "annotations", [])

    def _say(self, kind: PartKind, said: str, events: list[StreamEvent]) -> None:
        if self._kind is not kind:
            events += self._close()
            self._kind = kind
            events.append(PartStarted(kind))
        events.append(Delta(said))

    def _call(self, call: dict[str, Any], events: list[StreamEvent]) -> None:
        index, function, ident = count(call, "index"), object_in(call, "function"), text(call, "id")
        # Some servers send every call whole, and all with the same index.
        if index > self._tool_index or (index == self._tool_index and ident and ident != self._tool_id):
            if text(call, "type") not in ("function", None):
                raise BadAnswer("the stream has a call of a tool that is no function")
            events += self._close()
            self._kind, self._tool_index, self._tool_id = PartKind.TOOL_CALL, index, needed_text(call, "id")
            events.append(PartStarted(PartKind.TOOL_CALL, self._tool_id, needed_text(function, "name")))
        elif index < self._tool_index or self._kind is not PartKind.TOOL_CALL:
            raise BadAnswer("the stream goes on with a tool call after another part has begun")
        if arguments := text(function, "arguments"):
            events.append(Delta(arguments))

    def _close(self) -> tuple[StreamEvent, ...]:
        if self._kind is None:
            return ()
        self._kind = None
        return (_ENDED,)


def failed(error: Any) -> Failed:
    """The event for an error in a stream of OpenAI; its code, where it is a status, is the status."""
    if type(error) is not dict:
        return Failed(500, "the backend ended the stream with an error")
    code, message = error.get("code"), error.get("message")
    status = code if type(code) is int and 400 <= code < 600 else 500
    if "rate_limit_exceeded" in (code, error.get("type")):
        status = 429
    return Failed(status, message if type(message) is str else "the backend ended the stream with an error")


class ChatStreamWriter:
    """Events to chunks of a chat completion."""

    __slots__ = ("_after", "_before", "_head", "_kind", "_now", "_tool_index", "_wants_usage")

    def __init__(self, wants_usage: bool, now: int) -> None:
        self._wants_usage = wants_usage
        self._now = now
        self._head: dict[str, Any] = {}
        self._before = self._after = b""  # what stands around every delta
        self._kind = PartKind.TEXT
        self._tool_index = -1

    def write(self, told: StreamEvent) -> bytes:
        if isinstance(told, Delta):
            return self._delta(told)
        if isinstance(told, PartStarted):
            return self._part(told)
        if isinstance(told, Started):
            return self._start(told)
        if isinstance(told, Finished):
            return self._finish(told)
        if isinstance(told, Failed):
            return event_of_data(dumps(error_object(Api.OPENAI_CHAT, told.status, told.message)))
        return b": keep-alive\n\n" if isinstance(told, KeepAlive) else b""

    def _start(self, told: Started) -> bytes:
        self._head = {
            "id": f"chatcmpl-{without_prefix(told.id)}",
            "object": "chat.completion.chunk",
            "created": told.created or self._now,
            "model": told.model,
        }
        self._before = b"data: " + dumps(self._head)[:-1] + b',"choices":[{"index":0,"delta":{'
        usage = b',"usage":null' if self._wants_usage else b""
        self._after = b'},"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        return self._before + b'"role":"assistant","content":""' + self._after

    def _part(self, told: PartStarted) -> bytes:
        self._kind = told.kind
        if told.kind is not PartKind.TOOL_CALL:
            return b""
        self._tool_index += 1
        function = {"name": told.name, "arguments": ""}
        call = {"index": self._tool_index, "id": told.id, "type": "function", "function": function}
        return self._before + b'"tool_calls":' + dumps([call]) + self._after

    def _delta(self, told: Delta) -> bytes:
        if self._kind is PartKind.TEXT:
            return self._before + b'"content":' + dumps_text(told.text) + self._after
        if self._kind is PartKind.REFUSAL:
            return self._before + b'"refusal":' + dumps_text(told.text) + self._after
        call = b'"tool_calls":[{"index":%d,"function":{"arguments":' % self._tool_index
        return self._before + call + dumps_text(told.text) + b"}}]" + self._after

    def _finish(self, told: Finished) -> bytes:
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": FINISH_REASONS[told.stop]}
        usage: dict[str, Any] = {"usage": None} if self._wants_usage else {}
        written = event_of_data(dumps({**self._head, "choices": [choice], **usage}))
        if self._wants_usage:
            written += event_of_data(dumps({**self._head, "choices": [], "usage": written_usage(told.usage)}))
        return written + event_of_data(_DONE)
