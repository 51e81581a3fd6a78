"""A request for a response (ResponseCreateParams of OpenAI's SDK), read as a conversation. What is left out and what is
refused stands in docs/translation.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
    leave_out_callers,
    metadata_of,
    output_format_of,
    service_tier_of,
    text_or_parts,
    tool_choice_of,
    tools_of_client,
)
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Effort,
    Image,
    OutputFormat,
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

_NAMES: Final = {
    "turns": "input",
    "max_tokens": "max_output_tokens",
    "has_parallel_calls": "parallel_tool_calls",
    "effort": "reasoning.effort",
    "output_format": "text.format",
    "output_description": "text.format.description",
    "verbosity": "text.verbosity",
}
_AT_ONE_PROVIDER: Final = "cannot be translated: what it names is stored at one provider"
_STATUSES: Final = ("completed", "incomplete", "in_progress")


@dataclass(slots=True, repr=False)
class _Settings:
    """Settings of the request, or those of the last item of its input that has them instead."""

    effort: Effort | None
    output_format: OutputFormat | None
    tools: list[JsonObject]  # added by items to those of the request


def read_request(value: Any, losses: Losses) -> Work[Conversation]:
    """The conversation in this request, as cooperative work. Raises Untranslatable for required fields."""
    body = JsonObject(value, losses)
    system: tuple[Turn, ...] = ()
    if (instructions := body.text("instructions")) is not None:
        system = (Turn(Role.SYSTEM, (Text(instructions, "instructions"),), "instructions"),)
    choice = tool_choice_of(body, _chosen_name)
    verbosity, output_format = _text_config(body.object("text"))
    model = body.needed_text("model")
    settings = _Settings(_effort(body.object("reasoning")), output_format, [])
    turns = yield from _turns(body, settings)
    tools = _tools(body, settings.tools)
    conversation = Conversation(
        model=model,
        turns=(*system, *turns),
        max_tokens=body.limit("max_output_tokens"),
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        tools=allowed_of([tool for tool, _ in tools], choice),
        tool_choice=choice,
        has_parallel_calls=body.flag("parallel_tool_calls"),
        effort=settings.effort,
        verbosity=verbosity,
        output_format=settings.output_format,
        is_stream=body.flag("stream") or False,
        user=body.text("user"),
        safety_identifier=body.text("safety_identifier"),
        metadata=metadata_of(body),
        service_tier=service_tier_of(body),
        prompt_cache_key=body.text("prompt_cache_key"),
        forms={tool.name: form for tool, form in tools if form is not None},
        names=_NAMES,
        losses=losses,
    )
    body.only("store", False, why=_AT_ONE_PROVIDER)
    for name in ("previous_response_id", "conversation", "prompt"):
        body.only(name, why=_AT_ONE_PROVIDER)
    body.only("background", False)
    body.only("truncation", "disabled")
    body.only("top_logprobs", 0)
    body.only("context_management", [])
    _leave_out_include(body)
    leave_out_cache_options(body)
    if (options := body.object("stream_options")) is not None:
        options.without_meaning("include_obfuscation", "include_usage")  # it is always told
        options.end()
    body.end()
    return conversation


def _leave_out_include(body: JsonObject) -> None:
    """What else the answer is to tell: nothing that other APIs have. Probabilities are part of the answer."""
    included = body.peek("include")
    if type(included) is list and any("logprobs" in str(one) for one in included):
        body.refuse("include", "cannot be translated: the other API does not tell logprobs here")
    body.only("include", [], ["reasoning.encrypted_content"])


def _effort(reasoning: JsonObject | None) -> Effort | None:
    if reasoning is None:
        return None
    effort = reasoning.word("effort", EFFORTS)
    for name in ("summary", "generate_summary"):
        reasoning.only(name, why="cannot be translated: the other APIs do not tell how the model reasons")
    reasoning.only("context", "auto")
    reasoning.only("mode", "standard")
    reasoning.end()
    return None if effort is None else Effort(effort)


def _text_config(config: JsonObject | None) -> tuple[str | None, OutputFormat | None]:
    if config is None:
        return None, None
    verbosity = config.word("verbosity", ("low", "medium", "high"))
    output_format = output_format_of(config.object("format"))
    config.end()
    return verbosity, output_format


def _turns(body: JsonObject, settings: _Settings) -> Work[list[Turn]]:
    value = body.any("input")
    if type(value) is str:
        return [Turn(Role.USER, (Text(value, "input"),), "input")]
    if type(value) is not list:
        body.refuse("input", "is missing" if value is None else "must be a string or an array")
    turns = list[Turn]()
    for item in body.elements(value, "input"):
        if (turn := _item(item, settings)) is not None:
            turns.append(turn)
        yield
    return turns


def _item(item: JsonObject, settings: _Settings) -> Turn | None:
    kind = item.text("type") or "message"
    part: ContentPart
    turn: Turn | None = None
    if kind == "message":
        turn = _message(item)
    elif kind in ("function_call", "custom_tool_call"):
        turn = Turn(Role.ASSISTANT, (_call(item, kind),), item.path)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        part = ToolResult(item.needed_text("call_id"), _output(item), where=item.where("output"))
        item.without_meaning("name")  # of the call, which the id identifies
        turn = Turn(Role.USER, (part,), item.path)
    elif kind == "additional_tools":
        item.word("role", ("developer",))
        settings.tools += item.each("tools")
    elif kind == "configuration_update":
        settings.effort = _effort(item.object("reasoning")) or settings.effort
        if (text := item.object("text")) is not None:
            settings.output_format = output_format_of(text.object("format"))
            text.end()
    elif kind in ("reasoning", "web_search_call") and item.losses.drop(item.where(kind)):
        return None
    else:
        why = "its content is of use to its provider only" if kind == "reasoning" else "only messages and functions are"
        item.refuse("type", f"cannot be translated: {kind[:80]!r}: {why}")
    item.only("caller", {"type": "direct"})
    item.only("namespace")
    item.word("status", _STATUSES)
    item.without_meaning("id")  # a name within the provider
    item.end()
    return turn


def _call(item: JsonObject, kind: str) -> ToolCall:
    call_id, name, namespace = item.needed_text("call_id"), item.needed_text("name"), item.text("namespace")
    if kind == "custom_tool_call":
        arguments, where = custom_call_arguments(item.needed_text("input")), item.where("input")
    else:
        arguments, where = arguments_of(item), item.where("arguments")
    item.only("async", False)
    return ToolCall(call_id, _name_in(namespace, name), arguments, where)


def _name_in(namespace: str | None, name: str) -> str:
    """The name of the function that stands for one of a namespace, which other APIs do not have."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


