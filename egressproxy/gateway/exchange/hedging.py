"""HedgedCall: the driver of a `HedgeState`: attempts for one request that are under way at once.

Who loses is cancelled. However the exchange ends, `result` gives everything back that the winner does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from egressproxy.filters.chain import finish
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import Repeat
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.hedge_state import Hedge, HedgeState
from egressproxy.gateway.exchange.hedged_attempt import HedgedAttempt
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import AttemptTrail, Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.net.driver import PAUSE
from egressproxy.net.timers import NEVER
from egressproxy.protocols.upstream import Upstream


class HedgedCall:
    """`body`: as it is sent; None for a request without one. `first_byte_s`: see HedgedAttempt. `began`: when the
    attempt that decides began (monotonic seconds); 0.0 without one.
    """

    __slots__ = ("_attempts", "_body", "_client", "_exchange", "_first_byte_s", "_repeat", "_state", "_timer", "began")

    def __init__(
        self,
        state: HedgeState,
        client: Client,
        exchange: Exchange,
        body: bytes | ReplayableBody | None,
        repeat: Repeat,
        first_byte_s: float,
    ) -> None:
        self._state = state
        self._client = client
        self._exchange = exchange
        self._body = body
        self._repeat = repeat
        self._first_byte_s = first_byte_s
        self._attempts: list[HedgedAttempt] = []  # that have not lost
        self._timer: asyncio.TimerHandle | None = None
        self.began = 0.0

    async def result(self, backend: RouteBackend) -> Upstream | LocalResponse:
        """The decisive answer, of this backend or of one beside it: the client holds its connection then, and the
        exchange is that of its attempt. Raises GatewayError: its failure, or what ends the exchange.
        """
        client, state, idle_s = self._client, self._state, self._client.idle_limit_s
        client.leave_clock_to_attempts()
        decisive: HedgedAttempt | None = None
        try:
            self._begin(state.first(backend))
            while state.decisive is None:
                await PAUSE
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for attempt in self._attempts:
                if attempt.hedge is state.decisive:
                    decisive = attempt
                else:
                    attempt.cancel()
                    self._forget(attempt)
            client.take_clock_back(decisive.ends_at if decisive is not None else NEVER, idle_s)
            if decisive is not None:
                self.began = decisive.began
                self._adopt(decisive)
        assert decisive is not None
        error, decisive.hedge.error = decisive.hedge.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: no cycle
        assert decisive.found is not None
        return decisive.found

    def _begin(self, hedge: Hedge) -> None:
        attempt = HedgedAttempt(self._client, self._exchange, hedge, self._body, self._first_byte_s)
        self._attempts.append(attempt)
        delay_s = self._state.delay_s
        if delay_s:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin_another)
        attempt.start(self._repeat, self._over)

    def _begin_another(self) -> None:
        client = self._client
        hedge = self._state.another(client.wheel.now, is_pressed=client.handler_is_pressed)
        if hedge is not None:
            self._begin(hedge)

    def _over(self, attempt: HedgedAttempt) -> None:
        if not self._state.over(attempt.hedge):
            self._attempts.remove(attempt)
            attempt.discard()
            self._forget(attempt)
            return
        upstream = attempt.resources.upstream
        if upstream is not None:
            upstream.driver = self._client.driver  # from here on it wakes the client's
        self._client.driver.resume()

    def _forget(self, attempt: HedgedAttempt) -> None:
        """It has lost: its filters are told, and whoever counts."""
        exchange, own, hedge = self._exchange, attempt.exchange, attempt.hedge
        if own.state:
            before = exchange.state
            finish([each for each in hedge.backend.chain.complete if each.mark not in before], own)
            own.forget_state(before)
        exchange.attempts += own.attempts
        exchange.note_denials(*(exchange.would_deny or ()), *(own.would_deny or ()))
        outcome = self._state.lose(hedge, self._client.wheel.now)
        if outcome:
            AttemptTrail.kept_by(exchange).add(hedge.backend.name, outcome, monotonic() - attempt.began)

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
        resources.backend = attempt.hedge.backend
        if held.upstream is not None:
            assert held.cluster is not None
            assert held.target is not None
            resources.hold(held.cluster, held.target, held.give_away())
        if not attempt.hedge.is_first:
            attempt.hedge.backend.series.hedge("won" if attempt.hedge.error is None else "failed")


def finish_attempts(exchange: Exchange, route: Route, earlier: Sequence[RouteBackend]) -> None:
    """Run `complete` of those filters that ran for each of these attempts: each gives back what is its own."""
    if not earlier:
        return
    chain = route.chain
    steps = (*(chain.request_headers or ()), *(chain.request_body.steps if chain.request_body is not None else ()))
    of_request = {step.own_mark for step in steps}
    for backend in earlier:
        finish([each for each in backend.chain.complete if each.mark not in of_request], exchange)
