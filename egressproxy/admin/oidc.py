"""The login of the admin page by OpenID Connect: a code with PKCE of a public client, and the ID token as bearer token.

The gateway exchanges the code, so that the page asks no other address than its own. It verifies the ID token for every
request; nothing is kept for a person. Sources: OpenID Connect Core sections 3.1 and 3.1.3.7, Discovery section 4,
RFC 7636 (PKCE), RFC 9700 (best practices).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from math import inf
from time import monotonic, time
from typing import Final
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from egressproxy.admin.status import ApiError
from egressproxy.identity.credentials import CredentialRefused, UnknownKey
from egressproxy.identity.key_sets import MAX_KEY_SET_BYTES, KeySet, read_key_set
from egressproxy.identity.tokens import TokenVerifier
from egressproxy.ir.identity import TokenIssuerIR

log = logging.getLogger("egressproxy")

#: Seconds until keys are fetched anew, are believed no more, and between attempts (as `gateway.identity.key_source`).
REFRESH_S: Final = 300.0
MAX_AGE_S: Final = 24 * 3600.0
PAUSE_S: Final = 10.0
TIMEOUT_S: Final = 5.0
GROUP: Final = "group:"
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class OidcLogin:
    """People whom this issuer knows. `allowed`: email addresses, and groups as "group:NAME"."""

    def __init__(self, issuer: str, client_id: str, allowed: Iterable[str]) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._allowed = frozenset(each if each.startswith(GROUP) else each.lower() for each in allowed)
        self._verifier = TokenVerifier([TokenIssuerIR(issuer, (client_id,))], ("email", "email_verified"))
        self._endpoints: dict[str, str] = {}
        self._keys: dict[str, KeySet] = {}
        self._fetched_at = self._tried_at = -inf
        self._turn = asyncio.Lock()

    async def settings(self) -> Mapping[str, str]:
        """What the page begins a login with. Raises ApiError(503)."""
        await self._refresh(REFRESH_S)
        return {"authorize": self._endpoints["authorization_endpoint"], "client_id": self._client_id}

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        """The ID token for a code, of a person who may come in. Raises ApiError(401, 403, 503)."""
        await self._refresh(REFRESH_S)
        form = {
            "grant_type": "authorization_code", "code": code, "code_verifier": verifier,
            "redirect_uri": redirect_uri, "client_id": self._client_id,
        }  # fmt: skip
        try:
            token = json.loads(await _call(self._endpoints["token_endpoint"], form))["id_token"]
        except (ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            log.warning("admin: %s gives no token for a code: %s", self._issuer, _why(error))
            raise ApiError(401, "Unauthorized", "the issuer gives no token: sign in again") from None
        await self.check(str(token).encode("utf-8", "replace"))
        return str(token)

    async def check(self, token: bytes) -> None:
        """Return for the ID token of a person who may come in. Raises ApiError(401, 403, 503)."""
        await self._refresh(REFRESH_S)
        try:
            try:
                believed = self._verifier.verify(token, self._keys, time())
            except UnknownKey:
                await self._refresh(PAUSE_S)  # it may have new keys
                believed = self._verifier.verify(token, self._keys, time())
        except CredentialRefused as error:
            raise ApiError(401, "Unauthorized", str(error)) from None
        claims = dict(believed.identity.claims)
        names = {f"{GROUP}{each}" for each in believed.identity.groups}
        email = claims.get("email", "").lower()
        if claims.get("email_verified") == "true" and not email.startswith(GROUP):  # else its owner may have typed it
            names.add(email)
        if not names & self._allowed:
            raise ApiError(403, "Forbidden", "this person is not allowed here: see --ui-oidc-allow")

    async def _refresh(self, age_s: float) -> None:
        """Have endpoints and keys that are at most so old, or those from before. Raises ApiError(503) without any."""
        async with self._turn:
            now = monotonic()
            if now - self._fetched_at < age_s or (self._keys and now - self._tried_at < PAUSE_S):
                return
            self._tried_at = now
            try:
                await self._fetch()
            except (ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError) as error:
                log.warning("admin: the issuer %s does not answer as it should: %s", self._issuer, _why(error))
                if now - self._fetched_at > MAX_AGE_S:
                    self._keys.clear()
                    raise ApiError(503, "ServiceUnavailable", f"the issuer {self._issuer} does not answer") from None

    async def _fetch(self) -> None:
        document = json.loads(await _call(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
        if document["issuer"] != self._issuer:
            raise ValueError(f"its document names another issuer, {str(document['issuer'])[:200]!r}")
        endpoints = {name: str(document[name]) for name in _ENDPOINTS}
        for name, url in endpoints.items():
            if not is_safe(url):
                raise ValueError(f"its {name} is no URL with https")
        self._keys[self._issuer] = read_key_set(await _call(endpoints["jwks_uri"]))
        self._endpoints, self._fetched_at = endpoints, monotonic()


def is_safe(url: str) -> bool:
    """Whether nobody on the way can read or change what is asked there: https, or this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))
    )


async def _call(url: str, form: Mapping[str, str] | None = None) -> bytes:
    """The body of a good answer, of a bounded size. Raises ClientError, OSError, TimeoutError, ValueError."""
    async with (
        ClientSession(timeout=ClientTimeout(TIMEOUT_S)) as session,
        session.request("GET" if form is None else "POST", url, data=form, allow_redirects=False) as answer,
    ):
        body = b""
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > MAX_KEY_SET_BYTES:
                raise ValueError(f"more than {MAX_KEY_SET_BYTES} bytes")
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return body


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
