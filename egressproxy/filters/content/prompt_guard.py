"""PromptGuard: what may be asked of a model, and what it may say: expressions, known phrases of injection, lengths, and
a judge.

It recognises words, not intentions: a guard against the common attempts and for rules of one's own, not a proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from egressproxy.ai_apis.shared import operation
from egressproxy.ai_apis.stream_events import Channel
from egressproxy.ai_apis.streams import StreamEditor, framing_of
from egressproxy.ai_apis.strict_json import Unreadable
from egressproxy.ai_apis.texts import TextKind, TextRole
from egressproxy.errors import Reason
from egressproxy.filters.base import BodyMode, Filter, FilterContext, FilterType, Phase, Rejected
from egressproxy.filters.content.bodies import BodyKind, BodyText, document_of, kind_of, media_type_of
from egressproxy.filters.content.folding import Folder
from egressproxy.filters.content.injection_phrases import InjectionPhrases
from egressproxy.filters.content.judge import Judge, JudgeAbsent, JudgeSettings
from egressproxy.filters.content.own_patterns import compiled, searched_in
from egressproxy.filters.header_policy import is_protected
from egressproxy.filters.settings import FieldName, FilterConfig, Within
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import every_spelling

__all__ = ["PROMPT_GUARD", "PromptGuard", "PromptGuardConfig"]

#: Characters that are looked at in one go; the overlap of two, so that no match of that length is cut.
_STEP: Final = 64 * 1024
_OVERLAP: Final = 1024
_READ: Final = frozenset((BodyKind.JSON, BodyKind.LINES, BodyKind.TEXT, BodyKind.FORM, BodyKind.UNKNOWN))
_ANSWERS: Final = frozenset((BodyKind.JSON, BodyKind.TEXT, BodyKind.UNKNOWN, BodyKind.EVENTS))
#: Pairs of a text, and whether it belongs to the newest turn.
_Texts = list[tuple[str, bool]]
_SAID: Final = frozenset((TextKind.TEXT, TextKind.REFUSAL, TextKind.REASONING, TextKind.ARGUMENTS))


@dataclass(frozen=True, slots=True)
class GuardPattern(FilterConfig):
    """An expression of RE2, with a name for metrics and messages."""

    name: Annotated[str, Within(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    pattern: Annotated[str, Within(min_length=1)]
    ignore_case: bool = True


@dataclass(frozen=True, slots=True)
class PromptGuardConfig(FilterConfig):
    """What is looked at, what for, and what is done.

    `apply_to`: the messages that are looked at. `roles`: whose texts of a request. `turns`: all of a conversation, or
    what stands behind the last word of the model. `deny`: a text that one of them matches is denied. `allow`: if there
    are any, a text that none of them matches is denied. `injection_phrases`: whether requests are looked at for those
    that we know. `max_text_length`, `max_total_length`: in characters, 0 for no limit. `judge`: who else decides.
    `action`: `Annotate` lets pass what is denied, with the name of the rule in the request field `header`; mode
    `Report` only counts. `message`: what the client is told. `unreadable`: what is done with bodies, tunnels and
    upgrades that cannot be looked at. `max_body_bytes`: of what is looked at whole.
    """

    apply_to: Literal["Requests", "Responses", "Both"] = "Requests"
    roles: Annotated[tuple[Literal["system", "user", "assistant", "tool"], ...], Within(min_length=1)] = (
        "user",
        "tool",
    )
    turns: Literal["All", "Newest"] = "All"
    deny: tuple[GuardPattern, ...] = ()
    allow: tuple[GuardPattern, ...] = ()
    injection_phrases: bool = True
    max_text_length: Annotated[int, Within(ge=0)] = 0
    max_total_length: Annotated[int, Within(ge=0)] = 0
    judge: JudgeSettings | None = None
    action: Literal["Deny", "Annotate"] = "Deny"
    mode: Literal["Enforce", "Report"] = "Enforce"
    header: FieldName = "X-Prompt-Guard"
    message: Annotated[str, Within(max_length=512)] = ""
    unreadable: Literal["Deny", "Allow"] = "Deny"
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if is_protected(self.header):
            raise ValueError(f"{self.header} is written by the gateway itself: name another `header`")
        looks = self.deny or self.allow or self.max_text_length or self.max_total_length or self.judge
        if not looks and (not self.injection_phrases or self.apply_to == "Responses"):
            raise ValueError("nothing is looked for: write `deny`, `allow`, a maximum length or `judge`")


class _Collector:
    """A function of text that keeps what it is told."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def feed(self, text: str) -> str:
        self.pieces.append(text)
        return text

    def flush(self) -> str:
        return ""


