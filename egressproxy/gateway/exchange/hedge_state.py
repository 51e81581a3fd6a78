"""HedgeState: which attempts of a request are under way at once, who is next, and which one decides. It does no I/O.

The words are those of gRPC (gRFC A6, hedgingPolicy). When the first attempt has no answer after the delay, another one
goes to another endpoint, and so on; none is ended for being slow. An attempt that fails leaves the others alone. The
last one under way decides, whatever comes of it: what follows then (retries, the next backend of a Failover) is as for
a single attempt. An answer with Retry-After lets no further attempt begin. `hedging` carries this out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import Final

from egressproxy.errors import GatewayError, LimitExceeded, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.endpoints import HostSet
from egressproxy.gateway.backends.failover import FailoverState, status_of_answer
from egressproxy.gateway.backends.retries import RetryPolicy, untried
from egressproxy.gateway.backends.retry_hints import asked_pause_s
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.route import Route
from egressproxy.ir.backend import Destination
from egressproxy.ir.policy import HedgingIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead

#: The outcome in the trail of a first attempt that another one has overtaken.
HEDGED: Final = "hedged"
#: The outcome of another attempt that was given up, and its result in metrics.
CANCELLED: Final = "cancelled"


@dataclass(slots=True, eq=False, repr=False)
class Hedge:
    """One of the attempts at once. `counted`: the hosts in whose `maxParallelRetries` it counts. When it is over it has
    an `error`, the `answer` of a filter, or the head of a `response`; or it `is_cancelled`.
    """

    backend: RouteBackend
    target: UpstreamHost
    is_first: bool = False
    counted: HostSet | None = None
    error: GatewayError | None = None
    answer: LocalResponse | None = None
    response: ResponseHead | None = None
    is_cancelled: bool = False


@dataclass(slots=True, eq=False, repr=False)
class HedgeState:
    """The attempts at once, from the first one to the one that decides: `decisive`. `begun` counts them.

    The targets that were tried, and of those the ones that could not be connected to (`down`), are those of the
    request, and added to here.
    """

    _policy: RetryPolicy
    _spec: HedgingIR
    _exchange: Exchange
    _route: Route
    _failover_state: FailoverState | None
    _tried: set[UpstreamHost]
    _down: set[UpstreamHost]
    _first: RouteBackend | None = None
    _may_begin: bool = True
    under_way: list[Hedge] = field(default_factory=list)
    begun: int = 0
    decisive: Hedge | None = None

    @property
    def delay_s(self) -> float:
        """Seconds to wait for the attempts under way before `another`; 0.0: there is no other."""
        return self._spec.delay_s if self.begun < self._spec.max_attempts else 0.0

    def first(self, backend: RouteBackend) -> Hedge:
        """Begin with this backend. Raises GatewayError where no host of it may be asked."""
        self._first = backend
        target = untried(backend, self._exchange, self._tried, self._down)
        return self._begin(Hedge(backend, target, is_first=True))

    def another(self, now: float, *, is_pressed: bool) -> Hedge | None:
        """The delay is over. None where nobody else can be asked, the process is short of memory (`is_pressed`), or
        circuit breaker or budget allow no other.
        """
        if self.decisive is not None or not self._may_begin or is_pressed:
            return None
        first = self._first
        assert first is not None
        try:
            hedge = self._elsewhere(first, now)
        except GatewayError:  # no other host may be asked
            return None
        if hedge is None:
            return None
        backend = hedge.backend
        hosts = backend.cluster.host_set if backend.cluster is not None else None
        if hosts is not None and not hosts.take_retry():
            first.series.hedge("circuit_open")
            return None
        if not self._policy.may_hedge():
            first.series.hedge("over_budget")
            if hosts is not None:
                hosts.end_retry()
            return None
        hedge.counted = hosts
        if self._failover_state is not None and backend is not first:
            self._failover_state.begin(backend, now)
        return self._begin(hedge)

    def over(self, hedge: Hedge) -> bool:
        """Whether what has come of it is for the client: it is `decisive` then, else it has lost."""
        if self.decisive is not None:
            return False
        others = [each for each in self.under_way if each is not hedge]
        if others and not self._decides(hedge):
            self.under_way = others
            return False
        self.decisive = hedge
        return True

    def lose(self, hedge: Hedge, now: float) -> str:
        """What the trail says of an attempt that has lost, and what its Failover hears of it; "" for one that was given
        up by the end of all.
        """
        error, failover_state = hedge.error, self._failover_state
        if not hedge.is_first:
            hedge.backend.series.hedge(CANCELLED if hedge.is_cancelled else "failed")
        if hedge.is_cancelled:
            if self.decisive is None:
                return ""
            return HEDGED if hedge.is_first else CANCELLED
        if error is not None:
            if error.retry is RetrySafety.SAFE:
                self._down.add(hedge.target)
            if failover_state is not None and isinstance(error, UpstreamFault | LimitExceeded):
                failover_state.failed(hedge.backend, error, now)
            return error.reason.value
        if hedge.answer is not None:
            return str(hedge.answer.status)
        response = hedge.response
        assert response is not None
        status = status_of_answer(response)
        failover = self._route.failover_of(hedge.backend)
        if failover_state is not None and failover is not None and status in failover.codes:
            failover_state.answered(hedge.backend, response, status, now)
        return str(response.status)

    def _begin(self, hedge: Hedge) -> Hedge:
        self._tried.add(hedge.target)
        self.under_way.append(hedge)
        self.begun += 1
        return hedge

    def _elsewhere(self, first: RouteBackend, now: float) -> Hedge | None:
        """Where to: the same endpoint only of a name, maybe of many servers, where no other backend of a Failover
        serves.
        """
        failover_state, exchange, tried = self._failover_state, self._exchange, self._tried
        backend = first if failover_state is not None else self._route.choose()
        if backend.cluster is None or backend.has_parent:
            return None
        target = untried(backend, exchange, tried, self._down)
        if target in tried and failover_state is not None:
            following = failover_state.beside(now)
            if following is not None and not following.has_parent:
                backend, target = following, untried(following, exchange, tried, self._down)
        assert backend.cluster is not None
        is_name = backend.cluster.spec.backend.destination in (Destination.FQDN, Destination.DYNAMIC)
        return Hedge(backend, target) if is_name or target not in tried else None

    def _decides(self, hedge: Hedge) -> bool:
        """Whether what has come of it is for the client, although others are under way."""
        error, response = hedge.error, hedge.response
        if error is not None:
            return hedge.is_first and not isinstance(error, UpstreamFault | LimitExceeded)  # as without hedging
        if response is None:
            return hedge.is_first
        if asked_pause_s(response.fields, time()):
            self._may_begin = False
        return response.status not in self._spec.codes
