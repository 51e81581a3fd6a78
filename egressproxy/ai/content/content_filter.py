"""ContentFilter: what filters share that look at what requests and answers say, on a route or at a Backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from egressproxy.ai.apis.shared import remedy_of_unseen, status_of_unseen
from egressproxy.ai.apis.websockets import asks_for_messages
from egressproxy.errors import Reason
from egressproxy.filters.base import Filter, FilterContext, OfMessages, Phase, Rejected
from egressproxy.ir.policy import MAX_BUFFERED_BYTES
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.strict_json import Unreadable

#: The longest answer that is looked at whole, where nothing says another bound.
_MAX_ANSWER: Final = 8 * 1024 * 1024


#: Where proposals place a filter that says in `applyTo` what it looks at: each phase stands for a direction.
DIRECTIONS: Final[Mapping[Phase, Mapping[str, str]]] = {
    Phase.REQUEST_BODY: {"applyTo": "Requests"},
    Phase.BACKEND_RESPONSE: {"applyTo": "Responses"},
    Phase.RESPONSE_HEADERS: {"applyTo": "Responses"},
    Phase.RESPONSE_BODY: {"applyTo": "Responses"},
}


class ContentFilter(Filter):
    """`denies_unreadable`: what cannot be looked at is refused, and does not pass."""

    decodes = True
    of_messages = OfMessages.ASKS

    def __init__(self, context: FilterContext, max_body_bytes: int | None, *, denies_unreadable: bool) -> None:
        self._name = context.name
        self._denies_unreadable = denies_unreadable
        self.max_buffer_bytes = max_body_bytes or MAX_BUFFERED_BYTES
        self.max_answer_bytes = max_body_bytes or _MAX_ANSWER
        self._is_on_backend = context.phase is Phase.BACKEND_REQUEST
        self.runs_in = frozenset((context.phase, Phase.REQUEST_BODY, Phase.RESPONSE_BODY))
        if self._is_on_backend:
            self.runs_in |= {Phase.CONNECT}

    def connect(self, exchange: Exchange) -> None:
        if exchange.is_tunnel:
            self.request_headers(exchange)

    def refusal(self, message: str, status: int, remedy: str = "") -> Rejected:
        """What the client is told: names of rules, entities and places, and nothing that was found."""
        return Rejected(f"filter {self._name}: {message}", status=status, reason=Reason.CONTENT_DENIED, remedy=remedy)

    def _let_pass_unseen(self, exchange: Exchange) -> None:
        """Let a tunnel pass, or an upgrade whose messages do not come here. Raises Rejected (403, 426) where it may
        not.
        """
        if not exchange.is_tunnel and asks_for_messages(exchange, needs_them=self._denies_unreadable):
            return
        if self._denies_unreadable:
            what = "a tunnel" if exchange.is_tunnel else "an upgraded connection"
            message = f"what is said in {what} cannot be looked at"
            raise self.refusal(message, status_of_unseen(exchange), remedy_of_unseen(exchange))

    def _let_pass(self, what: str, fields: Fields, status: int) -> None:
        """For a body of a type that cannot be looked at. Raises Rejected where it may not pass."""
        if self._denies_unreadable:
            shown = (fields.get(b"content-type") or b"none").decode("latin-1")[:80]
            raise self.refusal(f"the {what}'s body cannot be looked at: its Content-Type is {shown}", status)

    def _unreadable(self, data: bytes, error: Unreadable, what: str, status: int) -> bytes:
        if self._denies_unreadable:
            raise self.refusal(f"the {what}'s body cannot be looked at: {error}", status)
        return data
