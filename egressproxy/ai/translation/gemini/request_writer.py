"""A conversation, written as a request to generate content. Source: the fields of the Gemini API (v1beta), as Google's
SDK writes them.
"""

from __future__ import annotations

import re
from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.translation.apis import model_in_path
from egressproxy.ai.translation.content import (
    arguments_object,
    check_arguments,
    check_last_turn,
    names_of_calls,
    only_texts,
    result_text,
    without_none,
)
from egressproxy.ai.translation.conversation import Conversation, Effort, Image, Role, Tool, ToolCall, ToolResult
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.model.work import Work

_MAX_STOP_SEQUENCES: Final = 5
_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
_NOTHING_LIKE_IT: Final = "cannot be translated: Gemini has nothing like it"
#: Models that think for a budget of tokens; later ones have levels.
_WITH_BUDGET = re.compile(r"gemini-[12](?![0-9])")
#: Pro models always think: for 128 tokens at least, and since Gemini 3 without the level MINIMAL.
_PRO = re.compile(r"gemini-(?!1|2\.0)[0-9.]+-pro")
_LEAST_OF_PRO: Final = 128
#: Tokens for each effort, as Gemini's own endpoint for OpenAI's clients has them.
_BUDGETS: Final = {
    Effort.NONE: 0, Effort.MINIMAL: 1024, Effort.LOW: 1024, Effort.MEDIUM: 8192, Effort.HIGH: 24576,
    Effort.XHIGH: 24576, Effort.MAX: 24576,
}  # fmt: skip
_LEVELS: Final = {Effort.NONE: "MINIMAL", Effort.XHIGH: "HIGH", Effort.MAX: "HIGH"}
#: What Google documents for calls of a history that its model has not made, or whose signature is lost: models since
#: Gemini 3 refuse the first call of a message without a signature.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"
_TIERS: Final = (None, "default", "flex", "priority")


def write_request(conversation: Conversation, model: str) -> Work[dict[str, Any]]:
    """The body of the request, in turns; model and stream stand in its path. Raises Untranslatable for required content
    without equivalent.
    """
    model_in_path(Api.GEMINI, model, conversation.name_of("model"))
    check_arguments(conversation)
    check_last_turn(conversation, "Gemini")
    has_budget = _WITH_BUDGET.search(model) is not None
    is_pro = _PRO.search(model) is not None
    _drop_or_refuse(conversation, always_thinks=is_pro or not has_budget)
    system = [
        {"text": part.text}
        for turn in conversation.turns
        if turn.role in (Role.SYSTEM, Role.DEVELOPER)
        for part in only_texts(turn.parts, "a system prompt")
        if part.text
    ]
    tier = conversation.service_tier
    tools = [_tool(tool) for tool in conversation.tools]
    optional = {
        "systemInstruction": {"parts": system} if system else None,
        "contents": (yield from _contents(conversation, needs_signature="gemini-" in model and not has_budget)),
        "tools": [{"functionDeclarations": tools}] if tools else None,
        "toolConfig": _tool_config(conversation),
        "generationConfig": _generation_config(conversation, has_budget=has_budget, is_pro=is_pro) or None,
        "serviceTier": tier if tier in ("flex", "priority") else None,
    }
    return without_none(optional)


def _drop_or_refuse(conversation: Conversation, *, always_thinks: bool) -> None:
    """Drop settings that Gemini does not have, if allowed. Raises Untranslatable for others."""
    refuse = conversation.drop_or_refuse
    if len(conversation.stop) > _MAX_STOP_SEQUENCES:
        raise Untranslatable(conversation.name_of("stop"), f"Gemini takes {_MAX_STOP_SEQUENCES} at most")
    if conversation.has_parallel_calls is False and conversation.tools:
        refuse("has_parallel_calls", _NOTHING_LIKE_IT)
    if conversation.verbosity not in (None, "medium"):
        refuse("verbosity", _NOTHING_LIKE_IT)
    if conversation.effort in (Effort.XHIGH, Effort.MAX):
        refuse("effort", "cannot be translated: Gemini's highest is high")
    if conversation.effort is Effort.NONE and always_thinks:
        refuse("effort", "cannot be translated: this model always thinks, a little at least")
    for name in ("user", "safety_identifier", "metadata"):
        if getattr(conversation, name):
            refuse(name, _NOTHING_LIKE_IT)
    if conversation.service_tier not in _TIERS:
        refuse("service_tier", "cannot be translated: Gemini has default, flex and priority")
    if conversation.output_format is not None and conversation.output_format.description is not None:
        refuse("output_description", _NOTHING_LIKE_IT)


