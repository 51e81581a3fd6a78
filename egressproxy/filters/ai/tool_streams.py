"""ToolStream: a streamed answer whose calls of tools are looked at, and whose lists of MCP are shortened.

Events pass as they come. From the first call on whose arguments decide, they are held until it is whole. What is not
allowed ends the stream before anything of its event is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from egressproxy.ai_apis.framing import BrokenStream, Frame, Framing
from egressproxy.ai_apis.message import JsonMessage, in_object
from egressproxy.ai_apis.stream_events import EVERY, StreamEvent, read_event
from egressproxy.ai_apis.streams import sliced
from egressproxy.ai_apis.strict_json import OtherSpelling, Unreadable, loads, looks_like_json
from egressproxy.ai_apis.texts import TextKind, inner_json
from egressproxy.errors import GatewayError
from egressproxy.model.member_names import AI_EVENT, RPC_ANSWER
from egressproxy.model.work import Work

#: Bytes that are held while a call is not whole.
MAX_HELD: Final = 4 * 1024 * 1024
#: Calls of one answer.
MAX_CALLS: Final = 1000

#: What tells a call within a stream: the group of its channel, and its part where a group has several.
_Key = tuple[object, ...]


class _OpenCall:
    """A call whose name has come, and whose arguments come in pieces."""

    __slots__ = ("arguments", "name", "size")

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[str] = []
        self.size = 0

    def told(self) -> Any:
        """What the arguments say; a string where that is no JSON, an empty object where nothing came."""
        text = "".join(self.arguments)
        found = inner_json(text)
        return found if found is not None else text if text else {}


class ToolStream:
    """One stream. `judge(name, arguments)` raises for a call that is not allowed, `asks(name)` says whether arguments
    decide, `shorten(message)` takes out of a message of MCP what must not be shown. One that `is_lenient` lets pass
    what is no JSON with one meaning, and all that follows a broken framing.
    """

    __slots__ = (
        "_asks", "_calls", "_fault", "_framing", "_held", "_held_size", "_is_broken", "_is_holding", "_is_lenient",
        "_judge", "_shorten",
    )  # fmt: skip

    def __init__(
        self,
        framing: Framing,
        judge: Callable[[str, Any], None],
        asks: Callable[[str], bool],
        shorten: Callable[[JsonMessage], None],
        *,
        is_lenient: bool = False,
    ) -> None:
        self._framing = framing
        self._is_lenient = is_lenient
        self._is_broken = False
        self._judge = judge
        self._asks = asks
        self._fault: GatewayError | None = None
        self._shorten = shorten
        self._calls: dict[_Key, _OpenCall] = {}
        self._held: list[bytes] = []
        self._held_size = 0
        self._is_holding = False

    def feed(self, data: bytes, *, is_last: bool) -> bytes:
        """What is sent for these bytes. Raises what `judge` raises, and Unreadable."""
        if self._fault is not None:
            raise self._fault
        try:
            self._take_all(data)
        except GatewayError as fault:
            if is_last or self._is_holding or not self._held:
                raise
            self._fault = fault  # with the next piece: what came before is sent first
        if is_last:
            rest = None if self._is_broken else self._framing.rest()
            if rest is not None and not _is_cut(rest):
                self._take(rest)
            self._end(None)
        if self._is_holding:
            if self._held_size > MAX_HELD:
                raise Unreadable(f"a call of a tool has more than {MAX_HELD} bytes")
            return b""
        made, self._held, self._held_size = b"".join(self._held), [], 0
        return made

    def feeding(self, data: bytes, *, is_last: bool) -> Work[bytes]:
        """`feed` in turns."""
        made, left = list[bytes](), len(data)
        for piece in sliced(data):
            left -= len(piece)
            made.append(self.feed(piece, is_last=is_last and not left))
            if self._fault is not None and not is_last:
                break  # what came before is sent first
            yield
        return b"".join(made)

    def _take_all(self, data: bytes) -> None:
        if self._is_broken:
            self._held.append(data)
            return
        rest = b""
        try:
            frames = self._framing.feed(data)
        except BrokenStream as broken:
            if not self._is_lenient:
                raise
            self._is_broken = True
            frames, rest = broken.frames, broken.rest
        for frame in frames:
            self._take(frame)
        if self._is_broken:
            self._end(None)  # what follows is not looked at, and no call is whole later
            self._held.append(rest)

    def _take(self, frame: Frame) -> None:
        payload = None
        if frame.payload and frame.payload != b"[DONE]":
            try:
                value = loads(frame.payload)
            except Unreadable:
                if (
                    looks_like_json(frame.payload) and not self._is_lenient
                ):  # others may read it: NaN, many levels, many parts
                    raise
                value = None  # text, which calls nothing
            messages = value if type(value) is list else [value]
            is_rpc = any(type(each) is dict and "jsonrpc" in each for each in messages)
            fault = (RPC_ANSWER if is_rpc else AI_EVENT).fault(value)
            if fault:
                raise OtherSpelling(fault)
            if is_rpc:
                message = JsonMessage(frame.payload, value)
                self._shorten(message)
                payload = message.body() if message.is_changed else None
            elif type(value) is dict:
                self._look(value)
        written = self._framing.write(frame, payload, ())
        self._held.append(written)
        self._held_size += len(written)

    def _look(self, value: dict[str, Any]) -> None:
        event = read_event(value)
        is_told_whole = True
        for key, name in _begun(value):
            is_told_whole = False
            call = self._calls.get(key)
            if call is None:
                if len(self._calls) >= MAX_CALLS:
                    raise Unreadable(f"the answer has more than {MAX_CALLS} calls")
                call = self._calls[key] = _OpenCall()
            call.name += name
            if self._asks(call.name):
                self._is_holding = True
            else:
                self._judge(call.name, {})
        if is_told_whole:
            for whole in JsonMessage(b"", value).tool_calls():
                if whole.fault:
                    raise OtherSpelling(whole.fault)
                self._judge(whole.name, whole.arguments)
            if value.get("type") == "response.output_item.done":  # it has told the arguments whole
                self._calls.pop(("item", _number(value, "output_index", -1)), None)
                self._look_whether_to_hold()
        self._keep_arguments(event)
        for group in event.ends:
            self._end(group)

    def _keep_arguments(self, event: StreamEvent) -> None:
        for delta in event.deltas:
            if delta.channel.kind is not TextKind.ARGUMENTS:
                continue
            group, part = delta.channel.group, delta.channel.part
            call = self._calls.get((*group, part)) or self._calls.get(tuple(group))
            if call is not None and self._is_holding:
                call.arguments.append(delta.text)
                call.size += len(delta.text)
                if call.size > MAX_HELD:
                    raise Unreadable(f"a call of a tool has more than {MAX_HELD} bytes")

    def _end(self, group: object) -> None:
        """Judge the calls of a group, which are whole now; None, EVERY: all of them."""
        for key in list(self._calls):
            if group is None or group is EVERY or (isinstance(group, tuple) and key[: len(group)] == group):
                call = self._calls.pop(key)
                self._judge(call.name, call.told())
        self._look_whether_to_hold()

    def _look_whether_to_hold(self) -> None:
        if not any(self._asks(call.name) for call in self._calls.values()):
            self._is_holding = False


def _begun(value: dict[str, Any]) -> list[tuple[_Key, str]]:
    """The calls that begin with an event, or whose name goes on in it: chat, Anthropic, Bedrock and Responses."""
    found: list[tuple[_Key, str]] = []
    choices = value.get("choices")
    for at, choice in enumerate(choices if type(choices) is list else ()):
        calls = in_object(choice, "delta", "tool_calls")
        number = _number(choice, "index", at)
        for place, call in enumerate(calls if type(calls) is list else ()):
            for holder in ("function", "custom"):
                name = in_object(call, holder, "name")
                if type(name) is str and name:
                    found.append((("choice", number, ("tool", _number(call, "index", place))), name))
        name = in_object(choice, "delta", "function_call", "name")
        if type(name) is str and name:
            found.append((("choice", number, "function_call"), name))
    if value.get("type") == "content_block_start":
        name = in_object(value, "content_block", "name")
        if type(name) is str:
            found.append((("block", _number(value, "index", -1)), name))
    elif "contentBlockIndex" in value or type(value.get("start")) is dict:
        name = in_object(value, "start", "toolUse", "name")
        if type(name) is str:
            found.append((("block", _number(value, "contentBlockIndex", -1)), name))
    elif value.get("type") == "response.output_item.added":
        name = in_object(value, "item", "name")
        if type(name) is str:
            found.append((("item", _number(value, "output_index", -1)), name))
    return found


def _is_cut(frame: Frame) -> bool:
    """Whether this last event of a stream is not whole: it is left out, as clients do."""
    try:
        if looks_like_json(frame.payload):
            loads(frame.payload)
    except Unreadable:
        return True
    return False


def _number(value: Any, name: str, otherwise: int) -> int:
    found = in_object(value, name)
    return found if type(found) is int else otherwise
