"""The connections of an admin server: how many there are, who has to go for a newcomer, and what time each is given.

Health is always answered. A newcomer beyond the bound takes the place of the connection that has waited longest without
asking; where all of them are being answered it gets a place of the reserve, which serves health alone. A connection
that is being answered (a watch, too) is never closed for another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from operator import itemgetter
from time import monotonic  # uvloop's clock has milliseconds, and stands still while a callback runs
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.write_access import is_loopback

MAX_CONNECTIONS: Final = 64
#: Of one peer; on loopback everybody is the same one.
MAX_OF_PEER: Final = 48
#: Beyond the bound, for health.
RESERVE: Final = 16
#: For a connection to ask its first question, for a head from its first byte on, and for an answer to be taken.
FIRST_REQUEST_S: Final = 10.0
HEAD_S: Final = 5.0
ANSWER_S: Final = 60.0
KEEPALIVE_S: Final = 30.0
_LOOK_S: Final = 0.5


class AdminConnection(web.RequestHandler):
    """One connection. `is_reserve`: it is answered about health alone, and once."""

    __slots__ = ("_connections", "_has_asked", "_head_since", "_in_hand", "_since", "is_reserve", "peer")

    def __init__(self, connections: AdminConnections, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self.is_reserve = False
        self.peer = ""
        self._since = 0.0  # when it was made, or its latest answer was given
        self._head_since = 0.0  # when the first byte of what it has not finished asking came; 0: there is none
        self._has_asked = False
        self._in_hand = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As aiohttp's; then takes a place among the connections, or one of theirs."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._since = monotonic()
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As aiohttp's; notes when a head has begun that is not complete."""
        super().data_received(data)
        if not self._in_hand and not self._head_since:
            self._head_since = monotonic()

    def begin(self) -> None:
        self._in_hand += 1
        self._has_asked = True
        self._head_since = 0.0

    def end(self) -> None:
        """The answer is made; it may not have been taken yet."""
        self._in_hand -= 1
        self._since = monotonic()

    @property
    def waits_since(self) -> float | None:
        """Since when nothing is being done for it, or None."""
        if self._in_hand or self._messages or self.unsent:
            return None
        return self._since

    @property
    def unsent(self) -> int:
        """Bytes of an answer that the kernel has not taken."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def why_over(self, now: float) -> str:
        """Why its time is over; "" while it is not."""
        if self._in_hand:
            return ""
        if self._head_since and now - self._head_since > HEAD_S:
            return "a head that does not end"
        if not self._has_asked and now - self._since > FIRST_REQUEST_S:
            return "it asks nothing"
        if self.unsent and now - self._since > ANSWER_S:
            return "it does not take its answer"
        return ""

    def drop(self) -> None:
        """End it now, whatever is unsent."""
        transport = self.transport
        if isinstance(transport, asyncio.Transport):
            transport.abort()
        self.force_close()


class AdminConnections:
    """Those of one admin server. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open: dict[AdminConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, fresh: AdminConnection) -> None:
        """Take it in; others may have to go, or itself."""
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
        """Look at no connection any more; open ones stay as they are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def room_for(self, fresh: AdminConnection) -> Iterable[AdminConnection]:
        """Who has to go; the newcomer itself where there is no room even in the reserve. Decides on `is_reserve`."""
        if not is_loopback(fresh.peer, otherwise=True):  # a socket that has no addresses is local
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
