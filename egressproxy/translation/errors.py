"""Untranslatable: a request that cannot be said in another API; BadAnswer; and the shape of errors in each API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from egressproxy.ai_apis.strict_json import Unreadable, dumps, loads
from egressproxy.translation.apis import Api

__all__ = ["BadAnswer", "Untranslatable", "error_body", "error_in", "error_object"]

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


class Untranslatable(Exception):
    """A request that cannot be said in the other API; it is answered with 400, in the client's form.

    `field` is the path of the field in the client's JSON (`messages[2].content[0].file`), or empty where the whole body
    is meant; `why` is the rest of the sentence.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}" if field else why)
        self.field = field
        self.why = why


class BadAnswer(Exception):
    """A backend's answer that cannot be read, or holds what the client's API has no form for: a 502 for the client."""


def _error_type(api: Api, status: int) -> str:
    """The word with which this API tells an error of this status."""
    if api is Api.ANTHROPIC:
        return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(api: Api, status: int, message: str, field: str | None = None, code: str | None = None) -> bytes:
    """The body of an error with this status in the shape of `api`: JSON, for `content-type: application/json`.

    `field` is the field of the request that is at fault. Anthropic's shape has no place of its own for it, nor for
    `code`: there the message has to name it.
    """
    return dumps(error_object(api, status, message, field, code))


def error_object(
    api: Api, status: int, message: str, field: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """What `error_body` writes, as an object: events of streams have it, too."""
    kind = _error_type(api, status)
    if api is Api.ANTHROPIC:
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def error_in(body: bytes) -> tuple[str | None, str | None]:
    """The message and the code of a provider's error; None where it has none. All three APIs have the same place."""
    try:
        error = loads(body)["error"]
        message, code = error["message"], error.get("code")
    except (Unreadable, LookupError, TypeError, AttributeError):
        return None, None
    return (message if type(message) is str else None, code if type(code) is str else None)
