"""A request for a response (ResponseCreateParams of OpenAI's SDK), read as a conversation. What is left out and what is
refused stands in docs/translation.md.
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
    Image,
    OutputFormat,
    RefusalText,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from egressproxy.translation.errors import Untranslatable
from egressproxy.translation.json_object import JsonObject, objects

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


def read_request(value: Any) -> Work[Conversation]:
    """What this request asks for, in turns. Raises Untranslatable."""
    body = JsonObject(value)
    system: tuple[Turn, ...] = ()
    if (instructions := body.text("instructions")) is not None:
        system = (Turn(Role.SYSTEM, (Text(instructions, "instructions"),), "instructions"),)
    verbosity, output_format = _text_config(body.object("text"))
    model = body.needed_text("model")
    turns = yield from _turns(body.any("input"))
    conversation = Conversation(
        model=model,
        turns=(*system, *turns),
        max_tokens=body.whole_number("max_output_tokens", 1),
        temperature=body.number("temperature", 0, 2),
        top_p=body.number("top_p", 0, 1),
        tools=tuple(_tool(tool) for tool in objects(body.array("tools"), "tools")),
        tool_choice=tool_choice_of(body, _chosen_name),
        has_parallel_calls=body.flag("parallel_tool_calls"),
        effort=_effort(body.object("reasoning")),
        verbosity=verbosity,
        output_format=output_format,
        is_stream=body.flag("stream") or False,
        user=body.text("user"),
        safety_identifier=body.text("safety_identifier"),
        metadata=metadata_of(body),
        service_tier=service_tier_of(body),
        prompt_cache_key=body.text("prompt_cache_key"),
        names=_NAMES,
    )
    body.only("store", False, why=_AT_ONE_PROVIDER)
    for name in ("previous_response_id", "conversation", "prompt"):
        body.only(name, why=_AT_ONE_PROVIDER)
    body.only("background", False)
    body.only("truncation", "disabled")
    body.only("top_logprobs", 0)
    body.only("context_management", [])
    body.only("include", [], ["reasoning.encrypted_content"])
    body.without_meaning("prompt_cache_retention")
    leave_out_cache_options(body)
    if (options := body.object("stream_options")) is not None:
        options.without_meaning("include_obfuscation")
        options.end()
    body.end()
    return conversation


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


def _turns(value: Any) -> Work[list[Turn]]:
    if type(value) is str:
        return [Turn(Role.USER, (Text(value, "input"),), "input")]
    if type(value) is not list:
        raise Untranslatable("input", "is missing" if value is None else "must be a string or an array")
    turns = list[Turn]()
    for item in objects(value, "input"):
        turns.append(_item(item))
        yield
    return turns


def _item(item: JsonObject) -> Turn:
    kind = item.text("type") or "message"
    part: ContentPart
    if kind == "message":
        turn = _message(item)
    elif kind == "function_call":
        where = item.where("arguments")
        part = ToolCall(item.needed_text("call_id"), item.needed_text("name"), item.needed_text("arguments"), where)
        item.only("async", False)
        turn = Turn(Role.ASSISTANT, (part,), item.path)
    elif kind == "function_call_output":
        part = ToolResult(item.needed_text("call_id"), _output(item), where=item.where("output"))
        item.without_meaning("name")  # the call's, which its id names
        turn = Turn(Role.USER, (part,), item.path)
    else:
        why = "its content is of use to its provider only" if kind == "reasoning" else "only messages and functions are"
        item.refuse("type", f"cannot be translated: {kind[:80]!r}: {why}")
    item.only("caller", {"type": "direct"})
    item.only("namespace")
    item.word("status", _STATUSES)
    item.without_meaning("id")  # a name within the provider
    item.end()
    return turn


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
    return text_or_parts(item.any(name), item.where(name), lambda part: _part(part, kinds))


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
    part.without_meaning("prompt_cache_breakpoint")
    part.end()
    return read


def _tool(tool: JsonObject) -> Tool:
    if tool.text("type") != "function":
        tool.refuse("type", "cannot be translated: only functions of the client are")
    read = function_of(tool)
    tool.only("allowed_callers", ["direct"])
    tool.only("async", False)
    tool.only("defer_loading", False)
    tool.only("output_schema")
    tool.end()
    return read


def _chosen_name(choice: JsonObject) -> str:
    if choice.text("type") != "function":
        choice.refuse("type", "cannot be translated: only functions of the client are")
    return choice.needed_text("name")
