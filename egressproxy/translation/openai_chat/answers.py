"""A chat completion, read and written (ChatCompletion of OpenAI's SDK)."""

from __future__ import annotations

from typing import Any, Final

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
from egressproxy.translation.conversation import ModelAnswer, RefusalText, Stop, Text, ToolCall, Usage
from egressproxy.translation.errors import BadAnswer

FINISH_REASONS: Final = {
    Stop.END: "stop",
    Stop.STOP_SEQUENCE: "stop",
    Stop.LENGTH: "length",
    Stop.TOOL_CALLS: "tool_calls",
    Stop.FILTERED: "content_filter",
}
_STOPS: Final = {
    "stop": Stop.END,
    "length": Stop.LENGTH,
    "tool_calls": Stop.TOOL_CALLS,
    "content_filter": Stop.FILTERED,
}


def read_answer(value: dict[str, Any]) -> ModelAnswer:
    """What the model has answered. Raises BadAnswer."""
    choices = objects_in(value, "choices")
    if len(choices) != 1:
        raise BadAnswer(f"the answer has {len(choices)} choices instead of one")
    message = object_in(choices[0], "message")
    no_more_than(message, "function_call")
    no_more_than(message, "audio")
    no_more_than(message, "annotations", [])
    parts: list[Text | RefusalText | ToolCall] = []
    if content := text(message, "content"):
        parts.append(Text(content))
    if refusal := text(message, "refusal"):
        parts.append(RefusalText(refusal))
    for call in objects_in(message, "tool_calls"):
        if text(call, "type") not in ("function", None):
            raise BadAnswer("the answer has a call of a tool that is no function")
        function = object_in(call, "function")
        parts.append(
            ToolCall(needed_text(call, "id"), needed_text(function, "name"), text(function, "arguments") or "")
        )
    usage = read_usage(object_in(value, "usage"))
    stop = stop_of(choices[0], any(type(part) is ToolCall for part in parts))
    if stop is None:
        raise BadAnswer("finish_reason is missing")
    ident, model, created = needed_text(value, "id"), needed_text(value, "model"), seconds(value, "created")
    return ModelAnswer(ident, model, created, tuple(parts), stop, None, usage)


def stop_of(choice: dict[str, Any], has_calls: bool) -> Stop | None:
    """Why the model stopped; None if it has not. A call of a tool that the request names ends with `stop`, too, and is
    a call here. Raises BadAnswer for a reason that is not known.
    """
    reason = text(choice, "finish_reason")
    if not reason:  # some servers write the empty string for none
        return None
    if reason not in _STOPS:
        raise BadAnswer(f"finish_reason {reason[:80]!r} is not known")
    return Stop.TOOL_CALLS if has_calls and reason == "stop" else _STOPS[reason]


def read_usage(usage: dict[str, Any]) -> Usage:
    """The tokens of a chat completion. Raises BadAnswer."""
    prompt = object_in(usage, "prompt_tokens_details")
    return Usage(
        count(usage, "prompt_tokens"),
        count(usage, "completion_tokens"),
        count(prompt, "cached_tokens"),
        count(prompt, "cache_write_tokens"),
        count(object_in(usage, "completion_tokens_details"), "reasoning_tokens"),
    )


def write_answer(answer: ModelAnswer, now: int) -> dict[str, Any]:
    """The chat completion that says this. `now`, in seconds, is its time where the provider has told none."""
    texts = [part.text for part in answer.parts if type(part) is Text]
    refusals = [part.text for part in answer.parts if type(part) is RefusalText]
    calls = [part for part in answer.parts if type(part) is ToolCall]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(texts) if texts or not (refusals or calls) else None,
        "refusal": "".join(refusals) if refusals else None,
        "annotations": [],
    }
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
            for call in calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH_REASONS[answer.stop]}
    return {
        "id": f"chatcmpl-{without_prefix(answer.id)}",
        "object": "chat.completion",
        "created": answer.created or now,
        "model": answer.model,
        "choices": [choice],
        "usage": written_usage(answer.usage),
    }


def written_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
