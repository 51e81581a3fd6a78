"""The stream of a chat completion (ChatCompletionChunk of OpenAI's SDK), read and written. It is complete with `data:
[DONE]`, or at its end behind a `finish_reason`.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.errors import error_object
from egressproxy.ai.translation.answer_fields import (
    content_in,
    count,
    id_in,
    object_in,
    objects_in,
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
    Stop,
    StreamEvent,
    Usage,
)
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.ai.translation.event_stream import MAX_EVENT_BYTES, event_of_data
from egressproxy.ai.translation.openai_chat.answers import (
    FINISH_REASONS,
    arguments_in,
    calls_in,
    check_content,
    stop_of,
    stop_without_reason,
    written_usage,
)
from egressproxy.model.strict_json import dumps, dumps_text, loads

_DONE: Final = b"[DONE]"
_ENDED: Final = PartEnded()
#: What a call that waits takes beside its text.
_CALL_SIZE: Final = 1024
#: The type of a call, and the member that has what it is called with.
_CALLS: Final = {PartKind.TOOL_CALL: ("function", "arguments"), PartKind.CUSTOM_CALL: ("custom", "input")}


class _Call:
    """A call of a tool, as far as it has come. It waits for its name, and for the calls before it to end."""

    __slots__ = ("arguments", "ends_in_brace", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []  # that nobody was told
        self.ends_in_brace = False


class ChatStreamReader:
    """Chunks of a chat completion to events. What the reader hands out raises BadAnswer where it cannot be read.

    Pieces of several calls may be mixed: the first call is told as it comes, and the others when it has ended.
    """

    __slots__ = ("_calls", "_has_calls", "_has_said", "_kept", "_kind", "_latest", "_started", "_stop", "_usage")

    def __init__(self) -> None:
        self._started = False
        self._kind: PartKind | None = None  # of the part that is open
        self._calls: list[_Call] = []  # that have not ended; the first one may be open
        self._latest: dict[int, _Call] = {}  # by index
        self._kept = 0  # characters of calls that wait
        self._has_calls = False
        self._has_said = False
        self._stop: Stop | None = None
        self._usage = Usage()

    def read(self, name: bytes, data: bytes) -> list[StreamEvent]:
        """The events that this event of the stream holds. Raises BadAnswer, Unreadable."""
        if data == _DONE:
            if self._stop is None and not self._has_said:
                raise BadAnswer("the stream ends without a finish_reason, and without content")
            self._stop = self._stop or stop_without_reason(self._has_calls)
            return self.end()
        chunk = loads(data)
        if type(chunk) is not dict:
            raise BadAnswer("a chunk is not an object")
        if chunk.get("error") is not None:
            return [failed(chunk["error"])]
        events: list[StreamEvent] = []
        choices = objects_in(chunk, "choices")
        if not self._started and choices:  # Azure tells of its filters before, in a chunk without an id
            self._started = True
            ident, model = id_in(chunk, "chatcmpl-"), text(chunk, "model") or ""
            events.append(Started(ident, model, seconds(chunk, "created"), self._usage))
        if chunk.get("usage") is not None:
            self._usage = openai_usage(object_in(chunk, "usage"), "prompt", "completion")
        for choice in choices:
            if choice.get("index", 0) != 0:
                raise BadAnswer("the stream has more than one choice")
            self._read_delta(object_in(choice, "delta"), events)
            self._stop = stop_of(choice, self._has_calls) or self._stop
        return events

    def end(self) -> list[StreamEvent]:
        """The events behind the last one of a stream that was not broken off: many servers leave out `[DONE]`."""
        if self._stop is None:
            return []
        events: list[StreamEvent] = []
        self._close(events)
        return [*events, Finished(self._stop, None, self._usage)]

    def _read_delta(self, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        content = delta.get("content")
        if type(content) is not str:
            content = content_in(delta)
        if content:
            self._say(PartKind.TEXT, content, events)
            if len(delta) == 1:
                return
        if refused := text(delta, "refusal"):
            self._say(PartKind.REFUSAL, refused, events)
        for call in calls_in(delta):
            self._call(call, events)
        check_content(delta)

    def _say(self, kind: PartKind, content: str, events: list[StreamEvent]) -> None:
        if self._kind is not kind:
            self._close(events)
            self._kind, self._has_said = kind, True
            events.append(PartStarted(kind))
        events.append(Delta(content))

    def _call(self, piece: dict[str, Any], events: list[StreamEvent]) -> None:
        index, function = count(piece, "index"), object_in(piece, "function")
        ident, name, arguments = text(piece, "id"), text(function, "name"), arguments_in(function)
        call = self._latest.get(index)
        if call is None or self._is_another(call, ident, name, arguments):
            if text(piece, "type") not in ("function", None):
                raise BadAnswer("the stream has a call of a tool that is no function")
            if self._kind is not None and self._kind is not PartKind.TOOL_CALL:
                self._close(events)
            call = self._latest[index] = _Call()
            call.id = id_in(piece, "call_")
            self._calls.append(call)
            self._keep(_CALL_SIZE + len(call.id) + len(name or ""))
            self._has_calls = self._has_said = True
        elif not self._calls or call not in self._calls:
            raise BadAnswer("the stream goes on with a tool call after another part has begun")
        call.name = call.name or name or ""
        if arguments:
            call.arguments.append(arguments)
            call.ends_in_brace = arguments.rstrip().endswith("}")
        if call is self._calls[0]:
            self._tell(call, events)
        else:
            self._keep(len(arguments))

    def _is_another(self, call: _Call, ident: str | None, name: str | None, arguments: str) -> bool:
        """Whether a piece with the index of this call begins one more: some servers send every call whole, and all with
        the same index, or none. Behind the end of an object no other one can follow in the same arguments.
        """
        if not name or not call.name:
            return False
        return bool(ident and ident != call.id) or (not ident and call.ends_in_brace and arguments.startswith("{"))

    def _tell(self, call: _Call, events: list[StreamEvent]) -> None:
        if not call.name:
            return
        if self._kind is None:
            self._kind = PartKind.TOOL_CALL
            events.append(PartStarted(PartKind.TOOL_CALL, call.id, call.name))
        events += map(Delta, call.arguments)
        call.arguments.clear()

    def _keep(self, size: int) -> None:
        self._kept += size
        if self._kept > MAX_EVENT_BYTES:
            raise BadAnswer("the tool calls of the stream are too long to be kept")

    def _close(self, events: list[StreamEvent]) -> None:
        """End the open part, and tell the calls that have waited for it."""
        if not self._calls and self._kind is not None:
            events.append(_ENDED)
        self._kind = None if not self._calls else self._kind
        for call in self._calls:
            if not call.name:
                raise BadAnswer("a tool call of the stream has no name")
            self._tell(call, events)
            events.append(_ENDED)
            self._kind = None
        self._calls.clear()


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

    def write(self, stream_event: StreamEvent) -> bytes:
        if isinstance(stream_event, Delta):
            return self._delta(stream_event)
        if isinstance(stream_event, PartStarted):
            return self._part(stream_event)
        if isinstance(stream_event, Started):
            return self._start(stream_event)
        if isinstance(stream_event, Finished):
            return self._finish(stream_event)
        if isinstance(stream_event, Failed):
            return event_of_data(dumps(error_object(Api.OPENAI_CHAT, stream_event.status, stream_event.message)))
        return b": keep-alive\n\n" if isinstance(stream_event, KeepAlive) else b""

    def _start(self, started: Started) -> bytes:
        self._head = {
            "id": f"chatcmpl-{without_prefix(started.id)}",
            "object": "chat.completion.chunk",
            "created": started.created or self._now,
            "model": started.model,
        }
        self._before = b"data: " + dumps(self._head)[:-1] + b',"choices":[{"index":0,"delta":{'
        usage = b',"usage":null' if self._wants_usage else b""
        self._after = b'},"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        return self._before + b'"role":"assistant","content":""' + self._after

    def _part(self, part: PartStarted) -> bytes:
        self._kind = part.kind
        if part.kind is PartKind.TEXT or part.kind is PartKind.REFUSAL:
            return b""
        self._tool_index += 1
        kind, arguments = _CALLS[part.kind]
        begun = {"name": part.name, arguments: ""}
        call = {"index": self._tool_index, "id": part.id, "type": kind, kind: begun}
        return self._before + b'"tool_calls":' + dumps([call]) + self._after

    def _delta(self, delta: Delta) -> bytes:
        if self._kind is PartKind.TEXT:
            return self._before + b'"content":' + dumps_text(delta.text) + self._after
        if self._kind is PartKind.REFUSAL:
            return self._before + b'"refusal":' + dumps_text(delta.text) + self._after
        kind, arguments = _CALLS[self._kind]
        call = b'"tool_calls":[{"index":%d,"%b":{"%b":' % (self._tool_index, kind.encode(), arguments.encode())
        return self._before + call + dumps_text(delta.text) + b"}}]" + self._after

    def _finish(self, finished: Finished) -> bytes:
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": FINISH_REASONS[finished.stop]}
        usage: dict[str, Any] = {"usage": None} if self._wants_usage else {}
        written = event_of_data(dumps({**self._head, "choices": [choice], **usage}))
        if self._wants_usage:
            written += event_of_data(dumps({**self._head, "choices": [], "usage": written_usage(finished.usage)}))
        return written + event_of_data(_DONE)
