"""TokenQuota: limits on tokens and money, and limits for each model.

A request to an AI provider is buffered. Its tokens and the possible tokens of the response are estimated and reserved;
the provider's usage is counted at the end. A request in an unknown format reserves a minimum, and the usage in its
response still counts, so no spelling of a path evades the limit for more than one response.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.message import READ_AT_ONCE
from egressproxy.ai.apis.shared import operation, status_of_unseen
from egressproxy.ai.apis.usage import TokenUsage
from egressproxy.ai.apis.websockets import asks_for_messages
from egressproxy.ai.limits.prices import cost_of, dearest, price_of
from egressproxy.ai.limits.token_fast_path import TokenLimitFastPath, one_bucket
from egressproxy.ai.limits.token_use import TokenUse
from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.base import BodyMode, BodyResult, FilterContext, HeaderResult, OfMessages, Phase, Rejected
from egressproxy.filters.limits.memory_store import MemoryStore
from egressproxy.filters.limits.qos_config import QoSControllerConfig
from egressproxy.filters.limits.quota import LEAST, Held, SettledQuota
from egressproxy.filters.limits.rate_fields import provider_fields
from egressproxy.filters.limits.rules import NEEDS_BODY, QuotaRule, Reservation
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import media_type
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.work import Work
from egressproxy.net.cooperative import in_turns

_REQUEST_BODY, _BUFFER = Phase.REQUEST_BODY, BodyMode.BUFFER  # 60 ns faster than a lookup on the class
_READ_TYPES: Final = frozenset((b"application/json", b"text/event-stream", b"application/vnd.amazon.eventstream"))
#: The most bytes of a response that is buffered.
_SHORT_ANSWER: Final = 1024 * 1024
#: The least cost, for requests of unknown cost.
_LEAST_COST: Final = 1e-9


#: The field that bounds the response, where it is not max_tokens.
_MAX_TOKENS: Final = {
    Api.OPENAI_RESPONSES: "max_output_tokens", Api.GEMINI: "maxOutputTokens", Api.BEDROCK_CONVERSE: "maxTokens",
}  # fmt: skip


class TokenQuota(SettledQuota[TokenUse]):
    """A SettledQuota with limits of tokens, cost and models."""

    max_answer_bytes = 8 * 1024 * 1024
    decodes = True

    def __init__(self, context: FilterContext) -> None:
        super().__init__(context)
        config: QoSControllerConfig = context.config
        self._config = config
        self.of_messages = OfMessages.ASKS
        self.max_buffer_bytes = config.max_body_bytes
        self._needs_model = bool(config.prices) or any(NEEDS_BODY in entry.per for entry in config.entries)
        self._dearest = dearest(config.prices) if config.prices else None
        of_bodies = {entry.name for entry in config.entries if entry.type in ("Tokens", "Cost") or "Model" in entry.per}
        self._is_of_tokens_alone = not any(e.type == "Cost" or "Model" in e.per for e in config.entries)
        self._head_rules = [rule for rule in self.rules if rule.name not in of_bodies]
        self._one: TokenLimitFastPath | None = None  # if the limit fits the fast path
        if len(self.rules) == 1 and not self.concurrency and isinstance(self._store, MemoryStore):
            self._one = one_bucket(self.rules[0], LEAST)
        body_phases = {Phase.RESPONSE_BODY}
        if context.phase is not Phase.BACKEND_REQUEST:
            body_phases.add(Phase.REQUEST_BODY)
        elif any(entry.type == "Cost" or NEEDS_BODY in entry.per for entry in config.entries):
            raise ValueError("limits of Cost and limits per Model count in phase request-headers, not for one backend")
        self.runs_in = (self.runs_in or frozenset()) | body_phases

    def request_headers(self, exchange: Exchange) -> HeaderResult:
        """Take the amounts of a request without a readable body; others wait for `request_body`. Of an upgrade each
        response counts, too. Raises Rejected (403, 426) where its messages do not come here.
        """
        request = exchange.request
        if request.upgrade:
            if asks_for_messages(
                exchange, needs_them=not self._is_report
            ):  # it counts as a request, and its responses are in progress, each by itself
                return self._take(exchange, "", enters=False)
            self._refuse_upgrade(exchange)
        elif request.body and operation(exchange) is not None and not exchange.is_tunnel:
            return None
        return self._take(exchange, "", None if exchange.is_tunnel or not request.body else TokenUse())

    def backend_request(self, exchange: Exchange) -> HeaderResult:
        if not exchange.request.body:
            if exchange.request.upgrade:
                if asks_for_messages(exchange, needs_them=not self._is_report):
                    return self._take(exchange, "", enters=False)
                self._refuse_upgrade(exchange)
            return self._take(exchange, "")
        use = TokenUse()
        if operation(exchange) is not None:
            use.guess(exchange.request.body, self._config.output_tokens)
        return self._take(exchange, "", use)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """BUFFER for requests to a provider, STREAM for responses that may have usage."""
        if phase is _REQUEST_BODY:
            request = exchange.request
            if request.body and operation(exchange) is not None and not exchange.is_tunnel and not request.upgrade:
                return _BUFFER
            return None
        held = exchange.state.get(self._held)
        if held is None:
            return None
        use = held.use
        if use is None:
            return None
        response = exchange.response
        fields = response.fields
        kind = fields.get(b"content-type")
        if kind != b"application/json":  # the usual spelling
            kind = media_type(fields)
            if kind not in _READ_TYPES:
                return None
        if use.begin_answer(exchange, kind) or not 0 <= response.body <= _SHORT_ANSWER or b"content-encoding" in fields:
            return BodyMode.STREAM
        return _BUFFER  # a short response is buffered, and keeps its Content-Length

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        """Estimate the request's amounts, and take them. Raises LimitExceeded, and Rejected (400) for an unreadable or
        ambiguous body, whose model and usage would be unknown.
        """
        use, config = TokenUse(), self._config
        most = config.max_output_tokens
        if len(data) > READ_AT_ONCE:
            return self._counted(
                exchange, use, use.reading(exchange, data, config.output_tokens, most, names_model=self._needs_model)
            )
        return self._admitted(
            exchange, use, use.read(exchange, data, config.output_tokens, most, names_model=self._needs_model)
        )

    async def _counted(self, exchange: Exchange, use: TokenUse, work: Work[bytes]) -> bytes | LocalResponse:
        result = self._admitted(exchange, use, await in_turns(work))
        return await result if isinstance(result, Awaitable) else result

    def _admitted(self, exchange: Exchange, use: TokenUse, data: bytes) -> BodyResult:
        config = self._config
        if use.fault and not (self._is_of_tokens_alone and _is_of_embeddings(exchange)):
            self._refuse(exchange, f"the request cannot be counted: {use.fault}", 400)
        if self._dearest is not None and price_of(config.prices, use.model) is None:
            raise LimitExceeded(
                Reason.COST_LIMIT,
                "the model has no price, and cost is limited",
                status=403,
                rule=self._source,
                remedy="ask for a model that has one, or add it to prices",
            )
        if self._one is not None and exchange.state.get(self._held) is None:
            taken = self._one.take(exchange, use)
            if taken is not None:
                held = Held(use)
                held.takes.append(taken)
                exchange.keep(self._held, held)
                return data
        waiting = self._take(exchange, use.model, use)
        return data if waiting is None else _after(waiting, data)

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        held = exchange.state.get(self._held)
        if held is None:
            return data
        use = held.use
        if use is None:
            return data
        return in_turns(use.feeding(exchange, data, last)) if use.takes_long(data) else use.feed(exchange, data, last)

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        held = exchange.state.get(self._held)
        return held.use.held_bytes if held is not None and held.use is not None else 0

    def complete(self, exchange: Exchange) -> None:
        if self._one is None:
            super().complete(exchange)
            return
        held = exchange.take(self._held)
        if held is not None and held.takes and held.use is not None:
            self._one.settle(exchange, held.takes[0], held.use)

    def _refuse_upgrade(self, exchange: Exchange) -> None:
        message = (
            "what is said in an upgraded connection cannot be counted, and tokens, cost or models are limited here"
        )
        self._refuse(
            exchange, message, status_of_unseen(exchange), remedy="serve upgrades by a route that has no such limit"
        )

    def _refuse(self, exchange: Exchange, message: str, status: int = 403, remedy: str = "") -> None:
        if not self._is_report:
            raise Rejected(message, status=status, remedy=remedy)
        exchange.note_denials(Reason.FILTER_REJECTED)

    def _advise(self, error: LimitExceeded, exchange: Exchange, refusing: Reservation, use: TokenUse | None) -> None:
        rule = refusing.rule
        if use is None or rule.type != "Tokens":
            super()._advise(error, exchange, refusing, use)
            return
        asked = operation(exchange)
        output = use.output_tokens if rule.counts_output else 0
        reserves = f"this request reserves {refusing.amount:,.0f} tokens"
        if output:
            reserves += f", {min(output, refusing.amount):,.0f} for its response"
        if self._headers != "Never":
            self._store.peek([refusing])
            if refusing.left < refusing.amount:  # else another process has taken it
                reserves += f"; {max(0.0, refusing.left):,.0f} are left"
        field = _MAX_TOKENS.get(asked.api, "max_tokens") if asked is not None else "max_tokens"
        after_s = error.retry_after_s
        otherwise = (
            f", or come again in {after_s:,} s" if after_s else ", since this request alone is more than the limit"
        )
        error.remedy = f"{reserves}: {f'lower {field}' if output else 'send less'}{otherwise}"
        error.has_own_remedy = True

    def _amount(self, rule: QuotaRule, exchange: Exchange, use: TokenUse | None) -> float:
        least = LEAST
        needed: float
        amount: float
        if use is not None and rule.type == "Tokens":
            needed = use.input_tokens if rule.counts_input else 0
            amount = needed + use.output_tokens if rule.counts_output else needed
        elif use is not None and rule.type == "Cost":
            needed = self._cost(TokenUsage(use.input_tokens), use.model)
            amount = self._cost(TokenUsage(use.input_tokens, use.output_tokens), use.model)
            least = _LEAST_COST
        else:
            return super()._amount(rule, exchange, use)
        most = rule.window.most
        if amount > most:  # a response may be shorter: only the prompt alone can exceed the limit
            amount = max(needed, most)
        return amount if amount > least else least

    def _taken(self, rule: QuotaRule, exchange: Exchange, use: TokenUse | None) -> float | None:
        if use is None or rule.type not in ("Tokens", "Cost"):
            return super()._taken(rule, exchange, use)
        usage = use.taken(exchange)
        if usage is None:
            return None
        if rule.type == "Cost":
            return self._cost(usage, use.model)
        return (usage.input_tokens if rule.counts_input else 0) + (usage.output_tokens if rule.counts_output else 0)

    def _cost(self, usage: TokenUsage, model: str) -> float:
        price = price_of(self._config.prices, model) or self._dearest
        return 0.0 if price is None else cost_of(usage, price)

    def _fields(self, exchange: Exchange, takes: list[Reservation]) -> tuple[tuple[bytes, bytes], ...]:
        fields = super()._fields(exchange, takes)
        asked = operation(exchange)
        return fields if asked is None else (*fields, *provider_fields(asked.api.provider, takes))


def _is_of_embeddings(exchange: Exchange) -> bool:
    """Whether this is a request for embeddings, which is never streamed: lists of tokens may be too long to read."""
    asked = operation(exchange)
    return asked is not None and asked.api is Api.OPENAI_EMBEDDINGS


async def _after(waiting: Awaitable[None], data: bytes) -> bytes:
    await waiting
    return data
