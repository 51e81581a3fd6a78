"""A token for each caller, which says who asks: made and signed by the gateway."""

from __future__ import annotations

from collections.abc import Awaitable
from time import monotonic
from typing import Any, Final

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import FilterContext
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.credential_injector import CredentialInjector
from egressproxy.filters.credentials.jwt_source import fixed_claims, key_of_jwt
from egressproxy.filters.credentials.refresher import EARLY
from egressproxy.filters.credentials.signing_key import AssertionKey
from egressproxy.filters.credentials.token_config import Jwt
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import CALLERS_OWN, Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes

#: The most callers whose tokens are kept.
MAX_CALLERS: Final = 1024


class CallerTokenInjector(CredentialInjector):
    """Makes a token for each caller, and keeps it until most of its life is over. An unknown caller gets 403."""

    def __init__(self, context: FilterContext) -> None:
        super().__init__(context)
        config: CredentialInjectorConfig = context.config
        assert config.jwt is not None
        self._jwt: Jwt = config.jwt
        self._remedy = f"create the Secret that jwt.{self._jwt.key_field} names"
        self._key = key_of_jwt(context, self._jwt)
        self._is_ready = self._key is not None
        self._fixed = fixed_claims(self._jwt)
        self._of_caller = [(each.name, each.caller) for each in self._jwt.claims if each.caller]
        #: By the claims of the caller: the token, and until when it is sent (seconds of the monotonic clock).
        self._tokens: dict[str, tuple[SecretBytes, float]] = {}

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """As CredentialInjector. Raises Denied(FILTER_REJECTED, 403) for a caller of whom a claim is not known."""
        exchange.keep(CALLERS_OWN, True)
        if self._key is not None:
            # What stands in the filter is of this request: nothing is waited for until it is sent.
            self._take(self._token(self._key, exchange).reveal())
        return super().backend_request(exchange)

    def forecast(self, exchange: Exchange) -> None:
        super().forecast(exchange)
        self._claims_of(exchange.identity)

    def _token(self, key: AssertionKey, exchange: Exchange) -> SecretBytes:
        claims, now, config = self._claims_of(exchange.identity), monotonic(), self._jwt
        caller = repr(claims)
        token, until = self._tokens.pop(caller, (None, 0.0))
        if token is None or now >= until:
            claims = self._fixed | claims
            token = SecretBytes(key.sign(claims, config.lifetime_seconds, config.backdate_seconds).encode())
            until = now + config.lifetime_seconds * EARLY
            if len(self._tokens) >= MAX_CALLERS:
                del self._tokens[next(iter(self._tokens))]  # who has been away for the longest
        self._tokens[caller] = token, until
        return token

    def _claims_of(self, identity: CallerIdentity) -> dict[str, Any]:
        parts = {
            "Name": identity.name, "Namespace": identity.namespace, "ServiceAccount": identity.service_account,
            "Groups": list(identity.groups),
        }  # fmt: skip
        claims = {name: parts[part] for name, part in self._of_caller}
        for name, value in claims.items():
            if value == "-":
                raise Denied(
                    Reason.FILTER_REJECTED,
                    f"filter {self._name} signs who asks, as the claim {name}, and that is not known of this client",
                    rule=self._source,
                    remedy="have the client show the gateway who it is: docs/identity.md has the ways",
                )
        return claims
