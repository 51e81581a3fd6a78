"""Anthropic's message, read and written (Message of Anthropic's SDK)."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.answer_fields import (
    count,
    needed_text,
    no_more_than,
    object_in,
    objects_in,
    of_no_form,
    text,
    without_prefix,
)
from egressproxy.ai.translation.conversation import ModelAnswer, RefusalText, Stop, Text, ToolCall, Usage
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.model.strict_json import Unreadable, are_too_many, dumps, loads

#: Blocks with the model's reasoning, which other APIs do not show.
THOUGHTS: Final = ("thinking", "redacted_thinking")
_NOTHING: Final = Usage()
_STOPS: Final = {
    "end_turn": Stop.END,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "stop_sequence": Stop.STOP_SEQUENCE,
    "tool_use": Stop.TOOL_CALLS,
    "refusal": Stop.FILTERED,
}
_WITHOUT_FORM: Final = ("pause_turn", "compaction")
_REASONS: Final = {
    Stop.END: "end_turn",
    Stop.LENGTH: "max_tokens",
    Stop.STOP_SEQUENCE: "stop_sequence",
    Stop.TOOL_CALLS: "tool_use",
    Stop.FILTERED: "refusal",
}


def read_answer(value: dict[str, Any]) -> ModelAnswer:
    """The model's response. Raises BadAnswer."""
    parts: list[Text | RefusalText | ToolCall] = []
    for block in objects_in(value, "content"):
        kind = text(block, "type")
        if kind == "text":
            parts.append(Text(needed_text(block, "text")))
        elif kind == "tool_use":
            no_more_than(block, "caller", {"type": "direct"})
            arguments = dumps(object_in(block, "input")).decode()
            parts.append(ToolCall(needed_text(block, "id"), needed_text(block, "name"), arguments))
        elif kind not in THOUGHTS:
            raise of_no_form("the answer has a block", kind)
    stop = stop_of(value, any(type(part) is ToolCall for part in parts))
    if stop is None:
        raise BadAnswer("stop_reason is missing")
    if explanation := explanation_of(value):
        parts.append(RefusalText(explanation))
    sequence, usage = text(value, "stop_sequence"), read_usage(object_in(value, "usage"))
    return ModelAnswer(needed_text(value, "id"), needed_text(value, "model"), None, tuple(parts), stop, sequence, usage)


def stop_of(value: dict[str, Any], has_calls: bool) -> Stop | None:
    """The stop reason, or None. An unknown reason counts as the regular end. Raises BadAnswer for a reason that asks
    for a continuation specific to Anthropic.
    """
    reason = text(value, "stop_reason")
    if reason is None:
        return None
    if reason in _WITHOUT_FORM:
        raise BadAnswer(f"stop_reason {reason!r} has no form in the client's API")
    return _STOPS.get(reason, Stop.TOOL_CALLS if has_calls else Stop.END)


def explanation_of(value: dict[str, Any]) -> str | None:
    return text(object_in(value, "stop_details"), "explanation")


def read_usage(usage: dict[str, Any], before: Usage = _NOTHING) -> Usage:
    """The tokens of a message. In a stream, counts that are not repeated stay as in `before`."""
    cache_read = count(usage, "cache_read_input_tokens") or before.cache_read
    cache_written = count(usage, "cache_creation_input_tokens") or before.cache_written
    if usage.get("input_tokens") is None:
        whole = before.input - before.cache_read - before.cache_written
    else:
        whole = count(usage, "input_tokens")
    return Usage(
        whole + cache_read + cache_written,
        count(usage, "output_tokens"),
        cache_read,
        cache_written,
        count(object_in(usage, "output_tokens_details"), "thinking_tokens") or before.reasoning,
    )


def write_answer(answer: ModelAnswer) -> dict[str, Any]:
    """The message that says this. Raises BadAnswer for arguments of tools that are no object, or of too many parts."""
    if are_too_many(part.arguments for part in answer.parts if type(part) is ToolCall):
        raise BadAnswer("the arguments of its tool calls have too many parts to be read here")
    blocks: list[dict[str, Any]] = []
    refusals: list[str] = []
    for part in answer.parts:
        if type(part) is Text:
            blocks.append({"type": "text", "text": part.text, "citations": None})
        elif type(part) is RefusalText:
            refusals.append(part.text)
        elif type(part) is ToolCall:
            blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": _arguments(part)})
    return {
        "id": f"msg_{without_prefix(answer.id)}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": blocks,
        **ending(answer.stop, answer.stop_sequence, "".join(refusals)),
        "usage": written_usage(answer.usage),
    }


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = loads(call.arguments) if call.arguments else {}
    except Unreadable:
        arguments = None
    if type(arguments) is not dict:
        raise BadAnswer("the arguments of a tool call are not a JSON object")
    return arguments


def ending(stop: Stop, stop_sequence: str | None, refusal: str) -> dict[str, Any]:
    """The members of a message with its stop reason. A refusal is the explanation of the stop."""
    if refusal:
        stop = Stop.FILTERED
    details = {"type": "refusal", "category": None, "explanation": refusal or None} if stop is Stop.FILTERED else None
    return {"stop_reason": _REASONS[stop], "stop_sequence": stop_sequence, "stop_details": details}


def written_usage(usage: Usage) -> dict[str, Any]:
    """These tokens, as a message tells them: the cached ones are not among `input_tokens`."""
    return {
        "input_tokens": max(usage.input - usage.cache_read - usage.cache_written, 0),
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
