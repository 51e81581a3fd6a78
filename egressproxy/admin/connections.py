"""The connections of an admin server: their limit, eviction, and time limits.

Health requests are always served. A new connection beyond the limit evicts the connection that has been idle longest.
If all are busy, it gets a place in the reserve, which serves health alone. A busy connection (a watch, too) is never
evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from operator import itemgetter
from time import monotonic  # uvloop's clock has milliseconds, and stands still while a callback runs
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.status import HEADERS
from egressproxy.admin.write_access import of_loopback

MAX_CONNECTIONS: Final = 64
#: The most connections of one peer; on loopback all clients are one peer.
MAX_OF_PEER: Final = 48
#: Places beyond the limit, for health.
RESERVE: Final = 16
#: Time limits in seconds: of the first request, of a head from its first byte, and of reading a response.
FIRST_REQUEST_S: Final = 10.0
HEAD_S: Final = 5.0
ANSWER_S: Final = 60.0
KEEPALIVE_S: Final = 30.0
_LOOK_S: Final = 0.5


class AdminConnection(web.RequestHandler):
    """One connection. `is_reserve`: serves one health request."""

    __slots__ = ("_connections", "_has_asked", "_head_since", "_in_hand", "_since", "is_reserve", "peer")

    def __init__(self, connections: AdminConnections, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self.is_reserve = False
        self.peer = ""
        self._since = 0.0  # time of the connection or the latest response
        self._head_since = 0.0  # time of the first byte of an incomplete head; 0: none
        self._has_asked = False
        self._in_hand = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As aiohttp's; then takes a place among the connections."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._since = monotonic()
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As aiohttp's; notes the start of an incomplete head."""
        super().data_received(data)
        if not self._in_hand and not self._head_since:
            self._head_since = monotonic()

    def handle_error(self, *error: Any, **more: Any) -> web.StreamResponse:
        """As aiohttp's, for a malformed request, with the fields of every answer."""
        response = super().handle_error(*error, **more)
        response.headers.update(HEADERS)
        return response

    def begin(self) -> None:
        self._in_hand += 1
        self._has_asked = True
        self._head_since = 0.0

    def end(self) -> None:
        """Note the end of a response, which may be partly unsent."""
        self._in_hand -= 1
        self._since = monotonic()

    @asynccontextmanager
    async def evictable(self) -> AsyncIterator[None]:
        """The connection counts as idle while a request waits for its client."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    @property
    def waits_since(self) -> float | None:
        """The start of its idle time, or None."""
        if self._in_hand or self._messages or self.unsent:
            return None
        return self._since

    @property
    def unsent(self) -> int:
        """The unsent bytes of a response."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def why_over(self, now: float) -> str:
        """The exceeded time limit, or ""."""
        if self._in_hand:
            return ""
        if self._head_since and now - self._head_since > HEAD_S:
            return "a head that does not end"
        if not self._has_asked and now - self._since > FIRST_REQUEST_S:
            return "no request"
        if self.unsent and now - self._since > ANSWER_S:
            return "the response is not read"
        return ""

    def drop(self) -> None:
        """Close now, even with unsent bytes."""
        transport = self.transport
        if isinstance(transport, asyncio.Transport):
            transport.abort()
        self.force_close()


class AdminConnections:
    """The connections of one admin server. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open: dict[AdminConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, fresh: AdminConnection) -> None:
        """Admit a connection, or close it or others."""
        for victim in self.room_for(fresh):
            victim.drop()
            self._open.pop(victim, None)
            if victim is fresh:
                return
        self._open[fresh] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def remove(self, one: AdminConnection) -> None:
        self._open.pop(one, None)

    @property
    def unsent(self) -> int:
        return sum(each.unsent for each in self._open)

    def stop(self) -> None:
        """Stop enforcing limits; open connections stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def room_for(self, fresh: AdminConnection) -> Iterable[AdminConnection]:
        """The connections to close: the new one itself if even the reserve is full. Sets `is_reserve`."""
        if fresh.peer and not of_loopback(fresh.peer):  # a socket without addresses is local
            of_peer = [each for each in self._open if each.peer == fresh.peer and not each.is_reserve]
            if len(of_peer) >= MAX_OF_PEER:
                return self._instead(of_peer, fresh)
        ordinary = [each for each in self._open if not each.is_reserve]
        return self._instead(ordinary, fresh) if len(ordinary) >= MAX_CONNECTIONS else ()

    def _instead(self, among: Iterable[AdminConnection], fresh: AdminConnection) -> Iterable[AdminConnection]:
        victim = _longest(among)
        if victim is not None:
            return (victim,)
        fresh.is_reserve = True
        reserve = [each for each in self._open if each.is_reserve]
        return () if len(reserve) < RESERVE else (_longest(reserve) or fresh,)

    def _look(self) -> None:
        now = monotonic()
        for each in [each for each in self._open if each.why_over(now)]:
            each.drop()
            self._open.pop(each, None)
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look) if self._open else None


def _longest(among: Iterable[AdminConnection]) -> AdminConnection | None:
    waiting = [(since, each) for each in among if (since := each.waits_since) is not None]
    return min(waiting, key=itemgetter(0))[1] if waiting else None
