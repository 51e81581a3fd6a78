"""The answer of Converse and the events of ConverseStream, read. A stream is complete with `metadata` behind
`messageStop`, or at its end behind the latter. Source: the service model of Amazon Bedrock's runtime (2023-09-30).
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from egressproxy.ai.apis.aws_event_stream import AwsFraming
from egressproxy.ai.apis.framing import BrokenStream
from egressproxy.ai.translation.answer_fields import (
    count,
    needed_text,
    no_more_than,
    object_in,
    objects_in,
    of_no_form,
    text,
)
from egressproxy.ai.translation.conversation import (
    Delta,
    Failed,
    Finished,
    ModelAnswer,
    PartEnded,
    PartKind,
    PartStarted,
    Started,
    Stop,
    StreamEvent,
    Text,
    ToolCall,
    Usage,
)
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.model.strict_json import Unreadable, dumps, loads

_STOPS: Final = {
    "end_turn": Stop.END,
    "tool_use": Stop.TOOL_CALLS,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "stop_sequence": Stop.STOP_SEQUENCE,
    "guardrail_intervened": Stop.FILTERED,
    "content_filtered": Stop.FILTERED,
}
_BROKEN: Final = ("malformed_model_output", "malformed_tool_use")
#: Exceptions that may end a stream, with the statuses that they have as answers.
_STATUSES: Final = {
    "validationException": 400,
    "modelStreamErrorException": 424,
    "throttlingException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
}
_ERROR: Final = "Exception"
_ENDED: Final = PartEnded()


def read_answer(value: dict[str, Any]) -> ModelAnswer:
    """What the model has answered, without a name of the model. Raises BadAnswer."""
    parts: list[Text | ToolCall] = []
    for block in objects_in(object_in(object_in(value, "output"), "message"), "content"):
        if "text" in block:
            parts.append(Text(needed_text(block, "text")))
        elif "toolUse" in block:
            call = object_in(block, "toolUse")
            no_more_than(call, "type")  # of tools of the client there is none
            arguments = dumps(object_in(call, "input")).decode()
            parts.append(ToolCall(needed_text(call, "toolUseId"), needed_text(call, "name"), arguments))
        elif "citationsContent" in block:
            cited = objects_in(object_in(block, "citationsContent"), "content")
            parts.append(Text("".join(needed_text(one, "text") for one in cited)))
        elif "reasoningContent" not in block:
            raise of_no_form("the answer has a block", min(block, default=""))
    stop = _stop_of(value, any(type(part) is ToolCall for part in parts))
    return ModelAnswer(secrets.token_hex(12), "", None, tuple(parts), stop, None, _usage(object_in(value, "usage")))


def _stop_of(value: dict[str, Any], has_calls: bool) -> Stop:
    """Why the model stopped. A reason that is unknown is the regular end. Raises BadAnswer for broken answers."""
    reason = needed_text(value, "stopReason")
    if reason in _BROKEN:
        raise BadAnswer(f"the backend has broken off the answer: stopReason is {reason}")
    return _STOPS.get(reason, Stop.TOOL_CALLS if has_calls else Stop.END)


def _usage(usage: dict[str, Any]) -> Usage:
    """The tokens: what was read from a cache, or written to it, is told beside the input."""
    read, written = count(usage, "cacheReadInputTokens"), count(usage, "cacheWriteInputTokens")
    return Usage(count(usage, "inputTokens") + read + written, count(usage, "outputTokens"), read, written)


class ConverseEvents:
    """Messages of Amazon's event streams as (name, payload), checked, in bounded memory."""

    __slots__ = ("_framing",)

    def __init__(self) -> None:
        self._framing = AwsFraming()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that end in these bytes. Raises BadAnswer for a wrong checksum, and a message too long."""
        try:
            return [(frame.name.encode(), frame.payload) for frame in self._framing.feed(data)]
        except BrokenStream as error:
            raise BadAnswer(str(error)) from None

    def end(self) -> list[tuple[bytes, bytes]]:
        """Nothing. Raises BadAnswer for a message that breaks off."""
        if self._framing.held:
            raise BadAnswer("it ends within an event")
        return []


class ConverseStreamReader:
    """Events of ConverseStream to ours. Blocks of text begin with their first delta."""

    __slots__ = ("_has_calls", "_index", "_kind", "_said", "_started", "_stop", "_usage")

    def __init__(self) -> None:
        self._started = self._has_calls = False
        self._kind: PartKind | None = None  # of the block that is open
        self._index = -1
        self._said = False  # a text, or arguments
        self._stop: Stop | None = None
        self._usage = Usage()

    def read(self, name: bytes, data: bytes) -> list[StreamEvent]:
        """The events that this event of the stream holds. Raises BadAnswer, Unreadable."""
        kind = name.decode()
        if kind.endswith(_ERROR):
            return [Failed(_STATUSES.get(kind, 500), _message(data))]
        value = loads(data)
        if type(value) is not dict:
            raise BadAnswer("an event of the stream is not an object")
        if kind == "messageStart":
            if self._started:
                raise BadAnswer("the stream begins twice")
            self._started = True
            return [Started(secrets.token_hex(12), "", None, self._usage)]
        if not self._started:
            raise BadAnswer("the stream does not begin with messageStart")
        if kind == "contentBlockDelta":
            return self._delta(value)
        if kind == "contentBlockStart":
            return self._start(value)
        if kind == "contentBlockStop":
            return self._close()
        if kind == "messageStop":
            self._stop = _stop_of(value, self._has_calls)
            return self._close()
        if kind == "metadata":
            self._usage = _usage(object_in(value, "usage"))
            return self.end()
        return []  # new kinds of events may come at any time, and content comes in blocks

    def end(self) -> list[StreamEvent]:
        """The events behind the last one of a stream that was not broken off, if it has told why the model stopped."""
        return [] if self._stop is None else [Finished(self._stop, None, self._usage)]

    def _start(self, value: dict[str, Any]) -> list[StreamEvent]:
        events, start = self._close(), object_in(value, "start")
        if "toolUse" not in start:
            if start:
                raise of_no_form("the stream has a block", min(start))
            return events
        call = object_in(start, "toolUse")
        no_more_than(call, "type")
        self._kind, self._index = PartKind.TOOL_CALL, count(value, "contentBlockIndex")
        self._has_calls, self._said = True, False
        return [*events, PartStarted(PartKind.TOOL_CALL, needed_text(call, "toolUseId"), needed_text(call, "name"))]

    def _delta(self, value: dict[str, Any]) -> list[StreamEvent]:
        delta, index = object_in(value, "delta"), count(value, "contentBlockIndex")
        if "toolUse" in delta:
            if self._kind is not PartKind.TOOL_CALL or index != self._index:
                raise BadAnswer("the stream goes on with a block that is not open")
            more = text(object_in(delta, "toolUse"), "input") or ""
            self._said = self._said or bool(more)
            return [Delta(more)] if more else []
        if "text" in delta:
            more = needed_text(delta, "text")
            if not more:
                return []
            if self._kind is PartKind.TEXT and index == self._index:
                return [Delta(more)]
            events = self._close()
            self._kind, self._said, self._index = PartKind.TEXT, True, index
            return [*events, PartStarted(PartKind.TEXT), Delta(more)]
        if "reasoningContent" not in delta and "citation" not in delta:
            raise of_no_form("the stream has a delta", min(delta, default=""))
        return []

    def _close(self) -> list[StreamEvent]:
        """End the open block. A call without arguments has those of an empty object."""
        if self._kind is None:
            return []
        self._kind = None
        return [_ENDED] if self._said else [Delta("{}"), _ENDED]


def _message(data: bytes) -> str:
    try:
        value = loads(data)
    except Unreadable:
        value = None
    message = (value.get("message") or value.get("Message")) if type(value) is dict else None
    return message if type(message) is str else "the backend ended the stream with an error"
