"""Attempts: how a request of a rule with a RetryPolicy reaches a backend.

Where a rule has none, the connection manager makes its one attempt itself, and nothing here is asked. With one each
attempt chooses a backend and an endpoint again, starts from the client's request, and has that backend's filters and
credentials and no other's. Where the rule's choice is a Failover, its `FailoverState` says where the request goes next.
With `hedging` there may be several attempts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from egressproxy.errors import GatewayError, LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import NextAttempt
from egressproxy.filters.chain import finish
from egressproxy.gateway.answers import Answer, BegunAnswer
from egressproxy.gateway.backends.endpoints import HostSet
from egressproxy.gateway.backends.failover import FailoverGroup, FailoverState, may_serve, status_of_answer
from egressproxy.gateway.backends.mirror_request import mirror_requests_of
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT, ReplayableBody
from egressproxy.gateway.backends.retries import RetryPolicy, may_go_again, untried
from egressproxy.gateway.backends.route_backend import EXACT_BELOW_S, RouteBackend
from egressproxy.gateway.backends.session_persistence import BoundSession
from egressproxy.gateway.backends.upstream_call import Repeat, call_upstream, filtered_answer
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import late_attempt, late_request
from egressproxy.gateway.exchange.hedging import HedgedCall, finish_attempts
from egressproxy.gateway.exchange.request_body import kept_body
from egressproxy.gateway.product_types import ADAPTER, RequestAdapter
from egressproxy.gateway.products import PRODUCTS
from egressproxy.gateway.route import Route
from egressproxy.model.attempt_trail import ATTEMPTS_FIELD, AttemptTrail
from egressproxy.model.exchange import Exchange
from egressproxy.model.grpc_status import GRPC_NAMES
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.protocols.grpc.statuses import is_grpc, parsed_status, retry_pushback_s
from egressproxy.protocols.upstream import Upstream

#: A server of gRPC that wants a call again later than this has its answer passed on.
MAX_PUSHBACK_S = 300.0
#: No answer came. After the last attempt of a rule its backend is unavailable (503): no single answer of it was bad.
BROKEN = frozenset((Reason.UPSTREAM_RESET, Reason.UPSTREAM_CLOSED))
#: A sleep of nothing has no future, which a driver waits for.
LEAST_PAUSE_S = 1e-6


async def reach_with_retries(
    policy: RetryPolicy, exchange: Exchange, client: Client, route: Route, collected: bytes | ReplayableBody | None
) -> Answer | LocalResponse:
    """Attempts, until `exchange.response` is there; returns its connection, or a filter's response. Raises the
    GatewayError of the last one. Source: GEP-1731.
    """
    attempts = Attempts(policy, exchange, client, route)
    timer = None
    if 0 < route.request_s < EXACT_BELOW_S:
        left_s = max(0.0, exchange.started_at + route.request_s - monotonic())
        timer = asyncio.get_running_loop().call_later(left_s, lambda: client.driver.throw(late_request()))
    try:
        return await attempts.reach(collected)
    finally:
        attempts.end()
        if timer is not None:
            timer.cancel()


class Attempts:
    """The attempts of one request: what was tried, and where it goes next."""

    __slots__ = (
        "_adapter",
        "_backend",
        "_began",
        "_begun",
        "_body",
        "_chosen",
        "_client",
        "_codes",
        "_counted",
        "_down",
        "_exchange",
        "_failover",
        "_failover_state",
        "_failures",
        "_following",
        "_is_good",
        "_is_hedged",
        "_origin",
        "_outcome",
        "_owner",
        "_policy",
        "_repeat",
        "_retries",
        "_route",
        "_session",
        "_shown",
        "_target",
        "_tried",
        "_wait_s",
    )

    def __init__(self, policy: RetryPolicy, exchange: Exchange, client: Client, route: Route) -> None:
        head, sessions = exchange.request, policy.sessions
        self._policy = policy
        self._exchange = exchange
        self._adapter = exchange.state.get(ADAPTER) if exchange.state else None
        self._client = client
        self._route = route
        self._origin = head.fields.block, head.path, exchange.upstream_host, head.body  # what each attempt starts from
        self._shown = session = sessions.find(exchange) if sessions is not None else None
        if session is not None and session.backend.name in route.excluded:
            if isinstance(session, BoundSession):
                raise session.lost()
            session = None
        self._session = session
        self._chosen: list[RouteBackend] = []
        self._counted: list[HostSet] = []  # those that count a retry of this request
        self._backend = backend = session.backend if session is not None else route.choose()
        self._owner = session if isinstance(session, BoundSession) else None  # nobody else gets the server's own id
        self._failover = failover = route.failover_of(backend)
        self._failover_state, self._codes, self._repeat = None, policy.codes, policy.repeat
        if failover is not None:
            self._failover_state, self._codes, self._repeat = (
                FailoverState(failover),
                policy.codes | failover.codes,
                Repeat.NEVER,
            )
            if failover.spec.shows_attempts:
                AttemptTrail.kept_by(exchange).is_shown = True
            if session is None or not may_serve(backend, client.wheel.now):
                self._session, self._backend = None, self._failover_state.first(client.wheel.now)
        self._body: ReplayableBody | None = None
        self._tried: set[UpstreamHost] = set()
        self._down: set[UpstreamHost] = set()  # tried hosts that refused the connection
        self._failures: list[str] = []
        self._retries = 0
        self._is_hedged = False  # there were several attempts at once
        # of the attempt under way
        self._target: UpstreamHost | None = None
        self._began = 0.0
        self._outcome = ""
        self._begun: BegunAnswer | None = None  # its answer, where the beginning of that was read
        self._is_good = False  # its status is none of the codes
        self._following: RouteBackend | None = None
        self._wait_s = -1.0  # below 0: as the rule says

    async def reach(self, collected: bytes | ReplayableBody | None) -> Answer | LocalResponse:
        """See `reach_with_retries`. `collected` is the body, where it is here already."""
        exchange, policy, failover = self._exchange, self._policy, self._failover
        adapter = self._adapter
        has_body = exchange.request.body != 0 or collected is not None
        if has_body and (
            self._failover_state is not None or policy.attempts or policy.sessions is not None or adapter is not None
        ):
            limit = failover.spec.max_replay_bytes if failover is not None else REPLAY_LIMIT
            self._body = kept_body(exchange, self._client, self._route, collected, limit)
        policy.count_request()
        while True:
            if adapter is not None:
                chosen = await adapter.prepare(exchange, self._client, self._backend, self._body, self._failover_state)
                if chosen is not self._backend:
                    self._backend, self._session = chosen, None
            self._begin()
            if adapter is not None and adapter.own_answer is not None:
                return adapter.own_answer
            timer = None  # hedged attempts have timers of their own
            is_hedged = exchange.method in policy.hedged_methods and self._may_hedge(collected)
            is_timed = self._backend.is_brief or (failover is not None and failover.spec.first_byte_s)
            if is_timed and not is_hedged:
                timer = AttemptTimer(self._client, self._backend, failover, self._body)
            try:
                upstream = await (self._attempt_hedged if is_hedged else self._attempt)(collected)
                if isinstance(upstream, LocalResponse):
                    return upstream
                if await self._is_final(upstream, timer):
                    found = self._begun or upstream
                    answer: Answer = found if adapter is None else await self._read_answer(adapter, found, timer)
                    break
                discard(self._client, upstream)
            except (UpstreamFault, LimitExceeded) as error:
                held = self._client.pipeline
                if isinstance(error, NextAttempt) and held.upstream is not None:
                    discard(self._client, held.upstream)
                else:
                    held.fail(exchange, error)  # of an answer without a first byte
                if adapter is not None and self._failover_state is not None:
                    await adapter.narrow(self._exchange, self._client, self._body, self._failover_state)
                if not self._goes_on(error):
                    note_attempt(exchange, self._backend, self._outcome, self._began)
                    if 0 < policy.attempts <= self._retries and error.reason in BROKEN:
                        error.status = 503
                    raise
            finally:
                if timer is not None:
                    timer.cancel()
            await self._prepare_next()
        self._answered()
        return answer

    def end(self) -> None:
        """End the counts of retries, and filters of backends that were left. Call it after `reach`, errors included."""
        for endpoints in self._counted:
            endpoints.end_retry()
        if len(self._chosen) > 1 and self._exchange.state:
            finish_earlier(self._exchange, self._route, self._chosen)

    # --- one attempt -----------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        exchange, backend, pipeline = self._exchange, self._backend, self._client.pipeline
        if self._owner is not None and backend is not self._owner.backend:
            raise self._owner.lost()
        pipeline.backend = backend
        self._chosen.append(backend)
        if backend.denied is not None:
            backend.note_denied(exchange)
        exchange.backend = backend.name
        exchange.series = backend.series
        if backend.mirrors is not None and not self._failures:
            pipeline.mirror_requests = mirror_requests_of(backend.mirrors, exchange)
        self._began = monotonic()
        self._following, self._wait_s = None, -1.0
        self._target = self._begun = None
        if self._failover_state is not None:
            self._failover_state.begin(backend, self._client.wheel.now)

    async def _attempt(self, collected: bytes | ReplayableBody | None) -> Upstream | LocalResponse:
        exchange, backend, session = self._exchange, self._backend, self._session
        target = (
            session.target(exchange) if session is not None else untried(backend, exchange, self._tried, self._down)
        )
        self._target = target
        self._tried.add(target)
        cluster = backend.cluster
        assert cluster is not None  # the target is of it
        adapter, body = self._adapter, self._body or collected
        if adapter is not None and adapter.body is not None:  # the body as its provider gets it
            body = adapter.body or collected
        found = await call_upstream(
            self._client, self._client.pipeline, exchange, cluster, target, backend.chain, body, self._repeat
        )
        return await filtered_answer(self._client.pipeline, exchange, backend.chain, found)

    async def _is_final(self, upstream: Upstream, timer: AttemptTimer | None) -> bool:
        """Whether the client gets this answer. Raises UpstreamFault where no first byte of it comes."""
        exchange, failover_state, failover, policy = self._exchange, self._failover_state, self._failover, self._policy
        status = exchange.response.status if failover_state is None else status_of_answer(exchange.response)
        is_of_grpc = bool(policy.grpc_codes) and self._is_grpc_retriable(exchange.response)
        if status not in self._codes and not is_of_grpc:
            if failover is not None and failover.spec.first_byte_s:
                await upstream.first_byte()
            if status == 200 and exchange.method == b"POST" and self._codes:
                status = await self._status_of_beginning(upstream, timer)
        self._is_good = status not in self._codes
        if not is_of_grpc:
            self._outcome = str(status)
        if self._is_good and not is_of_grpc:
            if failover_state is not None and self._adapter is None:
                failover_state.succeeded(self._backend)
            return True
        if failover_state is not None and failover is not None and status in failover.codes:
            if self._adapter is not None:
                await self._adapter.narrow(exchange, self._client, self._body, failover_state)
            failover_state.answered(self._backend, exchange.response, status, self._client.wheel.now)
            self._following = self._next_backend(None)
        if self._following is None and not ((status in policy.codes or is_of_grpc) and self._may_retry()):
            return True
        self._failures.append(f"status {self._outcome}")
        return False

    async def _status_of_beginning(self, upstream: Upstream, timer: AttemptTimer | None) -> int:
        """The status that an answer of 200 stands for whose first event, or short body, may tell of a failure. Where no
        other attempt could follow nothing is held. Raises UpstreamFault where it breaks off before.
        """
        body, policy = self._body, self._policy
        goes_on = self._failover_state is not None or (policy.attempts and not self._backend.has_parent)
        if not goes_on or not (body is None or body.is_kept):
            return 200
        if policy.sessions is not None and not policy.sessions.reads_beginnings:
            return 200
        first = PRODUCTS.answer_beginning(self._exchange)
        self._begun = begun = (
            BegunAnswer.of(self._exchange, upstream, self._client, first) if first is not None else None
        )
        if begun is None:
            return 200
        if timer is not None:
            timer.cancel()  # as in `_read_answer`
        return await begun.status()

    def _is_grpc_retriable(self, response: ResponseHead) -> bool:
        """Whether a call of gRPC has ended with its status alone, and with one that the rule retries. The server says
        when, or that it wants no retry (gRFC A6); what is longer than the request has time for is no retry, either.
        """
        block = response.fields.block
        status = parsed_status(block)
        if status not in self._policy.grpc_codes or response.status != 200 or response.body != 0:
            return False
        if not is_grpc(response.fields.get(b"content-type")):
            return False
        self._outcome = GRPC_NAMES[status]
        pushback_s = retry_pushback_s(block)
        if pushback_s is not None:
            client = self._client
            if not 0 <= pushback_s <= min(MAX_PUSHBACK_S, client.clock.exchange_ends_at - client.wheel.now):
                return False
            self._wait_s = pushback_s
        return True

    async def _read_answer(
        self, adapter: RequestAdapter, upstream: Upstream | BegunAnswer, timer: AttemptTimer | None
    ) -> Answer:
        """The answer of the backend as the client gets it. Raises UpstreamFault where it cannot be read."""
        if timer is not None:
            timer.cancel()  # its first byte is here, and all of it may take longer
        answer = await adapter.answer(self._exchange, self._client, upstream)
        if self._failover_state is not None and self._is_good:
            self._failover_state.succeeded(self._backend)
        return answer

    def _goes_on(self, error: UpstreamFault | LimitExceeded) -> bool:
        backend, body, policy = self._backend, self._body, self._policy
        self._outcome = error.reason.value
        is_wish = isinstance(error, NextAttempt)  # of a filter: nothing has failed
        self._following = self._next_backend(None if is_wish else error) if self._failover_state is not None else None
        if is_wish:
            if self._following is None and not self._may_retry():
                return False
        elif self._following is None:
            # The endpoint of a session is gone: it moves, whether or not the rule has retries.
            moves = self._session is not None and error.retry is RetrySafety.SAFE and (body is None or body.is_kept)
            if moves and not policy.attempts:
                self._retries -= 1
            elif (
                not isinstance(error, UpstreamFault)
                or not (moves or may_go_again(self._exchange, error, self._route.backends, backend))
                or not policy.has_another(self._retries, body)
                or not may_retry(backend, self._counted)
            ):
                return False
        self._failures.append(self._outcome)
        if is_wish:
            return True
        if error.retry is RetrySafety.IF_REUSED:
            self._wait_s = 0.0
        elif error.retry is RetrySafety.SAFE and self._target is not None:
            self._down.add(self._target)
        return True

    def _may_retry(self) -> bool:
        """Whether the rule asks this backend again after an answer of its own; if so that is counted."""
        return (
            not self._backend.has_parent
            and self._policy.has_another(self._retries, self._body)
            and may_retry(self._backend, self._counted)
        )

    def _next_backend(self, error: GatewayError | None) -> RouteBackend | None:
        """Where a Failover sends the request after this failure (None: a code); None where nobody is left to ask, the
        body was not kept, the budget of the rule is used up, or the circuit breaker of the next allows no retry.
        """
        failover_state, body = self._failover_state, self._body
        assert failover_state is not None
        waits = error is not None and error.reason is Reason.RESPONSE_TIMEOUT and body is not None and body.is_flowing
        following = failover_state.next(
            self._exchange, self._backend, error, self._tried, self._client.wheel.now, waits_for_client=waits
        )
        if following is None or not (body is None or body.is_kept):
            return None
        return following if self._policy.may_spend() and may_retry(following, self._counted) else None

    # --- several at once -------------------------------------------------------------------------------------------
    def _may_hedge(self, collected: bytes | ReplayableBody | None) -> bool:
        """Whether the next attempt may have others beside it: not in a session, which is with one endpoint, with a body
        that is still to come, or toward a parent, where only connections are tried again.
        """
        head = self._exchange.request
        return (
            self._adapter is None
            and (head.body == 0 or collected is not None)
            and not head.upgrade
            and self._session is None
            and self._owner is None
            and not self._backend.has_parent
        )

    async def _attempt_hedged(self, collected: bytes | ReplayableBody | None) -> Upstream | LocalResponse:
        """As `_attempt`. The attempt that decides is the one that what follows looks at."""
        finish_attempts(self._exchange, self._route, self._chosen[:-1])
        assert self._policy.hedging is not None
        hedging = HedgedCall(
            self._policy, self._policy.hedging, self._client, self._exchange, self._route, self._failover_state,
            self._failover, collected, self._repeat, self._tried, self._down,
        )  # fmt: skip
        try:
            return await hedging.result(self._backend)
        finally:
            self._is_hedged = self._is_hedged or hedging.begun > 1
            if (decisive := hedging.decisive) is not None:
                self._backend, self._target, self._began = decisive.backend, decisive.target, decisive.began
                self._chosen.append(decisive.backend)

    # --- between two ------------------------------------------------------------------------------------------------
    async def _prepare_next(self) -> None:
        exchange, backend, following, body = self._exchange, self._backend, self._following, self._body
        note_attempt(exchange, backend, self._outcome, self._began)
        if following is not None or not isinstance(self._session, BoundSession) or self._target in self._down:
            self._session = None  # the retries of one that is bound stay with its own endpoint
        if following is not None:
            self._wait_s = 0.0
            if following is not backend:
                backend.series.failover(self._outcome)
        else:
            self._retries += 1
        if body is not None:
            body.detach()
        await pause(self._client, self._policy.pause_s(self._retries) if self._wait_s < 0 else self._wait_s)
        head = exchange.request
        head.fields.block, head.path, exchange.upstream_host, head.body = self._origin
        if body is not None and body.has_begun and b"expect" in head.fields:
            head.expect_continue = False
            head.fields.remove(b"expect")
        if following is not None:
            self._backend = following
        elif self._session is None and self._owner is None:
            failover_state = self._failover_state
            self._backend = (
                failover_state.first(self._client.wheel.now) if failover_state is not None else self._route.choose()
            )

    def _answered(self) -> None:
        exchange, sessions = self._exchange, self._policy.sessions
        trail = AttemptTrail.of(exchange) if exchange.state else None
        if trail is not None:
            note_attempt(exchange, self._backend, self._outcome, self._began)
            if trail.is_shown:
                exchange.response.fields.set(ATTEMPTS_FIELD, trail.field)
        if self._failures:
            exchange.detail = f"retried after {', '.join(dict.fromkeys(self._failures))}"
        if self._is_hedged:
            exchange.detail = f"{exchange.detail}; hedged" if exchange.detail else "hedged"
        if self._body is not None:
            self._body.forget()
        if sessions is not None:
            assert self._target is not None
            sessions.keep(exchange, self._shown, self._backend, self._target)


def note_attempt(exchange: Exchange, backend: RouteBackend, outcome: str, began: float) -> None:
    AttemptTrail.kept_by(exchange).add(backend.name, outcome, monotonic() - began)


def may_retry(backend: RouteBackend, counted: list[HostSet]) -> bool:
    """Whether the circuit breaker of this backend allows one more retry, which is added to `counted` then."""
    endpoints = backend.cluster.watched if backend.cluster is not None else None
    if endpoints is None or endpoints in counted:
        return True
    if not endpoints.take_retry():
        return False
    counted.append(endpoints)
    return True


def finish_earlier(exchange: Exchange, route: Route, chosen: Sequence[RouteBackend]) -> None:
    """Run `complete` of the filters of backends that were left for others; those of the last one run in the end."""
    last = chosen[-1]
    later = {completion.mark for place in (route, last) for completion in place.chain.complete}
    for backend in chosen:
        if backend is not last:
            finish([each for each in backend.chain.complete if each.mark not in later], exchange)


def discard(client: Client, upstream: Upstream) -> None:
    """The answer goes nowhere. Its connection is used again if all of the answer is here, else closed."""
    if not upstream.has_ended:
        upstream.whole_body()
    client.pipeline.release(reusable=upstream.is_reusable)


async def pause(client: Client, seconds: float) -> None:
    """Between two attempts; the request's own time goes on. Always lets others have a turn."""
    client.clock.end_attempt(client)
    await asyncio.sleep(max(seconds, LEAST_PAUSE_S))


