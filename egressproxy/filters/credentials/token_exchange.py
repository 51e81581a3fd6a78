"""TokenExchangeInjector: sends what an authorization server issues for the caller's own token, never that token.

The token is the one by which the caller was authenticated for this request. A caller without one is refused, and so is
every request for which nothing was issued. Which backends may be sent tokens is for the policy that has `identity` to
say (`exchangeAt`), since who writes a Backend could have them sent anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.base import FilterContext, Phase
from egressproxy.filters.credentials.caller_config import TokenExchange
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.credential_injector import CredentialInjector
from egressproxy.filters.credentials.exchanged_tokens import OF_CALLER, ExchangedTokens, ExchangeReport
from egressproxy.filters.credentials.oauth2 import (
    JWT_BEARER,
    TOKEN_EXCHANGE,
    TOKEN_TYPES,
    asked_as_client,
    key_of,
    secret_of,
    token_file,
)
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.token_endpoint import token_of
from egressproxy.model.caller_identity import CallerToken
from egressproxy.model.exchange import CALLERS_OWN, Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes


class TokenExchangeInjector(CredentialInjector):
    """Has a value only while a request is written: what was issued is kept by the caller's token."""

    def __init__(self, context: FilterContext) -> None:
        super().__init__(context)
        config: CredentialInjectorConfig = context.config
        assert config.token_exchange is not None
        self._endpoint = context.calls.get(config.token_exchange.token_endpoint.backend_ref.label)
        exchange = exchange_of(context, config.token_exchange)
        self._issued = ExchangedTokens(exchange, ExchangeReport(context), config.token_exchange.max_callers)
        self.runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """As CredentialInjector. Raises Denied(CREDENTIAL_NOT_FOR_CALLER, 403) for a caller whose token must not be
        exchanged, or was refused; GatewayFault(CREDENTIAL_MISSING, 502) if nothing was issued.
        """
        self._binding.check(exchange)
        token = self._token_of(exchange)
        exchange.keep(CALLERS_OWN, True)
        value = self._issued.held(token)
        if value is None:
            return self._exchanged(exchange, token)
        self._send(exchange, value)
        return None

    def backend_response(self, exchange: Exchange) -> None:
        if exchange.response.status == 401 and exchange.identity.token is not None:
            self._issued.refused(exchange.identity.token)

    def forecast(self, exchange: Exchange) -> None:
        """Raises as `BackendBinding`: whether a token is exchanged depends on the token."""
        self._binding.check(exchange)

    def close(self) -> None:
        self._issued.close()

    def _token_of(self, exchange: Exchange) -> CallerToken:
        token = exchange.identity.token
        if token is None:
            raise self._refused(
                exchange,
                "exchanges the token of the client, and this one has shown none that may be exchanged",
                "have the client show a token, and list the token endpoint in identity.token.exchangeAt of the policy",
            )
        if self._endpoint is not None and self._endpoint.backend not in token.exchanged_at:
            raise self._refused(
                exchange,
                f"must not send tokens of clients to backend {self._endpoint.backend}",
                "list that backend in identity.token.exchangeAt of the policy that has `token`",
            )
        return token

    async def _exchanged(self, exchange: Exchange, token: CallerToken) -> LocalResponse | None:
        try:
            value = await self._issued.issued(token, exchange.identity.key)
        except FetchError as error:
            detail = f"filter {self._name}: {error}"
            if error.code in OF_CALLER:
                raise self._refused(
                    exchange, "has not got a token for this client: the authorization server has refused it",
                    "ask who runs the authorization server what this client may have", detail,
                ) from None  # fmt: skip
            raise GatewayFault(
                Reason.CREDENTIAL_MISSING,
                f"the token of the client was not exchanged for one of {exchange.backend}",
                status=502,
                rule=self._source,
                remedy="the access log has the reason",
                detail=detail,
            ) from None
        self._send(exchange, value)
        return None

    def _send(self, exchange: Exchange, value: SecretBytes) -> None:
        # Between these lines no other request runs.
        try:
            self._keep(value.reveal())
            super().backend_request(exchange)
        finally:
            self._keep(None)

    def _refused(self, exchange: Exchange, why: str, remedy: str, detail: str = "") -> Denied:
        return Denied(
            Reason.CREDENTIAL_NOT_FOR_CALLER, f"filter {self._name} of {exchange.backend} {why}", rule=self._source,
            remedy=remedy, detail=detail,
        )  # fmt: skip


def exchange_of(context: FilterContext, config: TokenExchange) -> Callable[[bytes], Awaitable[Fetched]]:
    """What exchanges a token: at one endpoint, and with `jwtBearer` what that issues at another one. A missing Secret
    is a failed exchange. Raises UnusableReference for a bad key.
    """
    ask = asked_as_client(context, config, key_of(context, config.private_key_ref, config.key_id))
    actor = config.actor_token
    actors_secret = secret_of(context, actor.secret_ref) if actor is not None else None
    requested = TOKEN_TYPES.get(config.requested_token_type or "")
    assert config.subject_token_type is not None
    subject_type = TOKEN_TYPES[config.subject_token_type]
    grant = config.jwt_bearer
    ask_with_grant = None
    if grant is not None:
        ask_with_grant = asked_as_client(context, grant, key_of(context, grant.private_key_ref, grant.key_id))

    async def exchange(token: bytes) -> Fetched:
        form = [("grant_type", TOKEN_EXCHANGE)]
        if requested is not None:
            form.append(("requested_token_type", requested))
        form += [("audience", each) for each in config.audience]
        form += _targets(config.resource, config.scopes)
        form += [("subject_token", token.decode("ascii")), ("subject_token_type", subject_type)]
        if actor is not None:
            if actors_secret is None and not actor.token_file:
                raise FetchError("the Secret of actorToken.secretRef is missing")
            shown = token_file(actor.token_file) if actors_secret is None else actors_secret.reveal().decode("latin-1")
            form += [("actor_token", shown), ("actor_token_type", TOKEN_TYPES[actor.token_type])]
        answer = await ask(form)
        issued = _issued(answer, config, requested)
        if ask_with_grant is None or grant is None:
            return issued
        assert isinstance(issued.value, bytes)
        if issued.value == token:
            raise FetchError("the server has issued the caller's own token, which is not sent on")
        form = [("grant_type", JWT_BEARER), ("assertion", issued.value.decode("ascii"))]
        answer = await ask_with_grant(form + _targets(grant.resource, grant.scopes))
        granted = token_of(answer, assumed_s=config.assumed_life_seconds)
        if granted.value in (token, issued.value):
            raise FetchError("the server has issued the assertion that it was shown, which is no token for a backend")
        return granted

    return exchange


def _targets(resource: tuple[str, ...], scopes: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("resource", each) for each in resource] + ([("scope", " ".join(scopes))] if scopes else [])


def _issued(answer: dict[str, Any], config: TokenExchange, requested: str | None) -> Fetched:
    """The token of an answer to an exchange (RFC 8693 section 2.2.1). Raises FetchError."""
    kind = answer.get("issued_token_type")
    if requested is not None and kind != requested:
        raise FetchError(f"the server has not issued what was asked for, a {config.requested_token_type}")
    if requested is None and kind not in (TOKEN_TYPES["AccessToken"], TOKEN_TYPES["Jwt"]):
        raise FetchError("the server has issued something that is no access token; write `requestedTokenType`")
    # What is no access token has the type N_A.
    is_other = requested not in (None, TOKEN_TYPES["AccessToken"]) and str(answer.get("token_type")).lower() == "n_a"
    return token_of(answer, bearer=not is_other, assumed_s=config.assumed_life_seconds)
