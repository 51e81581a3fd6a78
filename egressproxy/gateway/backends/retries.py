"""RetryPolicy: what a rule says of retries, hedging, session persistence and times below a second. Pure
decisions, no I/O.

What goes again (GEP-1731; RFC 9110 section 9.2.2):

* always, where nothing of the request was sent: no connection came about;
* where a backend may have seen it (its connection broke, its time was over): an idempotent method;
* where a backend has answered with one of the rule's codes, or with one of gRPC alone: every method, since the rule
  says so;
* toward a parent only what it has not seen: it has retries of its own, and each of its attempts would be one of each
  of ours;

and never without the whole body, nor when the client has the head of an answer. The replacement of an idle connection
that had died is one of the rule's attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import InitVar, dataclass, field

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.session_persistence import Sessions
from egressproxy.gateway.backends.upstream_call import IDEMPOTENT, Repeat
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.ir.policy import HedgingIR, RetryBudgetIR, RetryIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.grpc_status import GRPC_NAMES

NO_RETRIES = RetryIR(0)
#: Hedging without `retries.budget`: when everything is slow, it must not double the load. The defaults of that field.
HEDGING_BUDGET = RetryBudgetIR(20, 10.0, 10)
#: Why statuses of a parent are believed.
PARENT_RETRIES = "the parent retries for itself"
#: Failures that the same endpoint would only repeat.
SETTLED = frozenset((Reason.DNS_NXDOMAIN, Reason.DNS_NO_ADDRESS, Reason.NO_ENDPOINT, Reason.TLS_CERTIFICATE))


@dataclass(slots=True, eq=False, repr=False)
class RetryPolicy:
    """One per rule; keeps nothing of an exchange. `now` gives monotonic seconds."""

    _retry: RetryIR
    sessions: Sessions | None
    now: InitVar[Callable[[], float]]
    hedging: HedgingIR | None = None
    attempts: int = field(init=False)  # so many times a request may go again
    repeat: int = field(init=False)  # by the upstream call itself: else replacing a stale connection is a retry
    codes: frozenset[int] = field(init=False)
    grpc_codes: frozenset[int] = field(init=False)
    hedged_methods: frozenset[bytes] = field(init=False, default=frozenset())
    _budget: Budget | None = field(init=False)
    _hedges: Budget | None = field(init=False)

    def __post_init__(self, now: Callable[[], float]) -> None:
        retry, hedging = self._retry, self.hedging
        self.attempts = retry.attempts
        self.repeat = Repeat.IF_STALE if retry is NO_RETRIES else Repeat.NEVER
        self.codes, self.grpc_codes = frozenset(retry.codes), frozenset(retry.grpc_codes)
        self._budget = self._hedges = Budget(retry.budget, now) if retry.budget is not None else None
        if hedging is not None:
            self.hedged_methods = frozenset(each.encode() for each in hedging.methods)
            self._hedges = self._budget or Budget(HEDGING_BUDGET, now)

    def count_request(self) -> None:
        """Count one more request. The budget allows a share of the counted ones to go again."""
        if self._hedges is not None:  # the same budget, where there is one
            self._hedges.count_request()

    def notes(self, backends: Sequence[RouteBackend] = ()) -> list[str]:
        """What the policy does for these backends, in sentences for people."""
        notes, retry = [], self._retry
        if retry.attempts:
            are_applied = not backends or not all(backend.has_parent for backend in backends)
            after = [*map(str, retry.codes), *(GRPC_NAMES[code] for code in retry.grpc_codes)]
            codes = f", and after {', '.join(after)}" if after and are_applied else ""
            times = "once more" if retry.attempts == 1 else f"up to {retry.attempts} times more"
            notes.append(f"a request goes again {times} where its backend cannot be reached or is too slow{codes}")
            behind = sorted({backend.name for backend in backends if backend.has_parent})
            if behind:
                notes.append(
                    f"toward the parent of {', '.join(behind)} only connections are tried again: {PARENT_RETRIES}"
                )
        if (hedging := self.hedging) is not None and (not backends or not all(each.has_parent for each in backends)):
            notes.append(
                f"{', '.join(hedging.methods)} without an answer after {hedging.delay_s:g} s begins another attempt,"
                f" at another endpoint; up to {hedging.max_attempts} go on at once"
            )
        if self.sessions is not None:
            notes.append(f"a client that shows {self.sessions.shown_as} goes back to the backend that it had")
        return notes

    def has_another(self, retries: int, body: ReplayableBody | None) -> bool:
        """Whether the rule, its budget and the body allow another retry after so many; if so the budget counts it."""
        if retries >= self._retry.attempts or not (body is None or body.is_kept):
            return False
        return self.may_spend()

    def may_spend(self) -> bool:
        """Whether the budget allows another attempt, at another backend of a Failover; if so it counts it."""
        return self._budget is None or self._budget.take()

    def may_hedge(self) -> bool:
        """Whether the budget allows one more attempt beside those under way; if so it counts it as a retry."""
        return self._hedges is not None and self._hedges.take()

    def pause_s(self, retries: int) -> float:
        """Seconds to wait before this retry: at least the backoff, at most twice as much for each retry before, and the
        maximum of the rule; random, so that clients do not all come back at once.
        """
        least = self._retry.backoff_s
        return random.uniform(least, min(least * 2.0 ** min(retries, 30), self._retry.max_backoff_s))  # noqa: S311


class Budget:
    """At most a share of the requests of an interval goes again: retries must not become the load that ends a backend.
    The interval before counts with the part of it that is younger than an interval.
    """

    __slots__ = ("_before", "_began", "_now", "_requests", "_retries", "_spec")

    def __init__(self, spec: RetryBudgetIR, now: Callable[[], float]) -> None:
        self._spec = spec
        self._now = now
        self._began = now()
        self._requests = self._retries = 0
        self._before = (0, 0)

    def count_request(self) -> None:
        """Count one more request in this interval."""
        self._roll()
        self._requests += 1

    def take(self) -> bool:
        spec, share = self._spec, self._roll()
        requests = self._requests + self._before[0] * share
        retries = self._retries + self._before[1] * share
        if retries + 1 > max(requests * spec.percent / 100, spec.min_per_second * spec.interval_s):
            return False
        self._retries += 1
        return True

    def _roll(self) -> float:
        """Begin a new interval where the last is over; gives the share of the one before that still counts."""
        interval_s = self._spec.interval_s or 1.0
        age = self._now() - self._began
        if age >= interval_s:
            self._before = (self._requests, self._retries) if age < 2 * interval_s else (0, 0)
            self._requests = self._retries = 0
            self._began += age // interval_s * interval_s
            age %= interval_s
        return 1 - age / interval_s


def untried(
    backend: RouteBackend, exchange: Exchange, tried: Collection[UpstreamHost], down: Collection[UpstreamHost]
) -> UpstreamHost:
    """The next endpoint that was not tried for this request; if all were tried, one that was not found down."""
    cluster = backend.cluster
    assert cluster is not None
    if cluster.host_set is not None:
        target = cluster.another_target(exchange, tried)
        return target if target not in down else cluster.another_target(exchange, down)
    target = cluster.target(exchange)
    for avoided in (tried, down):
        for _ in cluster.endpoints:
            if target not in avoided:
                return target
            target = cluster.target(exchange)
    return target


def may_go_again(
    exchange: Exchange, error: UpstreamFault, backends: Sequence[RouteBackend], backend: RouteBackend
) -> bool:
    """Whether another attempt could succeed after this failure, and would do no harm."""
    if error.reason is Reason.NO_HEALTHY_ENDPOINT:
        return len(backends) > 1
    if error.reason in SETTLED:
        has_others = backend.cluster is not None and len(backend.cluster.endpoints) > 1
        return has_others or len(backends) > 1
    if error.retry is RetrySafety.SAFE:
        return True
    if backend.has_parent:
        return exchange.method in IDEMPOTENT and error.retry is RetrySafety.IF_REUSED
    return exchange.method in IDEMPOTENT and (
        error.retry is not RetrySafety.NEVER or error.reason is Reason.UPSTREAM_INCOMPLETE
    )
