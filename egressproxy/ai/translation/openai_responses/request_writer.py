"""A conversation, written as a request for a response (ResponseCreateParams of OpenAI's SDK). It is not stored at
OpenAI, as in the other APIs nothing is.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.content import data_url, only_texts, result_parts, schema_fields, without_none
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Image,
    RefusalText,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.model.work import Work

_NO_PARAMETERS: Final = {"type": "object", "properties": {}}


def write_request(conversation: Conversation, model: str) -> Work[dict[str, Any]]:
    """The body of the request, in turns. Raises Untranslatable for what a request for a response cannot say."""
    if conversation.is_prefilled:
        raise Untranslatable(
            conversation.turns[-1].where, "cannot be translated: OpenAI does not continue a last message"
        )
    if conversation.stop:
        raise Untranslatable(
            conversation.name_of("stop"), "cannot be translated: OpenAI responses have nothing like it"
        )
    instructions, turns = _instructions(conversation.turns)
    body: dict[str, Any] = {"model": model, "store": False}
    items = list[dict[str, Any]]()
    for turn in turns:
        items += _items(turn)
        yield
    optional = {
        "instructions": instructions,
        "input": items,
        "max_output_tokens": conversation.max_tokens,
        "temperature": conversation.temperature,
        "top_p": conversation.top_p,
        "tools": [_tool(tool) for tool in conversation.tools] or None,
        "tool_choice": _tool_choice(conversation.tool_choice),
        "parallel_tool_calls": conversation.has_parallel_calls if conversation.tools else None,
        "reasoning": None if conversation.effort is None else {"effort": conversation.effort.value},
        "text": _text_config(conversation),
        "user": conversation.user,
        "safety_identifier": conversation.safety_identifier,
        "metadata": conversation.metadata,
        "service_tier": conversation.service_tier,
        "prompt_cache_key": conversation.prompt_cache_key,
        "stream": conversation.is_stream or None,
    }
    return body | without_none(optional)


def _instructions(turns: tuple[Turn, ...]) -> tuple[str | None, tuple[Turn, ...]]:
    """A system prompt that is one text, and the turns behind it."""
    if turns and turns[0].role is Role.SYSTEM and len(turns[0].parts) == 1:
        (first,) = only_texts(turns[0].parts, "a system prompt")
        return first.text, turns[1:]
    return None, turns


def _items(turn: Turn) -> list[dict[str, Any]]:
    """Calls of tools and their results are items of their own; what stands between them is one message."""
    items: list[dict[str, Any]] = []
    spoken: list[dict[str, Any]] = []

    def close() -> None:
        if spoken:
            items.append({"type": "message", "role": turn.role.value, "content": _shortest(spoken)})
            spoken.clear()

    for part in turn.parts:
        if type(part) is ToolCall:
            close()
            items.append({"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments})
        elif type(part) is ToolResult:
            close()
            output = [_input_part(one) for one in result_parts(part)]
            items.append(
                {"type": "function_call_output", "call_id": part.call_id, "output": _shortest(output) if output else ""}
            )
        elif turn.role is not Role.ASSISTANT:
            spoken.append(_input_part(part))
        elif type(part) is Text:  # one by one: parts of an assistant's message have ids, which nobody knows here
            close()
            items.append({"type": "message", "role": "assistant", "content": part.text})
        else:
            spoken.append(_refusal(part))
    close()
    return items or [{"type": "message", "role": turn.role.value, "content": ""}]


def _shortest(content: list[dict[str, Any]]) -> Any:
    return content[0]["text"] if len(content) == 1 and "text" in content[0] else list(content)


def _input_part(part: ContentPart) -> dict[str, Any]:
    if type(part) is Text:
        return {"type": "input_text", "text": part.text}
    if type(part) is Image:
        return {"type": "input_image", "image_url": data_url(part), "detail": part.detail or "auto"}
    raise Untranslatable(part.where, "cannot be translated: only texts and images can be here")


def _refusal(part: ContentPart) -> dict[str, Any]:
    if type(part) is RefusalText:
        return {"type": "refusal", "refusal": part.text}
    raise Untranslatable(part.where, "cannot be translated: an assistant's message holds text and tool calls")


def _tool(tool: Tool) -> dict[str, Any]:
    """A function is strict here unless it says that it is not; in the other APIs it is the other way round."""
    function = {"type": "function", "name": tool.name, "strict": tool.is_strict or False}
    parameters = _NO_PARAMETERS if tool.parameters is None else tool.parameters
    return without_none({**function, "description": tool.description, "parameters": parameters})


def _tool_choice(choice: ToolChoice | None) -> Any:
    if choice is None or choice.mode != "named":
        return None if choice is None else choice.mode
    return {"type": "function", "name": choice.name}


def _text_config(conversation: Conversation) -> dict[str, Any] | None:
    output, written = conversation.output_format, None
    if output is not None:
        has_schema = output.schema is not None
        written = {"type": "json_schema", **schema_fields(output)} if has_schema else {"type": "json_object"}
    return without_none({"verbosity": conversation.verbosity, "format": written}) or None
