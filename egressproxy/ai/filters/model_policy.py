"""ModelPolicy: the allowed models, their aliases, the bounds of requests, and the backend of the rule for each request.

A request is checked by every model that it names: in its path, in its body, and as fallback. A request that cannot be
read as one of the APIs' is refused, since its model is unknown: another path, an upgrade, a tunnel, a body that is not
JSON or is ambiguous. Requests without a body that only read (GET, HEAD, OPTIONS) pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.apis.apis import Api, counted_api
from egressproxy.ai.apis.message import SCANNED_AT_ONCE
from egressproxy.ai.apis.request import AiRequest
from egressproxy.ai.apis.shared import (
    ask_for_model,
    is_post,
    operation,
    remedy_of_unseen,
    request_view,
    status_of_unseen,
    view_ahead,
)
from egressproxy.ai.apis.texts import TextRole
from egressproxy.ai.apis.websockets import asks_for_messages
from egressproxy.errors import Reason
from egressproxy.filters.base import (
    BodyMode,
    BodyResult,
    Filter,
    FilterContext,
    FilterType,
    OfMessages,
    Phase,
    Rejected,
)
from egressproxy.filters.settings import FilterConfig, Within
from egressproxy.ir.policy import MAX_BUFFERED_BYTES
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable
from egressproxy.model.work import Work
from egressproxy.net.cooperative import run

_Name = Annotated[str, Within(min_length=1, max_length=253)]
#: Methods that run no model if they have no body.
_READING: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))
#: Characters of a model's name that a message repeats.
_SHOWN: Final = 128


@dataclass(frozen=True, slots=True)
class ModelAlias(FilterConfig):
    """Another name for a model."""

    name: _Name
    """The model in the client's request, with `*` for any characters."""
    model: _Name
    """The model in the request to the backend."""


@dataclass(frozen=True, slots=True)
class ModelRoute(FilterConfig):
    """A backend for the requests that match all of these fields; an unset field matches any request."""

    models: tuple[_Name, ...] = ()
    """One of these models, after aliases, with `*` for any characters."""
    field: str = ""
    """A member of the body, as in `metadata.team`; together with `values`."""
    values: tuple[str, ...] = ()
    """One of these values of `field`, with `*` for any characters."""
    text_contains: tuple[Annotated[str, Within(min_length=1)], ...] = ()
    """One of these texts in the user's messages; case is ignored."""
    min_tokens: Annotated[int, Within(ge=0)] = 0
    """At least about this many tokens of the request."""
    has_tools: bool | None = None
    """Whether the request offers tools."""
    has_images: bool | None = None
    """Whether the request has images."""
    backend: str = ""
    """The backend of the rule to use, `name` or `namespace/name`, regardless of weights; in a Failover, the first."""
    exclude: tuple[_Name, ...] = ()
    """Backends of the rule that these requests never go to."""
    model: str = ""
    """The model that replaces the requested one."""

    def __post_init__(self) -> None:
        if bool(self.field) != bool(self.values):
            raise ValueError("`field` names what `values` are compared with: write both, or neither")
        if not (self.backend or self.exclude or self.model):
            raise ValueError("a route says where to: write `backend`, `exclude` or `model`")


@dataclass(frozen=True, slots=True)
class ModelPolicyConfig(FilterConfig):
    """Aliases apply first, then routes, then `allow` and `deny`, which check the model that the backend would get."""

    allow: tuple[_Name, ...] = ()
    """Allowed models, with `*` for any characters. Empty: all except those in `deny`."""
    deny: tuple[_Name, ...] = ()
    """Denied models; `deny` takes precedence over `allow`."""
    aliases: tuple[ModelAlias, ...] = ()
    """Aliases of models; the first match wins."""
    default_model: str = ""
    """The model for requests without one. Empty: such a request is refused."""
    routes: tuple[ModelRoute, ...] = ()
    """Backends by kind of request; the first match wins."""
    max_output_tokens: Annotated[int, Within(ge=0)] = 0
    """The highest output limit of a request, and the default for a request without one. 0: no bound."""
    max_temperature: Annotated[float, Within(ge=0, le=2)] | None = None
    """The highest temperature of a request."""
    out_of_bounds: Literal["Clamp", "Deny"] = "Clamp"
    """The effect on a request above a bound: reduce its value to the bound, or refuse it."""
    unreadable: Literal["Deny", "Allow"] = "Deny"
    """The effect on a body that cannot be read as a request to a model."""
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] = MAX_BUFFERED_BYTES
    """The longest request to a provider that is read; 413 beyond."""


