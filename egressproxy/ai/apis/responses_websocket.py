"""The messages of OpenAI's responses over a WebSocket, as requests and streams of events.

`response.create` has the members of a request; what the server says is what stands in the events of a stream, one
message each, and one response follows the other. Sources: OpenAI's API reference, WebSocket events of responses;
`codex-rs/codex-api`, `endpoint/responses_websocket.rs`, for `response.processed`, `status` and `headers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.errors import error_object
from egressproxy.ai.apis.framing import SseFraming
from egressproxy.ai.apis.message import JsonMessage
from egressproxy.filters.messages import MessageApi, MessageKind, ServerEvent
from egressproxy.model.message import RequestHead
from egressproxy.model.strict_json import OtherSpelling, Unreadable, dumps, loads
from egressproxy.model.work import Work

_CREATE: Final = "response.create"
_PROCESSED: Final = "response.processed"
#: What ends a response. After an error the server answers the next request.
_ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_ERROR: Final = "error"
#: The members of an event of the client that has no content.
_OF_PROCESSED: Final = frozenset(("type", "response_id"))
_STREAM_ID: Final = "stream_id"
#: The most characters of an id.
_MAX_ID: Final = 256
#: Members that another reader of JSON may take for others, in lower case (`ai.apis.member_names`).
_DECIDING: Final = frozenset(("type", "response", "stream"))
_OF_HANDSHAKE: Final = (
    b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
)  # fmt: skip
_OF_BODY: Final = (b"content-type", b"content-length", b"content-encoding")
#: Of an error that does not say one.
_DEFAULT_STATUS: Final = 500
_BLANKS: Final = bytes.maketrans(b"\r\n", b"  ")


class ResponsesMessages(MessageApi):
    """The API, of one WebSocket. Errors of a request have its `stream_id`, by which clients of several streams tell
    them apart.
    """

    __slots__ = ("_stream_id",)

    def __init__(self) -> None:
        self._stream_id = ""

    def kind_of(self, message: bytes) -> Work[MessageKind]:
        self._stream_id = ""
        value = checked((yield from JsonMessage.parsing(message)))
        type_, stream_id = value["type"], value.get(_STREAM_ID)
        if type(stream_id) is str and len(stream_id) <= _MAX_ID:
            self._stream_id = stream_id
        if type_ == _CREATE:
            if "response" in value:
                raise Unreadable("the request stands in `response`, and not beside `type`")
            return MessageKind.ASKS_RESPONSE
        if type_ == _PROCESSED and value.keys() <= _OF_PROCESSED:
            ident = value.get("response_id")
            if type(ident) is str and len(ident) <= _MAX_ID:
                return MessageKind.NO_CONTENT
        raise Unreadable("it is neither response.create nor response.processed")

    def event_of(self, message: bytes, *, is_first: bool) -> ServerEvent:
        value = checked(loads(message))
        type_ = value["type"]
        if type_ == _ERROR and is_first:
            return ServerEvent(message, is_last=True, status=_status_of(value))
        name = type_.encode("ascii", "replace").translate(None, b"\r\n")
        line = message.translate(_BLANKS)  # between the parts of JSON; inside of strings they cannot stand
        return ServerEvent(b"event: %b\ndata: %b\n\n" % (name, line), is_last=type_ in _ENDS or type_ == _ERROR)

    def reader(self) -> Callable[[bytes, bool], list[bytes]]:
        framing = SseFraming()

        def read(events: bytes, is_last: bool) -> list[bytes]:
            frames = framing.feed(events)
            rest = framing.rest() if is_last else None
            if rest is not None:
                frames.append(rest)
            return [frame.payload for frame in frames if frame.payload]

        return read

    def request_head(self, head: RequestHead) -> RequestHead:
        made = head.copy()
        made.method, made.upgrade = b"POST", b""
        for name in (*_OF_HANDSHAKE, *_OF_BODY):
            made.fields.remove(name)
        made.fields.add(b"content-type", b"application/json")
        return made

    def error(self, about: dict[str, object], retry_after_s: int) -> bytes:
        message, status = str(about["message"]), about["status"]
        if about.get("remedy"):
            message = f"{message} ({about['remedy']})"
        more = {name: value for name, value in about.items() if name not in ("status", "message")}
        code = str(about["reason"])
        assert isinstance(status, int)
        told = error_object(Api.OPENAI_RESPONSES, status, message, code=code, about=more)
        value: dict[str, Any] = {
            "type": _ERROR, "status": status, "code": code, "message": message, "param": None, **told,
        }  # fmt: skip
        if self._stream_id:
            value[_STREAM_ID] = self._stream_id
        if retry_after_s > 0:
            value["headers"] = {"retry-after": str(retry_after_s)}
        return dumps(value)


def _status_of(error: dict[str, Any]) -> int:
    status = error.get("status", error.get("status_code"))
    return status if type(status) is int and 400 <= status <= 599 else _DEFAULT_STATUS


def checked(value: Any) -> dict[str, Any]:
    """An event, whose members have one meaning. Raises Unreadable."""
    if type(value) is not dict or type(value.get("type")) is not str:
        raise Unreadable("it is no object with a `type`")
    for name in value:
        if name not in _DECIDING and name.casefold() in _DECIDING:
            raise OtherSpelling(f"it has `{name[:20]}`, which some read as `{name.casefold()}`")
    return value
