"""TokenClient: what the gateway asks an authorization server as an OAuth client.

Sources: RFC 6749 sections 4.1, 4.4 and 6; RFC 7636; RFC 7591; RFC 7009; RFC 7523; RFC 8707; the extension OAuth Client
Credentials of the Model Context Protocol.
"""

from __future__ import annotations

import json
import secrets
import time
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

from egressproxy.ai.mcp.oauth.config import McpAuthorizationConfig, parse_url
from egressproxy.ai.mcp.oauth.discovery import Endpoint, ServerMetadata
from egressproxy.filters.base import FilterContext
from egressproxy.filters.calls import CallAnswer
from egressproxy.filters.credentials.oauth2 import basic, client_assertion, key_of, secret_of
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.token_endpoint import TokenRequests, answer_of, json_of, token_of
from egressproxy.model.encoding import json_object
from egressproxy.model.secret import SecretBytes

#: Seen in the list of applications that a user has allowed.
CLIENT_NAME: Final = "egressproxy"

Form = list[tuple[str, str]]
Lines = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Registration:
    """A client that an authorization server knows. `secret` "": a public client. `expires_at`: seconds since 1970 at
    which its secret ends, 0: never.
    """

    client_id: str
    secret: str = field(default="", repr=False)
    method: str = ""
    expires_at: float = 0.0

    @property
    def is_over(self) -> bool:
        return 0 < self.expires_at <= time.time()


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a token endpoint has answered. `refresh` "": there is no refresh token. `life_s`: of the access token."""

    access: SecretBytes
    refresh: str = field(repr=False)
    life_s: float


class TokenClient:
    """Asks for tokens by one config. `registration` is that of `clientId`; None: the gateway registers itself."""

    __slots__ = ("_config", "_key", "_requests", "registration")

    def __init__(self, context: FilterContext) -> None:
        """Raises UnusableReference for a key that cannot sign."""
        config: McpAuthorizationConfig = context.config
        self._config = config
        self._requests = TokenRequests()
        self._key = key_of(context, config.private_key_ref, config.key_id)
        self.registration: Registration | None = None
        if config.client_id:
            secret = secret_of(context, config.client_secret_ref)
            self.registration = Registration(config.client_id, secret.reveal().decode("latin-1") if secret else "")

    def _missing_secret(self) -> str:
        """The reference without a value; "" where all have one."""
        config = self._config
        if config.private_key_ref is not None and self._key is None:
            return "privateKeyRef"
        secret = self.registration.secret if self.registration is not None else ""
        return "clientSecretRef" if config.client_secret_ref is not None and not secret else ""

    # --- registration ----------------------------------------------------------------------------------------------
    async def register(self, server: ServerMetadata) -> Registration:
        """Register the gateway. Raises FetchError."""
        if server.registration is None:
            raise FetchError(f"{server.issuer} registers no clients: write the clientId that it has given you")
        redirect_uri = self._config.redirect_uri
        document = {
            "client_name": CLIENT_NAME,
            "redirect_uris": [redirect_uri],
            "application_type": "native" if parse_url(redirect_uri).is_loopback else "web",
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": self._wanted_method(server),
        }
        if server.scopes:
            document["scope"] = " ".join(server.scopes)
        call, path, _ = server.registration
        server.registration.checked()
        lines = [(b"accept", b"application/json"), (b"content-type", b"application/json")]
        answer = await answer_of(call, b"POST", path, lines, json.dumps(document).encode())
        found = json_object(answer.body)
        if answer.status not in (200, 201) or found is None:
            raise FetchError(f"{server.issuer} refused to register the gateway ({answer.status})")
        client_id, secret = found.get("client_id"), found.get("client_secret") or ""
        method, ends = found.get("token_endpoint_auth_method") or "", found.get("client_secret_expires_at") or 0
        plain = all(isinstance(each, str) and len(each) <= 4096 for each in (client_id, secret, method))
        if not plain or not client_id or not isinstance(ends, int | float):
            raise FetchError(f"{server.issuer} registered the gateway without a usable client_id")
        return Registration(client_id, secret, method, float(ends))

    @staticmethod
    def _wanted_method(server: ServerMetadata) -> str:
        """A public client where the server has them: PKCE binds the code, and there is no secret to keep."""
        methods = server.methods or ("client_secret_basic",)
        wanted = ("none", "client_secret_basic", "client_secret_post")
        return next((each for each in wanted if each in methods), "client_secret_basic")

    # --- authorization code ----------------------------------------------------------------------------------------
    def authorization_url(self, server: ServerMetadata, client: Registration, state: str, verifier: str) -> str:
        """Where the user's browser goes. Raises FetchError for a server without PKCE by S256."""
        if not server.authorization:
            raise FetchError(f"{server.issuer} has no authorization_endpoint")
        if not server.has_s256:
            raise FetchError(f"{server.issuer} does not support PKCE by S256 (code_challenge_methods_supported)")
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        form = [("response_type", "code"), ("client_id", client.client_id),
                ("redirect_uri", self._config.redirect_uri), ("state", state), ("code_challenge", challenge),
                ("code_challenge_method", "S256"), ("resource", server.resource)]  # fmt: skip
        if server.scopes:
            form.append(("scope", " ".join(server.scopes)))
        if "offline_access" in server.scopes:  # OpenID Connect Core 1.0 section 11: else there is no refresh token
            form.append(("prompt", "consent"))
        return f"{server.authorization}{'&' if '?' in server.authorization else '?'}{urlencode(form)}"

    async def by_code(self, server: ServerMetadata, client: Registration, code: str, verifier: str) -> Tokens:
        """Exchange an authorization code. Raises FetchError."""
        form = [("grant_type", "authorization_code"), ("code", code), ("redirect_uri", self._config.redirect_uri),
                ("code_verifier", verifier), ("resource", server.resource)]  # fmt: skip
        return await self._tokens(server, client, form)

    async def by_refresh(self, server: ServerMetadata, client: Registration, refresh: str) -> Tokens:
        """Get new tokens; without a new refresh token the old one stays. Raises FetchError, `is_final` where it is no
        longer valid.
        """
        form = [("grant_type", "refresh_token"), ("refresh_token", refresh), ("resource", server.resource)]
        found = await self._tokens(server, client, form)
        return found if found.refresh else Tokens(found.access, refresh, found.life_s)

    # --- client credentials ----------------------------------------------------------------------------------------
    async def own(self, server: ServerMetadata) -> Fetched:
        """A token of the gateway itself. Raises FetchError."""
        assert self.registration is not None
        form = [("grant_type", "client_credentials"), ("resource", server.resource)]
        if server.scopes:
            form.append(("scope", " ".join(each for each in server.scopes if each != "offline_access")))
        return token_of(await self._ask(server, self.registration, form))

    async def revoke(self, server: ServerMetadata, client: Registration, token: str) -> None:
        """Have a token end (RFC 7009). Raises FetchError."""
        if server.revocation is not None:
            await self._answer(server.revocation, server, client, [("token", token)])

    # --- asking ----------------------------------------------------------------------------------------------------
    async def _tokens(self, server: ServerMetadata, client: Registration, form: Form) -> Tokens:
        answer = await self._ask(server, client, form)
        found = token_of(answer)
        refresh = answer.get("refresh_token") or ""
        if not isinstance(refresh, str) or len(refresh) > 65536:
            raise FetchError("the answer has no usable refresh_token")
        assert isinstance(found.value, bytes)
        return Tokens(SecretBytes(found.value), refresh, found.life_s)

    async def _ask(self, server: ServerMetadata, client: Registration, form: Form) -> dict[str, Any]:
        return json_of(server.token.call, await self._answer(server.token, server, client, form))

    async def _answer(self, endpoint: Endpoint, server: ServerMetadata, client: Registration, form: Form) -> CallAnswer:
        """The answer of whatever status. Raises FetchError."""
        lines = self._authenticate(server, client, form)
        return await self._requests.send(endpoint.checked(), endpoint.path, form, client.client_id, lines)

    def _authenticate(self, server: ServerMetadata, client: Registration, form: Form) -> Lines:
        """The fields that authenticate the client; other methods add to the form. Raises FetchError."""
        if client is self.registration and (missing := self._missing_secret()):
            raise FetchError(f"the Secret of {missing} is missing")
        if client.secret and self._is_basic(server, client):
            return basic(client.client_id, client.secret.encode("latin-1", "replace"))
        form.append(("client_id", client.client_id))
        if client.secret:
            form.append(("client_secret", client.secret))
        elif self._key is not None and client is self.registration:
            form += client_assertion(self._key, client.client_id, server.issuer)
        return []

    @staticmethod
    def _is_basic(server: ServerMetadata, client: Registration) -> bool:
        if client.method:
            return client.method == "client_secret_basic"
        return (
            not server.methods or "client_secret_basic" in server.methods or "client_secret_post" not in server.methods
        )


def new_secret() -> str:
    """A state, or a verifier of PKCE (RFC 7636 section 4.1): 43 characters, of 256 random bits."""
    return secrets.token_urlsafe(32)
