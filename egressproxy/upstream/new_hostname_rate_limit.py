"""NewHostnameRateLimit: a limit on lookups of new names below one domain, per client, against DNS tunnelling.

A DNS query carries data to the domain's name server before any connection is made, so an allowed wildcard would be an
exfiltration channel. Recently resolved names are free. All workers share the counters (`keyed_counters`), and a name
resolved by one worker is known to all. Source: EgressPolicy `dns.newNames`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.net.keyed_counters import KEY_BYTES, KeyedCounters

#: Returns the table of a key (16 bytes) with room for that many keys, shared by all workers.
KeyedTables = Callable[[bytes, int], KeyedCounters]

#: The most counters, each of one client below one domain. Clients without room share one counter.
MAX_COUNTS: Final = 16_384
#: The most names that workers share, and the least time in seconds (a longer window wins). A name without room counts
#: again in each worker.
MAX_NAMES: Final = 16_384
NAMES_S: Final = 3600.0


def domain_of(host: str) -> str:
    """The last two labels of a name: below a two-label public suffix (co.uk) all names count as one domain."""
    return ".".join(host.rsplit(".", 2)[-2:])


class NewHostnameRateLimit:
    """A token bucket of `limit` names per `window_s` seconds. Limits of one `field`, of the policy, with equal `scope`
    count together.
    """

    __slots__ = ("_counts", "_field", "_limit", "_names", "_window_s")

    def __init__(
        self, limit: int, window_s: float, tables: KeyedTables, scope: object = "", field: str = "dns.newNames"
    ) -> None:
        self._field = field
        self._limit = limit
        self._window_s = window_s
        name = repr((field, limit, window_s, scope))
        self._counts = tables(_digest(f"counts {name}"), MAX_COUNTS)
        self._names = tables(_digest(f"names {name}"), MAX_NAMES)

    def take(self, client: str, host: str, now: float) -> LimitExceeded | None:
        """Count this name for this client; returns the error (429) above the limit. `now`: monotonic seconds."""
        domain, names = domain_of(host), self._names
        name = names.key(host.encode())
        with names.lock:
            if names.peek(name, now)[0] > now:
                return None
        key = f"{domain} {client}".encode("utf-8", "surrogatepass")
        wait_s = self._counts.take_token(key, now, self._limit, self._window_s / self._limit)
        if wait_s > 0.0:
            return LimitExceeded(
                Reason.NEW_NAMES,
                f"this client has asked for too many new names below {domain}",
                remedy=f"raise {self._field}.limit where the client needs so many names; "
                "else find out what it sends in them",
                detail=f"{host}: more than {self._limit} new names below {domain} in {self._window_s:g} s",
                retry_after_s=max(1, round(wait_s)),
            )
        self._remember(name, now)
        return None

    def know(self, host: str, now: float) -> None:
        """Mark a name that the gateway or its operator resolves as known to all clients."""
        self._remember(self._names.key(host.encode()), now)

    def _remember(self, name: bytes, now: float) -> None:
        names = self._names
        with names.lock:
            found = names.find(name, now)
            if not names.is_shared_entry(found):
                names.cells[found] = now + max(self._window_s, NAMES_S)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=KEY_BYTES).digest()
