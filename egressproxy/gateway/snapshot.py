"""What a Snapshot is made of: ports, listeners, routes and choices, with everything that configuration decides bound
already.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.chain import Chain
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.connector import NO_PORTS, Connector
from egressproxy.ir.backend import ConnectionIR
from egressproxy.ir.gateway import ClientCertificatesIR, ListenerIR, ListenerProtocol
from egressproxy.ir.policy import LimitsIR, Mode, PolicyIR
from egressproxy.net.timers import TICK_S
from egressproxy.protocols.http1.codec import HeadLimits
from egressproxy.routing.destinations import Denial, DestinationPolicy
from egressproxy.routing.hosts import HostTable
from egressproxy.routing.permission import Permission
from egressproxy.routing.table import HttpTable
from egressproxy.telemetry.metrics import Series

if TYPE_CHECKING:
    from egressproxy.gateway.backends.mirror import Mirror
    from egressproxy.gateway.backends.retries import Attempts
    from egressproxy.gateway.exchange.default_routes import DefaultRoutes
    from egressproxy.gateway.ext_authz.filter import ExternalAuth

__all__ = ["EXACT_BELOW_S", "ActiveListener", "Port", "Route", "RouteBackend", "Snapshot"]

#: TLS (by SNI) and TCP listeners: no HTTP there.
STREAM_PROTOCOLS = (ListenerProtocol.TLS, ListenerProtocol.TCP)

#: The golden ratio's fraction: multiples of it fall into a circle more evenly than those of any other number, so that
#: shares of traffic come out within a few requests.
GOLDEN = 0.6180339887498949

#: Times for requests and attempts that are shorter are kept to the millisecond (`attempts`).
EXACT_BELOW_S = 1.0


class RouteBackend:
    """One backendRef of a rule: the connector, the filters that run for this backend, and where its traffic is counted.

    `connector` None: the reference is invalid, and its share of the traffic is answered 500 with `error`; or the place
    is `denied`, and it is answered 403. With a connector, in Report mode, `denied` is noted and no more.
    `mirrors` are those of the rule and of the ref; None where there is none. `parent_by`: see WeightedBackend.
    """

    __slots__ = (
        "backend", "backend_request_s", "chain", "clock_s", "connector", "denied", "error", "mirrors", "parent_by",
        "series", "served_ports", "unknown_extension", "weight",
    )  # fmt: skip

    def __init__(
        self,
        backend: str,
        connector: Connector | None,
        chain: Chain,
        series: Series,
        *,
        weight: int,
        error: str,
        backend_request_s: float,
        mirrors: tuple[Mirror, ...] | None = None,
        denied: Denial | None = None,
        served_ports: Mapping[str, Collection[int]] = NO_PORTS,
        unknown_extension: str = "",
        parent_by: str = "",
    ) -> None:
        self.backend = backend
        self.connector = connector
        self.chain = chain
        self.series = series
        self.weight = weight
        self.error = error
        self.backend_request_s = backend_request_s
        self.clock_s = on_the_wheel(backend_request_s)
        self.mirrors = mirrors
        self.denied = denied
        self.served_ports = served_ports
        self.unknown_extension = unknown_extension
        self.parent_by = parent_by

    def fault(self, route: str, rule: str) -> GatewayError:
        """Why nothing is sent there, where `connector` is None. `rule` is the route's kind and name."""
        if self.denied is not None:
            return self.denied.error()
        if self.unknown_extension:
            message = f"route {route} needs the {self.unknown_extension}, which this gateway does not have"
            return GatewayFault(Reason.UNKNOWN_EXTENSION, message, rule=rule, detail=self.error)
        if self.parent_by:
            rule = self.parent_by
            message = f"the parent proxy of {self.parent_by} cannot be used"
        elif route == "-":
            message = "a policy of this listener asks for what cannot be done"
        else:
            message = f"route {route} refers to a backend that cannot be used"
        remedy = "the status of that object says why, and so does `egressproxy check`"
        return GatewayFault(Reason.BACKEND_INVALID, message, rule=rule, remedy=remedy, detail=self.error)

    @property
    def originates_tls(self) -> bool:
        """Whether the backend is configured with TLS."""
        return self.connector is not None and self.connector.spec.backend.tls is not None

    def counted_in(self, series: Series) -> RouteBackend:
        """The same, whose traffic is counted elsewhere."""
        made = copy(self)
        made.series = series
        return made

    def __repr__(self) -> str:
        return f"Choice({self.backend}, weight={self.weight})"


