"""SharedPool: connections to one destination that carry many exchanges in parallel (HTTP/2). Like Pool it decides
without awaiting, writing or closing.

An exchange has a place on a connection. If all places are taken, another connection is opened; meanwhile as many
exchanges wait as the connection will probably carry. The queue is bounded, clients take turns, and no client has more
than `share` places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from egressproxy.errors import GatewayError, LimitExceeded, Reason
from egressproxy.model.per_client_quota import FairQueue, PerClientQuota
from egressproxy.upstream.pool import MAX_OPEN, SHARE, Pooled, PoolTicket

#: The assumed places of a connection before its first SETTINGS.
MOST: Final = 100

S = TypeVar("S", bound=Pooled)


class Shareable(Protocol):
    """The pool's view of a connection."""

    @property
    def room(self) -> int:
        """The number of exchanges that may begin now."""

    @property
    def most(self) -> int:
        """The most parallel exchanges."""

    @property
    def is_new(self) -> bool:
        """Whether the peer has not sent its limit yet."""

    @property
    def active(self) -> int:
        """The number of exchanges in progress."""


class SharedPool(Generic[S]):
    """`connections` has the open connections, including draining ones. `opening` counts dials."""

    __slots__ = (
        "_clients", "_held", "_new_place", "connections", "limit", "max_connections", "name", "opening", "share",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str, new_place: Callable[[Any], S], limit: int = MAX_OPEN, share: int = SHARE) -> None:
        """`new_place`: makes an exchange's place on a connection, which has room. `limit`: connections, parallel
        exchanges, and waiting exchanges; `share`: exchanges of one client.
        """
        self.name = name
        self._new_place = new_place
        self.limit = limit
        self.share = share
        self.max_connections = limit
        self.connections: list[Shareable] = []
        self.opening = 0
        self.waiting: FairQueue[PoolTicket[S]] = FairQueue(limit, share)
        self._clients: dict[S, str] = {}  # place -> client
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

    def reserve(self, connection: Shareable, ticket: PoolTicket[S]) -> S:
        """A place on this connection, which has room."""
        place = self._new_place(connection)
        self._clients[place] = ticket.client
        self._held.add(ticket.client)
        return place

    def may_open(self, ticket: PoolTicket[S]) -> bool:
        """Whether the caller may open a connection; it then calls `opened` or `failed`."""
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
        """Remove the ticket of a finished exchange. Returns a place to give back, or None."""
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
        """End the wait of a ticket: its future raises LimitExceeded (503), unless it has a result already."""
        if ticket.given is not None and not ticket.given.done():
            message = f"no connection to {self.name} became free in time"
            ticket.given.set_exception(LimitExceeded(Reason.QUEUE_TIMEOUT, message, status=503, retry_after_s=1))

    # --- events ----------------------------------------------------------------------------------------------------
    def opened(self, connection: Shareable) -> None:
        """Add a dialled connection."""
        self.opening -= 1
        self.connections.append(connection)

    def failed(self) -> None:
        """Record a dial that failed, or that opened an HTTP/1.1 connection. Waiting exchanges may dial."""
        self.opening -= 1
        self.settle()

    def fail_all(self, error: GatewayError) -> None:
        """Fail all waiting exchanges with the error of their dial."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for ticket in waiting:
            if ticket.given is not None and not ticket.given.done():
                again = type(error)(error.reason, error.message, status=error.status, retry=error.retry)
                again.detail, again.remedy, again.retry_after_s = error.detail, error.remedy, error.retry_after_s
                ticket.given.set_exception(again)

    def let_all_open(self) -> None:
        """Let every waiting exchange dial: the destination does not support shared connections."""
        while (ticket := self.waiting.next()) is not None:
            if ticket.given is not None and not ticket.given.done():
                self.opening += 1
                ticket.given.set_result(None)

    def given_back(self, place: S) -> None:
        """Free the place of a finished exchange."""
        client = self._clients.pop(place, None)
        if client is not None:
            self._held.give_back(client)
        self.settle()

    def lost(self, connection: Shareable) -> None:
        """Remove a closed connection."""
        if connection in self.connections:
            self.connections.remove(connection)
        self.settle()

    def settle(self) -> None:
        """Give the next waiting exchanges places, or the right to open a connection."""
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
        """The numbers of active and idle connections."""
        active = sum(1 for connection in self.connections if connection.active)
        return active + self.opening, len(self.connections) - active

    def _with_room(self) -> Shareable | None:
        """The oldest connection with room, so that the others become idle and close."""
        for connection in self.connections:
            if connection.room > 0:
                return connection
        return None

    def _may_have(self, client: str) -> bool:
        held = self._held
        return held.total + self.opening < self.limit and held.of(client) < self.share

    def _needs_another(self, wanted: int) -> bool:
        """Whether new connections and pending dials are too few for `wanted` exchanges besides the dialling ones."""
        if self.opening + len(self.connections) >= self.max_connections:
            return False
        known = [connection.most for connection in self.connections if not connection.is_new]
        coming = self.opening + len(self.connections) - len(known)
        if len(self.connections) + self.opening >= self.limit:
            return False
        return coming * (max(1, *known) - 1 if known else MOST - 1) < wanted
