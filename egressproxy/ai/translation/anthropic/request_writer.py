"""A conversation, written as a request for a message. Source: MessageCreateParams of Anthropic's SDK, and `temperature`
and `top_p` of the version 2023-06-01 of its API.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.anthropic.request_reader import IMAGE_TYPES
from egressproxy.ai.translation.content import (
    arguments_object,
    call_id,
    check_arguments,
    only_texts,
    without_blanks,
    without_none,
)
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Effort,
    Image,
    RefusalText,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.tuning import Losses
from egressproxy.model.work import Work

_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
#: What Anthropic's `max_tokens` becomes when an OpenAI request has no limit: every current model allows it.
DEFAULT_MAX_TOKENS: Final = 8192
_NOTHING_LIKE_IT: Final = "cannot be translated: Anthropic has nothing like it"


def write_request(conversation: Conversation, model: str) -> Work[dict[str, Any]]:
    """The body of the request, as cooperative work. Raises Untranslatable for required content without equivalent."""
    _drop_or_refuse(conversation)
    system, messages = yield from _turns(conversation)
    body: dict[str, Any] = {"model": model, "max_tokens": conversation.max_tokens or DEFAULT_MAX_TOKENS}
    tier = "standard_only" if conversation.service_tier == "default" else None
    user = conversation.safety_identifier or conversation.user
    optional = {
        "system": system,
        "messages": messages,
        "temperature": None if conversation.temperature is None else min(conversation.temperature, 1),
        "top_p": conversation.top_p,
        "stop_sequences": list(conversation.stop) or None,
        "tools": [_tool(tool) for tool in conversation.tools] or None,
        "tool_choice": _tool_choice(conversation),
        "thinking": {"type": "disabled"} if conversation.effort is Effort.NONE else None,
        "output_config": _output_config(conversation),
        "metadata": None if user is None else {"user_id": user},
        "service_tier": tier,
        "stream": conversation.is_stream or None,
    }
    return body | without_none(optional)


def _drop_or_refuse(conversation: Conversation) -> None:
    """Drop settings that Anthropic does not have, if allowed. Raises Untranslatable for others, and for arguments that
    take too long to read.
    """
    check_arguments(conversation)
    refuse = conversation.drop_or_refuse
    if conversation.temperature is not None and conversation.temperature > 1:
        refuse("temperature", "must not be above 1: Anthropic's scale ends there")
    if conversation.verbosity not in (None, "medium"):
        refuse("verbosity", _NOTHING_LIKE_IT)
    if conversation.effort is Effort.MINIMAL:
        refuse("effort", "cannot be translated: Anthropic has low, medium, high, xhigh and max")
    if conversation.metadata:
        refuse("metadata", _NOTHING_LIKE_IT)
    if conversation.service_tier not in (None, "default"):
        refuse("service_tier", "cannot be translated: Anthropic has the standard tier, which is default, and auto")
    users = {conversation.user, conversation.safety_identifier} - {None}
    if len(users) > 1:
        refuse("user", "differs from safety_identifier: Anthropic has one field for both")
    if (output := conversation.output_format) is not None:
        if output.schema is None:
            refuse("output_format", "cannot be translated: Anthropic writes JSON by a schema only (json_schema)")
        if output.description is not None:
            refuse("output_description", _NOTHING_LIKE_IT)


def _turns(conversation: Conversation) -> Work[tuple[Any, list[dict[str, Any]]]]:
    """The system prompt, and the messages. Neighbours of one role are one message, as Anthropic itself reads them."""
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for turn in conversation.turns:
        yield
        if turn.role in (Role.SYSTEM, Role.DEVELOPER):
            blocks = [_text(part) for part in without_blanks(only_texts(turn.parts, "a system prompt"))]
            if not (messages and blocks):
                system += blocks
                continue
            role = "system"
        else:
            role = turn.role.value
            blocks = [_block(part, turn, conversation.losses) for part in without_blanks(turn.parts)]
        if messages and not messages[-1]["content"]:
            messages.pop()
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    if not messages:
        raise Untranslatable(conversation.name_of("turns"), "has no message of the user, which Anthropic needs")
    if messages[-1]["role"] == "assistant" and not conversation.is_prefilled:
        why = "cannot be translated: it is the assistant's and the last one, which Anthropic would go on with"
        raise Untranslatable(conversation.turns[-1].where, why)
    for message in messages:
        message["content"] = _shortest(message["content"])
    return _shortest(system) if system else None, messages


def _shortest(blocks: list[dict[str, Any]]) -> Any:
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks


def _text(part: Text) -> dict[str, Any]:
    return {"type": "text", "text": part.text}


def _block(part: ContentPart, turn: Turn, losses: Losses) -> dict[str, Any]:
    if type(part) is Text:
        return _text(part)
    if type(part) is ToolResult:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id(part.call_id)}
        content = [_text(one) if type(one) is Text else _image(one, losses) for one in without_blanks(part.parts)]
        if content:
            block["content"] = _shortest(content)
        return block
    if type(part) is ToolCall:
        return {"type": "tool_use", "id": call_id(part.id), "name": part.name, "input": arguments_object(part)}
    if type(part) is RefusalText:  # text of the model
        return {"type": "text", "text": part.text}
    if turn.role is not Role.USER:
        raise Untranslatable(part.where, "cannot be translated: only the user's messages hold images")
    return _image(part, losses)


def _image(part: ContentPart, losses: Losses) -> dict[str, Any]:
    if type(part) is not Image:
        raise Untranslatable(part.where, "cannot be translated: only texts and images are")
    if part.detail is not None and not losses.drop(f"{part.where}.detail"):
        raise Untranslatable(part.where, f"cannot be translated: Anthropic has no detail {part.detail!r}, only auto")
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.media_type not in IMAGE_TYPES:
        raise Untranslatable(part.where, f"cannot be translated: Anthropic takes {', '.join(IMAGE_TYPES)}")
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


def _tool(tool: Tool) -> dict[str, Any]:
    schema = _NO_PARAMETERS if tool.parameters is None else tool.parameters
    written = {"name": tool.name, "description": tool.description, "input_schema": schema, "strict": tool.is_strict}
    return without_none(written)


def _tool_choice(conversation: Conversation) -> dict[str, Any] | None:
    choice, parallel = conversation.tool_choice, conversation.has_parallel_calls
    if not conversation.tools and (choice is None or choice.mode in ("auto", "none")):
        return None
    if choice is None and parallel is not False:
        return None
    mode = "auto" if choice is None else choice.mode
    written: dict[str, Any] = {"type": {"required": "any", "named": "tool"}.get(mode, mode)}
    if choice is not None and choice.name:
        written["name"] = choice.name
    if parallel is not None and mode != "none":
        written["disable_parallel_tool_use"] = not parallel
    return written


def _output_config(conversation: Conversation) -> dict[str, Any] | None:
    config: dict[str, Any] = {}
    if conversation.effort not in (None, Effort.NONE):
        config["effort"] = "low" if conversation.effort is Effort.MINIMAL else conversation.effort.value
    if conversation.output_format is not None:
        config["format"] = {"type": "json_schema", "schema": conversation.output_format.schema}
    return config or None
