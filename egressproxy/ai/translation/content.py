"""Content that the readers and writers of several APIs treat alike: texts, images, results of tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeVar

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
    ToolChoice,
    ToolResult,
)
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.json_object import JsonObject
from egressproxy.model.strict_json import Unreadable, are_too_many, dumps, loads_strictly

T = TypeVar("T")

#: RFC 2397, with what clients write beside it: capitals, parameters (`;charset=utf-8`, `;name=a.png`), blanks.
_DATA_URL = re.compile(
    r"\s*data:\s*([a-zA-Z0-9.+-]{1,40}/[a-zA-Z0-9.+-]{1,80})\s*(?:;[^;,]{1,256}){0,8}?;\s*base64\s*,", re.IGNORECASE
)
#: Other names of types that all APIs take.
_MEDIA_TYPES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
#: Base64 as clients write it: what is percent-encoded of it in a URL, base64url (RFC 4648 section 5), and blanks.
_ESCAPES: Final = (("%2B", "+"), ("%2F", "/"), ("%3D", "="), ("%0A", ""), ("%0D", ""), ("%20", ""))
_MOST_ESCAPES: Final = 200_000
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
#: An id of a call that Anthropic and every model of Bedrock take; other providers have `functions.look:0`, too.
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BLANKS: Final = b" \t\r\n\f\v"
_UNUSUAL: Final = "-_" + _BLANKS.decode()


def text_or_parts(holder: JsonObject, name: str, read: Callable[[JsonObject], ContentPart | None]) -> list[ContentPart]:
    """Content in all three APIs: a string, or an array of parts, each `read`; None: it is left out. Untranslatable."""
    value = holder.any(name)
    if type(value) is str:
        return [Text(value, holder.where(name))]
    if type(value) is not list:
        holder.refuse(name, "is missing" if value is None else "must be a string or an array")
    return [part for one in holder.elements(value, name) if (part := read(one)) is not None]


def image_at(url: str, detail: str | None, where: str) -> Image:
    """The image at this URL, or in it: `data:image/png;base64,…`. Raises Untranslatable for other schemes."""
    if url[:16].lstrip()[:5].lower() == "data:":
        match = _DATA_URL.match(url)
        if match is None:
            raise Untranslatable(where, "must be data:TYPE;base64,DATA or a URL")
        media_type = match[1].lower()
        data = _base64(url[match.end() :])
        if not data:
            raise Untranslatable(where, "has no data in base64")
        return Image(media_type=_MEDIA_TYPES.get(media_type, media_type), data=data, detail=detail, where=where)
    url = url.strip()
    if not url.lower().startswith(("https://", "http://")):
        raise Untranslatable(where, "must be data:TYPE;base64,DATA or a URL")
    return Image(url=url, detail=detail, where=where)


def _base64(data: str) -> str:
    """Base64 as Anthropic takes it: standard letters, padded, without blanks; "" for other text, and for more escapes
    than _MOST_ESCAPES.
    """
    if not data.isascii() or data.count("%") > _MOST_ESCAPES:
        return ""
    if "%" in data:
        for escape, character in _ESCAPES:
            data = data.replace(escape, character).replace(escape.lower(), character)
    if any(mark in data for mark in _UNUSUAL):  # nearly none is: an image is long, and a copy of it takes its time
        data = data.encode().translate(_STANDARD, _BLANKS).decode()
    if len(data) % 4:
        data = data.rstrip("=")
        data += "=" * (-len(data) % 4)
    return data


def data_url(image: Image) -> str:
    """The one string with which OpenAI's APIs name an image."""
    return image.url or f"data:{image.media_type};base64,{image.data}"


def call_id(ident: str) -> str:
    """The id of a call as Anthropic and Bedrock take it: itself, or a digest, which is the same in every request."""
    return ident if _CALL_ID.fullmatch(ident) else f"call_{blake2b(ident.encode(), digest_size=12).hexdigest()}"


def without_blanks(parts: Iterable[T]) -> list[T]:
    """The parts without texts of blanks alone, which Anthropic and Bedrock refuse."""
    return [part for part in parts if not isinstance(part, Text | RefusalText) or part.text.strip()]


def only_texts(parts: Iterable[ContentPart], holder: str) -> list[Text]:
    """These parts, if all are texts. Raises Untranslatable for one that is not; `holder` says where it would go."""
    texts = []
    for part in parts:
        if type(part) is not Text:
            raise Untranslatable(part.where, f"cannot be translated: {holder} of the other API holds text only")
        texts.append(part)
    return texts


