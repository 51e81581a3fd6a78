"""EnvoyConversation: the common state of both directions of an exchange: resources, filters, and replies to Envoy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    MessagePart,
    ProcessingMode,
    ProcessingResponse,
    StreamedBody,
)
from egressproxy.envoy.ext_proc.wire import response_bytes
from egressproxy.envoy.ext_proc_server.call import StreamingCall
from egressproxy.envoy.ext_proc_server.envoy_messages import EnvoyMisconfigured
from egressproxy.envoy.ext_proc_server.head_changes import immediate_response
from egressproxy.envoy.field_change import FieldChange
from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.body import BodyChain
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.chain import Chain, run
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.error_responses import answer_of_call
from egressproxy.gateway.exchange.filter_answers import answer_of
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.grpc.statuses import is_grpc

log = logging.getLogger(__name__)

_DEFAULT, _SEND = HeaderSendMode.DEFAULT, HeaderSendMode.SEND
_UNKNOWN = ProcessingMode()


@dataclass(slots=True, eq=False, repr=False)
class EnvoyConversation:
    """Used on the driver of the call's stream.

    Attributes:
        peer: address and port of the Envoy.
        begun: the exchange, None as long as its head has not come.
        pipeline: what the exchange holds, and the order of its phases.
        actions: what the pipeline says to do next.
        configured: how Envoy sends bodies as long as nothing else is asked for.
        mode: what it sends from now on.
        has_ended: Envoy has a response of ours; what it sends behind that is of no interest.
    """

    call: StreamingCall
    accounting: Accounting
    peer: str
    begun: Exchange | None = None
    pipeline: Pipeline = field(default_factory=Pipeline)
    actions: Iterator[str] = field(default_factory=lambda: iter(()))
    configured: ProcessingMode = _UNKNOWN
    mode: ProcessingMode = _UNKNOWN
    has_ended: bool = False

    # --- the exchange ----------------------------------------------------------------------------------------------
    def begin(self, exchange: Exchange, configured: ProcessingMode) -> None:
        self.begun = exchange
        self.pipeline.retries_elsewhere = True  # by Envoy
        self.configured = self.mode = configured

    @property
    def exchange(self) -> Exchange:
        """The exchange. Asked for once it has begun."""
        assert self.begun is not None, "its head has come"
        return self.begun

    @property
    def chain(self) -> Chain:
        """The filters of the backend of the rule; of a rule that names none, those of the route."""
        enforced = self.pipeline.backend or self.pipeline.route
        assert enforced is not None
        return enforced.chain

    @property
    def is_call(self) -> bool:
        """Whether the client has called a method of gRPC."""
        exchange = self.begun
        return exchange is not None and exchange.has_request and is_grpc(exchange.request.fields.get(b"content-type"))

    def record_error(self, error: GatewayError) -> None:
        """The exchange has failed with this error."""
        if self.begun is not None:
            self.accounting.record_error(self.begun, self.pipeline, error)
        else:
            remedy = error.remedy and f": {error.remedy}"
            log.warning("a call of %s is refused: %s%s", self.peer, error.message, remedy)

    # --- filters ---------------------------------------------------------------------------------------------------
    async def answer_of(self, steps: FilterSteps | None) -> LocalResponse | None:
        """Run a phase. Returns the response that one of its filters has made."""
        outcome = run(steps, self.exchange) if steps is not None else None
        if steps is None or outcome is None:
            return None
        return await answer_of(outcome, steps, self.exchange, self.pipeline)

    # --- what Envoy is told ----------------------------------------------------------------------------------------
    def need(self, mode: BodySendMode) -> None:
        """Raises EnvoyMisconfigured for NONE: an Envoy that ignores overrides would let a body pass unseen."""
        if mode is BodySendMode.NONE:
            raise EnvoyMisconfigured("a filter needs a body that Envoy would let pass if it ignored overrides")

    def override(
        self,
        *,
        request_body: BodySendMode | None = None,
        response_body: BodySendMode | None = None,
        request_trailers: HeaderSendMode | None = None,
        response_trailers: HeaderSendMode | None = None,
    ) -> ProcessingMode | None:
        """What is to be sent from now on, None: as before. Returns None where all of it is so already."""
        before = self.mode
        self.mode = ProcessingMode(
            _DEFAULT,
            _SEND,
            before.request_body_mode if request_body is None else request_body,
            before.response_body_mode if response_body is None else response_body,
            before.request_trailer_mode if request_trailers is None else request_trailers,
            before.response_trailer_mode if response_trailers is None else response_trailers,
        )
        return None if self.mode == before else self.mode

    def send(
        self,
        part: MessagePart,
        changes: tuple[FieldChange, ...] = (),
        *,
        body: bytes | None = None,
        streamed: StreamedBody | None = None,
        mode: ProcessingMode | None = None,
    ) -> None:
        """Answer this part: what changes of its fields, its body (None: nothing), what is to be sent from now on."""
        response = ProcessingResponse(part, headers=changes, body=body, streamed=streamed, mode_override=mode)
        self.call.send(response_bytes(response))

    def send_immediate(self, answer: LocalResponse) -> None:
        """Send the client this response instead, as the last message."""
        exchange = self.begun
        if exchange is not None:
            answer = answer_of_call(answer, exchange.reason) if self.is_call else answer
            exchange.status = answer.status
            exchange.bytes_out += len(answer.body)
        immediate = immediate_response(
            answer, exchange.reason if exchange is not None else Reason.OK, is_call=self.is_call
        )
        if exchange is not None and immediate.grpc_status is not None:
            exchange.grpc_status = immediate.grpc_status
        self.call.send(response_bytes(ProcessingResponse(immediate=immediate)))
        self.has_ended = True


def begun(plan: BodyPlan | None, exchange: Exchange, length: int) -> BodyChain | None:
    """The filters of a body of this length; None where there are none, or no body."""
    return plan.begin(exchange) if plan is not None and length != 0 else None
