"""PendingLookups: the DNS lookups in progress and in the queue, with their tasks and time limits.

Clients take turns. A name whose domain has its share of the lookups waits in a separate queue, so that names of other
domains overtake it; when a lookup below its domain ends, it returns to the common queue. The resolver runs the queries
and notifies the waiters.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from egressproxy.model.authority import IPAddress
from egressproxy.model.per_client_quota import FairQueue, PerClientQuota

MAX_LOOKUPS = 500  # lookups in progress: each holds up to six sockets
#: The limit below one domain (the last two labels), so that silent servers of one owner delay no other domain.
MAX_LOOKUPS_OF_DOMAIN = 200
#: The limit per client; a lookup counts for the client that began it.
MAX_LOOKUPS_OF_CLIENT = 250
MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN = 100
#: Waiting names, in all and for one client.
MAX_QUEUED = 4096
MAX_QUEUED_OF_CLIENT = 1024


Waiter = asyncio.Future[tuple[IPAddress, ...]]


class Lookup:
    """A lookup in progress or in a queue. `clients` wait for its result; "" is the gateway itself. `started` is in
    monotonic seconds.
    """

    __slots__ = ("client", "clients", "domain", "host", "late", "queue", "started", "task", "waiters")

    def __init__(self, host: str, client: str, started: float) -> None:
        self.host = host
        self.client = client
        self.clients = [client]
        self.domain = ".".join(host.rsplit(".", 2)[-2:])
        self.queue: FairQueue[Lookup] | None = None  # its queue, or None in progress
        self.started = started
        self.late: asyncio.TimerHandle | None = None  # the time limit in the queue
        self.task: asyncio.Task[None] | None = None
        self.waiters: list[asyncio.Future[Any]] = []


class LookupScheduler:
    """The order of one resolver's lookups. A lookup started by `begin` or `next` is counted until `ended`."""

    __slots__ = ("_apart", "_of_domain", "_queue", "asking", "waiting")

    def __init__(self) -> None:
        self.asking = PerClientQuota(sys.maxsize, sys.maxsize)  # in progress; these two only count, the rules are below
        self._of_domain: dict[str, PerClientQuota] = {}
        self.waiting = PerClientQuota(MAX_QUEUED, MAX_QUEUED_OF_CLIENT)  # lookups in queues
        self._queue: FairQueue[Lookup] = FairQueue(sys.maxsize, sys.maxsize)
        self._apart: dict[str, FairQueue[Lookup]] = {}  # by domain, for domains with a full share

    def begin(self, lookup: Lookup) -> bool:
        """Count this lookup and return true if it may begin at once."""
        is_free = self.asking.total < MAX_LOOKUPS and self._may_ask(lookup.client)
        if is_free and self._may_ask_below(lookup.domain, lookup.client):
            self._count(lookup)
            return True
        return False

    def wait(self, lookup: Lookup) -> bool:
        """Queue the lookup; returns false if the queue or the client's share is full."""
        if not self.waiting.take(lookup.client):
            return False
        self._put(lookup)
        return True

    def join(self, lookup: Lookup, client: str) -> None:
        """Add a client to a queued lookup, whose turn comes with the first turn of any of its clients."""
        if lookup.queue is not None and client not in lookup.clients and self.waiting.take(client):
            lookup.clients.append(client)
            lookup.queue.add(client, lookup)

    def next(self) -> Lookup | None:
        """The next lookup, counted as in progress; None if there is none."""
        while self.asking.total < MAX_LOOKUPS:
            lookup = self._queue.next(self._may_ask)
            if lookup is None:
                return None
            self._take_out(lookup, is_returned=True)
            if self._may_ask_below(lookup.domain, lookup.client):
                self._give_places_back(lookup)
                self._count(lookup)
                return lookup
            self._put(lookup)
        return None

    def ended(self, lookup: Lookup) -> None:
        """Stop counting a finished lookup; `next` may now return others."""
        self.asking.give_back(lookup.client)
        below = self._of_domain[lookup.domain]
        below.give_back(lookup.client)
        if not below.total:
            del self._of_domain[lookup.domain]
        self._let_in(lookup.domain)

    def leave(self, lookup: Lookup) -> None:
        """Remove a lookup from its queue, if any."""
        if lookup.queue is not None:
            self._take_out(lookup)
            self._give_places_back(lookup)
            self._let_in(lookup.domain)

    def has_its_share(self, client: str) -> bool:
        """Whether this client has filled its own share of the queue."""
        return client != "" and self.waiting.of(client) >= self.waiting.share

    def clear(self) -> None:
        """Empty the queues."""
        self._queue.clear()
        self._apart.clear()

    # --- rules -----------------------------------------------------------------------------------------------------
    def _may_ask(self, client: str) -> bool:
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
    def _count(self, lookup: Lookup) -> None:
        self.asking.add(lookup.client)
        self._of_domain.setdefault(lookup.domain, PerClientQuota(sys.maxsize, sys.maxsize)).add(lookup.client)

    def _put(self, lookup: Lookup) -> None:
        """Append the lookup to the queue: the domain's own if the domain's share is full, else the common queue."""
        queue = self._queue
        if not self._may_ask_below(lookup.domain, lookup.client):
            queue = self._apart.setdefault(lookup.domain, FairQueue(sys.maxsize, sys.maxsize))
        self._add_to(queue, lookup)

    @staticmethod
    def _add_to(queue: FairQueue[Lookup], lookup: Lookup) -> None:
        lookup.queue = queue
        for client in lookup.clients:
            queue.add(client, lookup)

    def _take_out(self, lookup: Lookup, *, is_returned: bool = False) -> None:
        """Remove the lookup for each client. `is_returned`: its queue has already removed it for one client."""
        queue, lookup.queue = lookup.queue, None
        assert queue is not None
        if not is_returned or len(lookup.clients) > 1:  # a removal is a linear search
            for client in lookup.clients:
                queue.remove(client, lookup)
        if not queue and queue is not self._queue:
            del self._apart[lookup.domain]

    def _give_places_back(self, lookup: Lookup) -> None:
        for client in lookup.clients:
            self.waiting.give_back(client)

    def _let_in(self, domain: str) -> None:
        """Move one lookup from the queue of its domain to the common queue, after another has ended or left."""
        apart = self._apart.get(domain)
        if apart is not None and not self._is_full(domain):  # a full domain may not begin
            lookup = apart.next(partial(self._may_ask_below, domain))
            if lookup is not None:
                self._take_out(lookup, is_returned=True)
                self._add_to(self._queue, lookup)

    def __repr__(self) -> str:
        return f"LookupScheduler({self.asking.total} in progress, {self.waiting.total} wait)"


