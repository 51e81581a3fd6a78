"""ParentSelector: the ways to one backend: through its parents in their order, or past them all.

A parent that cannot be connected to is put aside for a while, which doubles each time that it fails again. Meanwhile
the next one is asked first. When the time is over, one exchange tries it, and the others stay with the next one until
it has succeeded. Only connections are made again: what a parent answers is an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from egressproxy.errors import Reason
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.opener import ConnectionOpener, Parent
from egressproxy.gateway.backends.parent_connect import ParentUnreachable
from egressproxy.gateway.backends.upstream_hosts import DialTarget
from egressproxy.ir.backend import BackendIR, ConnectionIR, Destination, NoProxyRule
from egressproxy.ir.policy import AddressAllowance
from egressproxy.ir.resilience import NO_RESILIENCE
from egressproxy.model.exchange import Exchange
from egressproxy.net.tls_contexts.contexts import HTTP_1_1

#: How long a parent that cannot be connected to is put aside: the first time, and at most.
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
#: Decisions of NoProxy that are remembered: clients name as many hosts as they like.
MAX_KNOWN: Final = 1024

C = TypeVar("C")
T = TypeVar("T")


class NoProxy:
    """The destinations that no parent is asked for. It decides on what was named, before any name is resolved."""

    __slots__ = ("_known", "_names", "_networks")

    def __init__(self, rules: Iterable[NoProxyRule]) -> None:
        self._names: dict[str, list[NoProxyRule]] = {}
        self._networks = [(network, rule) for rule in rules for network in rule.cidrs]
        for rule in rules:
            for pattern in rule.hostnames:
                self._names.setdefault(pattern, []).append(rule)
        self._known: dict[tuple[str, int], bool] = {}

    def holds(self, host: str, port: int) -> bool:
        """Whether this host (a lower-case name, or an address) is reached directly on this port."""
        found = self._known.get((host, port))
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[host, port] = any(not rule.ports or port in rule.ports for rule in self._rules(host))
        return found

    def _rules(self, host: str) -> Iterable[NoProxyRule]:
        if ":" in host or host.rpartition(".")[2].isdigit():
            address = ip_address(host)
            yield from (rule for network, rule in self._networks if address in network)
            return
        yield from self._names.get(host, ())
        while "." in host:
            host = host.partition(".")[2]
            yield from self._names.get(f"*.{host}", ())


class _Candidate(Generic[C]):
    """`until` is the time at which it may be tried again, after so many `failures` in a row."""

    __slots__ = ("cluster", "failures", "parent", "until")

    def __init__(self, cluster: C, parent: BackendIR) -> None:
        self.cluster = cluster
        self.parent = parent
        self.failures = 0
        self.until = 0.0


class ParentSelector(Generic[C]):
    """Chooses the cluster of a way. `now` gives monotonic seconds; `tell` is `NetworkReports.parent`."""

    __slots__ = ("_candidates", "_direct", "_no_proxy", "_now", "_tell")

    def __init__(
        self,
        parents: Sequence[tuple[BackendIR, C]],
        direct: C | None,
        no_proxy: Iterable[NoProxyRule],
        now: Callable[[], float],
        tell: Callable[[BackendIR, Reason | None, str], None],
    ) -> None:
        """`parents` are clusters, each with its parent; `direct` is for what `no_proxy` lists."""
        self._candidates = [_Candidate(cluster, parent) for parent, cluster in parents]
        self._direct = direct
        self._no_proxy = NoProxy(tuple(no_proxy))
        self._now = now
        self._tell = tell

    @property
    def clusters(self) -> list[C]:
        return [each.cluster for each in self._candidates] + ([self._direct] if self._direct is not None else [])

    def put_aside(self) -> Iterator[tuple[str, float]]:
        """The name of each parent, and the seconds for which it is put aside from now on; 0.0: it is not."""
        now = self._now()
        for candidate in self._candidates:
            yield candidate.parent.name, max(0.0, candidate.until - now)

    def is_direct(self, host: str, port: int) -> bool:
        return self._direct is not None and self._no_proxy.holds(host, port)

    def first(self, host: str, port: int) -> C:
        """The cluster of the way that an exchange with this destination takes where every parent is well."""
        return self._direct if self._direct is not None and self.is_direct(host, port) else self._candidates[0].cluster

    def present(self, host: str, port: int) -> C:
        """The cluster of the way that an exchange with this destination takes now."""
        if self._direct is not None and self._no_proxy.holds(host, port):
            return self._direct
        now = self._now()
        return next((each for each in self._candidates if each.until <= now), self._candidates[0]).cluster

    async def reach(self, host: str, port: int, attempt: Callable[[C], Awaitable[T]]) -> T:
        """What `attempt` returns for the cluster of the first way whose parent can be connected to.

        Where all are put aside, each is tried, the one first whose time is over first. Raises what the attempt raises;
        where no parent can be connected to, what the last one has.
        """
        if self._direct is not None and self._no_proxy.holds(host, port):
            return await attempt(self._direct)
        tried: list[_Candidate[C]] = []
        while True:
            candidate = self._next(tried)
            tried.append(candidate)
            known_failures = candidate.failures
            if known_failures:
                candidate.until = self._now() + _pause_s(known_failures)  # for others, while this exchange tries it
            try:
                made = await attempt(candidate.cluster)
            except ParentUnreachable as error:
                if error.is_down and candidate.failures == known_failures:  # else another exchange has found it
                    self._put_aside(candidate, error)
                if len(tried) == len(self._candidates):
                    raise
                error.__traceback__ = None  # frames that hold it: no cycle
            else:
                if candidate.failures:
                    candidate.failures, candidate.until = 0, 0.0
                    message = f"the parent proxy {candidate.parent.name} can be connected to again"
                    self._tell(candidate.parent, None, message)
                return made

    def _next(self, tried: Sequence[_Candidate[C]]) -> _Candidate[C]:
        now = self._now()
        left = [each for each in self._candidates if each not in tried]
        return next((each for each in left if each.until <= now), None) or min(left, key=attrgetter("until"))

    def _put_aside(self, candidate: _Candidate[C], error: ParentUnreachable) -> None:
        candidate.failures += 1
        pause_s = _pause_s(candidate.failures)
        candidate.until = self._now() + pause_s
        message = f"{error.message}: it is put aside for {pause_s:.0f} s ({error.reason.value})"
        self._tell(candidate.parent, error.reason, message)


class SelectingOpener(ConnectionOpener):
    """Opens connections of health checks as those of requests: by the first way whose parent can be connected to."""

    __slots__ = ("_parents",)

    def __init__(
        self, spec: ConnectionIR, network: Network, parent: Parent | None, parents: ParentSelector[Any]
    ) -> None:
        super().__init__(spec, network, parent)
        self._parents = parents

    async def open(
        self,
        exchange: Exchange,
        target: DialTarget,
        connect: FilterSteps | None,
        protocol: asyncio.Protocol,
        alpn: tuple[str, ...] = HTTP_1_1,
    ) -> asyncio.Transport:
        opened: asyncio.Transport = await self._parents.reach(
            target.host, target.port, lambda cluster: cluster.opener.open(exchange, target, connect, protocol, alpn)
        )
        return opened


def _pause_s(failures: int) -> float:
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), MAX_PAUSE_S)


def candidate_specs(spec: ConnectionIR) -> Iterator[tuple[BackendIR, ConnectionIR]]:
    """The backend through each of its parents alone, in their order, each with that parent. None without a parent."""
    backend = replace(spec.backend, other_parents=(), no_proxy=())
    if backend.parent is not None:
        yield backend.parent, replace(spec, backend=backend)
    for each in spec.backend.other_parents:
        candidate = replace(
            backend,
            parent=each.backend,
            parent_credentials=each.credentials,
            parent_dns=each.dns,
            parent_identity_key=each.identity_key,
        )
        yield each.backend, replace(spec, backend=candidate)


def direct_spec(spec: ConnectionIR) -> ConnectionIR:
    """The backend without a parent."""
    alone = replace(
        spec.backend,
        parent=None,
        parent_credentials=None,
        parent_dns=None,
        parent_identity_key=None,
        other_parents=(),
        no_proxy=(),
    )
    return replace(spec, backend=alone)


def parent_spec(spec: ConnectionIR) -> ConnectionIR:
    """The parent is reached under the same rules as the backend behind it, but that its name may lead into the network:
    an operator wrote it, and such proxies stand inside. Not to this machine, to metadata, nor to what is denied. Its
    own source address goes before that of the backend.
    """
    parent = spec.backend.parent
    assert parent is not None
    addresses = spec.addresses
    if parent.destination is Destination.FQDN:
        own = AddressAllowance(hostnames=(parent.hostname,))
        addresses = replace(addresses, allow=tuple((*group, own) for group in addresses.allow) or ((own,),))
    dns = spec.backend.parent_dns or spec.dns
    source = parent.source_address or spec.source_address
    return replace(spec, backend=parent, addresses=addresses, dns=dns, resilience=NO_RESILIENCE, source_address=source)
