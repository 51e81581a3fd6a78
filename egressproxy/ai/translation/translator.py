"""Translator of one exchange: the request, then its answer or stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.errors import error_object
from egressproxy.ai.apis.long_json import dumping, loading, reading
from egressproxy.ai.translation.answer_fields import needed_count
from egressproxy.ai.translation.anthropic import answers as anthropic_answers
from egressproxy.ai.translation.anthropic import request_reader as anthropic_reader
from egressproxy.ai.translation.anthropic import request_writer as anthropic_writer
from egressproxy.ai.translation.anthropic.streams import MessageStreamReader, MessageStreamWriter
from egressproxy.ai.translation.apis import count_answer
from egressproxy.ai.translation.bedrock import answers as bedrock_answers
from egressproxy.ai.translation.bedrock import request_writer as bedrock_writer
from egressproxy.ai.translation.bedrock.answers import ConverseEvents, ConverseStreamReader
from egressproxy.ai.translation.conversation import (
    Failed,
    Finished,
    KeepAlive,
    ModelAnswer,
    Started,
    StreamEvent,
    ToolForm,
)
from egressproxy.ai.translation.errors import BadAnswer, Untranslatable, error_in
from egressproxy.ai.translation.event_stream import COMMENT, EventStream
from egressproxy.ai.translation.gemini import answers as gemini_answers
from egressproxy.ai.translation.gemini import request_writer as gemini_writer
from egressproxy.ai.translation.gemini.answers import ContentStreamReader
from egressproxy.ai.translation.openai_chat import answers as chat_answers
from egressproxy.ai.translation.openai_chat import request_reader as chat_reader
from egressproxy.ai.translation.openai_chat import request_writer as chat_writer
from egressproxy.ai.translation.openai_chat.streams import ChatStreamReader, ChatStreamWriter
from egressproxy.ai.translation.openai_responses import answers as responses_answers
from egressproxy.ai.translation.openai_responses import request_reader as responses_reader
from egressproxy.ai.translation.openai_responses import request_writer as responses_writer
from egressproxy.ai.translation.openai_responses.streams import ResponseStreamReader, ResponseStreamWriter
from egressproxy.ai.translation.tool_forms import CallForms, in_own_form
from egressproxy.ai.translation.tuning import Losses
from egressproxy.model.strict_json import Unreadable, dumps, loads
from egressproxy.model.work import Work

#: Bytes of a message that is read and written in one go.
_LONG: Final = 64 * 1024

_REQUEST_READERS: Final = {
    Api.OPENAI_CHAT: chat_reader.read_request,
    Api.OPENAI_RESPONSES: responses_reader.read_request,
    Api.ANTHROPIC: anthropic_reader.read_request,
}
_REQUEST_WRITERS: Final = {
    Api.OPENAI_CHAT: chat_writer.write_request,
    Api.OPENAI_RESPONSES: responses_writer.write_request,
    Api.ANTHROPIC: anthropic_writer.write_request,
    Api.GEMINI: gemini_writer.write_request,
    Api.BEDROCK_CONVERSE: bedrock_writer.write_request,
}
_ANSWER_READERS: Final = {
    Api.OPENAI_CHAT: chat_answers.read_answer,
    Api.OPENAI_RESPONSES: responses_answers.read_answer,
    Api.ANTHROPIC: anthropic_answers.read_answer,
    Api.GEMINI: gemini_answers.read_answer,
    Api.BEDROCK_CONVERSE: bedrock_answers.read_answer,
}
_STREAM_READERS: Final[
    Mapping[
        Api,
        type[
            ChatStreamReader | ResponseStreamReader | MessageStreamReader | ContentStreamReader | ConverseStreamReader
        ],
    ]
] = {
    Api.OPENAI_CHAT: ChatStreamReader,
    Api.OPENAI_RESPONSES: ResponseStreamReader,
    Api.ANTHROPIC: MessageStreamReader,
    Api.GEMINI: ContentStreamReader,
    Api.BEDROCK_CONVERSE: ConverseStreamReader,
}
#: What counts of tokens look at, and how they tell them.
_COUNTED: Final = {
    Api.GEMINI: ("contents", "systemInstruction", "tools"),
    Api.BEDROCK_CONVERSE: ("messages", "system", "toolConfig"),
}
_TOTALS: Final = {Api.GEMINI: "totalTokens", Api.BEDROCK_CONVERSE: "inputTokens"}
_KEEP_ALIVE: Final = KeepAlive()
_ENDINGS: Final = (Finished, Failed)


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request in the form of `target`, and what the translator of its answer has to know of the client's."""

    source: Api
    target: Api
    body: bytes = field(repr=False)
    is_stream: bool
    client_model: str
    sent_model: str
    wants_usage: bool
    #: Fields of the client's request that a Response object of OpenAI repeats.
    repeated: dict[str, Any] = field(repr=False)
    #: By the name of a function that the backend knows: the client's tool that it stands for.
    forms: Mapping[str, ToolForm] = field(default_factory=dict, repr=False)
    #: What was left out, by names of `tuning`.
    dropped: tuple[str, ...] = ()
    is_count: bool = False  # of tokens


