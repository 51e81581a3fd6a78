"""A request for a chat completion (CompletionCreateParams of OpenAI's SDK), read as a conversation. What is left out
and what is refused stands in docs/translation.md.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.content import (
    EFFORTS,
    allowed_of,
    arguments_of,
    custom_call_arguments,
    custom_tool_of,
    function_of,
    image_at,
    leave_out_cache_options,
    metadata_of,
    output_format_of,
    service_tier_of,
    text_or_parts,
    tool_choice_of,
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
    ToolForm,
    ToolResult,
    Turn,
)
from egressproxy.ai.translation.json_object import JsonObject
from egressproxy.ai.translation.tuning import Losses
from egressproxy.model.work import Work

#: Parts of an assistant's message in which other servers tell how the model has thought.
_THOUGHTS: Final = ("thinking", "reasoning")
#: Members of an assistant's message that tell the same.
_REASONING: Final = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")
_NAMES: Final = {
    "turns": "messages",
    "max_tokens": "max_completion_tokens",
    "has_parallel_calls": "parallel_tool_calls",
    "effort": "reasoning_effort",
    "output_format": "response_format",
    "output_name": "response_format.json_schema.name",
    "output_description": "response_format.json_schema.description",
}


def read_request(value: Any, losses: Losses) -> Work[Conversation]:
    """The conversation in this request, as cooperative work. Raises Untranslatable for required fields."""
    body = JsonObject(value, losses)
    names = dict(_NAMES)
    max_tokens, older = body.limit("max_completion_tokens"), body.limit("max_tokens")
    if max_tokens is None:
        max_tokens = older
        names["max_tokens"] = "max_tokens"
    elif older not in (None, max_tokens):
        body.refuse("max_tokens", "contradicts max_completion_tokens")
    options = body.object("stream_options")
    effort = body.word("reasoning_effort", EFFORTS)
    choice = tool_choice_of(body, _chosen_name, "allowed_tools")
    tools = [_tool(tool) for tool in body.each("tools")]
    model = body.needed_text("model")
    turns = list[Turn]()
    for message in body.each("messages"):
        if (turn := _turn(message)) is not None:
            turns.append(turn)
        yield
    conversation = Conversation(
        model=model,
        turns=tuple(turns),
        max_tokens=max_tokens,
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        stop=_stop(body),
        tools=allowed_of([tool for tool, _ in tools], choice),
        tool_choice=choice,
        has_parallel_calls=body.flag("parallel_tool_calls"),
        effort=None if effort is None else Effort(effort),
        verbosity=body.word("verbosity", ("low", "medium", "high")),
        output_format=output_format_of(body.object("response_format"), "json_schema"),
        is_stream=body.flag("stream") or False,
        wants_usage=_wants_usage(options),
        user=body.text("user"),
        safety_identifier=body.text("safety_identifier"),
        metadata=metadata_of(body),
        service_tier=service_tier_of(body),
        prompt_cache_key=body.text("prompt_cache_key"),
        forms={tool.name: form for tool, form in tools if form is not None},
        names=names,
        losses=losses,
    )
    body.only("n", 1, why="cannot be translated: the other APIs give one answer")
    body.only("store", False, why="cannot be translated: the other provider would not store the answer for this API")
    body.only("logprobs", False)
    body.only("top_logprobs", 0)
    body.only("frequency_penalty", 0, 0.0)
    body.only("presence_penalty", 0, 0.0)
    body.only("logit_bias", {})
    body.only("modalities", ["text"])
    body.only("functions", [], why="cannot be translated: write tools instead")
    body.only("function_call", why="cannot be translated: write tool_choice instead")
    leave_out_cache_options(body)
    body.end()
    return conversation


def _wants_usage(options: JsonObject | None) -> bool:
    if options is None:
        return False
    flag = options.flag("include_usage")
    options.without_meaning("include_obfuscation")
    options.end()
    return flag or False


def _stop(body: JsonObject) -> tuple[str, ...]:
    value = body.any("stop")
    if value is None or type(value) is str:
        return () if value is None else (value,)
    if type(value) is not list or not all(type(one) is str for one in value):
        body.refuse("stop", "must be a string or an array of strings")
    return tuple(value)


def _turn(message: JsonObject) -> Turn | None:
    """The turn of a message; None for an assistant's message with reasoning alone."""
    role = message.needed("role", message.word("role", ("system", "developer", "user", "assistant", "tool")))
    if role == "tool":
        message.without_meaning("name")  # of the call, which the id identifies
    message.only("name", why="cannot be translated: the other APIs have no names of participants")
    parts: tuple[ContentPart, ...]
    if role == "tool":
        call_id = message.needed_text("tool_call_id")
        content = _content(message, may_have_images=True)
        shown = tuple(part for part in content if type(part) is Text or type(part) is Image)
        parts = (ToolResult(call_id, shown, where=message.where("content")),)
    elif role == "assistant":
        parts = _assistant_parts(message)
    else:
        parts = tuple(_content(message, may_have_images=role == "user"))
    message.end()
    if not parts and role == "assistant":
        return None
    return Turn(Role.USER if role == "tool" else Role(role), parts, message.path)


