"""ProcessedExchange: an exchange that Envoy carries, and whose filters run here. One call of ext_proc serves one.

It has the phases of `gateway/exchange/connection_manager`, with Envoy in place of the client and of the backend. Each
message is answered before the next is looked at, so the answers are in Envoy's order. Which bodies and trailers are
sent, and how, is asked for with `mode_override`: none that no filter reads, a BUFFER filter's whole, every other in
pieces.

Sources: Envoy API v3, service/ext_proc/v3/external_processor.proto, and extensions/filters/http/ext_proc/v3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from egressproxy.envoy.ext_proc.messages import MessagePart, ProcessingRequest
from egressproxy.envoy.ext_proc.wire import read_request
from egressproxy.envoy.ext_proc_server.call import MalformedCall
from egressproxy.envoy.ext_proc_server.conversation import EnvoyConversation
from egressproxy.envoy.ext_proc_server.envoy_messages import EnvoyMisconfigured
from egressproxy.envoy.ext_proc_server.gateways import ServedGateways
from egressproxy.envoy.ext_proc_server.request_side import RequestSide
from egressproxy.envoy.ext_proc_server.response_side import ResponseSide
from egressproxy.envoy.protobuf import WireError
from egressproxy.errors import BadRequest, ClientGone, GatewayError, Reason
from egressproxy.filters.filter_step import FilterAnswered
from egressproxy.gateway.exchange.error_responses import answer_for, error_of_call, internal_fault
from egressproxy.gateway.exchange.filter_answers import run_response_filters
from egressproxy.gateway.exchange.pipeline import RESPOND_INSTEAD
from egressproxy.gateway.products import PRODUCTS
from egressproxy.model.grpc_status import GrpcStatus

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class ProcessedExchange:
    """The life of one exchange. `serve` runs on the driver of the call's stream."""

    _conversation: EnvoyConversation
    _gateways: Callable[[], ServedGateways]  # those in service
    _trust_domains: Sequence[str]  # of SPIFFE ids that Envoy's attributes tell
    #: Called with the address of the Envoy where that is not configured as filters need it.
    _note_misconfigured: Callable[[EnvoyMisconfigured, str], None]
    _request: RequestSide = field(init=False)
    _response: ResponseSide = field(init=False)

    def __post_init__(self) -> None:
        self._request = RequestSide(self._conversation)
        self._response = ResponseSide(self._conversation)

    async def serve(self, gateway: bytes, listener: bytes) -> None:
        """Answer the messages of the call, to its end. `gateway`, `listener`: what the call asks for."""
        try:
            await self._converse(gateway, listener)
        except ClientGone as gone:  # Envoy resets a call that it has no more use for
            if not self._has_answered_head:
                self._conversation.record_error(gone)
        except GatewayError as error:
            await self._rescue(error)
        except MalformedCall as error:
            self._break_off(error.status, str(error))
        except WireError as error:
            self._break_off(GrpcStatus.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # also what a filter may raise to end more than itself
            await self._rescue(internal_fault(error, "an exchange of Envoy's"))
        finally:
            self._complete()

    async def _converse(self, gateway: bytes, listener: bytes) -> None:
        call = self._conversation.call
        first = await call.next()
        if first is None:
            return
        message = read_request(first)
        if message.part is not MessagePart.REQUEST_HEADERS or message.observability_mode:
            raise EnvoyMisconfigured("the first message of a call has to be the head of a request, and to be answered")
        await self._request.take_head(
            message, lambda: self._gateways().port_for(gateway, listener), self._trust_domains
        )
        while not self._is_over:
            data = await call.next()
            if data is None:
                if not self._has_answered_head:
                    raise ClientGone
                return
            await self._take(read_request(data))

    async def _take(self, message: ProcessingRequest) -> None:
        part = message.part
        if part is MessagePart.RESPONSE_HEADERS:
            if self._request.wants_whole:
                raise EnvoyMisconfigured("Envoy has sent the request without the body that its filters have to see")
            await self._response.take_head(message)
        elif part is MessagePart.REQUEST_BODY:
            await self._request.take_body(message)
        elif part is MessagePart.RESPONSE_BODY:
            await self._response.take_body(message)
        elif part is MessagePart.REQUEST_TRAILERS:
            await self._request.take_trailers(message)
        elif part is MessagePart.RESPONSE_TRAILERS:
            await self._response.take_trailers(message)
        else:
            raise EnvoyMisconfigured("the head of a request came twice")

    @property
    def _is_over(self) -> bool:
        return self._conversation.has_ended or (self._request.is_over and self._response.is_over)

    @property
    def _has_answered_head(self) -> bool:
        exchange = self._conversation.begun
        return exchange is not None and exchange.status != 0

    async def _rescue(self, error: GatewayError) -> None:
        """An error ends the exchange. Behind the head of the response Envoy breaks that off."""
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
        conversation, pipeline = self._conversation, self._conversation.pipeline
        exchange = conversation.begun
        if (
            isinstance(error, FilterAnswered)
            and exchange is not None
            and pipeline.end(exchange, error, is_lost=False) == RESPOND_INSTEAD
        ):
            conversation.send_immediate(await run_response_filters(error.answer, exchange, pipeline))
            return
        if isinstance(error, EnvoyMisconfigured):
            self._note_misconfigured(error, conversation.peer)
        conversation.record_error(error)
        request_id = exchange.request_id if exchange is not None else ""
        if conversation.is_call:
            conversation.send_immediate(error_of_call(error, request_id))
        else:
            backends = pipeline.route.backends if pipeline.route is not None else ()
            form = PRODUCTS.error_form(exchange, backends) if exchange is not None else None
            conversation.send_immediate(answer_for(error, request_id, form))

    def _break_off(self, status: GrpcStatus, text: str) -> None:
        conversation = self._conversation
        log.warning("the call of %s is ended with %s: %s", conversation.peer, status.name, text)
        if conversation.begun is not None and not conversation.begun.status:
            conversation.record_error(BadRequest(Reason.BAD_FRAMING, text))
        conversation.call.end(status, text)

    def _complete(self) -> None:
        """Always, once: filters, metrics, log."""
        conversation = self._conversation
        try:
            if conversation.begun is not None:
                conversation.accounting.account(conversation.begun, conversation.pipeline)
        finally:
            conversation.pipeline.reset()
            conversation.call.end()