def translate_request(
    body: bytes,
    source: Api,
    target: Api,
    model: str | None = None,
    *,
    drops: bool = False,
    path_model: str = "",
) -> Work[TranslatedRequest]:
    """The same request in another API, in turns, for `model` or else the client's. `drops`: what only tunes is left
    out where the other API has nothing like it. `path_model`: the client's model, if its path names one. Raises
    Untranslatable: no JSON, or a field that one of the two APIs does not know.
    """
    try:
        value = yield from reading(body)
    except Unreadable as error:
        raise Untranslatable("", f"the body cannot be translated: {error}") from None
    if path_model and type(value) is dict:
        value = {**value, "model": path_model}
    conversation = yield from _REQUEST_READERS[source](value, Losses.of(source) if drops else Losses.none())
    yield
    written = yield from _REQUEST_WRITERS[target](conversation, model or conversation.model)
    yield
    repeated = {name: value[name] for name in responses_answers.DEFAULTS if value.get(name) is not None}
    return TranslatedRequest(
        source=source,
        target=target,
        body=(yield from dumping(written)) if len(body) > _LONG else dumps(written),
        is_stream=conversation.is_stream,
        client_model=conversation.model,
        sent_model=model or conversation.model,
        wants_usage=conversation.wants_usage,
        repeated=repeated if source is Api.OPENAI_RESPONSES else {},
        forms=conversation.forms,
        dropped=conversation.losses.fields,
    )


def translate_count(
    body: bytes, source: Api, target: Api, model: str | None = None, *, is_vertex: bool = False
) -> Work[TranslatedRequest]:
    """A request for a count of tokens in another API of `COUNTING`, in turns. Fields that only tune do not count.
    Raises Untranslatable as `translate_request`.
    """
    try:
        value = yield from reading(body)
    except Unreadable as error:
        raise Untranslatable("", f"the body cannot be translated: {error}") from None
    if type(value) is dict and source is Api.ANTHROPIC:
        value = {**value, "max_tokens": 1}
    conversation = yield from _REQUEST_READERS[source](value, Losses.of(source))
    yield
    sent_model = model or conversation.model
    written = yield from _REQUEST_WRITERS[target](conversation, sent_model)
    asked = {name: written[name] for name in _COUNTED[target] if name in written}
    if target is Api.BEDROCK_CONVERSE:
        asked = {"input": {"converse": asked}}
    elif not is_vertex:
        asked = {"generateContentRequest": {"model": f"models/{sent_model.removeprefix('models/')}", **asked}}
    return TranslatedRequest(
        source=source,
        target=target,
        body=(yield from dumping(asked)) if len(body) > _LONG else dumps(asked),
        is_stream=False,
        client_model=conversation.model,
        sent_model=sent_model,
        wants_usage=False,
        repeated={},
        is_count=True,
    )


