"""ToolStream: a streamed answer whose calls of tools are looked at, and whose lists of MCP are shortened.

Events pass as they come. From the first call on whose arguments decide, they are held until it is whole. What is not
allowed ends the stream before anything of its event is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from egressproxy.ai.apis.framing import BrokenStream, Frame, Framing
from egressproxy.ai.apis.member_names import AI_EVENT, RPC_ANSWER
from egressproxy.ai.apis.message import JsonMessage, in_object
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.stream_events import EVERY, StreamEvent, read_event
from egressproxy.ai.apis.streams import sliced
from egressproxy.ai.apis.texts import TextKind, inner_json
from egressproxy.errors import GatewayError
from egressproxy.model.strict_json import OtherSpelling, Unreadable, dumps, loads, looks_like_json
from egressproxy.model.work import Work

#: Bytes that are held while a call is not whole.
MAX_HELD: Final = 4 * 1024 * 1024
#: Calls of one answer.
MAX_CALLS: Final = 1000

#: Pieces of a name.
_MAX_PIECES: Final = 100

#: What tells a call within a stream: the group of its channel, and its part where a group has several.
_Key = tuple[object, ...]


class _OpenCall:
    """A call whose name has come, and whose arguments come in pieces."""

    __slots__ = ("arguments", "id", "names", "size")

    def __init__(self) -> None:
        self.id = ""
        self.names: list[str] = []  # the name, and where more of it came each piece, which some take for a name
        self.arguments: list[str] = []
        self.size = 0

    def called(self, name: str) -> None:
        """A piece of the name. Raises Unreadable for too many."""
        if not self.names:
            self.names.append(name)
            return
        if len(self.names) > _MAX_PIECES:
            raise Unreadable(f"the name of a call comes in more than {_MAX_PIECES} pieces")
        self.names[0] += name
        self.names.append(name)

    def add(self, text: str) -> None:
        """A piece of the arguments. Raises Unreadable for too many bytes."""
        self.arguments.append(text)
        self.size += len(text)
        if self.size > MAX_HELD:
            raise Unreadable(f"a call of a tool has more than {MAX_HELD} bytes")

    def parsed_arguments(self) -> Any:
        """What the arguments say; a string where that is no JSON, an empty object where nothing came."""
        text = "".join(self.arguments)
        found = inner_json(text)
        return found if found is not None else text if text else {}


class ToolStream:
    """One stream. `judge(name, arguments)` raises for a call that is not allowed, `asks(name)` says whether arguments
    decide, `shorten(message)` takes out of a message of MCP what must not be shown, in turns. One that `is_lenient`
    lets pass what is no JSON with one meaning, and all that follows a broken framing.
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
        shorten: Callable[[JsonMessage], Work[None]],
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

    @property
    def held(self) -> int:
        """Bytes of the event that has not ended, and of those that wait for the end of a call."""
        return self._framing.held + self._held_size

    def _feed(self, data: bytes, *, is_last: bool) -> Work[bytes]:
        if self._fault is not None:
            raise self._fault
        try:
            yield from self._take_all(data)
        except GatewayError as fault:
            if is_last or self._is_holding or not self._held:
                raise
            self._fault = fault  # with the next piece: what came before is sent first
        if is_last:
            rest = None if self._is_broken else self._framing.rest()
            if rest is not None and not _is_cut(rest):
                yield from self._take(rest)
            self._end(None)
        if self._is_holding:
            if self._held_size > MAX_HELD:
                raise Unreadable(f"a call of a tool has more than {MAX_HELD} bytes")
            return b""
        made, self._held, self._held_size = b"".join(self._held), [], 0
        return made

    def feeding(self, data: bytes, *, is_last: bool) -> Work[bytes]:
        """What is sent for these bytes, in turns. Raises what `judge` raises, and Unreadable."""
        made, left = list[bytes](), len(data)
        for piece in sliced(data):
            left -= len(piece)
            made.append((yield from self._feed(piece, is_last=is_last and not left)))
            if self._fault is not None and not is_last:
                break  # what came before is sent first
            yield
        return b"".join(made)

    def _take_all(self, data: bytes) -> Work[None]:
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
            yield from self._take(frame)
        if self._is_broken:
            self._end(None)  # what follows is not looked at, and no call is whole later
            self._held.append(rest)

    def _take(self, frame: Frame) -> Work[None]:
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
                yield from self._shorten(message)
                payload = message.body() if message.is_changed else None
            elif type(value) is dict:
                self._look(value)
        written = self._framing.write(frame, payload, ())
        self._held.append(written)
        self._held_size += len(written)

    def _look(self, value: dict[str, Any]) -> None:
        event = read_event(value)
        begun: set[Path] = set()
        for piece in _pieces(value):
            if piece.name:
                begun.add(piece.path)
            self._take_piece(piece)
        for whole in JsonMessage(b"", value).tool_calls():
            if whole.path in begun:
                continue
            if whole.fault:
                raise OtherSpelling(whole.fault)
            self._judge(whole.name, whole.arguments)
        if value.get("type") == "response.output_item.done":  # it has told the arguments whole
            self._calls.pop(("item", _number(value, "output_index", -1)), None)
            self._look_whether_to_hold()
        self._keep_arguments(event)
        for group in event.ends:
            self._end(group)

    def _take_piece(self, piece: _Piece) -> None:
        call = self._calls.get(piece.key)
        if call is not None and piece.id and call.id and piece.id != call.id and piece.name:
            self._judge_call(self._calls.pop(piece.key))  # one more call in the place of another one
            call = None
        if call is None:
            if not piece.name:
                return
            if len(self._calls) >= MAX_CALLS:
                raise Unreadable(f"the answer has more than {MAX_CALLS} calls")
            call = self._calls[piece.key] = _OpenCall()
        call.id = call.id or piece.id
        if piece.name:
            call.called(piece.name)
            for name in call.names:
                if self._asks(name):
                    self._is_holding = True
                else:
                    self._judge(name, {})
        if piece.arguments and self._is_holding:
            call.add(piece.arguments)

    def _keep_arguments(self, event: StreamEvent) -> None:
        for delta in event.deltas:
            # Those of chat came with their calls.
            if delta.channel.kind is TextKind.ARGUMENTS and delta.path[0] != "choices":
                group, part = delta.channel.group, delta.channel.part
                call = self._calls.get((*group, part)) or self._calls.get(tuple(group))
                if call is not None and self._is_holding:
                    call.add(delta.text)

    def _end(self, group: object) -> None:
        """Judge the calls of a group, which are whole now; None, EVERY: all of them."""
        for key in list(self._calls):
            if group is None or group is EVERY or (isinstance(group, tuple) and key[: len(group)] == group):
                self._judge_call(self._calls.pop(key))
        self._look_whether_to_hold()

    def _judge_call(self, call: _OpenCall) -> None:
        arguments = call.parsed_arguments()
        for name in call.names:
            self._judge(name, arguments)

    def _look_whether_to_hold(self) -> None:
        if not any(self._asks(name) for call in self._calls.values() for name in call.names):
            self._is_holding = False


