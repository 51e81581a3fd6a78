"""SharedPool: connections to one destination that carry many exchanges at a time (HTTP/2). Like Pool it decides without
awaiting, writing or closing.

An exchange has a place on a connection. Where all are taken, another connection is opened; while one is being opened,
as many exchanges wait for it as it will probably carry. Waiting exchanges are in a bounded queue, in which clients take
turns, and no client has more than `share` places.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic, Protocol, TypeVar

from egressproxy.errors import GatewayError, LimitExceeded, Reason
from egressproxy.model.per_client_quota import FairQueue, PerClientQuota
from egressproxy.upstream.pool import MAX_OPEN, SHARE, Pooled, PoolTicket

#: Places that a connection has, until one has said how many.
MOST: Final = 100

S = TypeVar("S", bound=Pooled)
S_co = TypeVar("S_co", covariant=True)


class Shareable(Protocol[S_co]):
    """What the pool needs of a connection. `S` is an exchange's place on it."""

    @property
    def room(self) -> int:
        """How many exchanges may begin on it now."""

    @property
    def most(self) -> int:
        """How many it carries at a time."""

    @property
    def is_new(self) -> bool:
        """It has not said yet how many it carries."""

    @property
    def active(self) -> int:
        """How many it carries now."""

    def reserve(self) -> S_co:
        """A place on it, where there is room."""


class SharedPool(Generic[S]):
    """`connections` are those that are open, the ones that are leaving included. `opening` counts dials."""

    __slots__ = ("_clients", "_held", "connections", "limit", "max_connections", "name", "opening", "share", "waiting")

    def __init__(self, name: str, limit: int = MAX_OPEN, share: int = SHARE) -> None:
        """`limit`: connections, exchanges at a time, and exchanges that wait; `share`: exchanges of one client."""
        self.name = name
        self.limit = limit
        self.share = share
        self.max_connections = limit
        self.connections: list[Shareable[S]] = []
        self.opening = 0
        self.waiting: FairQueue[PoolTicket[S]] = FairQueue(limit, share)
        self._clients: dict[S, str] = {}  # who has each place
        self._held = PerClientQuota(limit, share)

    @property
    def is_empty(self) -> bool:
        return not (self.connections or self.opening or self.waiting)

    # --- asking ----------------------------------------------------------------------------------------------------
    def take(self, ticket: PoolTicket[S]) -> S | None:
        if self.waiting or not self._may_have(ticket.client):
            return None
        connection = self._with_room()
        return None if connection is None else self.reserve(connection, ticket)

    def reserve(self, connection: Shareable[S], ticket: PoolTicket[S]) -> S:
        """A place on this connection, which has room."""
        place = connection.reserve()
        self._clients[place] = ticket.client
        self._held.add(ticket.client)
        return place

    def may_open(self, ticket: PoolTicket[S]) -> bool:
        """Whether the caller may open a connection. Then call `opened`, or `failed`."""
        if not (self._may_have(ticket.client) and self._needs_another(len(self.waiting) + 1)):
            return False
        self.opening += 1
        return True

    def wait(self, ticket: PoolTicket[S], loop: asyncio.AbstractEventLoop) -> asyncio.Future[S | None]:
        """Wait in the queue: the future gives a place, or None for the right to open a connection (already counted).
        Raises LimitExceeded (503) if the queue is full, or full of this client.
        """
        if not self.waiting.add(ticket.client, ticket):
            message = f"too many requests are waiting for {self.name}"
            raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        ticket.given = loop.create_future()
        given = ticket.given
        self.settle()
        return given

    def leave(self, ticket: PoolTicket[S]) -> S | None:
        """Remove a claim whose exchange has ended. Returns a place that it was given, to be given back; or None."""
        given, ticket.given = ticket.given, None
        if self.waiting.remove(ticket.client, ticket) or given is None or not given.done() or given.cancelled():
            return None
        if given.exception() is not None:
            return None
        place = given.result()
        if place is None:
            self.failed()
        return place

    def too_late(self, ticket: PoolTicket[S]) -> None:
        """End the wait of a claim: its future raises LimitExceeded (503), unless it has a result already."""
        if ticket.given is not None and not ticket.given.done():
            message = f"no connection to {self.name} became free in time"
            ticket.given.set_exception(LimitExceeded(Reason.QUEUE_TIMEOUT, message, status=503, retry_after_s=1))

    # --- what has happened -----------------------------------------------------------------------------------------
    def opened(self, connection: Shareable[S]) -> None:
        """A dial has led to this connection."""
        self.opening -= 1
        self.connections.append(connection)

    def failed(self) -> None:
        """A dial has failed, or led to another kind of connection. Who waits may try."""
        self.opening -= 1
        self.settle()

    def fail_all(self, error: GatewayError) -> None:
        """All who wait have waited for a dial that failed like this."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for ticket in waiting:
            if ticket.given is not None and not ticket.given.done():
                again = type(error)(error.reason, error.message, status=error.status, retry=error.retry)
                again.detail, again.remedy, again.retry_after_s = error.detail, error.remedy, error.retry_after_s
                ticket.given.set_exception(again)

    def let_all_open(self) -> None:
        """The destination does not share connections: everybody opens one."""
        while (ticket := self.waiting.next()) is not None:
            if ticket.given is not None and not ticket.given.done():
                self.opening += 1
                ticket.given.set_result(None)

    def given_back(self, place: S) -> None:
        """An exchange has ended, and its connection has room again."""
        client = self._clients.pop(place, None)
        if client is not None:
            self._held.give_back(client)
        self.settle()

    def lost(self, connection: Shareable[S]) -> None:
        """A connection is gone."""
        if connection in self.connections:
            self.connections.remove(connection)
        self.settle()

    def settle(self) -> None:
        """Give places to those whose turn it is, or the right to open a connection."""
        while self.waiting:
            connection = self._with_room()
            if connection is None and not self._needs_another(len(self.waiting)):
                return
            ticket = self.waiting.next(self._may_have)
            if ticket is None:
                return
            if ticket.given is None or ticket.given.done():
                continue
            if connection is not None:
                ticket.given.set_result(self.reserve(connection, ticket))
            else:
                self.opening += 1
                ticket.given.set_result(None)

    # --- numbers ---------------------------------------------------------------------------------------------------
    def counts(self) -> tuple[int, int]:
        """Connections (active, idle)."""
        active = sum(1 for connection in self.connections if connection.active)
        return active + self.opening, len(self.connections) - active

    def _with_room(self) -> Shareable[S] | None:
        """The oldest connection with room, so that the others become idle and close."""
        for connection in self.connections:
            if connection.room > 0:
                return connection
        return None

    def _may_have(self, client: str) -> bool:
        held = self._held
        return held.total + self.opening < self.limit and held.of(client) < self.share

    def _needs_another(self, wanted: int) -> bool:
        """Whether the connections that are opened, or new, are too few for so many, besides whoever opens them."""
        if self.opening + len(self.connections) >= self.max_connections:
            return False
        known = [connection.most for connection in self.connections if not connection.is_new]
        coming = self.opening + len(self.connections) - len(known)
        if len(self.connections) + self.opening >= self.limit:
            return False
        return coming * (max(1, *known) - 1 if known else MOST - 1) < wanted
