"""What AI adds to the data plane: the form of errors, and a look at the beginning of answers."""

from __future__ import annotations

from collections.abc import Sequence

from egressproxy.ai.apis.apis import operation_of
from egressproxy.ai.apis.first_event import FirstEvent, may_tell
from egressproxy.ai.backends.call import AiCall
from egressproxy.ai.backends.provider_errors import provider_call
from egressproxy.ai.mcp.call import McpCall
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.product_types import ErrorForm
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import media_type


def error_form(exchange: Exchange, backends: Sequence[RouteBackend]) -> ErrorForm | None:
    """The form in which the client of this exchange reads errors; None where no provider is known."""
    mcp = McpCall.of(exchange)
    if mcp is not None:
        return mcp
    call = AiCall.of(exchange)
    return call if call is not None and call.api is not None else provider_call(exchange, backends)


def answer_beginning(exchange: Exchange) -> FirstEvent | None:
    """What reads the beginning of the answer in `exchange`; None for one that tells of no failure in this way."""
    head, operation = exchange.response, operation_of(exchange.request.path)
    kind = media_type(head.fields)
    return FirstEvent(kind, operation) if may_tell(kind, head.body, operation) else None
