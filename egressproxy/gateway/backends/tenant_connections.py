"""TenantConnections: the HTTP/2 connections to one target, where each serves the exchanges of one tenant alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters.filter_step import Steps
from egressproxy.gateway.backends.http2_connections import Http2Connections
from egressproxy.model.exchange import Exchange, tenant_of
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.protocols.upstream import Upstream

#: Tenants with connections to one target.
MAX_TENANTS: Final = 1024
#: Those whose last connection has closed are forgotten when there are twice as many as the last time, from here on.
LEAST: Final = 16


class TenantConnections:
    """`make` gives the connections of a tenant that has none yet."""

    __slots__ = ("_make", "_of", "_room")

    def __init__(self, make: Callable[[], Http2Connections]) -> None:
        self._make = make
        self._of: dict[str, Http2Connections] = {}
        self._room = LEAST

    async def acquire(self, x: Exchange, connect: Steps | None, alpn: tuple[str, ...]) -> Upstream | PendingProtocol:
        """As of SharedConnections, among those of the tenant. Raises LimitExceeded (503) where too many have some."""
        return await self._of_tenant(x).acquire(x, connect, alpn)

    def adopt(self, parked: PendingProtocol, x: Exchange, version: int) -> Upstream:
        """As of SharedConnections. Raises LimitExceeded (503) where too many tenants have some."""
        return self._of_tenant(x).adopt(parked, x, version)

    def _of_tenant(self, x: Exchange) -> Http2Connections:
        tenant = tenant_of(x.identity)
        found = self._of.get(tenant)
        if found is None:
            if len(self._of) >= self._room:
                self._make_room()
            found = self._of[tenant] = self._make()
        return found

    def _make_room(self) -> None:
        """Forget who has no connection; else close those of one tenant that uses none."""
        self._of = {tenant: each for tenant, each in self._of.items() if not each.is_empty}
        self._room = min(MAX_TENANTS, max(LEAST, 2 * len(self._of)))
        if len(self._of) < MAX_TENANTS:
            return
        idle = next((tenant for tenant, each in self._of.items() if each.is_all_idle), None)
        if idle is None:
            message = "too many tenants have connections to this destination"
            raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        self._of.pop(idle).retire()

    def retire(self) -> None:
        for each in list(self._of.values()):
            each.retire()

    def counts(self) -> tuple[int, int]:
        counts = [each.counts() for each in self._of.values()]
        return sum(active for active, _ in counts), sum(idle for _, idle in counts)

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self._of.values())

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self._of.values())

    @property
    def is_empty(self) -> bool:
        return all(each.is_empty for each in self._of.values())

    @property
    def is_all_idle(self) -> bool:
        return all(each.is_all_idle for each in self._of.values())
