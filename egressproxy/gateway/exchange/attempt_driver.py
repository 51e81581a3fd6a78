"""AttemptDriver: carries out the actions of a `RetryState`: the attempts of a request whose rule has a RetryPolicy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import Final

from egressproxy.errors import LimitExceeded, UpstreamFault
from egressproxy.filters.base import NextAttempt
from egressproxy.gateway.answers import Answer, BegunAnswer
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.mirror_request import mirror_requests_of
from egressproxy.gateway.backends.route_backend import EXACT_BELOW_S, RouteBackend
from egressproxy.gateway.backends.upstream_call import call_upstream, filtered_answer, proxy_credentials_fault
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.exchange.accounting import finish_attempts, finish_earlier
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import AttemptTimer, late_request
from egressproxy.gateway.exchange.filter_answers import run_response_filters
from egressproxy.gateway.exchange.hedging import HedgedCall
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.request_body import kept_body
from egressproxy.gateway.exchange.retry_state import (
    ATTEMPT,
    AWAIT_BODY,
    DELIVER,
    DISCARD,
    FAIL,
    HEDGE,
    NARROW,
    PREPARE,
    READ_BEGINNING,
    TRANSFORM,
    WAIT,
    RetryState,
)
from egressproxy.gateway.product_types import ADAPTER, RequestAdapter
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.upstream import Upstream

#: A sleep of nothing has no future, which a driver waits for.
LEAST_PAUSE_S: Final = 1e-6
#: The actions whose failure is one of the attempt; a failure of another action ends the exchange.
_OF_ATTEMPT: Final = frozenset((ATTEMPT, HEDGE, AWAIT_BODY, READ_BEGINNING, TRANSFORM))


class AttemptDriver:
    """The attempts of one request. It takes the state from the client's pipeline, which has yielded BEGIN."""

    __slots__ = (
        "_adapter", "_began", "_client", "_exchange", "_found", "_request_timer", "_route", "_state", "_timer",
        "_upstream",
    )  # fmt: skip

    _upstream: Upstream  # of the latest attempt

    def __init__(self, exchange: Exchange, client: Client) -> None:
        pipeline = client.pipeline
        state: RetryState = pipeline.retry_state  # type: ignore[assignment]  # set with BEGIN
        route: Route = pipeline.route  # type: ignore[assignment]
        pipeline.retry_state = None
        self._state = state
        self._route = route
        self._exchange = exchange
        self._client = client
        self._adapter = exchange.state.get(ADAPTER) if exchange.state else None
        self._began = 0.0  # the attempt under way (monotonic seconds)
        self._request_timer: asyncio.TimerHandle | None = None
        self._timer: AttemptTimer | None = None
        self._found: Answer | LocalResponse | None = None  # of the attempt under way
        client.body_limit = exchange.max_body_bytes
        if state.replay_limit >= 0 and (exchange.request.body != 0 or state.collected is not None):
            state.body = kept_body(exchange, client, route, state.collected, state.replay_limit)
        state.ends_at = client.clock.exchange_ends_at
        state.now = client.wheel.now
        if 0 < route.request_s < EXACT_BELOW_S:
            left_s = max(0.0, exchange.started_at + route.request_s - monotonic())
            self._request_timer = asyncio.get_running_loop().call_later(left_s, self._end_request)

    async def run(self, actions: Iterator[str]) -> Answer | LocalResponse:
        """Carry out the actions behind BEGIN, to the last one of the attempts. Returns what the client gets, and leaves
        it in the pipeline, as behind CALL. Raises what ends the exchange: the failure of the last attempt, too.
        """
        state, client = self._state, self._client
        try:
            for action in actions:
                try:
                    if action == ATTEMPT:
                        await self._attempt(state.backend)
                    elif action == DELIVER:
                        break
                    elif action == DISCARD:
                        self._discard(self._upstream)
                    elif action == WAIT:
                        if state.body is not None:
                            state.body.detach()
                        self._began = 0.0
                        client.clock.end_attempt(client)
                        await asyncio.sleep(max(state.wait_s, LEAST_PAUSE_S))  # always lets others have a turn
                    elif action == HEDGE:
                        await self._hedge(state.backend)
                    elif action == AWAIT_BODY:
                        await self._upstream.first_byte()
                    elif action == READ_BEGINNING:
                        await self._read_beginning(self._upstream)
                    elif action == FAIL:
                        raise state.error  # type: ignore[misc]  # as FAIL says
                    else:
                        await self._adapt(action, self._adapter)  # type: ignore[arg-type]  # it is there
                except (UpstreamFault, LimitExceeded) as error:
                    if action not in _OF_ATTEMPT:
                        raise
                    self._fail_attempt(error)
                state.now = client.wheel.now
                if self._began:
                    state.elapsed_s = monotonic() - self._began
        finally:
            self._end()
        found: Answer | LocalResponse = self._found  # type: ignore[assignment]  # as DELIVER says
        self._deliver(client.pipeline)
        if isinstance(found, LocalResponse):
            client.pipeline.answer = await run_response_filters(found, self._exchange, client.pipeline)
        return found

    # --- the request -----------------------------------------------------------------------------------------------
    async def _attempt(self, backend: RouteBackend) -> None:
        state, exchange, client, adapter = self._state, self._exchange, self._client, self._adapter
        pipeline = client.pipeline
        pipeline.backend = backend
        if backend.mirrors is not None and not exchange.attempts:
            pipeline.mirror_requests = mirror_requests_of(backend.mirrors, exchange)
        self._began = monotonic()
        if state.first_byte_s or backend.is_brief:
            self._timer = AttemptTimer(client, backend, state.first_byte_s, state.body)
        body = state.body or state.collected
        if adapter is not None and adapter.body is not None:  # the body as its provider gets it
            body = adapter.body or state.collected
        cluster: Cluster = backend.cluster  # type: ignore[assignment]  # `target` is of it
        target: UpstreamHost = state.target  # type: ignore[assignment]  # set with ATTEMPT
        chain = backend.chain
        found = await call_upstream(client, pipeline, exchange, cluster, target, chain, body, state.repeat)
        if chain.backend_response is not None:
            found = await filtered_answer(pipeline, exchange, chain, found)
        self._found = found
        if isinstance(found, LocalResponse):
            state.answer = found
        else:
            self._upstream = found

    async def _hedge(self, backend: RouteBackend) -> None:
        state, exchange, client = self._state, self._exchange, self._client
        client.pipeline.backend = backend
        if backend.mirrors is not None and not exchange.attempts:
            client.pipeline.mirror_requests = mirror_requests_of(backend.mirrors, exchange)
        self._began = monotonic()
        assert state.hedges is not None
        finish_attempts(exchange, self._route, state.chosen[:-1])
        hedging = HedgedCall(state.hedges, client, exchange, state.collected, state.repeat, state.first_byte_s)
        try:
            found = self._found = await hedging.result(backend)
        finally:
            self._began = hedging.began or self._began
        if isinstance(found, LocalResponse):
            state.answer = found
        else:
            self._upstream = found

    # --- the answer ------------------------------------------------------------------------------------------------
    async def _read_beginning(self, upstream: Upstream) -> None:
        state = self._state
        state.status = 200
        assert state.beginning is not None
        begun = BegunAnswer.of(self._exchange, upstream, self._client, state.beginning)
        if begun is not None:
            self._found = begun
            self._cancel_timer()  # its first byte is here, and all of it may take longer
            state.status = await begun.status()

    async def _adapt(self, action: str, adapter: RequestAdapter) -> None:
        """What a product does: PREPARE, TRANSFORM, NARROW."""
        state, exchange, client = self._state, self._exchange, self._client
        if action == PREPARE:
            backend = await adapter.prepare(exchange, client, state.backend, state.body, state.failover_state)
            state.backend = client.pipeline.backend = backend
            state.answer = self._found = adapter.own_answer
        elif action == TRANSFORM:
            self._cancel_timer()
            self._found = await adapter.answer(exchange, client, self._found)  # type: ignore[arg-type]
        elif action == NARROW and state.failover_state is not None:
            await adapter.narrow(exchange, client, state.body, state.failover_state)

    def _deliver(self, pipeline: Pipeline) -> None:
        """Raises UpstreamFault for an answer that is not for the client."""
        state, exchange = self._state, self._exchange
        if state.answer is None:
            if exchange.response.status == 407:
                raise proxy_credentials_fault(pipeline.cluster)
            if state.body is not None:
                state.body.forget()
            if state.sessions is not None:
                state.keep_session()
        state.body = state.collected = None  # the pipeline has the state until the answer has gone
        pipeline.response_chain = state.backend.chain.after_attempts
        if pipeline.held_bytes is not None:
            pipeline.release_request(exchange, pipeline.held_bytes)

    # --- the end ---------------------------------------------------------------------------------------------------
    def _end_request(self) -> None:
        self._client.driver.throw(late_request())

    def _fail_attempt(self, error: UpstreamFault | LimitExceeded) -> None:
        """The attempt has failed, maybe behind the head of its answer."""
        error.__traceback__ = error.__context__ = None  # no cycle with frames
        self._cancel_timer()
        pipeline = self._client.pipeline
        if isinstance(error, NextAttempt) and pipeline.upstream is not None:
            self._discard(pipeline.upstream)
        else:
            pipeline.fail(self._exchange, error)
        self._state.error = error

    def _discard(self, upstream: Upstream) -> None:
        """The answer goes nowhere. Its connection is used again if all of the answer is here, else closed."""
        self._cancel_timer()
        if not upstream.has_ended:
            upstream.whole_body()
        self._client.pipeline.release(reusable=upstream.is_reusable())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """No attempt follows: end what counts or waits for one, and the filters of backends that were left."""
        self._cancel_timer()
        if self._request_timer is not None:
            self._request_timer.cancel()
        state, exchange = self._state, self._exchange
        if state.parallel:
            state.end()
        if len(state.chosen) > 1 and exchange.state:
            finish_earlier(exchange, self._route, state.chosen)
