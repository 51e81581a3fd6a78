"""metav1.Status: how the API says what went wrong. Source: k8s.io/apimachinery, StatusReason and its codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiohttp import web

from egressproxy.model.encoding import encoded


class NamedKind(Protocol):
    """A kind of objects by its names: `kind` is `Gateway`, `plural` `gateways`, `resource` plural and group."""

    @property
    def group(self) -> str: ...  # "" for the core
    @property
    def kind(self) -> str: ...
    @property
    def plural(self) -> str: ...
    @property
    def resource(self) -> str: ...


class Cause(NamedTuple):
    """One field that is wrong: `reason` is a CauseType such as FieldValueInvalid."""

    reason: str
    message: str
    field: str = ""


class ApiError(Exception):
    """What the client is told instead of an answer."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        kind: NamedKind | None = None,
        name: str = "",
        causes: Sequence[Cause] = (),
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        details: dict[str, Any] = {}
        if name:
            details["name"] = name
        if kind is not None:
            # As in Kubernetes: an object that is not valid is told by its kind, everything else by the resource.
            details |= {"group": kind.group, "kind": kind.kind if reason == "Invalid" else kind.plural}
        if code == 422 and not causes:
            # kubectl prints the causes of what is invalid, and not the message. The object as a whole is "<nil>", as in
            # Kubernetes.
            causes = (Cause("FieldValueInvalid", message, "<nil>"),)
        if causes:
            details["causes"] = [
                {"reason": cause.reason, "message": cause.message, **({"field": cause.field} if cause.field else {})}
                for cause in causes
            ]
        if retry_after_s:
            details["retryAfterSeconds"] = retry_after_s
        self.body = failure(code, reason, message, details)


def failure(code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": details} if details else {}),
        "code": code,
    }


def success(details: Mapping[str, Any]) -> dict[str, Any]:
    """What is answered where there is no object any more."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(kind: NamedKind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.resource} "{name}" not found', kind, name)


#: On every answer.
HEADERS: Final = {
    "Server": "egressproxy",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def json_response(status: int, body: Mapping[str, Any], content_type: str = "application/json") -> web.Response:
    return web.Response(status=status, body=encoded(body), headers={"Content-Type": content_type})


def refusal(error: ApiError) -> web.Response:
    """The Status that says this error."""
    response = json_response(error.code, error.body)
    if error.retry_after_s:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.code == 401:  # RFC 9110 section 15.5.2
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def read_only(message: str) -> web.Response:
    """405, for a method that would change something (RFC 9110 section 15.5.6)."""
    response = refusal(ApiError(405, "MethodNotAllowed", message))
    response.headers["Allow"] = "GET, HEAD"
    return response