class Route:
    """One rule of a route (`kind`), or what a policy allows without a route (`name` "-")."""

    __slots__ = (
        "_ports",
        "_turn",
        "attempts",
        "auth",
        "buffers_request",
        "chain",
        "choices",
        "clock_s",
        "destinations",
        "idle_s",
        "is_judged",
        "is_tls_only",
        "kind",
        "mode",
        "name",
        "only_reports",
        "permission",
        "request_s",
        "series",
        "total",
        "tunnel_idle_s",
    )

    def __init__(
        self,
        name: str,
        chain: Chain,
        choices: Sequence[RouteBackend],
        series: Series,
        policy: PolicyIR,
        destinations: DestinationPolicy,
        *,
        request_s: float,
        attempts: Attempts | None = None,
        is_tls_only: bool = False,
        auth: ExternalAuth | None = None,
        kind: str = "",
        permission: Permission | None = None,
        only_reports: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.chain = chain
        body = chain.request_body
        self.auth = auth  # asks somebody else about each request, in its chain
        self.buffers_request = (auth is not None and auth.max_body > 0) or (
            body is not None and any(step.max_buffer_bytes >= 0 for step in body.steps)
        )
        self.choices = tuple(choice for choice in choices if choice.weight > 0)
        self.total = sum(choice.weight for choice in self.choices)
        self.series = series
        self.mode: Mode = policy.mode
        self.only_reports = only_reports  # of what a tunnel carries: mode Report lifts all policies
        self.destinations = destinations
        self.permission = permission  # a Dynamic backend: what the route permits by itself
        self.is_judged = destinations.denies or permission is not None  # else whatever it matches may go
        self.request_s = request_s
        self.clock_s = on_the_wheel(request_s)
        self.idle_s = policy.timeouts.idle_s
        self.tunnel_idle_s = policy.timeouts.tunnel_idle_s
        self.attempts = attempts  # None: one, by weight
        self._ports = served_ports(choices)
        self._turn = random.random()  # noqa: S311 (a share of traffic is no secret)
        self.is_tls_only = is_tls_only  # a TLSRoute: what the tunnel carries has to be TLS

    @property
    def rule(self) -> str:
        """Kind and name, as answers and the log have them; "-" for what no route matched."""
        return f"{self.kind} {self.name}" if self.kind and self.name != "-" else self.name

    def serves(self, host: str, port: int) -> bool:
        """On a forward-proxy listener: whether a destination with this port is the one that the backend stands for.

        The same name on another port is another service, which this route (and its credential) says nothing about.
        A plain http URL counts as that of a TLS backend: it goes out as https.
        """
        ports = self._ports.get(host)
        return ports is None or port in ports

    def choose(self) -> RouteBackend:
        """A backend by weight, whose share is met by each few requests in a row. Raises GatewayFault (500) where there
        is none (Gateway API, HTTPRouteRule.backendRefs), Denied (403) where policy denies the place.
        """
        choices = self.choices
        if len(choices) == 1:
            choice = choices[0]
        elif not choices:
            raise GatewayFault(Reason.BACKEND_INVALID, f"route {self.name} has no backend", rule=self.rule)
        else:
            point = self._turn * self.total
            self._turn = (self._turn + GOLDEN) % 1.0
            for choice in choices:
                point -= choice.weight
                if point < 0:
                    break
        if choice.connector is None:
            raise choice.fault(self.name, self.rule)
        return choice

    def counted_in(self, series: Series) -> Route:
        """The same, with what it shares (pools, filters, budgets of retries), whose traffic is counted elsewhere."""
        made = copy(self)
        made.series = series
        made.choices = tuple(choice.counted_in(series) for choice in self.choices)
        return made

    @property
    def is_default(self) -> bool:
        """Whether it serves what no route matches."""
        return self.name == "-"

    def __repr__(self) -> str:
        return f"Route({self.name}, {len(self.choices)} choices)"


def on_the_wheel(seconds: float) -> float:
    """A time as the wheel is given it: its `now` is that of the last tick, and a short time would be over too early."""
    return seconds + TICK_S if 0 < seconds < EXACT_BELOW_S else seconds


def served_ports(choices: Sequence[RouteBackend]) -> Mapping[str, Collection[int]]:
    """By hostname of an Fqdn backend: the ports under which a client may name it."""
    each = [choice.served_ports for choice in choices if choice.connector is not None or choice.denied is not None]
    if len(each) <= 1:
        return each[0] if each else NO_PORTS
    ports: dict[str, set[int]] = {}
    for served in each:
        for host, numbers in served.items():
            ports.setdefault(host, set()).update(numbers)
    return ports or NO_PORTS


class ActiveListener:
    """One listener of a Gateway."""

    __slots__ = (
        "defaults",
        "destinations",
        "gateway",
        "hosts",
        "http",
        "is_forward",
        "is_stream",
        "mode",
        "name",
        "port",
        "scheme",
        "series",
        "spec",
        "streams",
        "terminate",
        "timeouts",
    )

    def __init__(
        self,
        spec: ListenerIR,
        http: HttpTable[Route],
        hosts: HostTable[bool],
        streams: HostTable[Route],
        defaults: DefaultRoutes | None,
        destinations: DestinationPolicy,
        series: Series,
        *,
        is_forward: bool,
        scheme: bytes,
        terminate: ssl.SSLContext | None,
    ) -> None:
        self.spec = spec
        self.gateway = spec.gateway
        self.name = spec.name
        self.port = spec.port
        self.http = http
        self.hosts = hosts  # the hostnames that any HTTPRoute serves and permits by itself, on port 80
        self.streams = streams
        self.defaults = defaults  # a forward proxy: of what no route matches
        self.destinations = destinations
        self.series = series
        self.mode = spec.policy.mode
        self.timeouts = spec.policy.timeouts
        self.is_forward = is_forward
        self.is_stream = spec.protocol in STREAM_PROTOCOLS
        self.scheme = scheme
        self.terminate = terminate  # a TLS listener that terminates does it with this

    def __repr__(self) -> str:
        return f"Listener({self.gateway}/{self.name}:{self.port})"


class Port:
    """One address and port: the listeners that share it, by hostname. Those that speak HTTP stand first.

    A port is all HTTP, or all streams (`is_stream`), or both inside TLS (`is_mixed`): then the ClientHello decides.
    `terms` is what a connection has gone through when it is served here, and how its heads are read: where they are
    other ones after a reload, no connection from before may go on asking. `limits` and `head_limits` are for what is
    bounded before it is known whose connection it is: the strictest of any listener.
    """

    __slots__ = (
        "address", "by_host", "first", "head_limits", "is_mixed", "is_stream", "limits", "listeners", "number", "terms",
        "tls",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        number: int,
        listeners: Sequence[ActiveListener],
        by_host: HostTable[ActiveListener],
        *,
        tls: ssl.SSLContext | None,
        clients: ClientCertificatesIR | None,
    ) -> None:
        self.address = address
        self.number = number
        self.listeners = tuple(listeners)
        self.first = self.listeners[0]
        self.by_host = by_host
        self.limits = strictest_limits([listener.spec.policy.limits for listener in self.listeners])
        self.head_limits = HeadLimits(self.limits.max_head_bytes, self.limits.max_fields)
        self.tls = tls  # TLS is terminated with this
        self.is_stream = self.first.is_stream
        self.is_mixed = not self.is_stream and self.listeners[-1].is_stream
        self.terms = (self.is_stream, tls is not None, clients, None if self.is_stream else self.head_limits)

    def leads_to_stream(self, name: str) -> bool:
        """On a mixed port: whether a client whose ClientHello names this host gets a stream; else it gets HTTP."""
        found = self.by_host.match(name)
        return found is not None and found.is_stream

    @property
    def key(self) -> tuple[str, int]:
        return (self.address, self.number)

    def __repr__(self) -> str:
        return f"Port({self.address}:{self.number}, {len(self.listeners)} listeners)"


def strictest_limits(each: Sequence[LimitsIR]) -> LimitsIR:
    """Of every limit the least of those that are there."""
    if len(set(each)) == 1:
        return each[0]

    def least(name: str) -> int:
        return min((value for value in (getattr(limits, name) for limits in each) if value), default=0)

    return LimitsIR(**{name: least(name) for name in LimitsIR.__slots__})


class Snapshot:
    """One configuration, live. Immutable once it is in service."""

    __slots__ = ("connectors", "filters", "generation", "ports")

    def __init__(
        self, generation: int, ports: dict[tuple[str, int], Port], connectors: dict[ConnectionIR, Connector],
        filters: FilterInstances,
    ) -> None:  # fmt: skip
        self.generation = generation
        self.ports = ports
        self.connectors = connectors
        self.filters = filters

    def __repr__(self) -> str:
        return f"Snapshot({self.generation}, {len(self.ports)} ports, {len(self.connectors)} connectors)"
