"""MessageExchange: a message of a WebSocket's client and the response to it, as an exchange of its own.

It is admitted as a request would be that the client sends now; the filters of its route and backend see its body, and
what the server says as the events of its answer; it has its line in the log and counts as a request.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from egressproxy.errors import GatewayError, GatewayFault, Reason, UpstreamFault
from egressproxy.filters.base import Rejected
from egressproxy.filters.body import BodyChain
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.chain import Chain, run_to_end
from egressproxy.filters.filter_step import FilterAnswered, FilterSteps
from egressproxy.filters.messages import MESSAGES, MessageApi, Messages, ServerEvent
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.admission import check_grant, name_request, of_client, route_request
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.readmission import check_gateway, sends_alike
from egressproxy.gateway.route import Route
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import SENT_BODY, Exchange
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.model.fields import EVENT_STREAM, Fields
from egressproxy.model.message import CHUNKED, ResponseHead
from egressproxy.model.strict_json import Unreadable

_JSON: Final = b"application/json"


class ConfigurationChanged(Exception):
    """The listener has gone, or another rule is in force than when the WebSocket was opened: open it again."""


class MessageExchange:
    """`upgrade` is the exchange of the WebSocket, whose route and backend this one has."""

    __slots__ = (
        "_accounting", "_answer", "_api", "_backend", "_client", "_messages", "_read", "_route", "exchange", "pipeline",
    )  # fmt: skip

    def __init__(
        self, accounting: Accounting, client: Client, upgrade: Exchange, api: MessageApi, messages: Messages,
        route: Route, backend: RouteBackend,
    ) -> None:  # fmt: skip
        self._accounting = accounting
        self._client = client
        self._api = api
        self._messages = messages
        self._route = route
        self._backend = backend
        self._answer: BodyChain | None = None  # that the answer passes, once it has begun
        self._read = api.reader()
        assert messages.head is not None
        exchange = self.exchange = accounting.new_exchange(client.client, client.listener, upgrade.identity)
        trace: ExchangeTrace | None = upgrade.trace
        exchange.trace = trace.below(upgrade.attempt_span_id) if trace is not None else None
        exchange.add_log_fields({"websocket": upgrade.request_id})
        exchange.keep(MESSAGES, messages)
        exchange.backend_origin, exchange.addresses = upgrade.backend_origin, upgrade.addresses
        exchange.backend_is_secure, exchange.upstream = upgrade.backend_is_secure, upgrade.upstream
        exchange.upstream_host = upgrade.upstream_host
        exchange.scheme, exchange.authority, exchange.path = upgrade.scheme, upgrade.authority, upgrade.path
        exchange.route, exchange.series = route.name, route.series
        self.pipeline = Pipeline()
        self.pipeline.exchange, self.pipeline.route = exchange, route
        exchange.request = messages.head.copy()
        exchange.method = exchange.request.method

    # --- the request -----------------------------------------------------------------------------------------------
    async def request(self, message: bytes) -> bytes:
        """The message as the server gets it. Raises GatewayError as a request that the client sends now, and
        ConfigurationChanged.
        """
        exchange, original = self.exchange, message
        message = self._api.request_of(message)
        exchange.request.body = len(message)
        await self._admit(exchange)
        chain = self._route.chain.messages
        assert chain is not None
        await self._run(chain.request_headers)
        message = await _through(chain.request_body, exchange, message)
        self._keep_backend(exchange)
        message = await self._to_backend(exchange, message)
        try:
            return self._api.message_of(original, message)
        except Unreadable as error:
            raise Rejected(f"this message cannot be sent as filters have left it: {error}", status=400) from None

    async def _admit(self, exchange: Exchange) -> None:
        client, pipeline, upgrade = self._client, self.pipeline, self._messages.upgrade.copy()
        if client.state.is_closed:
            raise ConfigurationChanged
        listener = name_request(exchange, client.state.port, client.server_name, client.tunnel, upgrade)
        opened_on = client.pipeline.listener
        assert opened_on is not None
        check_gateway(exchange, opened_on, listener)
        if listener.authenticator is not None:
            checking = listener.authenticator.admit_again(exchange, client)
            if checking is not None:
                await checking
        listener = pipeline.listener = of_client(exchange, listener)
        assert exchange.authority is not None
        found, exchange.path_prefix, noted = route_request(listener, exchange.authority, upgrade)
        route = self._route
        if found is not route and not (sends_alike(route, found) and self._reads_alike(found)):
            raise ConfigurationChanged
        if exchange.identity.grant is not None:
            check_grant(exchange.identity.grant, exchange, found)
        exchange.series = found.series
        exchange.note_denials(*noted)
        if self._accounting.gate is not None:
            pipeline.tenant = self._accounting.gate.admit(exchange, found.priority)

    def _reads_alike(self, found: Route) -> bool:
        """Whether the filters that get messages are the same by the rule in force."""
        backend = next((each for each in found.backends if each.name == self._backend.name), None)
        return (
            found.reads_messages
            and backend is not None
            and _specs(found.chain.messages) == _specs(self._route.chain.messages)
            and _specs(backend.chain.messages) == _specs(self._chain)
        )

    def _keep_backend(self, exchange: Exchange) -> None:
        """Raises Rejected where filters want another backend or path than the WebSocket has."""
        choice, backend = exchange.backend_choice, self._backend
        is_other = choice is not None and (
            backend.name in choice.excluded or choice.preferred not in ("", backend.name)
        )
        assert self._messages.head is not None
        if is_other or exchange.request.path != self._messages.head.path:
            message = "this request is for another backend than that of its WebSocket"
            raise Rejected(message, remedy="send it as a plain request (POST)")
        exchange.backend, exchange.series, self.pipeline.backend = backend.name, backend.series, backend

    async def _to_backend(self, exchange: Exchange, message: bytes) -> bytes:
        chain = self._chain
        message = await _through(chain.backend_request_body, exchange, message)
        if chain.needs_body >= 0:
            exchange.keep(SENT_BODY, message)
        exchange.request.body = len(message)
        await self._run(chain.backend_request)
        exchange.keep(SENT_BODY, None)
        return message

    def told(self) -> None:
        """The server gets the message, and answers nothing to it."""
        self.exchange.status = 200

    def sent(self) -> None:
        """The server gets the message."""
        self.exchange.attempts = 1

    # --- the answer ------------------------------------------------------------------------------------------------
    async def answer(self, message: bytes) -> tuple[list[bytes], bool]:
        """What the client gets of this message of the server, and whether the response ends with it. Raises
        GatewayError.
        """
        exchange, is_first = self.exchange, not self.exchange.has_response
        try:
            event = self._api.event_of(message, is_first=is_first)
        except Unreadable as error:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"a message of the server cannot be read: {error}") from None
        if is_first:
            await self._begin_answer(event)
        made = [event.data if event.status else message]
        body = self._answer
        if body is not None:
            data = await body.feed_to_end(exchange, event.data, event.is_last)
            made = self._messages_in(data, is_last=event.is_last) if exchange.response.body == CHUNKED else [data]
        exchange.bytes_out += sum(map(len, made))
        if not exchange.status:
            exchange.status, exchange.first_byte_at = exchange.response.status, monotonic()
        return made, event.is_last

    def _messages_in(self, data: bytes, *, is_last: bool) -> list[bytes]:
        try:
            return self._read(data, is_last)
        except Unreadable as error:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"what filters have left cannot be read: {error}") from None

    async def _begin_answer(self, event: ServerEvent) -> None:
        exchange, chain = self.exchange, self._chain
        kind = _JSON if event.status else EVENT_STREAM
        head = exchange.response = ResponseHead(event.status or 200, b"", Fields.of(((b"content-type", kind),)))
        head.body = len(event.data) if event.status else CHUNKED
        for steps in chain.response_phases:
            await self._run(steps)
        if chain.response_body is not None:
            self._answer = chain.response_body.begin(exchange)

    # --- the end ---------------------------------------------------------------------------------------------------
    def fail(self, error: GatewayError) -> None:
        """Note what has ended this exchange."""
        self._accounting.record_error(self.exchange, self.pipeline, error)
        self.exchange.status = error.status

    def end(self, reason: Reason = Reason.OK) -> None:
        """Count and log the exchange, once. `reason`: the cause of an early end."""
        if reason is not Reason.OK:
            self.exchange.reason = reason
        self._answer = None
        self._accounting.account(self.exchange, self.pipeline)

    @property
    def _chain(self) -> Chain:
        chain = self._backend.chain.messages
        assert chain is not None
        return chain

    async def _run(self, steps: FilterSteps | None) -> None:
        answer = await run_to_end(steps, self.exchange)
        if answer is not None:
            raise GatewayFault(Reason.FILTER_REJECTED, "a filter answered in place of the server", status=answer.status)


async def _through(plan: BodyPlan | None, exchange: Exchange, message: bytes) -> bytes:
    body = plan.begin(exchange) if plan is not None else None
    if body is None:
        return message
    try:
        return await body.feed_to_end(exchange, message, True)
    except FilterAnswered as answered:
        answered.status = answered.status if answered.status >= 400 else 403
        raise


def _specs(chain: Chain | None) -> list[ExtensionIR]:
    """The filters of this chain in their order, as configured: equal ones are one instance."""
    if chain is None:
        return []
    plans = (chain.request_body, chain.backend_request_body, chain.response_body)
    heads = (chain.request_headers, chain.backend_request, *chain.response_phases)
    steps = (*heads, *(plan.steps for plan in plans if plan is not None))
    return [step.spec for each in steps if each is not None for step in each]
