"""TenantPool: a Pool whose connections serve the exchanges of one tenant each, from their first to their last.

Who else asks for a connection opens one. Where there is no room for it, an idle one of another tenant is closed.
"""

from __future__ import annotations

from typing import Final, TypeVar

from egressproxy.upstream.pool import MAX_OPEN, SHARE, Claim, Pool, Pooled

#: Idle connections to one destination, of all tenants.
MAX_IDLE: Final = 1024

C = TypeVar("C", bound=Pooled)


class TenantPool(Pool[C]):
    """Idle connections go to claims alone, since these say whose they are: `idle` and `kept` are always empty."""

    __slots__ = ("_idle", "_idle_of", "_tenants")

    def __init__(self, name: str, limit: int = MAX_OPEN, max_idle: int = MAX_IDLE, share: int = SHARE) -> None:
        super().__init__(name, limit, max_idle, share=share)
        self._tenants: dict[C | Claim[C], str] = {}  # of each open connection
        self._idle: dict[C, str] = {}  # that which has been idle the longest first
        self._idle_of: dict[str, dict[C, None]] = {}  # the latest last

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def take_kept(self, claim: Claim[C]) -> C | None:
        """An idle connection of the claim's tenant, the latest, now busy; or None."""
        if self.is_counting and not self._may_hold(claim.client):
            return None
        own = self._idle_of.get(claim.tenant)
        while own:
            connection, _ = own.popitem()
            del self._idle[connection]
            if not connection.is_leaving:
                if self.is_counting:
                    self._count(connection, claim.client)
                return connection
        return None

    def opened(self, claim: Claim[C], connection: C) -> None:
        super().opened(claim, connection)
        self._tenants[connection] = claim.tenant

    def lost(self, gone: C | Claim[C]) -> None:
        super().lost(gone)
        tenant = self._tenants.pop(gone, None)
        if tenant is not None and self._idle_of.get(tenant) == {}:  # it may have no other connection
            del self._idle_of[tenant]

    def release(self, connection: C, *, reusable: bool) -> C | None:
        """As of Pool. While others wait it is to be closed: they may be of another tenant, and open their own."""
        is_full = len(self._idle) >= self.max_idle
        if not reusable or connection.is_leaving or self.is_retired or self.waiting or is_full:
            return connection
        if self.is_counting:
            self._forget(connection)
            self._end_counting()
        tenant = self._tenants[connection]
        self._idle[connection] = tenant
        own = self._idle_of.get(tenant)
        if own is None:
            own = self._idle_of[tenant] = {}
        own[connection] = None
        return None

    def withdraw(self, connection: object) -> bool:
        tenant = self._idle.pop(connection, None)  # type: ignore[call-overload]  # others are not in there
        if tenant is None:
            return False
        del self._idle_of[tenant][connection]  # type: ignore[arg-type]
        return True

    def take_idle(self) -> list[C]:
        idle = list(self._idle)
        self._idle.clear()
        self._idle_of.clear()
        return idle

    def make_room(self) -> C | None:
        """The connection that has been idle the longest, to be closed by the caller; None where none is."""
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            self.withdraw(oldest)
        return oldest