class PromptGuard(Filter):
    """Reads whole requests, and whole answers where these are looked at: a stream waits for its end."""

    decodes = True
    only_reads = True

    def __init__(self, context: FilterContext) -> None:
        config: PromptGuardConfig = context.config
        self._config = config
        self._name = context.name
        self._on_requests = config.apply_to != "Responses"
        self._on_answers = config.apply_to != "Requests"
        self._roles = frozenset(map(TextRole, config.roles))
        self._deny = [(each.name, compiled(each.pattern, ignores_case=each.ignore_case)) for each in config.deny]
        self._allow = [compiled(each.pattern, ignores_case=each.ignore_case) for each in config.allow]
        self._phrases = InjectionPhrases() if config.injection_phrases else None
        self._folder = Folder()
        self._judge: Judge | None = None
        if config.judge is not None:
            self._judge = Judge(config.judge, context.calls.get(config.judge.backend_ref.label))
        self._header = config.header.encode()
        self._annotations = every_spelling((config.header,))
        self._denies_unreadable = config.unreadable == "Deny" and config.mode == "Enforce"
        self.max_buffer_bytes = config.max_body_bytes
        self._found = context.meter.counter(
            "egress_prompt_guard",
            "Messages that a PromptGuard has found something in.",
            ("rule", "action", "direction"),
        )
        self._note = f"prompt guard {id(self)}"
        self._is_on_leg = context.phase is Phase.BACKEND_REQUEST
        self.runs_in = frozenset((context.phase, Phase.REQUEST_BODY, Phase.RESPONSE_BODY))
        if self._is_on_leg:
            self.runs_in |= {Phase.CONNECT}

    def request_headers(self, x: Exchange) -> None:
        """Takes the client's own annotation out. Raises Rejected (403) for tunnels and upgrades."""
        if x.is_tunnel or x.request.upgrade:
            if self._denies_unreadable:
                what = "a tunnel" if x.is_tunnel else "an upgraded connection"
                raise self._refusal(f"what is said in {what} cannot be looked at", 403)
            return
        if self._config.action == "Annotate":
            x.request.fields.cut(self._annotations)

    def connect(self, x: Exchange) -> None:
        """On a Backend: raises Rejected (403) for a tunnel."""
        if x.is_tunnel:
            self.request_headers(x)

    def backend_request(self, x: Exchange) -> None:
        """As `request_headers`, for one attempt, whose body has been looked at before."""
        self.request_headers(x)
        rule = x.notes.get(self._note) if x.notes is not None else None
        if rule is not None:
            x.request.fields.set(self._header, rule)

    def body_mode_for(self, x: Exchange, phase: Phase) -> BodyMode | None:
        """Whole. Raises Rejected (415, 502) for what cannot be looked at."""
        is_request = phase is Phase.REQUEST_BODY
        if not (self._on_requests if is_request else self._on_answers):
            return None
        fields = x.request.fields if is_request else x.response.fields
        if kind_of(fields) in (_READ if is_request else _ANSWERS):
            return BodyMode.BUFFER
        if self._denies_unreadable:
            what, status = ("request", 415) if is_request else ("answer", 502)
            shown = (fields.get(b"content-type") or b"none").decode("latin-1")[:80]
            raise self._refusal(f"the {what}'s body cannot be looked at: its Content-Type is {shown}", status)
        return None

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """Raises Rejected (403, or 400 for a body that cannot be read)."""
        if self._is_on_leg:
            x.note(self._note, None)
        try:
            texts = list(self._asked(x, data)) if data else []
        except Unreadable as error:
            return self._unreadable(data, error, "request", 400)
        return self._decided(x, data, texts, "request")

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes | Coroutine[Any, Any, bytes]:
        """Raises Rejected (502)."""
        try:
            texts = self._answered(x, data) if data else []
        except Unreadable as error:
            return self._unreadable(data, error, "answer", 502)
        return self._decided(x, data, texts, "response")

    def _decided(self, x: Exchange, data: bytes, texts: _Texts, direction: str) -> bytes | Coroutine[Any, Any, bytes]:
        if len(data) > _STEP or (self._judge is not None and texts):
            return self._in_steps(x, data, texts, direction)
        rule = ""
        for rule in self._rules(texts, direction):
            if rule:
                break
        self._act(x, rule, direction)
        return data

    async def _in_steps(self, x: Exchange, data: bytes, texts: _Texts, direction: str) -> bytes:
        rule = ""
        for rule in self._rules(texts, direction):
            if rule:
                break
            await asyncio.sleep(0)
        self._act(x, rule or await self._verdict(x, texts, direction), direction)
        return data

    def _act(self, x: Exchange, rule: str, direction: str) -> None:
        if not rule:
            return
        config = self._config
        action = "Report" if config.mode == "Report" else config.action
        self._found.add(1, rule, action, direction)
        if action == "Report":
            x.note_denials(Reason.CONTENT_DENIED)
        elif action == "Deny":
            status = 403 if direction == "request" else 502
            raise self._refusal(config.message or f"the {direction} is denied by the rule {rule}", status)
        elif direction == "request" and self._is_on_leg:
            x.note(self._note, rule.encode())  # the head of this attempt is made behind its body
        elif direction == "request":
            x.request.fields.set(self._header, rule.encode())

    def _rules(self, texts: _Texts, direction: str) -> Iterator[str]:
        """The name of a rule that denies these texts; before it "" now and then, for others to have their turn."""
        config = self._config
        if config.max_total_length and sum(len(text) for text, _ in texts) > config.max_total_length:
            yield "max-total-length"
        seen = 0
        for text, is_newest in texts:
            if config.max_text_length and len(text) > config.max_text_length:
                yield "max-text-length"
            if not is_newest and config.turns == "Newest":
                continue
            is_allowed = not self._allow
            for start in range(0, len(text), _STEP):
                piece = text[start : start + _STEP + _OVERLAP]
                rule = self._rule_of(piece, direction)
                if rule:
                    yield rule
                is_allowed = is_allowed or any(searched_in(expression, piece) for expression in self._allow)
                seen += len(piece)
                if seen > _STEP:
                    seen = 0
                    yield ""
            if not is_allowed:
                yield "not-allowed"

    def _rule_of(self, text: str, direction: str) -> str:
        if self._deny:
            folded = self._folder.fold(text)[0]
            for name, expression in self._deny:
                if searched_in(expression, folded):
                    return name
        return self._phrases.found(text) if self._phrases is not None and direction == "request" else ""

    async def _verdict(self, x: Exchange, texts: _Texts, direction: str) -> str:
        judge, settings = self._judge, self._config.judge
        if judge is None or settings is None:
            return ""
        shown = [text for text, is_newest in texts if is_newest or settings.turns == "All"]
        if not shown:
            return ""
        try:
            return "judge" if await judge.denies(x, shown, direction) else ""
        except JudgeAbsent as error:
            self._found.add(1, "judge-absent", settings.failure_mode, direction)
            if settings.failure_mode == "Allow" or self._config.mode == "Report":
                return ""
            raise self._refusal(str(error), 503) from None

    def _asked(self, x: Exchange, data: bytes) -> Iterator[tuple[str, bool]]:
        """The texts of a request that are looked at."""
        kind = kind_of(x.request.fields)
        parts: list[BodyText] = list(document_of(x, data, kind, is_request=True).texts())
        spoken = [part for part in parts if part.role is not TextRole.NONE]
        if not spoken:
            yield from ((part.text, True) for part in parts)
            return
        newest = 1 + max((n for n, part in enumerate(spoken) if part.role is TextRole.ASSISTANT), default=-1)
        for number, part in enumerate(spoken):
            if part.role in self._roles:
                yield part.text, number >= newest

    def _answered(self, x: Exchange, data: bytes) -> _Texts:
        """The texts of an answer, those of a stream put together."""
        fields = x.response.fields
        framing = framing_of(media_type_of(fields), operation(x))
        if framing is None:
            parts = list(document_of(x, data, kind_of(fields), is_request=False).texts())
            spoken = [part for part in parts if part.role is not TextRole.NONE]
            return [(part.text, True) for part in spoken or parts if part.kind in _SAID]
        collected: list[_Collector] = []

        def collector(channel: Channel) -> _Collector:
            collected.append(_Collector())
            return collected[-1]

        editor = StreamEditor(framing, collector)
        editor.feed(data)
        editor.end()
        return [("".join(each.pieces), True) for each in collected]

    def _unreadable(self, data: bytes, error: Unreadable, what: str, status: int) -> bytes:
        if self._denies_unreadable:
            raise self._refusal(f"the {what}'s body cannot be looked at: {error}", status)
        return data

    def _refusal(self, message: str, status: int) -> Rejected:
        return Rejected(f"filter {self._name}: {message}", status=status, reason=Reason.CONTENT_DENIED)

    def __repr__(self) -> str:
        return f"PromptGuard({self._name})"


PROMPT_GUARD = FilterType(
    name="egressproxy.io/PromptGuard:v1",
    phases=frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST)),
    config_model=PromptGuardConfig,
    build=PromptGuard,
    also=frozenset((Phase.CONNECT, Phase.REQUEST_BODY, Phase.RESPONSE_BODY)),
    backend_refs=lambda config: () if config.judge is None else (("judge.backendRef", config.judge.backend_ref),),
    summary="Denies prompts and answers by expressions, known phrases of injection, lengths, and a judge.",
)
