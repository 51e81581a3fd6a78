"""Answers of the admin server as aiohttp sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.status import ApiError
from egressproxy.model.encoding import encoded

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
    """`body` as JSON."""
    return web.Response(status=status, body=encoded(body), headers={"Content-Type": content_type})


def refusal(error: ApiError) -> web.Response:
    """The Status that says this error."""
    response = json_response(error.code, error.body)
    if error.retry_after_s:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def read_only(message: str) -> web.Response:
    """405, for a method that would change something (RFC 9110 section 15.5.6)."""
    response = refusal(ApiError(405, "MethodNotAllowed", message))
    response.headers["Allow"] = "GET, HEAD"
    return response
