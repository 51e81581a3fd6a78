"""AiCall: one request to a rule with AI providers: what it asks for, and in which form each backend gets it.

A request that the chosen backend serves as it is passes unread. Else the body is collected, once, and each attempt has
it made anew from the client's own: with another model, or translated to an API that the backend serves. What cannot be
said there leads to the next endpoint of a Failover that can, without blame for this one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from egressproxy.ai.apis.apis import Api, is_responses_websocket
from egressproxy.ai.apis.request import AiRequest
from egressproxy.ai.apis.shared import is_post, operation, tell_backend_api
from egressproxy.ai.backends.answers import (
    JSON,
    MAX_ANSWER,
    MAX_ERROR,
    TranslatedStream,
    gathered,
    set_request_head,
    set_response_head,
)
from egressproxy.ai.backends.endpoint import AiEndpoint, endpoint_of
from egressproxy.ai.backends.model_field import find_model, with_model
from egressproxy.ai.backends.provider_errors import ProviderCall, told_in_shape
from egressproxy.ai.translation.apis import api_of, count_answer, deployment_of, stream_type
from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.errors import BadRequest, GatewayError, Reason, UpstreamFault
from egressproxy.filters.base import Filter, OfMessages, Phase
from egressproxy.filters.content_coding import note_change
from egressproxy.gateway.answers import Answer, BegunAnswer, WholeAnswer
from egressproxy.gateway.backends.buffered_body import BodyClient, invite_body
from egressproxy.gateway.backends.failover import FailoverState
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.product_types import ADAPTER, BuiltRule, ErrorForm, OwnFilter, RequestAdapter, RuleProduct
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import HttpRuleIR
from egressproxy.model.attempt_trail import AttemptTrail
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import EVENT_STREAM, media_type
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work
from egressproxy.net.cooperative import in_turns
from egressproxy.protocols.upstream import Upstream
from egressproxy.telemetry.counters import LabelSets

if TYPE_CHECKING:  # translation takes memory, and not everybody asks for it: the build of a rule imports it
    from egressproxy.ai.translation.translator import TranslatedRequest

#: The field of an answer that names what was left out of its request.
DROPPED_FIELD: Final = b"X-Egress-Dropped"
#: Characters of a model's name that the log has.
_LOGGED: Final = 128
_UNTRANSLATABLE: Final = "untranslatable"
_TRANSLATOR: Final = "egressproxy.ai.translation.translator"
#: Before all others: the API is told by the path as the client has sent it.
REQUESTS: Final = ExtensionIR(
    "ai", "egressproxy.io/Ai:v1", Phase.REQUEST_HEADERS.value, -(10**9), pre_auth=True, timeout_s=0
)
#: Set where the filter ran, for its `complete`: that of every configuration.
MARK: Final[StateSlot[bool]] = StateSlot("ai ran")


class _Sent(NamedTuple):
    """What an attempt sends: `body`, or None for the client's own; the translation, where it is one; both models."""

    body: bytes | None = None
    request: TranslatedRequest | None = None
    asked_model: str = ""
    sent_model: str = ""


_AS_IT_IS: Final = _Sent()


class _Hindrance(NamedTuple):
    """The text of an Untranslatable. The exception itself would keep its frames, and they the call."""

    field: str
    why: str


