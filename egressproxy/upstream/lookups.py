"""Lookups: which names are being asked for at this moment, which wait for their turn, and how many a client may have.

A lookup holds sockets until it ends, so there is a bound in all, below one domain, and for one client; it is counted
for the client that wished for it first. What is beyond waits, in a queue in which clients take turns, for as long as an
answer may take. How a name is asked for, and who waits for it, is the resolver's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from egressproxy.model.authority import IPAddress
from egressproxy.model.shares import FairQueue, Shares

__all__ = ["Lookup", "Lookups", "Waiter"]

MAX_LOOKUPS = 500  # names being asked for at one time: each holds up to six sockets
#: Of these, names under one domain (its last two labels): the silent servers of one owner keep nobody else waiting.
MAX_LOOKUPS_OF_DOMAIN = 200
#: What one client may have of each.
MAX_LOOKUPS_OF_CLIENT = 250
MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN = 100
#: Names that wait until others have been looked up, in all and for one client.
MAX_QUEUED = 2000
MAX_QUEUED_OF_CLIENT = 500

Waiter = asyncio.Future[tuple[IPAddress, ...]]


class Lookup:
    """A name that is being asked for, or waits for its turn. `client` is who wished for it first, "" ourselves."""

    __slots__ = ("client", "clients", "host", "late", "started", "task", "waiters")

    def __init__(self, host: str, client: str, started: float) -> None:
        self.host = host
        self.client = client
        self.started = started
        self.late: asyncio.TimerHandle | None = None  # while it waits for its turn
        self.clients = [client]  # in whose queues it waits
        self.task: asyncio.Task[None] | None = None
        self.waiters: list[Waiter] = []

    def __repr__(self) -> str:
        return f"Lookup({self.host}, {'waits' if self.late is not None else 'under way'}, {len(self.waiters)} waiters)"


class Lookups:
    """`run` asks for a name, and calls `end`; `too_late` is told of one whose turn has not come in `timeout_s`."""

    __slots__ = ("_of_domain", "_run", "_running", "_timeout_s", "_too_late", "known", "queue")

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
        self.queue: FairQueue[Lookup] = FairQueue(MAX_QUEUED, MAX_QUEUED_OF_CLIENT)
        self._running = Shares(sys.maxsize, sys.maxsize)
        self._of_domain: dict[str, Shares] = {}  # queued ones, too

    def __len__(self) -> int:
        return len(self.known)

    def start(self, host: str, client: str, now: float) -> Lookup | None:
        """A lookup of this name, which is under way or waits; None where neither may be."""
        if self._is_domain_full(host) or self._has_share_of_domain(host, client):
            return None
        lookup = Lookup(host, client, now)
        if self._running.total < MAX_LOOKUPS and self._may_ask(client):
            self._begin(lookup)
        elif self.queue.add(client, lookup):
            lookup.late = asyncio.get_running_loop().call_later(self._timeout_s, self._is_late, lookup)
        else:
            return None
        domain = _domain(host)
        below = self._of_domain.get(domain)
        if below is None:
            below = self._of_domain[domain] = Shares(sys.maxsize, sys.maxsize)
        below.add(client)
        self.known[host] = lookup
        return lookup

    def join(self, lookup: Lookup, client: str) -> None:
        """Another wishes for the same: it begins when the turn of either has come."""
        if lookup.late is not None and client not in lookup.clients and self.queue.add(client, lookup):
            lookup.clients.append(client)

    def end(self, lookup: Lookup) -> None:
        """It is over: those whose turn it is begin. What nobody waits for any more does not."""
        self._forget(lookup)
        self._running.give_back(lookup.client)
        while self._running.total < MAX_LOOKUPS:
            following = self.queue.next(self._may_ask)
            if following is None:
                return
            if all(waiter.done() for waiter in following.waiters):
                self._forget(following)
            else:
                self._begin(following)

    def is_refused_to(self, host: str, client: str) -> bool:
        """Whether it is for what this client has already that a lookup of this name does not begin."""
        return not self._may_ask(client) or self._has_share_of_domain(host, client)

    def close(self) -> None:
        """Stop all; whoever still waits gets CancelledError."""
        self.queue.clear()
        for lookup in list(self.known.values()):
            if lookup.task is not None:
                lookup.task.cancel()
            if lookup.late is not None:
                lookup.late.cancel()
            for waiter in lookup.waiters:
                waiter.cancel()

    def _is_domain_full(self, host: str) -> bool:
        below = self._of_domain.get(_domain(host))
        return below is not None and below.total >= MAX_LOOKUPS_OF_DOMAIN

    def _has_share_of_domain(self, host: str, client: str) -> bool:
        below = self._of_domain.get(_domain(host))
        return client != "" and below is not None and below.of(client) >= MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN

    def _may_ask(self, client: str) -> bool:
        """Whether this client has less than its share of the lookups under way."""
        return not client or self._running.of(client) < MAX_LOOKUPS_OF_CLIENT

    def _begin(self, lookup: Lookup) -> None:
        self._running.add(lookup.client)
        self._leave_queue(lookup)
        lookup.task = asyncio.get_running_loop().create_task(self._run(lookup))

    def _is_late(self, lookup: Lookup) -> None:
        self._forget(lookup)
        self._too_late(lookup)

    def _forget(self, lookup: Lookup) -> None:
        self._leave_queue(lookup)
        del self.known[lookup.host]
        domain = _domain(lookup.host)
        below = self._of_domain[domain]
        below.give_back(lookup.client)
        if not below.total:
            del self._of_domain[domain]

    def _leave_queue(self, lookup: Lookup) -> None:
        if lookup.late is not None:
            lookup.late.cancel()
            lookup.late = None
            for client in lookup.clients:
                self.queue.remove(client, lookup)

    def __repr__(self) -> str:
        return f"Lookups({self._running.total} under way, {len(self.queue)} wait)"


def _domain(host: str) -> str:
    """Its last two labels."""
    return ".".join(host.rsplit(".", 2)[-2:])
