"""Route: one rule of a route, live, with everything that configuration decides about it bound already."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.chain import NO_READERS, Chain
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.failover import FailoverGroup
from egressproxy.gateway.backends.retries import RetryPolicy
from egressproxy.gateway.backends.route_backend import RouteBackend, on_the_wheel
from egressproxy.gateway.product_types import ExternalAuthorization
from egressproxy.ir.policy import NO_POLICY, DestinationsIR, Mode, PolicyIR, Priority
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.own_names import OWN_HOST
from egressproxy.routing.destinations import MAX_KNOWN, DestinationPolicy, Permission
from egressproxy.telemetry.series import Series

#: The kind of the rule that answers at egress.internal.
SELF_SERVICE: Final = "SelfService"

#: The golden ratio's fraction: multiples of it fall into a circle more evenly than those of any other number, so that
#: shares of traffic come out within a few requests.
GOLDEN: Final = 0.6180339887498949
#: The narrowed forms of one rule that are kept: filters ask for the same few over and over.
MAX_KEPT: Final = 64


@dataclass(slots=True, eq=False, repr=False)
class _HotRoute:
    """What each exchange looks at, together in memory: of thousands of rules little is in the processor's cache."""

    name: str
    chain: Chain
    backends: tuple[RouteBackend, ...]  # but for those of weight 0; those of Failovers, too
    series: Series
    choices: tuple[RouteBackend, ...] = field(default=(), kw_only=True)  # as `backends`; one stands for a Failover
    retries: RetryPolicy | None = field(default=None, kw_only=True)  # None: one attempt, by weight
    priority: Priority = field(default=Priority.NORMAL, kw_only=True)  # the highest priority of the backends
    has_destination_policy: bool = field(init=False)  # False: policy says nothing of its destinations
    filters_request: bool = field(init=False)  # something looks at the body before a backend is chosen
    reads_early: bool = field(init=False)  # a filter of the head may ask for the body
    head_steps: FilterSteps | None = field(init=False)  # the filters of the head, but for those of the listener
    reads_messages: bool = field(init=False)  # filters hold for a WebSocket whose messages they get
    clock_s: float = field(init=False)
    idle_s: float = field(init=False)


