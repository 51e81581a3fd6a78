"""ResponseSide: a response that Envoy carries: head, body and trailers pass the filters of backend and rule."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    MessagePart,
    ProcessingRequest,
    StreamedBody,
)
from egressproxy.envoy.ext_proc_server.conversation import EnvoyConversation, begun
from egressproxy.envoy.ext_proc_server.envoy_messages import EnvoyMisconfigured, read_response, read_response_trailers
from egressproxy.envoy.ext_proc_server.head_changes import changes_of
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.errors import ClientGone, GatewayError
from egressproxy.filters.body import BodyChain
from egressproxy.gateway.backends.replayable_body import passed_trailers
from egressproxy.gateway.exchange.error_responses import error_event
from egressproxy.gateway.exchange.pipeline import FILTER, RESPOND
from egressproxy.gateway.products import PRODUCTS
from egressproxy.model.fields import Fields
from egressproxy.protocols.grpc.statuses import grpc_trailers, parsed_status

_NONE, _STREAMED, _BUFFERED = BodySendMode.NONE, BodySendMode.STREAMED, BodySendMode.BUFFERED
#: Pieces of a body and answers to them need not be as many: what is held back can go before trailers.
_DUPLEX = BodySendMode.FULL_DUPLEX_STREAMED
_SEND, _SKIP = HeaderSendMode.SEND, HeaderSendMode.SKIP


@dataclass(slots=True, eq=False, repr=False)
class ResponseSide:
    _conversation: EnvoyConversation
    _block: bytes = b""  # of the head, as Envoy has it
    _body: BodyChain | None = None
    _wants_whole: bool = False  # the next message holds the whole body, and the head has not gone
    _is_duplex: bool = False
    _has_body_ended: bool = False  # filters have got its end
    _tail: bytes = b""  # the end of what was sent of the body
    _is_cut: bool = False  # nothing more of the body is sent
    is_over: bool = False  # nothing more of the response comes

    async def take_head(self, message: ProcessingRequest) -> None:
        """Run the filters of the head, and ask for the parts that are filtered. Raises what a filter refuses with."""
        conversation, exchange = self._conversation, self._conversation.exchange
        if exchange.has_response:
            raise EnvoyMisconfigured("the head of a response came twice")
        chain = conversation.chain
        response = exchange.response = read_response(message, exchange.request.method)
        self._block, status = response.fields.block, response.status
        pipeline = conversation.pipeline
        for action in conversation.actions:
            if action == FILTER:
                pipeline.answer = await conversation.answer_of(pipeline.steps)
            elif action == RESPOND and pipeline.answer is not None:
                conversation.send_immediate(pipeline.answer)
                return
        exchange.grpc_status = parsed_status(response.fields.block) if conversation.is_call else -1
        body = self._body = begun(chain.response_body, exchange, response.body)
        changes = () if response.status == status else (FieldChange(b":status", FieldAction.SET, b"%d" % status),)
        goes_on = not message.end_of_stream and response.status != 101
        wants_trailers = goes_on and (body is not None or bool(chain.response_phases))
        trailers = _SEND if wants_trailers else _SKIP
        if body is not None and body.holds:
            self._wants_whole = True
            mode = conversation.override(response_body=_BUFFERED, response_trailers=trailers)
            conversation.send(MessagePart.RESPONSE_HEADERS, mode=mode)
            return
        needs_body = body is not None and not body.is_empty
        self._has_body_ended = not needs_body
        self._is_duplex = needs_body and conversation.is_call
        flowing = _DUPLEX if self._is_duplex else _STREAMED if needs_body else _NONE
        mode = conversation.override(response_body=flowing, response_trailers=trailers)
        self.is_over = not needs_body and not wants_trailers
        conversation.send(MessagePart.RESPONSE_HEADERS, self._head_changes(changes), mode=mode)
        exchange.status, exchange.first_byte_at = response.status, monotonic()

    def _head_changes(self, changes: tuple[FieldChange, ...] = ()) -> tuple[FieldChange, ...]:
        return changes + changes_of(self._block, self._conversation.exchange.response.fields)

    async def take_body(self, message: ProcessingRequest) -> None:
        """A piece of the body, or the whole. Raises what a filter refuses with, where no event can say that."""
        conversation, exchange, body = self._conversation, self._conversation.exchange, self._body
        if self._has_body_ended and body is not None and not body.is_empty:
            raise EnvoyMisconfigured("a piece of the response's body has come behind its end")
        is_whole, data = self._wants_whole, message.body
        if is_whole and not message.end_of_stream and conversation.configured.response_body_mode is not _BUFFERED:
            raise EnvoyMisconfigured("Envoy has sent a piece of the response's body to a filter that needs all of it")
        is_last = is_whole or message.end_of_stream
        if self._is_cut:
            data = b""
        elif body is not None:
            try:
                data = await body.feed_to_end(exchange, data, is_last)
            except GatewayError as error:
                data = self._last_event(error)
        self._tail = data[-4:] or self._tail
        exchange.bytes_out += len(data)
        self._has_body_ended = is_last
        self.is_over = message.end_of_stream
        changes: tuple[FieldChange, ...] = ()
        if is_whole:
            self._wants_whole = False
            exchange.status = exchange.response.status
            changes = self._head_changes()
            if len(data) != len(message.body):
                changes += (FieldChange(b"content-length", FieldAction.SET, b"%d" % len(data)),)
        if self._is_duplex:
            if data or is_last:
                conversation.send(MessagePart.RESPONSE_BODY, streamed=StreamedBody(data, is_last))
            return
        conversation.send(MessagePart.RESPONSE_BODY, changes, body=data if data != message.body else None)

    def _last_event(self, error: GatewayError) -> bytes:
        """The event that ends a stream, in the shape of its provider. Raises the error again where there is none."""
        conversation, exchange = self._conversation, self._conversation.exchange
        route, body = conversation.pipeline.route, self._body
        event = b""
        if exchange.status and route is not None and body is not None and not isinstance(error, ClientGone):
            event = error_event(error, exchange, PRODUCTS.error_form(exchange, route.backends), body, self._tail)
        if not event:
            raise error
        self._is_cut = True
        conversation.record_error(error)
        return event

    async def take_trailers(self, message: ProcessingRequest) -> None:
        """What filters leave of the trailers goes on, and the status of a call. Raises what a filter refuses with."""
        conversation, exchange, body = self._conversation, self._conversation.exchange, self._body
        block = read_response_trailers(message)
        if conversation.is_call:
            exchange.grpc_status = parsed_status(block)
        if body is not None:
            if not self._has_body_ended and not self._is_cut:
                body.expect_trailers(exchange, block)
                left = await body.feed_to_end(exchange, b"", True)
                if left and not self._is_duplex:
                    message_text = "a filter of the response's body holds back what Envoy does not take behind trailers"
                    raise EnvoyMisconfigured(message_text)
                if left:
                    exchange.bytes_out += len(left)
                    conversation.send(MessagePart.RESPONSE_BODY, streamed=StreamedBody(left))
            if block and not self._is_cut:
                block = await passed_trailers(exchange, body, block)
        self.is_over = self._has_body_ended = True
        chain = conversation.chain
        if self._is_cut:
            block = b""
        elif chain.response_phases and not (chain.lets_response_trailers and body is not None):
            block = grpc_trailers(block, with_text=chain.ignores_trailers)
        changes = changes_of(Fields.of(message.fields).block, Fields(block))
        conversation.send(MessagePart.RESPONSE_TRAILERS, changes)
