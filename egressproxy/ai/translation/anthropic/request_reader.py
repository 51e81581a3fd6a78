"""A request for a message, read as a conversation (what is left out or refused: docs/translation.md). Source:
MessageCreateParams of Anthropic's SDK, and `temperature`, `top_p`, `top_k` of its API's version 2023-06-01.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.translation.content import leave_out_callers, text_or_parts, tools_of_client
from egressproxy.ai.translation.conversation import (
    ContentPart,
    Conversation,
    Effort,
    Image,
    OutputFormat,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from egressproxy.ai.translation.json_object import JsonObject
from egressproxy.ai.translation.tuning import Losses
from egressproxy.model.strict_json import dumps
from egressproxy.model.work import Work

IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NAMES: Final = {
    "turns": "messages",
    "stop": "stop_sequences",
    "effort": "output_config.effort",
    "output_format": "output_config.format",
    "has_parallel_calls": "tool_choice.disable_parallel_tool_use",
    "user": "metadata.user_id",
}
#: Blocks of the assistant that are of use to Anthropic only: signed, encrypted, or calls of its own tools.
_OF_PROVIDER: Final = (
    "thinking", "redacted_thinking", "server_tool_use", "tool_search_tool_result", "web_search_tool_result",
)  # fmt: skip
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_MODES: Final = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


def read_request(value: Any, losses: Losses) -> Work[Conversation]:
    """What this request asks for, in turns. Raises Untranslatable for what may not be left out."""
    body = JsonObject(value, losses)
    choice, has_parallel_calls = _tool_choice(body.object("tool_choice"))
    names = dict(_NAMES)
    effort, output_format = _output_config(body.object("output_config"))
    if _thinks_not(body.object("thinking")):
        if effort is not None:
            why = "cannot be translated: thinking is disabled, which is another effort"
            body.drop_or_refuse("output_config.effort", why)
        effort, names["effort"] = Effort.NONE, "thinking.type"
    turns = list[Turn]()
    for message in body.each("messages"):
        if (turn := _turn(message)) is not None:
            turns.append(turn)
        yield
    max_tokens = body.needed("max_tokens", body.whole_number("max_tokens", 1))
    tier = body.word("service_tier", ("auto", "standard_only"))
    metadata = body.object("metadata")
    conversation = Conversation(
        model=body.needed_text("model"),
        turns=(*_system(body), *turns),
        max_tokens=max_tokens,
        temperature=body.number("temperature", 0, 1),
        top_p=body.number("top_p", 0, 1),
        stop=body.texts("stop_sequences"),
        tools=_tools(body),
        tool_choice=choice,
        has_parallel_calls=has_parallel_calls,
        effort=effort,
        output_format=output_format,
        is_prefilled=bool(turns) and turns[-1].role is Role.ASSISTANT,
        is_stream=body.flag("stream") or False,
        user=None if metadata is None else metadata.text("user_id"),
        service_tier=None if tier in (None, "auto") else "default",
        names=names,
        losses=losses,
    )
    if metadata is not None and metadata.has_more and not losses.drop("metadata"):
        metadata.end()
    body.only("top_k")
    body.only("mcp_servers", [])
    body.only("speed", "standard")
    body.end()
    return conversation


def _output_config(config: JsonObject | None) -> tuple[Effort | None, OutputFormat | None]:
    if config is None:
        return None, None
    effort = config.word("effort", _EFFORTS)
    output = config.object("format")
    read = None
    if output is not None:
        output.word("type", ("json_schema",))
        schema = output.needed("schema", output.plain_object("schema"))
        output.end()
        read = OutputFormat(schema, is_strict=True)
    config.end()
    return None if effort is None else Effort(effort), read


def _thinks_not(thinking: JsonObject | None) -> bool:
    """Whether thinking is disabled. `adaptive` leaves it to the model, as no field at all does in the other APIs."""
    if thinking is None:
        return False
    kind = thinking.text("type")
    if kind == "enabled":
        why = "cannot be translated: write thinking.type adaptive, and output_config.effort"
        thinking.only("budget_tokens", why=why)
    elif kind not in ("disabled", "adaptive"):
        thinking.refuse("type", "cannot be translated: write thinking.type adaptive, and output_config.effort")
    thinking.only("display", "omitted", why="cannot be translated: the other APIs do not show how the model thinks")
    thinking.end()
    return kind == "disabled"


def _system(body: JsonObject) -> list[Turn]:
    if body.peek("system") in (None, []):
        body.without_meaning("system")
        return []
    return [Turn(Role.SYSTEM, tuple(_blocks(body, "system", ("text",))), "system")]


def _turn(message: JsonObject) -> Turn | None:
    """None for one whose blocks are all left out."""
    role = message.needed("role", message.word("role", ("user", "assistant", "system")))
    kinds = {"user": ("text", "image", "tool_result"), "assistant": ("text", "tool_use"), "system": ("text",)}[role]
    is_empty = message.peek("content") == []
    parts = tuple(_blocks(message, "content", kinds))
    message.end()
    return Turn(Role(role), parts, message.path) if parts or is_empty else None


def _blocks(holder: JsonObject, name: str, kinds: tuple[str, ...]) -> list[ContentPart]:
    return text_or_parts(holder, name, lambda block: _block(block, kinds))


def _block(block: JsonObject, kinds: tuple[str, ...]) -> ContentPart | None:
    kind = block.needed_text("type")
    if kind not in kinds:
        thought = kind in ("thinking", "redacted_thinking")
        if kind in _OF_PROVIDER and "tool_use" in kinds and block.losses.drop(block.where(kind)):
            return None
        why = "its signature is of use to its provider only" if thought else f"only {', '.join(kinds)} can be here"
        block.refuse("type", f"cannot be translated: {kind[:80]!r}: {why}")
    read: ContentPart
    if kind == "text":
        block.only("citations", [])
        read = Text(block.needed_text("text"), block.path)
    elif kind == "image":
        read = _image(block)
    elif kind == "tool_use":
        read = _tool_call(block)
    elif kind == "tool_reference":  # what a search for tools has found; elsewhere all are there from the beginning
        read = Text(f"The tool {block.needed_text('tool_name')} can be called.", block.path)
    else:
        read = _tool_result(block)
    block.end()
    return read


def _image(block: JsonObject) -> Image:
    source = block.needed("source", block.object("source"))
    kind = source.text("type")
    if kind == "base64":
        media_type = source.word("media_type", IMAGE_TYPES)
        read = Image(media_type=media_type or "", data=source.needed_text("data"), where=source.path)
    elif kind == "url":
        read = Image(url=source.needed_text("url"), where=source.path)
    else:
        source.refuse("type", "cannot be translated: only base64 and url are, since a file is at one provider")
    if kind == "base64" and not read.media_type:
        source.refuse("media_type", "is missing")
    block.only("transformations", {}, {"oversized_image": "downsize"})
    source.end()
    return read


def _tool_call(block: JsonObject) -> ToolCall:
    arguments = block.needed("input", block.plain_object("input"))
    block.only("caller", {"type": "direct"})
    return ToolCall(
        block.needed_text("id"), block.needed_text("name"), dumps(arguments).decode(), where=block.where("input")
    )


def _tool_result(block: JsonObject) -> ToolResult:
    kinds = ("text", "image", "tool_reference")
    content = [] if block.peek("content") is None else _blocks(block, "content", kinds)
    parts = tuple(part for part in content if type(part) is Text or type(part) is Image)
    return ToolResult(block.needed_text("tool_use_id"), parts, block.flag("is_error") or False, block.path)


def _tools(body: JsonObject) -> tuple[Tool, ...]:
    return tuple(
        tools_of_client(body.each("tools"), _tool_of_type, "tools of the client are, which have no type or custom")
    )


def _tool_of_type(tool: JsonObject, kind: str | None) -> list[Tool] | None:
    return [_tool(tool)] if kind in (None, "custom") else None


def _tool(tool: JsonObject) -> Tool:
    schema = tool.needed("input_schema", tool.plain_object("input_schema"))
    read = Tool(tool.needed_text("name"), tool.text("description"), schema, tool.flag("strict"), tool.path)
    leave_out_callers(tool)
    tool.only("defer_loading", False)
    tool.only("input_examples", [])
    tool.without_meaning("eager_input_streaming")
    tool.end()
    return read


def _tool_choice(choice: JsonObject | None) -> tuple[ToolChoice | None, bool | None]:
    if choice is None:
        return None, None
    kind = choice.needed("type", choice.word("type", tuple(_MODES)))
    name = choice.needed_text("name") if kind == "tool" else ""
    disabled = choice.flag("disable_parallel_tool_use")
    choice.end()
    return ToolChoice(_MODES[kind], name), None if disabled is None else not disabled
