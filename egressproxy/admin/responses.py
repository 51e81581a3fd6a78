"""Answers of the admin server as aiohttp sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.status import ApiError

__all__ = ["HEADERS", "encoded", "json_response", "refusal"]

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


def encoded(body: Mapping[str, Any]) -> bytes:
    # A value that JSON does not know is never shown: it might be one that must not be.
    return json.dumps(body, indent=1, default=lambda _value: "redacted").encode() + b"\n"


def json_response(status: int, body: Mapping[str, Any], content_type: str = "application/json") -> web.Response:
    return web.Response(status=status, body=encoded(body), headers={"Content-Type": content_type})


def refusal(error: ApiError) -> web.Response:
    response = json_response(error.code, error.body)
    if error.retry_after_s:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response
