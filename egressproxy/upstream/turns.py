"""Turns: which names are looked up at this moment, and which wait until others have ended.

Clients take turns. A name whose domain has its share of the lookups waits apart from the others, so that those of
other domains pass it by; when a lookup below its domain ends it is let in again. Decides, and asks nobody.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Generic, TypeVar

from egressproxy.model.shares import FairQueue, Shares

__all__ = ["LookupTurn", "Turns"]

MAX_LOOKUPS = 500  # names being asked for at one time: each holds up to six sockets
#: Of these, names under one domain (its last two labels): the silent servers of one owner keep nobody else waiting.
MAX_LOOKUPS_OF_DOMAIN = 200
#: What one client may have of each; a lookup is counted for the client that began it, until it ends.
MAX_LOOKUPS_OF_CLIENT = 250
MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN = 100
#: Names that wait until others have been looked up, in all and for one client.
MAX_QUEUED = 4096
MAX_QUEUED_OF_CLIENT = 1024


class LookupTurn:
    """A lookup, as far as its turn is concerned. `clients` are those for whom it waits; "" is us."""

    __slots__ = ("client", "clients", "domain", "queue")

    def __init__(self, host: str, client: str) -> None:
        self.client = client
        self.clients = [client]
        self.domain = ".".join(host.rsplit(".", 2)[-2:])
        self.queue: FairQueue[Any] | None = None  # where it waits; None: it does not


T = TypeVar("T", bound=LookupTurn)


class Turns(Generic[T]):
    """Those of one resolver. What `begin` and `next` gave is counted until `ended`."""

    __slots__ = ("_apart", "_of_domain", "_queue", "asking", "waiting")

    def __init__(self) -> None:
        self.asking = Shares(sys.maxsize, sys.maxsize)  # under way; this and the next count, the rules are below
        self._of_domain: dict[str, Shares] = {}
        self.waiting = Shares(MAX_QUEUED, MAX_QUEUED_OF_CLIENT)  # wishes of clients that wait
        self._queue: FairQueue[T] = FairQueue(sys.maxsize, sys.maxsize)
        self._apart: dict[str, FairQueue[T]] = {}  # by domain, where that has its share

    def begin(self, turn: T) -> bool:
        """Whether it may begin at once; it is counted then."""
        if self.asking.total >= MAX_LOOKUPS or not self._may_ask(turn.client):
            return False
        if not self._may_ask_below(turn.domain, turn.client):
            return False
        self._count(turn)
        return True

    def wait(self, turn: T) -> bool:
        """A place in the queue; false where its client has its share of them, or none is left."""
        if not self.waiting.take(turn.client):
            return False
        self._put(turn)
        return True

    def join(self, turn: T, client: str) -> None:
        """It waits for this client, too, and has its turn when the first of them has one."""
        if turn.queue is not None and client not in turn.clients and self.waiting.take(client):
            turn.clients.append(client)
            turn.queue.add(client, turn)

    def next(self) -> T | None:
        """Whose turn it is, counted as under way; None: nobody's."""
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
        """It is no longer under way: `next` may give others now."""
        self.asking.give_back(turn.client)
        below = self._of_domain[turn.domain]
        below.give_back(turn.client)
        if not below.total:
            del self._of_domain[turn.domain]
        self._let_in(turn.domain)

    def leave(self, turn: T) -> None:
        """It waits no more."""
        if turn.queue is not None:
            self._take_out(turn)
            self._give_places_back(turn)
            self._let_in(turn.domain)

    def has_its_share(self, client: str) -> bool:
        """Whether it is for this client alone that another name is not looked up."""
        return client != "" and self.waiting.of(client) >= self.waiting.share

    def clear(self) -> None:
        """Nobody waits any more."""
        self._queue.clear()
        self._apart.clear()

    # --- rules -----------------------------------------------------------------------------------------------------
    def _may_ask(self, client: str) -> bool:
        """Whether this client has less than its share of the lookups under way."""
        return not client or self.asking.of(client) < MAX_LOOKUPS_OF_CLIENT

    def _may_ask_below(self, domain: str, client: str) -> bool:
        """Whether this domain, and this client below it, has less than its share."""
        if self._is_full(domain):
            return False
        below = self._of_domain.get(domain)
        return not client or below is None or below.of(client) < MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN

    def _is_full(self, domain: str) -> bool:
        """Whether this domain has its share, whoever asks."""
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
        """Behind the others of its clients: apart where its domain has its share."""
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
        """Its queue has given it for one of its clients: the others have no place there any more, either."""
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
        """One of those that wait for their domain waits with all others now: one for each that has ended or left."""
        apart = self._apart.get(domain)
        if apart is not None and not self._is_full(domain):  # else no client is worth to be asked for
            turn = apart.next(partial(self._may_ask_below, domain))
            if turn is not None:
                self._popped(turn)
                self._add_to(self._queue, turn)

    def __repr__(self) -> str:
        return f"Turns({self.asking.total} under way, {self.waiting.total} wait)"
