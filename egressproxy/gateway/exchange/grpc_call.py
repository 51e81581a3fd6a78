"""GrpcCall: a call of gRPC whose client is asked for: its deadline, and answers and errors in its own words.

Source: gRPC over HTTP/2, Requests (grpc-timeout) and Responses (grpc-status).
"""

from __future__ import annotations

from time import monotonic

from egressproxy.errors import BadRequest, GatewayError, Reason, UpstreamFault
from egressproxy.gateway.backends.route_backend import on_the_wheel
from egressproxy.gateway.exchange.error_responses import answer_of_call, last_fields
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead
from egressproxy.net.timers import NEVER
from egressproxy.protocols.grpc.statuses import MalformedTimeout, is_grpc, parsed_status, parsed_timeout, timeout_value


class GrpcCall:
    """`timeout` is what the head of the call says of it, `ends_at` the deadline (monotonic seconds). `is_open`: the
    head of its response has gone, and trailers may say how it ends.
    """

    __slots__ = ("ends_at", "is_open", "timeout")

    def __init__(self, timeout: list[bytes]) -> None:
        self.timeout = timeout
        self.ends_at = NEVER
        self.is_open = False

    def begin(self, request_s: float) -> float:
        """The seconds that the request may take (0, NEVER: as long as it likes), of which the rule allows `request_s`.
        The deadline of the call begins. Raises GatewayError for one that is malformed or over.
        """
        if not self.timeout:
            return request_s
        if len(self.timeout) > 1:
            raise BadRequest(Reason.BAD_FIELD, "grpc-timeout stands more than once", close=False)
        try:
            seconds = parsed_timeout(self.timeout[0])
        except MalformedTimeout as fault:
            raise BadRequest(Reason.BAD_FIELD, str(fault), close=False) from None
        if seconds <= 0:
            raise UpstreamFault(Reason.REQUEST_TIMEOUT, "the deadline of the call has passed", status=504)
        self.ends_at = monotonic() + seconds
        on_wheel = on_the_wheel(seconds)
        return min(request_s, on_wheel) if request_s > 0 else on_wheel

    def tell_time_left(self, head: RequestHead, exchange_ends_at: float, attempt_ends_at: float) -> None:
        """Tell the backend what is left of the time: its clock starts then."""
        if self.ends_at != NEVER and b"grpc-timeout" in head.fields:
            ends_at = min(self.ends_at, exchange_ends_at, attempt_ends_at)
            head.fields.set(b"grpc-timeout", timeout_value(ends_at - monotonic()))

    def begin_response(self, exchange: Exchange, head: ResponseHead, body: bytes | None) -> None:
        """The head of the response has gone, with its `body`; None: that follows."""
        note_status(exchange, head.fields.block)
        self.is_open = body is None and head.body == CHUNKED and is_grpc(head.fields.get(b"content-type"))


def note_status(exchange: Exchange, block: bytes) -> None:
    """Keep the final gRPC status of a call, if these fields have one."""
    status = parsed_status(block)
    if status >= 0:
        exchange.grpc_status = status


def answer_to_call(exchange: Exchange, answer: LocalResponse) -> LocalResponse:
    """A response of our own, or of a filter, as a call is told of it."""
    made = answer_of_call(answer, exchange.reason)
    note_status(exchange, Fields.of(made.fields).block)
    return made


def ending_of_call(exchange: Exchange, error: GatewayError) -> list[tuple[bytes, bytes]]:
    """The trailers that say how this error has ended a call behind the head of its response."""
    fields = last_fields(error, is_late=True)
    exchange.grpc_status = int(fields[0][1])
    return fields