def result_parts(result: ToolResult) -> tuple[Text | Image, ...]:
    """What a tool has answered, for OpenAI's APIs. They have no field for `is_error`, so the text says it."""
    if not result.is_error:
        return result.parts
    first = result.parts[0] if result.parts else None
    if type(first) is Text:
        return (Text(f"Error: {first.text}", first.where), *result.parts[1:])
    return (Text("Error", result.where), *result.parts)


def result_text(result: ToolResult) -> str:
    """The texts of a result, for APIs that have one place for them."""
    return "\n".join(part.text for part in result.parts if type(part) is Text)


def check_arguments(conversation: Conversation) -> None:
    """Raises Untranslatable for arguments that take too long to read, before `arguments_object` reads them."""
    calls = [part for turn in conversation.turns for part in turn.parts if type(part) is ToolCall]
    if are_too_many(call.arguments for call in calls):
        longest = max(calls, key=lambda call: len(call.arguments))
        raise Untranslatable(longest.where, "cannot be translated: the arguments have too many parts to be read here")


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object. The empty string is what some models write for none. Untranslatable."""
    try:
        arguments = loads_strictly(call.arguments) if call.arguments else {}
    except Unreadable as error:
        raise Untranslatable(call.where, f"cannot be translated to an object: {error}") from None
    if type(arguments) is not dict:
        raise Untranslatable(call.where, "cannot be translated: it is no JSON object")
    return arguments


def names_of_calls(conversation: Conversation) -> dict[str, str]:
    """The names of the called tools, by the ids of the calls."""
    return {part.id: part.name for turn in conversation.turns for part in turn.parts if type(part) is ToolCall}


def check_last_turn(conversation: Conversation, provider: str) -> None:
    """Raises Untranslatable unless somebody waits for an answer: the user, or a tool that has told its result."""
    turns = [turn for turn in conversation.turns if turn.role in (Role.USER, Role.ASSISTANT)]
    if not turns:
        raise Untranslatable(conversation.name_of("turns"), f"has no message of the user, which {provider} needs")
    if turns[-1].role is Role.ASSISTANT:
        why = f"cannot be translated: it is the assistant's and the last one, which {provider} may go on with"
        raise Untranslatable(turns[-1].where, why)


EFFORTS: Final = tuple(effort.value for effort in Effort)


def leave_out_cache_options(body: JsonObject) -> None:
    """Takes hints for caches beside those that may stand everywhere (see `JsonObject.end`)."""
    body.without_meaning("prompt_cache_retention")
    if (options := body.object("prompt_cache_options")) is not None:
        options.without_meaning("mode", "ttl")
        options.end()


def metadata_of(body: JsonObject) -> dict[str, str] | None:
    """The client's own notes for what OpenAI stores; None if there are none. Raises Untranslatable."""
    value = body.plain_object("metadata")
    for name, one in (value or {}).items():
        if type(one) is not str:
            body.refuse(f"metadata.{name[:80]}", "must be a string")
    return value or None


#: The one argument of the function that stands for a custom tool of OpenAI, whose input is plain text.
INPUT: Final = "input"
_ONE_TEXT: Final = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}


def custom_tool_of(described: JsonObject, grammar_in: str = "") -> Tool:
    """The function that stands for a custom tool. A grammar of its input is told to the model in words, as one more
    reason to write so: nobody enforces it. `grammar_in`: the member of a format that has it. Raises Untranslatable.
    """
    name, description = described.needed_text("name"), described.text("description") or ""
    if (form := described.object("format")) is not None and form.word("type", ("text", "grammar")) == "grammar":
        described.drop_or_refuse("format", "cannot be translated: the other APIs enforce no grammar")
        inner = form.needed(grammar_in, form.object(grammar_in)) if grammar_in else form
        syntax, definition = inner.needed_text("syntax"), inner.needed_text("definition")
        inner.end()
        description += f"\n\n`{INPUT}` is a text that follows this grammar ({syntax}):\n{definition}"
    if form is not None:
        form.end()
    return Tool(name, description.lstrip() or None, _ONE_TEXT, where=described.path)


def custom_call_arguments(text: str) -> str:
    """The arguments of the function that stands for a custom tool with this input."""
    return dumps({INPUT: text}).decode()


def arguments_of(call: JsonObject) -> str:
    """What a function was called with: JSON in a string, or as some servers tell it, and clients repeat it, the object
    itself. Raises Untranslatable.
    """
    if type(call.peek("arguments")) is dict:
        return dumps(call.plain_object("arguments")).decode()
    return call.needed_text("arguments")