def _message(item: JsonObject) -> Turn:
    role = item.needed("role", item.word("role", ("user", "assistant", "system", "developer")))
    item.without_meaning("phase")
    kinds = {"user": ("input_text", "input_image"), "assistant": ("output_text", "refusal", "input_text")}
    parts = tuple(_content(item, "content", kinds.get(role, ("input_text",))))
    return Turn(Role(role), parts, item.path)


def _output(item: JsonObject) -> tuple[Text | Image, ...]:
    parts = _content(item, "output", ("input_text", "input_image"))
    return tuple(part for part in parts if type(part) is Text or type(part) is Image)


def _content(item: JsonObject, name: str, kinds: tuple[str, ...]) -> list[ContentPart]:
    return text_or_parts(item, name, lambda part: _part(part, kinds))


def _part(part: JsonObject, kinds: tuple[str, ...]) -> ContentPart:
    kind = part.needed_text("type")
    if kind not in kinds:
        part.refuse("type", f"cannot be translated: {kind[:80]!r}: only {', '.join(kinds)} can be here")
    read: ContentPart
    if kind == "refusal":
        read = RefusalText(part.needed_text("refusal"), part.path)
    elif kind == "input_image":
        part.only("file_id", why=_AT_ONE_PROVIDER)
        detail = part.word("detail", ("auto", "low", "high", "original"))
        url = part.needed_text("image_url")
        read = image_at(url, None if detail == "auto" else detail, part.path)
    else:
        read = Text(part.needed_text("text"), part.path)
        part.only("annotations", [])
        part.only("logprobs", [])
    part.end()
    return read


def _tools(body: JsonObject, added: list[JsonObject]) -> list[tuple[Tool, ToolForm | None]]:
    """The tools of the client. Of two with one name, the one that an item has added counts."""
    offered = [*body.each("tools"), *added]
    found = tools_of_client(offered, _tools_of_type, "functions and custom tools of the client are")
    return list({tool.name: (tool, form) for tool, form in found}.values()) if added else found


def _tools_of_type(tool: JsonObject, kind: str | None) -> Iterable[tuple[Tool, ToolForm | None]] | None:
    kind = kind or "function"
    if kind == "namespace":
        return _namespace(tool)
    return [_tool(tool, kind)] if kind in ("function", "custom") else None


def _namespace(namespace: JsonObject) -> Iterator[tuple[Tool, ToolForm]]:
    name = namespace.needed_text("name")
    namespace.text("description")
    for tool in namespace.each("tools"):
        kind = tool.word("type", ("function", "custom")) or "function"
        read, _ = _tool(tool, kind)
        yield replace(read, name=_name_in(name, read.name)), ToolForm(read.name, name, kind == "custom")
    namespace.end()


def _tool(tool: JsonObject, kind: str) -> tuple[Tool, ToolForm | None]:
    read = custom_tool_of(tool) if kind == "custom" else function_of(tool)
    leave_out_callers(tool)
    tool.only("async", False)
    tool.only("defer_loading", False)
    tool.only("output_schema")
    tool.end()
    return read, ToolForm(read.name, is_custom=True) if kind == "custom" else None


def _chosen_name(choice: JsonObject) -> str:
    if choice.text("type") not in ("function", "custom"):
        choice.refuse("type", "cannot be translated: only functions and custom tools of the client are")
    return _name_in(choice.text("namespace"), choice.needed_text("name"))
