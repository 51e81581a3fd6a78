"""PerClientQuota: the share of a common limit that one client may take.

One client that fills a common limit would lock out all others. So each limit has two numbers: a total, and a share per
client. Shares are counted where a resource is scarce or slow to get (a connection, a dial, a DNS query), never for a
request that needs none of these.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from ipaddress import IPv6Network
from itertools import chain
from typing import Final, Generic, TypeVar

from egressproxy.model.exchange import Exchange

T = TypeVar("T")

#: The most clients whose attempts are counted; beyond that, the least recent are forgotten.
MAX_TRYING: Final = 8192


def client_of(exchange: Exchange) -> str:
    """The client of this exchange, for shares: its address."""
    return origin_of(exchange.client)


def identity_of(exchange: Exchange) -> str:
    """The identity whose limits this exchange counts for: the service account, else `CallerIdentity.name`, else the
    address (or IPv6 /64). A token beside a certificate must not double a service account's limits.
    """
    identity = exchange.identity
    if identity.service_account != "-" != identity.namespace:  # accounts are named within their namespace
        return f"{identity.namespace}/{identity.service_account}"
    if identity.name != "-":
        return identity.name
    address = client_of(exchange) if identity.origin_client == "-" else identity.origin_client
    return address if identity.namespace == "-" else f"{identity.namespace} {address}"


def origin_of(peer: str) -> str:
    """The client behind `address:port`: the IPv4 address, or the IPv6 /64, which one host may own completely."""
    address = peer.rpartition(":")[0]
    if not address.startswith("["):
        return address
    return _network_of(address[1:-1].partition("%")[0])


@lru_cache(maxsize=1024)  # half a microsecond instead of five
def _network_of(address: str) -> str:
    return str(IPv6Network((address, 64), strict=False))


def most_of(limit: int) -> int:
    """The share of a limit that one client gets by default: three quarters, rounded up. 0 stays 0, no limit."""
    return limit - limit // 4


class PerClientQuota:
    """The number of things that each client holds: at most `share` each, and `limit` together."""

    __slots__ = ("_held", "limit", "share", "total")

    def __init__(self, limit: int, share: int) -> None:
        self.limit = limit
        self.share = share
        self.total = 0
        self._held: dict[str, int] = {}

    def take(self, client: str) -> bool:
        """Count one more for this client. Returns false, and counts nothing, if it has its share or none is left."""
        held = self._held.get(client, 0)
        if self.total >= self.limit or held >= self.share:
            return False
        self.add(client)
        return True

    def add(self, client: str, amount: int = 1) -> None:
        """Count `amount` more for this client, even beyond its share and the limit."""
        self._held[client] = self._held.get(client, 0) + amount
        self.total += amount

    def is_exceeded(self, client: str) -> bool:
        """Whether this client holds more than its share, or all clients together more than the limit, after `add`."""
        return self.total > self.limit or self._held.get(client, 0) > self.share

    def give_back(self, client: str, amount: int = 1) -> None:
        """Count down what `take` or `add` has counted."""
        self.total -= amount
        left = self._held[client] - amount
        if left:
            self._held[client] = left
        else:
            del self._held[client]

    def of(self, client: str) -> int:
        return self._held.get(client, 0)

    def __repr__(self) -> str:
        return f"PerClientQuota({self.total} of {self.limit}, {len(self._held)} clients)"


class AttemptLimiter:
    """A fixed-window limit per client: at most `limit` attempts in `window_s` seconds, from the first attempt."""

    __slots__ = ("_of", "limit", "window_s")

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self.window_s = window_s
        self._of: OrderedDict[str, tuple[int, float]] = OrderedDict()  # attempts, end of the window

    def wait_s(self, client: str, now: float) -> float:
        """How long this client has to wait, in seconds; 0 where it may. `now`: monotonic seconds."""
        count, until = self._of.get(client, (0, 0.0))
        return max(0.0, until - now) if count >= self.limit else 0.0

    def add(self, client: str, now: float) -> None:
        """Count an attempt."""
        count, until = self._of.pop(client, (0, 0.0))
        self._of[client] = (count + 1, until) if now < until else (1, now + self.window_s)
        if len(self._of) > MAX_TRYING:
            self._of.popitem(last=False)


class FairQueue(Generic[T]):
    """Waiters: clients take turns, and the first waiter of a client comes first. Bounded in all and for each client."""

    __slots__ = ("_of", "_size", "limit", "share")

    def __init__(self, limit: int, share: int) -> None:
        self.limit = limit
        self.share = share
        #: In the order of turns; a client that had its turn moves to the end. A dict would search past deleted entries.
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._of.values())

    def clear(self) -> None:
        """Remove every waiter. The waiters are not notified."""
        self._of.clear()
        self._size = 0

    def add(self, client: str, waiter: T) -> bool:
        """Put a waiter behind those of this client. Returns false if it has its share of places, or none is left."""
        own = self._of.get(client)
        if self._size >= self.limit or (len(own) if own else 0) >= self.share:
            return False
        if own is None:
            own = self._of[client] = deque()
        own.append(waiter)
        self._size += 1
        return True

    def remove(self, client: str, waiter: T) -> bool:
        """Remove a waiter that has gone. Returns false if it did not wait."""
        own = self._of.get(client)
        if own is None or waiter not in own:
            return False
        own.remove(waiter)
        self._size -= 1
        if not own:
            del self._of[client]
        return True

    def next(self, may: Callable[[str], bool] | None = None) -> T | None:
        """The next waiter among the clients that `may` accepts; its client comes last from now on. None: no waiter."""
        for client, own in self._of.items():
            if may is None or may(client):
                self._size -= 1
                if len(own) > 1:
                    self._of.move_to_end(client)
                else:
                    del self._of[client]
                return own.popleft()
        return None
