"""The messages of OpenAI's realtime API over a WebSocket, as requests and streams of responses. Text only.

What an event of the client says is shown to filters as a request for a response of the same model (`request_of`), and
what they leave of it goes into the event (`message_of`). What is not known is refused, and so is audio: nobody can look
at it. Source: OpenAI's API reference, client events and server events of realtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from egressproxy.ai.apis.apis import usual_spelling
from egressproxy.ai.apis.message import JsonMessage
from egressproxy.ai.apis.responses_websocket import ResponsesMessages, checked
from egressproxy.filters.messages import MessageKind, ServerEvent
from egressproxy.model.message import RequestHead
from egressproxy.model.strict_json import Unreadable, dumps, loads
from egressproxy.model.work import Work

#: Of an event, which has no audio: it is read in one step of the loop, four times.
MAX_MESSAGE: Final = 128 * 1024
_UPDATE, _ITEM, _CREATE = "session.update", "conversation.item.create", "response.create"
#: Events of the client without content, and their members.
_WITHOUT_CONTENT: Final = {
    "conversation.item.delete": frozenset(("type", "event_id", "item_id")),
    "response.cancel": frozenset(("type", "event_id", "response_id")),
}
#: The members of the other events, and the one with the content.
_EVENTS: Final = {
    _UPDATE: (frozenset(("type", "event_id", "session")), "session"),
    _ITEM: (frozenset(("type", "event_id", "item", "previous_item_id")), "item"),
    _CREATE: (frozenset(("type", "event_id", "response")), "response"),
}
_OF_BOTH: Final = frozenset(
    ("instructions", "max_output_tokens", "output_modalities", "parallel_tool_calls", "reasoning", "tool_choice",
     "tools", "temperature")
)  # fmt: skip
_MEMBERS: Final = {
    "session": _OF_BOTH | {"type", "model", "truncation"},
    "response": _OF_BOTH | {"conversation", "input", "metadata"},
}
_ITEMS: Final = {
    "message": frozenset(("type", "id", "object", "status", "role", "content")),
    "function_call": frozenset(("type", "id", "object", "status", "name", "arguments", "call_id")),
    "function_call_output": frozenset(("type", "id", "object", "status", "call_id", "output")),
    "item_reference": frozenset(("type", "id")),
}
_PARTS: Final = ("input_text", "output_text")
_OF_PART: Final = frozenset(("type", "text"))
#: Events of the server that belong to no response, what they are about, and which members of that clients get: texts
#: that no filter has seen are left out.
_ASIDE: Final = {
    "session.created": ("session", frozenset(("id", "object", "type", "model", "output_modalities", "expires_at"))),
    "session.updated": ("session", frozenset(("id", "object", "type", "model", "output_modalities", "expires_at"))),
    "conversation.created": ("conversation", frozenset(("id", "object"))),
    "conversation.item.created": ("item", frozenset(("id", "object", "type", "status", "role"))),
    "conversation.item.added": ("item", frozenset(("id", "object", "type", "status", "role"))),
    "conversation.item.done": ("item", frozenset(("id", "object", "type", "status", "role"))),
    "conversation.item.deleted": ("", frozenset[str]()),
    "rate_limits.updated": ("", frozenset[str]()),
    "error": ("error", frozenset(("type", "code", "param", "event_id"))),
}
_OF_ASIDE: Final = frozenset(("type", "event_id", "item_id", "previous_item_id"))
#: A text of these events: an id, a name, a code. A sentence is none.
_WORD: Final = re.compile(r"[A-Za-z0-9._:/\[\]-]{0,256}")
_MAX_LIST: Final = 8
#: What is told of a rate limit.
_OF_LIMIT: Final = ("name", "limit", "remaining", "reset_seconds")
#: Of events that have no id of their own, and of every response.create.
_OWN_ID: Final = "egress_"
#: In place of the message of an error.
_REFUSED: Final = "the server refuses an event of this session: see `code` and `param`"
_OF_RESPONSE: Final = frozenset(
    ("response.created", "response.output_item.added", "response.output_item.done", "response.content_part.added",
     "response.content_part.done", "response.output_text.delta", "response.output_text.done",
     "response.function_call_arguments.delta", "response.function_call_arguments.done")
)  # fmt: skip
_DONE, _ERROR = "response.done", "error"
#: The end of a response by its status, as filters know it.
_ENDS: Final = {status: f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")}
_TEXT, _OUTPUT_TEXT = "text", "output_text"
#: Members that another reader of JSON may take for others, in lower case.
_DECIDING: Final = frozenset(
    ("type", "session", "item", "response", "content", "text", "role", *_OF_BOTH, "model", "input", "output")
)


def model_of_realtime(path: bytes) -> str:
    """The model in the path of a WebSocket of realtime; "" for any other path, and for one that cannot be sure."""
    plain, _, query = path.partition(b"?")
    if usual_spelling(plain) is not plain or not plain.lower().endswith(b"/v1/realtime"):
        return ""
    name, _, value = query.partition(b"=")
    if name != b"model" or b"&" in value or b";" in value or b"+" in value or b"#" in value:
        return ""
    model = unquote_to_bytes(value)
    return model.decode("ascii") if model.isascii() and model.decode("ascii").isprintable() else ""


class RealtimeMessages(ResponsesMessages):
    """The API, of one WebSocket, whose model is `model`. `_is_text`: its session answers with text alone.

    Every event goes on with an id, by which an error of the server says what it is about. That of a response.create is
    the gateway's: a client that chose it could pass off the error of another event as the end of a response.
    """

    __slots__ = ("_create_id", "_has_begun", "_ids", "_is_text", "_part_is_text", "_sent_id", "model")

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self._is_text = False
        self._part_is_text = False
        self._ids = count(1)
        #: Of the event that has asked for the latest response: as the client has it, and as the server has it.
        self._create_id: object = None
        self._sent_id = ""
        self._has_begun = False

    # --- the client ------------------------------------------------------------------------------------------------
    def kind_of(self, message: bytes) -> Work[MessageKind]:
        _check_size(message)
        value = _known((yield from JsonMessage.parsing(message)))
        type_ = value["type"]
        members = _WITHOUT_CONTENT.get(type_)
        if members is not None:
            _check_members(value, members, type_)
            _check_ids(value)
            return MessageKind.NO_CONTENT
        if type_ not in _EVENTS:
            raise Unreadable(f"{type_[:60]!r} is not known here, or has audio")
        members, name = _EVENTS[type_]
        _check_members(value, members, type_)
        _check_ids({key: each for key, each in value.items() if key != name})
        content = value.get(name, {} if type_ == _CREATE else None)
        if type(content) is not dict:
            raise Unreadable(f"{type_} has no {name}")
        if type_ == _ITEM:
            _check_item(content)
            return MessageKind.CONTENT
        _check_members(content, _MEMBERS[name], name)
        _check_tools(content)
        is_text = content.get("output_modalities")
        if is_text is not None and is_text != [_TEXT]:
            raise Unreadable('output_modalities has to be ["text"]: audio cannot be looked at')
        if type_ == _UPDATE:
            if content.get("type") != "realtime":
                raise Unreadable("the type of the session has to be realtime")
            if content.get("model", self.model) != self.model:
                raise Unreadable("a session keeps the model that its WebSocket was opened with")
            return MessageKind.CONTENT
        if not (self._is_text or is_text is not None):
            raise Unreadable('set output_modalities of the session to ["text"] first: audio cannot be looked at')
        given = content.get("input", [])
        if type(given) is not list:
            raise Unreadable("input is no list")
        for item in given:
            _check_item(item)
        self._create_id, self._has_begun = value.get("event_id"), False
        return MessageKind.ASKS_RESPONSE

    def request_of(self, message: bytes) -> bytes:
        value = loads(message)
        name = _EVENTS[value["type"]][1]
        content = value.get(name, {})
        body = {"model": self.model, "input": [content]} if name == "item" else {"input": [], **content}
        body["model"] = self.model
        if name == "session":
            del body["type"]
        return dumps(body)

    def message_of(self, message: bytes, body: bytes) -> bytes:
        value, left = loads(message), loads(body)
        name = _EVENTS[value["type"]][1]
        self._add_id(value)
        if type(left) is not dict or left.pop("model", None) != self.model:
            raise Unreadable("a session keeps the model that its WebSocket was opened with, and no alias holds here")
        if name == "item":
            items = left.get("input")
            if type(items) is not list or len(items) != 1:
                raise Unreadable("filters have left no item")
            value[name] = items[0]
        else:
            was = value.get(name, {})
            if "input" not in was and left.get("input") == []:
                del left["input"]
            self._is_text |= name == "session" and left.get("output_modalities") == [_TEXT]
            value[name] = {**left, **{key: was[key] for key in ("type", "model") if key in was}}
        return dumps(value)

    def without_content(self, message: bytes) -> bytes:
        value = loads(message)
        self._add_id(value)
        return dumps(value)

    def _add_id(self, value: dict[str, Any]) -> None:
        if value["type"] == _CREATE:
            value["event_id"] = self._sent_id = f"{_OWN_ID}{next(self._ids)}"
        elif value.get("event_id") is None:
            value["event_id"] = f"{_OWN_ID}{next(self._ids)}"

    # --- the server ------------------------------------------------------------------------------------------------
    def outside_response(self, message: bytes, *, is_asked: bool) -> bytes | None:
        _check_size(message)
        value = checked(loads(message))
        type_ = value["type"]
        if type_ not in _ASIDE or (type_ == _ERROR and is_asked and self._ends_by(value)):
            return None
        name, members = _ASIDE[type_]
        made = _words(value, _OF_ASIDE)
        about = value.get(name, {})
        if name:
            if type(about) is not dict:
                raise Unreadable(f"{type_} has no {name}")
            made[name] = _words(about, members)
            if name == "item":  # what it says comes by the events of a response, or was said by the client
                made[name]["content"] = []
            elif name == _ERROR:
                made[name]["message"] = _REFUSED
        if type_ == "rate_limits.updated":
            made["rate_limits"] = _limits(value.get("rate_limits"))
        return dumps(made)

    def _ends_by(self, error: dict[str, Any]) -> bool:
        """Whether an error is the answer to the response.create under way: none has begun, and it names no other event
        of the client.
        """
        about = error.get("error")
        named = about.get("event_id") if type(about) is dict else None
        return not self._has_begun and named in (None, self._sent_id)

    def event_of(self, message: bytes, *, is_first: bool) -> ServerEvent:
        value = checked(loads(message))
        type_ = value["type"]
        if type_ == _ERROR:
            about = value.get("error")
            is_clients = type(about) is dict and about.get("type") == "invalid_request_error"
            if type(about) is dict and about.get("event_id") is not None:
                message = dumps({**value, "error": {**about, "event_id": self._create_id}})
            return ServerEvent(message, is_last=True, status=400 if is_clients else 500)
        if is_first is not (type_ == "response.created"):
            raise Unreadable(f"a response does not begin with {type_[:60]!r}, or begins twice")
        self._has_begun = True
        if type_ == _DONE:
            response = value.get("response")
            status = response.get("status") if type(response) is dict else None
            if type(status) is not str or status not in _ENDS:
                raise Unreadable("the status of response.done is not known")
            value["type"] = _ENDS[status]
            return super().event_of(dumps(value), is_first=is_first)
        if type_ not in _OF_RESPONSE:
            raise Unreadable(f"the event {type_[:60]!r} is not known here, or has audio")
        part = value.get("part")
        if type(part) is dict:
            self._part_is_text = part.get("type") == _TEXT
            if part.get("type") not in (_TEXT, _OUTPUT_TEXT) or "audio" in part or "transcript" in part:
                raise Unreadable("a part of a response is no text")
            value["part"] = {**part, "type": _OUTPUT_TEXT}
            message = dumps(value)
        return super().event_of(message, is_first=is_first)

    def reader(self) -> Callable[[bytes, bool], list[bytes]]:
        read = super().reader()

        def read_all(events: bytes, is_last: bool) -> list[bytes]:
            return [self._as_sent(each) for each in read(events, is_last)]

        return read_all

    def _as_sent(self, event: bytes) -> bytes:
        """An event as filters leave it, in the words of realtime."""
        value = loads(event)
        if type(value) is dict and value.get("type") in _ENDS.values():
            value["type"] = _DONE
            return dumps(value)
        if type(value) is dict and type(value.get("part")) is dict and self._part_is_text:
            value["part"] = {**value["part"], "type": _TEXT}
            return dumps(value)
        return event

    # --- heads and errors ------------------------------------------------------------------------------------------
    def request_head(self, head: RequestHead) -> RequestHead:
        made = super().request_head(head)
        made.path = made.path.partition(b"?")[0].removesuffix(b"realtime") + b"responses"
        return made

    def error(self, about: dict[str, object], retry_after_s: int) -> bytes:
        told: dict[str, Any] = loads(super().error(about, retry_after_s))
        return dumps({**told, "event_id": f"event_{about['request_id']}"})


def _check_size(message: bytes) -> None:
    """Raises Unreadable for more than is read in one step."""
    if len(message) > MAX_MESSAGE:
        raise Unreadable(f"it has more than {MAX_MESSAGE} bytes")


def _known(value: Any) -> dict[str, Any]:
    found = checked(value)
    _check_names(found)
    return found


def _check_names(value: Any) -> None:
    """No member has another spelling of a name that decides. Raises Unreadable."""
    holders = [value]
    while holders:
        holder = holders.pop()
        if type(holder) is list:
            holders += holder
        elif type(holder) is dict:
            for name, each in holder.items():
                if name not in _DECIDING and name.casefold() in _DECIDING:
                    raise Unreadable(f"it has `{name[:20]}`, which some read as `{name.casefold()}`")
                if name != "parameters":  # a schema of a tool has names of its own
                    holders.append(each)


def _words(value: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The members of these names that hold no text but words, alone or in a list."""
    return {name: value[name] for name in names if name in value and all(map(_is_word, _listed(value[name])))}


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list and len(value) <= _MAX_LIST else [value]


