"""Content that the readers and writers of several APIs treat alike: texts, images, results of tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from egressproxy.translation.conversation import (
    ContentPart,
    Effort,
    Image,
    OutputFormat,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
)
from egressproxy.translation.errors import Untranslatable
from egressproxy.translation.json_object import JsonObject, objects

_DATA_URL = re.compile(r"data:([a-zA-Z0-9.+-]{1,40}/[a-zA-Z0-9.+-]{1,80});base64,")


def text_or_parts(value: Any, where: str, read: Callable[[JsonObject], ContentPart]) -> list[ContentPart]:
    """Content in all three APIs: a string, or an array of parts, each `read`; `where`: its path. Untranslatable."""
    if type(value) is str:
        return [Text(value, where)]
    if type(value) is not list:
        raise Untranslatable(where, "is missing" if value is None else "must be a string or an array")
    return [read(part) for part in objects(value, where)]


def image_at(url: str, detail: str | None, where: str) -> Image:
    """The image at this URL, or in it: `data:image/png;base64,…`. Raises Untranslatable for other schemes."""
    if url[:5].lower() == "data:":
        match = _DATA_URL.match(url)
        if match is None:
            raise Untranslatable(where, "must be data:TYPE;base64,DATA or a URL")
        return Image(media_type=match[1].lower(), data=url[match.end() :], detail=detail, where=where)
    if not url.lower().startswith(("https://", "http://")):
        raise Untranslatable(where, "must be data:TYPE;base64,DATA or a URL")
    return Image(url=url, detail=detail, where=where)


def data_url(image: Image) -> str:
    """The one string with which OpenAI's APIs name an image."""
    return image.url or f"data:{image.media_type};base64,{image.data}"


def only_texts(parts: Iterable[ContentPart], place: str) -> list[Text]:
    """These parts, if all are texts. Raises Untranslatable for one that is not; `place` says where it would go."""
    texts = []
    for part in parts:
        if type(part) is not Text:
            raise Untranslatable(part.where, f"cannot be translated: {place} of the other API holds text only")
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


EFFORTS: Final = tuple(effort.value for effort in Effort)


def leave_out_cache_options(body: JsonObject) -> None:
    """Takes `prompt_cache_options`: what is cached, and how long, changes the price and not the answer."""
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


def function_of(described: JsonObject) -> Tool:
    """A function, in the fields that OpenAI's APIs have for one. Raises Untranslatable."""
    name, description = described.needed_text("name"), described.text("description")
    return Tool(name, description, described.plain_object("parameters"), described.flag("strict"), described.path)


def tool_choice_of(body: JsonObject, named: Callable[[JsonObject], str]) -> ToolChoice | None:
    """Which tool the model has to call; `named` reads the name of one. Raises Untranslatable."""
    value = body.any("tool_choice")
    if value is None:
        return None
    if type(value) is str:
        if value not in ("auto", "none", "required"):
            body.refuse("tool_choice", f"cannot be translated: {value[:80]!r} is none of auto, none, required")
        return ToolChoice(value)
    choice = JsonObject(value, "tool_choice")
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
    return said({**named, "description": output.description, "strict": output.is_strict})


def said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None: where the client has said nothing, the default of the other API holds."""
    return {name: value for name, value in fields.items() if value is not None}


def service_tier_of(body: JsonObject) -> str | None:
    """The tier, unless it is left to the provider. Raises Untranslatable."""
    tier = body.word("service_tier", ("auto", "default", "flex", "scale", "priority", "fast"))
    return None if tier == "auto" else tier