def _contents(conversation: Conversation, *, needs_signature: bool) -> Work[list[dict[str, Any]]]:
    """The messages; neighbours of one role are one, with results of tools first, as a turn behind calls needs them.
    Those that say nothing are left out, but for the last: Gemini refuses them.
    """
    names = names_of_calls(conversation)
    contents: list[dict[str, Any]] = []
    for turn in conversation.turns:
        yield
        if turn.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        role = "model" if turn.role is Role.ASSISTANT else "user"
        if contents and not contents[-1]["parts"]:
            contents.pop()
        if not contents or contents[-1]["role"] != role:
            contents.append({"role": role, "parts": []})
        parts: list[dict[str, Any]] = contents[-1]["parts"]
        for part in turn.parts:
            if isinstance(part, ToolResult):
                _add_result(parts, part, names, conversation)
            elif isinstance(part, ToolCall):
                call: dict[str, Any] = {
                    "functionCall": {"id": part.id, "name": part.name, "args": arguments_object(part)}
                }
                if needs_signature and not any("functionCall" in one for one in parts):
                    call["thoughtSignature"] = _NO_SIGNATURE
                parts.append(call)
            elif isinstance(part, Image):
                if turn.role is not Role.USER:
                    raise Untranslatable(part.where, "cannot be translated: only the user's messages hold images")
                parts.append(_image(part, conversation))
            elif part.text:
                parts.append({"text": part.text})
    for content in contents:
        content["parts"] = content["parts"] or [{"text": ""}]
    return contents


def _add_result(
    parts: list[dict[str, Any]], result: ToolResult, names: dict[str, str], conversation: Conversation
) -> None:
    """A result behind those before it; images, which only new models take in a result, stand behind it in the turn."""
    name = names.get(result.call_id)
    if name is None:
        raise Untranslatable(result.where, "cannot be translated: no call before it has this id, and so a name")
    said = result_text(result)
    images = [one for one in result.parts if type(one) is Image]
    if images and not said:
        said = "Behind the results stands an image."
    response = {"error" if result.is_error else "output": said}
    written = {"functionResponse": {"id": result.call_id, "name": name, "response": response}}
    begin = sum("functionResponse" in part for part in parts)
    parts.insert(begin, written)
    if images:
        parts.append({"text": f"What the tool showed ({result.call_id}):"})
        parts += [_image(image, conversation) for image in images]


def _image(image: Image, conversation: Conversation) -> dict[str, Any]:
    if image.detail is not None and not conversation.losses.drop(f"{image.where}.detail"):
        raise Untranslatable(image.where, "cannot be translated: Gemini has no detail of one image")
    if image.url:
        raise Untranslatable(image.where, "cannot be translated: Gemini fetches no URL, so send the image as data:")
    if image.media_type not in _IMAGE_TYPES:
        raise Untranslatable(image.where, f"cannot be translated: Gemini takes {', '.join(_IMAGE_TYPES)}")
    return {"inlineData": {"mimeType": image.media_type, "data": image.data}}


def _tool(tool: Tool) -> dict[str, Any]:
    return without_none({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters})


def _tool_config(conversation: Conversation) -> dict[str, Any] | None:
    """Which tools are called. Modes VALIDATED and ANY keep to the schema, as strict tools have to."""
    choice = conversation.tool_choice
    mode = "auto" if choice is None else choice.mode
    if not conversation.tools and mode in ("auto", "none"):
        return None
    if mode == "auto":
        is_strict = any(tool.is_strict for tool in conversation.tools)
        return {"functionCallingConfig": {"mode": "VALIDATED"}} if is_strict else None
    if mode == "none":
        return {"functionCallingConfig": {"mode": "NONE"}}
    config: dict[str, Any] = {"mode": "ANY"}
    if choice is not None and choice.name:
        config["allowedFunctionNames"] = [choice.name]
    return {"functionCallingConfig": config}


def _generation_config(conversation: Conversation, *, has_budget: bool, is_pro: bool) -> dict[str, Any]:
    output, effort = conversation.output_format, conversation.effort
    thinking: dict[str, Any] | None = None
    if effort is not None:
        level, budget = _LEVELS.get(effort) or effort.value.upper(), _BUDGETS[effort]
        if is_pro:
            level, budget = ("LOW" if level == "MINIMAL" else level), max(budget, _LEAST_OF_PRO)
        thinking = {"thinkingBudget": budget} if has_budget else {"thinkingLevel": level}
    return without_none(
        {
            "maxOutputTokens": conversation.max_tokens,
            "temperature": conversation.temperature,
            "topP": conversation.top_p,
            "stopSequences": list(conversation.stop) or None,
            "responseMimeType": None if output is None else "application/json",
            "responseJsonSchema": None if output is None else output.schema,
            "thinkingConfig": thinking,
        }
    )
