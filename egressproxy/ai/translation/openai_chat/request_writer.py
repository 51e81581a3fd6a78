"""A conversation, written as a request for a chat completion (CompletionCreateParams of OpenAI's SDK)."""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.content import data_url, only_texts, result_parts, schema_fields, without_none
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Image,
    OutputFormat,
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

_MAX_STOP_SEQUENCES: Final = 4


def write_request(conversation: Conversation, model: str) -> Work[dict[str, Any]]:
    """The body of the request, in turns. Raises Untranslatable for what a chat completion cannot say."""
    if conversation.is_prefilled:
        raise Untranslatable(
            conversation.turns[-1].where, "cannot be translated: OpenAI does not continue a last message"
        )
    if len(conversation.stop) > _MAX_STOP_SEQUENCES:
        raise Untranslatable(conversation.name_of("stop"), f"OpenAI takes {_MAX_STOP_SEQUENCES} at most")
    body: dict[str, Any] = {"model": model, "messages": (yield from _messages(conversation.turns))}
    optional = {
        "max_completion_tokens": conversation.max_tokens,
        "temperature": conversation.temperature,
        "top_p": conversation.top_p,
        "stop": list(conversation.stop) or None,
        "tools": [_tool(tool) for tool in conversation.tools] or None,
        "tool_choice": _tool_choice(conversation.tool_choice),
        "parallel_tool_calls": conversation.has_parallel_calls if conversation.tools else None,
        "reasoning_effort": None if conversation.effort is None else conversation.effort.value,
        "verbosity": conversation.verbosity,
        "response_format": _response_format(conversation.output_format),
        "user": conversation.user,
        "safety_identifier": conversation.safety_identifier,
        "metadata": conversation.metadata,
        "service_tier": conversation.service_tier,
        "prompt_cache_key": conversation.prompt_cache_key,
    }
    body |= without_none(optional)
    if conversation.is_stream:  # the usage always: other APIs have it in every stream
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _messages(turns: tuple[Turn, ...]) -> Work[list[dict[str, Any]]]:
    messages: list[dict[str, Any]] = []
    shown: list[ContentPart] = []  # by tools; results of all calls stand right behind them, and hold text only
    for turn in turns:
        yield
        if shown and not (turn.role is Role.USER and turn.parts and type(turn.parts[0]) is ToolResult):
            _add_shown(messages, shown)
        if turn.role is Role.ASSISTANT:
            _add_assistant(messages, turn)
        elif turn.role is Role.USER:
            _add_user(messages, turn, shown)
        else:
            holder = f"a {turn.role.value} message"
            messages.append({"role": turn.role.value, "content": _content(only_texts(turn.parts, holder))})
    if shown:
        _add_shown(messages, shown)
    return messages


def _add_shown(messages: list[dict[str, Any]], shown: list[ContentPart]) -> None:
    messages.append({"role": "user", "content": _content(shown)})
    shown.clear()


def _add_user(messages: list[dict[str, Any]], turn: Turn, shown: list[ContentPart]) -> None:
    """Results of tools are messages of their own; what stands between them is one message of the user."""
    spoken: list[ContentPart] = []
    for part in turn.parts:
        if type(part) is ToolResult:
            if spoken:
                messages.append({"role": "user", "content": _content(spoken)})
                spoken = []
            result = result_parts(part)
            texts = [one for one in result if type(one) is Text]
            if len(texts) < len(result):
                shown += [
                    Text(f"What the tool showed ({part.call_id}):"),
                    *(one for one in result if type(one) is Image),
                ]
                texts = texts or [Text("It is shown in the message of the user behind this.")]
            messages.append({"role": "tool", "tool_call_id": part.call_id, "content": _content(texts) if texts else ""})
        else:
            spoken += [*shown, part]
            shown.clear()
    if spoken or not turn.parts:
        messages.append({"role": "user", "content": _content(spoken) if spoken else ""})


def _add_assistant(messages: list[dict[str, Any]], turn: Turn) -> None:
    """A message has text first, then calls of tools. Calls of a turn right behind belong to the same message."""
    before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    has_calls = before is not None and "tool_calls" in before
    spoken: list[ContentPart] = []
    calls: list[dict[str, Any]] = []
    for part in turn.parts:
        if type(part) is ToolCall:
            function = {"name": part.name, "arguments": part.arguments}
            calls.append({"id": part.id, "type": "function", "function": function})
        elif type(part) is Image or type(part) is ToolResult:
            raise Untranslatable(part.where, "cannot be translated: an assistant's message holds text and tool calls")
        elif calls or has_calls:
            raise Untranslatable(part.where, "cannot be translated: it stands behind a tool call of the same message")
        else:
            spoken.append(part)
    if before is None or spoken or not calls:
        before = {"role": "assistant"}
        messages.append(before)
        refused = [part.text for part in spoken if type(part) is RefusalText]
        if refused and len(refused) == len(spoken):
            before |= {"content": None, "refusal": "".join(refused)}
        else:
            before["content"] = _content(spoken) if spoken or not calls else None
    if calls:
        before.setdefault("tool_calls", []).extend(calls)


def _content(parts: list[Text] | list[ContentPart]) -> Any:
    if not parts:
        return ""
    if len(parts) == 1 and type(parts[0]) is Text:
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: ContentPart) -> dict[str, Any]:
    if type(part) is Text:
        return {"type": "text", "text": part.text}
    if type(part) is RefusalText:
        return {"type": "refusal", "refusal": part.text}
    if type(part) is Image:
        image = {"url": data_url(part)}
        return {"type": "image_url", "image_url": image if part.detail is None else image | {"detail": part.detail}}
    raise Untranslatable(part.where, "cannot be translated: a user's message holds text and images")


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": without_none({**function, "strict": tool.is_strict})}


def _tool_choice(choice: ToolChoice | None) -> Any:
    if choice is None or choice.mode != "named":
        return None if choice is None else choice.mode
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(output: OutputFormat | None) -> dict[str, Any] | None:
    if output is None:
        return None
    if output.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": schema_fields(output)}
