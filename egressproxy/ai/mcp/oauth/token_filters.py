"""McpAuthorization with tokens of the gateway: its own for all clients, or one of each client's.

What the client has sent as its own credential never goes to the server, and no challenge of the server comes back: the
client cannot answer it. A token goes to the server of `resource` alone, in `Authorization`. If the server refuses it
(401), another one is got and sent, once.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Final

from egressproxy.ai.mcp.call import McpCall
from egressproxy.ai.mcp.oauth.caller_store import CallerStore
from egressproxy.ai.mcp.oauth.caller_tokens import AuthorizationRefused, CallerTokens
from egressproxy.ai.mcp.oauth.config import McpAuthorizationConfig, is_loopback, parse_url
from egressproxy.ai.mcp.oauth.discovery import PROTECTED_RESOURCE, Discovery, ServerMetadata
from egressproxy.ai.mcp.oauth.token_client import TokenClient
from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import Filter, FilterContext, OfMessages, Phase, RepeatRequest, UnusableReference
from egressproxy.filters.credentials.backend_credential import (
    CREDENTIAL_PARAMETERS,
    BackendBinding,
    FetchReport,
    client_credentials,
    without_parameters,
)
from egressproxy.filters.credentials.config import Binding
from egressproxy.filters.credentials.oauth2 import secret_of
from egressproxy.filters.credentials.refresher import Fetched, FetchError, Refresher
from egressproxy.model.exchange import CALLERS_OWN, Exchange, StateSlot
from egressproxy.model.fields import CREDENTIAL_FIELDS
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes

#: The shortest text of `encryptionKeyRef`, in bytes.
SHORTEST_KEY: Final = 32
_METADATA: Final = f"/.well-known/{PROTECTED_RESOURCE}".encode()
_PAGE_FIELDS: Final = (
    (b"Content-Type", b"text/html; charset=utf-8"), (b"Cache-Control", b"no-store"),
    (b"Referrer-Policy", b"no-referrer"), (b"X-Content-Type-Options", b"nosniff"),
    (b"Content-Security-Policy", b"default-src 'none'; frame-ancestors 'none'"),
)  # fmt: skip
#: A challenge for a token with more scopes, and these (RFC 6750 section 3).
_LACKS_SCOPE: Final = re.compile(r'\berror[ \t]*=[ \t]*"?insufficient_scope\b')
_SCOPE: Final = re.compile(r'\bscope[ \t]*=[ \t]*"([\x21\x23-\x5b\x5d-\x7e ]{1,2000})"')
#: The `client` of an exchange that the gateway has made itself.
_NOBODY: Final = "-"


class TokenFilter(Filter, ABC):
    """Puts a token into requests for one MCP server."""

    runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))
    sends_credential = True
    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        """Raises UnusableReference for a Secret that does not fit."""
        config: McpAuthorizationConfig = context.config
        url = parse_url(config.resource)
        self._name, self._source = context.name, context.source
        self._resource = config.resource
        self._is_loopback = url.scheme == "http"
        plaintext = self._is_loopback or config.allow_plaintext
        bound = Binding(() if plaintext else (url.host,), path_prefix=url.path.rstrip("/"))
        self._binding = BackendBinding(bound, context.name, context.source, "resource", allow_plaintext=plaintext)
        self._cut = client_credentials(CREDENTIAL_FIELDS)
        self._client = TokenClient(context)
        self._sent: StateSlot[SecretBytes] = StateSlot("mcp token")
        self._renewed: StateSlot[bool] = StateSlot("mcp token renewed")

    @abstractmethod
    def _request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | LocalResponse | None:
        """Send the token. Raises GatewayError."""

    @abstractmethod
    async def _renew(self, exchange: Exchange, refused: SecretBytes) -> SecretBytes | None:
        """Another token than this one; None: there is none. Raises GatewayError."""

    @abstractmethod
    def _without(self, exchange: Exchange) -> LocalResponse:
        """The response to a request that has no token which the server accepts. Raises GatewayError."""

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | LocalResponse | None:
        fields = exchange.request.fields
        fields.cut(self._cut)
        if b"?" in exchange.request.path:
            exchange.request.path = without_parameters(exchange.request.path, CREDENTIAL_PARAMETERS)
        if exchange.request.path.startswith(_METADATA):
            # To clients it would say to authorize themselves, with a server whose tokens do not pass here.
            return None if exchange.client == _NOBODY else LocalResponse(404)
        return self._request(exchange)

    def backend_response(self, exchange: Exchange) -> Awaitable[LocalResponse] | None:
        sent = exchange.state.get(self._sent)
        if sent is not None and exchange.response.status == 401:
            return self._refused(exchange, sent)
        exchange.response.fields.remove(b"www-authenticate")
        return None

    async def _refused(self, exchange: Exchange, sent: SecretBytes) -> LocalResponse:
        was_renewed = exchange.state.get(self._renewed) is not None
        exchange.keep(self._renewed, True)
        fresh = await self._renew(exchange, sent)
        if was_renewed or fresh is None or fresh == sent:
            return self._without(exchange)
        raise RepeatRequest("credential_renewed", "its credential was refused, and is renewed; repeat the request")

    def _send(self, exchange: Exchange, line: SecretBytes) -> None:
        exchange.keep(self._sent, line)
        exchange.request.fields.block += line.reveal()

    def _check(self, exchange: Exchange) -> None:
        """Raises Denied (403) for a backend that is not the server of `resource`."""
        self._binding.check(exchange)
        origin = exchange.backend_origin
        if self._is_loopback and origin is not None and not (origin.is_secure or is_loopback(origin.host)):
            raise Denied(
                Reason.PLAINTEXT_CREDENTIAL,
                f"backend {exchange.backend} is not reached over TLS, and is not on a loopback address as"
                f" {self._resource} is",
                rule=self._source,
                remedy="write the https:// URL of the server in `resource`, and `tls` in the Backend",
            )

    def _missing(self, exchange: Exchange, error: str, retry_s: int = 0) -> GatewayFault:
        return GatewayFault(
            Reason.CREDENTIAL_MISSING,
            f"there is no token for {exchange.backend}",
            status=503,
            rule=self._source,
            remedy="the access log has the reason",
            detail=f"filter {self._name}: {error}",
            retry_after_s=retry_s,
        )


class OwnToken(TokenFilter):
    """Sends one token of the gateway's own for all clients (client credentials)."""

    def __init__(self, context: FilterContext) -> None:
        super().__init__(context)
        self._line: SecretBytes | None = None
        self._server = _ServerFinder(context)
        self._refresher = Refresher(self._fetch, self._keep, FetchReport(context).tell)

    async def _fetch(self) -> Fetched:
        return await self._client.own(await self._server())

    def _keep(self, value: object | None) -> None:
        self._line = SecretBytes(b"\r\nAuthorization: Bearer " + value) if isinstance(value, bytes) else None

    def _request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        self._check(exchange)
        if self._line is None:
            return self._wait(exchange)
        self._send(exchange, self._line)
        return None

    async def _wait(self, exchange: Exchange) -> LocalResponse | None:
        await self._refresher.ready()
        if self._line is None:
            raise self._missing(exchange, self._refresher.error, self._refresher.retry_s)
        self._send(exchange, self._line)
        return None

    async def _renew(self, exchange: Exchange, refused: SecretBytes) -> SecretBytes | None:
        if self._line == refused:
            await self._refresher.renew()
        return self._line

    def _without(self, exchange: Exchange) -> LocalResponse:
        raise self._missing(exchange, "the server refuses the token (401)")

    def forecast(self, exchange: Exchange) -> None:
        """Raises as `backend_request`, but for a token that has to be fetched first."""
        self._check(exchange)

    def close(self) -> None:
        self._refresher.close()
        self._server.close()


