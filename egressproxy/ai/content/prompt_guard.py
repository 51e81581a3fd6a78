"""PromptGuard: rules for prompts and responses of models: expressions, known injection phrases, lengths, and a judge.

It recognises words, not intentions: it stops common attempts and enforces your own rules, and is no proof.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from egressproxy.ai.apis.message import SCANNED_AT_ONCE, TextPart
from egressproxy.ai.apis.shared import answer_view, operation, request_view
from egressproxy.ai.apis.splice import Path
from egressproxy.ai.apis.stream_events import Channel
from egressproxy.ai.apis.streams import SLICE, StreamEditor, framing_of
from egressproxy.ai.apis.texts import Found, TextKind, TextRole
from egressproxy.ai.content.bodies import BodyText, reading_document
from egressproxy.ai.content.body_kinds import BodyKind, kind_of, media_type_of
from egressproxy.ai.content.content_filter import DIRECTIONS, ContentFilter
from egressproxy.ai.content.folding import Folder
from egressproxy.ai.content.injection_phrases import PHRASES, InjectionPhrases
from egressproxy.ai.content.llm_classifier import ClassifierAbsent, LlmClassifier, LlmClassifierSettings
from egressproxy.ai.content.own_patterns import Expression, Glance, RuleName, check_names, compiled, searched_in
from egressproxy.ai.content.raw_json_editor import SEEN_AT_A_GLANCE, strings_of
from egressproxy.errors import Reason
from egressproxy.filters.base import REQUEST_HEADS, BodyMode, FilterContext, FilterType, Phase
from egressproxy.filters.header_policy import is_protected
from egressproxy.filters.settings import FieldName, FilterConfig, Within
from egressproxy.ir.policy import FieldFault
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import Fields, every_spelling
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work, at_once
from egressproxy.net.cooperative import in_turns

#: The overlap in characters of two pieces of a long text, so that no match up to this length is cut.
_OVERLAP: Final = 1024
#: The most short texts that are checked together.
_GROUP: Final = 256
Direction: TypeAlias = Literal["request", "response"]
#: The direction in messages for people.
_SHOWN: Final[dict[Direction, str]] = {"request": "request", "response": "answer"}
_READ: Final = frozenset((BodyKind.JSON, BodyKind.LINES, BodyKind.TEXT, BodyKind.FORM, BodyKind.UNKNOWN))
_ANSWERS: Final = frozenset((BodyKind.JSON, BodyKind.TEXT, BodyKind.UNKNOWN, BodyKind.EVENTS))
#: The roles in the APIs' spelling. Servers differ in their treatment of other spellings, such as `User`.
_ROLES_AS_SPELT: Final = frozenset(("system", "developer", "user", "assistant", "model", "tool", "function"))
_TURNS: Final = ("messages", "input", "contents")
_SENT_ARGUMENTS: Final = ("params", "arguments")
_OWN_RULES: Final = (*PHRASES, "template-marks", "max-text-length", "max-total-length", "not-allowed", "judge")
_SAID: Final = frozenset((TextKind.TEXT, TextKind.REFUSAL, TextKind.REASONING, TextKind.ARGUMENTS))


class _Texts(NamedTuple):
    """The checked texts of a message. `spoken`: texts with a role, and whether they belong to the newest turn.
    `others`: texts without a role, such as descriptions of tools; only expressions and phrases are checked there.
    """

    spoken: list[tuple[str, bool]]
    others: list[str]


@dataclass(frozen=True, slots=True)
class GuardPattern(FilterConfig):
    """An RE2 expression, with a name for metrics and messages."""

    name: RuleName
    pattern: Expression
    ignore_case: bool = True


@dataclass(frozen=True, slots=True)
class PromptGuardConfig(FilterConfig):
    """The checked texts, the rules, and the action.

    `apply_to`: the checked messages. `roles`: the checked roles of a request; with all roles, texts without a role are
    checked, too. `turns`: the whole conversation, or the turns after the model's last message. `deny`: expressions
    that deny a matching text. `allow`: if set, a text must match one of these. `injection_phrases`: whether requests
    are checked for known phrases. `max_text_length`, `max_total_length`: in characters, 0 for no limit. `judge`: an
    external classifier. `action`: `Annotate` passes a denied request, with the name of the rule in the request field
    `header`; mode `Report` only counts. `message`: the text for the client. `unreadable`: the effect on unreadable
    bodies, tunnels and upgrades. `max_body_bytes`: the longest checked body; None: MAX_BUFFERED_BYTES of a request, and
    8 MiB of a response.
    """

    apply_to: Literal["Requests", "Responses", "Both"] = "Requests"
    roles: Annotated[tuple[Literal["system", "user", "assistant", "tool"], ...], Within(min_length=1)] = (
        "system",
        "user",
        "assistant",
        "tool",
    )
    turns: Literal["All", "Newest"] = "All"
    deny: tuple[GuardPattern, ...] = ()
    allow: tuple[GuardPattern, ...] = ()
    injection_phrases: bool = True
    max_text_length: Annotated[int, Within(ge=0)] = 0
    max_total_length: Annotated[int, Within(ge=0)] = 0
    judge: LlmClassifierSettings | None = None
    action: Literal["Deny", "Annotate"] = "Deny"
    mode: Literal["Enforce", "Report"] = "Enforce"
    header: FieldName = "X-Prompt-Guard"
    message: Annotated[str, Within(max_length=512)] = ""
    unreadable: Literal["Deny", "Allow"] = "Deny"
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] | None = None

    def __post_init__(self) -> None:
        if is_protected(self.header):
            raise FieldFault(f"{self.header} is written by the gateway itself: name another `header`", "header")
        looks = self.deny or self.allow or self.max_text_length or self.max_total_length or self.judge
        if not looks and (not self.injection_phrases or self.apply_to == "Responses"):
            raise ValueError("nothing is looked for: write `deny`, `allow`, a maximum length or `judge`")
        check_names([each.name for each in self.deny], _OWN_RULES)


class _Collector:
    """A callable that stores its arguments."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def feed(self, text: str) -> str:
        self.pieces.append(text)
        return text

    def flush(self) -> str:
        return ""