class _Piece(NamedTuple):
    """What an event says of a call that comes in pieces. `path` leads to the object that has the name."""

    key: _Key
    path: Path
    name: str
    id: str = ""
    arguments: str = ""


def _pieces(value: dict[str, Any]) -> list[_Piece]:
    """The calls that begin with an event, or go on in it: chat, Anthropic, Bedrock and Responses."""
    found: list[_Piece] = []
    choices = value.get("choices")
    for at, choice in enumerate(choices if type(choices) is list else ()):
        _find_pieces(choice, at, found)
    if value.get("type") == "content_block_start":
        name = in_object(value, "content_block", "name")
        if type(name) is str:
            found.append(_Piece(("block", _number(value, "index", -1)), ("content_block",), name))
    elif "contentBlockIndex" in value or type(value.get("start")) is dict:
        name = in_object(value, "start", "toolUse", "name")
        if type(name) is str:
            found.append(_Piece(("block", _number(value, "contentBlockIndex", -1)), ("start", "toolUse"), name))
    elif value.get("type") == "response.output_item.added":
        name = in_object(value, "item", "name")
        if type(name) is str:
            found.append(_Piece(("item", _number(value, "output_index", -1)), ("item",), name))
    return found


def _find_pieces(choice: Any, at: int, found: list[_Piece]) -> None:
    """The same of a choice of chat."""
    number = _number(choice, "index", at)
    delta: Path = ("choices", at, "delta")
    calls = in_object(choice, "delta", "tool_calls")
    for position, call in enumerate(calls if type(calls) is list else ()):
        key = ("choice", number, ("tool", _number(call, "index", position)))
        ident = in_object(call, "id")
        for holder, member in (("function", "arguments"), ("custom", "input")):
            called = in_object(call, holder)
            if type(called) is dict:
                path: Path = (*delta, "tool_calls", position, holder)
                found.append(_piece(key, path, called, member, ident if type(ident) is str else ""))
    called = in_object(choice, "delta", "function_call")
    if type(called) is dict:
        found.append(_piece(("choice", number, "function_call"), (*delta, "function_call"), called, "arguments"))


def _piece(key: _Key, path: Path, called: dict[str, Any], member: str, ident: str = "") -> _Piece:
    name, text = called.get("name"), called.get(member)
    if text is not None and type(text) is not str:  # some servers send the object itself
        text = dumps(text).decode()
    return _Piece(key, path, name if type(name) is str else "", ident, text or "")


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
