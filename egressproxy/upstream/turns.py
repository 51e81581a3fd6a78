"""Turns: which names are being looked up, and which wait until others have ended.

Clients take turns. A name whose domain has its share of the lookups waits in a queue of its own, so that names of other
domains overtake it; when a lookup below its domain ends, it returns to the common queue. Pure: it asks no server.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Generic, TypeVar

from egressproxy.model.shares import FairQueue, Shares

__all__ = ["LookupTurn", "Turns"]

MAX_LOOKUPS = 500  # lookups in progress: each holds up to six sockets
#: Of these, below one domain (the last two labels), so that silent servers of one owner delay no other domain.
MAX_LOOKUPS_OF_DOMAIN = 200
#: The same for one client; a lookup is counted for the client that began it, until it ends.
MAX_LOOKUPS_OF_CLIENT = 250
MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN = 100
#: Waiting names, in all and for one client.
MAX_QUEUED = 4096
MAX_QUEUED_OF_CLIENT = 1024


class LookupTurn:
    """A lookup in the queue. `clients` are those that wait for it; "" is the gateway itself."""

    __slots__ = ("client", "clients", "domain", "queue")

    def __init__(self, host: str, client: str) -> None:
        self.client = client
        self.clients = [client]
        self.domain = ".".join(host.rsplit(".", 2)[-2:])
        self.queue: FairQueue[Any] | None = None  # where it waits, or None


T = TypeVar("T", bound=LookupTurn)


class Turns(Generic[T]):
    """The turns of one resolver. A lookup that `begin` or `next` let go is counted until `ended`."""

    __slots__ = ("_apart", "_of_domain", "_queue", "asking", "waiting")

    def __init__(self) -> None:
        self.asking = Shares(sys.maxsize, sys.maxsize)  # in progress; these two only count, the rules are below
        self._of_domain: dict[str, Shares] = {}
        self.waiting = Shares(MAX_QUEUED, MAX_QUEUED_OF_CLIENT)  # what clients wait for
        self._queue: FairQueue[T] = FairQueue(sys.maxsize, sys.maxsize)
        self._apart: dict[str, FairQueue[T]] = {}  # by domain, for domains that have their share

    def begin(self, turn: T) -> bool:
        """Whether this lookup may begin at once; if so, it is counted."""
        if self.asking.total >= MAX_LOOKUPS or not self._may_ask(turn.client):
            return False
        if not self._may_ask_below(turn.domain, turn.client):
            return False
        self._count(turn)
        return True

    def wait(self, turn: T) -> bool:
        """Put it into the queue; false if the queue is full or its client has its share of it."""
        if not self.waiting.take(turn.client):
            return False
        self._put(turn)
        return True

    def join(self, turn: T, client: str) -> None:
        """Let it wait for this client, too: its turn comes when the first of its clients has one."""
        if turn.queue is not None and client not in turn.clients and self.waiting.take(client):
            turn.clients.append(client)
            turn.queue.add(client, turn)

    def next(self) -> T | None:
        """The lookup whose turn it is, counted as in progress; None if there is none."""
        while self.asking.total < MAX_LOOKUPS:
            turn = self._queue.next(self._may_ask)
            if turn is None:
                return None
            self._popped(turn)
            if self._may_ask_below(turn.domain, turn.client):
                self._give_places_back(turn)
                self._count(turn)
                return turn
            self._put(turn)
        return None

    def ended(self, turn: T) -> None:
        """This lookup has ended: `next` may now return others."""
        self.asking.give_back(turn.client)
        below = self._of_domain[turn.domain]
        below.give_back(turn.client)
        if not below.total:
            del self._of_domain[turn.domain]
        self._let_in(turn.domain)

    def leave(self, turn: T) -> None:
        """Take it out of the queue."""
        if turn.queue is not None:
            self._take_out(turn)
            self._give_places_back(turn)
            self._let_in(turn.domain)

    def has_its_share(self, client: str) -> bool:
        """Whether this client has filled its own share of the queue."""
        return client != "" and self.waiting.of(client) >= self.waiting.share

    def clear(self) -> None:
        """Empty the queues."""
        self._queue.clear()
        self._apart.clear()

    # --- rules -----------------------------------------------------------------------------------------------------
    def _may_ask(self, client: str) -> bool:
        """Whether this client has less than its share of the lookups in progress."""
        return not client or self.asking.of(client) < MAX_LOOKUPS_OF_CLIENT

    def _may_ask_below(self, domain: str, client: str) -> bool:
        """Whether this domain, and this client below it, have less than their shares."""
        if self._is_full(domain):
            return False
        below = self._of_domain.get(domain)
        return not client or below is None or below.of(client) < MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN

    def _is_full(self, domain: str) -> bool:
        """Whether this domain has its share of the lookups in progress."""
        below = self._of_domain.get(domain)
        return below is not None and below.total >= MAX_LOOKUPS_OF_DOMAIN

    # --- places ----------------------------------------------------------------------------------------------------
    def _count(self, turn: T) -> None:
        self.asking.add(turn.client)
        below = self._of_domain.get(turn.domain)
        if below is None:
            below = self._of_domain[turn.domain] = Shares(sys.maxsize, sys.maxsize)
        below.add(turn.client)

    def _put(self, turn: T) -> None:
        """Put it behind the others of its clients: into the queue of its domain where that has its share."""
        queue = self._queue
        if not self._may_ask_below(turn.domain, turn.client):
            apart = self._apart.get(turn.domain)
            queue = apart if apart is not None else FairQueue(sys.maxsize, sys.maxsize)
            self._apart[turn.domain] = queue
        self._add_to(queue, turn)

    @staticmethod
    def _add_to(queue: FairQueue[T], turn: T) -> None:
        turn.queue = queue
        for client in turn.clients:
            queue.add(client, turn)

    def _popped(self, turn: T) -> None:
        """Its queue returned it for one of its clients: remove it for the other clients, too."""
        if len(turn.clients) > 1:
            self._take_out(turn)
        else:
            self._forget_empty(turn)

    def _take_out(self, turn: T) -> None:
        assert turn.queue is not None
        for client in turn.clients:
            turn.queue.remove(client, turn)
        self._forget_empty(turn)

    def _forget_empty(self, turn: T) -> None:
        queue, turn.queue = turn.queue, None
        if not queue and queue is not self._queue:
            del self._apart[turn.domain]

    def _give_places_back(self, turn: T) -> None:
        for client in turn.clients:
            self.waiting.give_back(client)

    def _let_in(self, domain: str) -> None:
        """Move one lookup from the queue of its domain to the common one: one for each that has ended or left."""
        apart = self._apart.get(domain)
        if apart is not None and not self._is_full(domain):  # otherwise no client of it may begin
            turn = apart.next(partial(self._may_ask_below, domain))
            if turn is not None:
                self._popped(turn)
                self._add_to(self._queue, turn)

    def __repr__(self) -> str:
        return f"Turns({self.asking.total} in progress, {self.waiting.total} wait)"
