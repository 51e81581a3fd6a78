"""Hedging: attempts for one request that are under way at once, of which the first good answer is passed on.

The words are those of gRPC (gRFC A6, hedgingPolicy). When the first attempt has no answer after the delay, another one
goes to another endpoint, and so on; none is ended for being slow. An attempt that fails leaves the others alone. The
last one under way decides, whatever comes of it: what follows then (retries, the next backend of a Failover) is as for
a single attempt. An answer with Retry-After lets no further attempt begin.

Who loses is cancelled. However the exchange ends, `result` gives everything back that the winner does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Final

from egressproxy.errors import GatewayError, LimitExceeded, RetrySafety, UpstreamFault
from egressproxy.filters.chain import finish
from egressproxy.gateway.backends.endpoints import HostSet
from egressproxy.gateway.backends.failover import FailoverGroup, FailoverState, status_of_answer
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.retries import RetryPolicy, untried
from egressproxy.gateway.backends.retry_hints import asked_pause_s
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import Repeat
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.hedged_attempt import CANCELLED, HedgedAttempt
from egressproxy.gateway.route import Route
from egressproxy.ir.backend import Destination
from egressproxy.ir.policy import HedgingIR
from egressproxy.model.attempt_trail import AttemptTrail
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.net.driver import PAUSE
from egressproxy.net.timers import NEVER
from egressproxy.protocols.upstream import Upstream

#: The outcome in the trail of a first attempt that another one has overtaken; of others it is CANCELLED.
HEDGED: Final = "hedged"


@dataclass(slots=True, eq=False, repr=False)
class HedgedCall:
    """The attempts for one request, from the first one to the one that decides: `decisive`. `begun` counts them.

    The targets that were tried, and of those the ones that could not be connected to (`down`), are those of the
    request, and added to here.
    """

    _policy: RetryPolicy
    _spec: HedgingIR
    _client: Client
    _exchange: Exchange
    _route: Route
    _failover_state: FailoverState | None
    _failover: FailoverGroup | None
    _body: bytes | ReplayableBody | None
    _repeat: Repeat
    _tried: set[UpstreamHost]
    _down: set[UpstreamHost]
    _backend: RouteBackend | None = None  # of the first attempt
    _attempts: list[HedgedAttempt] = field(default_factory=list)  # that have not lost
    _may_begin: bool = True
    _timer: asyncio.TimerHandle | None = None
    begun: int = 0
    decisive: HedgedAttempt | None = None

    async def result(self, backend: RouteBackend) -> Upstream | LocalResponse:
        """The decisive answer, of this backend or of one beside it: the client holds its connection then, and the
        exchange is that of its attempt. Raises GatewayError: its failure, or what ends the exchange.
        """
        client, idle_s = self._client, self._client.clock.idle_limit_s
        client.clock.leave_to_attempts(client)
        try:
            self._backend = backend
            self._begin(backend, untried(backend, self._exchange, self._tried, self._down))
            while self.decisive is None:
                await PAUSE
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for attempt in self._attempts:
                if attempt is not self.decisive:
                    attempt.cancel()
                    self._forget(attempt)
            decisive = self.decisive
            client.clock.take_back(client, decisive.ends_at if decisive is not None else NEVER, idle_s)
            if decisive is not None:
                self._adopt(decisive)
        assert decisive is not None
        error, decisive.error = decisive.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: no cycle
        assert decisive.found is not None
        return decisive.found

    # --- another one -----------------------------------------------------------------------------------------------
    def _begin(self, backend: RouteBackend, target: UpstreamHost, counted: HostSet | None = None) -> None:
        is_first = self.begun == 0
        attempt = HedgedAttempt(self._client, self._exchange, backend, target, self._body, is_first=is_first)
        attempt.counted = counted
        if self._failover is not None:
            attempt.first_byte_s = self._failover.spec.first_byte_s
        self._tried.add(target)
        self._attempts.append(attempt)
        self.begun += 1
        if self.begun < self._spec.max_attempts:
            self._timer = asyncio.get_running_loop().call_later(self._spec.delay_s, self._begin_another)
        attempt.start(self._repeat, self._over)

    def _begin_another(self) -> None:
        """The delay is over. Nothing begins where nobody else can be asked, or circuit breaker or budget allow none."""
        if self.decisive is not None or not self._may_begin or self._client.handler_is_pressed:
            return
        assert self._backend is not None
        try:
            found = self._elsewhere(self._backend)
        except GatewayError:  # no other host may be asked
            return
        if found is None:
            return
        backend, target = found
        cluster = backend.cluster
        endpoints = cluster.watched if cluster is not None else None
        if endpoints is not None and not endpoints.take_retry():
            self._backend.series.hedge("circuit_open")
            return
        if not self._policy.may_hedge():
            self._backend.series.hedge("over_budget")
            if endpoints is not None:
                endpoints.end_retry()
            return
        if self._failover_state is not None and backend is not self._backend:
            self._failover_state.begin(backend, self._client.wheel.now)
        self._begin(backend, target, counted=endpoints)

    def _elsewhere(self, first: RouteBackend) -> tuple[RouteBackend, UpstreamHost] | None:
        """Where to: the same endpoint only of a name, maybe of many servers, where no other backend of a Failover
        serves.
        """
        failover_state, exchange, tried = self._failover_state, self._exchange, self._tried
        backend = first if failover_state is not None else self._route.choose()
        if backend.cluster is None or backend.has_parent:
            return None
        target = untried(backend, exchange, tried, self._down)
        if target in tried and failover_state is not None:
            following = failover_state.beside(self._client.wheel.now)
            if following is not None and not following.has_parent:
                backend, target = following, untried(following, exchange, tried, self._down)
        assert backend.cluster is not None
        is_name = backend.cluster.spec.backend.destination in (Destination.FQDN, Destination.DYNAMIC)
        return (backend, target) if is_name or target not in tried else None

    # --- what comes of them ----------------------------------------------------------------------------------------
    def _over(self, attempt: HedgedAttempt) -> None:
        if self.decisive is None:
            others = [each for each in self._attempts if each is not attempt]
            if others and not self._decides(attempt):
                self._attempts = others
                attempt.discard()
                self._forget(attempt)
                return
            self.decisive = attempt
            upstream = attempt.resources.upstream
            if upstream is not None:
                upstream.driver = self._client.driver  # from here on it wakes the client's
        self._client.driver.resume()

    def _decides(self, attempt: HedgedAttempt) -> bool:
        """Whether what has come of it is for the client, although others are under way."""
        error = attempt.error
        if error is not None:
            return attempt.is_first and not isinstance(error, UpstreamFault | LimitExceeded)  # as without hedging
        if isinstance(attempt.found, LocalResponse):
            return attempt.is_first
        response = attempt.exchange.response
        if asked_pause_s(response.fields, time()):
            self._may_begin = False
        return response.status not in self._spec.codes

    def _forget(self, attempt: HedgedAttempt) -> None:
        """It has lost: its filters are told, and whoever counts."""
        exchange, own = self._exchange, attempt.exchange
        if own.state:
            before = exchange.state
            finish([each for each in attempt.backend.chain.complete if each.mark not in before], own)
            own.forget_state(before)
        exchange.attempts += own.attempts
        exchange.note_denials(*(exchange.would_deny or ()), *(own.would_deny or ()))
        if not attempt.is_first:
            attempt.backend.series.hedge(CANCELLED if attempt.is_cancelled else "failed")
        if self.decisive is not None or not attempt.is_cancelled:
            outcome = self._outcome(attempt)
            AttemptTrail.kept_by(exchange).add(attempt.backend.name, outcome, monotonic() - attempt.began)

    def _outcome(self, attempt: HedgedAttempt) -> str:
        """What the trail says of an attempt that has lost, and what its Failover hears of it."""
        error, failover_state, now = attempt.error, self._failover_state, self._client.wheel.now
        if attempt.is_cancelled:
            return HEDGED if attempt.is_first else CANCELLED
        if error is not None:
            if error.retry is RetrySafety.SAFE:
                self._down.add(attempt.target)
            if failover_state is not None and isinstance(error, UpstreamFault | LimitExceeded):
                failover_state.failed(attempt.backend, error, now)
            return error.reason.value
        if isinstance(attempt.found, LocalResponse):
            return str(attempt.found.status)
        response = attempt.exchange.response
        status = status_of_answer(response)
        if failover_state is not None and self._failover is not None and status in self._failover.codes:
            failover_state.answered(attempt.backend, response, status, now)
        return str(response.status)

    def _adopt(self, attempt: HedgedAttempt) -> None:
        """The client's exchange is the one of this attempt from here on."""
        exchange, own, resources = self._exchange, attempt.exchange, self._client.pipeline
        head, sent = exchange.request, own.request
        head.fields.block, head.path, head.body = sent.fields.block, sent.path, sent.body
        exchange.upstream_host = own.upstream_host
        exchange.take_response(own)
        exchange.upstream, exchange.addresses = own.upstream, own.addresses
        exchange.backend, exchange.backend_is_secure, exchange.series = own.backend, own.backend_is_secure, own.series
        exchange.attempts += own.attempts
        exchange.note_denials(*(exchange.would_deny or ()), *(own.would_deny or ()))
        exchange.adopt_state(own)
        held = attempt.resources
        resources.backend = attempt.backend
        if held.upstream is not None:
            assert held.cluster is not None
            assert held.target is not None
            resources.hold(held.cluster, held.target, held.give_away())
        if not attempt.is_first:
            attempt.backend.series.hedge("won" if attempt.error is None else "failed")


def finish_attempts(exchange: Exchange, route: Route, earlier: Sequence[RouteBackend]) -> None:
    """Run `complete` of those filters that ran for each of these attempts: each gives back what is its own."""
    if not earlier:
        return
    chain = route.chain
    steps = (*(chain.request_headers or ()), *(chain.request_body.steps if chain.request_body is not None else ()))
    of_request = {step.own_mark for step in steps}
    for backend in earlier:
        finish([each for each in backend.chain.complete if each.mark not in of_request], exchange)
