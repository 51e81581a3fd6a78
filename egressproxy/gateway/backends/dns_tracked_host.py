"""DnsTrackedHost: a name that connections are kept to, and what DNS says of it while they are used.

A connection outlives the answer that it was dialled by. When that answer has ended, the next request asks again, and
does not wait for it; one that comes later than GRACE_S waits. A connection to an address that has left the answer, or
that the address policy refuses by now, takes no further exchange and closes after its present one. Names that are not
used are not asked for: there is no timer. While the servers fail, the resolver's rule for stale answers holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from egressproxy.errors import Denied, GatewayError
from egressproxy.model.authority import IPAddress
from egressproxy.net.timers import NEVER, TimerWheel
from egressproxy.upstream.address_policy import AddressPolicy
from egressproxy.upstream.pool import Pool
from egressproxy.upstream.resolver import Resolver

#: How long an answer that has ended is used while it is asked for again. With the wheel's tick this is within a second.
GRACE_S: Final = 0.8
#: An answer with a shorter life (TTL 0, a stale one) is asked for again no sooner.
LEAST_S: Final = 0.5


class Followed(Protocol):
    """What a name has to know of a connection."""

    def retire(self) -> None:
        """Take no further exchange, and close after the present one."""

    def close(self) -> None:
        """Close now."""


def retire(connection: Followed, pool: Pool[Any] | None) -> None:
    """Take a connection out of use: it closes now if it is idle in this pool, else after its exchange."""
    rests = pool is not None and pool.withdraw(connection)
    connection.retire()
    if rests:
        connection.close()


@dataclass(slots=True, eq=False, repr=False)
class DnsTrackedHost:
    """What a destination was resolved to, until when that holds (on the wheel's clock), and the connections to it.
    `version` counts the answers that some address had left.
    """

    host: str
    port: int
    resolver: Resolver
    wheel: TimerWheel
    fresh_until: float = NEVER
    version: int = 0
    _addresses: frozenset[str] = frozenset()
    _connections: dict[Followed, tuple[str, Pool[Any] | None]] = field(default_factory=dict)
    _is_asked: bool = False

    # --- connections -------------------------------------------------------------------------------------------
    def keep(self, connection: Followed, address: str, pool: Pool[Any] | None, version: int) -> None:
        """Keep a connection whose dial began at this version to the answer. Call `forget` when the connection is
        gone.
        """
        if version != self.version and address not in self._addresses:
            connection.retire()
        else:
            self._connections[connection] = address, pool

    def forget(self, connection: Followed) -> None:
        """Stop following a connection that is gone. A connection that is not kept is ignored."""
        self._connections.pop(connection, None)

    # --- answers -----------------------------------------------------------------------------------------------
    def refresh(self, policy: AddressPolicy, client: str) -> bool:
        """Ask DNS again for this client, unless it is asked. Returns whether connections may be used meanwhile."""
        if self._connections and not self._is_asked:
            asked = self.resolver.resolve(self.host, client)
            if asked.done():
                self._answered(policy, asked)
            else:
                self._is_asked = True
                asked.add_done_callback(partial(self._answered, policy))
        return not self.is_overdue

    @property
    def is_overdue(self) -> bool:
        """Whether the answer has ended so long ago that no connection may be used on it."""
        return bool(self._connections) and self.fresh_until + GRACE_S <= self.wheel.now

    async def catch_up(self, policy: AddressPolicy, client: str) -> None:
        """Wait for an answer. Without one all connections are retired, and the next dial fails with the reason."""
        try:
            addresses = self._allowed(policy, await self.resolver.resolve(self.host, client))
        except GatewayError as error:
            error.__traceback__ = None  # frames that hold it: no cycle
            self._has_none()
        else:
            self.learn(addresses)

    def learn(self, addresses: Iterable[IPAddress]) -> None:
        """Retire connections to other addresses than these, which may be dialled now."""
        self.fresh_until = self.wheel.now + max(self.resolver.fresh_s(self.host), LEAST_S)
        known, self._addresses = self._addresses, frozenset(map(str, addresses))
        if known <= self._addresses:
            return
        self.version += 1
        for connection, (address, pool) in list(self._connections.items()):
            if address not in self._addresses:
                del self._connections[connection]
                retire(connection, pool)

    def leave(self, address: str) -> None:
        """Retire the connections to this address: it is out of service for a while."""
        for connection, (dialled, pool) in list(self._connections.items()):
            if dialled == address:
                del self._connections[connection]
                retire(connection, pool)

    def _answered(self, policy: AddressPolicy, asked: asyncio.Future[tuple[IPAddress, ...]]) -> None:
        self._is_asked = False
        if asked.cancelled():
            return
        if asked.exception() is None:
            self.learn(self._allowed(policy, asked.result()))
        else:
            self._has_none()

    def _has_none(self) -> None:
        """The name has no address. Where nobody was asked (too many names are looked up), that is not known."""
        if self.resolver.fresh_s(self.host):
            self.learn(())

    def _allowed(self, policy: AddressPolicy, addresses: Sequence[IPAddress]) -> Sequence[IPAddress]:
        try:
            return policy.check(self.host, addresses, self.port)
        except Denied:
            return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host}, {len(self._connections)} connections)"


class _Unfollowed(DnsTrackedHost):
    """For addresses that nobody has resolved: their connections are not kept to any answer."""

    __slots__ = ()

    def keep(self, connection: Followed, address: str, pool: Pool[Any] | None, version: int) -> None:
        pass

    def learn(self, addresses: Iterable[IPAddress]) -> None:
        pass


# Where nothing is kept, nobody is asked, and no time passes.
UNTRACKED: Final = _Unfollowed("", 0, None, TimerWheel())  # type: ignore[arg-type]