@dataclass(slots=True, eq=False, repr=False)
class Route(_HotRoute):
    """One rule of a route (`kind`), or what a policy allows without a route (`name` "-")."""

    policy: PolicyIR
    destinations: DestinationPolicy
    ports: Mapping[str, Collection[int]]  # by hostname of an Fqdn backend: under which a client may name it
    _: KW_ONLY
    request_s: float
    auths: tuple[ExternalAuthorization, ...] = ()  # ask authorization servers about requests, in its chain
    kind: str = ""
    permission: Permission | None = None  # a Dynamic backend: what the route permits by itself
    looks_at_bodies: bool = False  # for MCP, in its chain
    only_reports: bool = False  # of what a tunnel carries: mode Report lifts all policies
    failovers: Mapping[RouteBackend, FailoverGroup] | None = None  # by what stands for it, and by endpoint
    total: int = field(init=False)  # the weight of all backends
    own_steps: FilterSteps | None = None  # behind filters of the listener, which have run: the rest of the head's
    follows_buffer: bool = False  # a filter of the listener may have read the body
    excluded: frozenset[str] = frozenset()  # by filters of a request: see `filtered_route`
    filtered_routes: dict[tuple[frozenset[str], str], Route] = field(init=False)  # by what is excluded and preferred
    buffers_request: bool = field(init=False)  # for an authorization server
    needs_body: int = field(init=False)  # a backend's filters need it whole, of so many bytes at most; -1: none does
    backend_body_plans: tuple[BodyPlan, ...] = field(init=False)  # of its backends: see `body_limit`
    filters_alone: bool = field(init=False)  # those filters do, and nobody else needs the body
    mode: Mode = field(init=False)
    tunnel_idle_s: float = field(init=False)
    is_tls_only: bool = field(init=False)  # what the tunnel carries has to be TLS
    _turn: float = field(init=False)

    def __post_init__(self) -> None:
        policy = self.policy
        self.choices = self.choices or self.backends
        self.filtered_routes = {}
        #: Of a rule without backends, for Envoy, the chain of the rule is that of its backend, too.
        chains = [each.chain for each in self.backends] or [self.chain]
        self.needs_body = min((each.needs_body for each in chains if each.needs_body >= 0), default=-1)
        self.total = sum(backend.weight for backend in self.choices)
        self.buffers_request = self.follows_buffer or any(auth.spec.max_body > 0 for auth in self.auths)
        plans = (each.backend_request_body for each in chains)
        self.backend_body_plans = tuple(dict.fromkeys(plan for plan in plans if plan is not None))
        self.filters_request = (
            self.buffers_request
            or self.chain.request_body is not None
            or self.needs_body >= 0
            or bool(self.backend_body_plans)
        )
        self.head_steps = self.chain.request_headers if self.own_steps is None else self.own_steps
        self.reads_early = bool(self.auths) or self.looks_at_bodies
        readers = [self.chain.messages, *(each.messages for each in chains)]
        self.reads_messages = None not in readers and any(each is not NO_READERS for each in readers)
        self.filters_alone = not (
            self.buffers_request or self.needs_body >= 0 or self.backend_body_plans or self.reads_early
        )
        self.has_destination_policy = self.destinations.denies or self.permission is not None
        self.mode = policy.mode
        self.clock_s = on_the_wheel(self.request_s)
        self.idle_s = policy.timeouts.idle_s
        self.tunnel_idle_s = policy.timeouts.tunnel_idle_s
        self.is_tls_only = self.kind == "TLSRoute"
        self._turn = random.random()  # noqa: S311 (a share of traffic is no secret)

    @property
    def rule(self) -> str:
        """Kind and name, as answers and the log have them; "-" for what no route matched."""
        return f"{self.kind} {self.name}" if self.kind and self.name != "-" else self.name

    def body_limit(self, exchange: Exchange) -> int:
        """How many bytes this request's body may have, which a backend's filters need whole; -1: it flows."""
        limits = (self.needs_body, *(plan.limit_for(exchange) for plan in self.backend_body_plans))
        return min((limit for limit in limits if limit >= 0), default=-1)

    def serves(self, host: str, port: int) -> bool:
        """Whether the route's backend stands for this host and port, on a forward-proxy listener: another port is
        another service, of which this route (and its credential) says nothing. A plain http URL counts as that of a TLS
        backend: it goes out as https.
        """
        ports = self.ports.get(host)
        return ports is None or port in ports

    def choose(self) -> RouteBackend:
        """Choose a backend by weight; each few requests in a row are shared out as the weights say. It may stand for a
        Failover (`failovers`), which then chooses one of its own. Raises GatewayFault (500) where there is none
        (HTTPRouteRule.backendRefs), Denied (403) where a policy denies its destination.
        """
        backends = self.choices
        if len(backends) == 1:
            backend = backends[0]
        elif not backends:
            raise GatewayFault(Reason.BACKEND_INVALID, f"route {self.name} has no backend", rule=self.rule)
        else:
            point = self._turn * self.total
            self._turn = (self._turn + GOLDEN) % 1.0
            for backend in backends:
                point -= backend.weight
                if point < 0:
                    break
        if backend.cluster is None:
            raise backend.fault(self.name, self.rule)
        return backend

    def counted_in(self, series: Series) -> Route:
        """A copy whose traffic is counted in this series. Pools, filters and retry budgets are shared."""
        backends = tuple(backend.counted_in(series) for backend in self.backends)
        return replace(self, series=series, backends=backends, choices=backends)

    def narrowed_to(
        self,
        excluded: frozenset[str],
        choices: tuple[RouteBackend, ...],
        failovers: Mapping[RouteBackend, FailoverGroup] | None,
    ) -> Route:
        """A copy without the backends of these names. Bodies are read as for the whole route."""
        backends = tuple(backend for backend in self.backends if backend.name not in excluded)
        made = replace(self, backends=backends, excluded=excluded, failovers=failovers)
        made.choices = choices
        made.total = sum(choice.weight for choice in choices)
        made.needs_body = self.needs_body
        made.backend_body_plans = self.backend_body_plans
        made.filters_request = self.filters_request
        made.filters_alone = self.filters_alone
        return made

    def failover_of(self, backend: RouteBackend) -> FailoverGroup | None:
        """The Failover that a backend stands for, or is an endpoint of."""
        return self.failovers.get(backend) if self.failovers is not None else None

    @property
    def is_default(self) -> bool:
        return self.name == "-"


def self_service(series: Series) -> Route:
    """The rule that answers at egress.internal, counted here. The connection manager knows it by its kind."""
    nowhere = DestinationPolicy(DestinationsIR())
    return Route(
        OWN_HOST, Chain(request_headers=()), (), series, NO_POLICY, nowhere, {},
        request_s=NO_POLICY.timeouts.request_s, kind=SELF_SERVICE, looks_at_bodies=True,
    )  # fmt: skip


