"""Endpoints of one cluster under `loadBalancer`, `healthCheck` and `circuitBreaker`: which one is next, what each
outcome of a request says about it, and how many requests it may have.

Ip and Service: each address is an endpoint with a pool of its own. Fqdn: the name is one endpoint for balancing and for
the circuit breaker; its addresses have a health each, and those that are out are not dialled, nor are connections to
them used. Dynamic: each destination that clients name has the circuit breaker alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from egressproxy.errors import GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.backends.upstream_hosts import DialTarget, HostMonitor, UpstreamHost, UpstreamHosts
from egressproxy.ir.backend import ConnectionIR, Destination, EndpointAddress
from egressproxy.ir.resilience import NO_RESILIENCE, CircuitBreakerIR, HashSource, LoadBalancerIR, LoadBalancerType
from egressproxy.model.authority import IPAddress
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import client_of
from egressproxy.net.flow_control import address_text
from egressproxy.protocols.upstream import Upstream
from egressproxy.upstream.balancer import Balancer, Member, open_circuit
from egressproxy.upstream.endpoint_health import EndpointHealth, HealthState, OutlierDetection
from egressproxy.upstream.pool import PoolTicket

#: Addresses of one name whose health is kept; of further ones nothing is known.
MAX_ADDRESSES = 64
#: Reasons that count against the endpoint. Faults that a client can cause (a body that does not come) are left out.
FAILURES = frozenset((
    Reason.CONNECT_REFUSED, Reason.CONNECT_TIMEOUT, Reason.CONNECT_FAILED, Reason.TLS_CERTIFICATE, Reason.TLS_PROTOCOL,
    Reason.TLS_TIMEOUT, Reason.UPSTREAM_RESET, Reason.UPSTREAM_CLOSED, Reason.UPSTREAM_INCOMPLETE, Reason.BAD_RESPONSE,
))  # fmt: skip


def host_set_of(
    spec: ConnectionIR, network: Network, targets: UpstreamHosts, open_to: Sequence[EndpointAddress]
) -> HostSet | None:
    """The endpoints of a cluster; None where nothing but taking turns is asked for. `open_to`: those not denied."""
    is_hinted = bool(network.zone) and any(endpoint.for_zones for endpoint in open_to)
    return HostSet(spec, network, targets, open_to) if spec.resilience != NO_RESILIENCE or is_hinted else None


class HostSet:
    """The endpoints of one cluster. Their health is in the registry of the network, and outlives a reload."""

    __slots__ = ("_by_member", "_key", "_wheel", "balancer", "breaker", "name", "retries", "targets")

    def __init__(
        self, spec: ConnectionIR, network: Network, targets: UpstreamHosts, open_to: Sequence[EndpointAddress]
    ) -> None:
        backend, resilience = spec.backend, spec.resilience
        self.name = backend.label
        self.targets = targets
        self.retries = 0  # that are in progress
        self._wheel = network.wheel
        circuit_breaker = targets.monitors = CircuitBreaker(spec, network)
        self.breaker = circuit_breaker.breaker
        self._key = hash_key(resilience.load_balancer)
        self._by_member: dict[Member[UpstreamHost], EndpointAddress] = {}
        self.balancer: Balancer[UpstreamHost] | None = None
        if backend.destination in (Destination.IP, Destination.SERVICE):
            healths = {each: circuit_breaker.health(address_text(str(each.address), each.port)) for each in open_to}
            detection = OutlierDetection(resilience.outliers, tuple(healths.values()))
            for endpoint, health in healths.items():
                target = targets.configured(str(endpoint.address), endpoint.port, backend.tls)
                target.monitor = EndpointMonitor(circuit_breaker, detection, health)
                self._by_member[Member(target, health, endpoint.zone, endpoint.for_zones)] = endpoint
            members = tuple(self._by_member)
            self.balancer = Balancer(self.name, resilience, members, network.health, network.zone)

    def next(self, exchange: Exchange, avoid: Collection[UpstreamHost] = ()) -> EndpointAddress:
        """The endpoint that this exchange goes to. Raises UpstreamFault, LimitExceeded (503)."""
        assert self.balancer is not None
        key = self._key(exchange) if self._key is not None else None
        return self._by_member[self.balancer.choose(key, self._wheel.now, avoid)]

    @property
    def may_serve(self) -> bool:
        """Whether a request to this backend would find an endpoint that may be used."""
        if self.balancer is not None:
            return self.balancer.may_serve(self._wheel.now)
        monitor = None if self.named is None else self.named.monitor
        return not (isinstance(monitor, HostnameMonitor) and monitor.is_out)

    def is_usable(self, target: UpstreamHost) -> bool:
        return not isinstance(target.monitor, EndpointMonitor) or target.monitor.health.is_usable(self._wheel.now)

    # --- retries -------------------------------------------------------------------------------------------------
    def take_retry(self) -> bool:
        """Whether one more retry may be in progress (`maxParallelRetries`). If so it is counted: `end_retry` it."""
        most = self.breaker.max_retries
        if most is not None and self.retries >= most:
            return False
        self.retries += 1
        return True

    def end_retry(self) -> None:
        self.retries -= 1

    # --- tunnels, and requests on connections of others ------------------------------------------------------------
    @property
    def counts_tunnels(self) -> bool:
        """Whether there is a limit that a tunnel may reach."""
        return self.breaker.max_connections is not None or self.breaker.max_requests is not None

    def count_tunnel(self, target: UpstreamHost, client: str) -> Callable[[], None]:
        """Count a tunnel as a connection to this target, and as a request there. Call what is returned in its end. It
        does not wait: an idle connection makes way. Raises LimitExceeded, or UpstreamFault, (503).
        """
        assert target.monitor is not None
        target.monitor.admit(target)
        most, pool = self.breaker.max_connections, target.pool
        if most is not None and sum(target.counts()) >= most:
            idle = pool.take()
            if idle is None:
                raise open_circuit(self.name, "maxConnections")
            idle.close()
        ticket: PoolTicket[Upstream] = PoolTicket(client)
        pool.count(ticket)
        return partial(pool.lost, ticket)

    # --- for people ----------------------------------------------------------------------------------------------
    @property
    def named(self) -> UpstreamHost | None:
        """The target of an Fqdn backend that is reached without a parent, whose addresses have a health each."""
        return next((each for each in self.targets.known.values() if isinstance(each.monitor, HostnameMonitor)), None)

    def healths(self) -> Iterator[EndpointHealth]:
        """The health of each endpoint that is known."""
        for target in self.targets.known.values():
            if isinstance(target.monitor, EndpointMonitor):
                yield target.monitor.health
            elif isinstance(target.monitor, HostnameMonitor):
                yield from target.monitor.known.values()

    def open_circuits(self) -> Iterator[str]:
        """The name of each limit of `circuitBreaker` that is reached, once for each endpoint."""
        breaker = self.breaker
        if breaker.max_retries is not None and self.retries >= breaker.max_retries:
            yield "maxParallelRetries"
        for target in self.targets.known.values():
            if breaker.max_connections is not None and target.counts()[0] >= breaker.max_connections:
                yield "maxConnections"
            if breaker.max_pending and target.waiting >= breaker.max_pending:
                yield "maxPendingRequests"
            if breaker.max_requests is not None and target.in_flight >= breaker.max_requests:
                yield "maxParallelRequests"


class CircuitBreaker:
    """The circuit breaker of every target of a cluster; as a monitor it knows no health. Nothing here holds a target:
    what a reload retires has to be free of circles.
    """

    __slots__ = ("_name", "_network", "_scope", "_spec", "breaker")

    def __init__(self, spec: ConnectionIR, network: Network) -> None:
        self._spec = spec
        self._name = spec.backend.label
        self._network = network
        self._scope = replace(spec, backend=replace(spec.backend, endpoints=()))
        self.breaker = spec.resilience.breaker or CircuitBreakerIR()

    def new_monitor(self, target: UpstreamHost) -> HostMonitor:
        breaker, pool = self.breaker, target.pool
        if breaker.max_connections is not None:
            pool.limit = breaker.max_connections
            pool.share = min(pool.share, breaker.max_connections)
        if breaker.max_pending is not None:
            pool.waiting.limit = breaker.max_pending
            pool.waiting.share = min(pool.waiting.share, breaker.max_pending)
        if self._spec.backend.destination is not Destination.FQDN:
            return self
        if self._spec.backend.parent is None:
            return HostnameMonitor(self)
        return ProxiedMonitor(self, self.health(address_text(target.host, target.port)))

    def health(self, address: str) -> EndpointHealth:
        """The health of this address ("host:port")."""
        backend, resilience, network = self._spec.backend, self._spec.resilience, self._network
        return network.health.of(
            self._scope, self._name, backend, address, resilience.outliers, resilience.check, network.wheel.now
        )

    def is_failure(self, target: DialTarget, error: GatewayError, upstream: Upstream | None) -> bool:
        """Whether an attempt that failed like this says something about the endpoint: behind a parent it does not."""
        if self._spec.backend.parent is not None or not isinstance(error, UpstreamFault):
            return False
        if error.reason is Reason.RESPONSE_TIMEOUT:
            if upstream is None:  # it has waited for the connection, or for other requests
                return not (isinstance(target, UpstreamHost) and target.waiting)
            return self._has_kept_us_waiting(upstream)
        if upstream is not None and upstream.was_reused and (error.retry is RetrySafety.IF_REUSED or error.is_left_out):
            return False  # the server has ended a connection that had served
        return error.reason in FAILURES

    def _has_kept_us_waiting(self, upstream: Upstream) -> bool:
        """Whether the upstream, and not a client with a slow body, has taken the larger part of the time for it."""
        if not upstream.has_sent_all or upstream.is_write_blocked or upstream.head is not None:
            return False
        sent_at = max(upstream.sent_at, upstream.last_read)  # the latter is when the request began
        return self.now - sent_at >= sent_at - upstream.last_read

    @property
    def now(self) -> float:
        """Monotonic seconds, as exact as the wheel of timers."""
        return self._network.wheel.now

    @property
    def version(self) -> int:
        """Changes whenever the health of an endpoint does."""
        return self._network.health.version

    @property
    def outliers(self) -> OutlierDetection:
        """The outlier detection of a name, whose addresses are not known yet."""
        return OutlierDetection(self._spec.resilience.outliers, ())

    def none_left(self, count: int) -> UpstreamFault:
        """The error where all of so many addresses are out."""
        what = "its one address is out" if count == 1 else f"all {count} addresses are out"
        message = f"backend {self._name} has no healthy endpoint: {what}"
        return UpstreamFault(Reason.NO_HEALTHY_ENDPOINT, message, status=503, retry=RetrySafety.SAFE, retry_after_s=1)

    @property
    def may_panic(self) -> bool:
        """Whether endpoints that are out are used where no other is left."""
        return self._spec.resilience.panic_percent > 0

    def admit(self, target: UpstreamHost) -> None:
        most = self.breaker.max_requests
        if most is not None and target.in_flight >= most:
            raise open_circuit(self._name, "maxParallelRequests")

    def answered(self, target: DialTarget, upstream: str, status: int) -> None:
        """See HostMonitor."""

    def failed(self, target: DialTarget, error: GatewayError, exchange: Exchange, upstream: Upstream | None) -> None:
        """See HostMonitor."""

    def order(self, target: DialTarget, addresses: Sequence[IPAddress]) -> Sequence[IPAddress]:
        return addresses


@dataclass(slots=True, eq=False, repr=False)
class EndpointMonitor:
    """The monitor of a target that is one endpoint."""

    _circuit_breaker: CircuitBreaker
    _detection: OutlierDetection
    health: EndpointHealth

    def admit(self, target: UpstreamHost) -> None:
        self._circuit_breaker.admit(target)

    def answered(self, target: DialTarget, upstream: str, status: int) -> None:
        if status >= 500 or not self.health.is_clean:
            self._detection.answered(self.health, status, self._circuit_breaker.now)

    def failed(self, target: DialTarget, error: GatewayError, exchange: Exchange, upstream: Upstream | None) -> None:
        if self._circuit_breaker.is_failure(target, error, upstream):
            self._detection.failed(self.health, self._circuit_breaker.now)
        elif self.health.state is HealthState.TRIAL:
            self.health.end_trial()

    def order(self, target: DialTarget, addresses: Sequence[IPAddress]) -> Sequence[IPAddress]:
        return addresses


class ProxiedMonitor(EndpointMonitor):
    """The monitor of a name that a parent resolves: one endpoint, which health checks through the parent judge."""

    __slots__ = ()

    def __init__(self, circuit_breaker: CircuitBreaker, health: EndpointHealth) -> None:
        super().__init__(circuit_breaker, OutlierDetection(None, (health,)), health)

    def admit(self, target: UpstreamHost) -> None:
        self._circuit_breaker.admit(target)
        if self.health.state is HealthState.UNHEALTHY and not self._circuit_breaker.may_panic:
            raise self._circuit_breaker.none_left(1)


class HostnameMonitor:
    """The monitor of a name, whose addresses have a health each. `known` is by "address:port"."""

    __slots__ = ("_circuit_breaker", "_detection", "_due", "_is_out", "_version", "known")

    def __init__(self, circuit_breaker: CircuitBreaker) -> None:
        self._circuit_breaker = circuit_breaker
        self.known: dict[str, EndpointHealth] = {}
        self._detection = circuit_breaker.outliers
        self._detection.healths = self.known.values()
        self._is_out = False  # all of the addresses are
        self._version = -1
        self._due = 0.0

    def admit(self, target: UpstreamHost) -> None:
        self._circuit_breaker.admit(target)
        if self.is_out:
            raise self._circuit_breaker.none_left(len(self.known))

    @property
    def is_out(self) -> bool:
        """Whether all known addresses are, so that there is nothing to dial."""
        breaker = self._circuit_breaker
        if self._version != breaker.version or breaker.now >= self._due:
            now, healths = breaker.now, self.known.values()
            self._is_out = bool(healths) and not (breaker.may_panic or any(each.is_usable(now) for each in healths))
            self._due = min((each.next_change(now) for each in healths), default=float("inf"))
            self._version = breaker.version
        return self._is_out

    def answered(self, target: DialTarget, upstream: str, status: int) -> None:
        health = self.known.get(upstream)
        if health is not None and (status >= 500 or not health.is_clean):
            self._settle(target, health, self._detection.answered(health, status, self._circuit_breaker.now))

    def failed(self, target: DialTarget, error: GatewayError, exchange: Exchange, upstream: Upstream | None) -> None:
        """See HostMonitor. A dial that fails has failed at each address that it tried."""
        if upstream is not None:
            tried = [upstream.address]
        else:
            tried = [address_text(str(address), target.port) for address in exchange.addresses]
        counts = self._circuit_breaker.is_failure(target, error, upstream)
        for health in filter(None, map(self.known.get, tried)):
            if counts:
                self._settle(target, health, self._detection.failed(health, self._circuit_breaker.now))
            elif health.state is HealthState.TRIAL:
                health.end_trial()

    def order(self, target: DialTarget, addresses: Sequence[IPAddress]) -> Sequence[IPAddress]:
        now = self._circuit_breaker.now
        texts = self.learn(target, addresses)
        usable = [texts[text] for text, health in self.known.items() if health.is_usable(now)]
        for health in self.known.values():
            if health.state is HealthState.TRIAL and health.is_usable(now):
                health.begin_trial(now)
        return usable or addresses

    def learn(self, target: DialTarget, addresses: Sequence[IPAddress]) -> dict[str, IPAddress]:
        """These are all addresses of the name: the health of others is forgotten. Returns them by "address:port"."""
        texts = {address_text(str(address), target.port): address for address in addresses[:MAX_ADDRESSES]}
        if texts.keys() != self.known.keys():
            kept = {text: self.known.get(text) or self._circuit_breaker.health(text) for text in texts}
            self.known.clear()  # in place: the outlier detection looks at it
            self.known.update(kept)
            self._version = -1
        return texts

    def _settle(self, target: DialTarget, health: EndpointHealth, is_ejected: bool) -> None:
        if is_ejected:
            target.name.leave(health.address.rpartition(":")[0].strip("[]"))


def hash_key(spec: LoadBalancerIR) -> Callable[[Exchange], bytes | None] | None:
    """How the key for ConsistentHash is read from an exchange; None where there is none to read."""
    if spec.type is not LoadBalancerType.CONSISTENT_HASH:
        return None
    if spec.hash_source is HashSource.HEADER:
        return partial(_of_header, spec.hash_name.encode())
    if spec.hash_source is HashSource.COOKIE:
        return partial(_of_cookie, re.compile(rb"(?:^|[;,])[ \t]*%b=([^;,]*)" % re.escape(spec.hash_name.encode())))
    return _of_client


def _of_client(exchange: Exchange) -> bytes:
    return client_of(exchange).encode()


def _of_header(name: bytes, exchange: Exchange) -> bytes | None:
    return exchange.request.fields.get(name) if exchange.has_request else None


def _of_cookie(pattern: re.Pattern[bytes], exchange: Exchange) -> bytes | None:
    lines: Iterable[bytes] = exchange.request.fields.get_all(b"cookie") if exchange.has_request else ()
    for line in lines:
        found = pattern.search(line)
        if found is not None:
            return found[1].strip()
    return None
