"""A chat completion, read and written (ChatCompletion of OpenAI's SDK)."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.answer_fields import (
    content_in,
    id_in,
    needed_text,
    no_more_than,
    object_in,
    objects_in,
    openai_usage,
    seconds,
    text,
    without_prefix,
)
from egressproxy.ai.translation.conversation import ModelAnswer, RefusalText, Stop, Text, ToolCall, Usage
from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.model.strict_json import dumps

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
    # Words of other servers; those that are not here mean that the model has said all.
    "max_tokens": Stop.LENGTH,
    "model_length": Stop.LENGTH,
    "safety": Stop.FILTERED,
    "refusal": Stop.FILTERED,
    "recitation": Stop.FILTERED,
}
#: Of servers that could not go on (OpenRouter, vLLM, DeepSeek).
_BROKEN: Final = ("error", "abort", "insufficient_system_resource")


def read_answer(value: dict[str, Any]) -> ModelAnswer:
    """What the model has answered. Raises BadAnswer."""
    choices = objects_in(value, "choices")
    if len(choices) != 1:
        raise BadAnswer(f"the answer has {len(choices)} choices instead of one")
    message = object_in(choices[0], "message")
    check_content(message)
    parts: list[Text | RefusalText | ToolCall] = []
    if content := content_in(message):
        parts.append(Text(content))
    if refusal := text(message, "refusal"):
        parts.append(RefusalText(refusal))
    for call in calls_in(message):
        if text(call, "type") not in ("function", None):
            raise BadAnswer("the answer has a call of a tool that is no function")
        function = object_in(call, "function")
        parts.append(ToolCall(id_in(call, "call_"), needed_text(function, "name"), arguments_in(function)))
    usage = openai_usage(object_in(value, "usage"), "prompt", "completion")
    has_calls = any(type(part) is ToolCall for part in parts)
    stop = stop_of(choices[0], has_calls) or (stop_without_reason(has_calls) if parts else None)
    if stop is None:
        raise BadAnswer("finish_reason is missing, and so is the content")
    ident, model, created = id_in(value, "chatcmpl-"), text(value, "model") or "", seconds(value, "created")
    return ModelAnswer(ident, model, created, tuple(parts), stop, None, usage)


def check_content(message: dict[str, Any]) -> None:
    """Raises BadAnswer for content of a message, or of a delta, that other APIs have no form for."""
    for name in ("audio", "images"):
        no_more_than(message, name, [])


def calls_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message, or of a delta; older servers have one, without an id. Raises BadAnswer."""
    if message.get("function_call") is not None and not message.get("tool_calls"):
        return [{"function": object_in(message, "function_call")}]
    return objects_in(message, "tool_calls")


def arguments_in(function: dict[str, Any]) -> str:
    """What a function is called with: JSON in a string, or as some servers write it the object itself."""
    found = function.get("arguments")
    return dumps(found).decode() if type(found) is dict else text(function, "arguments") or ""


def stop_of(choice: dict[str, Any], has_calls: bool) -> Stop | None:
    """Why the model stopped; None if it has not. A call of a tool that the request names ends with `stop`, too, and is
    a call here, as do words that only one server has. Raises BadAnswer for those that say that the answer broke off.
    """
    reason = text(choice, "finish_reason")
    if not reason:  # some servers write the empty string for none
        return None
    if reason in _BROKEN:
        raise BadAnswer(f"the backend has broken off the answer: finish_reason is {reason!r}")
    stop = _STOPS.get(reason.lower(), Stop.END)
    return stop_without_reason(has_calls) if stop is Stop.END else stop


def stop_without_reason(has_calls: bool) -> Stop:
    """Why a model stops that has said all."""
    return Stop.TOOL_CALLS if has_calls else Stop.END


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
        message["tool_calls"] = [_written_call(call) for call in calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH_REASONS[answer.stop]}
    return {
        "id": f"chatcmpl-{without_prefix(answer.id)}",
        "object": "chat.completion",
        "created": answer.created or now,
        "model": answer.model,
        "choices": [choice],
        "usage": written_usage(answer.usage),
    }


def _written_call(call: ToolCall) -> dict[str, Any]:
    if call.is_custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def written_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
