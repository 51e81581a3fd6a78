"""Each piece of text in a message of an AI provider, found by the shape of its JSON: what is not known is taken for
text. Left out are names of models, tools, types and ids, and binary data (images, audio, files in base64).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

from egressproxy.ai.apis.splice import Path
from egressproxy.model.strict_json import Unreadable, loads


class TextRole(str, Enum):
    """Who said a text. NONE: it is an option of the request, or the like."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    NONE = ""


class TextKind(str, Enum):
    TEXT = "text"
    REFUSAL = "refusal"
    REASONING = "reasoning"
    ARGUMENTS = "arguments"  # of a call of a tool
    RESULT = "result"  # of a tool
    DEFINITION = "definition"  # a description in the definition of a tool, or in a schema


class Found(NamedTuple):
    """A text and its `path`. `inner`, if not (), leads on within the string of JSON there (arguments of calls).
    `is_signed`: the provider has signed it (thinking of Anthropic), and refuses it where it is changed.
    """

    path: Path
    inner: Path
    role: TextRole
    kind: TextKind
    text: str
    is_signed: bool = False


_ROLES: Final = {
    "system": TextRole.SYSTEM,
    "developer": TextRole.SYSTEM,
    "user": TextRole.USER,
    "assistant": TextRole.ASSISTANT,
    "model": TextRole.ASSISTANT,
    "tool": TextRole.TOOL,
    "function": TextRole.TOOL,
}
#: What a member of this name holds was said by that role, unless something inside says another.
_ROLE_OF_KEY: Final = {
    "system": TextRole.SYSTEM,
    "instructions": TextRole.SYSTEM,
    "systemInstruction": TextRole.SYSTEM,
    "system_instruction": TextRole.SYSTEM,
    "messages": TextRole.USER,
    "contents": TextRole.USER,
    "prompt": TextRole.USER,
    "input": TextRole.USER,
    "inputText": TextRole.USER,
    "choices": TextRole.ASSISTANT,
    "candidates": TextRole.ASSISTANT,
    "output": TextRole.ASSISTANT,
    "content": TextRole.USER,
}
_KIND_OF_KEY: Final = {
    "thinking": TextKind.REASONING,
    "reasoning": TextKind.REASONING,
    "reasoning_content": TextKind.REASONING,
    "reasoningContent": TextKind.REASONING,
    "refusal": TextKind.REFUSAL,
}
#: Members whose strings are words of the API, ids, or data that is not text.
_NO_TEXT: Final = frozenset(
    (
        "anthropic_version", "b64_json", "bytes", "call_id", "created_at", "data", "detail", "effort",
        "encrypted_content", "file_data", "file_id", "finishReason", "finish_reason", "format", "id", "item_id",
        "jsonrpc", "media_type", "mimeType", "mime_type", "model", "modelVersion", "name", "object",
        "previous_response_id", "responseId", "role", "service_tier", "signature", "status", "stopReason",
        "stop_reason", "system_fingerprint", "thoughtSignature", "thought_signature", "toolUseId", "tool_call_id",
        "tool_choice", "tool_use_id", "truncation", "type", "verbosity",
    )
)  # fmt: skip
#: Members that hold definitions of tools and schemas: of these the descriptions are text.
_DEFINITIONS: Final = frozenset(
    ("functions", "generationConfig", "output_config", "response_format", "toolConfig", "tools", "tool_config")
)
#: Members that hold pieces of what other members say in one.
_REPEATED: Final = frozenset(("logprobs", "logprobsResult", "top_logprobs"))
#: Elements of an array that may all be without a text.
_PASSED: Final = 64
_RESULT_TYPES: Final = frozenset(
    ("function_call_output", "custom_tool_call_output", "tool_result", "mcp_tool_result", "web_search_tool_result")
)
_CALL_TYPES: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use", "custom_tool_call"))


def where(path: Path) -> str:
    """A path as people write it: `messages[2].content[0].text`."""
    steps = "".join(f"[{step}]" if type(step) is int else f".{step}" for step in path)
    return steps.removeprefix(".")


def found_texts(value: Any) -> Iterator[Found]:
    """Each text of a request or an answer, in the order of its JSON, found while one iterates. An empty one stands for
    values without a text: a place to yield.
    """
    return _walk(value, (), TextRole.NONE, TextKind.TEXT)


def inner_json(text: str) -> Any:
    """What a string of JSON says, such as the arguments of a call; None where it is none."""
    if text[:1] not in ("{", "[") and text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    try:
        return loads(text)
    except Unreadable:
        return None