class CallerToken(TokenFilter):
    """Sends a token of the client's own, which its user has allowed. Answers at the path of `redirectUri`."""

    def __init__(self, context: FilterContext) -> None:
        super().__init__(context)
        config: McpAuthorizationConfig = context.config
        key = secret_of(context, config.encryption_key_ref)
        if key is not None and len(key) < SHORTEST_KEY:
            why = f"encryptionKeyRef leads to a text of less than {SHORTEST_KEY} bytes"
            raise UnusableReference(why, config.encryption_key_ref)
        self._may_widen = not config.scopes
        self._lacks_key = config.encryption_key_ref is not None and key is None
        self._redirect_uri = config.redirect_uri
        self._path = parse_url(config.redirect_uri).path.encode()
        self._server = _ServerFinder(context)
        counter = context.meter.counter(
            "egress_mcp_authorizations", "Authorizations of callers at MCP servers, and what became of their tokens.",
            ("source", "event"),
        )  # fmt: skip
        store = CallerStore(config.state_folder, f"{context.source} {config.resource}", key)

        def count(event: str) -> None:
            counter.add(1, context.source, event)

        self._tokens = CallerTokens(store, self._client, config.redirect_uri, self._server, count)

    # --- requests to the server ------------------------------------------------------------------------------------
    def _request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | LocalResponse | None:
        if exchange.path == self._path:
            return self._serve(exchange)
        self._check(exchange)
        caller = self._caller(exchange)
        exchange.keep(CALLERS_OWN, True)
        try:
            found = self._tokens.held(caller)
        except FetchError as error:
            raise self._missing(exchange, str(error)) from None
        if found is None:
            return self._without(exchange)
        if found.due_at <= time.time():
            return self._with_fresh(exchange, caller)
        self._send(exchange, found.line)
        return None

    async def _with_fresh(self, exchange: Exchange, caller: str) -> LocalResponse | None:
        try:
            found = await self._tokens.renewed(caller)
        except FetchError as error:
            raise self._missing(exchange, str(error)) from None
        if found is None:
            return self._without(exchange)
        self._send(exchange, found.line)
        return None

    def backend_response(self, exchange: Exchange) -> Awaitable[LocalResponse] | None:
        if exchange.response.status == 403 and self._may_widen and exchange.state.get(self._sent) is not None:
            challenges = b", ".join(exchange.response.fields.get_all(b"www-authenticate")).decode("latin-1")
            found = _SCOPE.search(challenges) if _LACKS_SCOPE.search(challenges) else None
            if found is not None:
                return self._widen(exchange, tuple(found[1].split()))
        return super().backend_response(exchange)

    async def _widen(self, exchange: Exchange, scopes: tuple[str, ...]) -> LocalResponse:
        try:
            await self._tokens.widen(self._caller(exchange), scopes)
        except FetchError as error:
            raise self._missing(exchange, str(error)) from None
        return self._without(exchange)

    async def _renew(self, exchange: Exchange, refused: SecretBytes) -> SecretBytes | None:
        try:
            found = await self._tokens.renewed(self._caller(exchange), refused)
        except FetchError as error:
            raise self._missing(exchange, str(error)) from None
        return found.line if found is not None else None

    def _without(self, exchange: Exchange) -> LocalResponse:
        """Have the user allow access. Raises Denied for clients that have no other way to be told."""
        error, call = self._required(), McpCall.of(exchange)
        result = call.ask_to_open(exchange, self._redirect_uri, error.message) if call is not None else None
        if result is None:
            raise error
        return LocalResponse(200, ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store")), result)

    def forecast(self, exchange: Exchange) -> None:
        """Raises what the client gets until its user has allowed access."""
        if exchange.path == self._path:
            self._caller(exchange)
            return
        self._check(exchange)
        try:
            if self._tokens.held(self._caller(exchange)) is None:
                raise self._required()
        except FetchError as error:
            raise self._missing(exchange, str(error)) from None

    def close(self) -> None:
        self._server.close()

    def _caller(self, exchange: Exchange) -> str:
        """Raises Denied (403) for a client that is not known: nobody's tokens are those of all. One whom another
        gateway does not know has the name of that.
        """
        identity, name = exchange.identity, exchange.identity.name
        if self._lacks_key:
            raise self._missing(exchange, "the Secret of encryptionKeyRef is missing")
        if name == "-" or (identity.origin_gateway != "-" and identity.source != "gateway"):
            raise Denied(
                Reason.AUTHORIZATION_REQUIRED,
                f"backend {exchange.backend} needs a token of each client, and the gateway does not know this one",
                rule=self._source,
                remedy="have an EgressPolicy say in `identity` how this listener knows its clients",
            )
        return name

    def _required(self) -> Denied:
        message = f"access to {self._resource} has to be allowed once: open {self._redirect_uri} in a browser"
        remedy = "sign in there as this client of the gateway, allow access, and send the request again"
        return Denied(Reason.AUTHORIZATION_REQUIRED, message, rule=self._source, remedy=remedy)

    # --- requests of browsers --------------------------------------------------------------------------------------
    async def _serve(self, exchange: Exchange) -> LocalResponse:
        """GET begins or ends an authorization; DELETE drops the tokens. Always of the client who asks, and of no other:
        who opens a URL that was begun by another client does not give that one anything.
        """
        caller = self._caller(exchange)
        method, (_, _, query) = exchange.method, exchange.request.path.partition(b"?")
        fetched = exchange.request.fields.get(b"sec-fetch-dest")
        if method == b"GET" and fetched not in (b"document", None):  # Fetch Metadata: an image of another page, say
            return _page(403, "This page is for users: open it by itself.")
        try:
            if method == b"DELETE" and not query:
                was_there = await self._tokens.forget(caller)
                return LocalResponse(204 if was_there else 404)
            if method != b"GET":
                return _page(405, "Only GET and DELETE are served here.", (b"Allow", b"GET, DELETE"))
            if not query:
                url = await self._tokens.begin(caller)
                return _page(302, "Continue at the authorization server.", (b"Location", url.encode()))
            await self._tokens.finish(caller, query.decode("latin-1"))
        except AuthorizationRefused as refused:
            return _page(400, f"{refused} Open this page again without what is behind the question mark.")
        except FetchError as error:
            raise self._missing(exchange, str(error)) from None
        return _page(200, "Access is allowed. Go back to your client, and repeat what you were about to do.")


class _ServerFinder:
    """Finds the authorization server when it is first needed, and again every hour."""

    __slots__ = ("_found", "_refresher")

    def __init__(self, context: FilterContext) -> None:
        self._found: ServerMetadata | None = None

        def tell(error: str, _left_s: float) -> None:
            if error:
                context.notices.warning("McpAuthorizationFailed", error)

        self._refresher = Refresher(Discovery(context).fetch, self._keep, tell)

    def _keep(self, value: object | None) -> None:
        self._found = value if isinstance(value, ServerMetadata) else None

    async def __call__(self) -> ServerMetadata:
        """Raises FetchError."""
        await self._refresher.ready()
        if self._found is None:
            raise FetchError(self._refresher.error)
        return self._found

    def close(self) -> None:
        self._refresher.close()


def _page(status: int, text: str, *fields: tuple[bytes, bytes]) -> LocalResponse:
    """`text` has nothing of the request."""
    body = f"<!DOCTYPE html><html lang=en><title>egressproxy</title><p>{text}</p></html>\n"
    return LocalResponse(status, (*_PAGE_FIELDS, *fields), body.encode())