class ResponseTranslator:
    """The answer to a translated request, whole or streamed, in the form of the client's API. One for each answer."""

    __slots__ = ("_events", "_forms", "_is_over", "_now", "_reader", "_request", "_writer", "has_failed")

    def __init__(self, request: TranslatedRequest) -> None:
        self._request = request
        self._now = int(time.time())
        self._events = ConverseEvents() if request.target is Api.BEDROCK_CONVERSE else EventStream()
        self._reader = _STREAM_READERS[request.target]()
        self._forms = CallForms(request.forms) if request.forms else None
        self._writer = _stream_writer(request, self._now)
        self._is_over = False
        #: Whether the stream has ended in an error event: nothing more is read, and the backend may be let go.
        self.has_failed = False

    def whole(self, status: int, body: bytes) -> Work[tuple[int, bytes]]:
        """Status and body for the client, made in turns. An error keeps its status; a success that cannot be read
        becomes a 502.
        """
        client = self._request.source
        if not 200 <= status < 300:
            message, code = error_in(body)
            text = message or f"the backend answered {status} without a message"
            are_alike = Api.ANTHROPIC not in (client, self._request.target)
            return status, dumps(error_object(client, status, text, code=code if are_alike else None))
        try:
            if self._request.is_stream:
                raise BadAnswer("it is no stream, which the client has asked for")
            value = (yield from loading(body)) if len(body) > _LONG else loads(body)
            if type(value) is not dict:
                raise BadAnswer("it is not an object")
            if self._request.is_count:
                tokens = needed_count(value, _TOTALS[self._request.target])
                return status, count_answer(self._request.source, tokens)
            answer = _ANSWER_READERS[self._request.target](value)
            if not answer.model:
                answer = replace(answer, model=self._request.sent_model)
            yield
            written = self._answer(in_own_form(answer, self._request.forms))
            yield
            return status, (yield from dumping(written)) if len(body) > _LONG else dumps(written)
        except (BadAnswer, Unreadable) as error:
            return 502, dumps(error_object(client, 502, f"the backend's answer cannot be translated: {error}"))

    def _answer(self, answer: ModelAnswer) -> dict[str, Any]:
        if self._request.source is Api.ANTHROPIC:
            return anthropic_answers.write_answer(answer)
        if self._request.source is Api.OPENAI_CHAT:
            return chat_answers.write_answer(answer, self._now)
        return responses_answers.write_answer(answer, self._request.repeated, self._now)

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes of a stream (`text/event-stream`), cut anywhere; often nothing."""
        written: list[bytes] = []
        if not self._is_over:
            self._translate(partial(self._events.feed, data), written)
        return b"".join(written)

    def end(self) -> bytes:
        """What the client gets when the backend's stream is over: an error, if it was not complete."""
        if self._is_over:
            return b""
        written: list[bytes] = []
        self._translate(self._events.end, written)
        if not self._is_over:
            try:
                self._write(self._reader.end(), written)
            except BadAnswer as error:
                written.append(self._fail(str(error)))
        if not self._is_over:
            written.append(self._fail("it has ended before the answer was complete"))
        return b"".join(written)

    def _translate(self, events: Callable[[], list[tuple[bytes, bytes]]], written: list[bytes]) -> None:
        try:
            for name, content in events():
                if name == COMMENT:
                    written.append(self._writer.write(_KEEP_ALIVE))
                    continue
                self._write(self._reader.read(name, content), written)
                if self._is_over:
                    break
        except (BadAnswer, Unreadable) as error:
            written.append(self._fail(str(error)))

    def _write(self, events: list[StreamEvent], written: list[bytes]) -> None:
        for stream_event in events if self._forms is None else self._forms.of(events):
            if isinstance(stream_event, Started) and not stream_event.model:
                stream_event = replace(stream_event, model=self._request.sent_model)
            written.append(self._writer.write(stream_event))
            if isinstance(stream_event, _ENDINGS):
                self._is_over = True
                self.has_failed = isinstance(stream_event, Failed)
                return

    def _fail(self, why: str) -> bytes:
        self._is_over = self.has_failed = True
        return self._writer.write(Failed(502, f"the backend's stream cannot be translated: {why}"))


def _stream_writer(
    request: TranslatedRequest, now: int
) -> ChatStreamWriter | MessageStreamWriter | ResponseStreamWriter:
    if request.source is Api.ANTHROPIC:
        return MessageStreamWriter()
    if request.source is Api.OPENAI_CHAT:
        return ChatStreamWriter(request.wants_usage, now)
    return ResponseStreamWriter(request.repeated, now)
