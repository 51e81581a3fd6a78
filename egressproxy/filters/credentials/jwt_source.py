"""Tokens that the gateway makes and signs itself (RFC 7519)."""

from __future__ import annotations

from typing import Any

from egressproxy.filters.base import FilterContext
from egressproxy.filters.credentials.oauth2 import Fetch, key_of
from egressproxy.filters.credentials.refresher import Fetched, FetchError
from egressproxy.filters.credentials.signing_key import AssertionKey
from egressproxy.filters.credentials.token_config import Jwt


def from_jwt(context: FilterContext, config: Jwt) -> Fetch:
    """Makes tokens that are the same for all. Raises UnusableReference for a bad key."""
    key = key_of_jwt(context, config)
    claims = fixed_claims(config)

    async def fetch() -> Fetched:
        if key is None:
            raise FetchError(f"the Secret of {config.key_field} is missing")
        token = key.sign(claims, config.lifetime_seconds, config.backdate_seconds)
        return Fetched(token.encode(), config.lifetime_seconds)

    return fetch


def key_of_jwt(context: FilterContext, config: Jwt) -> AssertionKey | None:
    """The key of a config; None if its Secret is missing. Raises UnusableReference."""
    if config.shared_secret_ref is not None:
        return key_of(context, config.shared_secret_ref, config.key_id, "HS256")
    return key_of(context, config.private_key_ref, config.key_id, config.algorithm or "")


def fixed_claims(config: Jwt) -> dict[str, Any]:
    """The claims that are the same for all."""
    audience = config.audience[0] if len(config.audience) == 1 else list(config.audience)
    named = {"iss": config.issuer, "sub": config.subject, "aud": audience}
    return {each.name: each.value for each in config.claims if not each.caller} | {k: v for k, v in named.items() if v}
