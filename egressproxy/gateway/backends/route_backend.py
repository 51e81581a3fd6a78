"""RouteBackend: one backendRef of a rule, live, with everything that configuration decides about it bound already."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from egressproxy.errors import Denied, GatewayError, GatewayFault, Reason
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.mirror import Mirror
from egressproxy.gateway.backends.provider_endpoint import ProviderEndpoint
from egressproxy.gateway.enforcement import enforce
from egressproxy.ir.backend import Protocol
from egressproxy.ir.policy import Mode
from egressproxy.model.exchange import Exchange
from egressproxy.net.timers import TICK_S
from egressproxy.routing.destinations import Denial
from egressproxy.telemetry.series import Series

#: Times for requests and attempts that are shorter are kept to the millisecond (`exchange.attempt_driver`).
EXACT_BELOW_S: Final = 1.0


@dataclass(slots=True, eq=False, repr=False)
class _HotRouteBackend:
    """What each exchange looks at, together in memory: of thousands of rules little is in the processor's cache."""

    name: str
    cluster: Cluster | None
    chain: Chain
    series: Series
    clock_s: float = field(init=False)
    mirrors: tuple[Mirror, ...] | None = field(default=None, kw_only=True)


@dataclass(slots=True, eq=False, repr=False)
class RouteBackend(_HotRouteBackend):
    """One backendRef of a rule: the cluster, the filters that run for this backend, and where its traffic is counted.

    `cluster` None: the reference is invalid, and its share of the traffic is answered 500 with `error`; or the place
    is `denied`, and it is answered 403. With a cluster, in Report mode, `denied` is noted and no more.
    `mirrors` are those of the rule and of the ref; None where there is none. `parent_by`, `priority`: see
    WeightedBackend. `ai`: what it says of requests to AI providers.
    """

    _: KW_ONLY
    weight: int
    error: str
    backend_request_s: float
    denied: Denial | None = None
    unknown_extension: str = ""
    is_elsewhere: bool = False
    parent_by: str = ""
    priority: int = 0
    ai: ProviderEndpoint | None = None

    def __post_init__(self) -> None:
        self.clock_s = on_the_wheel(self.backend_request_s)

    def fault(self, route: str, rule: str) -> GatewayError:
        """The error for requests to this backend, where `cluster` is None. `rule` is the route's kind and name."""
        if self.denied is not None:
            return self.denied.error()
        if self.unknown_extension:
            message = f"route {route} needs the {self.unknown_extension}, which this gateway does not have"
            return GatewayFault(Reason.UNKNOWN_EXTENSION, message, rule=rule, detail=self.error)
        if self.is_elsewhere:
            remedy = "add the region to `regions` of the policy, or use a backend that stands in one of those"
            return Denied(Reason.REGION_DENIED, self.error, rule=rule, remedy=remedy)
        if self.parent_by:
            rule = self.parent_by
            message = f"the parent proxy of {self.parent_by} cannot be used"
        elif route == "-":
            message = "a policy of this listener asks for what cannot be done"
        else:
            message = f"route {route} refers to a backend that cannot be used"
        remedy = "the status of that object says why, and so does `egressproxy check`"
        return GatewayFault(Reason.BACKEND_INVALID, message, rule=rule, remedy=remedy, detail=self.error)

    def note_denied(self, exchange: Exchange) -> None:
        """Note in the exchange that a policy would deny this backend, where Report mode lets it pass."""
        if self.denied is not None:
            enforce(exchange, Mode.REPORT, self.denied.error())

    @property
    def originates_tls(self) -> bool:
        return self.cluster is not None and self.cluster.spec.backend.tls is not None

    @property
    def speaks_mcp(self) -> bool:
        return self.cluster is not None and self.cluster.spec.backend.protocol is Protocol.MCP

    @property
    def is_brief(self) -> bool:
        """Whether the time for an attempt is too short for the wheel of timers."""
        return 0 < self.backend_request_s < EXACT_BELOW_S

    @property
    def has_parent(self) -> bool:
        return self.cluster is not None and self.cluster.parent is not None

    def goes_through_parent(self, exchange: Exchange) -> bool:
        """Whether this exchange is: `noProxy` may say that its destination is not."""
        return self.cluster is not None and self.cluster.goes_through_parent(exchange)

    def counted_in(self, series: Series) -> RouteBackend:
        return replace(self, series=series)


def on_the_wheel(seconds: float) -> float:
    """The seconds to give the wheel of timers: a short time gets a tick more, since `now` is that of the last tick."""
    return seconds + TICK_S if 0 < seconds < EXACT_BELOW_S else seconds