class PromptGuard(ContentFilter):
    """Reads whole requests, and whole responses if these are checked: a stream is held until its end."""

    only_reads = True

    def __init__(self, context: FilterContext) -> None:
        config: PromptGuardConfig = context.config
        denies_unreadable = config.unreadable == "Deny" and config.mode == "Enforce"
        super().__init__(context, config.max_body_bytes, denies_unreadable=denies_unreadable)
        self._config = config
        self._on_requests = config.apply_to != "Responses"
        self._on_answers = config.apply_to != "Requests"
        self._roles = frozenset(map(TextRole, config.roles))
        self._asks_everybody = len(self._roles) == len(TextRole) - 1
        self._deny = [(each.name, compiled(each.pattern, ignores_case=each.ignore_case)) for each in config.deny]
        self._allow = [compiled(each.pattern, ignores_case=each.ignore_case) for each in config.allow]
        self._glance = Glance.of([(each.pattern, each.ignore_case) for each in config.deny])
        #: Otherwise each text has to be checked separately.
        self._sees_at_a_glance = not (config.allow or config.max_text_length or config.max_total_length or config.judge)
        self._phrases = InjectionPhrases() if config.injection_phrases else None
        self._folder = Folder()
        self._judge: LlmClassifier | None = None
        if config.judge is not None:
            self._judge = LlmClassifier(config.judge, context.calls.get(config.judge.backend_ref.label))
        self._header = config.header.encode()
        self._annotations = every_spelling((config.header,))
        self._found = context.meter.counter(
            "egress_prompt_guard",
            "Messages with a finding of a PromptGuard.",
            ("rule", "action", "direction"),
        )
        self._rule: StateSlot[bytes | None] = StateSlot("prompt guard")  # that has found something, for the head

    def request_headers(self, exchange: Exchange) -> None:
        """Removes the client's own annotation. Raises Rejected (403, 426) for tunnels and upgrades."""
        if exchange.is_tunnel or exchange.request.upgrade:
            self._let_pass_unseen(exchange)
        elif self._config.action == "Annotate":
            exchange.request.fields.cut(self._annotations)

    def backend_request(self, exchange: Exchange) -> None:
        """`request_headers` for one attempt, whose body was checked before."""
        self.request_headers(exchange)
        rule = exchange.state.get(self._rule)
        if rule is not None:
            exchange.request.fields.set(self._header, rule)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """BUFFER, or None for unchecked messages. Raises Rejected (415, 502) for unreadable bodies."""
        is_request = phase is Phase.REQUEST_BODY
        if not (self._on_requests if is_request else self._on_answers):
            return None
        fields = exchange.request.fields if is_request else exchange.response.fields
        if kind_of(fields) in (_READ if is_request else _ANSWERS):
            return BodyMode.BUFFER
        what, status = ("request", 415) if is_request else ("answer", 502)
        self._let_pass(what, fields, status)
        return None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """Raises Rejected (403, or 400 for an unreadable body)."""
        if self._is_on_backend:
            exchange.keep(self._rule, None)
        return self._looked(exchange, data, exchange.request.fields, "request", 400)

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """Raises Rejected (502)."""
        return self._looked(exchange, data, exchange.response.fields, "response", 502)

    def _looked(
        self, exchange: Exchange, data: bytes, fields: Fields, direction: Direction, status: int
    ) -> bytes | Coroutine[Any, Any, bytes]:
        try:
            if not data or self._is_clear(exchange, data, fields, direction):
                return data
            if self._judge is not None or len(data) > SCANNED_AT_ONCE:
                return self._in_turns(exchange, data, direction, status)
            _, rule = at_once(self._judged(exchange, data, direction))
        except Unreadable as error:
            return self._unreadable(data, error, _SHOWN[direction], status)
        self._act(exchange, rule, direction)
        return data

    async def _in_turns(self, exchange: Exchange, data: bytes, direction: Direction, status: int) -> bytes:
        try:
            texts, rule = await in_turns(self._judged(exchange, data, direction))
        except Unreadable as error:
            return self._unreadable(data, error, _SHOWN[direction], status)
        self._act(exchange, rule or await self._verdict(exchange, texts, direction), direction)
        return data

    def _judged(self, exchange: Exchange, data: bytes, direction: Direction) -> Work[tuple[_Texts, str]]:
        """The checked texts, and the name of the rule that denies them, "" for none. Raises Unreadable."""
        texts = yield from self._asked(exchange, data) if direction == "request" else self._answered(exchange, data)
        for rule in self._rules(texts, direction):
            if rule:
                return texts, rule
            yield
        return texts, ""

    def _is_clear(self, exchange: Exchange, data: bytes, fields: Fields, direction: Direction) -> bool:
        """Whether a fast check of the whole body rules out a denial. Raises Unreadable."""
        if not self._sees_at_a_glance or len(data) > SEEN_AT_A_GLANCE or data.lstrip()[:1] != b"{":
            return False
        if kind_of(fields) not in (BodyKind.JSON, BodyKind.UNKNOWN):
            return False
        _ = request_view(exchange, data) if direction == "request" else answer_view(exchange, data)  # it can be read
        texts = strings_of(data)
        return texts is not None and not self._may_be_denied(texts, direction)

    def _may_be_denied(self, text: str, direction: Direction) -> bool:
        """Whether a rule may deny one of the texts joined in `text`; false positives are possible."""
        folded = self._folder.fold(text)[0]
        if self._deny and (self._glance is None or self._glance(folded)):
            return True
        return self._phrases is not None and direction == "request" and self._phrases.may_have(folded)

    def _act(self, exchange: Exchange, rule: str, direction: Direction) -> None:
        if not rule:
            return
        config = self._config
        action = "Report" if config.mode == "Report" else config.action
        self._found.add(1, rule, action, direction)
        if action == "Report":
            exchange.note_denials(Reason.CONTENT_DENIED)
        elif action == "Deny":
            status = 403 if direction == "request" else 502
            raise self.refusal(config.message or f"the {direction} is denied by the rule {rule}", status)
        elif direction == "request" and self._is_on_backend:
            exchange.keep(self._rule, rule.encode())  # the head of this attempt is made behind its body
        elif direction == "request":
            exchange.request.fields.set(self._header, rule.encode())

    def _rules(self, texts: _Texts, direction: Direction) -> Iterator[str]:
        """The name of a rule that denies these texts, last; an empty name marks a place to yield."""
        config = self._config
        if config.max_total_length and sum(len(text) for text, _ in texts.spoken) > config.max_total_length:
            yield "max-total-length"
        if config.max_text_length and any(len(text) > config.max_text_length for text, _ in texts.spoken):
            yield "max-text-length"
        looked_at = self._looked_at(texts)
        for text, is_spoken in self._suspects(looked_at, direction) if self._sees_at_a_glance else looked_at:
            yield ""
            is_allowed = not self._allow or not is_spoken
            for start in range(0, len(text), SLICE):
                piece = text[start : start + SLICE + _OVERLAP]
                rule = self._rule_of(piece, direction)
                if rule:
                    yield rule
                is_allowed = is_allowed or any(searched_in(expression, piece) for expression in self._allow)
                yield ""
            if not is_allowed:
                yield "not-allowed"

    def _looked_at(self, texts: _Texts) -> Iterator[tuple[str, bool]]:
        """The texts of the checked turns, each with whether it has a role."""
        is_all = self._config.turns == "All"
        for text, is_newest in texts.spoken:
            if is_all or is_newest:
                yield text, True
        for text in texts.others:
            yield text, False

    def _suspects(self, looked_at: Iterator[tuple[str, bool]], direction: Direction) -> Iterator[tuple[str, bool]]:
        """The texts that a rule may deny. Short texts are checked together; "" stands for a group without a match."""
        group: list[tuple[str, bool]] = []
        size = 0
        for each in looked_at:
            if len(each[0]) > SLICE:
                yield each
                continue
            group.append(each)
            size += len(each[0])
            if size > SLICE or len(group) == _GROUP:
                yield from self._denied_together(group, direction)
                group, size = [], 0
        yield from self._denied_together(group, direction)

    def _denied_together(self, group: list[tuple[str, bool]], direction: Direction) -> list[tuple[str, bool]]:
        return group if self._may_be_denied("\n".join([text for text, _ in group]), direction) else [("", False)]

    def _rule_of(self, text: str, direction: Direction) -> str:
        if self._deny:
            folded = self._folder.fold(text)[0]
            for name, expression in self._deny:
                if searched_in(expression, folded):
                    return name
        return self._phrases.found(text) if self._phrases is not None and direction == "request" else ""

    async def _verdict(self, exchange: Exchange, texts: _Texts, direction: Direction) -> str:
        judge, settings = self._judge, self._config.judge
        if judge is None or settings is None:
            return ""
        shown = [text for text, is_newest in texts.spoken if is_newest or settings.turns == "All"]
        if not shown:
            return ""
        try:
            return "judge" if await judge.denies(exchange, shown, direction) else ""
        except ClassifierAbsent as error:
            self._found.add(1, "judge-absent", settings.failure_mode, direction)
            if settings.failure_mode == "Allow" or self._config.mode == "Report":
                return ""
            raise self.refusal(str(error), 503) from None

    def _asked(self, exchange: Exchange, data: bytes) -> Work[_Texts]:
        """The checked texts of a request."""
        document = yield from reading_document(exchange, data, kind_of(exchange.request.fields), is_request=True)
        texts: list[str] = []
        found: list[Found] = []
        # Positions in the JSON's order. A prefill of the response (Anthropic) belongs to the newest turn.
        turns: dict[Path, int] = {}
        last, of_model = -1, list[int]()
        for part in document.texts():
            yield
            texts.append(part.text)
            if not isinstance(part, TextPart):
                continue
            each = _by_its_sayer(part.found)
            found.append(each)
            if each.role is not TextRole.NONE:
                turn = turns.setdefault(each.path[:2], len(turns))
                if each.role is TextRole.ASSISTANT:
                    of_model.append(turn)
                else:
                    last = max(last, turn)
        if not turns:
            return _Texts([(text, True) for text in texts], [])
        newest = 1 + max((turn for turn in of_model if turn < last), default=-1)
        is_everybody = self._asks_everybody or _has_other_roles(exchange, data)
        made = _Texts([], [])
        found.reverse()
        while found:  # freed one at a time
            yield
            each = found.pop()
            if each.role is not TextRole.NONE:
                if is_everybody or each.role in self._roles:
                    made.spoken.append((each.text, turns[each.path[:2]] >= newest))
            elif is_everybody:
                made.others.append(each.text)
        return made

    def _answered(self, exchange: Exchange, data: bytes) -> Work[_Texts]:
        """The texts of a response, those of a stream joined."""
        fields = exchange.response.fields
        framing = framing_of(media_type_of(fields), operation(exchange))
        if framing is None:
            document = yield from reading_document(exchange, data, kind_of(fields), is_request=False)
            spoken: list[BodyText] = []
            others: list[BodyText] = []
            for part in document.texts():
                yield
                (others if part.role is TextRole.NONE else spoken).append(part)
            made = _Texts([], [])
            for part in spoken or others:
                yield
                if part.kind in _SAID:
                    made.spoken.append((part.text, True))
            return made
        collected: list[_Collector] = []

        def collector(channel: Channel) -> _Collector:
            collected.append(_Collector())
            return collected[-1]

        editor = StreamEditor(framing, collector)
        yield from editor.feeding(data + b"\n\n")  # some clients read an unterminated last event
        editor.end()
        made = _Texts([], [])
        for each in collected:
            yield
            made.spoken.append(("".join(each.pieces), True))
        return made


def _by_its_sayer(found: Found) -> Found:
    """The found texts, with the arguments of MCP messages (`tools/call`, `prompts/get`) as the client's."""
    path = found.path[1:] if found.path and type(found.path[0]) is int else found.path
    return found._replace(role=TextRole.USER) if path[:2] == _SENT_ARGUMENTS else found


def _has_other_roles(exchange: Exchange, data: bytes) -> bool:
    """Whether a turn of a request has a role in another spelling, which a server may read as any role."""
    if data.lstrip()[:1] != b"{":
        return False
    value = request_view(exchange, data).value
    turns = [each for key in _TURNS if type(value.get(key)) is list for each in value[key]]
    return any(
        type(turn) is dict and type(role := turn.get("role")) is str and role not in _ROLES_AS_SPELT for turn in turns
    )


PROMPT_GUARD = FilterType(
    name="egressproxy.io/PromptGuard:v1",
    phases=REQUEST_HEADS,
    config_model=PromptGuardConfig,
    build=PromptGuard,
    also=frozenset((Phase.CONNECT, Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    stands_for=DIRECTIONS,
    summary="Denies prompts and answers by expressions, known phrases of injection, lengths, and a judge.",
)
