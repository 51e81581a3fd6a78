"""ExchangeResources: what an exchange holds and must release however it ends. One for each client connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from egressproxy.filters.body import BodyChain
from egressproxy.gateway.backends.mirror_request import MirrorRequests
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import HeldConnection
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.overload.request_gate import Tenant
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import ANONYMOUS, CallerIdentity, Exchange
from egressproxy.net.held_bytes import Hold


class ExchangeResources(HeldConnection):
    """Used for one exchange after the other."""

    __slots__ = (
        "backend",
        "close",
        "exchange",
        "held_bytes",
        "is_handed_over",
        "leg_filter",
        "mirror_requests",
        "on_complete",
        "request_chain",
        "request_filter",
        "response_filter",
        "route",
        "tenant",
    )

    def __init__(self) -> None:
        super().__init__()
        self.upstream = None
        # As before as soon as each is given back (`Accounting.account`), which few exchanges have:
        self.request_filter: BodyFilter | None = None
        self.leg_filter: BodyFilter | None = None  # of the backend, of the attempt under way
        self.response_filter: BodyFilter | None = None
        self.request_chain: BodyChain | None = None  # of the route: that the body of the request has yet to pass
        self.on_complete: Callable[[], None] | None = None
        self.held_bytes: Hold | None = None  # of bodies
        self.tenant: Tenant | None = None  # for whom it is counted, while something is short (`gateway/overload`)

    def reset(self) -> None:
        """Forget the rest, when what is held was given back."""
        self.exchange: Exchange | None = None  # the holder; None between two exchanges
        self.cluster = None
        self.target = None
        self.route: Route | None = None
        self.backend: RouteBackend | None = None
        self.mirror_requests: MirrorRequests | None = None
        self.close = False  # the client's connection ends with this exchange
        self.is_handed_over = False  # a tunnel has the exchange, and completes it

    @property
    def identity(self) -> CallerIdentity:
        return self.exchange.identity if self.exchange is not None else ANONYMOUS

    def when_complete(self, call: Callable[[], None]) -> None:
        """Call this when the exchange is complete, behind what was asked for before."""
        before = self.on_complete
        self.on_complete = call if before is None else partial(_both, before, call)

    def release_bytes(self) -> None:
        """Nothing is held of bodies any more."""
        if self.held_bytes is not None:
            self.held_bytes.release()
            self.held_bytes = None

    def end_filters(self) -> None:
        """Release the body filters, whether they are at work or have ended."""
        filters = self.request_filter, self.leg_filter, self.response_filter
        self.request_filter = self.leg_filter = self.response_filter = self.request_chain = None
        for body_filter in filters:
            if body_filter is not None:
                body_filter.release()


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
