"""HeldResources: what an exchange holds and must release however it ends. One for each client connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from egressproxy.filters.body import BodyChain
from egressproxy.gateway.backends.mirror_copy import Copies
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import HeldConnection
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.overload.request_gate import Tenant
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import ANONYMOUS, CallerIdentity, Exchange


class HeldResources(HeldConnection):
    """One per client connection, used for one exchange after the other.

    `close`: the client's connection ends with this exchange.
    `is_handed_over`: a tunnel has the exchange, and completes it.
    `request_chain`: the body filters of the route for the request under way, where the route has any and the request
    has a body; None where all of them let it pass unread, or it has passed them.
    `leg_filter`: those of the backend, of the attempt under way.
    `exchange`: whose they are; None between two.
    `tenant`: who the exchange is counted for, while the gateway is short of something (`gateway/overload`).
    """

    __slots__ = (
        "backend",
        "close",
        "copies",
        "exchange",
        "is_handed_over",
        "leg_filter",
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
        self.leg_filter: BodyFilter | None = None
        self.response_filter: BodyFilter | None = None
        self.request_chain: BodyChain | None = None
        self.on_complete: Callable[[], None] | None = None
        self.tenant: Tenant | None = None

    def reset(self) -> None:
        """Forget the rest, when what is held was given back."""
        self.exchange: Exchange | None = None
        self.connector = None
        self.target = None
        self.route: Route | None = None
        self.backend: RouteBackend | None = None
        self.copies: Copies | None = None
        self.close = False
        self.is_handed_over = False

    @property
    def identity(self) -> CallerIdentity:
        return self.exchange.identity if self.exchange is not None else ANONYMOUS

    def when_complete(self, call: Callable[[], None]) -> None:
        """Call this when the exchange is complete, behind what was asked for before."""
        before = self.on_complete
        self.on_complete = call if before is None else partial(_both, before, call)

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
