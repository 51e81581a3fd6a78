"""PRODUCTS: what the products have registered with the data plane. `egressproxy.doors.products` fills it, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from egressproxy.filters.chain import Chain
from egressproxy.gateway.answers import AnswerBeginning
from egressproxy.gateway.backends.buffered_body import BufferedRequest
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.provider_endpoint import ProviderEndpoint
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.product_types import ErrorForm, ExternalAuthorization, OwnFilter, RuleProduct
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.route import ExternalAuthIR, HttpRuleIR, WeightedBackend
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead
from egressproxy.routing.destinations import Denial
from egressproxy.telemetry.metrics import Metrics

#: What waits for approval of this client (`identity_of`); None where not all workers have said it.
Waiting = Callable[[str], Awaitable[list[dict[str, Any]] | None]]


class SelfService(ABC):
    """Answers what clients may ask at egress.internal. `waiting` tells which requests of a client wait for approval."""

    waiting: Waiting

    @abstractmethod
    async def answer(
        self, exchange: Exchange, listener: ActiveListener, head: RequestHead, held: BufferedRequest
    ) -> LocalResponse:
        """The response. `listener`: as it is for the caller; `held`: the request's body. Raises GatewayError."""


class Products:
    """What the products have registered. An attribute that nobody has set raises AttributeError where it is needed.

    Attributes:
        rules: for rules of HTTPRoutes, in the order in which their filters run.
        endpoint: what a backend says of requests to AI providers.
        backend_filter: the gateway's own filter for one backend of a rule.
        external_auth: the filter of a rule with external authorization. Its second and third argument are the cluster
            and the filters of the server, None where it cannot be asked; the last is the policy that closes it.
        error_form: for an error that ends an exchange whose route has these backends; None: our own form.
        answer_beginning: for an answer of 200 to a POST that may be sent again; None: it tells of no failure.
        self_service: makes what answers at egress.internal, for one data plane.
    """

    __slots__ = (
        "answer_beginning", "backend_filter", "endpoint", "error_form", "external_auth", "rules", "self_service",
    )  # fmt: skip

    rules: Sequence[RuleProduct]
    endpoint: Callable[[WeightedBackend], ProviderEndpoint | None]
    backend_filter: Callable[[HttpRuleIR, WeightedBackend], OwnFilter | None]
    external_auth: Callable[
        [ExternalAuthIR, Cluster | None, Chain | None, str, Metrics, Denial | None], ExternalAuthorization
    ]
    error_form: Callable[[Exchange, Sequence[RouteBackend]], ErrorForm | None]
    answer_beginning: Callable[[Exchange], AnswerBeginning | None]
    self_service: Callable[[], SelfService]


PRODUCTS: Final = Products()
