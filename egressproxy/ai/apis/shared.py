"""Parsed bodies that several filters of one exchange share. A body is identified by its bytes object: the result of
`JsonMessage.body` has the same view for the next filter.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.ai.apis.answer import AiAnswer
from egressproxy.ai.apis.apis import Api, Operation, is_responses_websocket, operation_of
from egressproxy.ai.apis.hosts import api_of_host, provider_of_host
from egressproxy.ai.apis.message import READ_AT_ONCE, JsonMessage
from egressproxy.ai.apis.request import AiRequest
from egressproxy.ai.apis.usage import TokenUsage, merged, usage_of
from egressproxy.model.authority import host_name
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.strict_json import Unreadable, loads
from egressproxy.model.work import Work

_VIEW: Final[StateSlot[AiRequest | AiAnswer]] = StateSlot("ai view")
_OPERATION: Final[StateSlot[Operation | None]] = StateSlot("ai operation")
_USAGE: Final[StateSlot[TokenUsage | None]] = StateSlot("ai usage")
_BACKEND_API: Final[StateSlot[Api | None]] = StateSlot("ai backend api")


def operation(exchange: Exchange) -> Operation | None:
    """The AI operation of this request's path, cached; None if unknown."""
    state = exchange.state
    if _OPERATION in state:
        return state.get(_OPERATION)
    found = operation_of(exchange.request.path) if is_post(exchange) else None
    if state:
        state[_OPERATION] = found
    else:
        exchange.keep(_OPERATION, found)
    return found


def is_post(exchange: Exchange) -> bool:
    """Whether the method is POST, in any case: some servers (Django, Werkzeug) read `post` so."""
    return exchange.method.upper() == b"POST"


def status_of_unseen(exchange: Exchange) -> int:
    """The status to refuse a tunnel or an upgrade that a filter cannot read: 403, or 426 if the client can send plain
    requests instead.
    """
    return (
        426
        if exchange.request.upgrade and is_responses_websocket(exchange.request.path, exchange.request.upgrade)
        else 403
    )


def remedy_of_unseen(exchange: Exchange) -> str:
    """What the client can do behind `status_of_unseen`; "": nothing."""
    return "send plain requests (POST)" if status_of_unseen(exchange) == 426 else ""


def tell_backend_api(exchange: Exchange, api: Api | None) -> None:
    """Note that the new attempt is translated to this API; None: not translated."""
    exchange.keep(_BACKEND_API, api)


def provider_name(exchange: Exchange, asked: Operation) -> str:
    """The provider that has answered, by `gen_ai.provider.name`: that of the last host, or of the API that it was asked
    in. The translation decides where the two differ: of a backend that is addressed by IP, the client names the host.
    """
    target = exchange.state.get(_BACKEND_API)
    host = host_name(exchange.upstream_host)
    of_host = api_of_host(host)
    if of_host is None or (target is not None and of_host.provider != target.provider):
        return (target or asked.api).provider
    return provider_of_host(host) or of_host.provider


def request_view(exchange: Exchange, body: bytes) -> AiRequest:
    """The view of this body of a request. Raises Unreadable, which says why it cannot be read."""
    found = exchange.state.get(_VIEW)
    # A view with pending changes belongs to another filter, which discarded them.
    if found is None or found.source is not body or type(found) is not AiRequest or found.is_changed:
        found = AiRequest.read(body, operation(exchange))
        exchange.state[_VIEW] = found  # `operation` has made it
    return found


def view_ahead(exchange: Exchange, body: bytes, *, is_request: bool) -> Work[None]:
    """Read a long body as cooperative work, so that `request_view` or `answer_view` returns at once afterwards. Raises
    Unreadable, also for a value that is no object (or, in a response, no array).
    """
    if len(body) <= READ_AT_ONCE:
        return
    found = exchange.state.get(_VIEW)
    kind = AiRequest if is_request else AiAnswer
    if found is not None and found.source is body and type(found) is kind and not found.is_changed:
        return
    value = yield from JsonMessage.parsing(body)
    if is_request:
        exchange.keep(_VIEW, AiRequest.of(body, value, operation(exchange)))
    else:
        exchange.keep(_VIEW, AiAnswer.of(body, value))


def ask_for_model(exchange: Exchange, view: AiRequest, model: str) -> None:
    """Name another model in path and body. Raises Unreadable for one in the path whose spelling is not rewritten."""
    if view.operation is not None and view.operation.model:
        now = operation_of(exchange.request.path)  # a filter may have changed the path
        if now is None or now.model != view.operation.model or now.path_model == (0, 0):
            raise Unreadable("the path names the model in an unusual spelling")
        exchange.request.path = now.with_model(exchange.request.path, model)
        view.operation = operation_of(exchange.request.path)
        exchange.keep(_OPERATION, view.operation)
    view.set_model(model)


def answer_view(exchange: Exchange, body: bytes) -> AiAnswer:
    """The view of this body of an answer. Raises Unreadable, which says why it cannot be read."""
    found = exchange.state.get(_VIEW)
    if type(found) is not AiAnswer or found.source is not body or found.is_changed:
        found = AiAnswer.read(body)
        exchange.keep(_VIEW, found)
    return found


def said_in_answer(exchange: Exchange, body: bytes) -> Any:
    """The value of this body for reading: parsed by `loads`, or from an existing view. Raises Unreadable."""
    view = exchange.state.get(_VIEW)
    return view.value if view is not None and view.source is body and not view.is_changed else loads(body)


def add_usage(exchange: Exchange, usage: TokenUsage | None) -> None:
    """Store the usage in a response or stream event, for other filters of the exchange."""
    if usage is not None:
        before = exchange.state.get(_USAGE)
        exchange.keep(_USAGE, usage if before is None else merged(before, usage))


def add_usage_of_answer(exchange: Exchange, body: bytes) -> None:
    """`add_usage` of a whole response, unless usage is stored already. An unreadable body has none."""
    if exchange.state.get(_USAGE) is not None:
        return
    view = exchange.state.get(_VIEW)
    try:
        value = view.value if view is not None and view.source is body and not view.is_changed else loads(body)
    except Unreadable:
        return
    usage = usage_of(value)
    if usage is not None:
        exchange.keep(_USAGE, usage)


def usage_told(exchange: Exchange) -> TokenUsage | None:
    """The stored usage so far, or None."""
    return exchange.state.get(_USAGE)
