"""Pool: the connections to one destination. It decides without awaiting, writing or closing; the caller acts.

One connection carries one exchange at a time. A free connection is taken last-in first-out, so that the rest can grow
old and
go. When the limit is reached exchanges wait in a bounded queue; a connection (or the right to open one) that becomes
free
goes to the one that has waited longest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from egressproxy.errors import LimitExceeded, Reason

__all__ = ["Pool", "Pooled"]


class Pooled(Protocol):
    """What a pool has to know of a connection."""

    @property
    def is_lost(self) -> bool: ...

    @property
    def is_leaving(self) -> bool:
        """Lost, or closing and about to be lost."""


C = TypeVar("C", bound=Pooled)


class Pool(Generic[C]):
    """`open` counts connections that are busy, idle or being opened; `limit` bounds it, `max_waiting` the queue."""

    __slots__ = ("idle", "is_retired", "limit", "max_idle", "max_waiting", "name", "open", "waiting")

    def __init__(self, name: str, limit: int = 1024, max_idle: int = 256, max_waiting: int = 1024) -> None:
        self.name = name
        self.limit = limit
        self.max_idle = max_idle
        self.max_waiting = max_waiting
        self.idle: list[C] = []
        self.open = 0
        self.waiting: deque[asyncio.Future[C | None]] = deque()
        self.is_retired = False

    @property
    def is_empty(self) -> bool:
        return self.open == 0 and not self.waiting

    @property
    def is_all_idle(self) -> bool:
        """Nothing is in use, and nobody waits."""
        return self.open == len(self.idle) and not self.waiting

    def take(self) -> C | None:
        """An idle connection, now busy; or None."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            if not connection.is_leaving:
                return connection
        return None

    def may_open(self) -> bool:
        """Whether the caller may open a connection; if so it is counted, and `lost` has to be called when it is gone
        or fails.
        """
        if self.open >= self.limit:
            return False
        self.open += 1
        return True

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[C | None]:
        """A place in the queue: gives a connection, or None for the right to open one (already counted).

        Raises LimitExceeded (503) if the queue is full.
        """
        if len(self.waiting) >= self.max_waiting:
            message = f"too many requests are waiting for backend {self.name}"
            raise LimitExceeded(Reason.QUEUE_FULL, message, status=503, retry_after_s=1)
        future: asyncio.Future[C | None] = loop.create_future()
        self.waiting.append(future)
        return future

    def leave(self, future: asyncio.Future[C | None]) -> C | None:
        """Whoever waited has gone. Returns a connection that was given to it in the meantime, to be released again."""
        if future in self.waiting:
            self.waiting.remove(future)
        elif future.done() and not future.cancelled() and future.exception() is None:
            given = future.result()
            if given is None:
                self.lost()
            return given
        return None

    def release(self, connection: C, *, reusable: bool) -> C | None:
        """An exchange is over. Returns the connection if it is to be closed (`lost` is called when it has gone)."""
        if not reusable or connection.is_leaving or self.is_retired:
            return connection
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return None
        if len(self.idle) >= self.max_idle:
            return connection
        self.idle.append(connection)
        return None

    def lost(self, connection: C | None = None) -> None:
        """A counted connection is gone, or was never opened. Its place goes to whoever waits."""
        if connection is not None and connection in self.idle:
            self.idle.remove(connection)
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.open -= 1

    def retire(self) -> list[C]:
        """No new exchange will come: returns the idle connections, to be closed. Busy ones are closed at their
        release.
        """
        self.is_retired = True
        idle, self.idle = self.idle, []
        return idle

    def __repr__(self) -> str:
        return f"Pool({self.name}, open={self.open}, idle={len(self.idle)}, waiting={len(self.waiting)})"