class PendingLookups:
    """`run` queries a name and calls `end`. `too_late` is called with a lookup after `timeout_s` seconds in a queue."""

    __slots__ = ("_run", "_timeout_s", "_too_late", "known", "scheduler")

    def __init__(
        self,
        run: Callable[[Lookup], Coroutine[Any, Any, None]],
        too_late: Callable[[Lookup], None],
        timeout_s: float,
    ) -> None:
        self._run = run
        self._too_late = too_late
        self._timeout_s = timeout_s
        self.known: dict[str, Lookup] = {}  # by host
        self.scheduler = LookupScheduler()

    def start(self, host: str, client: str, now: float) -> Lookup | None:
        """Begin or queue the lookup of a name for a client; None: the queue is full. `now`: monotonic seconds."""
        lookup = Lookup(host, client, now)
        if self.scheduler.begin(lookup):
            self._begin(lookup)
        elif self.scheduler.wait(lookup):
            lookup.late = asyncio.get_running_loop().call_later(self._timeout_s, self._is_late, lookup)
        else:
            return None
        self.known[host] = lookup
        return lookup

    def end(self, lookup: Lookup) -> None:
        """Remove a finished lookup, and begin the next lookups in the queue."""
        del self.known[lookup.host]
        self.scheduler.ended(lookup)
        self._begin_next()

    def close(self) -> None:
        """Stop all lookups; their waiters get CancelledError."""
        self.scheduler.clear()
        for lookup in list(self.known.values()):
            if lookup.task is not None:
                lookup.task.cancel()
            if lookup.late is not None:
                lookup.late.cancel()
            for waiter in lookup.waiters:
                waiter.cancel()

    def _begin(self, lookup: Lookup) -> None:
        self._stop_waiting(lookup)
        lookup.task = asyncio.get_running_loop().create_task(self._run(lookup))

    def _begin_next(self) -> None:
        """Begin the next lookups. Lookups without waiters are dropped."""
        while (lookup := self.scheduler.next()) is not None:
            if all(waiter.done() for waiter in lookup.waiters):
                self._stop_waiting(lookup)
                del self.known[lookup.host]
                self.scheduler.ended(lookup)
            else:
                self._begin(lookup)

    def _is_late(self, lookup: Lookup) -> None:
        lookup.late = None
        del self.known[lookup.host]
        self.scheduler.leave(lookup)
        self._begin_next()
        self._too_late(lookup)

    @staticmethod
    def _stop_waiting(lookup: Lookup) -> None:
        if lookup.late is not None:
            lookup.late.cancel()
            lookup.late = None

    def __repr__(self) -> str:
        return f"PendingLookups({self.scheduler.asking.total} under way, {self.scheduler.waiting.total} wait)"
