"""The login of the admin page by OpenID Connect: a code with PKCE of a public client, and the ID token as bearer token.

The gateway exchanges the code, so that the page asks no other address than its own. It verifies the ID token for every
request; nothing is kept for a person. Sources: OpenID Connect Core sections 3.1 and 3.1.3.7, Discovery section 4,
RFC 7636 (PKCE), RFC 9700 (best practices).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from math import inf
from time import monotonic, time
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from egressproxy.admin.status import ApiError
from egressproxy.identity.credentials import CredentialRefused, UnknownKey
from egressproxy.identity.key_sets import MAX_KEY_SET_BYTES, KeySet, read_key_set
from egressproxy.identity.tokens import TokenVerifier
from egressproxy.ir.identity import TokenIssuerIR
from egressproxy.model.encoding import json_object

log = logging.getLogger("egressproxy")

#: Seconds until keys are fetched anew, are believed no more, and between attempts (as `gateway.identity.key_source`).
REFRESH_S: Final = 300.0
MAX_AGE_S: Final = 24 * 3600.0
PAUSE_S: Final = 10.0
#: The longest wait for keys that are due, since one may have been withdrawn. If it takes longer, earlier ones hold.
DUE_S: Final = 1.0
TIMEOUT_S: Final = 5.0
#: The most codes that are exchanged at once: anybody may ask for it, and TLS takes time of the event loop.
MAX_LOGINS: Final = 2
#: In bytes: a header of aiohttp's server holds 8190 with its name.
MAX_TOKEN: Final = 8000
GROUP: Final = "group:"
#: Claims that name the client that a token was issued to (OpenID Connect Core section 2; RFC 9068 section 2.2).
_ISSUED_TO: Final = ("azp", "client_id")
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
#: Issuers may leave to UserInfo what a scope stands for (OpenID Connect Core section 5.4), which no bearer token shows.
_CLAIMS_ASKED: Final = '{"id_token":{"email":null,"email_verified":null,"groups":null}}'
_NOT_ALLOWED: Final = "this person is not allowed here: see --ui-oidc-allow"
_NAMELESS: Final = "the ID token has neither a verified email address nor groups: let the issuer put them into it"


class OidcLogin:
    """People whom this issuer knows. `allowed`: email addresses, and groups as "group:NAME"."""

    def __init__(self, issuer: str, client_id: str, allowed: Iterable[str]) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._allowed = frozenset(each if each.startswith(GROUP) else _address(each) for each in allowed)
        claims = ("email", "email_verified", *_ISSUED_TO)
        self._verifier = TokenVerifier([TokenIssuerIR(issuer, (client_id,))], claims)
        self._endpoints: dict[str, str] = {}
        self._asks: dict[str, str] = {}
        self._keys: dict[str, KeySet] = {}
        self._fetched_at = self._tried_at = -inf
        self._fetching: asyncio.Task[None] | None = None
        self._logins = asyncio.Semaphore(MAX_LOGINS)

    async def settings(self) -> Mapping[str, str]:
        """What the page begins a login with. Raises ApiError(503)."""
        await self._refresh()
        return {"authorize": self._endpoints["authorization_endpoint"], "client_id": self._client_id, **self._asks}

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        """The ID token for a code, of a person who may come in. Raises ApiError(401, 403, 503)."""
        await self._refresh()
        if self._logins.locked():
            raise ApiError(503, "ServiceUnavailable", "others sign in just now: try again", retry_after_s=5)
        form = {
            "grant_type": "authorization_code", "code": code, "code_verifier": verifier,
            "redirect_uri": redirect_uri, "client_id": self._client_id,
        }  # fmt: skip
        try:
            async with self._logins:
                answer = await _call(self._endpoints["token_endpoint"], form)
            token = (json_object(answer) or {})["id_token"]
        except (ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
            log.warning("admin: %s gives no token for a code: %s", self._issuer, _why(error))
            raise ApiError(401, "Unauthorized", "the issuer gives no token: sign in again") from None
        await self.check(str(token).encode("utf-8", "replace"))
        if len(token) > MAX_TOKEN:  # the page would be refused by every answer
            why = (
                f"the ID token has {len(token)} bytes, and a request takes {MAX_TOKEN}: let the issuer leave out claims"
            )
            raise ApiError(403, "Forbidden", why)
        return str(token)

    async def check(self, token: bytes) -> str:
        """The person of an ID token who may come in: a verified address, or "ISSUER#SUBJECT".

        Raises ApiError(401, 403, 503).
        """
        await self._refresh()
        try:
            try:
                believed = self._verifier.verify(token, self._keys, time())
            except UnknownKey:
                await self._refresh(PAUSE_S)  # it may have new keys
                believed = self._verifier.verify(token, self._keys, time())
        except CredentialRefused as error:
            raise ApiError(401, "Unauthorized", str(error)) from None
        claims = dict(believed.identity.claims)
        if any(claims.get(name, self._client_id) != self._client_id for name in _ISSUED_TO):
            raise ApiError(401, "Unauthorized", "the token was issued to another client")
        names = {f"{GROUP}{each}" for each in believed.identity.groups}
        email = _address(claims.get("email", ""))
        if claims.get("email_verified") == "true" and not email.startswith(GROUP):  # else its owner may have typed it
            names.add(email)
        if not names & self._allowed:
            raise ApiError(403, "Forbidden", _NOT_ALLOWED if names else _NAMELESS)
        return email if email in names and email.isprintable() else believed.identity.name

    async def _refresh(self, age_s: float = MAX_AGE_S) -> None:
        """Fetch endpoints and keys that are due, once for all who ask, and wait: up to DUE_S if those that are here are
        not as old as `age_s`. Raises ApiError(503) without any.
        """
        now = monotonic()
        age = now - self._fetched_at
        if self._fetching is None and age >= min(age_s, REFRESH_S) and now - self._tried_at >= PAUSE_S:
            self._tried_at, self._fetching = now, asyncio.get_running_loop().create_task(self._try())
        if self._fetching is not None:  # a client that leaves does not end it for others
            left_s = max(self._tried_at + DUE_S - now, 0.0)  # one who asks later waits no more
            await asyncio.wait((self._fetching,), timeout=left_s if age < age_s else None)
        if not self._keys:
            raise ApiError(
                503, "ServiceUnavailable", f"the issuer {self._issuer} does not answer as it should: see the log"
            )

    async def _try(self) -> None:
        try:
            await self._fetch()
        except (ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError) as error:
            log.warning("admin: the issuer %s does not answer as it should: %s", self._issuer, _why(error))
            if monotonic() - self._fetched_at > MAX_AGE_S:
                self._keys.clear()
        finally:
            self._tried_at, self._fetching = monotonic(), None

    async def _fetch(self) -> None:
        document = json_object(await _call(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")) or {}
        if document["issuer"] != self._issuer:
            raise ValueError(f"its document names another issuer, {str(document['issuer'])[:200]!r}")
        if "S256" not in document.get("code_challenge_methods_supported", ("S256",)):
            raise ValueError("it does not know PKCE with S256")
        endpoints = {name: str(document[name]) for name in _ENDPOINTS}
        for name, url in endpoints.items():
            if not is_safe(url, may_be_http=urlsplit(self._issuer).scheme == "http"):
                raise ValueError(f"its {name} is no URL with https")
        self._keys[self._issuer] = read_key_set(await _call(endpoints["jwks_uri"]))
        self._endpoints, self._asks, self._fetched_at = endpoints, self._asked_of(document), monotonic()

    def _asked_of(self, document: Mapping[str, Any]) -> dict[str, str]:
        """Scopes and claims that a login asks for, of those that the issuer's document has."""
        scopes = ["openid", "email", "profile"]
        if any(each.startswith(GROUP) for each in self._allowed) and "groups" in document.get("scopes_supported", ()):
            scopes.append("groups")
        asks = {"scope": " ".join(scopes)}
        if document.get("claims_parameter_supported") is True:
            asks["claims"] = _CLAIMS_ASKED
        return asks


def is_safe(url: str, *, may_be_http: bool = True) -> bool:
    """Whether nobody on the way can read or change what is asked there: https, or http to this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https"
        or (may_be_http and parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))
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
            raise ValueError(f"status {answer.status}, {body[:200]!r}")
        return body


def _address(text: str) -> str:
    """In lower case, but for letters beyond ASCII: some become letters of ASCII by it, and another person's address."""
    return text.lower() if text.isascii() else text


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
