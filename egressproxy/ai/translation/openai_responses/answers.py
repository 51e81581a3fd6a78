"""OpenAI's response, read and written (Response of OpenAI's SDK)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from egressproxy.ai.translation.answer_fields import (
    needed_text,
    object_in,
    objects_in,
    of_no_form,
    openai_usage,
    seconds,
    text,
    without_prefix,
)
from egressproxy.ai.translation.conversation import ModelAnswer, RefusalText, Stop, Text, ToolCall, Usage
from egressproxy.ai.translation.errors import BadAnswer

#: What a response repeats of its request, and says where the request said nothing.
DEFAULTS: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
#: Why a response is not complete; the other reasons to stop make a complete one.
INCOMPLETE: Final = {Stop.LENGTH: "max_output_tokens", Stop.FILTERED: "content_filter"}
#: Of calls: the type of the item, with what its id begins, and the member that has what it is called with.
FUNCTION: Final = ("function_call", "fc", "arguments")
CUSTOM: Final = ("custom_tool_call", "ctc", "input")
_STOPS: Final = {reason: stop for stop, reason in INCOMPLETE.items()}


def read_answer(value: dict[str, Any]) -> ModelAnswer:
    """What the model has answered. Raises BadAnswer, for a response that has failed, too."""
    if (failure := failure_of(value)) is not None:
        raise BadAnswer(failure)
    parts: list[Text | RefusalText | ToolCall] = []
    for item in objects_in(value, "output"):
        kind = text(item, "type")
        if kind == "message":
            parts += [_part(part) for part in objects_in(item, "content")]
        elif kind == "function_call":
            parts.append(
                ToolCall(needed_text(item, "call_id"), needed_text(item, "name"), text(item, "arguments") or "")
            )
        elif kind != "reasoning":
            raise of_no_form("the answer has an item", kind)
    stop = stop_of(value, any(type(part) is ToolCall for part in parts))
    usage = openai_usage(object_in(value, "usage"), "input", "output")
    return ModelAnswer(
        needed_text(value, "id"),
        needed_text(value, "model"),
        seconds(value, "created_at"),
        tuple(parts),
        stop,
        None,
        usage,
    )


def _part(part: dict[str, Any]) -> Text | RefusalText:
    kind = text(part, "type")
    if kind == "output_text":
        return Text(needed_text(part, "text"))
    if kind == "refusal":
        return RefusalText(needed_text(part, "refusal"))
    raise of_no_form("the answer has a part", kind)


def failure_of(value: dict[str, Any]) -> str | None:
    """What the provider says of a response that has failed; None if it has not."""
    if value.get("status") not in ("failed", "cancelled"):
        return None
    return text(object_in(value, "error"), "message") or f"the response is {value['status']}"


def stop_of(value: dict[str, Any], has_calls: bool) -> Stop:
    """Why the model stopped. Raises BadAnswer."""
    status = value.get("status")
    if status == "completed":
        return Stop.TOOL_CALLS if has_calls else Stop.END
    reason = text(object_in(value, "incomplete_details"), "reason")
    if status != "incomplete" or reason not in _STOPS:
        raise BadAnswer(
            f"the response is {str(status)[:80]!r} ({str(reason)[:80]!r}), which the client's API has no form for"
        )
    return _STOPS[reason]


def write_answer(answer: ModelAnswer, repeated: Mapping[str, Any], now: int) -> dict[str, Any]:
    """The response that says this. Texts that follow each other are parts of one message."""
    ident = without_prefix(answer.id)
    status = "incomplete" if answer.stop in INCOMPLETE else "completed"
    output: list[dict[str, Any]] = []
    for part in answer.parts:
        if isinstance(part, ToolCall):
            output.append(call_item(ident, len(output), part, "completed"))
            continue
        if not output or output[-1]["type"] != "message":
            output.append(message_item(ident, len(output), [], status))
        output[-1]["content"].append(refusal_part(part.text) if isinstance(part, RefusalText) else text_part(part.text))
    return response_object(ident, answer.created or now, answer.model, repeated, output, answer.stop, answer.usage)


def response_object(
    ident: str,
    created: int,
    model: str,
    repeated: Mapping[str, Any],
    output: list[dict[str, Any]],
    stop: Stop | None,
    usage: Usage | None,
) -> dict[str, Any]:
    """A response; in progress while `stop` is None. `ident` is its id without the prefix."""
    status = "in_progress" if stop is None else "incomplete" if stop in INCOMPLETE else "completed"
    return {
        **DEFAULTS,
        **repeated,
        "id": f"resp_{ident}",
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": INCOMPLETE[stop]} if stop in INCOMPLETE else None,
        "model": model,
        "output": output,
        "previous_response_id": None,
        "store": False,
        "usage": None if usage is None else written_usage(usage),
    }


def message_item(ident: str, index: int, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{ident}_{index}", "status": status, "role": "assistant", "content": content}


def call_item(ident: str, index: int, call: ToolCall, status: str) -> dict[str, Any]:
    """The item of a call. `ident`: the id of the response without its prefix."""
    kind, prefix, arguments = CUSTOM if call.is_custom else FUNCTION
    item = {"type": kind, "id": f"{prefix}_{ident}_{index}", "status": status, "call_id": call.id, "name": call.name}
    if call.namespace:
        item["namespace"] = call.namespace
    has_none = not call.arguments and status == "completed" and not call.is_custom
    return {**item, arguments: "{}" if has_none else call.arguments}


def text_part(content: str) -> dict[str, Any]:
    return {"type": "output_text", "text": content, "annotations": [], "logprobs": []}


def refusal_part(content: str) -> dict[str, Any]:
    """A part of a message: what the model said when it declined."""
    return {"type": "refusal", "refusal": content}


def written_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
