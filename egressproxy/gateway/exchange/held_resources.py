"""HeldResources: what an exchange holds and must release however it ends. One for each client connection."""

from __future__ import annotations

from collections.abc import Callable

from egressproxy.gateway.backends.connector import Connector
from egressproxy.gateway.backends.dial_targets import Target
from egressproxy.gateway.backends.mirror import Copies
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.snapshot import Route, RouteBackend
from egressproxy.protocols.http1.upstream import UpstreamConnection

__all__ = ["HeldResources"]


class HeldResources:
    """`close`: the client's connection ends with this exchange. Everything else is what its name says, or None."""

    __slots__ = (
        "choice",
        "close",
        "connector",
        "copies",
        "on_complete",
        "request_filter",
        "response_filter",
        "route",
        "target",
        "upstream",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.route: Route | None = None
        self.choice: RouteBackend | None = None
        self.connector: Connector | None = None
        self.target: Target | None = None
        self.upstream: UpstreamConnection | None = None
        self.request_filter: BodyFilter | None = None
        self.response_filter: BodyFilter | None = None
        self.copies: Copies | None = None
        self.on_complete: Callable[[], None] | None = None
        self.close = False

    def hold(self, connector: Connector, target: Target, upstream: UpstreamConnection) -> None:
        self.connector = connector
        self.target = target
        self.upstream = upstream

    def release(self, *, reusable: bool) -> None:
        """Give the upstream connection back; one that may not be used again is closed."""
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            assert self.connector is not None
            assert self.target is not None
            self.connector.release(self.target, upstream, reusable=reusable)

    def give_away(self) -> UpstreamConnection:
        """The upstream connection now belongs to a tunnel."""
        upstream, self.upstream = self.upstream, None
        assert upstream is not None
        return upstream

    def end_filters(self) -> None:
        for body_filter in (self.request_filter, self.response_filter):
            if body_filter is not None:
                body_filter.cancel()

    def __repr__(self) -> str:
        return f"Life({self.route}, {self.upstream})"
