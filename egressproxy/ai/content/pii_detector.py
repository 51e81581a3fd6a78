"""PIIDetector: personal data and keys in requests and answers: refused, redacted, or replaced until the answer.

A message is looked at by its texts: those of a conversation with an AI provider (arguments of tools unescaped), every
other string and long number of JSON, forms, plain text. What stands for a value goes back into the answer of the same
exchange, however its stream is cut. Nothing that was found is in an error, metric, log or Event.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from egressproxy.ai.apis.message import SCANNED_AT_ONCE
from egressproxy.ai.apis.shared import operation
from egressproxy.ai.apis.stream_events import Channel
from egressproxy.ai.apis.streams import SLICE, LenientEditor, StreamEditor, TextFunction, framing_of
from egressproxy.ai.apis.texts import TextKind
from egressproxy.ai.content.bodies import BodyText, reading_document
from egressproxy.ai.content.body_kinds import BodyKind, type_and_kind_of
from egressproxy.ai.content.content_filter import DIRECTIONS, ContentFilter
from egressproxy.ai.content.entities import scanner_of
from egressproxy.ai.content.form_document import FormDocument
from egressproxy.ai.content.pii_config import Action, PIIDetectorConfig
from egressproxy.ai.content.placeholders import Placeholders, Restorer
from egressproxy.ai.content.presidio import Presidio
from egressproxy.ai.content.raw_json_editor import RawJsonEditor
from egressproxy.ai.content.spans import Replace, Scanner, Span, SpanStream, apart, replaced
from egressproxy.ai.content.text_editor import Chained, TextEditor
from egressproxy.filters.base import REQUEST_HEADS, BodyMode, FilterContext, FilterType, Phase, Rejected
from egressproxy.filters.messages import are_read, kept
from egressproxy.model.circular_note import CircularNote
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work, at_once
from egressproxy.net.cooperative import TimeSlice, in_turns, run

#: Values in one text, and placeholders of one exchange: each takes memory until its end.
_MAX_VALUES: Final = 10_000

_READ_REQUESTS: Final = frozenset((BodyKind.JSON, BodyKind.LINES, BodyKind.TEXT, BodyKind.FORM, BodyKind.UNKNOWN))
_WHOLE_ANSWERS: Final = frozenset((BodyKind.JSON, BodyKind.UNKNOWN))


class _State(CircularNote):
    """One exchange; on a Backend one attempt, which `is_sent` once its head is. `editor` is that of the answer's body,
    once it has begun.
    """

    __slots__ = ("_filter", "editor", "exchange", "is_sent", "placeholders")

    def __init__(self, owner: PIIDetector, exchange: Exchange) -> None:
        self._filter = owner
        self.placeholders = kept(exchange, owner, Placeholders)
        self.editor: StreamEditor | TextEditor | None = None
        self.is_sent = False
        self.exchange = exchange

    def release(self) -> None:
        self.editor = None  # it asks this state what to do with each text

    def replace(self, entity: str, value: str) -> str:
        """What stands for a value of the request."""
        owner = self._filter
        if owner.actions[entity] != "Placeholder":
            return owner.replace(entity, value)
        owner.of_requests[entity].count += 1
        name = self.placeholders.name(entity, value)
        if len(self.placeholders.values) > _MAX_VALUES:
            raise owner.too_many("request", 403)
        return name

    def is_restored(self, data: bytes) -> bool:
        return bool(self.placeholders.values) and (b"<" in data or b"&" in data or b"\\u" in data)

    def replace_in_answer(self, entity: str, value: str) -> str:
        """What stands for a value that the backend has told."""
        owner = self._filter
        action = owner.actions[entity]
        owner.of_answers[entity].count += 1
        if action == "Block":
            raise owner.refusal(f"the answer has {entity}, which must not pass", 502)
        return value if action == "Report" else f"[{entity}]"

    def _kept_in_answer(self, entity: str, value: str) -> str:
        """For what is signed: what would be changed is refused instead."""
        if self.replace_in_answer(entity, value) != value:
            raise self._filter.refusal(f"what the provider has signed has {entity}, and cannot be changed", 502)
        return value

    def text_function(self, channel: Channel) -> TextFunction | None:
        """What is done to a channel of a streamed answer."""
        return self.function(has_escapes=channel.kind is TextKind.ARGUMENTS, is_signed=channel.is_signed)

    def function(self, *, has_escapes: bool = False, is_signed: bool = False) -> TextFunction | None:
        """What is done to a text of an answer; None: nothing."""
        scanner, values = self._filter.answers, self.placeholders.values
        restorer = Restorer(self.placeholders, has_escapes=has_escapes) if values and not is_signed else None
        if scanner is None:
            return restorer
        stream = scanner.stream(self._kept_in_answer if is_signed else self.replace_in_answer, has_escapes=has_escapes)
        return stream if restorer is None else Chained(stream, restorer)


class PIIDetector(ContentFilter):
    """Attributes: `actions` by entity, and the counters `of_requests` and `of_answers`; `answers`: what answers are
    scanned for.
    """

    def __init__(self, context: FilterContext) -> None:
        config: PIIDetectorConfig = context.config
        super().__init__(context, config.max_body_bytes, denies_unreadable=config.unreadable == "Deny")
        own = config.patterns
        self.actions: dict[str, Action] = {entity.name: entity.action for entity in config.entities}
        self.actions.update((each.name, each.action) for each in own)
        scanner = scanner_of(
            [entity.name for entity in config.entities],
            regions=config.regions,
            countries=config.countries,
            patterns=[(each.name, each.pattern, each.max_length) for each in own],
        )
        self._requests = scanner if config.apply_to != "Responses" else None
        self.answers = scanner if config.apply_to != "Requests" else None
        self._presidio: Presidio | None = None
        if config.presidio is not None:
            self.actions.update((each.name, each.action) for each in config.presidio.entities)
            call = context.calls.get(config.presidio.backend_ref.label)
            self._presidio = Presidio(config.presidio, call)
        self._replaced = tuple(name for name, action in self.actions.items() if action == "Placeholder")
        self._headers = tuple(name.encode() for name in config.headers)
        self._query = config.query
        self._noted: StateSlot[_State | None] = StateSlot("pii")
        found = context.meter.counter(
            "egress_pii_found", "Personal data and keys that PIIDetector has found.", ("entity", "action", "direction")
        )
        self.of_requests = {name: found.labelled(name, each, "request") for name, each in self.actions.items()}
        self.of_answers = {name: found.labelled(name, each, "response") for name, each in self.actions.items()}
        self._marks = {name: f"[{name}]" for name, action in self.actions.items() if action == "Redact"}
        if self.answers is None and not self._replaced:
            self.runs_in = (self.runs_in or frozenset()) - {Phase.RESPONSE_BODY}

    # --- requests ---------------------------------------------------------------------------------------------------
    def request_headers(self, exchange: Exchange) -> None:
        """Looks at the query and the fields that are named. Raises Rejected (403)."""
        scanner, head = self._requests, exchange.request
        if exchange.is_tunnel or head.upgrade:
            self._let_pass_unseen(exchange)
            return
        if scanner is None:
            return
        if self._query and b"?" in head.path:
            path, _, query = head.path.partition(b"?")
            document = at_once(FormDocument.reading(query))
            for part in document.texts():
                found = scanner.spans(part.text)
                if found:
                    part.replace(replaced(part.text, found, self._state(exchange).replace))
            if document.body() is not query:
                head.path = path + b"?" + document.body()
        for name in self._headers:
            lines = head.fields.get_all(name)
            made = [self._field(exchange, scanner, line) for line in lines]
            if made != lines:
                head.fields.remove(name)
                for line in made:
                    head.fields.add(name, line)

    def backend_request(self, exchange: Exchange) -> None:
        """As `request_headers`, for one attempt, whose body has been looked at before."""
        state = exchange.state.get(self._noted)
        if state is None or state.is_sent:
            state = _State(self, exchange)
            exchange.keep(self._noted, state)
        state.is_sent = True
        self.request_headers(exchange)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """Whole, but for streams and texts of answers. Raises Rejected (415, 502) for what cannot be looked at."""
        if phase is Phase.REQUEST_BODY:
            if self._requests is None:
                return None
            if type_and_kind_of(exchange.request.fields)[1] in _READ_REQUESTS:
                return BodyMode.BUFFER
            self._let_pass("request", exchange.request.fields, 415)
            return None
        is_of_websocket = self._replaced and are_read(exchange)  # earlier messages may have made placeholders
        state = self._state(exchange) if is_of_websocket else exchange.state.get(self._noted)
        if self.answers is None and (state is None or not state.placeholders.values):
            return None
        fields = exchange.response.fields
        media_type, kind = type_and_kind_of(fields)
        if kind is BodyKind.TEXT or framing_of(media_type, operation(exchange)) is not None:
            return BodyMode.STREAM
        if kind in _WHOLE_ANSWERS:
            return BodyMode.BUFFER
        if self.answers is not None:
            self._let_pass("answer", fields, 502)
        return None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """The body with what was found replaced. Raises Rejected (403, or 400 for a body that cannot be read)."""
        scanner = self._requests
        if not data or scanner is None:
            return data
        if self._is_on_backend:
            exchange.keep(self._noted, None)  # what an earlier attempt has kept is no longer good
        if self._presidio is not None:
            return self._analyzed(exchange, data, scanner, self._presidio)
        return run(self._edited_request(exchange, data, scanner), is_long=len(data) > SCANNED_AT_ONCE)

    def _replacing(self, exchange: Exchange, data: bytes) -> Work[Replace]:
        """What replaces what is found in a request."""
        if not self._replaced:
            return self.replace
        state = self._state(exchange)
        yield from state.placeholders.avoiding(data, self._replaced)
        return state.replace

    def replace(self, entity: str, value: str) -> str:
        """What stands for a value of a request that has no placeholder. Raises Rejected (403)."""
        self.of_requests[entity].count += 1
        mark = self._marks.get(entity)
        if mark is not None:
            return mark
        if self.actions[entity] == "Report":
            return value
        raise self.refusal(f"the request has {entity}, which must not leave", 403)

    async def _analyzed(self, exchange: Exchange, data: bytes, scanner: Scanner, presidio: Presidio) -> bytes:
        """The request with what was found replaced, also by the analyzer."""
        try:
            document = await in_turns(
                reading_document(exchange, data, type_and_kind_of(exchange.request.fields)[1], is_request=True)
            )
            replace = await in_turns(self._replacing(exchange, data))
            time_slice = TimeSlice()
            for part in document.texts():
                text = part.text
                found = await in_turns(self._spans_of(scanner, text, 403))
                if not text.isspace():
                    found = apart([*found, *await presidio.spans(text, exchange)], 0, [])
                if found:
                    self._replace(part, found, replace)
                if time_slice.is_over:
                    await time_slice.next()
            return await in_turns(document.writing())
        except Unreadable as error:
            return self._unreadable(data, error, "request", 400)

    def _edited_request(self, exchange: Exchange, data: bytes, scanner: Scanner) -> Work[bytes]:
        try:
            kind = type_and_kind_of(exchange.request.fields)[1]
            document = yield from reading_document(exchange, data, kind, is_request=True)
            written = yield from RawJsonEditor.of(document, scanner)
            if written is not None:
                many = yield from self._spans_in(scanner, written.text)
                if many is not None:
                    made = written.replaced(many, (yield from self._replacing(exchange, data))) if many else data
                    if made is not None:
                        return made
            replace = yield from self._replacing(exchange, data)
            for part in document.texts():
                yield
                found = yield from self._spans_of(scanner, part.text, 403)
                if found:
                    self._replace(part, found, replace)
            return (yield from document.writing())
        except Unreadable as error:
            return self._unreadable(data, error, "request", 400)

    # --- answers ----------------------------------------------------------------------------------------------------
    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """A piece of the answer, or all of it, as the client gets it. Raises Rejected (502)."""
        state = self._state(exchange)
        editor = state.editor
        try:
            if editor is None:
                media_type, kind = type_and_kind_of(exchange.response.fields)
                framing = framing_of(media_type, operation(exchange))
                is_lenient = self.answers is None or not self._denies_unreadable  # as of a whole answer
                if framing is not None:
                    editor = (LenientEditor if is_lenient else StreamEditor)(framing, state.text_function)
                elif kind is BodyKind.TEXT:
                    function = state.function()
                    assert function is not None
                    editor = TextEditor(function, is_lenient=is_lenient)
                elif data and (self.answers is not None or state.is_restored(data)):
                    return run(self._whole_answer(exchange, data, kind, state), is_long=len(data) > SCANNED_AT_ONCE)
                else:
                    return data
                state.editor = editor
            if editor.takes_long(data):
                return in_turns(self._feeding(editor, data, last))
            made = editor.feed(data)
            return made + editor.end() if last else made
        except Unreadable as error:
            raise self._unreadable_stream(error) from None

    def _feeding(self, editor: StreamEditor | TextEditor, data: bytes, last: bool) -> Work[bytes]:
        try:
            made = yield from editor.feeding(data)
            return made + editor.end() if last else made
        except Unreadable as error:
            raise self._unreadable_stream(error) from None

    def _unreadable_stream(self, error: Unreadable) -> Rejected:
        return self.refusal(f"the answer cannot be looked at: {error}", 502)

    def _whole_answer(self, exchange: Exchange, data: bytes, kind: BodyKind, state: _State) -> Work[bytes]:
        scanner = self.answers
        try:
            document = yield from reading_document(exchange, data, kind, is_request=False)
            written = None
            if scanner is not None and not state.is_restored(data):
                written = yield from RawJsonEditor.of(document, scanner)
            if scanner is not None and written is not None:
                many = yield from self._spans_in(scanner, written.text)
                if many is not None:
                    made = written.replaced(many, state.replace_in_answer) if many else data
                    if made is not None:
                        return made
            for part in document.texts():
                yield
                found = [] if scanner is None else (yield from self._spans_of(scanner, part.text, 502))
                self._edit_answer(part, found, state)
            return (yield from document.writing())
        except Unreadable as error:
            return data if scanner is None else self._unreadable(data, error, "answer", 502)

    def _edit_answer(self, part: BodyText, found: list[Span], state: _State) -> None:
        text = part.text
        made = replaced(text, found, state.replace_in_answer) if found else text
        if part.is_signed:
            if made != text:
                raise self._signed(part, found, 502)
            return
        made = state.placeholders.restored(made)
        if made != text:
            part.replace(made)

    # --- both -------------------------------------------------------------------------------------------------------
    def _replace(self, part: BodyText, found: list[Span], replace: Replace) -> None:
        made = replaced(part.text, found, replace)
        if made != part.text:
            if part.is_signed:
                raise self._signed(part, found, 403)
            part.replace(made)

    def _signed(self, part: BodyText, found: list[Span], status: int) -> Rejected:
        entities = ", ".join(sorted({span.entity for span in found}))
        return self.refusal(f"{part.where} has {entities} and cannot be changed", status)

    def _field(self, exchange: Exchange, scanner: Scanner, line: bytes) -> bytes:
        text = line.decode("utf-8", "surrogateescape")
        found = scanner.spans(text)
        return (
            replaced(text, found, self._state(exchange).replace).encode("utf-8", "surrogateescape") if found else line
        )

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        state = exchange.state.get(self._noted)
        return state.editor.held if state is not None and state.editor is not None else 0

    def _state(self, exchange: Exchange) -> _State:
        state = exchange.state.get(self._noted)
        if state is None:
            state = _State(self, exchange)
            exchange.keep(self._noted, state)
        return state

    def _spans_of(self, scanner: Scanner, text: str, status: int) -> Work[list[Span]]:
        """The spans of a text. Raises Rejected for too many of them."""
        found = yield from self._spans_in(scanner, text)
        if found is None:
            raise self.too_many("request" if status == 403 else "answer", status)
        return found

    def _spans_in(self, scanner: Scanner, text: str) -> Work[list[Span] | None]:
        """The spans of a text, found in turns. None: too many."""
        if len(text) <= SCANNED_AT_ONCE:
            return scanner.spans(text)
        stream = SpanStream(scanner, scanner.plain)
        found: list[Span] = []
        done = 0
        for start in range(0, len(text), SLICE):
            decided, spans = stream.take(text[start : start + SLICE], start + SLICE >= len(text))
            found += [Span(s + done, e + done, entity, s + done) for s, e, entity, _ in spans]
            if len(found) > _MAX_VALUES:
                return None
            done += len(decided)
            yield
        return found

    def too_many(self, what: str, status: int) -> Rejected:
        return self.refusal(f"the {what} has more than {_MAX_VALUES} values that would be replaced", status)


PII_DETECTOR = FilterType(
    name="egressproxy.io/PIIDetector:v1",
    phases=REQUEST_HEADS,
    config_model=PIIDetectorConfig,
    build=PIIDetector,
    also=frozenset((Phase.CONNECT, Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    stands_for=DIRECTIONS,
    summary="Finds personal data and keys in requests and answers: refuses, redacts, or replaces it until the answer.",
)
