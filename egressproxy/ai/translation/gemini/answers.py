"""Generated content, read whole and as a stream (GenerateContentResponse of the Gemini API). A stream has no last
event: it is complete at its end, behind a `finishReason`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

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
    RefusalText,
    Started,
    Stop,
    StreamEvent,
    Text,
    ToolCall,
    Usage,
)
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.model.strict_json import dumps, loads

_STOPS: Final = {
    "MAX_TOKENS": Stop.LENGTH,
    "CONTINUATION": Stop.LENGTH,
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "ESCALATION", "PUP_LIMITED_DISABLED", "MODEL_ARMOR",
        ),
        Stop.FILTERED,
    ),
}  # fmt: skip
#: Reasons of an answer that is none. Reasons that are not named here mean that the model has said all.
_BROKEN: Final = (
    "OTHER", "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS",
    "MISSING_THOUGHT_SIGNATURE", "NO_IMAGE", "IMAGE_OTHER",
)  # fmt: skip
#: Members beside the content of a part.
_BESIDE: Final = frozenset(("text", "thought", "thoughtSignature", "partMetadata", "mediaResolution"))
_ENDED: Final = PartEnded()
_NOTHING: Final = Usage()


def read_answer(value: dict[str, Any]) -> ModelAnswer:
    """What the model has answered. Raises BadAnswer."""
    candidate = _candidate(value)
    refusal = _blocked(value) if candidate is None else None
    if candidate is None and refusal is None:
        raise BadAnswer("the answer has no candidate")
    parts: list[Text | RefusalText | ToolCall] = []
    for part in _parts(candidate or {}):
        if type(part) is Text and parts and type(parts[-1]) is Text:
            parts[-1] = Text(parts[-1].text + part.text)
        else:
            parts.append(part)
    stop: Stop | None = Stop.FILTERED
    if candidate is not None:
        stop = _stop_of(candidate, any(type(part) is ToolCall for part in parts))
    if refusal:
        parts.append(RefusalText(refusal))
    if stop is None:
        raise BadAnswer("finishReason is missing")
    return ModelAnswer(_id(value), text(value, "modelVersion") or "", None, tuple(parts), stop, None, _usage(value))


def _candidate(value: dict[str, Any]) -> dict[str, Any] | None:
    candidates = objects_in(value, "candidates")
    if len(candidates) > 1:
        raise BadAnswer(f"the answer has {len(candidates)} candidates instead of one")
    return candidates[0] if candidates else None


def _blocked(value: dict[str, Any]) -> str | None:
    """What is told of a prompt that was not answered; None if it was."""
    feedback = object_in(value, "promptFeedback")
    reason = text(feedback, "blockReason")
    return None if reason is None else text(feedback, "blockReasonMessage") or f"The prompt was blocked: {reason}."


def _parts(candidate: dict[str, Any]) -> Iterator[Text | ToolCall]:
    """The model's texts and calls; how it has thought is left out. Raises BadAnswer for parts of another form."""
    for part in objects_in(object_in(candidate, "content"), "parts"):
        if part.get("thought") is True:
            continue
        if "functionCall" in part:
            call = object_in(part, "functionCall")
            no_more_than(call, "partialArgs", [])
            no_more_than(call, "willContinue", False)
            ident = text(call, "id") or f"call_{secrets.token_hex(12)}"
            yield ToolCall(ident, needed_text(call, "name"), dumps(object_in(call, "args")).decode())
        elif others := part.keys() - _BESIDE:
            raise of_no_form("the answer has a part", min(others))
        elif said := text(part, "text"):
            yield Text(said)


def _stop_of(candidate: dict[str, Any], has_calls: bool) -> Stop | None:
    """Why the model stopped; None if it has not. Raises BadAnswer for reasons that say that the answer broke off."""
    reason = text(candidate, "finishReason")
    if not reason or reason == "FINISH_REASON_UNSPECIFIED":
        return None
    if reason in _BROKEN:
        more = text(candidate, "finishMessage")
        raise BadAnswer(f"the backend has broken off the answer: finishReason is {reason}{f': {more}' if more else ''}")
    return _STOPS.get(reason, Stop.TOOL_CALLS if has_calls else Stop.END)


def _id(value: dict[str, Any]) -> str:
    return text(value, "responseId") or secrets.token_hex(12)


def _usage(value: dict[str, Any], before: Usage = _NOTHING) -> Usage:
    """The tokens so far; those of `before` where nothing is told."""
    usage = object_in(value, "usageMetadata")
    if not usage:
        return before
    thoughts = count(usage, "thoughtsTokenCount")
    return Usage(
        input=count(usage, "promptTokenCount") + count(usage, "toolUsePromptTokenCount"),
        output=count(usage, "candidatesTokenCount") + thoughts,
        cache_read=count(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
    )


class ContentStreamReader:
    """Chunks of generated content to events. A call of a tool comes whole."""

    __slots__ = ("_has_calls", "_is_in_text", "_started", "_stop", "_usage")

    def __init__(self) -> None:
        self._started = self._is_in_text = self._has_calls = False
        self._stop: Stop | None = None
        self._usage = _NOTHING

    def read(self, name: bytes, data: bytes) -> list[StreamEvent]:
        """The events that this event of the stream holds. Raises BadAnswer, Unreadable."""
        chunk = loads(data)
        if type(chunk) is not dict:
            raise BadAnswer("a chunk is not an object")
        if chunk.get("error") is not None:
            return [_failed(chunk["error"])]
        events: list[StreamEvent] = []
        self._usage = _usage(chunk, self._usage)
        candidate = _candidate(chunk)
        refusal = _blocked(chunk) if candidate is None else None
        if not self._started and (candidate is not None or refusal is not None):
            self._started = True
            events.append(Started(_id(chunk), text(chunk, "modelVersion") or "", None, self._usage))
        if refusal is not None:
            events += (PartStarted(PartKind.REFUSAL), Delta(refusal), _ENDED)
            self._stop = Stop.FILTERED
        if candidate is not None:
            for part in _parts(candidate):
                self._say(part, events)
            self._stop = _stop_of(candidate, self._has_calls) or self._stop
        return events

    def end(self) -> list[StreamEvent]:
        """The events behind the last one of a stream that was not broken off, if it has told why the model stopped."""
        if self._stop is None:
            return []
        events: list[StreamEvent] = [_ENDED] if self._is_in_text else []
        self._is_in_text = False
        return [*events, Finished(self._stop, None, self._usage)]

    def _say(self, part: Text | ToolCall, events: list[StreamEvent]) -> None:
        if type(part) is Text:
            if not self._is_in_text:
                events.append(PartStarted(PartKind.TEXT))
            self._is_in_text = True
            events.append(Delta(part.text))
        elif type(part) is ToolCall:
            if self._is_in_text:
                events.append(_ENDED)
            self._is_in_text, self._has_calls = False, True
            events += (PartStarted(PartKind.TOOL_CALL, part.id, part.name), Delta(part.arguments), _ENDED)


def _failed(error: Any) -> Failed:
    """The event for an error in the stream: a google.rpc.Status, whose code is that of HTTP."""
    code, message = (error.get("code"), error.get("message")) if type(error) is dict else (None, None)
    status = code if type(code) is int and 400 <= code < 600 else 500
    return Failed(status, message if type(message) is str else "the backend ended the stream with an error")
