"""Resolver: names to addresses, with a cache, and one query however many wait for it.

Names are lower case, ASCII, without trailing dot, as `model.authority` makes them. What stands in the policy's `hosts`
and in /etc/hosts comes first. Names are absolute; only where the servers are those of resolv.conf, its search list and
`ndots` hold, too. Which of the addresses may be dialled is not decided here: the caller judges each of
them, wherever it came from. Names are never given to getaddrinfo, which reads `127.1` as an address.

Sources: RFC 2308 (negative answers), RFC 8767 (stale answers), RFC 6761 (localhost), RFC 8305 section 4 (order).
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from itertools import chain, zip_longest
from typing import NamedTuple

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.ir.policy import DnsIR, Dnssec, Family
from egressproxy.model.addresses import Resolved
from egressproxy.model.authority import IPAddress
from egressproxy.model.own_names import OWN_HOST
from egressproxy.model.per_client_quota import PerClientQuota
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.upstream.dns_cache import MAX_NAMES, RESULTS, DnsCache, KnownName, NameFailure
from egressproxy.upstream.dns_client import DnsClient, DnsFailure, OnQuery, give_up
from egressproxy.upstream.dns_message import AAAA, PTR, A, DnsAnswer, encode_name
from egressproxy.upstream.dns_server import Server, parse_server
from egressproxy.upstream.lookups import Lookup, PendingLookups, Waiter
from egressproxy.upstream.new_hostname_rate_limit import KeyedTables, NewHostnameRateLimit
from egressproxy.upstream.reverse_names import ReverseNames
from egressproxy.upstream.system_files import FILE_CHECK_S, Ipv6Route, WatchedFile, parse_hosts, parse_resolv_conf

MAX_WAITERS = 20_000  # exchanges that wait for an answer
MAX_WAITERS_OF_CLIENT = 10_000
FAILURE_TTL_S = 1.0  # how long a failing name is not asked for again
STALE_AFTER_S = 0.5  # an expired answer is used if a refresh takes longer (RFC 8767 section 5)
MAX_BACKOFF_S = 10.0  # between refreshes while the servers fail
PREFETCH_AT = 0.9  # of the life of an answer, as in Unbound: who uses it then has it asked for again
MAX_PREFETCHES = 100  # lookups in progress beyond which nothing is prefetched
AAAA_GRACE_S = 0.25  # IPv4 addresses wait so long for the IPv6 ones (RFC 8305 section 3 says 50 ms)
PREFERRED_GRACE_S = 1.0  # where IPv6 is preferred
MAX_ASKED_EACH = 64  # questions for one explanation
#: What is asked for where addresses of one family alone are wanted.
_KINDS_OF = {Family.IPV4: (A,), Family.IPV6: (AAAA,)}

_LOOPBACK: tuple[IPAddress, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
#: RFC 6761 sections 6.3 and 6.4, and RFC 7686 section 2: never asked of a DNS server.
_NEVER_ASKED = ("invalid", "localhost", "onion")


class ServerAnswer(NamedTuple):
    """What one server answered to one question, and after how many seconds; `failure` says why there is no answer."""

    server: str
    name: str
    kind: str
    seconds: float
    answer: DnsAnswer | None
    failure: str


class Resolver:
    """Resolves by one DnsIR. `stats` is told how each lookup went, and `on_query` how each query to a server.

    The words: `hit` and `stale` for answers from the cache; `ok`, `nxdomain`, `no_address`, `servfail`, `timeout` and
    `error` for what a question to the servers (or to a hosts file) gave, however many waited for it.
    `tables` have the counts of new names, in memory that all workers share. Raises ValueError if a server in the spec
    cannot be read.
    """

    def __init__(
        self,
        spec: DnsIR,
        stats: Callable[[str], None],
        *,
        on_query: OnQuery = lambda server, result, seconds: None,
        tables: KeyedTables | None = None,
        resolv_conf: str = "/etc/resolv.conf",
        hosts_file: str = "/etc/hosts",
    ) -> None:
        self._spec = spec
        self._stats = stats
        self._client = DnsClient(on_query, BackendTlsIR(ca_pem=spec.ca_pem, ca_source=spec.ca_source))
        self._servers = tuple(parse_server(text, spec.transport) for text in spec.servers)
        if spec.transport == "https" or any(server.transport == "https" for server in self._servers):
            import egressproxy.upstream.dns_https  # noqa: F401 (now, since an import stops the loop)
        self._static = {name.lower().removesuffix("."): addresses for name, addresses in spec.hosts}
        self._system = WatchedFile(resolv_conf, partial(parse_resolv_conf, transport=spec.transport))
        self._hosts = WatchedFile(hosts_file, parse_hosts)
        self._route = Ipv6Route()
        self._cache = DnsCache()
        self._new_names = None
        if spec.new_names:
            tables = tables or OwnCounters().keyed
            self._new_names = NewHostnameRateLimit(spec.new_names, spec.new_names_window_s, tables, spec.servers)
        self._asked_of_parent: dict[str, None] = {}  # names that are not new, the oldest first
        self._timeout_s = spec.timeout_s or DnsIR().timeout_s
        self._kinds = _KINDS_OF.get(spec.family, (A, AAAA))
        self._grace_s = PREFERRED_GRACE_S if spec.family is Family.IPV6_PREFERRED else AAAA_GRACE_S
        self._lookups = PendingLookups(self._run, self._too_late, self._timeout_s)
        self._waiting = PerClientQuota(sys.maxsize, sys.maxsize)
        self.reverse = ReverseNames(self._names_of, spec, self._timeout_s)

    def cached(self, host: str) -> Resolved | None:
        """The addresses of a name if they are known and fresh, without a future; else None: call `resolve`."""
        entry, now = self._cache.get(host), time.monotonic()
        if entry is None or not entry.addresses or entry.expires <= now:
            return None
        self._stats("hit")
        if entry.prefetch_at <= now:
            self._prefetch(host, entry, now)
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

    def resolve(self, host: str, client: str = "", identity: str = "") -> Waiter:
        """A future of the addresses of a name (never empty), in the order in which they should be tried.

        `client` is for whom we ask: one client gets no more than its share of lookups and waiters. "" is the gateway.
        `identity` is whose count of new names a new name adds to; "": nobody's, who asks has named it before.
        It raises UpstreamFault: DNS_NXDOMAIN, DNS_NO_ADDRESS, DNS_SERVFAIL, DNS_NOT_AUTHENTIC or DNS_ERROR with 503,
        DNS_TIMEOUT with 504; and LimitExceeded (429) for a new name of a client that has had too many.
        Cancelling it does not end the query, nor the other waiters. No task is needed to await it.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        now = time.monotonic()
        entry = self._cache.get(host)
        if entry is not None and entry.expires > now:
            self._stats("hit")
            if entry.prefetch_at <= now:
                self._prefetch(host, entry, now)
            entry.settle(waiter, host)
            return waiter
        known = self._without_dns(host)
        if known:  # before any bound on questions: nobody is asked
            entry = self._entry(DnsAnswer(self._order(known), FILE_CHECK_S))
            self._stats("ok")
            self._cache.put(host, entry)
            entry.settle(waiter, host)
            return waiter
        stale = entry if entry is not None and entry.stale_until > now else None
        lookup = self._lookups.known.get(host)
        if entry is None and lookup is None and self._new_names is not None:
            if not identity:
                self._new_names.know(host, now)
            elif (exceeded := self._new_names.take(identity, host, now)) is not None:
                self._stats("error")
                waiter.set_exception(exceeded)
                return waiter
        if lookup is None and (stale is None or stale.retry_at <= now):
            lookup = self._lookups.start(host, client, now)
        if stale is not None and (lookup is None or stale.backoff_s or now - lookup.started > STALE_AFTER_S):
            self._use_stale(waiter, stale)
            return waiter
        too_many = client != "" and self._waiting.of(client) >= MAX_WAITERS_OF_CLIENT
        if lookup is None or too_many or self._waiting.total >= MAX_WAITERS:
            self._stats("error")
            whose = " of this client" if too_many or self._lookups.scheduler.has_its_share(client) else ""
            failure = NameFailure(Reason.DNS_ERROR, f"too many names{whose} are being looked up")
            waiter.set_exception(failure.fault(host))
            return waiter
        self._waiting.add(client)
        waiter.add_done_callback(partial(self._left, client))
        lookup.waiters.append(waiter)
        self._lookups.scheduler.join(lookup, client)
        if stale is not None:
            loop.call_later(STALE_AFTER_S, self._use_stale, waiter, stale)
        return waiter

    def count_for_parent(self, host: str, identity: str) -> None:
        """Count a name that a parent looks up in our place, as one that is looked up here. Raises LimitExceeded."""
        if self._new_names is None or host in self._asked_of_parent:
            return
        exceeded = self._new_names.take(identity, host, time.monotonic())
        if exceeded is not None:
            raise exceeded
        self._asked_of_parent[host] = None
        if len(self._asked_of_parent) > MAX_NAMES:
            del self._asked_of_parent[next(iter(self._asked_of_parent))]

    def retire(self) -> None:
        """No configuration has this resolver any more: connections to servers close behind the questions on them."""
        self._client.retire()

    def close(self) -> None:
        self._lookups.close()
        self.reverse.close()
        self._client.close()

    def _prefetch(self, host: str, entry: KnownName, now: float) -> None:
        """Ask for a name that is in use before what is known of it expires, unless there is much to ask for already."""
        entry.prefetch_at = math.inf
        is_busy = self._lookups.scheduler.asking.total >= MAX_PREFETCHES
        if not is_busy and host not in self._lookups.known and not self._without_dns(host):
            self._lookups.start(host, "", now)

    # --- lookups -------------------------------------------------------------------------------------------------
    async def _run(self, lookup: Lookup) -> None:
        """Ask, remember, and tell everyone who waits."""
        host = lookup.host
        try:
            try:
                found = await self._find(host)
                entry = self._entry(found, self._cache.get(host))
                if self._spec.prefetch:
                    now = time.monotonic()
                    entry.prefetch_at = now + (entry.expires - now) * PREFETCH_AT
            except DnsFailure as error:
                entry = self._failed(host, NameFailure(error.reason, str(error)))
                error.__traceback__ = None  # frames that hold it: no cycle
            except Exception as error:  # a fault of ours must not leave anyone waiting
                entry = self._failed(host, NameFailure(Reason.DNS_ERROR, f"{type(error).__name__}: {error}"))
        finally:
            self._lookups.end(lookup)
        for waiter in lookup.waiters:
            if not waiter.done():
                if entry.backoff_s:
                    self._stats("stale")
                entry.settle(waiter, host)
        lookup.waiters.clear()
        lookup.task = None
        self._cache.put(host, entry)

    def _too_late(self, lookup: Lookup) -> None:
        """Its turn has not come in time."""
        self._stats("error")
        failure = NameFailure(Reason.DNS_ERROR, "too many names are being looked up")
        for waiter in lookup.waiters:
            if not waiter.done():
                waiter.set_exception(failure.fault(lookup.host))
        lookup.waiters.clear()

    def _entry(self, found: DnsAnswer, known: KnownName | None = None) -> KnownName:
        """What was found; of a family that gave no answer, what was known, as long as it might be used as stale."""
        now = time.monotonic()
        if found.addresses:
            self._stats("ok")
            ttl_s = min(max(found.ttl_s, self._spec.min_ttl_s), self._spec.max_ttl_s)
            stale_until = now + ttl_s + self._spec.stale_ttl_s
            entry = KnownName(now + ttl_s, addresses=Resolved(found.addresses, found.through), stale_until=stale_until)
            until = known.kept_until or known.stale_until if known is not None else 0.0
            if found.unheard and known is not None and until > now:
                kept = [address for address in known.addresses if address.version == found.unheard]
                if kept:
                    through = dict.fromkeys((*found.through, *known.addresses.through))
                    entry.addresses = Resolved(self._order([*found.addresses, *kept]), tuple(through))
                    entry.kept_until = until
                    entry.expires = min(entry.expires, until)
            return entry
        reason = Reason.DNS_NXDOMAIN if found.is_nxdomain else Reason.DNS_NO_ADDRESS
        self._stats(RESULTS[reason][0])
        ttl_s = max(min(found.ttl_s, self._spec.max_negative_ttl_s), self._spec.min_ttl_s)
        return KnownName(now + ttl_s, NameFailure(reason))

    def _failed(self, host: str, failure: NameFailure) -> KnownName:
        """Keep using what is known, for a while (RFC 8767); else remember the failure for a moment (RFC 9520)."""
        now = time.monotonic()
        self._stats(RESULTS[failure.reason][0])
        known = self._cache.get(host)
        if known is None or known.stale_until <= now:
            return KnownName(now + FAILURE_TTL_S, failure)
        known.backoff_s = min(known.backoff_s * 2 or FAILURE_TTL_S, MAX_BACKOFF_S)
        known.retry_at = now + known.backoff_s
        return known

    def _left(self, client: str, _waiter: Waiter) -> None:
        self._waiting.give_back(client)

    def _use_stale(self, waiter: Waiter, entry: KnownName) -> None:
        if not waiter.done():
            self._stats("stale")
            waiter.set_result(entry.addresses)

    # --- one name ------------------------------------------------------------------------------------------------
    async def _find(self, host: str) -> DnsAnswer:
        servers, names = self.servers_for(host)
        if not names:
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
                # A name that the search list completed is another than the client's: it counts as one on the way.
                return found if name == host else replace(found, through=(name, *found.through))
        if failure is not None:
            raise failure
        return found

    async def _names_of(self, pointer: str) -> DnsAnswer:
        """Ask for the PTR records of this name. Raises DnsFailure."""
        servers = self._servers or self._system.read().servers
        return await self._client.ask(servers, _qname(pointer), PTR, self._timeout_s)

    def state(self, host: str) -> tuple[str, float, KnownName | None]:
        """What the cache says of a name, for explanations: "fresh", "stale", "failed" (there are no addresses) or
        "unknown"; for how many seconds that holds; and the entry.
        """
        entry, now = self._cache.get(host), time.monotonic()
        if entry is not None and entry.expires > now:
            return "failed" if entry.failure is not None else "fresh", entry.expires - now, entry
        if entry is not None and entry.stale_until > now:
            return "stale", entry.stale_until - now, entry
        return "unknown", 0.0, None

    async def ask_each_server(self, host: str) -> list[ServerAnswer]:
        """Ask every server for both families as far as the policy wants them, past the cache; for explanations."""
        servers, names = self.servers_for(host)
        questions = [(server, name, kind) for server in servers for name in names for kind in self._kinds]
        return list(await asyncio.gather(*(self._ask_server(*question) for question in questions[:MAX_ASKED_EACH])))

    async def _ask_server(self, server: Server, name: str, kind: int) -> ServerAnswer:
        began = time.monotonic()
        answer, failure = None, ""
        try:
            answer = await self._client.ask([server], _qname(name), kind, self._timeout_s)
        except DnsFailure as error:
            error.__traceback__ = None
            failure = str(error)
        return ServerAnswer(server.label, name, "A" if kind == A else "AAAA", time.monotonic() - began, answer, failure)

    def servers_for(self, host: str) -> tuple[Sequence[Server], list[str]]:
        """The servers that are asked for this name, and the absolute names that they are asked for, in turn."""
        if _is_nobodys(host):
            return self._servers, []
        if self._servers:
            return self._servers, [host]
        system = self._system.read()
        return system.servers, [name for name in system.names(host) if not _is_nobodys(name)]

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
        if host == OWN_HOST:
            return None
        return self._static.get(host) or self._hosts.read().get(host)

    async def _both_families(self, servers: Sequence[Server], name: bytes, deadline: float) -> DnsAnswer:
        loop = asyncio.get_running_loop()
        timeout_s = deadline - time.monotonic()
        tasks = {
            kind: loop.create_task(
                self._client.ask(servers, name, kind, timeout_s, must_be_authentic=self._spec.dnssec is Dnssec.REQUIRE)
            )
            for kind in self._kinds
        }
        try:
            first = tasks.get(A)
            if first is not None:
                await asyncio.wait([first])
                answer = first.result() if first.exception() is None else None
                if answer is not None and answer.is_nxdomain:
                    return answer  # the name, not the type, is what does not exist (RFC 8020)
                has_some = answer is not None and bool(answer.addresses)
                await asyncio.wait(tasks.values(), timeout=self._grace_s if has_some else None)
            else:
                await asyncio.wait(tasks.values())
            found = self._merge([task for task in tasks.values() if task.done()])
            failed = [kind for kind, task in tasks.items() if not task.done() or task.exception() is not None]
            return replace(found, unheard=4 if failed[0] == A else 6) if failed else found
        finally:
            give_up(tasks.values())

    def _merge(self, tasks: Sequence[asyncio.Task[DnsAnswer]]) -> DnsAnswer:
        """Addresses of either family are enough; without any, a failure counts more than an empty answer."""
        errors = [error for error in (task.exception() for task in tasks) if error is not None]
        answers = [task.result() for task in tasks if task.exception() is None]
        found = [a for answer in answers for a in answer.addresses]
        if found:
            used = [answer for answer in answers if answer.addresses]
            through = tuple(dict.fromkeys(name for answer in used for name in answer.through))
            return DnsAnswer(self._order(found), min(answer.ttl_s for answer in used), through=through)
        for answer in answers:
            if answer.is_nxdomain:
                return answer
        if errors:
            raise errors[0]
        return DnsAnswer((), min(answer.ttl_s for answer in answers))

    def _order(self, addresses: Sequence[IPAddress]) -> tuple[IPAddress, ...]:
        """The preferred family first; else alternating, IPv6 first if it has a route (RFC 8305 section 4)."""
        family = self._spec.family
        v4 = [a for a in addresses if a.version == 4 and family is not Family.IPV6]
        v6 = [a for a in addresses if a.version == 6 and family is not Family.IPV4]
        if family is Family.IPV6_PREFERRED:
            return (*v6, *v4)
        if family is Family.IPV4_PREFERRED or not self._route.exists():
            return (*v4, *v6)
        return tuple(a for a in chain.from_iterable(zip_longest(v6, v4)) if a is not None)


def _is_nobodys(name: str) -> bool:
    """Whether no server is asked for this name, though a search list has made it."""
    return name == OWN_HOST or name.rpartition(".")[2] in _NEVER_ASKED


def _qname(host: str) -> bytes:
    try:
        return encode_name(host)
    except ValueError as error:
        raise DnsFailure(Reason.DNS_ERROR, f"not a name that DNS can carry: {error}") from None
