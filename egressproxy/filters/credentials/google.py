"""Access tokens of Google Cloud: a service account's key, workload identity federation, the metadata server.

Source: RFC 7523, RFC 8693, IAM Service Account Credentials API v1 (generateAccessToken), Compute Engine metadata.
"""

from __future__ import annotations

from typing import Final

from egressproxy.filters.base import FilterContext
from egressproxy.filters.credentials.oauth2 import (
    TOKEN_EXCHANGE,
    TOKEN_TYPES,
    Fetch,
    from_google_service_account,
    token_file,
)
from egressproxy.filters.credentials.refresher import Fetched
from egressproxy.filters.credentials.token_config import Gcp, GoogleMetadata, GoogleWorkloadIdentity
from egressproxy.filters.credentials.token_endpoint import ask_json, checked_call, seconds_until, token_of

_LIFE_S: Final = 3600


def from_gcp(context: FilterContext, config: Gcp) -> Fetch:
    """What fetches the tokens of this config. Raises ValueError for a key file that is none."""
    if config.service_account is not None:
        return from_google_service_account(context, config.service_account)
    if config.workload_identity is not None:
        return _from_workload_identity(context, config.workload_identity)
    assert config.metadata is not None
    return _from_metadata(context, config.metadata)


def _from_workload_identity(context: FilterContext, config: GoogleWorkloadIdentity) -> Fetch:
    exchange = context.calls.get(config.token_endpoint.backend_ref.label)
    target = config.impersonate
    impersonate = context.calls.get(target.endpoint.label) if target is not None else None

    async def fetch() -> Fetched:
        form = [
            ("grant_type", TOKEN_EXCHANGE),
            ("audience", config.audience),
            ("scope", " ".join(config.scopes)),
            ("requested_token_type", TOKEN_TYPES["AccessToken"]),
            ("subject_token", token_file(config.token_file)),
            ("subject_token_type", TOKEN_TYPES["Jwt"]),
        ]
        asked = checked_call(exchange, allow_plaintext=config.token_endpoint.allow_plaintext)
        federated = token_of(await ask_json(asked, config.token_endpoint.path, form=form))
        if target is None:
            return federated
        asked = checked_call(impersonate, allow_plaintext=False)
        assert isinstance(federated.value, bytes)
        answer = await ask_json(
            asked,
            f"/v1/projects/-/serviceAccounts/{target.email}:generateAccessToken",
            document={"scope": list(config.scopes), "lifetime": f"{_LIFE_S}s"},
            fields=[(b"authorization", b"Bearer " + federated.value)],
        )
        token = token_of(answer, "accessToken", bearer=False)
        return Fetched(token.value, seconds_until(answer.get("expireTime"), "expireTime"))

    return fetch


def _from_metadata(context: FilterContext, config: GoogleMetadata) -> Fetch:
    call = context.calls.get(config.backend_ref.label)
    path = f"/computeMetadata/v1/instance/service-accounts/{config.service_account}/token"

    async def fetch() -> Fetched:
        asked = checked_call(call, allow_plaintext=True)  # it has no TLS, and is an address of the machine
        return token_of(await ask_json(asked, path, fields=[(b"metadata-flavor", b"Google")], method=b"GET"))

    return fetch