#: Gives the counters for a policy and its entry.
Count = Callable[[str, str], Series]


class DefaultRoutes:
    """What serves the destinations of one listener that no route matches, under the name "-": one route, and a copy of
    it for each entry of `destinations.allow` that was used, whose traffic is counted under the policy and the entry.
    `known` has the routes of destinations that were allowed, by host and port: policies change with the snapshot only.
    """

    __slots__ = ("_by_entry", "_count", "_destinations", "_mode", "_policy", "known", "route")

    def __init__(self, route: Route, policy: PolicyIR, destinations: DestinationPolicy, count: Count) -> None:
        self.route = route
        self.known: dict[tuple[str, int], Route] = {}
        self._destinations = destinations
        self._policy = policy.mode_source
        self._mode = f"mode: {policy.mode.value}"
        self._count = count
        self._by_entry: dict[tuple[str, str], Route] = {}

    def allowed(self, authority: Authority) -> Route:
        """The route of a destination that policy allows, which is `known` from now on."""
        route = self._of_entry(*(self._destinations.entry(authority) or (self._policy, self._mode)))
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known[authority.host, authority.port] = route
        return route

    def reported(self) -> Route:
        """The route of a destination that passes in mode Report only. It is not remembered: each denial is noted."""
        return self._of_entry(self._policy, self._mode)

    def _of_entry(self, policy: str, entry: str) -> Route:
        found = self._by_entry.get((policy, entry))
        if found is None:
            found = self._by_entry[policy, entry] = self.route.counted_in(self._count(policy, entry))
        return found


def filtered_route(route: Route, exchange: Exchange) -> Route:
    """The rule as filters have narrowed it for this exchange: without what they exclude, the preferred backend first;
    names of other backends change nothing. Raises Denied (403) where every one is excluded.
    """
    choice = exchange.backend_choice
    if choice is None:
        return route
    names = {backend.name for backend in (*route.backends, *route.choices)}
    excluded = frozenset(names & choice.excluded)
    preferred = choice.preferred if choice.preferred in names - excluded else ""
    if not (excluded or preferred):
        return route
    if excluded == names:
        message = "a filter excludes every backend of this route for this request"
        raise Denied(Reason.FILTER_REJECTED, message, rule=route.rule)
    kept = route.filtered_routes.get((excluded, preferred))
    if kept is None:
        kept = _made(route, excluded, preferred)
        if len(route.filtered_routes) < MAX_KEPT:
            route.filtered_routes[excluded, preferred] = kept
    return kept


def _made(route: Route, excluded: frozenset[str], preferred: str) -> Route:
    groups: dict[FailoverGroup, FailoverGroup | None] = {}
    failovers: dict[RouteBackend, FailoverGroup] = {}
    for backend, group in (route.failovers or {}).items():
        if group not in groups:
            groups[group] = _group(group, excluded, preferred)
        left = groups[group]
        if left is not None:
            failovers[backend] = left
    choices = []
    for choice in route.choices:
        left = failovers.get(choice)
        if route.failover_of(choice) is left:
            if choice.name not in excluded:
                choices.append(choice)
        elif left is not None:
            leader = replace(left.endpoints[0], weight=choice.weight)
            failovers[leader] = left
            choices.append(leader)
    chosen = tuple(_preferred(choices, failovers, preferred) or choices)
    return route.narrowed_to(excluded, chosen, failovers or None)


def _group(group: FailoverGroup, excluded: frozenset[str], preferred: str) -> FailoverGroup | None:
    """Without what is excluded; None where nothing is left. The preferred endpoint is asked before all others."""
    left = [endpoint for endpoint in group.endpoints if endpoint.name not in excluded]
    if any(endpoint.name == preferred for endpoint in left):
        first = min(endpoint.priority for endpoint in left) - 1
        left = [replace(each, priority=first) if each.name == preferred else each for each in left]
    elif len(left) == len(group.endpoints):
        return group
    return FailoverGroup(group.spec, left) if left else None


def _preferred(
    choices: list[RouteBackend], failovers: Mapping[RouteBackend, FailoverGroup], preferred: str
) -> list[RouteBackend]:
    """What a request that prefers this backend chooses among; empty where nothing has it."""

    def has_it(choice: RouteBackend) -> bool:
        group = failovers.get(choice)
        return any(each.name == preferred for each in (group.endpoints if group is not None else (choice,)))

    return list(filter(has_it, choices)) if preferred else []