@dataclass(slots=True, eq=False, repr=False)
class AiCall(RequestAdapter, ErrorForm):
    """`api` is the client's, None for a path of none; `backend_api` that of the attempt under way."""

    api: Api | None
    _prefix: bytes
    _deployment: str = ""  # that the client's path names, as Azure's do: it counts, and not the model of the body
    is_websocket: bool = False  # a WebSocket, which passes as it is or not at all
    backend_api: Api | None = None
    _is_count: bool = False  # of tokens, for a provider of another API
    _sent: _Sent = _AS_IT_IS
    _model: str = ""  # that the client has asked for
    _first: _Hindrance | None = None  # of the first endpoint that cannot serve it
    own_answer: LocalResponse | None = None  # what the client gets, and the backend is not asked

    @classmethod
    def begin(cls, exchange: Exchange) -> None:
        """Look at the head of this exchange's request, and keep the call; nothing where there is none."""
        head = exchange.request
        if head.upgrade:
            if is_responses_websocket(head.path, head.upgrade):
                exchange.keep(ADAPTER, cls(Api.OPENAI_RESPONSES, exchange.path_prefix, is_websocket=True))
        elif is_post(exchange):
            exchange.keep(ADAPTER, cls(api_of(head.path), exchange.path_prefix, deployment_of(head.path)))

    @classmethod
    def of(cls, exchange: Exchange) -> AiCall | None:
        """That of this exchange; None where no backend of its rule is an AI provider."""
        call = exchange.state.get(ADAPTER)
        return call if isinstance(call, AiCall) else None

    # --- requests --------------------------------------------------------------------------------------------------
    async def prepare(
        self,
        exchange: Exchange,
        client: BodyClient,
        backend: RouteBackend,
        body: ReplayableBody | None,
        failover_state: FailoverState | None,
    ) -> RouteBackend:
        if self.api is None:
            self.api = api_of(exchange.request.path)  # a filter of the rule has led it there
            self._deployment = deployment_of(exchange.request.path)
        whole: bytes | None = None
        while True:
            self._sent, self.backend_api = _AS_IT_IS, self.api
            exchange.path_prefix = self._prefix
            try:
                endpoint = endpoint_of(backend)
                if self.is_websocket and endpoint is not None and endpoint.changes_body(self.api):
                    raise Untranslatable(
                        "", "a WebSocket is not translated, nor its models renamed: send plain requests"
                    )
                count_of = endpoint.translated_count(exchange.request.path) if endpoint is not None else None
                if endpoint is not None and count_of is not None:
                    self.api, self._is_count = count_of, True
                    whole = await self._collected(exchange, client, body, endpoint)
                    counted = await in_turns(self._counted(exchange, endpoint, whole, count_of))
                    if counted is None:
                        self.own_answer = await in_turns(self._estimated(exchange, whole, count_of))
                        return backend
                    self._sent = counted
                elif endpoint is not None and self._needs_body(exchange, endpoint):
                    if whole is None:
                        whole = await self._collected(exchange, client, body, endpoint)
                    self._sent = await in_turns(self._made(exchange, endpoint, whole))
                if endpoint is not None:
                    self._set_head(exchange, endpoint)
            except Untranslatable as error:
                following = self._pass_over(
                    exchange, backend, _Hindrance(error.field, error.why), failover_state, client.wheel.now
                )
                if following is None:
                    raise self._refusal() from None
                backend = following
            else:
                tell_backend_api(exchange, self._sent.request.target if self._sent.request is not None else None)
                if whole is not None and self._sent.body is None:
                    self._sent = _Sent(whole)  # it may be too long to be kept
                return backend

    def _counted(self, exchange: Exchange, endpoint: AiEndpoint, body: bytes, source: Api) -> Work[_Sent | None]:
        """The request for a count in the provider's API, in turns; None if it has none, or none for such a request."""
        target = endpoint.counts_in()
        if target is None or b"content-encoding" in exchange.request.fields or len(body) > endpoint.max_body_bytes:
            return None
        from egressproxy.ai.translation.translator import translate_count

        try:
            model: str | None = endpoint.always_sends or None
            if endpoint.renames and model is None:
                named = yield from find_model(body)
                model = endpoint.model_for(named.name) if named is not None else None
            request = yield from translate_count(body, source, target, model, is_vertex=endpoint.is_vertex)
        except Untranslatable:
            return None
        return _Sent(request.body, request, request.client_model, request.sent_model)

    def _estimated(self, exchange: Exchange, body: bytes, source: Api) -> Work[LocalResponse]:
        """An estimate: clients that get no count compress their conversation too late. Raises Untranslatable."""
        if b"content-encoding" in exchange.request.fields:
            raise Untranslatable("", "its Content-Encoding is not read here: send it without")
        try:
            tokens = yield from AiRequest.of(body, (yield from AiRequest.parsing(body))).estimated_input_tokens()
        except Unreadable as error:
            raise Untranslatable("", f"the body cannot be read: {error}") from None
        return LocalResponse(200, ((b"Content-Type", JSON),), count_answer(source, tokens))

    async def narrow(
        self, exchange: Exchange, client: BodyClient, body: ReplayableBody | None, failover_state: FailoverState
    ) -> None:
        # Clients are to hear of the failure, not of who cannot serve the request.
        if body is None or not body.is_kept or self._is_count:  # counts are estimated where nobody counts
            return
        whole: bytes | None = None
        known: dict[tuple[Api | None, bool, bool], _Hindrance | None] = {}  # other names change nothing
        for backend in failover_state.left():
            endpoint = endpoint_of(backend)
            if endpoint is None or not self._needs_body(exchange, endpoint):
                continue
            if whole is None:
                body.detach()
                whole = await self._collected(exchange, client, body, endpoint, only_looks=True)
            key = endpoint.api_for(self.api), endpoint.renames, endpoint.drops
            if key not in known:
                known[key] = await self._hindrance(exchange, endpoint, whole)
            hindrance = known[key]
            if hindrance is not None:
                self._pass_over(exchange, backend, hindrance, failover_state, client.wheel.now)

    async def _hindrance(self, exchange: Exchange, endpoint: AiEndpoint, body: bytes) -> _Hindrance | None:
        try:
            await in_turns(self._made(exchange, endpoint, body))
        except Untranslatable as error:
            return _Hindrance(error.field, error.why)
        return None

    def _needs_body(self, exchange: Exchange, endpoint: AiEndpoint) -> bool:
        """Whether this endpoint may get another body. A file, such as one to transcribe, names no model."""
        if self.is_websocket or not endpoint.changes_body(self.api):
            return False
        return self.api is not None or media_type(exchange.request.fields) == JSON

    def _set_head(self, exchange: Exchange, endpoint: AiEndpoint) -> None:
        head, sent = exchange.request, self._sent
        self._model = sent.asked_model or self._model
        if sent.sent_model != sent.asked_model:
            note_change(head.fields)
        if sent.request is not None:
            self.backend_api = sent.request.target
            exchange.path_prefix = b""  # what replaces it is for the client's path
            operation(exchange)  # filters of the answer, which see the client's API, go by the client's path
            if sent.request.is_count:
                path = endpoint.count_path_of(sent.request.target, sent.sent_model)
            else:
                path = endpoint.path_of(sent.request.target, sent.sent_model, is_stream=sent.request.is_stream)
            set_request_head(head, sent.request, path)
        elif endpoint.needs_model(self.api) and self.api is not None and api_of(head.path) is self.api:
            head.path = endpoint.path_of(self.api, sent.sent_model, is_stream=False)
            exchange.path_prefix = b""
        elif endpoint.has_own_paths and self.api is not None and self._has_plain_path(head.path):
            _, mark, query = head.path.partition(b"?")
            path = endpoint.path_of(self.api, "", is_stream=False)
            head.path = path if b"?" in path else path + mark + query
            exchange.path_prefix = b""

    def _has_plain_path(self, path: bytes) -> bool:
        """Whether this path is of the client's API, and names no model."""
        return api_of(path) is self.api and not deployment_of(path)

    def _made(self, exchange: Exchange, endpoint: AiEndpoint, body: bytes) -> Work[_Sent]:
        """What this endpoint gets, in turns. Raises Untranslatable."""
        fields, target = exchange.request.fields, endpoint.api_for(self.api)
        if self.api is None and not body:
            return _AS_IT_IS
        if len(body) > endpoint.max_body_bytes:
            raise Untranslatable("", f"it is longer than the {endpoint.max_body_bytes} bytes that are read for it")
        if b"content-encoding" in fields:
            raise Untranslatable("", "its Content-Encoding is not read here: send it without")
        named = None
        model: str | None = endpoint.always_sends or None
        if (endpoint.renames and (model is None or target is self.api)) or endpoint.needs_model(self.api):
            named = yield from find_model(body)
            asked = self._deployment or (named.name if named is not None else "")
            model = endpoint.model_for(asked) if asked else None
        if self.api is not None and target is not None and target is not self.api:
            from egressproxy.ai.translation.translator import translate_request

            request = yield from translate_request(
                body, self.api, target, model, drops=endpoint.drops, path_model=self._deployment
            )
            return _Sent(request.body, request, request.client_model, model or request.client_model)
        if model is None and endpoint.needs_model(self.api):
            raise Untranslatable("model", "is missing")
        if named is None or model is None:
            return _Sent(body, None, self._deployment, model or self._deployment)
        made = (yield from with_model(named, model)) if model != named.name else body
        return _Sent(made, None, named.name, model)

    async def _collected(
        self, exchange: Exchange, client: BodyClient, body: ReplayableBody | None, endpoint: AiEndpoint, *,
        only_looks: bool = False,
    ) -> bytes:  # fmt: skip
        if body is None:
            return b""
        invite_body(client, exchange.request)
        return await body.collect(client, endpoint.max_body_bytes, only_looks=only_looks)

    def _pass_over(
        self,
        exchange: Exchange,
        backend: RouteBackend,
        hindrance: _Hindrance,
        failover_state: FailoverState | None,
        now: float,
    ) -> RouteBackend | None:
        self._first = self._first or hindrance
        AttemptTrail.kept_by(exchange).add(backend.name, _UNTRANSLATABLE, 0.0)
        return failover_state.pass_over(backend, now) if failover_state is not None else None

    def _refusal(self) -> BadRequest:
        assert self._first is not None
        field = f"`{self._first.field}`: " if self._first.field else ""
        message = f"no backend of this route can serve the request: {field}{self._first.why}"
        self.backend_api = None
        status = 426 if self.is_websocket else 400
        error = BadRequest(Reason.UNTRANSLATABLE, message, status=status, close=False)
        error.is_quotable = False  # names of fields are the client's
        error.detail = f"{field}{self._first.why}"
        return error

    # --- answers ---------------------------------------------------------------------------------------------------
    async def answer(self, exchange: Exchange, client: BodyClient, upstream: Upstream | BegunAnswer) -> Answer:
        # The head becomes that of the translated answer; what is no success stays none.
        request, head = self._sent.request, exchange.response
        if request is not None:
            request = replace(request, body=b"")
        self._sent = self._sent._replace(body=None, request=request)  # a body may be long, and a stream lasts
        if request is None:
            return upstream
        is_success = head.status < 300
        if 300 <= head.status < 400:
            raise _bad("is a redirect, which no translated request follows")
        is_coded = (head.fields.get(b"content-encoding") or b"identity").lower() != b"identity"
        if is_success and is_coded:
            raise _bad("has a Content-Encoding, and `identity` was asked for")
        from egressproxy.ai.translation.translator import ResponseTranslator

        translator = ResponseTranslator(request)
        is_stream = (
            request.is_stream and media_type(head.fields) == stream_type(request.target) and not upstream.has_ended
        )
        if is_success and is_stream:
            set_response_head(head, request, EVENT_STREAM)
            self._tell_losses(exchange)
            head.body = -1
            return TranslatedStream(exchange, upstream, translator, client)
        try:
            body = await gathered(upstream, client, MAX_ANSWER if is_success else MAX_ERROR)
        except UpstreamFault:
            if is_success:
                raise
            body = b""  # the status says enough
        status, body = await in_turns(translator.whole(head.status, b"" if is_coded else body))
        if is_success and status >= 300:
            raise _bad("cannot be translated")
        set_response_head(head, request, JSON)
        self._tell_losses(exchange)
        head.status, head.body = status, len(body)
        return WholeAnswer(upstream, body)

    # --- what is told ----------------------------------------------------------------------------------------------
    @property
    def dropped(self) -> tuple[str, ...]:
        """What was left out of the request of the attempt under way, by the names of the client's API."""
        return self._sent.request.dropped if self._sent.request is not None else ()

    def _tell_losses(self, exchange: Exchange) -> None:
        exchange.response.fields.remove(DROPPED_FIELD)
        if self.dropped:
            exchange.response.fields.set(DROPPED_FIELD, ", ".join(self.dropped).encode())

    @property
    def is_translated(self) -> bool:
        """Whether the backend gets another API than the client speaks."""
        return self._sent.request is not None

    @property
    def body(self) -> bytes | None:
        return self._sent.body

    def error(self, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes | None:
        if self.api is None:
            return None
        field = self._first.field if self._first is not None and error.reason is Reason.UNTRANSLATABLE else ""
        return told_in_shape(self.api, error, about, field or None)

    def error_in_stream(self, kind: bytes, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes:
        # Of the client's API, whatever API its request is translated to.
        return (
            ProviderCall(self.api).error_in_stream(kind, error, about, denied=denied) if self.api is not None else b""
        )

    def log_fields(self) -> dict[str, object]:
        """The fields for the access log, as far as they are known."""
        fields = {
            "ai_api": self.api.value if self.api is not None else "",
            "ai_backend_api": self.backend_api.value if self.backend_api is not None else "",
            "ai_model": self._model[:_LOGGED],
            "ai_backend_model": self._sent.sent_model[:_LOGGED],
            "ai_dropped": list(self.dropped),
        }
        return {name: value for name, value in fields.items() if value}


def _bad(why: str) -> UpstreamFault:
    return UpstreamFault(Reason.BAD_RESPONSE, f"the backend's answer {why}")


def import_translation() -> None:
    """Have what translates here before the first request that needs it. Takes 20 milliseconds, once."""
    import_module(_TRANSLATOR)


class AiRequests(Filter):
    """The gateway's own filter in the chain of a rule with AI providers: it begins calls, and tells of them."""

    runs_in = frozenset((Phase.REQUEST_HEADERS,))
    of_messages = OfMessages.HEAD

    def __init__(
        self,
        route: str,
        translations: LabelSets[str, str, str, str, str],
        dropped: LabelSets[str, str, str, str, str],
    ) -> None:
        self._route = route
        self._translations = translations
        self._dropped = dropped

    def request_headers(self, exchange: Exchange) -> None:
        AiCall.begin(exchange)

    def complete(self, exchange: Exchange) -> None:
        call = AiCall.of(exchange)
        if call is None:
            return
        if call.api is not None and exchange.reason is Reason.UNTRANSLATABLE:
            self._translations.count(self._route, "-", call.api.value, "-", Reason.UNTRANSLATABLE.value)
        elif call.api is not None and call.backend_api is not None and call.is_translated:
            result = "ok" if exchange.reason is Reason.OK and 200 <= exchange.status < 400 else "error"
            self._translations.count(self._route, exchange.backend, call.api.value, call.backend_api.value, result)
            for name in call.dropped:
                self._dropped.count(self._route, exchange.backend, call.api.value, call.backend_api.value, name)
        fields = call.log_fields()
        if fields:
            exchange.add_log_fields(fields)


class AiRules(RuleProduct):
    """Rules of which a backend is an AI provider, or has other names for models."""

    def serves(self, rule: HttpRuleIR, backends: Sequence[RouteBackend]) -> bool:
        return any(backend.ai is not None for backend in backends)

    def blocking_import(self) -> Callable[[], None] | None:
        # Only once: a turn in a thread for each rule would make reloads long.
        return None if _TRANSLATOR in sys.modules else import_translation

    def attach(self, rule: BuiltRule) -> tuple[OwnFilter, None]:
        own = AiRequests(rule.name, rule.metrics.translations, rule.metrics.dropped_fields)
        return OwnFilter(REQUESTS, own, MARK), None