class ModelPolicy(Filter):
    """One policy; requests are held until their body is whole."""

    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.REQUEST_BODY))
    decodes = True
    checks_models = True
    of_messages = OfMessages.ASKS

    def __init__(self, context: FilterContext) -> None:
        config: ModelPolicyConfig = context.config
        self._config = config
        self.max_buffer_bytes = config.max_body_bytes
        self._name = context.name
        self._deny = tuple(pattern.casefold() for pattern in config.deny)
        namespace = context.source.rpartition(" ")[2].partition("/")[0]
        self._routes = [
            (route, _full(route.backend, namespace), [_full(name, namespace) for name in route.exclude])
            for route in config.routes
        ]
        self._requests = context.meter.counter(
            "egress_model_policy", "Requests that a ModelPolicy has judged.", ("route", "result")
        )

    def request_headers(self, exchange: Exchange) -> None:
        """Refuse unreadable requests. Raises Rejected."""
        head = exchange.request
        lets_pass = self._lets_unreadable(exchange)
        if (head.upgrade and asks_for_messages(exchange, needs_them=not lets_pass)) or lets_pass:
            return
        if exchange.is_tunnel or head.upgrade:
            raise self._unreadable(
                exchange, "a tunnel, whose content is not read" if exchange.is_tunnel else "an upgrade"
            )
        is_known = _is_for_model(exchange) if head.body else head.method in _READING
        if not is_known:
            raise self._unreadable(exchange, "no request to a model that is known")

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        return BodyMode.BUFFER if not exchange.request.upgrade and _is_for_model(exchange) else None

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        """Check the request, and forward it as changed by the policy. Raises Rejected."""
        return run(self._judged(exchange, data), is_long=len(data) > SCANNED_AT_ONCE)

    def _judged(self, exchange: Exchange, data: bytes) -> Work[bytes]:
        config = self._config
        try:
            yield from view_ahead(exchange, data, is_request=True)
            view = request_view(exchange, data)
        except Unreadable as error:
            if self._lets_unreadable(exchange):
                return data
            raise self._unreadable(exchange, f"no request to a model: {error}") from None
        result = "allowed"
        if not view.models:
            if not config.default_model:
                raise self._denied(exchange, "the request names no model", 400)
            view.set_model(config.default_model)
            result = "changed"
        for alias in config.aliases:
            if fnmatchcase(view.model, alias.name):
                self._ask_for(exchange, view, alias.model)
                result = "changed"
                break
        if (yield from self._route(exchange, view)):
            result = "routed"
        self._judge(exchange, view)
        if operation(exchange) is not None:
            self._bound(exchange, view)
        self._requests.add(1, exchange.route, result)
        return (yield from view.writing())

    def _ask_for(self, exchange: Exchange, view: AiRequest, model: str) -> None:
        """Set the model. Raises Rejected if the path names the model in an unsupported spelling."""
        try:
            ask_for_model(exchange, view, model)
        except Unreadable as error:
            raise self._denied(exchange, str(error), 400) from None

    def _route(self, exchange: Exchange, view: AiRequest) -> Work[bool]:
        for route, backend, excluded in self._routes:
            if (yield from _matches(route, view)):
                if backend:
                    exchange.prefer_backend(backend)
                for name in excluded:
                    exchange.exclude_backend(name)
                if route.model:
                    self._ask_for(exchange, view, route.model)
                return True
        return False

    def _judge(self, exchange: Exchange, view: AiRequest) -> None:
        config, granted = self._config, _granted(exchange)
        for model in view.models:
            folded = model.strip().casefold()
            if any(fnmatchcase(folded, pattern) for pattern in self._deny) or (
                config.allow and not any(fnmatchcase(model, pattern) for pattern in config.allow)
            ):
                raise self._denied(exchange, f"model {model[:_SHOWN]!r} is not allowed", 403)
            if granted is not None and not any(fnmatchcase(model, pattern) for pattern in granted):
                error = self._denied(exchange, f"the client's API key is not for model {model[:_SHOWN]!r}", 403)
                error.rule = f"API key {exchange.identity.grant.entry}"  # type: ignore[union-attr]  # it has models
                raise error

    def _bound(self, exchange: Exchange, view: AiRequest) -> None:
        config = self._config
        is_strict = config.out_of_bounds == "Deny"
        if config.max_output_tokens and view.api is not Api.OPENAI_EMBEDDINGS:
            asked = view.max_output_tokens
            if asked is None or asked > config.max_output_tokens or asked < 0:
                if is_strict and asked is not None:
                    raise self._denied(
                        exchange, f"more than {config.max_output_tokens} output tokens are not allowed", 400
                    )
                if asked is None and view.api is Api.BEDROCK_INVOKE and "anthropic_version" not in view.value:
                    raise self._denied(
                        exchange, "the request has no limit for its output, and its model's form is not known", 400
                    )
                view.set_max_output_tokens(config.max_output_tokens)
        if config.max_temperature is not None:
            temperature = view.temperature
            if temperature is not None and temperature > config.max_temperature:
                if is_strict:
                    raise self._denied(exchange, f"a temperature above {config.max_temperature:g} is not allowed", 400)
                view.set_temperature(config.max_temperature)

    def _lets_unreadable(self, exchange: Exchange) -> bool:
        return self._config.unreadable == "Allow" and _granted(exchange) is None

    def _unreadable(self, exchange: Exchange, what: str) -> Rejected:
        error = self._denied(exchange, f"it is {what}", status_of_unseen(exchange), "unreadable")
        error.remedy = remedy_of_unseen(exchange)
        return error

    def _denied(self, exchange: Exchange, message: str, status: int, result: str = "denied") -> Rejected:
        self._requests.add(1, exchange.route, result)
        return Rejected(f"filter {self._name}: {message}", status=status, reason=Reason.MODEL_DENIED)


