"""Pool: the connections to one destination. It decides without awaiting, writing or closing; the caller acts.

One connection carries one exchange at a time. A free connection is taken last-in first-out, so that the others
age and are closed. At the limit, exchanges wait in a bounded queue, in which clients take turns; a connection that
becomes free, or the right to open one, goes to the client whose turn it is.

No client can starve the others. Up to `share` open connections clients are not counted: `take` gives an idle one to any
of them. Above that, or while an exchange waits, each connection is counted for the client that holds it, `idle` is
empty, and a client that holds `share` of them waits while others are served. A client holds at most one more share from
the time before the counting began.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, Generic, Protocol, TypeVar

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.model.per_client_quota import FairQueue, PerClientQuota

#: Connections to one destination, and exchanges that wait for one: in all, and of one client while clients are counted.
MAX_OPEN: Final = 4096
SHARE: Final = 1024
#: Idle connections to one destination.
MAX_IDLE: Final = 256
#: The same of a pool whose connections are one tenant's alone, of all tenants.
MAX_TENANT_IDLE: Final = 1024


class Pooled(Protocol):
    """What a pool needs of a connection."""

    def is_leaving(self) -> bool:
        """Whether it is lost, or closing."""


C = TypeVar("C", bound=Pooled)


class PoolTicket(Generic[C]):
    """A client's claim to a connection, until it has one. `given` is set while it waits. `tenant`: see TenantPool."""

    __slots__ = ("client", "given", "tenant")

    def __init__(self, client: str, tenant: str = "-") -> None:
        self.client = client
        self.tenant = tenant
        self.given: asyncio.Future[C | None] | None = None

    def __repr__(self) -> str:
        return f"PoolTicket({self.client}, {'waits' if self.given is not None else 'has asked'})"


class Pool(Generic[C]):
    """`open` counts connections that are busy, idle or being opened, up to `limit`. `waiting` is the queue. `kept` has
    the idle ones while clients are counted; only claims get them.
    """

    __slots__ = (
        "_held", "_holders", "idle", "is_counting", "is_retired", "kept", "limit", "max_idle", "name", "open", "share",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        limit: int = MAX_OPEN,
        max_idle: int = MAX_IDLE,
        max_waiting: int = MAX_OPEN,
        share: int = SHARE,
    ) -> None:
        self.name = name
        self.limit = limit
        self.max_idle = max_idle
        self.share = share
        self.idle: list[C] = []
        self.kept: list[C] = []
        self.open = 0
        self.is_counting = False
        self.is_retired = False
        self.waiting: FairQueue[PoolTicket[C]] = FairQueue(max_waiting, share)
        # While clients are counted: who holds each connection given since then, and how many each client holds.
        self._holders: dict[C | PoolTicket[C], str] = {}
        self._held = PerClientQuota(sys.maxsize, share)

    @property
    def place(self) -> str:
        """The name for messages; the backend of traffic without a route has none."""
        return "this destination" if self.name == "-" else f"backend {self.name}"

    @property
    def idle_count(self) -> int:
        return len(self.idle) + len(self.kept)

    @property
    def is_empty(self) -> bool:
        return self.open == 0 and not self.waiting

    @property
    def is_all_idle(self) -> bool:
        return self.open == self.idle_count and not self.waiting

    # --- asking ------------------------------------------------------------------------------------------------
    def take(self) -> C | None:
        idle = self.idle
        while idle:
            connection = idle.pop()
            if not connection.is_leaving():
                return connection
        return None

    def take_kept(self, ticket: PoolTicket[C]) -> C | None:
        """Like `take`, while clients are counted: None also for a client that holds its share."""
        if not self._may_hold(ticket.client):
            return None
        while self.kept:
            connection = self.kept.pop()
            if not connection.is_leaving():
                self._count(connection, ticket.client)
                return connection
        return None

    def may_open(self, ticket: PoolTicket[C]) -> bool:
        """Whether the caller may open a connection. If so, it is counted: call `opened` when it is open, or `lost` with
        the claim if that fails.
        """
        if self.open >= self.share:
            self._begin_to_count()
        if self.open >= self.limit or not self._may_hold(ticket.client):
            return False
        self.open += 1
        if self.is_counting:
            self._count(ticket, ticket.client)
        return True

    def count(self, ticket: PoolTicket[C]) -> None:
        """Count a connection that is open already, beyond the limit too."""
        self.open += 1
        if self.is_counting:
            self._count(ticket, ticket.client)

    def opened(self, ticket: PoolTicket[C], connection: C) -> None:
        """Record the connection that this claim opened; call `lost` when it is gone."""
        client = self._holders.pop(ticket, None)
        if client is not None:
            self._holders[connection] = client

    def wait(self, ticket: PoolTicket[C], loop: asyncio.AbstractEventLoop) -> asyncio.Future[C | None]:
        """Wait in the queue: the future gives a connection, or None for the right to open one (already counted). Raises
        LimitExceeded (503) if the queue is full, or full of this client.
        """
        if not self.waiting.add(ticket.client, ticket):
            message = f"too many requests are waiting for {self.place}"
            raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        self._begin_to_count()
        ticket.given = loop.create_future()
        return ticket.given

    def make_room(self) -> C | None:
        """An idle connection that nobody who waits may have, to be closed by the caller; there is none here."""
        return None

    def leave(self, ticket: PoolTicket[C]) -> C | None:
        """Remove a claim whose exchange has ended. Returns a connection that it was given meanwhile, to be released."""
        given, ticket.given = ticket.given, None
        if self.waiting.remove(ticket.client, ticket):
            self._end_counting()
        elif given is not None and given.done() and not given.cancelled() and given.exception() is None:
            connection = given.result()
            if connection is None:
                self.lost(ticket)
            return connection
        return None

    def too_late(self, ticket: PoolTicket[C]) -> None:
        """End the wait of a claim: its future raises LimitExceeded (503), unless it has a result already."""
        if ticket.given is not None and not ticket.given.done():
            message = f"no connection to {self.place} became free in time"
            ticket.given.set_exception(LimitExceeded(Reason.QUEUE_TIMEOUT, message, status=503, retry_after_s=1))

    # --- giving back -------------------------------------------------------------------------------------------
    def release(self, connection: C, *, reusable: bool) -> C | None:
        """An exchange has ended. Returns the connection if the caller must close it (and call `lost` later)."""
        if not reusable or connection.is_leaving() or self.is_retired:
            return connection
        if self.is_counting:
            return self._release_counted(connection)
        if len(self.idle) >= self.max_idle:
            return connection
        self.idle.append(connection)
        return None

    def lost(self, gone: C | PoolTicket[C]) -> None:
        """A counted connection is gone or could not be opened. Its place goes to the next in the queue."""
        self.withdraw(gone)
        if self.is_counting:
            self._forget(gone)
            if self._give_to_next(None):
                return
        self.open -= 1
        self._end_counting()

    def withdraw(self, connection: object) -> bool:
        """Take this connection out if it is idle, and say whether it was. Call `lost` when it is gone."""
        for resting in (self.idle, self.kept):
            if connection in resting:
                resting.remove(connection)  # it is in there
                return True
        return False

    def retire(self) -> list[C]:
        """Stop giving connections. Returns the idle ones, to be closed by the caller; busy ones close at release."""
        self.is_retired = True
        return self.take_idle()

    def take_idle(self) -> list[C]:
        """The idle connections, to be closed by the caller; they count until `lost`."""
        idle = self.idle + self.kept
        self.idle, self.kept = [], []
        return idle

    # --- counting ----------------------------------------------------------------------------------------------
    def _begin_to_count(self) -> None:
        if not self.is_counting:
            self.is_counting = True
            self.kept, self.idle = self.idle, []

    def _end_counting(self) -> None:
        """Stop counting clients when connections are not scarce any more."""
        if self.is_counting and self.open < self.share and not self.waiting:
            self.is_counting = False
            self.idle, self.kept = self.kept, []
            self._holders.clear()
            self._held = PerClientQuota(sys.maxsize, self.share)

    def _may_hold(self, client: str) -> bool:
        return self._held.of(client) < self.share

    def _count(self, held: C | PoolTicket[C], client: str) -> None:
        self._holders[held] = client
        self._held.add(client)

    def _forget(self, held: C | PoolTicket[C]) -> None:
        client = self._holders.pop(held, None)
        if client is not None:  # otherwise it was given before the counting began
            self._held.give_back(client)

    def _give_to_next(self, connection: C | None) -> bool:
        """Hand this connection (None: the right to open one) to the claim whose turn it is; false if none waits."""
        while (ticket := self.waiting.next(self._may_hold)) is not None:
            if ticket.given is not None and not ticket.given.done():
                self._count(ticket if connection is None else connection, ticket.client)
                ticket.given.set_result(connection)
                return True
        return False

    def _release_counted(self, connection: C) -> C | None:
        self._forget(connection)
        if self._give_to_next(connection):
            return None
        if len(self.kept) >= self.max_idle:
            return connection
        self.kept.append(connection)
        self._end_counting()
        return None

    def __repr__(self) -> str:
        return f"Pool({self.name}, open={self.open}, idle={self.idle_count}, waiting={len(self.waiting)})"


