"""ProcessedExchange: an exchange that Envoy carries, and whose filters run here. One call of ext_proc serves one.

It has the phases of `gateway/exchange/conductor`, with Envoy in place of the client and of the backend. Each message is
answered before the next is looked at, so the answers are in Envoy's order. Which bodies are sent, and how, is asked for
with `mode_override`: none that no filter reads, a BUFFER filter's whole, every other in pieces.

Sources: Envoy API v3, service/ext_proc/v3/external_processor.proto, and extensions/filters/http/ext_proc/v3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace

from egressproxy.errors import BadRequest, ClientGone, GatewayError, GatewayFault, LimitExceeded, Reason
from egressproxy.ext_proc_server.bodies import begun, limit_of_whole
from egressproxy.ext_proc_server.call import MalformedCall, StreamingCall
from egressproxy.ext_proc_server.envoy_messages import (
    client_of_envoy,
    configured_mode,
    misconfigured,
    read_request,
    read_response,
    removed,
)
from egressproxy.ext_proc_server.gateways import ServedGateways
from egressproxy.ext_proc_server.head_changes import changes_of, immediate_response
from egressproxy.filters.body import BodyChain
from egressproxy.filters.chain import Chain, Steps, run
from egressproxy.filters.filter_step import FilterAnswered
from egressproxy.gateway.ai.provider_errors import provider_call
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.admission import name_request, read_identity, refuse_loops, route_request
from egressproxy.gateway.exchange.error_responses import answer_for, error_event
from egressproxy.gateway.exchange.grpc_answers import answer_of_call, error_of_call
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.gateway.exchange.phases import answer_of, dressed
from egressproxy.gateway.narrowed_route import narrowed
from egressproxy.gateway.snapshot import Port
from egressproxy.model.exchange import SENT_BODY, Exchange, LocalResponse
from egressproxy.model.field_change import FieldAction, FieldChange
from egressproxy.model.fields import Fields
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.protocols.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    MessagePart,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
)
from egressproxy.protocols.ext_proc.wire import WireError, response_bytes
from egressproxy.protocols.ext_proc.wire import read_request as read_message
from egressproxy.protocols.grpc.statuses import grpc_trailers, is_grpc, parsed_status

__all__ = ["ProcessedExchange"]

log = logging.getLogger(__name__)

_NONE, _STREAMED, _BUFFERED = BodySendMode.NONE, BodySendMode.STREAMED, BodySendMode.BUFFERED


class ProcessedExchange:
    """The life of one exchange. `serve` runs on the driver of the call's stream."""

    __slots__ = (
        "_accounting", "_block", "_call", "_dropped", "_gateways", "_is_cut", "_is_request_over",
        "_is_response_over", "_leg", "_mode", "_peer", "_received", "_request_body", "_resources", "_response_body",
        "_rewritten", "_sent_body", "_tail", "_trust_domains", "_wants_whole", "_whole_limit", "_x",
    )  # fmt: skip

    def __init__(
        self,
        call: StreamingCall,
        gateways: ServedGateways,
        accounting: Accounting,
        peer: str,
        trust_domains: Collection[str],
    ) -> None:
        """`peer`: the address and port of the Envoy. `trust_domains`: those of SPIFFE ids that its attributes tell."""
        self._call = call
        self._gateways = gateways
        self._accounting = accounting
        self._peer = peer
        self._trust_domains = trust_domains
        self._resources = HeldResources()
        self._x: Exchange | None = None
        self._mode = ProcessingMode()
        self._block = b""  # of the head under way, as Envoy has it
        self._dropped: tuple[FieldChange, ...] = ()
        self._rewritten = b""
        self._whole_limit = -1  # of a body that filters of the backend need whole; -1: none does
        self._received = 0  # bytes of the request's body
        self._sent_body = b""  # all of it, as the backend gets it
        self._leg: BodyChain | None = None  # the filters of the backend that a body flows through
        self._request_body: BodyChain | None = None
        self._response_body: BodyChain | None = None
        self._wants_whole = False  # the next message holds a whole body, and its head has not gone
        self._is_request_over = False
        self._is_response_over = False
        self._tail = b""  # the end of what was sent of the response's body
        self._is_cut = False  # nothing more of the response's body is sent

    async def serve(self, gateway: bytes, listener: bytes) -> None:
        """Answer the messages of the call, to its end. `gateway`, `listener`: what the call asks for."""
        try:
            await self._converse(gateway, listener)
        except ClientGone as gone:  # Envoy resets a call that it has no more use for
            if not self._has_answered_head:
                self._blame(gone)
        except GatewayError as error:
            await self._rescue(error)
        except MalformedCall as error:
            self._break_off(error.status, str(error))
        except WireError as error:
            self._break_off(GrpcStatus.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # also what a filter may raise to end more than itself
            log.error("internal error in an exchange of Envoy's", exc_info=error)
            await self._rescue(GatewayFault(Reason.INTERNAL, "internal error", detail=type(error).__name__))
        finally:
            self._complete()

    async def _converse(self, gateway: bytes, listener: bytes) -> None:
        first = await self._call.next()
        if first is None:
            return
        message = read_message(first)
        if message.part is not MessagePart.REQUEST_HEADERS or message.observability_mode:
            raise misconfigured("the first message of a call has to be the head of a request, and to be answered")
        await self._take_request_head(message, self._gateways.port_for(gateway, listener))
        while not (self._is_request_over and self._is_response_over):
            data = await self._call.next()
            if data is None:
                if not self._has_answered_head:
                    raise ClientGone
                return
            message = read_message(data)
            part = message.part
            if part is MessagePart.REQUEST_BODY:
                await self._take_request_body(message)
            elif part is MessagePart.RESPONSE_HEADERS:
                await self._take_response_head(message)
            elif part is MessagePart.RESPONSE_BODY:
                await self._take_response_body(message)
            elif part is MessagePart.REQUEST_TRAILERS:
                await self._take_request_trailers(message)
            elif part is MessagePart.RESPONSE_TRAILERS:
                await self._take_response_trailers(message)
            else:
                raise misconfigured("the head of a request came twice")

    # --- the request -----------------------------------------------------------------------------------------------
    async def _take_request_head(self, message: ProcessingRequest, port: Port) -> None:
        accounting = self._accounting
        client, identity = client_of_envoy(message, self._trust_domains)
        x = self._x = accounting.new_exchange(client or self._peer, port.first, identity)
        self._mode = configured_mode(message.protocol)
        head, self._dropped = read_request(message, port.head_limits)
        self._block = head.fields.block
        x.request = head
        x.method = head.method
        x.bytes_in = sum(len(name) + len(value) + 4 for name, value in message.fields)
        listener = name_request(x, port, "", None, head)
        if head.method == b"CONNECT":
            message_text = "CONNECT is served by the gateway itself (`egressproxy run`), not by filters of Envoy's"
            raise GatewayFault(Reason.METHOD_NOT_ALLOWED, message_text, status=405)
        if head.via or head.method == b"TRACE":
            refuse_loops(head, accounting.pseudonym)
            read_identity(x, listener, head, accounting.seen, accounting.metrics.forwarded_identities)
        route, x.path_prefix, noted = route_request(listener, x.authority, head)  # type: ignore[arg-type]
        resources = self._resources
        resources.route = route
        x.route = route.name
        x.series = route.series
        if noted:
            x.note_denials(*noted)
        if accounting.gate is not None:
            resources.tenant = accounting.gate.admit(x, route.priority)
        if await self._is_answered(route.chain.request_headers):
            return
        self._narrow(x)
        self._request_body = begun(route.chain.request_body, x, head.body)
        self._whole_limit = limit_of_whole(route, x) if head.body else -1
        if self._whole_limit >= 0 or (self._request_body is not None and self._request_body.holds):
            self._wants_whole = True
            self._send(MessagePart.REQUEST_HEADERS, mode=self._override(request_body_mode=_BUFFERED))
        elif await self._choose_backend():
            self._leg = begun(self._chain.leg_request_body, x, head.body)
            needs_body = self._request_body is not None or self._leg is not None or head.body < 0 <= x.max_body_bytes
            mode = self._override(
                request_body_mode=_STREAMED if needs_body else _NONE,
                request_trailer_mode=HeaderSendMode.SEND if needs_body else HeaderSendMode.DEFAULT,
            )
            self._is_request_over = not needs_body
            self._send(MessagePart.REQUEST_HEADERS, self._request_changes(), mode=mode)

    async def _take_request_body(self, message: ProcessingRequest) -> None:
        x = self._exchange
        data = message.body
        x.bytes_in += len(data)
        self._received += len(data)
        if 0 <= x.max_body_bytes < self._received:
            message_text = f"the request body is longer than {x.max_body_bytes} bytes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message_text, status=413)
        is_whole, chain = self._wants_whole, self._request_body
        if self._is_request_over and (chain is not None or self._leg is not None):
            raise misconfigured("a piece of the request's body has come behind its end")
        is_last = is_whole or message.end_of_stream
        if chain is not None:
            data = await self._fed(chain, data, is_last=is_last)
        if not is_whole:
            if self._leg is not None:
                data = await self._fed(self._leg, data, is_last=is_last)
            self._is_request_over = is_last
            self._send(MessagePart.REQUEST_BODY, body=data if data != message.body else None)
            return
        self._wants_whole = False
        x.request.body = len(data)
        if 0 <= self._whole_limit < len(data):
            message_text = f"the body is longer than the {self._whole_limit} bytes that a filter of the backend takes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message_text, status=413)
        self._narrow(x)
        if await self._choose_backend(data):
            self._is_request_over = True
            data = self._sent_body
            changes = self._request_changes()
            if len(data) != len(message.body):
                changes += (FieldChange(b"content-length", FieldAction.SET, b"%d" % len(data)),)
            self._send(MessagePart.REQUEST_BODY, changes, body=data if data != message.body else None)

    async def _take_request_trailers(self, message: ProcessingRequest) -> None:
        chain = self._request_body
        if not self._is_request_over and await self._left_of_request():
            raise misconfigured("a filter of the request's body holds back what Envoy takes no more behind trailers")
        self._is_request_over = True
        route = self._resources.route
        passes = chain is None and self._leg is None and self._chain.backend_request is None
        if not passes or route is None or route.chain.request_headers is not None:
            self._send(MessagePart.REQUEST_TRAILERS, tuple([removed(name) for name, _ in message.fields]))
        else:
            self._send(MessagePart.REQUEST_TRAILERS)

    async def _left_of_request(self) -> bytes:
        """What body filters have held back of a body that flows, and whose end has come."""
        data = b""
        for chain in (self._request_body, self._leg):
            if chain is not None:
                data = await self._fed(chain, data, is_last=True)
        return data

    def _narrow(self, x: Exchange) -> None:
        """Leave out what filters exclude. Raises Denied where that is every backend."""
        if self._resources.route is not None:
            self._resources.route = narrowed(self._resources.route, x)

    async def _choose_backend(self, body: bytes = b"") -> bool:
        """Run what belongs to the backend of the rule; `body` is the whole of it, where filters need that. False if a
        filter has answered.
        """
        x, route = self._exchange, self._resources.route
        assert route is not None
        x.attempts = 1
        self._rewritten = x.upstream_host
        if route.choices:
            backend = self._resources.backend = route.choose()
            x.backend = backend.name
            x.series = backend.series
            x.backend_is_secure = backend.originates_tls
            fixed = backend.connector.fixed if backend.connector is not None else None
            if fixed is not None:
                x.backend_origin = fixed.origin
                x.upstream_host = x.upstream_host or fixed.host_field
        x.upstream_host = x.upstream_host or x.request.host
        before = x.upstream_host
        if body:  # that of a Backend's own leg, which flows, begins when the head has gone
            leg = begun(self._chain.leg_request_body, x, -1)
            body = body if leg is None else await self._fed(leg, body, is_last=True)
        self._sent_body = body
        if self._chain.needs_body >= 0:
            x.note(SENT_BODY, body)
        is_answered = await self._is_answered(self._chain.backend_request)
        if self._chain.needs_body >= 0:
            x.note(SENT_BODY, None)
        if is_answered:
            return False
        if x.upstream_host != before:
            self._rewritten = x.upstream_host
        return True

    def _request_changes(self) -> tuple[FieldChange, ...]:
        head = self._exchange.request
        changes = changes_of(self._block, head.fields) + self._dropped
        if head.path != head.target:
            changes += (FieldChange(b":path", FieldAction.SET, head.path),)
        if self._rewritten:
            changes += (FieldChange(b":authority", FieldAction.SET, self._rewritten),)
        return changes

    # --- the response ----------------------------------------------------------------------------------------------
    async def _take_response_head(self, message: ProcessingRequest) -> None:
        if self._wants_whole:
            raise misconfigured("Envoy has sent the request without the body that its filters have to see")
        x, chain = self._exchange, self._chain
        response = x.response = read_response(message, x.request.method)
        self._block, status = response.fields.block, response.status
        for steps in chain.response_phases:
            if await self._is_answered(steps):
                return
        x.grpc_status = parsed_status(response.fields.block) if is_grpc(x.request.fields.get(b"content-type")) else -1
        body = self._response_body = begun(chain.response_body, x, response.body)
        changes = () if response.status == status else (FieldChange(b":status", FieldAction.SET, b"%d" % status),)
        if body is not None and body.holds:
            self._wants_whole = True
            self._send(MessagePart.RESPONSE_HEADERS, mode=self._override(response_body_mode=_BUFFERED))
            return
        mode = self._override(
            response_body_mode=_STREAMED if body is not None else _NONE,
            response_trailer_mode=HeaderSendMode.SEND if body is not None else HeaderSendMode.DEFAULT,
        )
        self._is_response_over = body is None
        self._send(MessagePart.RESPONSE_HEADERS, self._response_changes(changes), mode=mode)
        x.status = response.status

    def _response_changes(self, changes: tuple[FieldChange, ...] = ()) -> tuple[FieldChange, ...]:
        return changes + changes_of(self._block, self._exchange.response.fields)

    async def _take_response_body(self, message: ProcessingRequest) -> None:
        x, chain, data = self._exchange, self._response_body, message.body
        if self._is_response_over and chain is not None:
            raise misconfigured("a piece of the response's body has come behind its end")
        is_whole = self._wants_whole
        is_last = is_whole or message.end_of_stream
        if self._is_cut:
            data = b""
        elif chain is not None:
            try:
                data = await self._fed(chain, data, is_last=is_last)
            except GatewayError as error:
                data = self._last_event(error)
        self._tail = data[-4:] or self._tail
        x.bytes_out += len(data)
        self._is_response_over = is_last
        changes: tuple[FieldChange, ...] = ()
        if is_whole:
            self._wants_whole = False
            x.status = x.response.status
            changes = self._response_changes()
            if len(data) != len(message.body):
                changes += (FieldChange(b"content-length", FieldAction.SET, b"%d" % len(data)),)
        self._send(MessagePart.RESPONSE_BODY, changes, body=data if data != message.body else None)

    def _last_event(self, error: GatewayError) -> bytes:
        """The event that ends a stream that has begun, in the shape of its provider: Envoy gets nothing behind it.

        Raises the error again where there is none: Envoy breaks the response off.
        """
        x, route, chain = self._exchange, self._resources.route, self._response_body
        event = b""
        if x.status and route is not None and chain is not None and not isinstance(error, ClientGone):
            event = error_event(error, x, provider_call(x, route.backends), chain, self._tail)
        if not event:
            raise error
        self._is_cut = True
        self._blame(error)
        return event

    async def _take_response_trailers(self, message: ProcessingRequest) -> None:
        chain = self._response_body
        if chain is not None and not self._is_response_over and await self._fed(chain, b"", is_last=True):
            raise misconfigured("a filter of the response's body holds back what Envoy takes no more behind trailers")
        self._is_response_over = True
        # As the gateway: what a filter has not seen goes no further, but for how a call of gRPC has ended.
        if chain is None and not self._chain.response_phases:
            self._send(MessagePart.RESPONSE_TRAILERS)
            return
        passed = Fields(grpc_trailers(Fields.of(message.fields).block, with_text=self._chain.ignores_trailers))
        dropped = [removed(name) for name, _ in message.fields if name not in passed]
        self._send(MessagePart.RESPONSE_TRAILERS, tuple(dropped))

    # --- filters ---------------------------------------------------------------------------------------------------
    @property
    def _exchange(self) -> Exchange:
        assert self._x is not None, "its head has come"
        return self._x

    @property
    def _chain(self) -> Chain:
        """The filters of the backend of the rule; of a rule that names none, those of the route."""
        place = self._resources.backend or self._resources.route
        assert place is not None
        return place.chain

    @property
    def _is_call(self) -> bool:
        return (
            self._x is not None and self._x.request is not None and is_grpc(self._x.request.fields.get(b"content-type"))
        )

    @property
    def _has_answered_head(self) -> bool:
        return self._x is not None and self._x.status != 0

    async def _is_answered(self, steps: Steps | None) -> bool:
        """Run a phase. True if one of its filters has answered, and Envoy is told that."""
        if steps is None:
            return False
        outcome = run(steps, self._exchange)
        if outcome is None:
            return False
        answer = await answer_of(outcome, steps, self._exchange, self._resources)
        if answer is None:
            return False
        self._send_immediate(answer)
        return True

    async def _fed(self, chain: BodyChain, data: bytes, *, is_last: bool) -> bytes:
        outcome = chain.feed(self._exchange, data, is_last)
        return outcome if isinstance(outcome, bytes) else await outcome

    # --- answers ---------------------------------------------------------------------------------------------------
    def _override(self, **modes: BodySendMode | HeaderSendMode) -> ProcessingMode | None:
        """What is to be sent from now on; None where that is so already."""
        wanted = replace(self._mode, **modes)  # type: ignore[arg-type]
        if wanted == self._mode:
            return None
        self._mode = wanted
        return replace(wanted, response_header_mode=HeaderSendMode.SEND)

    def _send(
        self,
        part: MessagePart,
        changes: tuple[FieldChange, ...] = (),
        *,
        body: bytes | None = None,
        mode: ProcessingMode | None = None,
    ) -> None:
        self._call.send(response_bytes(ProcessingResponse(part, headers=changes, body=body, mode_override=mode)))

    def _send_immediate(self, answer: LocalResponse) -> None:
        """The response that the client gets instead; nothing follows it."""
        x = self._x
        if x is not None:
            answer = answer_of_call(answer, x.reason) if self._is_call else answer
            x.status = answer.status
            x.bytes_out += len(answer.body)
        immediate = immediate_response(answer, x.reason if x is not None else Reason.OK, is_call=self._is_call)
        if x is not None and immediate.grpc_status is not None:
            x.grpc_status = immediate.grpc_status
        self._call.send(response_bytes(ProcessingResponse(immediate=immediate)))
        self._is_request_over = self._is_response_over = True

    async def _rescue(self, error: GatewayError) -> None:
        """An error ends the exchange. Behind the head of the response Envoy breaks that off."""
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
        x = self._x
        if isinstance(error, FilterAnswered) and x is not None:
            self._send_immediate(await dressed(error.answer, x, self._resources))
            return
        self._blame(error)
        request_id = x.request_id if x is not None else ""
        if self._is_call:
            self._send_immediate(error_of_call(error, request_id))
        else:
            route = self._resources.route
            call = provider_call(x, route.backends if route is not None else ()) if x is not None else None
            self._send_immediate(answer_for(error, request_id, call))

    def _blame(self, error: GatewayError) -> None:
        if self._x is not None:
            self._accounting.blame(self._x, self._resources, error)
        else:
            log.warning(
                "a call of %s is refused: %s%s", self._peer, error.message, error.remedy and f": {error.remedy}"
            )

    def _break_off(self, status: GrpcStatus, text: str) -> None:
        log.warning("the call of %s is ended with %s: %s", self._peer, status.name, text)
        if self._x is not None and not self._x.status:
            self._blame(BadRequest(Reason.BAD_FRAMING, text))
        self._call.end(status, text)

    def _complete(self) -> None:
        """Always, once: filters, metrics, log."""
        x = self._x
        try:
            if x is not None:
                self._accounting.account(x, self._resources)
        finally:
            self._resources.reset()
            self._call.end()
