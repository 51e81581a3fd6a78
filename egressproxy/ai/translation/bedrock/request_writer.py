"""A conversation, written as a request to converse. Source: ConverseRequest of the service model of Amazon Bedrock's
runtime (2023-09-30).
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.apis import model_in_path
from egressproxy.ai.translation.content import (
    arguments_object,
    call_id,
    check_arguments,
    check_last_turn,
    only_texts,
    without_blanks,
    without_none,
)
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Effort,
    Image,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.model.strict_json import dumps
from egressproxy.model.work import Work

_FORMATS: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_TIERS: Final = (None, "default", "flex", "priority")
_NOTHING_LIKE_IT: Final = "cannot be translated: Bedrock has nothing like it"


def write_request(conversation: Conversation, model: str) -> Work[dict[str, Any]]:
    """The body of the request, in turns; model and stream stand in its path. Raises Untranslatable for required content
    without equivalent.
    """
    model_in_path(Api.BEDROCK_CONVERSE, model, conversation.name_of("model"))
    check_arguments(conversation)
    check_last_turn(conversation, "Bedrock")
    _drop_or_refuse(conversation)
    system = [
        {"text": part.text}
        for turn in conversation.turns
        if turn.role in (Role.SYSTEM, Role.DEVELOPER)
        for part in without_blanks(only_texts(turn.parts, "a system prompt"))
    ]
    temperature = conversation.temperature
    inference = without_none(
        {
            "maxTokens": conversation.max_tokens,
            "temperature": None if temperature is None else min(temperature, 1),
            "topP": conversation.top_p,
            "stopSequences": list(conversation.stop) or None,
        }
    )
    tier = conversation.service_tier
    optional = {
        "system": system or None,
        "messages": (yield from _messages(conversation)),
        "inferenceConfig": inference or None,
        "toolConfig": _tool_config(conversation),
        "outputConfig": _output_config(conversation) or None,
        "serviceTier": {"type": tier} if tier in ("flex", "priority") else None,
    }
    return without_none(optional)


def _drop_or_refuse(conversation: Conversation) -> None:
    """Drop settings that Bedrock does not have, if allowed. Raises Untranslatable for others."""
    refuse = conversation.drop_or_refuse
    if conversation.temperature is not None and conversation.temperature > 1:
        refuse("temperature", "must not be above 1: Bedrock's scale ends there")
    if conversation.has_parallel_calls is False and conversation.tools:
        refuse("has_parallel_calls", _NOTHING_LIKE_IT)
    if conversation.verbosity not in (None, "medium"):
        refuse("verbosity", _NOTHING_LIKE_IT)
    if conversation.effort in (Effort.NONE, Effort.MINIMAL):
        refuse("effort", "cannot be translated: Bedrock's lowest is low")
    for name in ("user", "safety_identifier", "metadata"):
        if getattr(conversation, name):
            refuse(name, _NOTHING_LIKE_IT)
    if conversation.service_tier not in _TIERS:
        refuse("service_tier", "cannot be translated: Bedrock has default, flex and priority")
    if conversation.output_format is not None and conversation.output_format.schema is None:
        refuse("output_format", "cannot be translated: Bedrock writes JSON by a schema only (json_schema)")


def _messages(conversation: Conversation) -> Work[list[dict[str, Any]]]:
    """The messages; neighbours of one role are one, since the roles have to alternate, and empty ones are refused."""
    messages: list[dict[str, Any]] = []
    for turn in conversation.turns:
        yield
        if turn.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        blocks = [_block(part, turn, conversation) for part in without_blanks(turn.parts)]
        if messages and not messages[-1]["content"]:
            messages.pop()
        if messages and messages[-1]["role"] == turn.role.value:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": turn.role.value, "content": blocks})
    return messages


def _block(part: ContentPart, turn: Turn, conversation: Conversation) -> dict[str, Any]:
    if isinstance(part, ToolCall):
        return {"toolUse": {"toolUseId": call_id(part.id), "name": part.name, "input": arguments_object(part)}}
    if isinstance(part, ToolResult):
        content = [
            {"text": one.text} if isinstance(one, Text) else _image(one, conversation)
            for one in without_blanks(part.parts)
        ]
        result: dict[str, Any] = {"toolUseId": call_id(part.call_id), "content": content}
        return {"toolResult": result | {"status": "error"} if part.is_error else result}
    if not isinstance(part, Image):
        return {"text": part.text}
    if turn.role is not Role.USER:
        raise Untranslatable(part.where, "cannot be translated: only the user's messages hold images")
    return _image(part, conversation)


def _image(image: Image, conversation: Conversation) -> dict[str, Any]:
    if image.detail is not None and not conversation.losses.drop(f"{image.where}.detail"):
        raise Untranslatable(image.where, "cannot be translated: Bedrock has no detail of an image")
    if image.url:
        raise Untranslatable(image.where, "cannot be translated: Bedrock fetches no URL, so send the image as data:")
    if image.media_type not in _FORMATS:
        raise Untranslatable(image.where, f"cannot be translated: Bedrock takes {', '.join(_FORMATS)}")
    return {"image": {"format": _FORMATS[image.media_type], "source": {"bytes": image.data}}}


def _tool_config(conversation: Conversation) -> dict[str, Any] | None:
    """Tools and their choice. There is no choice of none: tools that must not be called are not offered."""
    choice = conversation.tool_choice
    mode = "auto" if choice is None else choice.mode
    if mode == "none" or (mode == "auto" and not conversation.tools):
        if any(isinstance(part, ToolCall) for turn in conversation.turns for part in turn.parts):
            why = "cannot be translated: Bedrock has no choice of none, and wants tools beside their calls"
            raise Untranslatable(conversation.name_of("tool_choice" if mode == "none" else "tools"), why)
        return None
    if not conversation.tools:
        raise Untranslatable(conversation.name_of("tool_choice"), "names a tool, and no tool is offered")
    config: dict[str, Any] = {"tools": [_tool(tool) for tool in conversation.tools]}
    if mode == "required":
        config["toolChoice"] = {"any": {}}
    elif choice is not None and choice.name:
        config["toolChoice"] = {"tool": {"name": choice.name}}
    return config


def _tool(tool: Tool) -> dict[str, Any]:
    schema = {"json": _NO_PARAMETERS if tool.parameters is None else tool.parameters}
    described = {"name": tool.name, "description": tool.description or None, "inputSchema": schema}
    return {"toolSpec": without_none({**described, "strict": tool.is_strict})}


def _output_config(conversation: Conversation) -> dict[str, Any]:
    config: dict[str, Any] = {}
    effort, output = conversation.effort, conversation.output_format
    if effort not in (None, Effort.NONE):
        config["effort"] = "low" if effort is Effort.MINIMAL else effort.value
    if output is not None and output.schema is not None:
        schema = {"schema": dumps(output.schema).decode(), "name": output.name, "description": output.description}
        config["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": without_none(schema)}}
    return config
