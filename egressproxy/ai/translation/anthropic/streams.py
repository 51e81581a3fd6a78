"""The stream of Anthropic's message (RawMessageStreamEvent of its SDK), read and written. It is complete with
`message_stop`, behind a `stop_reason`.
"""

from __future__ import annotations

import io
from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.errors import error_object
from egressproxy.ai.translation.answer_fields import (
    count,
    needed_text,
    no_more_than,
    object_in,
    of_no_form,
    text,
    without_prefix,
)
from egressproxy.ai.translation.anthropic.answers import (
    THOUGHTS,
    ending,
    explanation_of,
    read_usage,
    stop_of,
    written_usage,
)
from egressproxy.ai.translation.conversation import (
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
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.ai.translation.event_stream import MAX_EVENT_BYTES, event
from egressproxy.model.strict_json import dumps, dumps_text, loads

_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_ENDED: Final = PartEnded()


class MessageStreamReader:
    """Events of Anthropic's stream to ours."""

    __slots__ = ("_has_calls", "_input", "_is_thought", "_open", "_sequence", "_started", "_stop", "_usage", "_why")

    def __init__(self) -> None:
        self._started = False
        self._has_calls = False
        self._open: int | None = None  # the index of the block that is open
        self._is_thought = False
        self._input: str | None = None  # of a tool call: what stands for its arguments, if none follow
        self._stop: Stop | None = None
        self._sequence: str | None = None
        self._why: str | None = None
        self._usage = Usage()

    def read(self, name: bytes, data: bytes) -> list[StreamEvent]:
        """The events that this event of the stream holds. Raises BadAnswer, Unreadable."""
        value = loads(data)
        if type(value) is not dict:
            raise BadAnswer("an event of the stream is not an object")
        kind = text(value, "type")
        if kind == "content_block_delta":
            return self._delta(value)
        if kind == "error":
            error = object_in(value, "error")
            return [Failed(_STATUSES.get(text(error, "type") or "", 500), text(error, "message") or "")]
        if kind == "ping":
            return [KeepAlive()]
        if kind == "message_start":
            if self._started:
                raise BadAnswer("the stream begins twice")
            message = object_in(value, "message")
            self._started = True
            self._usage = read_usage(object_in(message, "usage"))
            return [Started(needed_text(message, "id"), needed_text(message, "model"), None, self._usage)]
        if not self._started:
            raise BadAnswer("the stream does not begin with message_start")
        if kind == "content_block_start":
            return self._start(value)
        if kind == "content_block_stop":
            return self._end()
        if kind == "message_delta":
            delta = object_in(value, "delta")
            self._stop = stop_of(delta, self._has_calls) or self._stop
            self._sequence, self._why = text(delta, "stop_sequence"), explanation_of(delta)
            self._usage = read_usage(object_in(value, "usage"), self._usage)
        elif kind == "message_stop":
            return self._finish()
        return []  # new kinds of events may come at any time, and content comes in blocks

    def _start(self, value: dict[str, Any]) -> list[StreamEvent]:
        block = object_in(value, "content_block")
        kind = text(block, "type")
        if self._open is not None:
            raise BadAnswer("a block of the stream begins inside another one")
        self._open = count(value, "index")
        self._is_thought = kind in THOUGHTS
        if self._is_thought:
            return []
        if kind == "text":
            begun = text(block, "text")
            return [PartStarted(PartKind.TEXT), Delta(begun)] if begun else [PartStarted(PartKind.TEXT)]
        if kind != "tool_use":
            raise of_no_form("the stream has a block", kind)
        no_more_than(block, "caller", {"type": "direct"})
        self._input = dumps(object_in(block, "input")).decode()
        self._has_calls = True
        return [PartStarted(PartKind.TOOL_CALL, needed_text(block, "id"), needed_text(block, "name"))]

    def _delta(self, value: dict[str, Any]) -> list[StreamEvent]:
        delta = object_in(value, "delta")
        kind = text(delta, "type")
        if self._open is None or value.get("index") != self._open:
            raise BadAnswer("the stream goes on with a block that is not open")
        if kind == "text_delta" and not self._is_thought:
            return [Delta(needed_text(delta, "text"))]
        if kind == "input_json_delta" and not self._is_thought:
            more = needed_text(delta, "partial_json")
            if not more:
                return []
            self._input = None
            return [Delta(more)]
        if not self._is_thought and kind != "citations_delta":
            raise of_no_form("the stream has a delta", kind)
        return []

    def end(self) -> list[StreamEvent]:
        """The events behind the last one of a stream that was not broken off, if it has told why the model stopped."""
        return [] if self._stop is None or self._open is not None else self._finish()

    def _end(self) -> list[StreamEvent]:
        if self._open is None:
            raise BadAnswer("the stream ends a block that is not open")
        self._open = None
        if self._is_thought:
            return []
        arguments, self._input = self._input, None
        return [_ENDED] if arguments is None else [Delta(arguments), _ENDED]

    def _finish(self) -> list[StreamEvent]:
        if self._stop is None or self._open is not None:
            raise BadAnswer("the stream ends without a stop_reason, or inside a block")
        finished = Finished(self._stop, self._sequence, self._usage)
        if not self._why:
            return [finished]
        return [PartStarted(PartKind.REFUSAL), Delta(self._why), _ENDED, finished]


class MessageStreamWriter:
    """Events to those of Anthropic's stream."""

    __slots__ = ("_before", "_index", "_kind", "_refusals", "_size")

    def __init__(self) -> None:
        self._index = -1
        self._kind = PartKind.TEXT
        self._before = b""  # what stands before every delta of the open block
        self._refusals = io.StringIO()
        self._size = 0  # of them

    def write(self, stream_event: StreamEvent) -> bytes:
        if isinstance(stream_event, Delta):
            return self._delta(stream_event)
        if isinstance(stream_event, PartStarted):
            return self._part(stream_event)
        if isinstance(stream_event, PartEnded):
            if self._kind is PartKind.REFUSAL:
                return b""
            return event(b"content_block_stop", b'{"type":"content_block_stop","index":%d}' % self._index)
        if isinstance(stream_event, Started):
            return self._start(stream_event)
        if isinstance(stream_event, Finished):
            return self._finish(stream_event)
        if isinstance(stream_event, Failed):
            return event(b"error", dumps(error_object(Api.ANTHROPIC, stream_event.status, stream_event.message)))
        return event(b"ping", b'{"type":"ping"}')

    def _start(self, started: Started) -> bytes:
        message: dict[str, Any] = {
            "id": f"msg_{without_prefix(started.id)}",
            "type": "message",
            "role": "assistant",
            "model": started.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": written_usage(started.usage),
        }
        return event(b"message_start", dumps({"type": "message_start", "message": message}))

    def _part(self, part: PartStarted) -> bytes:
        self._kind = part.kind
        if part.kind is PartKind.REFUSAL:  # which is told at the end
            return b""
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = b'"text_delta","text":'
        if part.kind is PartKind.TOOL_CALL:
            block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            delta = b'"input_json_delta","partial_json":'
        self._before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":' % self._index
        ) + delta
        started = {"type": "content_block_start", "index": self._index, "content_block": block}
        return event(b"content_block_start", dumps(started))

    def _delta(self, delta: Delta) -> bytes:
        if self._kind is PartKind.REFUSAL:
            self._refusals.write(delta.text)
            self._size += len(delta.text)
            if self._size > MAX_EVENT_BYTES:
                raise BadAnswer("the refusal is too long to be told at the end")
            return b""
        return self._before + dumps_text(delta.text) + b"}}\n\n"

    def _finish(self, finished: Finished) -> bytes:
        delta = ending(finished.stop, finished.stop_sequence, self._refusals.getvalue())
        ended = {"type": "message_delta", "delta": delta, "usage": written_usage(finished.usage)}
        return event(b"message_delta", dumps(ended)) + event(b"message_stop", b'{"type":"message_stop"}')
