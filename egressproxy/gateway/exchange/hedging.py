"""Hedging: the driver of a `HedgeState`: attempts for one request that are under way at once.

Each has what a single attempt has (filters, credentials, Host, address checks), and holds what is its own: driver,
clock, connection, and a copy of the exchange. Who loses is cancelled, as if its client had left: the health of the
endpoint stays. However the exchange ends, `HedgedCall.result` gives everything back that the winner does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar

from egressproxy.errors import ClientGone, GatewayError
from egressproxy.filters.chain import finish
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import HeldConnection, call_upstream, filtered_answer
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import ANSWER_S, late_attempt
from egressproxy.gateway.exchange.error_responses import internal_fault
from egressproxy.gateway.exchange.hedge_state import CANCELLED, Hedge, HedgeState
from egressproxy.gateway.exchange.request_body import send_request
from egressproxy.model.attempt_trail import AttemptTrail
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.timers import NEVER
from egressproxy.protocols.upstream import Upstream


@dataclass(slots=True, eq=False, repr=False)
class HedgedCall:
    """The attempts of one request. `began`: when the one that decides began (monotonic seconds); 0.0 without one."""

    _state: HedgeState
    _client: Client
    _exchange: Exchange
    _body: bytes | ReplayableBody | None
    _repeat: int
    _first_byte_s: float
    _attempts: list[HedgedAttempt] = field(default_factory=list)  # that have not lost
    _timer: asyncio.TimerHandle | None = None
    began: float = 0.0

    async def result(self, backend: RouteBackend) -> Upstream | LocalResponse:
        """The decisive answer, of this backend or of one beside it: the client holds its connection then, and the
        exchange is that of its attempt. Raises GatewayError: its failure, or what ends the exchange.
        """
        client, state, idle_s = self._client, self._state, self._client.clock.idle_limit_s
        client.clock.leave_to_attempts(client)
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
            client.clock.take_back(client, decisive.ends_at if decisive is not None else NEVER, idle_s)
            if decisive is not None:
                self.began = decisive.began
                self._adopt(decisive)
        assert decisive is not None
        if decisive.hedge.error is not None:
            raise decisive.hedge.error
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
        upstream = attempt.connection.upstream
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
        exchange, own, pipeline = self._exchange, attempt.exchange, self._client.pipeline
        head, sent = exchange.request, own.request
        head.fields.block, head.path, head.body = sent.fields.block, sent.path, sent.body
        exchange.upstream_host = own.upstream_host
        exchange.take_response(own)
        exchange.upstream, exchange.addresses = own.upstream, own.addresses
        exchange.backend, exchange.backend_is_secure, exchange.series = own.backend, own.backend_is_secure, own.series
        exchange.attempts += own.attempts
        exchange.note_denials(*(exchange.would_deny or ()), *(own.would_deny or ()))
        exchange.adopt_state(own)
        held = attempt.connection
        pipeline.backend = attempt.hedge.backend
        if held.upstream is not None:
            assert held.cluster is not None
            assert held.target is not None
            pipeline.hold(held.cluster, held.target, held.give_away())
        if not attempt.hedge.is_first:
            attempt.hedge.backend.series.hedge("won" if attempt.hedge.error is None else "failed")


class HedgedAttempt:
    """`exchange` is its own: what comes of it reaches the client's exchange where it decides. `first_byte_s`: an answer
    has to begin its body within this time; 0.0: its head will do. `ends_at`: when the time of the backend for an
    attempt is over (monotonic seconds).
    """

    __slots__ = (
        "_body", "_client", "_first_byte_s", "_handle", "_on_over", "began", "connection", "driver", "ends_at",
        "exchange", "found", "hedge", "is_over",
    )  # fmt: skip

    may_flow: ClassVar[bool] = False

    def __init__(
        self,
        client: Client,
        exchange: Exchange,
        hedge: Hedge,
        body: bytes | ReplayableBody | None,
        first_byte_s: float,
    ) -> None:
        """`exchange` is copied; its request is as the client sent it. `body`: None for a request without one."""
        self._client = client
        if isinstance(body, ReplayableBody) and body.given is not None:
            body = ReplayableBody.whole(body.given, body.given_trailers)  # each attempt sends its own
        self._body = body
        self._handle: asyncio.TimerHandle | None = None
        self._on_over: Callable[[HedgedAttempt], None] | None = None
        self._first_byte_s = first_byte_s
        self.hedge = hedge
        self.connection = HeldConnection()
        self.driver = Driver()
        self.began = monotonic()
        self.ends_at = NEVER
        self.found: Upstream | LocalResponse | None = None
        self.is_over = False
        self.exchange = own = exchange.copy()
        own.request = exchange.request.copy()
        if body is not None:
            own.request.body = body.length if isinstance(body, ReplayableBody) else len(body)
        own.fork_state()
        own.attempts = 0
        backend = hedge.backend
        own.backend = backend.name
        own.series = backend.series
        if backend.denied is not None:
            backend.note_denied(own)

    def start(self, repeat: int, on_over: Callable[[HedgedAttempt], None]) -> None:
        """Begin. `on_over` is called in the end, maybe before this returns."""
        self._on_over = on_over
        self.driver.start(self._live(repeat))

    def cancel(self) -> None:
        """Give the attempt up, and release its resources. The health of the endpoint stays as it is."""
        if not self.is_over:
            self.hedge.is_cancelled = True
            self._on_over = None
            self.driver.throw(ClientGone())
        self.discard()

    def discard(self) -> None:
        """Its answer goes nowhere: its connection is used again where all of that is here, else closed."""
        upstream, is_reusable = self.connection.upstream, False
        if upstream is not None and self.is_over and not upstream.is_lost:
            if not upstream.has_ended:
                upstream.whole_body()
            is_reusable = upstream.is_reusable()
        self.connection.release(reusable=is_reusable)

    async def _live(self, repeat: int) -> None:
        hedge, exchange, held = self.hedge, self.exchange, self.connection
        cluster, chain = hedge.backend.cluster, hedge.backend.chain
        assert cluster is not None
        try:
            found = await call_upstream(self, held, exchange, cluster, hedge.target, chain, self._body, repeat)
            found = await filtered_answer(held, exchange, chain, found)
            if isinstance(found, LocalResponse):
                hedge.answer = found
            else:
                if self._first_byte_s:
                    await found.first_byte()
                hedge.response = exchange.response
            self.found = found
        except GatewayError as error:
            error.__traceback__ = error.__context__ = None  # its frames hold what holds the error: no cycle
            hedge.error = error
        except GeneratorExit:
            raise  # the process ends
        except BaseException as error:  # also what a filter may raise to end more than itself
            hedge.error = internal_fault(error, f"exchange {exchange.request_id}")
        self.is_over = True
        if self._handle is not None:
            self._handle.cancel()
        if hedge.counted is not None:
            hedge.counted.end_retry()
        if hedge.error is not None:
            held.fail(exchange, hedge.error)  # of an answer without a first byte
        on_over, self._on_over = self._on_over, None
        if on_over is not None:
            on_over(self)

    # --- UpstreamCaller --------------------------------------------------------------------------------------------
    def start_attempt(self) -> None:
        seconds = self.hedge.backend.backend_request_s
        self.ends_at = self._client.wheel.now + self.hedge.backend.clock_s if seconds else NEVER
        limits = [limit for limit in (seconds, self._first_byte_s) if limit]
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(min(limits, default=ANSWER_S), self._late)

    def _late(self) -> None:
        self.driver.throw(late_attempt(self.connection))

    def count_attempt(self, result: str) -> None:
        self.hedge.backend.series.attempt(CANCELLED if self.hedge.is_cancelled else result)

    def count_answer(self, exchange: Exchange, seconds: float) -> None:
        exchange.series.answered(seconds)

    def send_request(
        self, exchange: Exchange, upstream: Upstream, body: bytes | ReplayableBody | None, pseudonym: bytes
    ) -> None:
        """See UpstreamCaller. Mirrors get their copies beside the attempt that is sent first."""
        send_request(self._client, self.driver, self.hedge.backend, exchange, upstream, body, pseudonym)

    def pass_interim(self, head: ResponseHead, exchange: Exchange) -> None:
        """See UpstreamCaller. They are passed on (RFC 9110 section 15.2), whoever wins."""
        pipeline = self._client.pipeline
        pipeline.backend, pipeline.cluster = self.hedge.backend, self.connection.cluster
        self._client.pass_interim(head, exchange)