def _is_word(value: Any) -> bool:
    if type(value) is str:
        return _WORD.fullmatch(value) is not None
    return value is None or type(value) in (int, float, bool)


def _limits(limits: Any) -> list[dict[str, Any]]:
    """The rate limits of the server."""
    listed = limits if type(limits) is list else ()
    return [_words(each, _OF_LIMIT) for each in listed[:_MAX_LIST] if type(each) is dict]


def _check_members(value: dict[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(value.keys() - known)
    if unknown:
        raise Unreadable(f"{where} has {unknown[0][:60]!r}, which is not known here, or is for audio")


def _check_ids(value: dict[str, Any]) -> None:
    if any(type(each) is not str or len(each) > 256 for each in value.values() if each is not None):
        raise Unreadable("an id is no short text")
    if (value.get("event_id") or "").startswith(_OWN_ID):
        raise Unreadable(f"the ids of the gateway's own begin with {_OWN_ID}")


def _check_item(item: Any) -> None:
    """Raises Unreadable for an item that is not of text alone."""
    known = _ITEMS.get(item["type"]) if type(item) is dict and type(item.get("type")) is str else None
    if known is None:
        raise Unreadable("an item of this type is not known here")
    _check_members(item, known, "the item")
    if any(type(each) is not str for name, each in item.items() if name != "content"):
        raise Unreadable("a member of an item is no text")
    if item["type"] == "message":
        parts = item.get("content")
        if type(parts) is not list:
            raise Unreadable("the content of an item is no list")
        for part in parts:
            if type(part) is not dict or part.get("type") not in _PARTS or type(part.get("text")) is not str:
                raise Unreadable("a part of an item is no text")
            _check_members(part, _OF_PART, "a part of an item")


def _check_tools(content: dict[str, Any]) -> None:
    tools = content.get("tools") or []
    if type(tools) is not list or any(type(each) is not dict or each.get("type") != "function" for each in tools):
        raise Unreadable("tools have to be functions: others are called by the server")
