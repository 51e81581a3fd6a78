"""Bodies as filters of users read and change them: JSON, texts of messages of AI providers, and server-sent events.

`egressproxy.filters` has these names, and imports this module when the first of them is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from egressproxy.ai.apis.framing import BrokenStream, Frame, SseFraming
from egressproxy.ai.apis.message import JsonMessage, TextPart
from egressproxy.ai.apis.splice import Path
from egressproxy.filters.base import UNFINISHED_EVENTS, Filter, Rejected
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable, dumps

__all__ = ["JsonBody", "SseEvent", "json", "sse"]

_NONE: Final = object()
_WHOLE: Final = "; a filter that reads JSON gets the body whole with body_mode = BodyMode.BUFFER"


def json(x: Exchange, data: bytes) -> JsonBody:
    """The JSON of a whole body. Raises Rejected for another body: 400 for that of a request, 502 for a response."""
    try:
        return JsonBody(data, JsonMessage.parse(data))
    except Unreadable as error:
        raise _rejected(x, f"the body cannot be read: {error}", _WHOLE) from None


def sse(filter_: Filter, x: Exchange, data: bytes, last: bool) -> list[SseEvent]:
    """The server-sent events that are complete with this piece of a body; the rest is kept for the next call of this
    filter. Return them as `b"".join(map(bytes, events))`. Raises Rejected (502) for an event that is too long.
    """
    unfinished = x.state.get(UNFINISHED_EVENTS)
    if unfinished is None:
        x.keep(UNFINISHED_EVENTS, unfinished := {})
    framing = unfinished.setdefault(id(filter_), SseFraming())
    try:
        frames = framing.feed(data)
    except BrokenStream as error:
        raise _rejected(x, f"the stream cannot be read: {error}") from None
    if last and framing.held:
        rest = framing.rest()
        if rest is None:
            raise _rejected(x, "the stream cannot be read: its last event is too long")
        frames.append(rest)
    return [SseEvent.of(frame) for frame in frames]


def _rejected(x: Exchange, message: str, hint: str = "") -> Rejected:
    refusal = Rejected(message, status=502 if x.has_response else 400)
    refusal.detail = message + hint
    return refusal


class JsonBody:
    """A value of JSON, and the bytes that say it. What is not changed goes on byte for byte.

    A path is a name, an index, or a tuple of them: `body["model"]`, `body["messages", 0, "content"]`.
    """

    __slots__ = ("_message",)

    def __init__(self, data: bytes, value: Any) -> None:
        self._message = JsonMessage(data, value)

    @property
    def value(self) -> Any:
        """What the JSON says. Set it to replace everything; to change a part, set `body[path]`."""
        return self._message.value

    @value.setter
    def value(self, value: Any) -> None:
        """Replace everything. Raises ValueError for what JSON cannot say."""
        self._message = JsonMessage(dumps(value), value)

    def get(self, *path: str | int, default: Any = None) -> Any:
        """The value at this path; `default` where there is none."""
        try:
            return self._message.at(path)
        except (LookupError, TypeError):
            return default

    def __getitem__(self, path: str | int | Path) -> Any:
        """The value at this path. Raises KeyError where there is none."""
        try:
            return self._message.at(path if isinstance(path, tuple) else (path,))
        except (LookupError, TypeError):
            raise KeyError(path) from None

    def __setitem__(self, path: str | int | Path, value: Any) -> None:
        """Replace the value at this path, or add a member to an object. Raises ValueError for a path that leads
        nowhere, and for a value that JSON cannot say.
        """
        dumps(value)
        self._message.put(path if isinstance(path, tuple) else (path,), value)

    def __contains__(self, path: str | int | Path) -> bool:
        return self.get(*(path if isinstance(path, tuple) else (path,)), default=_NONE) is not _NONE

    def texts(self) -> Iterator[TextPart]:
        """Each text of a message to or from an AI provider, in any of their APIs, in order: `text`, `role`, `kind`,
        `where`, and `replace(text)`, which raises ValueError for one that `is_signed`. Names of models and tools, ids
        and binary data are no texts.
        """
        return (part for part in self._message.texts() if part.text)

    def __bytes__(self) -> bytes:
        """What a body method returns: the bytes that came, where nothing was changed."""
        return self._message.body()


class SseEvent:
    """A server-sent event: its `name` ("" for none) and its `data`, which may be set. Its other lines stay.

    Events that have only a comment, or blank lines, have the data "".
    """

    __slots__ = ("_frame", "_json", "_payload")

    def __init__(self, data: str, name: str = "") -> None:
        """A new event. Raises ValueError for a name with a line break."""
        if "\n" in name or "\r" in name:
            raise ValueError("the name of an event is one line")
        head = f"event: {name}\n" if name else ""
        self._frame = Frame(f"{head}data: \n\n".encode(), name, b"")
        self._payload = data.encode()
        self._json: JsonBody | None = None

    @classmethod
    def of(cls, frame: Frame) -> SseEvent:
        """The event of this frame of a stream."""
        made = cls("")
        made._frame, made._payload = frame, frame.payload
        return made

    @property
    def name(self) -> str:
        return self._frame.name

    @property
    def data(self) -> str:
        """The lines of `data:`, with line feeds between them."""
        return self._data().decode("utf-8", "replace")

    @data.setter
    def data(self, data: str) -> None:
        """Replace the data; each line of it is a line of the event."""
        if data != self.data:
            self._payload, self._json = data.encode(), None

    def json(self) -> JsonBody | None:
        """The JSON of the data; None where it is none, as of `[DONE]`. What is changed there goes on with the event."""
        if self._json is None:
            try:
                self._json = JsonBody(self._payload, JsonMessage.parse(self._payload))
            except Unreadable:
                return None
        return self._json

    def _data(self) -> bytes:
        return self._payload if self._json is None else bytes(self._json)

    def __bytes__(self) -> bytes:
        """The event as it is sent: as it came, where nothing was changed."""
        data = self._data()
        return SseFraming().write(self._frame, None if data == self._frame.payload else data, ())
