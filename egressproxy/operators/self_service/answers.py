"""What is answered at http://egress.internal: the page at /, JSON at /access and /check?url=, an MCP server at /mcp.

The caller is who asks: everything here is about its own listener and identity, never about another's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ceil
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from egressproxy.errors import Denied, GatewayError, GatewayFault, LimitExceeded, Reason
from egressproxy.filters.chain import approvals
from egressproxy.gateway.backends.buffered_body import BufferedRequest
from egressproxy.gateway.exchange.admission import check_grant, decide_names
from egressproxy.gateway.products import SelfService, Waiting
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import TOKEN, Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead
from egressproxy.model.own_names import OWN_HOST
from egressproxy.model.per_client_quota import AttemptLimiter, client_of, identity_of
from egressproxy.operators.self_service.access import access_of
from egressproxy.operators.self_service.mcp_server import ACCESS, answer_message
from egressproxy.operators.self_service.page import POLICY, page

#: The route of a request or tunnel comes first. Raises GatewayError where the caller's listener does not let it pass.
Decide = Callable[[ActiveListener, Authority, RequestHead], tuple[Route, *tuple[object, ...]]]

#: Of a message to the MCP server, in bytes; and of a URL that is asked about.
MAX_MESSAGE: Final = 64 * 1024
#: Requests of one client in so many seconds. On a listener of many routes each takes some milliseconds.
MAX_ASKED: Final = 100
ASKED_S: Final = 10.0
MAX_URL: Final = 4096
MAX_METHOD: Final = 32
OWN_ORIGIN: Final = b"http://egress.internal"
_PORTS: Final = {"http": 80, "https": 443}
_USUAL: Final = (
    (b"Cache-Control", b"no-store"), (b"X-Content-Type-Options", b"nosniff"), (b"Referrer-Policy", b"no-referrer"),
    (b"Vary", b"Accept"),
)  # fmt: skip


async def nothing_waits(_identity: str) -> list[dict[str, Any]]:
    """Where no request waits for a person."""
    return []


class SelfServiceAnswers(SelfService):
    """Answers the clients of one data plane."""

    def __init__(self) -> None:
        self.waiting = nothing_waits
        self._asked = AttemptLimiter(MAX_ASKED, ASKED_S)

    async def answer(
        self, exchange: Exchange, listener: ActiveListener, head: RequestHead, held: BufferedRequest
    ) -> LocalResponse:
        refuse_flood(exchange, self._asked)
        return await answer_caller(exchange, listener, head, held, decide_names, self.waiting)


def refuse_flood(exchange: Exchange, asked: AttemptLimiter) -> None:
    """Count a request for egress.internal. Raises LimitExceeded (429) for a client that has asked too often."""
    client, now = client_of(exchange), monotonic()
    wait_s = asked.wait_s(client, now)
    if wait_s:
        raise LimitExceeded(Reason.REQUEST_RATE, f"this client asks {OWN_HOST} too often", retry_after_s=ceil(wait_s))
    asked.add(client, now)


async def answer_caller(
    exchange: Exchange,
    listener: ActiveListener,
    head: RequestHead,
    held: BufferedRequest,
    decide: Decide,
    waiting: Waiting,
) -> LocalResponse:
    """The response to a request for egress.internal. `listener`: as it is for the caller; `held`: the request's body.

    Raises GatewayFault (404) on a reverse listener for a client that is not known, which gets what it would get there
    without this; LimitExceeded (413) for a message that is too long.
    """
    if not listener.is_forward and exchange.identity is ANONYMOUS:
        raise GatewayFault(Reason.NO_ROUTE, "no route for this request to egress.internal on this listener", status=404)
    path, _, query = head.path.partition(b"?")
    if path == b"/mcp":
        return await _of_mcp(exchange, listener, head, held, decide, waiting)
    if head.method not in (b"GET", b"HEAD"):
        return _refusal(405, "only GET and HEAD are served here", ((b"Allow", b"GET, HEAD"),))
    if path not in (b"/", b"/access", b"/check"):
        return _refusal(404, "there are /, /access, /check?url= and /mcp here")
    if path == b"/check":
        try:
            return _json(check(exchange, listener, *_asked(query), decide))
        except ValueError as error:
            return _refusal(400, str(error))
    access = access_of(exchange, listener, await _waiting_of(exchange, waiting))
    if path == b"/access" or b"text/html" not in (head.fields.get(b"accept") or b""):
        return _json(access)
    checked = None
    try:
        if query:
            checked = check(exchange, listener, *_asked(query), decide)
    except ValueError as error:
        checked = {"url": "", "allowed": False, "reason": "not understood", "message": str(error)}
    fields = ((b"Content-Type", b"text/html; charset=utf-8"), (b"Content-Security-Policy", POLICY), *_USUAL)
    return LocalResponse(200, fields, page(access, checked))


async def _waiting_of(exchange: Exchange, waiting: Waiting) -> list[dict[str, Any]] | None:
    """Of a client that is not known nothing: another one may have its address."""
    return await waiting(identity_of(exchange)) if exchange.identity.name != ANONYMOUS.name else []


def check(exchange: Exchange, listener: ActiveListener, url: str, method: str, decide: Decide) -> dict[str, Any]:
    """Whether policy lets the caller of this listener ask for this URL: by names alone, as admission decides; nothing
    is resolved or sent. `waits` where a person has to approve it. Raises ValueError for what is no URL of http or
    https, and for what is no method. Of a tunnel that is passed on unread the host alone is decided on.
    """
    if not TOKEN.fullmatch(method.encode("ascii", "replace")) or len(method) > MAX_METHOD or method == "CONNECT":
        raise ValueError("write the method of the request, such as POST")
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"the URL has to be ASCII without blanks, and of at most {MAX_URL} characters")
    try:
        parts = urlsplit(url)
        default = _PORTS[parts.scheme]
        authority = parse_authority(parts.netloc.encode(), default)
    except (KeyError, ValueError, AuthorityError):
        raise ValueError("write the URL as http://host/path or https://host/path, without a user") from None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    cas = listener.certificates_for(authority.host) if parts.scheme == "https" and listener.is_forward else None
    is_tunnel = parts.scheme == "https" and listener.is_forward and cas is None
    head = RequestHead(b"CONNECT" if is_tunnel else method.encode(), target.encode(), Fields())
    asked = Exchange(exchange.client, exchange.gateway, exchange.listener, exchange.started_at, exchange.identity)
    asked.request, asked.method, asked.authority = head, head.method, authority
    asked.path, asked.is_tunnel = parts.path.encode() or b"/", is_tunnel
    try:
        if cas is not None:
            cas.for_client(exchange.identity)
        route = decide(listener, authority, head)[0]
        if exchange.identity.grant is not None:
            check_grant(exchange.identity.grant, asked, route)
        if route.choices and all(each.cluster is None for each in route.choices):
            raise route.choices[0].fault(route.name, route.rule)
    except GatewayError as error:
        error.__traceback__ = None  # its frames hold the listener
        remedy = error.remedy if isinstance(error, Denied) else ""
        return {
            "url": url, "allowed": False, "reason": error.reason.value, "message": error.message, "remedy": remedy,
        }  # fmt: skip
    waits = [says for _, says in approvals(route.chain, asked)]
    return {"url": url, "allowed": True, **({"waits": waits[0]} if waits else {})}


async def _of_mcp(
    exchange: Exchange,
    listener: ActiveListener,
    head: RequestHead,
    held: BufferedRequest,
    decide: Decide,
    waiting: Waiting,
) -> LocalResponse:
    """Streamable HTTP: a message by POST, its answer as JSON. There is no stream to open, and no session to end."""
    origin = head.fields.get(b"origin")
    if origin is not None and origin != OWN_ORIGIN:  # a web page of somebody else (MCP, Streamable HTTP, Security)
        return _refusal(403, "a web page of another origin may not ask")
    if head.method != b"POST":
        return _refusal(405, "messages come by POST", ((b"Allow", b"POST"),))
    if head.body > MAX_MESSAGE:
        message = f"the message is longer than {MAX_MESSAGE} bytes"
        raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True)
    body = await held.take_body(MAX_MESSAGE)
    waits = await _waiting_of(exchange, waiting) if ACCESS.encode() in body else []
    answer = answer_message(
        body, lambda: access_of(exchange, listener, waits), lambda url, of: check(exchange, listener, url, of, decide)
    )
    return _json(answer) if answer is not None else LocalResponse(202, _USUAL)


def _asked(query: bytes) -> tuple[str, str]:
    """The parameters `url` and `method` (GET). Raises ValueError for no URL, and for several of one."""
    found = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=8)
    urls, methods = found.get("url", []), found.get("method", ["GET"])
    if len(urls) != 1 or len(methods) != 1:
        raise ValueError("say which URL, once: /check?url=https://…, and &method= at most once")
    return urls[0], methods[0]


def _json(values: dict[str, Any]) -> LocalResponse:
    return LocalResponse(200, ((b"Content-Type", b"application/json"), *_USUAL), json.dumps(values).encode() + b"\n")


def _refusal(status: int, message: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> LocalResponse:
    body = json.dumps({"message": message}).encode() + b"\n"
    return LocalResponse(status, ((b"Content-Type", b"application/json"), *_USUAL, *more), body)
