"""The type of CredentialInjector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egressproxy.filters.base import FilterContext, FilterType, Phase
from egressproxy.filters.credentials.backend_credential import BackendCredential
from egressproxy.filters.credentials.config import CredentialInjectorConfig, machine_field
from egressproxy.filters.credentials.credential_injector import CredentialInjector

if TYPE_CHECKING:  # for an annotation: few configurations have one
    from egressproxy.filters.credentials.caller_credentials import CallerCredentials


def _build(context: FilterContext) -> BackendCredential | CallerCredentials:
    if context.config.callers:
        from egressproxy.filters.credentials.caller_credentials import CallerCredentials

        return CallerCredentials(context, _build_one)
    return _build_one(context)


def _build_one(context: FilterContext) -> BackendCredential:
    if context.config.aws is not None:
        from egressproxy.filters.credentials.aws_injector import AwsInjector

        return AwsInjector(context)
    if context.config.hmac is not None or context.config.http_signature is not None:
        from egressproxy.filters.credentials.request_signer import RequestSigner

        return RequestSigner(context)
    if context.config.jwt is not None and context.config.jwt.is_of_caller:
        from egressproxy.filters.credentials.caller_token import CallerTokenInjector

        return CallerTokenInjector(context)
    if context.config.token_exchange is not None:
        from egressproxy.filters.credentials.token_exchange import TokenExchangeInjector

        return TokenExchangeInjector(context)
    if not context.config.placeholder:
        return CredentialInjector(context)
    from egressproxy.filters.credentials.placeholder import PlaceholderInjector  # few configurations have one

    return PlaceholderInjector(context)


CREDENTIAL_INJECTOR = FilterType(
    name="egressproxy.io/CredentialInjector:v1",
    phases=frozenset((Phase.BACKEND_REQUEST,)),
    config_model=CredentialInjectorConfig,
    build=_build,
    also=frozenset((Phase.REQUEST_BODY, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    machine_field=machine_field,
    summary="Puts a credential into the request to a backend, over TLS only.",
)