def _walk(value: Any, path: Path, role: TextRole, kind: TextKind) -> Iterator[Found]:
    if type(value) is dict:
        yield from _members(value, path, role, kind)
    elif type(value) is list:
        for index, each in enumerate(value):
            if type(each) is dict:
                yield from _members(each, (*path, index), role, kind)
            elif type(each) is str:
                if each:
                    yield Found((*path, index), (), role, kind, each)
            elif type(each) is list:
                yield from _walk(each, (*path, index), role, kind)
            if index % _PASSED == _PASSED - 1:
                yield Found((*path, index), (), TextRole.NONE, TextKind.TEXT, "")
    elif type(value) is str and value:
        yield Found(path, (), role, kind, value)


def _members(value: dict[str, Any], path: Path, role: TextRole, kind: TextKind) -> Iterator[Found]:
    role_name, type_ = value.get("role"), value.get("type")
    if len(value) == 2 and path and type(role_name) is str and type(text := value.get("content")) is str:
        if text:  # nearly all messages
            role = _ROLES.get(role_name, TextRole.USER)
            yield Found((*path, "content"), (), role, TextKind.RESULT if role is TextRole.TOOL else kind, text)
        return
    if type(type_) is not str:
        type_ = ""
    if type(role_name) is str:
        role = _ROLES.get(role_name, TextRole.USER)
        if role is TextRole.TOOL:
            kind = TextKind.RESULT
    if type_ in _RESULT_TYPES:
        role, kind = TextRole.TOOL, TextKind.RESULT
    elif type_ == "reasoning" or value.get("thought") is True:
        kind = TextKind.REASONING
    is_signed = type_ == "thinking" or (bool(path) and path[-1] == "reasoningText" and "signature" in value)
    for key, each in value.items():
        if type(each) is str:
            if not each:
                continue
            if is_signed:
                if key in ("thinking", "text"):
                    yield Found((*path, key), (), role, TextKind.REASONING, each, is_signed=True)
            elif key == "arguments" or (key == "input" and type_ in _CALL_TYPES):
                yield from _arguments(each, (*path, key))
            elif _is_text(key, each, value):
                said_by = role if path else _ROLE_OF_KEY.get(key, role)
                yield Found((*path, key), (), said_by, _KIND_OF_KEY.get(key, kind), each)
        elif type(each) is dict or type(each) is list:
            if key in _REPEATED:
                continue
            here = (*path, key)
            if key in _DEFINITIONS or (key == "text" and not path):
                yield from _definitions(each, here)
            elif key in ("arguments", "args") or (key == "input" and (type_ in _CALL_TYPES or "toolUseId" in value)):
                yield from _all(each, here, TextRole.ASSISTANT, TextKind.ARGUMENTS)
            elif key in ("response", "json", "structuredContent"):
                is_result = key != "response" or "name" in value or role is TextRole.TOOL
                if is_result:
                    yield from _all(each, here, TextRole.TOOL, TextKind.RESULT)
                else:
                    yield from _walk(each, here, role, kind)
            elif key in ("toolResult", "functionResponse"):
                yield from _walk(each, here, TextRole.TOOL, TextKind.RESULT)
            else:
                inner = _ROLE_OF_KEY.get(key, role) if role is TextRole.NONE else role
                yield from _walk(each, here, inner, _KIND_OF_KEY.get(key, kind))


def _is_text(key: str, value: str, siblings: dict[str, Any]) -> bool:
    if key == "data":  # a document of plain text stands where others have base64
        return siblings.get("type") == "text"
    if key in _NO_TEXT:
        return False
    return not (value.startswith("data:") and key in ("url", "image_url", "file_url", "uri"))


def _arguments(text: str, path: Path) -> Iterator[Found]:
    value = inner_json(text)
    if value is None:
        yield Found(path, (), TextRole.ASSISTANT, TextKind.ARGUMENTS, text)
        return
    for inner, string in _strings(value, ()):
        yield Found(path, inner, TextRole.ASSISTANT, TextKind.ARGUMENTS, string)


def _all(value: Any, path: Path, role: TextRole, kind: TextKind) -> Iterator[Found]:
    """Every string: what is inside of arguments and results has no names that are known."""
    for inner, string in _strings(value, path):
        yield Found(inner, (), role, kind, string)


def _strings(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Each string, and the way to it, of a value that this path leads to."""
    if type(value) is str:
        if value:
            yield path, value
    elif type(value) is list or type(value) is dict:
        for step, each in enumerate(value) if isinstance(value, list) else value.items():
            if type(each) is str:
                if each:
                    yield (*path, step), each
            elif type(each) is list or type(each) is dict:
                yield from _strings(each, (*path, step))


def _definitions(value: Any, path: Path) -> Iterator[Found]:
    if type(value) is list:
        for index, each in enumerate(value):
            if type(each) is dict or type(each) is list:
                yield from _definitions(each, (*path, index))
    elif type(value) is dict:
        for key, each in value.items():
            if type(each) is str:
                if key == "description" and each:
                    yield Found((*path, key), (), TextRole.NONE, TextKind.DEFINITION, each)
            elif type(each) is dict or type(each) is list:
                yield from _definitions(each, (*path, key))
