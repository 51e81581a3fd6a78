"""ReverseNames: the names of addresses (PTR), with a cache, and the check against the dialled name.

An address agrees with a name if one of its PTR records equals this name or a CNAME target of it, or is a subdomain of
one: `lb-7.example.com` agrees with `example.com`. The owner of an address can write any name into its PTR records. So
the check detects an unprepared attacker, as after a hijacked zone or a poisoned cache; only TLS proves the identity of
a server.

Sources: RFC 1035 section 3.5 (in-addr.arpa), RFC 3596 section 2.5 (ip6.arpa), RFC 1912 section 2.1 (PTR and A agree).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from egressproxy.errors import Reason
from egressproxy.ir.policy import DnsIR
from egressproxy.model.authority import IPAddress
from egressproxy.upstream.dns_client import DnsFailure
from egressproxy.upstream.dns_message import DnsAnswer
from egressproxy.upstream.lookups import Lookup, PendingLookups

#: The most addresses of one answer that are checked; in mode Enforce further ones are not dialled.
MAX_CHECKED = 8
#: The most addresses in the cache, and names of each.
MAX_KNOWN = 4096
MAX_NAMES = 8
MAX_NEGATIVE_TTL_S = 30.0
FAILURE_TTL_S = 1.0


@dataclass(frozen=True, slots=True)
class AddressNames:
    """The names of an address, or the `reason` of a failed lookup (`detail` for the log)."""

    names: tuple[str, ...] = ()
    reason: Reason = Reason.OK
    detail: str = ""


_TOO_MANY = AddressNames((), Reason.DNS_ERROR, "too many names are being looked up")


class ReverseNames:
    """Looks up the names of addresses. `ask` queries the servers for PTR records; it raises DnsFailure."""

    __slots__ = ("_ask", "_known", "_lookups", "_max_ttl_s", "_min_ttl_s")

    def __init__(self, ask: Callable[[str], Awaitable[DnsAnswer]], spec: DnsIR, timeout_s: float) -> None:
        self._ask = ask
        self._min_ttl_s, self._max_ttl_s = spec.min_ttl_s, spec.max_ttl_s
        self._known: dict[str, tuple[float, AddressNames]] = {}  # by `reverse_pointer`: expiry, names
        self._lookups = PendingLookups(self._run, self._too_late, timeout_s)

    def resolve(self, address: IPAddress, client: str = "") -> asyncio.Future[AddressNames]:
        """A future of the names of this address, which never raises. `client`: as in `Resolver`."""
        waiter: asyncio.Future[AddressNames] = asyncio.get_running_loop().create_future()
        now, key = time.monotonic(), address.reverse_pointer
        known = self._known.get(key)
        if known is not None and known[0] > now:
            waiter.set_result(known[1])
            return waiter
        lookup = self._lookups.known.get(key) or self._lookups.start(key, client, now)
        if lookup is None:
            waiter.set_result(_TOO_MANY)
            return waiter
        lookup.waiters.append(waiter)
        self._lookups.scheduler.join(lookup, client)
        return waiter

    def close(self) -> None:
        self._lookups.close()

    async def _run(self, lookup: Lookup) -> None:
        try:
            try:
                answer = await self._ask(lookup.host)
                names = AddressNames(answer.names[:MAX_NAMES])
                ttl_s = answer.ttl_s if names.names else min(answer.ttl_s, MAX_NEGATIVE_TTL_S)
                ttl_s = min(max(ttl_s, self._min_ttl_s), self._max_ttl_s)
            except DnsFailure as error:
                names, ttl_s = AddressNames((), error.reason, str(error)), FAILURE_TTL_S
                error.__traceback__ = None  # its frames hold the error: no cycle
            except Exception as error:  # a bug must not leave waiters behind
                names = AddressNames((), Reason.DNS_ERROR, f"{type(error).__name__}: {error}")
                ttl_s = FAILURE_TTL_S
        finally:
            self._lookups.end(lookup)
        self._known.pop(lookup.host, None)
        self._known[lookup.host] = time.monotonic() + ttl_s, names
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._tell(lookup, names)
        lookup.task = None

    def _too_late(self, lookup: Lookup) -> None:
        self._tell(lookup, _TOO_MANY)

    @staticmethod
    def _tell(lookup: Lookup, names: AddressNames) -> None:
        for waiter in lookup.waiters:
            if not waiter.done():
                waiter.set_result(names)
        lookup.waiters.clear()


def agrees(names: Iterable[str], host: str, through: Sequence[str] = ()) -> bool:
    """Whether one of an address's names equals the dialled host or a CNAME target (`through`), or is a subdomain of
    one. Names are in lower case, without trailing dot.
    """
    wanted = [name for name in (host, *through) if name]  # every name is below the root
    return any(name == each or name.endswith(f".{each}") for name in names for each in wanted)
