"""RequestGate: which requests are admitted where not all can be: by priority, and by who has how many in progress.

Tenants share what there is by dynamic thresholds: what one may have shrinks with what is free. Several that want all
get as much as each other, one alone gets three quarters of the limit, and something is always left free, so that one
that comes later is served at once. It takes no list of who is active, and no look at others.

A tenant is a namespace where the client is known, else an address (IPv6: a /64). What it is a part of counts, too: the
network (IPv4 /24, IPv6 /48), all clients that nobody knows, and the listener. So many addresses of one network are
worth little more than one, many unknown clients leave room for known ones, and one listener leaves room for another.
Source of the idea: Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches (1998).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_network
from typing import Final

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.gateway.identity.killed_identities import KilledIdentities
from egressproxy.ir.policy import Priority
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import origin_of

#: A request is admitted while what is free, times FREE, is more than what its tenant has, times the last of these, and
#: what each it is a part of has, times its own, from the listener down.
FREE: Final = 64
WEIGHTS: Final = (1, 4, 4, 8)
WEIGHTS_OF_KNOWN: Final = (1, 16)
#: Of the limit, what requests of each priority may fill.
CEILINGS: Final = {Priority.LOW: 12, Priority.NORMAL: 15, Priority.HIGH: 16}
OF: Final = 16
#: A client is told to come back in so many seconds, one of these: all at once would be the next burst.
RETRY_S: Final = (1, 3)

_UNKNOWN: Final = "-"


@dataclass(slots=True, eq=False, repr=False)
class Tenant:
    """Who has requests in progress: a leaf of the tree, or what it is a part of."""

    gate: RequestGate
    key: tuple[str, ...]
    parent: Tenant | None
    held: int = 0

    def leave(self) -> None:
        """A request of it has ended."""
        self.gate.active -= 1
        tenant: Tenant | None = self
        while tenant is not None:
            tenant.held -= 1
            if not tenant.held:
                del self.gate.tenants[tenant.key]
            tenant = tenant.parent


class RequestGate:
    """Counts requests in progress by tenant. `limit` is how many there may be; 0: any number. A client that is `killed`
    gets no request through. `tenants` has those with one, and what they are a part of: at most four times as many as
    requests.
    """

    __slots__ = ("_ceilings", "active", "is_closed", "is_pressed", "killed", "limit", "shed", "tenants")

    def __init__(self, limit: int = 0) -> None:
        self.active = 0
        self.tenants: dict[tuple[str, ...], Tenant] = {}
        self.shed: Counter[tuple[str, str]] = Counter()  # by why and priority
        self.is_closed = False
        self.is_pressed = False
        self.killed = KilledIdentities()
        self.set_limit(limit)

    def set_limit(self, limit: int, *, is_closed: bool = False, is_pressed: bool = False) -> None:
        """`is_closed`: nothing is admitted. `is_pressed`: nothing of low priority is."""
        self.limit = limit
        self.is_closed = is_closed
        self.is_pressed = is_pressed
        self._ceilings = {priority: max(1, -(-limit * part // OF)) for priority, part in CEILINGS.items()}

    def admit(self, exchange: Exchange, priority: Priority) -> Tenant:
        """Count a request; the result is told its end. Raises LimitExceeded (OVERLOADED), Denied (IDENTITY_KILLED)."""
        if self.killed:
            self.killed.refuse(exchange.identity)
        if self.is_closed:
            raise self._refusal("memory", priority, "the gateway has no memory left for it")
        if self.is_pressed and priority is Priority.LOW:
            raise self._refusal("priority", priority, "the gateway is short of memory, and it has low priority")
        path = path_of(exchange.gateway, exchange.listener, exchange.identity.namespace, origin_of(exchange.client))
        if self.limit:
            prices = [self._price(key, weight) for key, weight in zip(path, _weights(path), strict=True)]
            if FREE * (self._ceilings[priority] - self.active) <= sum(prices):
                raise self._no_room(priority, prices)
        return self.count(path)

    def count(self, path: Iterable[tuple[str, ...]]) -> Tenant:
        """Count a request of the last of these, beyond the limit, too."""
        self.active += 1
        parent: Tenant | None = None
        for key in path:
            tenant = self.tenants.get(key)
            if tenant is None:
                tenant = self.tenants[key] = Tenant(self, key, parent)
            tenant.held += 1
            parent = tenant
        assert parent is not None
        return parent

    def price_of(self, tenant: Tenant | None) -> int:
        """How much it has in progress, with its share of what it is a part of: the dearest are refused first."""
        path: list[Tenant] = []
        while tenant is not None:
            path.append(tenant)
            tenant = tenant.parent
        path.reverse()
        return sum(each.held * weight for each, weight in zip(path, _weights([each.key for each in path]), strict=True))

    def _price(self, key: tuple[str, ...], weight: int) -> int:
        tenant = self.tenants.get(key)
        return tenant.held * weight if tenant is not None else 0

    def _no_room(self, priority: Priority, prices: list[int]) -> LimitExceeded:
        others = sum(prices[: len(prices) // 2])  # without what is its own: somebody else would find room
        if FREE * (self._ceilings[priority] - self.active) > others:
            what = "the gateway is overloaded, and this client, or its network, has its share of requests in progress"
            return self._refusal("tenant", priority, what)
        message = "the gateway has as many requests in progress as it may have"
        if FREE * (self.limit - self.active) > sum(prices):
            return self._refusal("priority", priority, f"{message} of this priority")
        return self._refusal("requests", priority, message)

    def _refusal(self, why: str, priority: Priority, message: str) -> LimitExceeded:
        self.shed[why, priority.text] += 1
        after_s = random.randint(*RETRY_S)  # noqa: S311 (no secret)
        return LimitExceeded(Reason.OVERLOADED, message, status=503, retry_after_s=after_s)


def _weights(path: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    return WEIGHTS if len(path) == len(WEIGHTS) else WEIGHTS_OF_KNOWN


@lru_cache(maxsize=4096)
def path_of(gateway: str, listener: str, namespace: str, origin: str) -> tuple[tuple[str, ...], ...]:
    """The keys of a tenant and what it is a part of, from the top. `origin`: see `shares.origin_of`."""
    top = (gateway, listener)
    of_namespace = (*top, namespace)
    if namespace != _UNKNOWN:
        return top, of_namespace
    return top, of_namespace, (*of_namespace, _network_of(origin)), (*of_namespace, "", origin)


def _network_of(origin: str) -> str:
    try:
        network = ip_network(origin)
    except ValueError:  # no address: a stream of a test, a socket that is gone
        return origin
    return str(network.supernet(new_prefix=24 if network.version == 4 else 48))
