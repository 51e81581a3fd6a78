"""A request for a chat completion (CompletionCreateParams of OpenAI's SDK), read as a conversation. What is left out
and what is refused stands in docs/translation.md.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.model.work import Work
from egressproxy.translation.content import (
    EFFORTS,
    function_of,
    image_at,
    leave_out_cache_options,
    metadata_of,
    output_format_of,
    service_tier_of,
    text_or_parts,
    tool_choice_of,
)
from egressproxy.translation.conversation import (
    ContentPart,
    Conversation,
    Effort,
    RefusalText,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from egressproxy.translation.json_object import JsonObject, objects

_NAMES: Final = {
    "turns": "messages",
    "max_tokens": "max_completion_tokens",
    "has_parallel_calls": "parallel_tool_calls",
    "effort": "reasoning_effort",
    "output_format": "response_format",
    "output_name": "response_format.json_schema.name",
    "output_description": "response_format.json_schema.description",
}


def read_request(value: Any) -> Work[Conversation]:
    """What this request asks for, in turns. Raises Untranslatable."""
    body = JsonObject(value)
    names = dict(_NAMES)
    max_tokens, older = body.whole_number("max_completion_tokens", 1), body.whole_number("max_tokens", 1)
    if max_tokens is None:
        max_tokens = older
        names["max_tokens"] = "max_tokens"
    elif older not in (None, max_tokens):
        body.refuse("max_tokens", "contradicts max_completion_tokens")
    options = body.object("stream_options")
    effort = body.word("reasoning_effort", EFFORTS)
    model = body.needed_text("model")
    turns = list[Turn]()
    for message in objects(body.array("messages"), "messages"):
        turns.append(_turn(message))
        yield
    conversation = Conversation(
        model=model,
        turns=tuple(turns),
        max_tokens=max_tokens,
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        stop=_stop(body),
        tools=tuple(_tool(tool) for tool in objects(body.array("tools"), "tools")),
        tool_choice=tool_choice_of(body, _chosen_name),
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
        names=names,
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
    body.without_meaning("prompt_cache_retention")
    leave_out_cache_options(body)
    body.end()
    return conversation


def _wants_usage(options: JsonObject | None) -> bool:
    if options is None:
        return False
    wanted = options.flag("include_usage")
    options.without_meaning("include_obfuscation")
    options.end()
    return wanted or False


def _stop(body: JsonObject) -> tuple[str, ...]:
    value = body.any("stop")
    if value is None or type(value) is str:
        return () if value is None else (value,)
    if type(value) is not list or not all(type(one) is str for one in value):
        body.refuse("stop", "must be a string or an array of strings")
    return tuple(value)


def _turn(message: JsonObject) -> Turn:
    role = message.needed("role", message.word("role", ("system", "developer", "user", "assistant", "tool")))
    message.only("name", why="cannot be translated: the other APIs have no names of participants")
    parts: tuple[ContentPart, ...]
    if role == "tool":
        call_id = message.needed_text("tool_call_id")
        texts = tuple(part for part in _content(message) if type(part) is Text)
        parts = (ToolResult(call_id, texts, where=message.where("content")),)
    elif role == "assistant":
        parts = _assistant_parts(message)
    else:
        parts = tuple(_content(message, may_have_images=role == "user"))
    message.end()
    return Turn(Role.USER if role == "tool" else Role(role), parts, message.path)


def _assistant_parts(message: JsonObject) -> tuple[ContentPart, ...]:
    message.only("audio")
    message.only("function_call", why="cannot be translated: write tool_calls instead")
    message.only("annotations", [])
    calls = [_tool_call(call) for call in objects(message.array("tool_calls"), message.where("tool_calls"))]
    refusal = message.text("refusal")
    parts: list[ContentPart] = list(_content(message, may_refuse=True, is_optional=bool(calls) or refusal is not None))
    if refusal is not None:
        parts.append(RefusalText(refusal, message.where("refusal")))
    if calls and parts == [Text("")]:
        parts = []
    return (*parts, *calls)


def _content(
    message: JsonObject, may_have_images: bool = False, may_refuse: bool = False, is_optional: bool = False
) -> list[ContentPart]:
    value = message.any("content")
    if value is None and is_optional:
        return []
    return text_or_parts(value, message.where("content"), lambda part: _part(part, may_have_images, may_refuse))


def _part(part: JsonObject, may_have_images: bool, may_refuse: bool) -> ContentPart:
    kind = part.needed_text("type")
    read: ContentPart
    if kind == "text":
        read = Text(part.needed_text("text"), part.path)
    elif kind == "image_url" and may_have_images:
        read = _image(part)
    elif kind == "refusal" and may_refuse:
        read = RefusalText(part.needed_text("refusal"), part.path)
    else:
        part.refuse(kind[:80], "cannot be translated: only text, and images of the user, are")
    part.without_meaning("prompt_cache_breakpoint")
    part.end()
    return read


def _image(part: JsonObject) -> ContentPart:
    image = part.needed("image_url", part.object("image_url"))
    detail = image.word("detail", ("auto", "low", "high", "original"))
    read = image_at(image.needed_text("url"), None if detail == "auto" else detail, image.path)
    image.end()
    return read


def _tool_call(call: JsonObject) -> ToolCall:
    call.word("type", ("function",))
    function = call.needed("function", call.object("function"))
    where = function.where("arguments")
    read = ToolCall(call.needed_text("id"), function.needed_text("name"), function.needed_text("arguments"), where)
    function.end()
    call.end()
    return read


def _tool(tool: JsonObject) -> Tool:
    tool.word("type", ("function",))
    function = tool.needed("function", tool.object("function"))
    read = function_of(function)
    function.end()
    tool.end()
    return read


def _chosen_name(choice: JsonObject) -> str:
    choice.word("type", ("function",))
    function = choice.needed("function", choice.object("function"))
    name = function.needed_text("name")
    function.end()
    return name
