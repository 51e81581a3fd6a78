"""ResponsePolicy: what an answer may say, and how much: personal data, expressions, lengths, types, calls of tools.

Whole answers are refused with a status, or cut. Streams are looked at while they flow, with what may be the beginning
of a match held back; they are broken off, or end with the word that their API has for it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.message import READ_AT_ONCE, SCANNED_AT_ONCE, JsonMessage
from egressproxy.ai.apis.shared import answer_view, operation, request_view, view_ahead
from egressproxy.ai.apis.stream_events import Channel
from egressproxy.ai.apis.streams import SLICE, LenientEditor, StreamEditor, StreamReader, framing_of, sliced
from egressproxy.ai.apis.texts import TextKind, TextRole
from egressproxy.ai.content.answer_ends import AnswerEnd, BegunResponse, end_of, mark_as_cut, written_end
from egressproxy.ai.content.bodies import reading_document
from egressproxy.ai.content.body_kinds import BodyKind, kind_of, media_type_of
from egressproxy.ai.content.content_filter import ContentFilter
from egressproxy.ai.content.entities import ENTITIES, check_countries, scanner_of
from egressproxy.ai.content.folding import Folder
from egressproxy.ai.content.national_ids import COUNTRIES
from egressproxy.ai.content.own_patterns import Expression, Glance, RuleName, check_names
from egressproxy.ai.content.phones import Region
from egressproxy.ai.content.raw_json_editor import SEEN_AT_A_GLANCE, RawJsonEditor, strings_of
from egressproxy.ai.content.spans import Scanner, SpanStream
from egressproxy.ai.content.text_editor import TextEditor
from egressproxy.errors import Reason
from egressproxy.filters.base import REQUEST_HEADS, BodyMode, FilterContext, FilterType, Phase
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.ir.policy import FieldFault
from egressproxy.model.circular_note import CircularNote
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work
from egressproxy.net.cooperative import run

_NAME: Final = r"^[A-Z][A-Z0-9_]{0,31}$"
_OWN_RULES: Final = (*ENTITIES, "max-length", "max-bytes", "content-type", "tool-call")
_FOLDER: Final = Folder()


@dataclass(frozen=True, slots=True)
class DeniedText(FilterConfig):
    """What an expression of RE2 finds. A match has at most `max_length` characters: a stream holds back as many."""

    name: RuleName
    pattern: Expression
    max_length: Annotated[int, Within(ge=1, le=256)] = 64


@dataclass(frozen=True, slots=True)
class ResponsePolicyConfig(FilterConfig):
    """What an answer must not have, and what is done then.

    `entities`: of PIIDetector. `deny`: own expressions. `regions`, `countries`: as of PIIDetector. `max_length`: of all
    texts, in characters, and `max_bytes` of the body, without content coding; 0 for no limit. `content_types`: those
    that may come back (`*` stands for any characters); empty: all. `tool_calls`: `Offered` lets only tools be called
    that the request offers, `None` no tools. `action`: `Truncate` ends the answer where it would say what it must not.
    `mode`: `Report` only counts. `unreadable`: what is done with bodies, tunnels and upgrades that cannot be looked at.
    `max_body_bytes`: of what is looked at whole.
    """

    entities: tuple[Annotated[str, Within(pattern=_NAME)], ...] = ()
    deny: tuple[DeniedText, ...] = ()
    regions: tuple[Region, ...] = ()
    countries: tuple[Annotated[str, Within(pattern=r"^[A-Z]{2}$")], ...] = COUNTRIES
    max_length: Annotated[int, Within(ge=0)] = 0
    max_bytes: Annotated[int, Within(ge=0)] = 0
    content_types: tuple[Annotated[str, Within(pattern=r"^[a-z0-9!#$&^_.+*-]+/[a-z0-9!#$&^_.+*-]+$")], ...] = ()
    tool_calls: Literal["Any", "Offered", "None"] = "Any"
    action: Literal["Reject", "Truncate"] = "Reject"
    mode: Literal["Enforce", "Report"] = "Enforce"
    unreadable: Literal["Deny", "Allow"] = "Deny"
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        for index, entity in enumerate(self.entities):
            if entity not in ENTITIES:
                why = f"{entity} is no entity; known are {', '.join(ENTITIES)}; write `deny` for others"
                raise FieldFault(why, "entities", index)
        check_countries(self.countries)
        looks = self.entities or self.deny or self.max_length or self.max_bytes or self.content_types
        if not looks and self.tool_calls == "Any":
            raise ValueError("nothing is limited: write `entities`, `deny`, a limit, `contentTypes` or `toolCalls`")
        check_names([each.name for each in self.deny], _OWN_RULES)


class _WatchedAnswer(CircularNote):
    """What is known of the answer of one exchange."""

    __slots__ = (
        "_filter",
        "begun",
        "bytes",
        "channels",
        "editor",
        "end",
        "exchange",
        "is_cut",
        "is_over",
        "is_sent",
        "left",
        "offered",
        "reader",
        "reported",
    )  # fmt: skip

    def __init__(self, owner: ResponsePolicy, exchange: Exchange) -> None:
        self._filter = owner
        self.exchange = exchange
        self.begun = BegunResponse() if owner.config.action == "Truncate" else None
        self.bytes = 0
        self.left = owner.config.max_length or -1  # characters that it may still say; -1: no limit
        self.offered: frozenset[str] = frozenset()
        self.editor: StreamEditor | TextEditor | None = None
        self.reader: StreamReader | None = None
        self.channels: list[Channel] = []
        self.end = AnswerEnd.NONE
        self.is_sent = False  # on a Backend: the head of its attempt is
        self.is_cut = False  # nothing more is said
        self.is_over = False  # its end has been written
        self.reported: set[str] = set()

    def release(self) -> None:
        self.editor = self.reader = None  # they tell this object of each channel

    def function(self, channel: Channel) -> _Watched:
        """What looks at a channel."""
        self.channels.append(channel)
        self.end = end_of(channel)
        is_fixed = channel.is_signed or channel.kind is TextKind.ARGUMENTS
        has_escapes = channel.kind is TextKind.ARGUMENTS
        told = channel if self.end is AnswerEnd.RESPONSES else None
        return _Watched(self, self._filter.scanner, is_fixed=is_fixed, has_escapes=has_escapes, channel=told)

    def said(self, decided: str, entity: str, at: int, *, is_fixed: bool) -> str:
        """What of a decided text goes on: an `entity` ("" for none) begins at `at`."""
        if is_fixed:
            if entity:
                self.hits(entity, is_fixed=True)
            return decided
        if self.is_cut:
            return ""
        cut = len(decided)
        if entity and self.hits(entity):
            cut = at
        if self.left >= 0:
            if self.left < cut and self.hits("max-length"):
                cut = self.left
            self.left = max(0, self.left - cut)
        return decided[:cut]

    def hits(self, rule: str, *, is_fixed: bool = False, why: str = "") -> bool:
        """A rule has something against the answer. True: it is cut here. Raises Rejected (502)."""
        owner = self._filter
        config = owner.config
        action = "Report" if config.mode == "Report" else "Reject" if is_fixed else config.action
        if rule not in self.reported:
            self.reported.add(rule)
            owner.found.add(1, rule, action)
        if action == "Report":
            self.exchange.note_denials(Reason.CONTENT_DENIED)
            return False
        if action == "Reject":
            denied = f"the answer is denied by the rule {rule}"
            raise owner.refusal(f"{denied}: {why}" if why else denied, 502)
        self.is_cut = True
        return True


class _Watched:
    """A function of text that passes it on until something is against it."""

    __slots__ = ("_answer", "_channel", "_is_fixed", "_spans")

    def __init__(
        self,
        answer: _WatchedAnswer,
        scanner: Scanner | None,
        *,
        is_fixed: bool = False,
        has_escapes: bool = False,
        channel: Channel | None = None,
    ) -> None:
        """`channel`: that of a stream whose last event tells its texts."""
        self._answer = answer
        self._channel = channel
        self._is_fixed = is_fixed
        folder = None if scanner is None else scanner.escaped if has_escapes else scanner.plain
        self._spans = None if scanner is None or folder is None else SpanStream(scanner, folder)

    def feed(self, text: str, last: bool = False) -> str:
        said = self._said(text, last)
        begun = self._answer.begun
        if begun is not None and self._channel is not None:
            begun.sent(self._channel, said)
        return said

    def _said(self, text: str, last: bool) -> str:
        if self._spans is None:
            return self._answer.said(text, "", 0, is_fixed=self._is_fixed)
        decided, spans = self._spans.take(text, last)
        entity, at = (spans[0].entity, spans[0].start) if spans else ("", 0)
        return self._answer.said(decided, entity, at, is_fixed=self._is_fixed)

    def flush(self) -> str:
        return self.feed("", last=True)


class ResponsePolicy(ContentFilter):
    """Attributes: `config`; `scanner`: what texts are scanned for; `found`: the counter."""

    def __init__(self, context: FilterContext) -> None:
        config: ResponsePolicyConfig = context.config
        denies_unreadable = config.unreadable == "Deny" and config.mode == "Enforce"
        super().__init__(context, config.max_body_bytes, denies_unreadable=denies_unreadable)
        self.config = config
        scanner = partial(scanner_of, config.entities, regions=config.regions, countries=config.countries)
        own = [(each.name, each.pattern, each.max_length) for each in config.deny]
        self.scanner = scanner(patterns=own) if config.entities or own else None
        self._entities = scanner() if config.entities else None
        self._glance = Glance.of([(each.pattern, False) for each in config.deny])
        self._looks_inside = self.scanner is not None or config.max_length > 0 or config.tool_calls != "Any"
        self._watched: StateSlot[_WatchedAnswer | None] = StateSlot("response policy")
        self.found = context.meter.counter(
            "egress_response_policy", "Responses with a finding of a ResponsePolicy.", ("rule", "action")
        )

    def request_headers(self, exchange: Exchange) -> None:
        """Raises Rejected (403, 426) for tunnels and upgrades."""
        if exchange.is_tunnel or exchange.request.upgrade:
            self._let_pass_unseen(exchange)

    def backend_request(self, exchange: Exchange) -> None:
        """As `request_headers`, for one attempt, whose body has been looked at before."""
        found = exchange.state.get(self._watched)
        if found is None or found.is_sent:
            found = _WatchedAnswer(self, exchange)
            exchange.keep(self._watched, found)
        found.is_sent = True
        self.request_headers(exchange)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """A request whole where its tools count; answers whole, but for streams and texts. Raises Rejected (502)."""
        config = self.config
        if phase is Phase.REQUEST_BODY:
            is_read = config.tool_calls == "Offered" and kind_of(exchange.request.fields) in (
                BodyKind.JSON,
                BodyKind.UNKNOWN,
            )
            return BodyMode.BUFFER if is_read else None
        fields = exchange.response.fields
        media_type = media_type_of(fields)
        if config.content_types:
            shown = media_type.decode("latin-1")
            if not any(fnmatchcase(shown, pattern) for pattern in config.content_types):
                self._answer(exchange).hits("content-type", is_fixed=True)
        kind = kind_of(fields)
        if framing_of(media_type, operation(exchange)) is not None or kind is BodyKind.TEXT:
            return BodyMode.STREAM
        if not self._looks_inside:
            return BodyMode.STREAM if config.max_bytes else None
        if kind in (BodyKind.JSON, BodyKind.UNKNOWN):
            return BodyMode.BUFFER
        self._let_pass("answer", fields, 502)
        return BodyMode.STREAM if config.max_bytes else None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        return run(self._offered(exchange, data), is_long=len(data) > READ_AT_ONCE)

    def _offered(self, exchange: Exchange, data: bytes) -> Work[bytes]:
        try:
            yield from view_ahead(exchange, data, is_request=True)
            offered = frozenset(tool.name for tool in request_view(exchange, data).tools) if data else frozenset()
        except Unreadable:
            offered = frozenset()
        if self._is_on_backend:
            exchange.keep(self._watched, None)  # what an earlier attempt has kept is no longer good
        self._answer(exchange).offered = offered
        return data

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """What of the answer goes on. Raises Rejected (502)."""
        answer = self._answer(exchange)
        if answer.is_over:
            return b""
        limit = self.config.max_bytes
        if limit:
            answer.bytes += len(data)
            if answer.bytes > limit:
                answer.hits("max-bytes", is_fixed=True)
        if not self._looks_inside:
            return data
        if answer.editor is not None or self._begin(exchange, answer):
            assert answer.editor is not None
            is_long, work = answer.editor.takes_long(data), self._streamed(exchange, answer, data, last)
        elif kind_of(exchange.response.fields) in (BodyKind.JSON, BodyKind.UNKNOWN):
            is_long, work = len(data) > SCANNED_AT_ONCE, self._whole(exchange, answer, data)
        else:
            return data
        return run(self._readable(data, work), is_long=is_long)

    def _readable(self, data: bytes, work: Work[bytes]) -> Work[bytes]:
        try:
            return (yield from work)
        except Unreadable as error:
            return self._unreadable(data, error, "answer", 502)

    def _begin(self, exchange: Exchange, answer: _WatchedAnswer) -> bool:
        """Whether the answer is looked at as it flows."""
        fields = exchange.response.fields
        framing = framing_of(media_type_of(fields), operation(exchange))
        if framing is not None:
            is_lenient = not self._denies_unreadable
            answer.editor = (LenientEditor if is_lenient else StreamEditor)(framing, answer.function)
            called = operation(exchange)
            is_told = answer.begun is not None and (called is None or called.api is Api.OPENAI_RESPONSES)
            if self.config.tool_calls != "Any" or is_told:
                other = framing_of(media_type_of(fields), operation(exchange))
                answer.reader = None if other is None else StreamReader(other, is_lenient=is_lenient)
            return True
        if kind_of(fields) is BodyKind.TEXT:
            answer.editor = TextEditor(_Watched(answer, self.scanner), is_lenient=not self._denies_unreadable)
            return True
        return False

    def _streamed(self, exchange: Exchange, answer: _WatchedAnswer, data: bytes, last: bool) -> Work[bytes]:
        editor = answer.editor
        assert editor is not None
        made: list[bytes] = []
        # Event by event, so that nothing goes on behind the one at which the answer is cut.
        for piece in data.splitlines(keepends=True) if self.config.action == "Truncate" else sliced(data):
            yield
            if answer.reader is not None:
                for event in answer.reader.feed(piece):
                    if answer.begun is not None:
                        answer.begun.note(event.value)
                    if self.config.tool_calls != "Any":
                        yield from self._check_tools(answer, AiAnswer(b"", event.value))
            made.append((yield from editor.feeding(piece)))
            if answer.is_cut:
                break
        if last and not answer.is_cut:
            made.append(editor.end())
        if answer.is_cut:
            answer.is_over = True
            if isinstance(editor, StreamEditor):
                if answer.end is AnswerEnd.NONE or media_type_of(exchange.response.fields) != b"text/event-stream":
                    raise self.refusal("the answer is cut, and its API has no word for that", 502)
                made.append(written_end(answer.end, answer.channels, answer.begun or BegunResponse()))
        return b"".join(made)

    def _check_tools(self, answer: _WatchedAnswer, message: JsonMessage) -> Work[None]:
        allowed = answer.offered if self.config.tool_calls == "Offered" else frozenset()
        for call in (yield from message.finding_calls()):
            if call.fault or call.name not in allowed:
                answer.hits("tool-call", is_fixed=True, why=call.fault)

    def _is_harmless(self, exchange: Exchange, answer: _WatchedAnswer, data: bytes) -> Work[bool]:
        """Whether nothing is against a whole answer, as `_whole` finds it text by text. Raises as that does."""
        if len(data) > SEEN_AT_A_GLANCE or data.lstrip()[:1] != b"{" or 0 <= answer.left < len(data):
            return False
        view = answer_view(exchange, data)
        if self.config.tool_calls != "Any" and (b'"name"' in data.lower() or b"\\u" in data):
            yield from self._check_tools(answer, view)
        yield
        document = yield from reading_document(exchange, data, kind_of(exchange.response.fields), is_request=False)
        if self.config.deny:
            said = strings_of(data)
            if said is None:
                texts = []
                for part in document.texts():
                    texts.append(part.text)
                    yield
                said = "\n".join(texts)
            if self._glance is None or self._glance(_FOLDER.fold(said)[0]):
                return False
        entities = self._entities
        if entities is None:
            return True
        written = yield from RawJsonEditor.of(document, entities)
        if written is not None:
            return not entities.spans(written.text)
        for part in document.texts():
            yield
            if entities.spans(part.text):
                return False
        return True

    def _whole(self, exchange: Exchange, answer: _WatchedAnswer, data: bytes) -> Work[bytes]:
        """What of a whole answer goes on."""
        if not data or (yield from self._is_harmless(exchange, answer, data)):
            return data
        view: AiAnswer | None = None
        if data.lstrip()[:1] == b"{":
            yield from view_ahead(exchange, data, is_request=False)
            view = answer_view(exchange, data)
            if self.config.tool_calls != "Any":
                yield from self._check_tools(answer, view)
        document = yield from reading_document(exchange, data, kind_of(exchange.response.fields), is_request=False)
        for part in document.texts():
            yield
            is_fixed = part.is_signed or part.role is TextRole.NONE or part.kind is TextKind.ARGUMENTS
            if is_fixed and answer.is_cut and part.kind is TextKind.ARGUMENTS:
                raise self.refusal("the answer is cut before a call of a tool", 502)
            text = part.text
            watched = _Watched(answer, self.scanner, is_fixed=is_fixed)
            made: list[str] = []
            for start in range(0, len(text), SLICE):
                made.append(watched.feed(text[start : start + SLICE]))
                yield
            made.append(watched.flush())
            said = "".join(made)
            if said != text and not is_fixed:
                part.replace(said)
        if answer.is_cut and view is not None:
            mark_as_cut(view)
        return (yield from document.writing())

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        answer = exchange.state.get(self._watched)
        return answer.editor.held if answer is not None and answer.editor is not None else 0

    def _answer(self, exchange: Exchange) -> _WatchedAnswer:
        found = exchange.state.get(self._watched)
        if found is None:
            found = _WatchedAnswer(self, exchange)
            exchange.keep(self._watched, found)
        return found


RESPONSE_POLICY = FilterType(
    name="egressproxy.io/ResponsePolicy:v1",
    phases=REQUEST_HEADS,
    config_model=ResponsePolicyConfig,
    build=ResponsePolicy,
    also=frozenset((Phase.CONNECT, Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    summary="Rejects or truncates answers by what they say, how long they are, their types, and calls of tools.",
)
