"""The WebSockets of AI providers whose messages filters get."""

from __future__ import annotations

from egressproxy.ai.apis.apis import is_responses_websocket
from egressproxy.ai.apis.responses_websocket import ResponsesMessages
from egressproxy.filters.messages import MESSAGES, ask_for_messages
from egressproxy.model.exchange import Exchange


def asks_for_messages(exchange: Exchange, *, needs_them: bool = True) -> bool:
    """Whether filters see each message of this upgrade. Its head is not refused then. Messages of a realtime session
    are seen only where the filter `needs_them`: audio, which others let pass unseen, would be refused.
    """
    request = exchange.request
    if not request.upgrade:
        return False
    if is_responses_websocket(request.path, request.upgrade):
        return ask_for_messages(exchange, ResponsesMessages())
    if not needs_them or b"realtime" not in request.path or request.upgrade.lower() != b"websocket":
        return False
    # Here, since few gateways see one.
    from egressproxy.ai.apis.realtime_websocket import RealtimeMessages, model_of_realtime

    model = model_of_realtime(request.path)
    messages = exchange.state.get(MESSAGES)
    if not model or messages is None:
        return False
    known = messages.api
    is_known = isinstance(known, RealtimeMessages) and known.model == model
    return ask_for_messages(exchange, known if is_known and known is not None else RealtimeMessages(model))
