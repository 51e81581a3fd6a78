"""The stream of OpenAI's response (ResponseStreamEvent of its SDK), read and written. It is complete with
`response.completed` or `response.incomplete`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from egressproxy.ai.translation.answer_fields import (
    count,
    needed_text,
    object_in,
    of_no_form,
    openai_usage,
    seconds,
    text,
    without_prefix,
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
    StreamEvent,
    ToolCall,
    Usage,
)
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.ai.translation.event_stream import MAX_EVENT_BYTES, event
from egressproxy.ai.translation.openai_chat.streams import failed
from egressproxy.ai.translation.openai_responses.answers import (
    INCOMPLETE,
    call_item,
    failure_of,
    message_item,
    refusal_part,
    response_object,
    stop_of,
    text_part,
)
from egressproxy.model.strict_json import dumps, dumps_text, loads

_ENDED: Final = PartEnded()
#: What a part that is kept takes beside its text.
_PART_SIZE: Final = 1024
_CALLS: Final = {
    PartKind.TOOL_CALL: "response.function_call_arguments",
    PartKind.CUSTOM_CALL: "response.custom_tool_call_input",
}
_DELTAS: Final = {
    "response.output_text.delta": PartKind.TEXT,
    "response.refusal.delta": PartKind.REFUSAL,
    "response.function_call_arguments.delta": PartKind.TOOL_CALL,
}


class ResponseStreamReader:
    """Events of a response's stream to ours."""

    __slots__ = ("_call", "_has_begun", "_has_calls", "_index", "_kind")

    def __init__(self) -> None:
        self._kind: PartKind | None = None  # of the part that is open
        self._index = -1  # of the item that it belongs to
        self._call: str | None = None  # the arguments of the open call, if no delta tells them
        self._has_calls = False
        self._has_begun = False

    def read(self, name: bytes, data: bytes) -> list[StreamEvent]:
        """The events that this event of the stream holds. Raises BadAnswer, Unreadable."""
        value = loads(data)
        if type(value) is not dict:
            raise BadAnswer("an event of the stream is not an object")
        kind = text(value, "type")
        if kind in _DELTAS:
            return self._delta(_DELTAS[kind], value)
        if kind == "response.output_item.added":
            return self._item(value)
        if kind == "response.content_part.added":
            return self._part(value)
        if kind in ("response.content_part.done", "response.output_item.done"):
            return self._done(kind, value)
        if kind == "response.created":
            return [self._start(object_in(value, "response"))]
        if kind in ("response.completed", "response.incomplete"):
            return self._finish(object_in(value, "response"))
        if kind == "response.failed":
            response = object_in(value, "response")
            return [failed(response.get("error") or {"message": failure_of(response)})]
        if kind == "error":
            return [failed(value.get("error") or value)]
        return [KeepAlive()] if kind in ("response.in_progress", "keepalive") else []

    def end(self) -> list[StreamEvent]:
        """The events behind the last one: none, since a stream that is complete has said so."""
        return []

    def _start(self, response: dict[str, Any]) -> Started:
        if self._has_begun:
            raise BadAnswer("the stream begins twice")
        self._has_begun = True
        ident, model = needed_text(response, "id"), needed_text(response, "model")
        return Started(ident, model, seconds(response, "created_at"), Usage())

    def _item(self, value: dict[str, Any]) -> list[StreamEvent]:
        item = object_in(value, "item")
        kind = text(item, "type")
        if kind not in ("message", "function_call", "reasoning"):
            raise of_no_form("the stream has an item", kind)
        if kind != "function_call":
            return []
        events = self._open(PartKind.TOOL_CALL, value)
        self._has_calls, self._call = True, text(item, "arguments") or ""
        return [*events, PartStarted(PartKind.TOOL_CALL, needed_text(item, "call_id"), needed_text(item, "name"))]

    def _part(self, value: dict[str, Any]) -> list[StreamEvent]:
        part = object_in(value, "part")
        kind = text(part, "type")
        if kind == "reasoning_text":
            return []
        if kind not in ("output_text", "refusal"):
            raise of_no_form("the stream has a part", kind)
        opened = PartKind.TEXT if kind == "output_text" else PartKind.REFUSAL
        return [*self._open(opened, value), PartStarted(opened)]

    def _delta(self, kind: PartKind, value: dict[str, Any]) -> list[StreamEvent]:
        if kind is not self._kind or value.get("output_index") != self._index:
            raise BadAnswer("the stream goes on with a part that is not open")
        more = needed_text(value, "delta")
        if not more:
            return []
        self._call = None
        return [Delta(more)]

    def _done(self, kind: str, value: dict[str, Any]) -> list[StreamEvent]:
        is_call = self._kind is PartKind.TOOL_CALL
        if (
            self._kind is None
            or value.get("output_index") != self._index
            or is_call != (kind == "response.output_item.done")
        ):
            return []
        if is_call and self._call is not None:  # a call that came whole
            self._call = text(object_in(value, "item"), "arguments") or self._call
            return [Delta(self._call), *self._close()] if self._call else self._close()
        return self._close()

    def _open(self, kind: PartKind, value: dict[str, Any]) -> list[StreamEvent]:
        self._check_begun()
        events = self._close()
        self._kind, self._index = kind, count(value, "output_index")
        return events

    def _close(self) -> list[StreamEvent]:
        if self._kind is None:
            return []
        self._kind = self._call = None
        return [_ENDED]

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise BadAnswer("the stream does not begin with response.created")

    def _finish(self, response: dict[str, Any]) -> list[StreamEvent]:
        self._check_begun()
        stop = stop_of(response, self._has_calls)
        return [*self._close(), Finished(stop, None, openai_usage(object_in(response, "usage"), "input", "output"))]


