"""StreamReader and StreamEditor: streamed responses as texts; bytes in, bytes out, cut anywhere.

An editor has a function for each channel (a choice, a block, an item of the response). The function gets the pieces of
its text and returns the text to send; it may hold back text until the end of its channel. Held text is then sent in an
event of the same shape, before the event that ends the channel. Events with unchanged text keep their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.apis import Api, Operation
from egressproxy.ai.apis.aws_event_stream import AwsFraming
from egressproxy.ai.apis.framing import (
    MAX_EVENT_BYTES,
    AddedEvent,
    BrokenStream,
    Frame,
    Framing,
    JsonArrayFraming,
    SseFraming,
)
from egressproxy.ai.apis.splice import splicing_text
from egressproxy.ai.apis.stream_events import (
    EVERY,
    Channel,
    Group,
    StreamEvent,
    TextDelta,
    WholeText,
    delta_event,
    read_event,
)
from egressproxy.ai.apis.texts import Found, TextKind, TextRole
from egressproxy.model.strict_json import Unreadable, dumps, loads, looks_like_json
from egressproxy.model.work import Work, at_once

#: The most open texts of one stream.
MAX_CHANNELS: Final = 2000
#: The most bytes of a stream, and characters of a text, to edit without a pause.
SLICE: Final = 4096
#: Non-empty members that repeat the text in pieces.
_LOG_PROBABILITIES: Final = re.compile(rb'ogprobs(?:Result)?"\s*:(?!\s*(?:null|\[\s*\]))')
#: The last event of OpenAI's streams, which is no JSON.
_DONE: Final = b"[DONE]"


class TextFunction(Protocol):
    """The editing function of one channel. Its errors end the stream."""

    def feed(self, text: str) -> str:
        """The text to send for a piece; "" if it is held back."""

    def flush(self) -> str:
        """The held text, at the end of the channel."""


def framing_of(media_type: bytes, operation: Operation | None = None) -> Framing | None:
    """How a stream of this type (lower case, no parameters) is framed; None: no stream. Gemini's answer to an
    `operation` that asks for no events is an array of JSON.
    """
    if media_type == b"text/event-stream":
        return SseFraming()
    if media_type == b"application/vnd.amazon.eventstream":
        return AwsFraming()
    if media_type == b"application/json" and operation is not None and operation.is_stream:
        return JsonArrayFraming() if operation.api is Api.GEMINI else None
    return None


class StreamReader:
    """Reads the events of a stream. Raises Unreadable for broken framing, a long event, or unreadable JSON; an
    `is_lenient` reader skips these, and stops at broken framing.
    """

    __slots__ = ("_framing", "_is_lenient")

    def __init__(self, framing: Framing, *, is_lenient: bool = False) -> None:
        self._framing: Framing | None = framing
        self._is_lenient = is_lenient

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that are complete with these bytes. Events with plain text data are empty."""
        events: list[StreamEvent] = []
        if self._framing is None:
            return events
        try:
            frames = self._framing.feed(data)
        except BrokenStream as broken:
            if not self._is_lenient:
                raise
            self._framing, frames = None, broken.frames
        for frame in frames:
            if frame.payload and frame.payload != _DONE:
                try:
                    events.append(read_event(loads(frame.payload)))
                except Unreadable:
                    if looks_like_json(frame.payload) and not self._is_lenient:
                        raise
        return events


class _EditedChannel:
    """A channel with its function. `last` is the latest event of the channel; `given` and `sent` are the text so far
    before and after editing, if a later event repeats the whole text.
    """

    __slots__ = ("_function", "_half", "_is_signed", "given", "last", "sent")

    def __init__(self, function: TextFunction, *, is_signed: bool, keeps_sent: bool) -> None:
        self._function = function
        self._is_signed = is_signed
        self._half = ""  # the first half of a surrogate pair that continues in the next piece
        self.last: tuple[Frame, StreamEvent, TextDelta] | None = None
        self.given: list[str] = []
        self.sent: list[str] | None = [] if keeps_sent else None

    def feed(self, text: str) -> str:
        whole = _joined(self._half, text) if self._half else text
        self._half = ""
        if "\ud800" <= whole[-1:] <= "\udbff":
            self._half = whole[-1]
            whole = whole[:-1]
        return self._kept(text, self._function.feed(whole) if whole else "")

    def flush(self) -> str:
        held = self._function.feed(self._half) if self._half else ""
        self._half = ""
        return self._kept("", held + self._function.flush())

    def _kept(self, given: str, made: str) -> str:
        if self._is_signed:
            return given
        if self.sent is not None:
            self.given.append(given)
            self.sent.append(made)
        return made


