"""StreamEvent: what one event of a streamed answer says: pieces of texts by channel, whole texts, and ends. APIs are
told by the shape of their JSON; what is not known of an event is text of its own: nothing new passes unseen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from egressproxy.ai.apis.message import in_object
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.texts import Found, TextKind, TextRole, found_texts
from egressproxy.model.strict_json import Unreadable

#: Texts of one event: the last one of a response has all of its answer's, and those of the tools of its request.
MAX_TEXTS: Final = 5000
#: A group: what ends together, such as a choice of an answer, or a block of its content.
Group = tuple[object, ...]
#: Every group ends.
EVERY: Final[Group] = ("every",)


class Channel(NamedTuple):
    """A text that comes in pieces. `is_signed`: the provider signs it (thinking of Anthropic): it goes as it came."""

    group: Group
    part: object
    kind: TextKind
    is_signed: bool = False


class TextDelta(NamedTuple):
    """A piece of a text, and where it stands in the JSON of its event."""

    channel: Channel
    path: Path
    text: str


class WholeText(NamedTuple):
    """A text that an event tells whole. `channel`: the one whose pieces said the same before, if there was one."""

    found: Found
    channel: Channel | None = None


class StreamEvent(NamedTuple):
    """`ends` are the groups that end with this event: behind the pieces that it has itself."""

    value: Any
    deltas: list[TextDelta]
    wholes: list[WholeText]
    ends: list[Group]


_CHAT_KINDS: Final = {
    "content": TextKind.TEXT,
    "refusal": TextKind.REFUSAL,
    "reasoning_content": TextKind.REASONING,
    "reasoning": TextKind.REASONING,
}
_CHAT_EVENT: Final = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation")
)
_CHOICE: Final = frozenset(("index", "delta", "finish_reason", "logprobs", "text"))
_CHAT_DELTA: Final = frozenset((*_CHAT_KINDS, "role", "tool_calls"))
_MESSAGE_EVENTS: Final = frozenset(
    (
        "message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta",
        "content_block_stop", "ping",
    )
)  # fmt: skip
#: `p` pads an event, so that its length does not tell that of the text.
_CONVERSE_EVENT: Final = frozenset(
    ("contentBlockIndex", "delta", "metrics", "p", "role", "start", "stopReason", "usage")
)
#: The member of an Anthropic delta that has its text, and what it is.
_BLOCK_DELTAS: Final = {
    "text_delta": ("text", TextKind.TEXT),
    "input_json_delta": ("partial_json", TextKind.ARGUMENTS),
    "thinking_delta": ("thinking", TextKind.REASONING),
}
#: The first words of a Responses event, what it is a piece of, and the member in which the last one tells it whole.
_RESPONSE_TEXTS: Final = {
    "response.output_text": (TextKind.TEXT, "text"),
    "response.refusal": (TextKind.REFUSAL, "refusal"),
    "response.reasoning_text": (TextKind.REASONING, "text"),
    "response.reasoning_summary_text": (TextKind.REASONING, "text"),
    "response.function_call_arguments": (TextKind.ARGUMENTS, "arguments"),
    "response.mcp_call_arguments": (TextKind.ARGUMENTS, "arguments"),
    "response.custom_tool_call_input": (TextKind.ARGUMENTS, "input"),
    "response.code_interpreter_call_code": (TextKind.ARGUMENTS, "code"),
    "response.audio.transcript": (TextKind.TEXT, "transcript"),
}
#: Which of them a text of an item is, by the type of the item or part that has it.
_TEXT_OF_TYPE: Final = {
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "summary_text": "response.reasoning_summary_text",
    "function_call": "response.function_call_arguments",
    "mcp_call": "response.mcp_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
    "code_interpreter_call": "response.code_interpreter_call_code",
}
#: Where models of Amazon, Meta, Mistral and Cohere have their text in the events of InvokeModelWithResponseStream, and
#: what says there that it has ended.
_PLAIN_TEXTS: Final[tuple[Path, ...]] = (("outputText",), ("generation",), ("outputs", 0, "text"), ("text",))
_PLAIN_ENDS: Final = ("completionReason", "stop_reason", "finish_reason")
_RESPONSE_ENDS: Final = frozenset(
    ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
)


def read_event(value: Any) -> StreamEvent:
    """What an event of this JSON says."""
    event = StreamEvent(value, [], [], [])
    if type(value) is dict:
        type_ = value.get("type")
        if type(type_) is not str:
            type_ = ""
        if type(value.get("choices")) is list:
            _chat(value, event)
        elif type(value.get("candidates")) is list or "usageMetadata" in value:
            _gemini(value, event)
        elif type_ in _MESSAGE_EVENTS:
            _anthropic(value, type_, event)
        elif type_.startswith("response."):
            _responses(value, type_, event)
        elif "contentBlockIndex" in value or value.keys() <= _CONVERSE_EVENT:
            _converse(value, event)
        elif not _plain(value, event):
            _others(value, event)
            if type_ in _RESPONSE_ENDS:
                event.ends.append(EVERY)
        return event
    _others(value, event)
    return event


def delta_event(event: StreamEvent, delta: TextDelta, text: str) -> tuple[str, dict[str, Any]]:
    """An event of the same shape that says only this text on the channel of `delta`, and its name."""
    value, path = event.value, delta.path
    if path[0] == "choices":
        choice = value["choices"][path[1]]
        event_part: dict[str, Any] = {"index": choice.get("index", path[1])}
        if path[2] == "text":
            event_part["text"] = text
        else:
            event_part["delta"] = _chat_delta(choice["delta"], path[3:], text)
        event_part["finish_reason"] = None
        return "", {
            **{key: each for key, each in value.items() if key not in ("choices", "usage")},
            "choices": [event_part],
        }
    if path[0] == "candidates":
        part = {"text": text, **({"thought": True} if delta.channel.kind is TextKind.REASONING else {})}
        event_part = {"content": {"role": "model", "parts": [part]}, "index": delta.channel.group[1]}
        kept = {key: value[key] for key in ("modelVersion", "responseId") if key in value}
        return "", {"candidates": [event_part], **kept}
    if path[0] == "content_block":
        kind, key = ("text_delta", "text") if path[1] == "text" else ("thinking_delta", "thinking")
        return "content_block_delta", {
            "type": "content_block_delta",
            "index": value.get("index", 0),
            "delta": {"type": kind, key: text},
        }
    copy = dict(value)
    copy.pop("p", None)
    if copy.get("logprobs"):
        copy["logprobs"] = []
    holder = copy
    for step in path[:-1]:
        holder[step] = list(holder[step]) if type(holder[step]) is list else dict(holder[step])
        holder = holder[step]
    holder[path[-1]] = text
    type_ = value.get("type")
    return type_ if type(type_) is str else "", copy


def _chat_delta(delta: dict[str, Any], path: Path, text: str) -> dict[str, Any]:
    if path[0] != "tool_calls":
        return {str(path[0]): text if len(path) == 1 else {str(path[1]): text}}
    call = delta["tool_calls"][path[1]]
    return {"tool_calls": [{"index": call.get("index", path[1]), str(path[2]): {str(path[3]): text}}]}


def _chat(value: dict[str, Any], event: StreamEvent) -> None:
    _unknown(value, _CHAT_EVENT, (), event)
    for at, choice in enumerate(value["choices"]):
        if type(choice) is not dict:
            _others(choice, event, ("choices", at))
            continue
        group: Group = ("choice", _index(choice, "index", at))
        _unknown(choice, _CHOICE, ("choices", at), event)
        text = choice.get("text")
        if type(text) is str and text:
            event.deltas.append(TextDelta(Channel(group, "text", TextKind.TEXT), ("choices", at, "text"), text))
        delta = choice.get("delta")
        if type(delta) is dict:
            _chat_deltas(delta, ("choices", at, "delta"), group, event)
        if choice.get("finish_reason"):
            event.ends.append(group)


def _chat_deltas(delta: dict[str, Any], path: Path, group: Group, event: StreamEvent) -> None:
    for key, kind in _CHAT_KINDS.items():
        text = delta.get(key)
        if type(text) is str:
            if text:
                event.deltas.append(TextDelta(Channel(group, key, kind), (*path, key), text))
        elif text is not None:
            _others(text, event, (*path, key))
    calls = delta.get("tool_calls")
    for at, call in enumerate(_array(calls)):
        here = (*path, "tool_calls", at)
        for holder, key in (("function", "arguments"), ("custom", "input")):
            text = in_object(call, holder, key)
            if type(text) is str and text:
                channel = Channel(group, ("tool", _index(call, "index", at)), TextKind.ARGUMENTS)
                event.deltas.append(TextDelta(channel, (*here, holder, key), text))
    if not delta.keys() <= _CHAT_DELTA:
        old = in_object(delta, "function_call", "arguments")
        if type(old) is str and old:
            channel = Channel(group, "function_call", TextKind.ARGUMENTS)
            event.deltas.append(TextDelta(channel, (*path, "function_call", "arguments"), old))
        _unknown(delta, _CHAT_DELTA | {"function_call"}, path, event)


def _gemini(value: dict[str, Any], event: StreamEvent) -> None:
    for at, candidate in enumerate(_array(value.get("candidates"))):
        if type(candidate) is not dict:
            continue
        group: Group = ("candidate", _index(candidate, "index", at))
        parts = in_object(candidate, "content", "parts")
        for number, part in enumerate(_array(parts)):
            path: Path = ("candidates", at, "content", "parts", number)
            text = in_object(part, "text")
            if type(text) is str and text:
                kind = TextKind.REASONING if part.get("thought") is True else TextKind.TEXT
                event.deltas.append(TextDelta(Channel(group, "text", kind), (*path, "text"), text))
            if type(part) is dict:
                _unknown(part, frozenset(("text", "thought", "thoughtSignature")), path, event)
        _unknown(candidate, frozenset(("content", "finishReason", "index", "safetyRatings")), ("candidates", at), event)
        if candidate.get("finishReason"):
            event.ends.append(group)
    _unknown(value, frozenset(("candidates", "usageMetadata", "modelVersion", "responseId", "createTime")), (), event)


def _anthropic(value: dict[str, Any], type_: str, event: StreamEvent) -> None:
    group: Group = ("block", _index(value, "index"))
    if type_ == "content_block_delta":
        delta = value.get("delta")
        kind = in_object(delta, "type")
        key, text_kind = _BLOCK_DELTAS.get(kind, ("", TextKind.TEXT)) if type(kind) is str else ("", TextKind.TEXT)
        text = in_object(delta, key)
        if type(text) is str:
            if text:
                channel = Channel(group, key, text_kind, key == "thinking")
                event.deltas.append(TextDelta(channel, ("delta", key), text))
        else:
            _others(delta, event, ("delta",))
    elif type_ == "content_block_start":
        block = value.get("content_block")
        for key, kind in (("text", TextKind.TEXT), ("thinking", TextKind.REASONING)):
            text = in_object(block, key)
            if type(text) is str and text:
                event.deltas.append(
                    TextDelta(Channel(group, key, kind, key == "thinking"), ("content_block", key), text)
                )
        if type(block) is dict:
            path: Path = ("content_block",)
            event.wholes.extend(
                WholeText(found)
                for found in _found(block, path)
                if found.path not in {each.path for each in event.deltas}
            )
    elif type_ == "content_block_stop":
        event.ends.append(group)
    elif type_ == "message_start":
        _others(value.get("message"), event, ("message",))
    else:
        _others(value.get("delta"), event, ("delta",))
        event.ends.append(EVERY)
        if type_ == "ping":
            event.ends.clear()
    _unknown(value, frozenset(("type", "index", "delta", "content_block", "message", "usage")), (), event)


def _responses(value: dict[str, Any], type_: str, event: StreamEvent) -> None:
    name, _, verb = type_.rpartition(".")
    if name in _RESPONSE_TEXTS and verb in ("delta", "done"):
        kind, key = _RESPONSE_TEXTS[name]
        group: Group = (
            _index(value, "output_index"),
            _index(value, "content_index"),
            _index(value, "summary_index"),
        )
        channel = Channel(group, name, kind)
        text = value.get("delta" if verb == "delta" else key)
        if type(text) is str and text:
            if verb == "delta":
                event.deltas.append(TextDelta(channel, ("delta",), text))
            else:
                event.wholes.append(WholeText(Found((key,), (), TextRole.ASSISTANT, kind, text), channel))
        if verb == "done":
            event.ends.append(group)
        known = {"type", "delta", key, "item_id", "sequence_number", "logprobs", "name", "obfuscation", "call_id"}
        _unknown(value, frozenset(known), (), event)
        return
    if type_ in ("response.audio.delta", "response.image_generation_call.partial_image"):
        return  # binary data
    if type_ in _RESPONSE_ENDS:
        event.ends.append(EVERY)
    for candidate in _found(value, ()):
        found = candidate
        if found.inner:  # arguments were told in pieces as the text that they are
            holder = _holder(value, found.path)
            found = found._replace(inner=(), text=holder[found.path[-1]])
            if event.wholes and event.wholes[-1].found.path == found.path:
                continue
        event.wholes.append(WholeText(found, _channel_of(value, found)))


def _channel_of(value: dict[str, Any], found: Found) -> Channel | None:
    """The channel whose pieces have said this text of an item, a part, or a whole response."""
    path = found.path
    output, content = _index(value, "output_index"), _index(value, "content_index")
    summary = _index(value, "summary_index")
    if path[:2] == ("response", "output") and len(path) > 2:
        output = _number(path[2])
    for name, index in itertools.pairwise(path):
        if name == "content":
            content = _number(index)
        elif name == "summary":
            summary = _number(index)
    holder = _holder(value, path)
    type_ = in_object(holder, "type")
    name = _TEXT_OF_TYPE.get(type_, "") if type(type_) is str else ""
    if not name or _RESPONSE_TEXTS[name][1] != path[-1]:
        return None
    if name in ("response.output_text", "response.refusal", "response.reasoning_text"):
        summary = -1
    elif name == "response.reasoning_summary_text":
        content = -1
    else:
        content = summary = -1
    return Channel((output, content, summary), name, _RESPONSE_TEXTS[name][0])


def _converse(value: dict[str, Any], event: StreamEvent) -> None:
    group: Group = ("block", _index(value, "contentBlockIndex"))
    delta = value.get("delta")
    if type(delta) is dict:
        for path, kind in (
            (("text",), TextKind.TEXT),
            (("toolUse", "input"), TextKind.ARGUMENTS),
            (("reasoningContent", "text"), TextKind.REASONING),
        ):
            text = in_object(delta, *path)
            if type(text) is str and text:
                channel = Channel(group, path[0], kind, kind is TextKind.REASONING)
                event.deltas.append(TextDelta(channel, ("delta", *path), text))
        _unknown(delta, frozenset(("text", "toolUse", "reasoningContent")), ("delta",), event)
    elif "stopReason" in value:
        event.ends.append(EVERY)
    elif "start" not in value and "contentBlockIndex" in value:
        event.ends.append(group)
    _unknown(value, _CONVERSE_EVENT, (), event)


def _array(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _number(step: str | int) -> int:
    return step if type(step) is int else -1


def _index(value: dict[str, Any], name: str, otherwise: int = -1) -> int:
    found = value.get(name)
    return found if type(found) is int else otherwise


def _plain(value: dict[str, Any], event: StreamEvent) -> bool:
    """An event of a model whose own form is not one of those above."""
    if "type" in value:
        return False
    for path in _PLAIN_TEXTS:
        text: Any = value
        for step in path:
            if isinstance(step, int):
                text = text[step] if type(text) is list and len(text) > step else None
            else:
                text = in_object(text, step)
        if type(text) is str:
            channel = Channel(("plain",), path[-1], TextKind.TEXT)
            if text:
                event.deltas.append(TextDelta(channel, path, text))
            for found in _found(value, ()):
                if found.path != path and found.path[-1] not in _PLAIN_ENDS:
                    event.wholes.append(WholeText(found))
            holder = _holder(value, path)
            if any(holder.get(name) or value.get(name) for name in _PLAIN_ENDS):
                event.ends.append(("plain",))
            return True
    return False


def _unknown(value: dict[str, Any], known: frozenset[str], path: Path, event: StreamEvent) -> None:
    if not value.keys() <= known:
        for found in _found({key: each for key, each in value.items() if key not in known}, path):
            event.wholes.append(WholeText(found))


def _others(value: Any, event: StreamEvent, path: Path = ()) -> None:
    event.wholes.extend(WholeText(found) for found in _found(value, path))


def _found(value: Any, path: Path) -> Iterator[Found]:
    for number, found in enumerate(found_texts(value)):
        if number == MAX_TEXTS:
            raise Unreadable(f"an event of the stream has more than {MAX_TEXTS} texts")
        yield found._replace(path=(*path, *found.path))


def _holder(value: Any, path: Path) -> Any:
    """The object or array that has what stands at this path."""
    for step in path[:-1]:
        value = value[step]
    return value
