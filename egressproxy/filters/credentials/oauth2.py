"""OAuth 2.0: access tokens for the gateway itself.

Source: RFC 6749 section 4.4 (client credentials), RFC 7523 (JWT bearer as a grant, and to authenticate a client),
RFC 8707 (resource). A Google service account is the JWT bearer grant with the names of its file; Azure workload
identity is client credentials with a token of the cluster as the assertion.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlparse

from egressproxy.filters.base import FilterContext, UnusableReference
from egressproxy.filters.credentials.caller_config import EndpointClient
from egressproxy.filters.credentials.local_sources import read_file
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.signing_key import AssertionKey
from egressproxy.filters.credentials.token_config import GoogleServiceAccount, OAuth2
from egressproxy.filters.credentials.token_endpoint import (
    Form,
    TokenRequests,
    ask_json,
    checked_call,
    json_of,
    token_of,
)
from egressproxy.filters.settings import SecretRef
from egressproxy.model.secret import SecretBytes

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105
#: RFC 8693 section 3, and draft-ietf-oauth-identity-assertion-authz-grant.
TOKEN_TYPES: Final = {
    name: f"urn:ietf:params:oauth:token-type:{name_there}"
    for name, name_there in (
        ("AccessToken", "access_token"), ("Jwt", "jwt"), ("IdToken", "id_token"), ("IdJag", "id-jag"),
    )
}  # fmt: skip
_SPACE: Final = b" \t\r\n"

Fetch = Callable[[], Awaitable[Fetched]]


def from_oauth2(context: FilterContext, config: OAuth2) -> Fetch:
    """Fetches from the token endpoint. A missing Secret is a failed fetch. Raises UnusableReference for a bad key."""
    thumbprint = config.certificate_thumbprint
    key = key_of(context, config.private_key_ref, config.key_id, config.algorithm or "", thumbprint)
    ask = asked_as_client(context, config, key)

    async def fetch() -> Fetched:
        return token_of(await ask(_grant(config, key)), assumed_s=config.assumed_life_seconds)

    return fetch


def asked_as_client(
    context: FilterContext, config: OAuth2 | EndpointClient, key: AssertionKey | None
) -> Callable[[Form], Awaitable[dict[str, Any]]]:
    """Asks the token endpoint of this config with a form, as the client that it names. Raises FetchError."""
    call = context.calls.get(config.token_endpoint.backend_ref.label)
    secret = secret_of(context, config.client_secret_ref)
    requests = TokenRequests()

    async def ask(form: Form) -> dict[str, Any]:
        asked = checked_call(call, allow_plaintext=config.token_endpoint.allow_plaintext)
        sent = list(form)
        fields = _authentication(config, key, secret, sent)
        return json_of(asked, await requests.send(asked, config.token_endpoint.path, sent, config.client_id, fields))

    return ask


def _grant(config: OAuth2, key: AssertionKey | None) -> list[tuple[str, str]]:
    """The form parameters of the grant, with scope and resource."""
    form = [("grant_type", "client_credentials")]
    if config.grant == "JwtBearer":
        if key is None:
            raise FetchError("the Secret of privateKeyRef is missing")
        claims = {"iss": config.issuer or config.client_id, "sub": config.subject or config.client_id}
        claims["aud"] = config.assertion_audience
        form = [("grant_type", JWT_BEARER), ("assertion", key.sign({k: v for k, v in claims.items() if v}))]
    if config.scopes:
        form.append(("scope", " ".join(config.scopes)))
    if config.audience:
        form.append(("audience", config.audience))
    form += [("resource", each) for each in config.resource]
    return form


def _authentication(
    config: OAuth2 | EndpointClient, key: AssertionKey | None, secret: SecretBytes | None, form: list[tuple[str, str]]
) -> list[tuple[bytes, bytes]]:
    """The fields that authenticate the client; other methods add to the form."""
    method = config.authentication
    if method in ("ClientSecretBasic", "ClientSecretPost") and secret is None:
        raise FetchError("the Secret of clientSecretRef is missing")
    if method == "ClientSecretBasic":
        assert secret is not None
        return basic(config.client_id, secret.reveal())
    if config.client_id:
        form.append(("client_id", config.client_id))
    if method == "ClientSecretPost":
        assert secret is not None
        form.append(("client_secret", secret.reveal().decode("latin-1")))
    elif method == "TokenFile":
        form += [("client_assertion_type", _CLIENT_ASSERTION), ("client_assertion", token_file(config.token_file))]
    elif method == "PrivateKeyJwt":
        if key is None:
            raise FetchError("the Secret of privateKeyRef is missing")
        form += client_assertion(key, config.client_id, config.assertion_audience)
    return []


def basic(client_id: str, secret: bytes) -> list[tuple[bytes, bytes]]:
    """The field that authenticates a client by its secret (RFC 6749 section 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return [(b"authorization", b"Basic " + b64encode(pair.encode()))]


def client_assertion(key: AssertionKey, client_id: str, audience: str) -> list[tuple[str, str]]:
    """The form parameters that authenticate a client by its key (RFC 7523 section 2.2)."""
    assertion = key.sign({"iss": client_id, "sub": client_id, "aud": audience})
    return [("client_assertion_type", _CLIENT_ASSERTION), ("client_assertion", assertion)]


def from_google_service_account(context: FilterContext, config: GoogleServiceAccount) -> Fetch:
    """The JWT bearer grant of a service account's JSON file. Raises UnusableReference for an invalid file."""
    call = context.calls.get(config.token_endpoint.backend_ref.label)
    text = secret_of(context, config.key_ref)
    account = _google_account(text, config) if text is not None else None

    async def fetch() -> Fetched:
        asked = checked_call(call, allow_plaintext=config.token_endpoint.allow_plaintext)
        if account is None:
            raise FetchError("the Secret of keyRef is missing")
        key, claims = account
        assertion = key.sign({**claims, "scope": " ".join(config.scopes)})
        form = [("grant_type", JWT_BEARER), ("assertion", assertion)]
        return token_of(await ask_json(asked, config.token_endpoint.path, form=form))

    return fetch


def _google_account(text: SecretBytes, config: GoogleServiceAccount) -> tuple[AssertionKey, dict[str, Any]]:
    try:
        found = json.loads(text.reveal())
        email, pem, uri = found["client_email"], found["private_key"], found["token_uri"]
        key = AssertionKey(SecretBytes(pem.encode()), str(found.get("private_key_id", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnusableReference(
            "gcp.serviceAccount: keyRef has to lead to the JSON key file of a service account, with client_email, "
            "private_key and token_uri",
            config.key_ref,
        ) from None
    path = config.token_endpoint.path
    if urlparse(uri).path != path:
        why = f"gcp.serviceAccount: tokenEndpoint.path is {path}, and the key file says another token_uri"
        raise UnusableReference(why, config.key_ref)
    return key, {"iss": email, "sub": email, "aud": uri}


def key_of(
    context: FilterContext, ref: SecretRef | None, key_id: str, algorithm: str = "", thumbprint: str = ""
) -> AssertionKey | None:
    """The key in a Secret; None if it is missing. Raises UnusableReference for one that cannot sign."""
    value = secret_of(context, ref)
    try:
        return AssertionKey(value, key_id, algorithm, thumbprint) if value is not None else None
    except ValueError as error:
        assert ref is not None
        raise UnusableReference(f"the secret {ref.label} cannot sign: {error}", ref) from None


def secret_of(context: FilterContext, ref: SecretRef | None) -> SecretBytes | None:
    """The value of a Secret, without trailing whitespace; None if it is missing."""
    value = context.secrets.get(ref.label) if ref is not None else None
    return SecretBytes(value.reveal().rstrip(_SPACE)) if value is not None else None


def token_file(path: str) -> str:
    """The token in a file that the platform renews. Raises FetchError."""
    try:
        return read_file(Path(path)).decode("ascii").strip()
    except UnicodeDecodeError:
        raise FetchError(f"{path} does not hold a token", is_final=True) from None
