"""A token endpoint: what it is asked over a call of the gateway's own, and what is made of its answer (RFC 6749)."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from egressproxy.filters.calls import CallAnswer, CallFailed, FilterCall
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.model.encoding import json_object

#: For one answer of a token endpoint, in seconds.
TIMEOUT_S: Final = 15.0
#: When to ask again where an answer does not say how long its token is valid, in seconds.
UNKNOWN_LIFE_S: Final = 300.0
#: How long a token is used whose answer does not say how long it is valid, in seconds.
ASSUMED_LIFE_S: Final = 3600.0
#: An error code of RFC 6749 section 5.2, which may be shown; a description may repeat what was sent.
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")
#: A token that a field can have (RFC 6750 section 2.1, and what goes beyond it in practice).
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}")
#: Error codes by which servers say that they do not know who asks, or miss a parameter (RFC 6749 section 5.2).
_UNKNOWN_CLIENT: Final = ("invalid_client", "unauthorized_client", "invalid_request")

Form = Sequence[tuple[str, str]]


def checked_call(call: FilterCall | None, *, allow_plaintext: bool) -> FilterCall:
    """The call, if credentials may be sent over it. Raises FetchError."""
    if call is None or call.backend == "-":
        raise FetchError("the backend of the token endpoint cannot be used: see the status of the object")
    if not (call.is_verified or allow_plaintext):
        raise FetchError(
            f"backend {call.backend} of the token endpoint is not reached over verified TLS: add `tls` to it"
        )
    return call


async def answer_of(
    call: FilterCall, method: bytes, path: str, fields: Iterable[tuple[bytes, bytes]], body: bytes = b""
) -> CallAnswer:
    """What this backend answers, of whatever status. Raises FetchError."""
    try:
        return await call.request(method, path.encode(), fields, body, timeout_s=TIMEOUT_S)
    except CallFailed as failed:
        raise FetchError(str(failed)) from None


class TokenRequests:
    """Requests of one client to its authorization server. Beside Basic some servers refuse `client_id` in the form, as
    a second way to authenticate (RFC 6749 section 2.3), and others want it there: it follows after a refusal.
    """

    __slots__ = ("_is_named",)

    def __init__(self) -> None:
        self._is_named = False

    async def send(
        self, call: FilterCall, path: str, form: Form, client_id: str, basic: Sequence[tuple[bytes, bytes]]
    ) -> CallAnswer:
        """The answer of whatever status. `basic`: nothing where the form has all that is needed. Raises FetchError."""
        lines = [(b"accept", b"application/json"), *basic, (b"content-type", b"application/x-www-form-urlencoded")]
        named = [*form, ("client_id", client_id)] if basic else form
        answer = await answer_of(call, b"POST", path, lines, urlencode(named if self._is_named else form).encode())
        if not basic or self._is_named or answer.status < 400:
            return answer
        if _error_of(answer) in _UNKNOWN_CLIENT:
            answer = await answer_of(call, b"POST", path, lines, urlencode(named).encode())
            # A code may be refused now, since the first request has used it up: the next one is to succeed.
            self._is_named = answer.status < 400 or _error_of(answer) not in (None, *_UNKNOWN_CLIENT)
        return answer


def _error_of(answer: CallAnswer) -> object:
    return (json_object(answer.body) or {}).get("error")


async def ask_json(
    call: FilterCall,
    path: str,
    *,
    form: Form | None = None,
    document: object = None,
    fields: Iterable[tuple[bytes, bytes]] = (),
    method: bytes = b"POST",
) -> dict[str, Any]:
    """Ask with a form, or with a JSON document; the object that is the answer. Raises FetchError.

    What it says of a failure is the status and the error code: never what was sent, or the rest of the answer.
    """
    body, kind = b"", b""
    if form is not None:
        body, kind = urlencode(form).encode(), b"application/x-www-form-urlencoded"
    elif document is not None:
        body, kind = json.dumps(document).encode(), b"application/json"
    lines = [(b"accept", b"application/json"), *fields, *([(b"content-type", kind)] if kind else ())]
    return json_of(call, await answer_of(call, method, path, lines, body))


def json_of(call: FilterCall, answer: CallAnswer, status: int = 200) -> dict[str, Any]:
    """The object that is an answer of this status. Raises FetchError, as `ask_json`."""
    found = json_object(answer.body)
    if answer.status != status:
        said = found.get("error") if found is not None else None
        code = said if isinstance(said, str) and _ERROR_CODE.fullmatch(said) else ""
        shown = f" ({code})" if code else ""
        raise FetchError(f"backend {call.backend} answered with {answer.status}{shown} for a token", code=code)
    if found is None:
        raise FetchError(f"backend {call.backend} answered a request for a token with no JSON object")
    return found


def token_of(
    answer: dict[str, Any], name: str = "access_token", *, bearer: bool = True, assumed_s: float = ASSUMED_LIFE_S
) -> Fetched:
    """The token of an answer, and how long it is valid. Raises FetchError.

    `bearer`: it has to be a bearer token (RFC 6749 section 7.1). `assumed_s`: how long it is used where the answer does
    not say (RFC 6749 section 5.1: the server should document that then).
    """
    token, kind = answer.get(name), answer.get("token_type", "Bearer")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise FetchError(f"the answer has no usable {name}")
    if bearer and (not isinstance(kind, str) or kind.lower() != "bearer"):
        raise FetchError("the token is not a bearer token")
    expires_in = answer.get("expires_in")
    if expires_in is None:
        return Fetched(token.encode(), assumed_s, min(UNKNOWN_LIFE_S, assumed_s / 2))
    return Fetched(token.encode(), life_of(expires_in))


def life_of(expires_in: object) -> float:
    """`expires_in` in seconds, which some servers write as a text. Raises FetchError."""
    try:
        life = (
            float(expires_in)
            if isinstance(expires_in, int | float | str) and not isinstance(expires_in, bool)
            else math.nan
        )
    except ValueError:
        life = math.nan
    if not 0 < life < math.inf:
        raise FetchError("the answer has an expires_in that is not a number of seconds")
    return life


def seconds_until(time_text: object, name: str) -> float:
    """The seconds to this RFC 3339 time, which the answer has as `name`. Raises FetchError."""
    try:
        left = datetime.fromisoformat(str(time_text)).timestamp() - time.time()
    except ValueError:
        left = 0.0
    if left <= 0:
        raise FetchError(f"the answer has no {name} in the future")
    return left
