"""Resolver: names to addresses, with a cache, and one query however many wait for it.

Names are lower case, ASCII, without trailing dot, as `model.authority` makes them. What stands in the policy's `hosts`
and in /etc/hosts comes first. Names are absolute; only where the servers are those of resolv.conf, its search list and
`ndots` hold, too. Which of the addresses may be dialled is not decided here: the caller judges each of
them, wherever it came from. Names are never given to getaddrinfo, which reads `127.1` as an address.

Sources: RFC 2308 (negative answers), RFC 8767 (stale answers), RFC 6761 (localhost), RFC 8305 section 4 (order).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from itertools import chain, zip_longest

import dns.exception
import dns.name
import dns.rdatatype

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.ir.policy import DnsIR, Family
from egressproxy.model.authority import IPAddress
from egressproxy.model.shares import Shares
from egressproxy.upstream.dns_query import DnsAnswer, DnsFailure, Server, ask, give_up, parse_server
from egressproxy.upstream.lookups import Lookups
from egressproxy.upstream.system_files import FILE_CHECK_S, Ipv6Route, WatchedFile, parse_hosts, parse_resolv_conf
from egressproxy.upstream.turns import Lookup, Waiter

__all__ = ["Resolver"]

MAX_NAMES = 10_000  # cached
MAX_CACHED_BYTES = 16 * 1024 * 1024  # of all that is known of them, about
MAX_WAITERS = 20_000  # exchanges that wait for an answer
MAX_WAITERS_OF_CLIENT = 10_000
MAX_NEGATIVE_TTL_S = 30.0
FAILURE_TTL_S = 1.0  # how long a failing name is not asked for again
STALE_AFTER_S = 0.5  # an expired answer is used if a refresh takes longer (RFC 8767 section 5)
MAX_BACKOFF_S = 10.0  # between refreshes while the servers fail
AAAA_GRACE_S = 0.25  # IPv4 addresses wait so long for the IPv6 ones (RFC 8305 section 3 says 50 ms)

_LOOPBACK: tuple[IPAddress, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
#: RFC 6761 section 6.4 and RFC 7686 section 2: never asked of a DNS server.
_NEVER_ASKED = ("invalid", "onion")
#: What an entry of the cache takes, and each address in it.
_ENTRY_BYTES, _ADDRESS_BYTES = 600, 100
_WORDS = {
    Reason.DNS_NXDOMAIN: ("nxdomain", "does not exist"),
    Reason.DNS_NO_ADDRESS: ("no_address", "has no address"),
    Reason.DNS_SERVFAIL: ("servfail", "could not be resolved: the DNS server failed"),
    Reason.DNS_TIMEOUT: ("timeout", "could not be resolved in time"),
    Reason.DNS_ERROR: ("error", "could not be resolved"),
}


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: Reason
    detail: str = ""

    def fault(self, host: str) -> UpstreamFault:
        """The error for this name (503, 504 after a timeout), which is safe to retry.

        A new one each time: an exception that is raised twice collects the tracebacks of both.
        """
        status = 504 if self.reason is Reason.DNS_TIMEOUT else 503
        message = f'the name "{host}" {_WORDS[self.reason][1]}'
        return UpstreamFault(self.reason, message, status=status, retry=RetrySafety.SAFE, detail=self.detail)


@dataclass(slots=True, eq=False)
class _Entry:
    """What is known of a name: addresses, or why there are none. Times are monotonic seconds."""

    expires: float
    failure: _Failure | None = None
    addresses: tuple[IPAddress, ...] = ()
    stale_until: float = 0.0  # addresses may be used so long if there is no newer answer
    kept_until: float = 0.0  # where addresses of one family are those of an answer before: how long they may be
    backoff_s: float = 0.0  # 0: no refresh has failed since it expired
    retry_at: float = 0.0

    def settle(self, waiter: Waiter, host: str) -> None:
        """Give the waiter the addresses of this name, or the error."""
        if self.failure is None:
            waiter.set_result(self.addresses)
        else:
            waiter.set_exception(self.failure.fault(host))


class Resolver:
    """Resolves by one DnsIR. `stats` is told how each lookup went.

    The words: `hit` and `stale` for answers from the cache; `ok`, `nxdomain`, `no_address`, `servfail`, `timeout` and
    `error` for what a question to the servers (or to a hosts file) gave, however many waited for it.
    Raises ValueError if a server in the spec cannot be read.
    """

    def __init__(
        self,
        spec: DnsIR,
        stats: Callable[[str], None],
        *,
        resolv_conf: str = "/etc/resolv.conf",
        hosts_file: str = "/etc/hosts",
    ) -> None:
        self._spec = spec
        self._stats = stats
        self._servers = tuple(parse_server(text, spec.transport) for text in spec.servers)
        self._static = {name.lower().removesuffix("."): addresses for name, addresses in spec.hosts}
        self._system = WatchedFile(resolv_conf, partial(parse_resolv_conf, transport=spec.transport))
        self._hosts = WatchedFile(hosts_file, parse_hosts)
        self._route = Ipv6Route()
        self._cache: dict[str, _Entry] = {}
        self._cached_bytes = 0
        self._timeout_s = spec.timeout_s or DnsIR().timeout_s
        self._lookups = Lookups(self._run, self._too_late, self._timeout_s)
        self._waiting = Shares(sys.maxsize, sys.maxsize)

    def cached(self, host: str) -> tuple[IPAddress, ...] | None:
        """The addresses of a name if they are known and fresh, without a future; else None: call `resolve`."""
        entry = self._cache.get(host)
        if entry is None or not entry.addresses or entry.expires <= time.monotonic():
            return None
        self._stats("hit")
        return entry.addresses

    def fresh_s(self, host: str) -> float:
        """For how many seconds what is known of a name is fresh; 0 if it has expired or nothing is known."""
        entry = self._cache.get(host)
        return max(0.0, entry.expires - time.monotonic()) if entry is not None else 0.0

    def known(self, host: str) -> Sequence[IPAddress] | None:
        """The addresses of a name as far as they are known without asking anybody, and without being counted."""
        entry = self._cache.get(host)
        if entry is not None and entry.addresses and entry.stale_until > time.monotonic():
            return entry.addresses
        return self._without_dns(host) or None

    def resolve(self, host: str, client: str = "") -> Waiter:
        """A future of the addresses of a name (never empty), in the order in which they should be tried.

        `client` is for whom we ask: one client gets no more than its share of lookups and waiters. "" is the gateway.
        It raises UpstreamFault: DNS_NXDOMAIN, DNS_NO_ADDRESS, DNS_SERVFAIL or DNS_ERROR with 503, DNS_TIMEOUT with 504.
        Cancelling it does not end the query, nor the other waiters. No task is needed to await it.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        now = time.monotonic()
        entry = self._cache.get(host)
        if entry is not None and entry.expires > now:
            self._stats("hit")
            entry.settle(waiter, host)
            return waiter
        known = self._without_dns(host)
        if known:  # before any bound on questions: nobody is asked
            entry = self._entry(DnsAnswer(self._order(known), FILE_CHECK_S))
            self._stats("ok")
            self._remember(host, entry)
            entry.settle(waiter, host)
            return waiter
        stale = entry if entry is not None and entry.stale_until > now else None
        lookup = self._lookups.known.get(host)
        if lookup is None and (stale is None or stale.retry_at <= now):
            lookup = self._lookups.start(host, client, now)
        if stale is not None and (lookup is None or stale.backoff_s or now - lookup.started > STALE_AFTER_S):
            self._use_stale(waiter, stale)
            return waiter
        too_many = client != "" and self._waiting.of(client) >= MAX_WAITERS_OF_CLIENT
        if lookup is None or too_many or self._waiting.total >= MAX_WAITERS:
            self._stats("error")
            whose = " of this client" if too_many or self._lookups.turns.has_its_share(client) else ""
            failure = _Failure(Reason.DNS_ERROR, f"too many names{whose} are being looked up")
            waiter.set_exception(failure.fault(host))
            return waiter
        self._waiting.add(client)
        waiter.add_done_callback(partial(self._left, client))
        lookup.waiters.append(waiter)
        self._lookups.turns.join(lookup, client)
        if stale is not None:
            loop.call_later(STALE_AFTER_S, self._use_stale, waiter, stale)
        return waiter

    def close(self) -> None:
        """Stop every query; the waiters get CancelledError."""
        self._lookups.close()

    # --- lookups -------------------------------------------------------------------------------------------------
    async def _run(self, lookup: Lookup) -> None:
        """Ask, remember, and tell everyone who waits."""
        host = lookup.host
        try:
            try:
                found = await self._find(host)
                entry = self._entry(found, self._cache.get(host))
            except DnsFailure as error:
                entry = self._failed(host, _Failure(error.reason, str(error)))
                error.__traceback__ = None  # frames that hold it: no cycle
            except Exception as error:  # a fault of ours must not leave anyone waiting
                entry = self._failed(host, _Failure(Reason.DNS_ERROR, f"{type(error).__name__}: {error}"))
        finally:
            self._lookups.end(lookup)
        for waiter in lookup.waiters:
            if not waiter.done():
                if entry.backoff_s:
                    self._stats("stale")
                entry.settle(waiter, host)
        lookup.waiters.clear()
        lookup.task = None
        self._remember(host, entry)

    def _too_late(self, lookup: Lookup) -> None:
        """Its turn has not come in time."""
        self._stats("error")
        failure = _Failure(Reason.DNS_ERROR, "too many names are being looked up")
        for waiter in lookup.waiters:
            if not waiter.done():
                waiter.set_exception(failure.fault(lookup.host))
        lookup.waiters.clear()

    def _entry(self, found: DnsAnswer, known: _Entry | None = None) -> _Entry:
        """What was found; of a family that gave no answer, what was known, as long as it might be used as stale."""
        now = time.monotonic()
        if found.addresses:
            self._stats("ok")
            ttl_s = min(max(found.ttl_s, self._spec.min_ttl_s), self._spec.max_ttl_s)
            stale_until = now + ttl_s + self._spec.stale_ttl_s
            entry = _Entry(now + ttl_s, addresses=found.addresses, stale_until=stale_until)
            until = known.kept_until or known.stale_until if known is not None else 0.0
            if found.unheard and known is not None and until > now:
                kept = [address for address in known.addresses if address.version == found.unheard]
                if kept:
                    entry.addresses = self._order([*found.addresses, *kept])
                    entry.kept_until = until
                    entry.expires = min(entry.expires, until)
            return entry
        reason = Reason.DNS_NXDOMAIN if found.is_nxdomain else Reason.DNS_NO_ADDRESS
        self._stats(_WORDS[reason][0])
        ttl_s = max(min(found.ttl_s, MAX_NEGATIVE_TTL_S), self._spec.min_ttl_s)
        return _Entry(now + ttl_s, _Failure(reason))

    def _failed(self, host: str, failure: _Failure) -> _Entry:
        """Keep using what is known, for a while (RFC 8767); else remember the failure for a moment (RFC 9520)."""
        now = time.monotonic()
        self._stats(_WORDS[failure.reason][0])
        known = self._cache.get(host)
        if known is None or known.stale_until <= now:
            return _Entry(now + FAILURE_TTL_S, failure)
        known.backoff_s = min(known.backoff_s * 2 or FAILURE_TTL_S, MAX_BACKOFF_S)
        known.retry_at = now + known.backoff_s
        return known

    def _remember(self, host: str, entry: _Entry) -> None:
        self._forget(host)  # to the end: what was not refreshed for longest goes first
        self._cache[host] = entry
        self._cached_bytes += _bytes_of(host, entry)
        while len(self._cache) > MAX_NAMES or self._cached_bytes > MAX_CACHED_BYTES:
            self._forget(next(iter(self._cache)))

    def _forget(self, host: str) -> None:
        entry = self._cache.pop(host, None)
        if entry is not None:
            self._cached_bytes -= _bytes_of(host, entry)

    def _left(self, client: str, _waiter: Waiter) -> None:
        self._waiting.give_back(client)

    def _use_stale(self, waiter: Waiter, entry: _Entry) -> None:
        if not waiter.done():
            self._stats("stale")
            waiter.set_result(entry.addresses)

    # --- one name ------------------------------------------------------------------------------------------------
    async def _find(self, host: str) -> DnsAnswer:
        servers, names = self._servers, [host]
        if not servers:
            system = self._system.read()
            servers, names = system.servers, system.names(host)
        if host.rpartition(".")[2] in _NEVER_ASKED:
            return DnsAnswer((), 0.0, is_nxdomain=True)
        deadline = time.monotonic() + self._timeout_s
        failure: DnsFailure | None = None
        for name in names:
            try:
                found = await self._both_families(servers, _qname(name), deadline)
            except DnsFailure as error:  # of a completed name it says nothing about the next one
                failure = error.with_traceback(None)  # no cycle with this frame
                continue
            if found.addresses:
                return found
        if failure is not None:
            raise failure
        return found

    def why_not_asked(self, host: str) -> str:
        """Why no server is asked for a name, in words; "" where one is."""
        found = self._without_dns(host)
        if found is None:
            return ""
        if found is _LOOPBACK:
            return "localhost is loopback"
        return "dns.hosts has it" if found is self._static.get(host) else "the hosts file of this machine has it"

    def _without_dns(self, host: str) -> Sequence[IPAddress] | None:
        if host == "localhost" or host.endswith(".localhost"):
            return _LOOPBACK
        return self._static.get(host) or self._hosts.read().get(host)

    async def _both_families(self, servers: Sequence[Server], name: dns.name.Name, deadline: float) -> DnsAnswer:
        loop = asyncio.get_running_loop()
        timeout_s = deadline - time.monotonic()
        tasks = {
            kind: loop.create_task(ask(servers, name, kind, timeout_s))
            for kind, family in ((dns.rdatatype.A, Family.IPV4), (dns.rdatatype.AAAA, Family.IPV6))
            if self._spec.family in (Family.ANY, family)
        }
        try:
            first = tasks.get(dns.rdatatype.A)
            if first is not None:
                await asyncio.wait([first])
                answer = first.result() if first.exception() is None else None
                if answer is not None and answer.is_nxdomain:
                    return answer  # the name, not the type, is what does not exist (RFC 8020)
                has_some = answer is not None and bool(answer.addresses)
                await asyncio.wait(tasks.values(), timeout=AAAA_GRACE_S if has_some else None)
            else:
                await asyncio.wait(tasks.values())
            found = self._merge([task for task in tasks.values() if task.done()])
            failed = [kind for kind, task in tasks.items() if not task.done() or task.exception() is not None]
            return replace(found, unheard=4 if failed[0] is dns.rdatatype.A else 6) if failed else found
        finally:
            give_up(tasks.values())

    def _merge(self, tasks: Sequence[asyncio.Task[DnsAnswer]]) -> DnsAnswer:
        """Addresses of either family are enough; without any, a failure counts more than an empty answer."""
        errors = [error for error in (task.exception() for task in tasks) if error is not None]
        answers = [task.result() for task in tasks if task.exception() is None]
        found = [a for answer in answers for a in answer.addresses]
        if found:
            return DnsAnswer(self._order(found), min(answer.ttl_s for answer in answers if answer.addresses))
        for answer in answers:
            if answer.is_nxdomain:
                return answer
        if errors:
            raise errors[0]
        return DnsAnswer((), min(answer.ttl_s for answer in answers))

    def _order(self, addresses: Sequence[IPAddress]) -> tuple[IPAddress, ...]:
        """Families alternate, IPv6 first where this machine has a route for it (RFC 8305 section 4)."""
        v4 = [a for a in addresses if a.version == 4 and self._spec.family is not Family.IPV6]
        v6 = [a for a in addresses if a.version == 6 and self._spec.family is not Family.IPV4]
        if not self._route.exists():
            return (*v4, *v6)
        return tuple(a for a in chain.from_iterable(zip_longest(v6, v4)) if a is not None)

    def __repr__(self) -> str:
        asked = len(self._lookups.known)
        return f"Resolver({len(self._cache)} names, {asked} being asked for, {self._waiting.total} waiting)"


def _bytes_of(host: str, entry: _Entry) -> int:
    """The memory that an entry takes, about; the same for as long as it is there."""
    return _ENTRY_BYTES + len(host) + _ADDRESS_BYTES * len(entry.addresses)


def _qname(host: str) -> dns.name.Name:
    """The absolute name, label by label: nothing in it is an escape."""
    try:
        return dns.name.Name([*(label.encode("ascii") for label in host.split(".")), b""])
    except (dns.exception.DNSException, UnicodeEncodeError) as error:
        raise DnsFailure(Reason.DNS_ERROR, f"not a name that DNS can carry: {type(error).__name__}") from None
