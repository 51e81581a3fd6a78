"""Network: what all clusters share."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendIR, ConnectionIR
from egressproxy.model.per_client_quota import PerClientQuota, most_of
from egressproxy.model.secret import SecretBytes
from egressproxy.net.process import descriptors
from egressproxy.net.timers import TimerWheel
from egressproxy.upstream.dialer import Dialer, Dials
from egressproxy.upstream.dns_client import OnQuery
from egressproxy.upstream.endpoint_health import EndpointHealth, HealthRegistry, Why
from egressproxy.upstream.new_hostname_rate_limit import KeyedTables
from egressproxy.upstream.own_sockets import NO_SOCKETS
from egressproxy.upstream.resolver import Resolver

_ENCRYPTED = ("tls://", "https://")
#: Copies for mirrors at once in one process, and bytes of their bodies that wait.
MAX_COPIES = 1024
MAX_COPIED_BYTES = 64 * 1024 * 1024
#: Health checks at once in one process.
MAX_CHECKS = 64


def _nobody(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class NetworkReports:
    """Who is told of what happens on the way to backends."""

    dns_outcome: Callable[[str], None] = _nobody  # how the look-up of a name ended
    dns_query: OnQuery = _nobody  # the label of a DNS server, how a query to it ended, and seconds
    reverse_check: Callable[[str], None] = _nobody  # what the names of an address said: as ReverseFinding.result
    endpoint: Callable[[EndpointHealth, Why], None] = _nobody  # one that has left service or returned
    #: A parent, why it is put aside (None: it can be connected to again), and a sentence.
    parent: Callable[[BackendIR, Reason | None, str], None] = _nobody
    #: A backend of a Failover, why, and the seconds for which it is put aside (0.0: it returns).
    failover: Callable[[BackendIR, str, float], None] = _nobody


class Network:
    """The loop, the timers, the dialer, resolvers and address policies by their specs.

    `session_key` signs the tokens of session persistence: the same in all workers of a run. `zone` is where this
    process runs, as in EndpointSlices; "": not known. `tables`: as of Resolver.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wheel: TimerWheel,
        pseudonym: bytes,
        reports: NetworkReports = NetworkReports(),
        session_key: bytes = b"",
        zone: str = "",
        tables: KeyedTables | None = None,
    ) -> None:
        self.loop = loop
        self.wheel = wheel
        self.pseudonym = pseudonym
        self.session_key = SecretBytes(session_key or secrets.token_bytes(32))
        self.dialer: Dials = Dialer()
        self.zone = zone
        self.reports = reports
        self.health = HealthRegistry(reports.endpoint)
        self._tables = tables
        self._resolvers: dict[object, Resolver] = {}
        self.own = NO_SOCKETS
        self.opened = PerClientQuota(sys.maxsize, descriptors() // 8)  # upstream connections, by who had them opened
        self.checks = PerClientQuota(MAX_CHECKS, most_of(MAX_CHECKS))  # health checks in progress, by namespace
        self.mirror_requests = PerClientQuota(MAX_COPIES, most_of(MAX_COPIES))  # for mirrors, under way
        self.copied_bytes = PerClientQuota(
            MAX_COPIED_BYTES, most_of(MAX_COPIED_BYTES)
        )  # of those, what waits for a mirror

    def resolver(self, spec: ConnectionIR) -> Resolver:
        """The resolver for this backend's DNS spec. Backends with equal specs share it and its cache."""
        key = resolver_key(spec)
        found = self._resolvers.get(key)
        if found is None:
            found = self._resolvers[key] = Resolver(
                spec.dns, self.reports.dns_outcome, on_query=self.reports.dns_query, tables=self._tables
            )
        return found

    def keep_resolvers(self, specs: Iterable[ConnectionIR]) -> None:
        """Forget the resolvers that none of these use. Lookups that are under way in them are answered."""
        used = set(map(resolver_key, specs))
        for key in [each for each in self._resolvers if each not in used]:
            self._resolvers.pop(key).retire()


def resolver_key(spec: ConnectionIR) -> object:
    """What decides whether two backends share a resolver: where the system vouches for its servers, its CAs, too."""
    dns = spec.dns
    is_encrypted = dns.transport in ("tls", "https") or any(each.startswith(_ENCRYPTED) for each in dns.servers)
    return dns, spec.system_roots if is_encrypted and not dns.ca_pem else ""