class AttemptTimer:
    """Ends an attempt that is late: after a `backendRequest` below a second (the wheel of timers may be late by all of
    it), and without a first byte. While the rest of the body has to come from the client, nobody waits for that.
    """

    __slots__ = ("_body", "_client", "_first_byte_s", "_handle", "_rest")

    def __init__(
        self, client: Client, backend: RouteBackend, failover: FailoverGroup | None, body: ReplayableBody | None
    ) -> None:
        self._client = client
        self._body = body
        self._first_byte_s = failover.spec.first_byte_s if failover is not None else 0.0
        self._handle = self._rest = None
        loop = asyncio.get_running_loop()
        if backend.is_brief:
            self._rest = loop.call_later(backend.backend_request_s, self._end)
        if self._first_byte_s:
            self._handle = loop.call_later(self._first_byte_s, self._look)

    def cancel(self) -> None:
        for handle in (self._handle, self._rest):
            if handle is not None:
                handle.cancel()

    def _look(self) -> None:
        body, upstream = self._body, self._client.pipeline.upstream
        left_s = 0.0
        if body is not None and upstream is not None:
            if body.is_flowing and not upstream.is_write_blocked:
                left_s = self._first_byte_s
            elif not body.is_flowing:
                left_s = body.whole_at + self._first_byte_s - monotonic()
        if left_s > 0:
            self._handle = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._end()

    def _end(self) -> None:
        self._client.driver.throw(late_attempt(self._client.pipeline))
