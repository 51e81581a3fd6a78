"""Error responses: the one place where a GatewayError becomes a response, and what a denial tells the client.

A denial says in every form it takes what was refused, by which rule, why, and what to add. It shows no secret, no
address that DNS gave, and nothing of the request but the host that policy was asked about. All of it comes from the
error itself (`egressproxy.errors`); `gateway/listeners/bound_port` alone refuses without one, where there are too many
connections. A client of gRPC gets trailers alone, whose `grpc-message` begins with our reason; the fields that say more
to people and tools stay, those about the content go with it.

Sources: RFC 9209 (Proxy-Status), RFC 9110 section 15; grpc.io, gRPC over HTTP2, Trailers-Only.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from egressproxy.errors import UNREACHED, FaultSource, GatewayError, GatewayFault, Reason
from egressproxy.filters.body import BodyChain
from egressproxy.gateway.product_types import ErrorForm
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import EVENT_STREAM, Fields, media_type
from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED
from egressproxy.protocols.grpc.statuses import encoded_message, is_grpc, status_of
from egressproxy.protocols.http1.writer import safe_phrase

log = logging.getLogger(__name__)

#: The end of a server-sent event, in each way that lines end.
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\n\r\n", b"\n\r")

#: The methods of a resource (RFC 9110 section 10.2.1). CONNECT is none of them: it asks for a tunnel.
ALLOW: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
#: The most characters of a message in the status phrase and in Proxy-Status; of a denial, which may have a policy's
#: `message`, host and policy of any length.
MAX_PHRASE: Final = 200
MAX_DENIAL: Final = 1024
#: RFC 9209 section 2.3: our reasons in the registry's words.
PROXY_ERRORS: dict[Reason, str] = {
    Reason.ADDRESS_DENIED: "destination_ip_prohibited",
    Reason.REVERSE_DNS_DENIED: "destination_ip_prohibited",
    Reason.LOOP_DETECTED: "proxy_loop_detected",
    Reason.NO_ROUTE: "destination_not_found",
    Reason.MISDIRECTED: "destination_not_found",
    Reason.BACKEND_INVALID: "proxy_configuration_error",
    Reason.UNKNOWN_EXTENSION: "proxy_configuration_error",
    Reason.FILTER_UNUSABLE: "proxy_configuration_error",
    Reason.FILTER_FAILED: "proxy_internal_error",
    Reason.CREDENTIAL_MISSING: "proxy_configuration_error",
    Reason.INTERCEPTION_FAILED: "proxy_configuration_error",
    Reason.INTERNAL: "proxy_internal_error",
    Reason.DNS_NXDOMAIN: "dns_error",
    Reason.DNS_NO_ADDRESS: "dns_error",
    Reason.DNS_SERVFAIL: "dns_error",
    Reason.DNS_NOT_AUTHENTIC: "dns_error",
    Reason.DNS_ERROR: "dns_error",
    Reason.DNS_TIMEOUT: "dns_timeout",
    Reason.NO_ENDPOINT: "destination_unavailable",
    Reason.NO_HEALTHY_ENDPOINT: "destination_unavailable",
    Reason.CIRCUIT_OPEN: "connection_limit_reached",
    Reason.CONNECT_REFUSED: "connection_refused",
    Reason.CONNECT_TIMEOUT: "connection_timeout",
    Reason.CONNECT_FAILED: "destination_ip_unroutable",
    Reason.PARENT_REFUSED: "connection_refused",
    Reason.PARENT_AUTH: "proxy_configuration_error",
    Reason.TLS_CERTIFICATE: "tls_certificate_error",
    Reason.TLS_PROTOCOL: "tls_protocol_error",
    Reason.TLS_TIMEOUT: "connection_timeout",
    Reason.UPSTREAM_RESET: "connection_terminated",
    Reason.UPSTREAM_CLOSED: "connection_terminated",
    Reason.UPSTREAM_INCOMPLETE: "http_response_incomplete",
    Reason.BAD_RESPONSE: "http_protocol_error",
    Reason.RESPONSE_TIMEOUT: "http_response_timeout",
    Reason.REQUEST_TIMEOUT: "http_response_timeout",
    Reason.QUEUE_FULL: "connection_limit_reached",
    Reason.QUEUE_TIMEOUT: "connection_limit_reached",
    Reason.CONNECTION_LIMIT: "connection_limit_reached",
    Reason.TUNNEL_LIMIT: "connection_limit_reached",
}
#: Reasons of policies and limits, which egress_denied_total counts.
DENIALS = frozenset((
    Reason.DESTINATION_NOT_ALLOWED, Reason.DESTINATION_DENIED, Reason.NO_POLICY, Reason.ADDRESS_DENIED,
    Reason.REVERSE_DNS_DENIED, Reason.SNI_MISMATCH, Reason.NOT_TLS, Reason.CLIENT_CERTIFICATE,
    Reason.INTERCEPTION_REFUSED, Reason.PROXY_HEADER, Reason.CREDENTIALS_REQUIRED, Reason.CREDENTIALS_REFUSED,
    Reason.IDENTITY_KILLED, Reason.PLAINTEXT_CREDENTIAL, Reason.CREDENTIAL_NOT_BOUND, Reason.AUTHORIZATION_REQUIRED,
    Reason.CREDENTIAL_NOT_FOR_CALLER, Reason.PLACEHOLDER_REQUIRED, Reason.PLACEHOLDER_MISPLACED, Reason.FILTER_REJECTED,
    Reason.ACCESS_DENIED, Reason.CONTENT_DENIED, Reason.CANARY_KEY, Reason.MODEL_DENIED, Reason.REGION_DENIED,
    Reason.APPROVAL_DENIED, Reason.EXT_AUTH_DENIED, Reason.LOOP_DETECTED, Reason.METHOD_NOT_ALLOWED,
    Reason.REQUEST_RATE, Reason.NEW_NAMES, Reason.TOKEN_RATE, Reason.BYTE_RATE, Reason.COST_LIMIT, Reason.CONCURRENCY,
    Reason.APPROVAL_LIMIT, Reason.TUNNEL_LIMIT, Reason.BODY_TOO_LARGE, Reason.OVERLOADED,
))  # fmt: skip
#: What is the client's to mend, or the usual end of a connection; a filter that fails has told of it.
WITHOUT_EVENT = frozenset(
    {Reason.NO_ROUTE, Reason.MISDIRECTED, Reason.CLIENT_GONE, Reason.DRAINED, Reason.FILTER_FAILED}
)  # fmt: skip


def internal_fault(error: BaseException, place: str) -> GatewayFault:
    """Log a fault of ours, or of a filter, with its traceback. Returns the error that ends the exchange; `place` names
    that, such as "exchange 1a-2".
    """
    log.error("internal error in %s", place, exc_info=error)
    return GatewayFault(Reason.INTERNAL, "internal error", detail=type(error).__name__)


def is_denial(error: GatewayError) -> bool:
    """Whether policy or a limit refused (counted in egress_denied_total), rather than something that failed."""
    return error.reason in DENIALS


def has_event(error: GatewayError) -> bool:
    """Whether what is no denial is told as an Event: what an operator can mend, and nobody else tells of."""
    if error.reason in UNREACHED:
        return True
    return error.source is FaultSource.GATEWAY and error.reason not in WITHOUT_EVENT


def answer_for(error: GatewayError, request_id: str, form: ErrorForm | None = None) -> LocalResponse:
    """The response for this error: the reason in the status phrase, in Proxy-Status, and in a JSON body.

    `form`: that of the client's errors, where it reads an error object of its own.
    """
    denied = is_denial(error)
    message = error.message
    longest = MAX_DENIAL if denied else MAX_PHRASE
    phrase = safe_phrase(f"Denied: {message}" if denied and error.status == 403 else message, longest)
    kind = PROXY_ERRORS.get(error.reason)
    if kind is None:
        if error.source is FaultSource.DOWNSTREAM:
            kind = "http_request_error"
        else:
            kind = "http_request_denied" if denied else "proxy_internal_error"
    quoted = json.dumps(safe_phrase(message, longest).decode())
    proxy_status = f"egressproxy; error={kind}; details={quoted}".encode()
    about = about_error(error, request_id)
    body = form.error(error, about, denied=denied) if form is not None else None
    if body is None:
        body = json.dumps({"error": about}).encode()
    if body.endswith(b"}"):
        body += b"\n"  # for whoever reads it in a shell
    fields: list[tuple[bytes, bytes]] = [
        (b"Content-Type", b"application/json"),
        (b"Proxy-Status", proxy_status),
        (b"X-Egress-Request-Id", request_id.encode()),
        (b"Cache-Control", b"no-store"),
    ]
    if error.retry_after_s > 0:
        fields.append((b"Retry-After", b"%d" % error.retry_after_s))
    if form is not None:
        fields += form.error_fields(error)
    if error.status == 405:
        fields.append((b"Allow", ALLOW))
    fields += error.fields
    return LocalResponse(error.status, tuple(fields), body, phrase)


def error_event(
    error: GatewayError, exchange: Exchange, form: ErrorForm | None, chain: BodyChain, sent: bytes
) -> bytes:
    """The event that tells of an error in a stream that has begun, in the shape of its API and in the content coding of
    the stream; b"" where it cannot. `chain` has the filters of the body, and `sent` is the end of what was sent of it:
    behind half an event nothing can be told.
    """
    head = exchange.response
    if form is None or head.body != CHUNKED:
        return b""
    tail = chain.tail(exchange, sent)
    kind = media_type(head.fields)
    # A filter of Amazon's events sends them whole; their last byte does not show it.
    if tail is None or (kind == EVENT_STREAM and tail and not tail.endswith(_EVENT_ENDS)):
        return b""
    event = form.error_in_stream(kind, error, about_error(error, exchange.request_id), denied=is_denial(error))
    return chain.ended(event) if event else b""


def about_error(error: GatewayError, request_id: str) -> dict[str, object]:
    """What a client is told of an error, in whatever form."""
    about: dict[str, object] = {"status": error.status, "reason": error.reason.value, "message": error.message}
    if error.rule != "-":
        about["rule"] = error.rule
    if error.remedy:
        about["remedy"] = error.remedy
    about["request_id"] = request_id
    return about


_CONTENT_TYPE = (b"content-type", b"application/grpc")


def error_of_call(error: GatewayError, request_id: str) -> LocalResponse:
    """The response to a call that this error ends before it has another."""
    made = answer_for(error, request_id)
    fields = [field for field in made.fields if not field[0].lower().startswith(b"content-")]
    return LocalResponse(200, (_CONTENT_TYPE, *fields, *last_fields(error)))


def last_fields(error: GatewayError, *, is_late: bool = False) -> list[tuple[bytes, bytes]]:
    """The status and the message of a call that this error ends. `is_late`: behind the head of its response, where a
    stream in which nothing moves may be begun anew: that is not the deadline of its caller.
    """
    text = f"{error.reason}: {error.message}"
    if error.remedy:
        text = f"{text} ({error.remedy})"
    status = status_of(error.reason, error.status, error.reset_code)
    if is_late and error.reason is Reason.RESPONSE_TIMEOUT:
        status = GrpcStatus.UNAVAILABLE
    return _status(status, text)


def answer_of_call(answer: LocalResponse, reason: Reason) -> LocalResponse:
    """A response of a filter, as a call is told of it; one that is gRPC already stays. `reason`: of the exchange."""
    fields = Fields.of(answer.fields)
    content_type = fields.get(b"content-type")
    if is_grpc(content_type) or b"grpc-status" in fields:
        return answer
    text = answer.phrase.decode("latin-1") or f"HTTP status {answer.status}"
    if answer.body and b"html" not in (content_type or b""):
        text = answer.body.decode("utf-8", "replace").strip()
    if reason is not Reason.OK:
        text = f"{reason}: {text}"
    kept = [field for field in answer.fields if not field[0].lower().startswith(b"content-")]
    return LocalResponse(200, (_CONTENT_TYPE, *kept, *_status(status_of(reason, answer.status), text)))


def _status(status: GrpcStatus, message: str) -> list[tuple[bytes, bytes]]:
    return [(b"grpc-status", b"%d" % status), (b"grpc-message", encoded_message(message))]
