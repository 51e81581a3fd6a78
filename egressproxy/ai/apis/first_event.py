"""FirstEvent: detects a response with status 200 whose first event, or whole body, is an error.

Anthropic sends `event: error` for an overload after the head, OpenAI and compatible servers `data: {"error": …}`,
Responses `response.failed`, Gemini `{"error": {"code": 503, …}}`, Bedrock a message with `:exception-type`. Each maps
to the status that the provider uses for the same error before the head.
"""

from __future__ import annotations

import re
from typing import Any, Final

from egressproxy.ai.apis.apis import Operation
from egressproxy.ai.apis.framing import BrokenStream, Frame
from egressproxy.ai.apis.message import in_object
from egressproxy.ai.apis.streams import framing_of
from egressproxy.model.strict_json import Unreadable, loads

#: The most bytes of a response that are checked: errors are short.
MAX_LOOKED_AT: Final = 64 * 1024
#: The status of a stream that ends without content.
NOTHING_SAID: Final = 502
GOOD: Final = 200

_EVENTS: Final = (b"text/event-stream", b"application/vnd.amazon.eventstream")
#: Events before the model's output, after which an error may still follow.
_OPENING: Final = frozenset(
    ("ping", "message_start", "response.created", "response.queued", "response.in_progress", "messageStart")
)
_DONE: Final = b"[DONE]"
#: Providers' error types, as one word in lower case without suffix -> the status. Sources:
#: the errors of Anthropic's and OpenAI's API references, google.rpc.Code, Bedrock's runtime; vLLM.
_STATUSES: Final = {
    "overloaded": 529,
    "engineoverloaded": 503,
    "serveroverloaded": 503,
    "slowdown": 503,
    "serviceunavailable": 503,
    "unavailable": 503,
    "modelnotready": 503,
    "ratelimit": 429,
    "ratelimitexceeded": 429,
    "toomanyrequests": 429,
    "requests": 429,
    "tokens": 429,
    "insufficientquota": 429,
    "resourceexhausted": 429,
    "throttling": 429,
    "timeout": 504,
    "deadlineexceeded": 504,
    "modeltimeout": 504,
    "api": 500,
    "server": 500,
    "internal": 500,
    "internalserver": 500,
    "modelstream": 500,
    "unknown": 500,
}
_NO_LETTERS: Final = re.compile(r"[^a-z]+")
_END: Final = re.compile(r"(?:error|exception)\Z")


class FirstEvent:
    """Reads the beginning of one decoded response. `status` is 0 until decided; then GOOD, or the error's status."""

    __slots__ = ("_framing", "_seen", "_size", "status")

    def __init__(self, media_type: bytes, operation: Operation | None) -> None:
        """`operation` is that of the request, if its path belongs to a known API."""
        self.status = 0
        self._framing = framing_of(media_type, operation)
        self._seen = bytearray()  # of a JSON body
        self._size = 0

    def feed(self, data: bytes) -> None:
        """More of the body."""
        if self.status:
            return
        self._size += len(data)
        if self._framing is None:
            self._seen += data
        else:
            try:
                self._read(self._framing.feed(data))
            except BrokenStream as broken:
                self._read(broken.frames)
                self._settle(GOOD)  # the reader of the stream reports the error
        if self._size > MAX_LOOKED_AT:
            self._settle(GOOD)

    def end(self) -> None:
        """The body is whole."""
        if self._framing is not None:
            if not self.status and (frame := self._framing.rest()) is not None:
                self._read([frame])
            self._settle(NOTHING_SAID)
        elif not self.status:
            self._settle(_status_of_body(bytes(self._seen)))
        self._seen.clear()

    def _read(self, frames: list[Frame]) -> None:
        for frame in frames:
            if not self.status and frame.payload and frame.payload != _DONE:
                self._settle(_status_of_event(frame))

    def _settle(self, status: int) -> None:
        if not self.status:
            self.status = status


def may_tell(media_type: bytes, length: int, operation: Operation | None) -> bool:
    """Whether a response of this type and length (negative: unknown) may contain an error: an event stream, or the
    response of a known API.
    """
    if media_type in _EVENTS:
        return True
    return operation is not None and media_type == b"application/json" and length <= MAX_LOOKED_AT


def _status_of_event(frame: Frame) -> int:
    """The status of an event; 0 for an opening event without content."""
    if frame.name in _OPENING:
        return 0
    try:
        value = loads(frame.payload)
    except Unreadable:
        return GOOD
    found = _failure(value)
    if found is None and frame.name == "error":
        found = value
    if found is None and frame.name.lower().endswith("exception"):
        found = {"type": frame.name}
    if found is not None:
        return status_of_failure(found)
    return 0 if _is_opening(value) else GOOD


def _status_of_body(body: bytes) -> int:
    if not body.strip():
        return NOTHING_SAID
    if b'"error"' not in body:
        return GOOD
    try:
        value = loads(body)
    except Unreadable:
        return GOOD
    found = _failure(value)
    return GOOD if found is None else status_of_failure(found)


def _failure(value: Any) -> Any:
    """The error in an event or a body, or None."""
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not dict:
        return None
    type_ = value.get("type")
    if type_ == "response.failed":
        return in_object(value, "response", "error") or {}
    if value.get("error"):
        return value["error"]
    if type_ == "error" or value.get("object") == "error":
        return {name: each for name, each in value.items() if each != "error"}
    return None


def status_of_failure(error: Any) -> int:
    """The status of a provider's error object: its own, else by its type; 500 without both, and 400 for unknown types,
    which are about the request.
    """
    if type(error) is not dict:
        return 500
    values = [error.get(name) for name in ("code", "status", "type", "reason")]
    for each in values:
        number = int(each) if type(each) is str and each.isdecimal() and len(each) == 3 else each
        if type(number) is int and 400 <= number < 600:
            return number
    words = [each for each in values if type(each) is str and each]
    for word in words:
        plain = _NO_LETTERS.sub("", word.lower())
        found = _STATUSES.get(_END.sub("", plain)) or _STATUSES.get(plain)
        if found is not None:
            return found
    return 400 if words else 500


def _is_opening(value: Any) -> bool:
    """Whether an event precedes the model's output: a `ping`, the head of a message, a role without content."""
    if type(value) is not dict:
        return False
    type_ = value.get("type")
    if type(type_) is str and type_ in _OPENING:
        return True
    choices = value.get("choices")
    if type(choices) is not list or value.get("usage"):
        return False
    for choice in choices:
        delta = choice.get("delta") if type(choice) is dict else None
        if type(delta) is not dict or choice.get("finish_reason") or choice.get("text"):
            return False
        if any(each for name, each in delta.items() if name != "role"):
            return False
    return True