def _assistant_parts(message: JsonObject) -> tuple[ContentPart, ...]:
    message.only("audio")
    message.only("function_call", why="cannot be translated: write tool_calls instead")
    message.only("annotations", [])
    calls = [_tool_call(call) for call in message.each("tool_calls")]
    refusal = message.text("refusal")
    is_optional = bool(calls) or refusal is not None
    if not is_optional and message.peek("content") is None:
        is_optional = any(message.peek(name) is not None for name in _REASONING)
    parts: list[ContentPart] = _content(message, may_refuse=True, is_optional=is_optional)
    if refusal is not None:
        parts.append(RefusalText(refusal, message.where("refusal")))
    if calls and parts == [Text("")]:
        parts = []
    return (*parts, *calls)


def _content(
    message: JsonObject, may_have_images: bool = False, may_refuse: bool = False, is_optional: bool = False
) -> list[ContentPart]:
    if message.peek("content") is None and is_optional:
        return []
    return text_or_parts(message, "content", lambda part: _part(part, may_have_images, may_refuse))


def _part(part: JsonObject, may_have_images: bool, may_refuse: bool) -> ContentPart | None:
    kind = part.needed_text("type")
    read: ContentPart
    if kind == "text":
        read = Text(part.needed_text("text"), part.path)
    elif kind == "image_url" and may_have_images:
        read = _image(part)
    elif kind == "refusal" and may_refuse:
        read = RefusalText(part.needed_text("refusal"), part.path)
    elif may_refuse and kind in _THOUGHTS and part.losses.drop(part.where(kind)):
        return None
    else:
        part.refuse(kind[:80], "cannot be translated: only text, and images of the user and of tools, are")
    part.end()
    return read


def _image(part: JsonObject) -> ContentPart:
    if type(part.peek("image_url")) is str:  # as in responses; servers take it, too
        return image_at(part.needed_text("image_url"), None, part.path)
    image = part.needed("image_url", part.object("image_url"))
    detail = image.word("detail", ("auto", "low", "high", "original"))
    read = image_at(image.needed_text("url"), None if detail == "auto" else detail, image.path)
    image.end()
    return read


def _tool_call(call: JsonObject) -> ToolCall:
    kind = call.word("type", ("function", "custom")) or "function"
    call.without_meaning("index")  # of a stream that the client has put together
    inner = call.needed(kind, call.object(kind))
    name = inner.needed_text("name")
    if kind == "custom":
        where = inner.where("input")
        read = ToolCall(call.needed_text("id"), name, custom_call_arguments(inner.needed_text("input")), where)
    else:
        where = inner.where("arguments")
        read = ToolCall(call.needed_text("id"), name, arguments_of(inner), where)
    inner.end()
    call.end()
    return read


def _tool(tool: JsonObject) -> tuple[Tool, ToolForm | None]:
    kind = tool.word("type", ("function", "custom")) or "function"
    inner = tool.needed(kind, tool.object(kind))
    read = custom_tool_of(inner, "grammar") if kind == "custom" else function_of(inner)
    inner.end()
    tool.end()
    return read, ToolForm(read.name, is_custom=True) if kind == "custom" else None


def _chosen_name(choice: JsonObject) -> str:
    kind = choice.word("type", ("function", "custom")) or "function"
    inner = choice.needed(kind, choice.object(kind))
    name = inner.needed_text("name")
    inner.end()
    return name
