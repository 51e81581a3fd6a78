"""ProviderCall: whose SDK a client speaks with, told when an error has to be said in the shape of its provider.

Nothing is looked at before: a request that goes well costs nothing here. What tells it, in this order: the path, where
it is of one API; what `protocolOptions.ai` of a backend says; the name of a provider's host, as the client or the
backend has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from egressproxy.ai.apis.apis import Api, counted_api, operation_of
from egressproxy.ai.apis.errors import error_fields, error_in_stream, error_object
from egressproxy.ai.apis.hosts import api_of_host
from egressproxy.ai.apis.shared import is_post
from egressproxy.ai.backends.answers import JSON
from egressproxy.ai.backends.endpoint import endpoint_of
from egressproxy.errors import GatewayError
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.product_types import ErrorForm
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import media_type
from egressproxy.model.strict_json import dumps

#: What the error object has of its own.
_OWN: Final = frozenset(("status", "message"))


@dataclass(slots=True, eq=False, repr=False)
class ProviderCall(ErrorForm):
    """A request to an API of a provider, as far as its error needs it."""

    api: Api

    def error(self, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes:
        return told_in_shape(self.api, error, about)

    def error_fields(self, error: GatewayError) -> tuple[tuple[bytes, bytes], ...]:
        return error_fields(self.api, error.status)

    def error_in_stream(self, kind: bytes, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes:
        more = {name: value for name, value in about.items() if name not in _OWN}
        return error_in_stream(self.api, kind, error.status, _message(error), error.reason.value, more)


def told_in_shape(api: Api, error: GatewayError, about: dict[str, object], field: str | None = None) -> bytes:
    """The body of this error in the shape of an API, with what else our errors tell (`about`)."""
    more = {name: value for name, value in about.items() if name not in _OWN}
    return dumps(error_object(api, error.status, _message(error), field, error.reason.value, more))


def provider_call(exchange: Exchange, backends: Sequence[RouteBackend]) -> ProviderCall | None:
    """The call of an exchange that an error ends; None where no provider is known. `backends`: of its route."""
    if not exchange.has_request or exchange.is_tunnel:
        return None
    head = exchange.request
    if is_post(exchange) and media_type(head.fields) == JSON:
        operation = operation_of(head.path)
        called = operation.api if operation is not None else counted_api(head.path)
        if called is not None:
            return ProviderCall(called)
    for backend in backends:
        endpoint = endpoint_of(backend)
        if endpoint is not None and endpoint.apis:
            return ProviderCall(endpoint.apis[0])
    hosts = [backend.cluster.spec.backend.hostname for backend in backends if backend.cluster is not None]
    for host in (exchange.authority.host if exchange.authority is not None else "", *hosts):
        api = api_of_host(host)
        if api is not None:
            return ProviderCall(api)
    return None


def _message(error: GatewayError) -> str:
    """SDKs show the message alone: what the client can do stands in it."""
    return f"{error.message} ({error.remedy})" if error.remedy else error.message