class ResponseStreamWriter:
    """Events to those of a response's stream. It keeps what was said: the events at the end repeat it."""

    __slots__ = (
        "_before",
        "_call",
        "_content",
        "_created",
        "_ident",
        "_kind",
        "_model",
        "_output",
        "_repeated",
        "_sequence",
        "_size",
        "_text",
    )  # fmt: skip

    def __init__(self, repeated: Mapping[str, Any], now: int) -> None:
        self._repeated = repeated
        self._created = now
        self._ident = ""
        self._model = ""
        self._sequence = 0
        self._output: list[dict[str, Any]] = []  # the items that are done
        self._content: list[dict[str, Any]] | None = None  # of the message that is open
        self._kind = PartKind.TEXT
        self._call = PartStarted(PartKind.TEXT)
        self._text = io.StringIO()  # of the part that is open
        self._before = b""  # what stands before the delta in its event
        self._size = 0

    def write(self, stream_event: StreamEvent) -> bytes:
        """What the client gets for this event. Raises BadAnswer for an answer that is too long to be kept."""
        if isinstance(stream_event, Delta):
            return self._delta(stream_event)
        if isinstance(stream_event, PartStarted):
            return self._part(stream_event)
        if isinstance(stream_event, PartEnded):
            return self._end()
        if isinstance(stream_event, Started):
            return self._start(stream_event)
        if isinstance(stream_event, Finished):
            return self._finish(stream_event)
        return self._fail(stream_event) if isinstance(stream_event, Failed) else b": keep-alive\n\n"

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        value = {"type": kind, **fields, "sequence_number": self._sequence}
        self._sequence += 1
        return event(kind.encode(), dumps(value))

    def _start(self, started: Started) -> bytes:
        self._ident, self._model = without_prefix(started.id), started.model
        self._created = started.created or self._created
        response = response_object(self._ident, self._created, self._model, self._repeated, [], None, None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _part(self, begun: PartStarted) -> bytes:
        self._keep(_PART_SIZE + len(begun.id) + len(begun.name))
        self._kind, self._text, written = begun.kind, io.StringIO(), b""
        index = len(self._output)
        if begun.kind is PartKind.TOOL_CALL or begun.kind is PartKind.CUSTOM_CALL:
            written = self._close_message("completed")
            self._call, index = begun, len(self._output)
            item = call_item(self._ident, index, self._called(""), "in_progress")
            written += self._event("response.output_item.added", output_index=index, item=item)
            name = f"{_CALLS[begun.kind]}.delta"
        else:
            if self._content is None:
                self._content = []
                item = message_item(self._ident, index, [], "in_progress")
                written = self._event("response.output_item.added", output_index=index, item=item)
            part = text_part("") if begun.kind is PartKind.TEXT else refusal_part("")
            written += self._event("response.content_part.added", **self._position(), part=part)
            name = "response.output_text.delta" if begun.kind is PartKind.TEXT else "response.refusal.delta"
        logprobs: dict[str, Any] = {"logprobs": []} if begun.kind is PartKind.TEXT else {}
        head = dumps({"type": name, **self._position(), **logprobs})[:-1]
        self._before = b"event: " + name.encode() + b"\ndata: " + head + b',"delta":'
        return written

    def _called(self, arguments: str) -> ToolCall:
        call, is_custom = self._call, self._kind is PartKind.CUSTOM_CALL
        return ToolCall(call.id, call.name, arguments, namespace=call.namespace, is_custom=is_custom)

    def _position(self) -> dict[str, Any]:
        """Where the open part is: its item, and its place in that."""
        index = len(self._output)
        if self._content is None:
            prefix = "ctc" if self._kind is PartKind.CUSTOM_CALL else "fc"
            return {"item_id": f"{prefix}_{self._ident}_{index}", "output_index": index}
        return {"item_id": f"msg_{self._ident}_{index}", "output_index": index, "content_index": len(self._content)}

    def _delta(self, delta: Delta) -> bytes:
        self._text.write(delta.text)
        self._keep(len(delta.text))
        sequence = self._sequence
        self._sequence = sequence + 1
        return self._before + dumps_text(delta.text) + b',"sequence_number":%d}\n\n' % sequence

    def _keep(self, size: int) -> None:
        self._size += size
        if self._size > MAX_EVENT_BYTES:
            raise BadAnswer("the answer is too long to be repeated at the end of a response")

    def _end(self) -> bytes:
        content, index = self._text.getvalue(), len(self._output)
        if self._content is None:
            item = call_item(self._ident, index, self._called(content), "completed")
            position = self._position()
            self._output.append(item)
            if self._kind is PartKind.CUSTOM_CALL:
                fields: dict[str, Any] = {"input": item["input"]}
            else:
                fields = {"name": item["name"], "arguments": item["arguments"]}
            return self._event(f"{_CALLS[self._kind]}.done", **position, **fields) + self._event(
                "response.output_item.done", output_index=index, item=item
            )
        position = self._position()
        if self._kind is PartKind.TEXT:
            part = text_part(content)
            written = self._event("response.output_text.done", **position, text=content, logprobs=[])
        else:
            part = refusal_part(content)
            written = self._event("response.refusal.done", **position, refusal=content)
        self._content.append(part)
        return written + self._event("response.content_part.done", **position, part=part)

    def _close_message(self, status: str) -> bytes:
        if self._content is None:
            return b""
        index, content, self._content = len(self._output), self._content, None
        self._output.append(message_item(self._ident, index, content, status))
        return self._event("response.output_item.done", output_index=index, item=self._output[-1])

    def _finish(self, finished: Finished) -> bytes:
        status = "incomplete" if finished.stop in INCOMPLETE else "completed"
        written = self._close_message(status)
        response = response_object(
            self._ident, self._created, self._model, self._repeated, self._output, finished.stop, finished.usage
        )
        return written + self._event(f"response.{status}", response=response)

    def _fail(self, failure: Failed) -> bytes:
        code = "rate_limit_exceeded" if failure.status == 429 else "server_error"
        if not self._ident:
            return self._event("error", code=code, message=failure.message, param=None)
        response = response_object(self._ident, self._created, self._model, self._repeated, self._output, None, None)
        response |= {"status": "failed", "error": {"code": code, "message": failure.message}}
        return self._event("response.failed", response=response)
