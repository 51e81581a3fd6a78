"""Errors in the shape of each API, so that a provider's own SDK raises the right exception and shows the message: the
SDKs choose the class by the status, botocore by `x-amzn-errortype`. Sources: OpenAI's and Anthropic's OpenAPI;
google.rpc.Status as JSON (AIP-193); Bedrock's runtime (2023-09-30), AWS REST JSON protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from egressproxy.ai.apis.apis import Api
from egressproxy.ai.apis.aws_event_stream import aws_message
from egressproxy.model.strict_json import dumps

_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GOOGLE_STATUSES: Final[Mapping[int, str]] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BEDROCK_TYPES: Final[Mapping[int, str]] = {
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}
_BEDROCK: Final = frozenset((Api.BEDROCK_CONVERSE, Api.BEDROCK_INVOKE))


def error_object(
    api: Api,
    status: int,
    message: str,
    field: str | None = None,
    code: str | None = None,
    about: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """An error with this status in the shape of `api`: a body of type application/json, or what an event has of it.

    `field` is the field of the request that is at fault, and `code` the reason in one word. Anthropic's and Amazon's
    shapes have no place of their own for them: there the message has to name it. `about` is what else is told, in
    members that SDKs show and do not look at.
    """
    more = dict(about) if about is not None else {}
    if api in _BEDROCK:
        return {"message": message, **more}
    if api is Api.GEMINI:
        error: dict[str, Any] = {"code": status, "message": message, "status": _google_status(status)}
        if code is not None:
            details = {name: str(value) for name, value in more.items()}
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "egressproxy.io"}
            error["details"] = [{**info, "metadata": details}]
        return {"error": error}
    kind = _kind(api, status)
    if api is Api.ANTHROPIC:
        return {"type": "error", "error": {"type": kind, "message": message, **more}}
    return {"error": {"message": message, "type": kind, "param": field, "code": code, **more}}


def error_fields(api: Api, status: int) -> tuple[tuple[bytes, bytes], ...]:
    """Header fields without which the SDK of this API does not know the error."""
    return ((b"x-amzn-errortype", _bedrock_type(status).encode()),) if api in _BEDROCK else ()


def error_in_stream(
    api: Api, media_type: bytes, status: int, message: str, code: str, about: Mapping[str, object] | None = None
) -> bytes:
    """An error that ends a stream of this `media_type` behind a whole event; b"" where a stream has no form for one."""
    if media_type == b"application/vnd.amazon.eventstream":
        # These are the exceptions that a stream may have; others of the service come before it begins.
        type_ = {400: "validationException", 429: "throttlingException", 503: "serviceUnavailableException"}
        named = type_.get(status, "validationException" if status < 500 else "internalServerException")
        headers = {":exception-type": named, ":content-type": "application/json", ":message-type": "exception"}
        return aws_message(headers, dumps({"message": message, **(about or {})}))
    if media_type != b"text/event-stream":
        return b""
    value = error_object(api, status, message, code=code, about=about)
    if api is Api.ANTHROPIC:
        return b"event: error\ndata: " + dumps(value) + b"\n\n"
    if api is Api.OPENAI_RESPONSES:  # the fields of ResponseErrorEvent, and the object that SDKs look for in any event
        value = {"type": "error", "code": code, "message": message, "param": None, **value}
        return b"event: error\ndata: " + dumps(value) + b"\n\n"
    return b"data: " + dumps(value) + b"\n\n"


def _kind(api: Api, status: int) -> str:
    """The word with which this API tells an error of this status."""
    if api is Api.ANTHROPIC:
        return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def _google_status(status: int) -> str:
    return _GOOGLE_STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")


def _bedrock_type(status: int) -> str:
    return _BEDROCK_TYPES.get(status, "ValidationException" if status < 500 else "InternalServerException")


def rpc_error(message: Mapping[str, Any], code: int, text: str, data: Mapping[str, str]) -> dict[str, Any]:
    """The error object of JSON-RPC for a message that has an id."""
    ident = message["id"] if type(message["id"]) in (str, int) else None
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": text, "data": data}}
