"""RequestSide: runs the filters of a rule and backend on a request in Envoy: head, body and trailers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from egressproxy.envoy.ext_proc.messages import BodySendMode, HeaderSendMode, MessagePart, ProcessingRequest
from egressproxy.envoy.ext_proc_server.conversation import EnvoyConversation, begun
from egressproxy.envoy.ext_proc_server.envoy_messages import (
    EnvoyMisconfigured,
    client_of_envoy,
    configured_mode,
    read_request,
    read_request_trailers,
)
from egressproxy.envoy.ext_proc_server.head_changes import changes_of
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.errors import GatewayFault, LimitExceeded, Reason
from egressproxy.filters.body import BodyChain
from egressproxy.gateway.backends.replayable_body import passed_trailers
from egressproxy.gateway.exchange.admission import of_client, refuse_loops
from egressproxy.gateway.exchange.identification import believe_gateway
from egressproxy.gateway.exchange.pipeline import (
    ADMIT_AGAIN,
    CALL,
    ENTER_GATE,
    FILTER,
    FILTER_BODY,
    IDENTIFY,
    RESPOND,
    RESPOND_SELF,
)
from egressproxy.gateway.exchange.readmission import check_gateway, name_again, route_again
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.model.exchange import SENT_BODY, Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.own_names import OWN_HOST

_NONE, _STREAMED, _BUFFERED = BodySendMode.NONE, BodySendMode.STREAMED, BodySendMode.BUFFERED
_SEND, _SKIP = HeaderSendMode.SEND, HeaderSendMode.SKIP


@dataclass(slots=True, eq=False, repr=False)
class RequestSide:
    _conversation: EnvoyConversation
    _block: bytes = b""  # Envoy's version of the head
    _dropped: tuple[FieldChange, ...] = ()
    _rewritten: bytes = b""
    _whole_limit: int = -1  # the buffer limit of the backend's filters; -1: none
    _received: int = 0  # bytes of the body
    _sent_body: bytes = b""  # the whole body for the backend
    _body: BodyChain | None = None
    _backend_body: BodyChain | None = None  # the filters of the backend
    _has_body_ended: bool = False  # filters have seen the end
    _port_in_service: Callable[[], Port] | None = None
    _may_have_trailers: bool = False
    wants_whole: bool = False  # the next message has the whole body, before the head is sent
    is_over: bool = False  # the request is complete

    async def take_head(
        self, message: ProcessingRequest, port_in_service: Callable[[], Port], trust_domains: Sequence[str]
    ) -> None:
        """Find the rule, run the filters of the head, and request the parts they need. Raises refusals."""
        port = port_in_service()
        self._port_in_service = port_in_service
        conversation = self._conversation
        accounting, pipeline = conversation.accounting, conversation.pipeline
        client, identity = client_of_envoy(message, trust_domains)
        exchange = accounting.new_exchange(client or conversation.peer, port.first, identity)
        exchange.trace = None  # Envoy has the spans of its exchanges
        conversation.begin(exchange, configured_mode(message.protocol))
        head, self._dropped = read_request(message, port.head_limits)
        self._may_have_trailers = not message.end_of_stream and not head.upgrade
        self._block = head.fields.block
        exchange.request = head
        exchange.method = head.method
        exchange.bytes_in = sum(len(name) + len(value) + 4 for name, value in message.fields)
        if head.method == b"CONNECT":
            message_text = "CONNECT is served by the gateway itself (`egressproxy run`), not by filters of Envoy's"
            raise GatewayFault(Reason.METHOD_NOT_ALLOWED, message_text, status=405)
        conversation.actions = pipeline.request(exchange, head, port, "", None)
        if await self._advance():
            self._send_head(exchange, goes_on=self._may_have_trailers)

    async def _advance(self) -> bool:
        """Execute the pipeline's steps. True: the request goes to its backend. False: Envoy has to send the body
        first, or the client has its response. Raises what refuses the request.
        """
        conversation, exchange = self._conversation, self._conversation.exchange
        accounting, pipeline = conversation.accounting, conversation.pipeline
        for action in conversation.actions:
            route, listener = pipeline.route, pipeline.listener
            if action == FILTER:
                pipeline.answer = await conversation.answer_of(pipeline.steps)
            elif action == ENTER_GATE:
                if accounting.gate is not None and route is not None:
                    pipeline.tenant = accounting.gate.admit(exchange, route.priority)
            elif action == IDENTIFY and listener is not None:
                refuse_loops(exchange.request, accounting.pseudonym)
                believe_gateway(accounting, exchange, listener, exchange.request)
            elif action == FILTER_BODY and route is not None:
                if self._asks_for_whole(exchange, route):
                    return False
            elif action == CALL:
                pipeline.answer = await self._choose_backend(self._sent_body)
                if pipeline.answer is None:
                    return True
            elif action == RESPOND and pipeline.answer is not None:
                conversation.send_immediate(pipeline.answer)
            elif action == ADMIT_AGAIN and route is not None and listener is not None:
                pipeline.route = self._admit_again(exchange, route, listener)
            elif action == RESPOND_SELF:
                message_text = (
                    f"{OWN_HOST} is answered by the gateway itself (`egressproxy run`), not by filters of Envoy's"
                )
                raise GatewayFault(Reason.NO_ROUTE, message_text, status=404)
        return False

    def _asks_for_whole(self, exchange: Exchange, route: Route) -> bool:
        """FILTER_BODY: whether a filter needs the whole body, which Envoy is asked for then."""
        conversation = self._conversation
        self._body = begun(route.chain.request_body, exchange, exchange.request.body)
        self._whole_limit = route.body_limit(exchange)
        self.wants_whole = self._whole_limit >= 0 or (self._body is not None and self._body.holds)
        if self.wants_whole:
            conversation.need(conversation.configured.request_body_mode)
            trailers = _SEND if self._may_have_trailers else _SKIP
            mode = conversation.override(request_body=_BUFFERED, request_trailers=trailers)
            conversation.send(MessagePart.REQUEST_HEADERS, mode=mode)
        return self.wants_whole

    def _send_head(self, exchange: Exchange, *, goes_on: bool) -> None:
        """Send the head; request body and trailers if they are filtered, also of the response."""
        conversation, chain = self._conversation, self._conversation.chain
        self._backend_body = begun(chain.backend_request_body, exchange, exchange.request.body)
        bodies = [body for body in (self._body, self._backend_body) if body is not None]
        needs_body = any(not body.is_empty for body in bodies)
        if needs_body:
            conversation.need(conversation.configured.request_body_mode)
        needs_body = needs_body or exchange.request.body < 0 <= exchange.max_body_bytes
        wants_trailers = goes_on and (needs_body or bool(bodies) or not self._is_unseen)
        self.is_over = not needs_body and not wants_trailers
        self._has_body_ended = not needs_body
        mode = conversation.override(
            request_body=_STREAMED if needs_body else _NONE,
            response_body=_NONE if chain.response_body is None else None,
            request_trailers=_SEND if wants_trailers else _SKIP,
            response_trailers=_SEND if chain.response_phases or chain.response_body is not None else _SKIP,
        )
        conversation.send(MessagePart.REQUEST_HEADERS, self._head_changes(), mode=mode)

    async def take_body(self, message: ProcessingRequest) -> None:
        """Filter a piece of the body, or the whole. Raises refusals of filters."""
        conversation, exchange = self._conversation, self._conversation.exchange
        data = message.body
        exchange.bytes_in += len(data)
        self._received += len(data)
        if 0 <= exchange.max_body_bytes < self._received:
            message_text = f"the request body is longer than {exchange.max_body_bytes} bytes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message_text, status=413)
        body = self._body
        if self._has_body_ended and any(each is not None and not each.is_empty for each in (body, self._backend_body)):
            raise EnvoyMisconfigured("a piece of the request's body has come behind its end")
        if self.wants_whole:
            await self._take_whole(message)
            return
        is_last = message.end_of_stream
        if body is not None:
            data = await body.feed_to_end(exchange, data, is_last)
        if self._backend_body is not None:
            data = await self._backend_body.feed_to_end(exchange, data, is_last)
        self.is_over = self._has_body_ended = is_last
        conversation.send(MessagePart.REQUEST_BODY, body=data if data != message.body else None)

    async def _take_whole(self, message: ProcessingRequest) -> None:
        conversation, exchange = self._conversation, self._conversation.exchange
        if not message.end_of_stream and conversation.configured.request_body_mode is not _BUFFERED:
            raise EnvoyMisconfigured("Envoy has sent a piece of the request's body to a filter that needs all of it")
        data = message.body
        if self._body is not None:
            data = await self._body.feed_to_end(exchange, data, True)
        self.wants_whole = False
        self._has_body_ended = True
        exchange.request.body = len(data)
        if 0 <= self._whole_limit < len(data):
            message_text = f"the body is longer than the {self._whole_limit} bytes that a filter of the backend takes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message_text, status=413)
        self._sent_body = data
        if await self._advance():
            self.is_over = message.end_of_stream
            data = self._sent_body
            changes = self._head_changes()
            if len(data) != len(message.body):
                changes += (FieldChange(b"content-length", FieldAction.SET, b"%d" % len(data)),)
            conversation.send(MessagePart.REQUEST_BODY, changes, body=data if data != message.body else None)

    async def take_trailers(self, message: ProcessingRequest) -> None:
        """Filter the trailers, and send the rest. Raises refusals of filters."""
        conversation, exchange = self._conversation, self._conversation.exchange
        came = read_request_trailers(message)
        block = came if self._lets_trailers else b""
        left = b""  # the rest of a streamed body
        for body in (self._body, self._backend_body):
            if body is None:
                continue
            if not self._has_body_ended:
                body.expect_trailers(exchange, block)
                left = await body.feed_to_end(exchange, left, True)
            if block:
                block = await passed_trailers(exchange, body, block)
        if left:
            raise EnvoyMisconfigured(
                "a filter of the request's body holds back what Envoy does not take behind trailers"
            )
        self.is_over = self._has_body_ended = True
        changes = changes_of(Fields.of(message.fields).block, Fields(block))
        conversation.send(MessagePart.REQUEST_TRAILERS, changes)

    @property
    def _is_unseen(self) -> bool:
        """Whether no filter sees the head of the request."""
        route = self._conversation.pipeline.route
        return (route is None or route.chain.request_headers is None) and (
            self._conversation.chain.backend_request is None
        )

    @property
    def _lets_trailers(self) -> bool:
        """Whether trailers may be forwarded, as in the gateway: every filter of the head sees them, too."""
        route, chain = self._conversation.pipeline.route, self._conversation.chain
        return not (chain.stops_backend_trailers or (route is not None and route.chain.stops_request_trailers))

    def _admit_again(self, exchange: Exchange, route: Route, listener: ActiveListener) -> Route:
        """ADMIT_AGAIN: the rule in force. Raises as admission does."""
        assert self._port_in_service is not None
        again, now = name_again(exchange, self._port_in_service(), "", None)
        check_gateway(exchange, listener, now)
        return route_again(exchange, again, route, of_client(exchange, now))

    async def _choose_backend(self, body: bytes) -> LocalResponse | None:
        """CALL: run what belongs to the backend; `body`: the whole, where filters need that. Returns the response of a
        filter.
        """
        conversation, exchange = self._conversation, self._conversation.exchange
        pipeline, route = conversation.pipeline, conversation.pipeline.route
        assert route is not None
        exchange.attempts = 1
        self._rewritten = exchange.upstream_host
        if route.choices:
            pipeline.choose(exchange)
            backend = pipeline.backend
            assert backend is not None
            exchange.backend_is_secure = backend.originates_tls
            fixed = backend.cluster.fixed if backend.cluster is not None else None
            if fixed is not None:
                exchange.backend_origin = fixed.origin
                exchange.upstream_host = exchange.upstream_host or fixed.host_field
        exchange.upstream_host = exchange.upstream_host or exchange.request.host
        before = exchange.upstream_host
        chain = pipeline.response_chain = conversation.chain
        answers = chain.response_body
        if answers is not None and answers.steps:
            conversation.need(conversation.configured.response_body_mode)
        if body:  # that of a Backend's own filters, which flows, begins when the head has gone
            self._backend_body = begun(chain.backend_request_body, exchange, -1)
            body = body if self._backend_body is None else await self._backend_body.feed_to_end(exchange, body, True)
        self._sent_body = body
        if chain.needs_body >= 0:
            exchange.keep(SENT_BODY, body)
        answer = await conversation.answer_of(chain.backend_request)
        if chain.needs_body >= 0:
            exchange.keep(SENT_BODY, None)
        if exchange.upstream_host != before:
            self._rewritten = exchange.upstream_host
        return answer

    def _head_changes(self) -> tuple[FieldChange, ...]:
        head = self._conversation.exchange.request
        changes = changes_of(self._block, head.fields) + self._dropped
        if head.path != head.target:
            changes += (FieldChange(b":path", FieldAction.SET, head.path),)
        if self._rewritten:
            changes += (FieldChange(b":authority", FieldAction.SET, self._rewritten),)
        return changes
