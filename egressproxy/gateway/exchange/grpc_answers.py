"""What a client of gRPC is answered in place of our JSON, and of what filters say: trailers alone, with a status.

`grpc-message` begins with our reason. The fields that say more to people and tools stay (Proxy-Status, Retry-After and
the like); those about the content go with it. Source: grpc.io, gRPC over HTTP2, Trailers-Only.
"""

from __future__ import annotations

from egressproxy.errors import GatewayError, Reason
from egressproxy.gateway.exchange.error_responses import answer_for
from egressproxy.model.fields import Fields
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.grpc.statuses import encoded_message, is_grpc, status_of

_CONTENT_TYPE = (b"content-type", b"application/grpc")


def error_of_call(error: GatewayError, request_id: str) -> LocalResponse:
    """The response to a call that this error ends before it has another."""
    made = answer_for(error, request_id)
    fields = [field for field in made.fields if not field[0].lower().startswith(b"content-")]
    return LocalResponse(200, (_CONTENT_TYPE, *fields, *last_fields(error)))


def last_fields(error: GatewayError, *, is_late: bool = False) -> list[tuple[bytes, bytes]]:
    """The status and the message of a call that this error ends; `is_late`: behind the head of its response.

    A stream in which nothing moves any more may be begun anew: that is not the deadline of its caller.
    """
    said = f"{error.reason}: {error.message}"
    if error.remedy:
        said = f"{said} ({error.remedy})"
    status = status_of(error.reason, error.status, error.reset_code)
    if is_late and error.reason is Reason.RESPONSE_TIMEOUT:
        status = GrpcStatus.UNAVAILABLE
    return _status(status, said)


def answer_of_call(answer: LocalResponse, reason: Reason) -> LocalResponse:
    """A response of a filter, as a call is told of it; one that is gRPC already stays.

    `reason` is that of the exchange: OK where the filter itself has none.
    """
    fields = Fields.of(answer.fields)
    content_type = fields.get(b"content-type")
    if is_grpc(content_type) or b"grpc-status" in fields:
        return answer
    said = answer.phrase.decode("latin-1") or f"HTTP status {answer.status}"
    if answer.body and b"html" not in (content_type or b""):
        said = answer.body.decode("utf-8", "replace").strip()
    if reason is not Reason.OK:
        said = f"{reason}: {said}"
    kept = [field for field in answer.fields if not field[0].lower().startswith(b"content-")]
    return LocalResponse(200, (_CONTENT_TYPE, *kept, *_status(status_of(reason, answer.status), said)))


def _status(status: GrpcStatus, said: str) -> list[tuple[bytes, bytes]]:
    return [(b"grpc-status", b"%d" % status), (b"grpc-message", encoded_message(said))]
