"""Lookups: the tasks that ask for names, and the time limits of the names that wait for their turn (see `turns`).

The resolver says how a name is asked for, and tells the waiters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from egressproxy.upstream.turns import Lookup, Turns


class Lookups:
    """`run` asks for a name and calls `end`. `too_late` gets each lookup that has waited for `timeout_s` seconds."""

    __slots__ = ("_run", "_timeout_s", "_too_late", "known", "turns")

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
        self.turns = Turns()

    def start(self, host: str, client: str, now: float) -> Lookup | None:
        """Begin to look up this name for this client, or have it wait for its turn; None if the queue is full.

        `now` in monotonic seconds.
        """
        lookup = Lookup(host, client, now)
        if self.turns.begin(lookup):
            self._begin(lookup)
        elif self.turns.wait(lookup):
            lookup.late = asyncio.get_running_loop().call_later(self._timeout_s, self._is_late, lookup)
        else:
            return None
        self.known[host] = lookup
        return lookup

    def end(self, lookup: Lookup) -> None:
        """Remove a lookup that is over, and begin those whose turn it is."""
        del self.known[lookup.host]
        self.turns.ended(lookup)
        self._begin_next()

    def close(self) -> None:
        """Stop all lookups; their waiters get CancelledError."""
        self.turns.clear()
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
        """Begin the lookups whose turn it is. Those for which nobody waits any more are dropped."""
        while (lookup := self.turns.next()) is not None:
            if all(waiter.done() for waiter in lookup.waiters):
                self._stop_waiting(lookup)
                del self.known[lookup.host]
                self.turns.ended(lookup)
            else:
                self._begin(lookup)

    def _is_late(self, lookup: Lookup) -> None:
        lookup.late = None
        del self.known[lookup.host]
        self.turns.leave(lookup)
        self._begin_next()
        self._too_late(lookup)

    @staticmethod
    def _stop_waiting(lookup: Lookup) -> None:
        if lookup.late is not None:
            lookup.late.cancel()
            lookup.late = None

    def __repr__(self) -> str:
        return f"Lookups({self.turns.asking.total} under way, {self.turns.waiting.total} wait)"