class StreamEditor:
    """Edits one stream. `function_for` makes the function of a channel; None lets its text pass.

    A text that an event tells whole, and not in pieces, gets a function of its own. Signed channels are told to their
    function, and go as they came. Raises Unreadable where the framing is broken or too much would be kept.
    """

    __slots__ = ("_channels", "_framing", "_function_for", "_groups", "_kept_size")

    def __init__(self, framing: Framing, function_for: Callable[[Channel], TextFunction | None]) -> None:
        self._framing = framing
        self._function_for = function_for
        self._channels: dict[Channel, _EditedChannel | None] = {}
        self._groups: dict[Group, dict[Channel, None]] = {}  # of edited channels: one event may end thousands
        self._kept_size = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes to send for these bytes."""
        return b"".join([at_once(self._editing(frame)) for frame in self._framing.feed(data)])

    def feeding(self, data: bytes) -> Work[bytes]:
        """`feed` as cooperative work."""
        made: list[bytes] = []
        for piece in sliced(data):
            yield
            for frame in self._framing.feed(piece):
                made.append((yield from self._editing(frame)))
                yield
        return b"".join(made)

    @property
    def held(self) -> int:
        """The bytes of the incomplete event, and approximately of texts that an event may repeat as a whole."""
        return self._framing.held + self._kept_size

    def takes_long(self, data: bytes) -> bool:
        """Whether these bytes, or the event they complete, are too long to edit without a pause."""
        return len(data) + self._framing.held > SLICE

    def end(self) -> bytes:
        """The rest, at the end of the stream or after an abort. An incomplete event is left out."""
        frame = self._framing.rest()
        last = b""
        if frame is not None and (not frame.payload or frame.payload == _DONE or _is_json(frame.payload)):
            last = at_once(self._editing(frame))
        return last + self._framing.write(None, None, self._flushed(EVERY, {}))

    def _editing(self, frame: Frame) -> Work[bytes]:
        """The bytes to send for an event."""
        payload = frame.payload
        if not payload:
            is_end = frame.raw.endswith(b"]")
            return self._framing.write(frame, None, self._flushed(EVERY, {}) if is_end else ())
        if payload == _DONE:
            return self._framing.write(frame, None, self._flushed(EVERY, {}))
        try:
            value = loads(payload)
        except Unreadable:
            if b"\\u" in payload and looks_like_json(payload):
                raise  # a client's reader may accept this JSON (NaN, many levels)
            return (yield from self._editing_text(frame, payload.decode("utf-8", "replace"), is_json=False))
        if value.__class__ is str:  # a string alone has no place in an object
            return (yield from self._editing_text(frame, value, is_json=True))
        if len(payload) > SLICE:
            yield
        event = read_event(value)
        if len(event.deltas) == 1 and not event.ends and not event.wholes:
            return (yield from self._editing_delta(frame, event, event.deltas[0]))
        message = AiAnswer(payload, value)
        made_of: dict[Channel, tuple[TextDelta, str]] = {}
        for delta in event.deltas:
            channel = self._channel(delta.channel)
            if channel is not None:
                made = yield from _fed(channel, delta.text)
                if channel.sent is not None:
                    self._count(len(delta.text) + len(made))
                channel.last = frame, event, delta
                made_of[delta.channel] = delta, made
                if made != delta.text:
                    message.replace_text(_found_at(delta), made)
        added: list[AddedEvent] = []
        for group in event.ends:
            added += self._flushed(group, made_of, message)
        for whole in event.wholes:
            yield from self._editing_whole(whole, message)
        edited = (yield from message.writing()) if message.is_changed else None
        return self._framing.write(frame, edited, added)

    def _editing_text(self, frame: Frame, text: str, *, is_json: bool) -> Work[bytes]:
        """For an event that is one text: a string of JSON, or no JSON."""
        made = yield from self._edited_whole(Channel(("event",), frame.name, TextKind.TEXT), text)
        changed = None if made == text else dumps(made) if is_json else made.encode("utf-8", "replace")
        return self._framing.write(frame, changed, ())

    def _editing_delta(self, frame: Frame, event: StreamEvent, delta: TextDelta) -> Work[bytes]:
        """For an event with one piece of one text and nothing else: nearly all are."""
        channel = self._channel(delta.channel)
        if channel is None:
            return self._framing.write(frame, None, ())
        text = delta.text
        made = channel.feed(text) if len(text) <= SLICE else (yield from _fed(channel, text))
        if channel.sent is not None:
            self._count(len(text) + len(made))
        channel.last = frame, event, delta
        if made == text:
            return self._framing.write(frame, None, ())
        payload = frame.payload
        edited: bytes | None = None
        if _LOG_PROBABILITIES.search(payload) is None:
            edited = yield from splicing_text(payload, text, made)
        if edited is None:
            message = AiAnswer(payload, event.value)
            message.replace_text(_found_at(delta), made)
            edited = message.body()
        return self._framing.write(frame, edited, ())

    def _channel(self, channel: Channel) -> _EditedChannel | None:
        if channel in self._channels:
            return self._channels[channel]
        if len(self._channels) >= MAX_CHANNELS:
            raise Unreadable(f"the stream has more than {MAX_CHANNELS} texts at once")
        function = self._function_for(channel)
        made = None
        if function is not None:
            keeps_sent = type(channel.part) is str and channel.part.startswith("response.")
            made = _EditedChannel(function, is_signed=channel.is_signed, keeps_sent=keeps_sent)
        self._count(64)
        self._channels[channel] = made
        if made is not None:
            self._groups.setdefault(channel.group, {})[channel] = None
        return made

    def _flushed(
        self, group: Group, made_of: dict[Channel, tuple[TextDelta, str]], message: AiAnswer | None = None
    ) -> list[AddedEvent]:
        """The held text of a group's channels: appended to this event's own piece, or in events before."""
        added: list[AddedEvent] = []
        for key in list(self._channels if group is EVERY else self._groups.get(group, ())):
            channel = self._channels[key]
            if channel is None or channel.last is None:
                continue
            held = channel.flush()
            frame, event, delta = channel.last
            channel.last = None
            if channel.sent is None:
                self._forget(key)  # later text is another channel
            if not held:
                continue
            if key in made_of and message is not None:
                own, made = made_of[key]
                message.replace_text(_found_at(own), made + held)
            else:
                name, value = delta_event(event, delta, held)
                added.append(AddedEvent(name, dumps(value), frame))
        return added

    def _forget(self, key: Channel) -> None:
        del self._channels[key]
        others = self._groups[key.group]
        del others[key]
        if not others:
            del self._groups[key.group]

    def _editing_whole(self, whole: WholeText, message: AiAnswer) -> Work[None]:
        found = whole.found
        channel = self._channels.get(whole.channel) if whole.channel is not None else None
        if channel is not None and channel.sent is not None and "".join(channel.given) == found.text:
            made = "".join(channel.sent)
        else:
            own = whole.channel or Channel(("whole",), found.path, found.kind, found.is_signed)
            made = yield from self._edited_whole(own, found.text)
        if made != found.text and not found.is_signed:
            message.replace_text(found, made)
        yield

    def _edited_whole(self, channel: Channel, text: str) -> Work[str]:
        function = self._function_for(channel)
        return text if function is None else (yield from _fed(function, text)) + function.flush()

    def _count(self, size: int) -> None:
        self._kept_size += size
        if self._kept_size > MAX_EVENT_BYTES:
            raise Unreadable("the stream has more text than is kept of it")


class LenientEditor(StreamEditor):
    """A StreamEditor that passes unreadable events unchanged, and the whole rest after broken framing."""

    __slots__ = ("_is_broken",)

    def __init__(self, framing: Framing, function_for: Callable[[Channel], TextFunction | None]) -> None:
        super().__init__(framing, function_for)
        self._is_broken = False

    def feed(self, data: bytes) -> bytes:
        if self._is_broken:
            return data
        try:
            return super().feed(data)
        except BrokenStream as broken:
            return at_once(self._broken_off(broken))

    def feeding(self, data: bytes) -> Work[bytes]:
        made: list[bytes] = []
        for piece in sliced(data):
            yield
            if self._is_broken:
                made.append(piece)
                continue
            try:
                frames = self._framing.feed(piece)
            except BrokenStream as broken:
                made.append((yield from self._broken_off(broken)))
                continue
            for frame in frames:
                made.append((yield from self._editing(frame)))
                yield
        return b"".join(made)

    def _broken_off(self, broken: BrokenStream) -> Work[bytes]:
        self._is_broken = True
        made: list[bytes] = []
        for frame in broken.frames:
            made.append((yield from self._editing(frame)))
            yield
        return b"".join((*made, self._framing.write(None, None, self._flushed(EVERY, {})), broken.rest))

    def takes_long(self, data: bytes) -> bool:
        return not self._is_broken and super().takes_long(data)

    def end(self) -> bytes:
        return b"" if self._is_broken else super().end()

    def _editing(self, frame: Frame) -> Work[bytes]:
        try:
            return (yield from super()._editing(frame))
        except Unreadable:
            return frame.raw


def sliced(data: bytes) -> Iterator[bytes]:
    """Bytes of a stream of events in pieces of at most SLICE, each of which ends with an event where one does there."""
    begin = 0
    while len(data) - begin > SLICE:
        end = data.rfind(b"\n\n", begin, begin + SLICE) + 2
        if end == 1:
            end = begin + SLICE
        yield data[begin:end]
        begin = end
    yield data[begin:] if begin else data


def _fed(function: TextFunction, text: str) -> Work[str]:
    """The function's result for this text; a long text is fed piece by piece."""
    if len(text) <= SLICE:
        return function.feed(text)
    made = []
    for begin in range(0, len(text), SLICE):
        made.append(function.feed(text[begin : begin + SLICE]))
        yield
    return "".join(made)


def _found_at(delta: TextDelta) -> Found:
    return Found(delta.path, (), TextRole.ASSISTANT, delta.channel.kind, delta.text)


def _is_json(payload: bytes) -> bool:
    try:
        loads(payload)
    except Unreadable:
        return False
    return True


def _joined(half: str, text: str) -> str:
    """The two halves of a pair are one character."""
    if "\udc00" <= text[:1] <= "\udfff":
        return chr(0x10000 + ((ord(half) - 0xD800) << 10) + ord(text[0]) - 0xDC00) + text[1:]
    return half + text