def leave_out_callers(tool: JsonObject) -> None:
    """Takes `allowed_callers`: a tool that the model may call itself needs no others. Raises Untranslatable."""
    callers = tool.peek("allowed_callers")
    if type(callers) is list and "direct" in callers:
        tool.only("allowed_callers", ["direct"])
    elif tool.any("allowed_callers") is not None:
        tool.refuse("allowed_callers", "cannot be translated: elsewhere the model itself calls every tool")


def allowed_of(tools: list[Tool], choice: ToolChoice | None) -> tuple[Tool, ...]:
    """The tools that the model may call, limited by the choice if it names some."""
    return tuple(tool for tool in tools if choice is None or not choice.allowed or tool.name in choice.allowed)


def function_of(described: JsonObject) -> Tool:
    """A function, in the fields that OpenAI's APIs have for one. Raises Untranslatable."""
    name, description = described.needed_text("name"), described.text("description")
    return Tool(name, description, described.plain_object("parameters"), described.flag("strict"), described.path)


def tools_of_client(
    offered: Iterable[JsonObject], read: Callable[[JsonObject, str | None], Iterable[T] | None], known: str
) -> list[T]:
    """The results of `read` for each offered tool and its type; None for a tool that the provider runs. Such tools may
    be dropped only if others remain: a request for a search alone would lose its purpose. `known` has the supported
    types. Raises Untranslatable.
    """
    tools: list[T] = []
    left_out: list[JsonObject] = []
    for tool in offered:
        kind = tool.text("type")
        found = read(tool, kind)
        if found is not None:
            tools += found
        elif kind is not None and tool.losses.drop(tool.where(kind)):
            left_out.append(tool)
        else:
            tool.refuse("type", f"cannot be translated: only {known}")
    if left_out and not tools:
        left_out[0].refuse("type", "cannot be translated: only the provider runs it, and no other tool is offered")
    return tools


def tool_choice_of(body: JsonObject, named: Callable[[JsonObject], str], allowed_in: str = "") -> ToolChoice | None:
    """Which tool the model has to call; `named` reads the name of one. In the member `allowed_in` of a choice stands
    which ones it may call. Raises Untranslatable.
    """
    value = body.any("tool_choice")
    if value is None:
        return None
    if type(value) is str:
        if value not in ("auto", "none", "required"):
            body.refuse("tool_choice", f"cannot be translated: {value[:80]!r} is none of auto, none, required")
        return ToolChoice(value)
    choice = JsonObject(value, body.losses, "tool_choice")
    if choice.peek("type") == "allowed_tools":
        choice.without_meaning("type")
        inner = choice.needed(allowed_in, choice.object(allowed_in)) if allowed_in else choice
        mode = inner.needed("mode", inner.word("mode", ("auto", "required")))
        names = []
        for one in inner.each("tools"):
            names.append(named(one))
            one.end()
        if not names:
            inner.refuse("tools", "is missing, or empty")
        inner.end()
        read = ToolChoice(mode, allowed=tuple(names))
    else:
        read = ToolChoice("named", named(choice))
    choice.end()
    return read


def output_format_of(output: JsonObject | None, schema_in: str = "") -> OutputFormat | None:
    """What the answer has to be; None: text. `schema_in`: the member that has the schema. Raises Untranslatable."""
    if output is None:
        return None
    kind = output.needed("type", output.word("type", ("text", "json_object", "json_schema")))
    read = None if kind == "text" else OutputFormat()
    if kind == "json_schema":
        inner = output.needed(schema_in, output.object(schema_in)) if schema_in else output
        schema = inner.needed("schema", inner.plain_object("schema"))
        read = OutputFormat(schema, inner.needed_text("name"), inner.text("description"), inner.flag("strict"))
        inner.end()
    output.end()
    return read


def schema_fields(output: OutputFormat) -> dict[str, Any]:
    """A JSON schema for answers, in the fields that OpenAI's APIs have for one."""
    named = {"name": output.name or "answer", "schema": output.schema}
    return without_none({**named, "description": output.description, "strict": output.is_strict})


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None: where the client has said nothing, the default of the other API holds."""
    return {name: value for name, value in fields.items() if value is not None}


def service_tier_of(body: JsonObject) -> str | None:
    """The tier, unless it is left to the provider. Raises Untranslatable."""
    tier = body.word("service_tier", ("auto", "default", "flex", "scale", "priority", "fast"))
    return None if tier == "auto" else tier