def _is_for_model(exchange: Exchange) -> bool:
    """Whether this is a request to a model, or for a count of its tokens, which has no bounds."""
    return operation(exchange) is not None or (is_post(exchange) and counted_api(exchange.request.path) is not None)


def _granted(exchange: Exchange) -> tuple[str, ...] | None:
    """The only models that the client's API key is for; None: all."""
    grant = exchange.identity.grant
    return grant.models if grant is not None else None


def _full(name: str, namespace: str) -> str:
    return name if not name or "/" in name else f"{namespace}/{name}"


def _matches(route: ModelRoute, view: AiRequest) -> Work[bool]:
    if route.models and not any(fnmatchcase(view.model, pattern) for pattern in route.models):
        return False
    if route.field:
        value = _member_text(view.value, route.field)
        if value is None or not any(fnmatchcase(value, pattern) for pattern in route.values):
            return False
    if route.has_tools is not None and bool(view.tools) is not route.has_tools:
        return False
    if route.has_images is not None and bool(view.images) is not route.has_images:
        return False
    if route.min_tokens and (yield from view.estimated_input_tokens()) < route.min_tokens:
        return False
    words = [word.casefold() for word in route.text_contains]
    if not words:
        return True
    for part in view.texts():
        yield
        if part.role is TextRole.USER:
            text = part.text.casefold()
            if any(word in text for word in words):
                return True
    return False


def _member_text(value: Any, field: str) -> str | None:
    """The value of a member of the body as text; None for another type than text, number or boolean."""
    for name in field.split("."):
        if type(value) is not dict:
            return None
        value = value.get(name)
    if type(value) is bool:
        return "true" if value else "false"
    return str(value) if type(value) in (str, int, float) else None


def _backend_names(config: ModelPolicyConfig) -> tuple[tuple[str, str], ...]:
    found = []
    for index, route in enumerate(config.routes):
        if route.backend:
            found.append((f"routes[{index}].backend", route.backend))
        found += [(f"routes[{index}].exclude[{at}]", name) for at, name in enumerate(route.exclude)]
    return tuple(found)


MODEL_POLICY = FilterType(
    name="egressproxy.io/ModelPolicy:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    also=frozenset((Phase.REQUEST_BODY,)),
    config_model=ModelPolicyConfig,
    build=ModelPolicy,
    backend_names=_backend_names,
    summary="Says which models may be asked, under which names, within which bounds, and by which backend.",
)