class TenantPool(Pool[C]):
    """A pool whose connections serve one tenant each, to their last exchange. For another one is opened, if need be in
    place of an idle one. Idle ones go to claims alone, which say whose they are: `idle` and `kept` are always empty.
    """

    __slots__ = ("_idle", "_idle_of", "_tenants")

    def __init__(self, name: str, limit: int = MAX_OPEN, max_idle: int = MAX_TENANT_IDLE, share: int = SHARE) -> None:
        super().__init__(name, limit, max_idle, share=share)
        self._tenants: dict[C | PoolTicket[C], str] = {}  # of each open connection
        self._idle: dict[C, str] = {}  # that which has been idle the longest first
        self._idle_of: dict[str, dict[C, None]] = {}  # the latest last

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def take_kept(self, ticket: PoolTicket[C]) -> C | None:
        """An idle connection of the claim's tenant, the latest, now busy; or None."""
        if self.is_counting and not self._may_hold(ticket.client):
            return None
        own = self._idle_of.get(ticket.tenant)
        while own:
            connection, _ = own.popitem()
            del self._idle[connection]
            if not connection.is_leaving():
                if self.is_counting:
                    self._count(connection, ticket.client)
                return connection
        return None

    def opened(self, ticket: PoolTicket[C], connection: C) -> None:
        super().opened(ticket, connection)
        self._tenants[connection] = ticket.tenant

    def lost(self, gone: C | PoolTicket[C]) -> None:
        super().lost(gone)
        tenant = self._tenants.pop(gone, None)
        if tenant is not None and self._idle_of.get(tenant) == {}:  # it may have no other connection
            del self._idle_of[tenant]

    def release(self, connection: C, *, reusable: bool) -> C | None:
        """As of Pool. While others wait it is to be closed: they may be of another tenant, and open their own."""
        is_full = len(self._idle) >= self.max_idle
        if not reusable or connection.is_leaving() or self.is_retired or self.waiting or is_full:
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
