"""RetryState: the attempts of a request whose rule has a RetryPolicy, as actions. It does no I/O and keeps no clock.

Each attempt chooses a backend and an endpoint again, starts from the client's request, and has that backend's filters
and credentials and no other's. Where the rule's choice is a Failover, its `FailoverState` says where the request goes
next. With `hedging` there may be several attempts at once: see `hedge_state`. Source: GEP-1731.

`Pipeline.request` yields these actions in place of CALL. `gateway/exchange/attempt_driver` carries them out.

| action | the driver … | and leaves |
|---|---|---|
| BEGIN | starts the clock of a brief request; keeps `replay_limit` bytes of the body (-1: none) | `body`, `ends_at` |
| PREPARE | lets a product make the request of the client what `backend` gets of it | `backend`, `answer` |
| ATTEMPT | sends the request to `target` of `backend` | `exchange.response`, `answer` or `error` |
| HEDGE | makes the attempts of `hedges`, several at once | as ATTEMPT |
| AWAIT_BODY | waits for the first byte of the answer's body | `error` |
| READ_BEGINNING | reads the answer as far as `beginning` asks for | `status` or `error` |
| TRANSFORM | lets a product make the client's answer of the backend's | `error` |
| NARROW | lets a product take out the backends that cannot serve the request | |
| DISCARD | gives the connection of an answer back that the client does not get | |
| WAIT | waits for `wait_s` seconds, with nobody to send the body to | |
| DELIVER | has the answer for the client; the last action | |
| FAIL | raises `error`; the last action | |

With each result come `now` (the clock of health and deadlines, monotonic seconds) and `elapsed_s` of the attempt. The
connection of an attempt that has failed is given back with its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from egressproxy.errors import GatewayError, LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import NextAttempt, RepeatRequest
from egressproxy.gateway.answers import AnswerBeginning
from egressproxy.gateway.backends.endpoints import HostSet
from egressproxy.gateway.backends.failover import FailoverState, may_serve, status_of_answer
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT, ReplayableBody
from egressproxy.gateway.backends.retries import RetryPolicy, may_go_again, untried
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.session_persistence import BoundSession
from egressproxy.gateway.backends.upstream_call import Repeat
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.exchange.hedge_state import HedgeState
from egressproxy.gateway.product_types import ADAPTER
from egressproxy.gateway.products import PRODUCTS
from egressproxy.gateway.route import Route
from egressproxy.ir.policy import HedgingIR
from egressproxy.model.attempt_trail import ATTEMPTS_FIELD, AttemptTrail
from egressproxy.model.exchange import Exchange
from egressproxy.model.grpc_status import GRPC_NAMES
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.protocols.grpc.statuses import is_grpc, parsed_status, retry_pushback_s

BEGIN: Final = "begin attempts"
PREPARE: Final = "prepare the request"
ATTEMPT: Final = "attempt"
HEDGE: Final = "hedge"
AWAIT_BODY: Final = "await the body"
READ_BEGINNING: Final = "read the beginning"
TRANSFORM: Final = "transform the answer"
NARROW: Final = "narrow the choice"
DISCARD: Final = "discard the answer"
WAIT: Final = "wait"
DELIVER: Final = "deliver the answer"
FAIL: Final = "fail"

#: A server of gRPC that wants a call again later than this has its answer passed on.
MAX_PUSHBACK_S: Final = 300.0
#: No answer came. After the last attempt of a rule its backend is unavailable (503): no single answer of it was bad.
BROKEN: Final = frozenset((Reason.UPSTREAM_RESET, Reason.UPSTREAM_CLOSED))


class RetryState:
    """The attempts of one request: what was tried, and where it goes next."""

    __slots__ = (
        "_affinity", "_bound_session", "_codes", "_down", "_exchange", "_failover", "_following", "_is_adapted",
        "_is_good", "_is_hedged", "_origin", "_outcome", "_policy", "_presented_session", "_retries", "_route",
        "_tried", "answer", "backend", "beginning", "body", "chosen", "collected", "elapsed_s", "ends_at", "error",
        "failover_state", "failures", "first_byte_s", "hedges", "now", "parallel", "repeat", "replay_limit",
        "sessions", "status", "target", "wait_s",
    )  # fmt: skip

    # of the attempt under way, set when it begins
    _following: RouteBackend | None
    _is_good: bool  # its status is none of the codes
    _outcome: str
    beginning: AnswerBeginning | None
    error: GatewayError | None
    hedges: HedgeState | None
    target: UpstreamHost | None
    wait_s: float  # below 0: as the rule says
    # results
    elapsed_s: float
    ends_at: float
    now: float
    status: int

    def __init__(
        self, policy: RetryPolicy, exchange: Exchange, route: Route, collected: bytes | ReplayableBody | None
    ) -> None:
        """`collected`: the body, where it is here already. Raises GatewayError where no backend may be asked."""
        head = exchange.request
        self.sessions = sessions = policy.sessions
        self._policy = policy
        self._exchange = exchange
        self._route = route
        self._is_adapted = bool(exchange.state) and ADAPTER in exchange.state
        self._origin = head.fields.block, head.path, exchange.upstream_host, head.body  # what each attempt starts from
        self.collected = collected
        self._presented_session = session = sessions.find(exchange) if sessions is not None else None
        self._bound_session = session if isinstance(session, BoundSession) else None
        if session is not None and session.backend.name in route.excluded:
            if self._bound_session is not None:
                raise self._bound_session.lost()
            session = None
        self._affinity = session  # whose endpoint the next attempt goes to; None: any
        self.backend = backend = session.backend if session is not None else route.choose()
        self._failover = failover = route.failover_of(backend)
        self.failover_state = FailoverState(failover) if failover is not None else None
        self._codes, self.repeat = policy.codes, policy.repeat
        self.first_byte_s, self.replay_limit = 0.0, REPLAY_LIMIT
        if failover is not None:
            self._codes, self.repeat = policy.codes | failover.codes, Repeat.NEVER
            self.first_byte_s, self.replay_limit = failover.spec.first_byte_s, failover.spec.max_replay_bytes
        elif not (policy.attempts or sessions is not None or self._is_adapted):
            self.replay_limit = -1
        self.chosen: list[RouteBackend] = []  # the backends of all attempts
        self.parallel: list[HostSet] = []  # the circuit breakers that count a retry of this request
        self._tried: set[UpstreamHost] = set()
        self._down: set[UpstreamHost] = set()  # tried hosts that refused the connection
        self.failures: list[str] = []
        self._retries = 0
        self._is_hedged = False  # there were several attempts at once
        self.body: ReplayableBody | None = None
        self.answer: LocalResponse | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the attempt under way has an `error`."""
        return self.error is not None

    def actions(self) -> Iterator[str]:
        """The actions of the attempts, up to DELIVER or FAIL."""
        policy, exchange = self._policy, self._exchange
        is_adapted, failover_state = self._is_adapted, self.failover_state
        yield BEGIN
        policy.count_request()
        if failover_state is not None:
            self._enter_failover(failover_state)
        while True:
            if is_adapted:
                chosen = self.backend
                yield PREPARE
                if self.backend is not chosen:
                    self._affinity = None
            if not self._begin():
                yield FAIL
                return
            answer = self.answer
            if answer is None:
                if policy.hedging is not None and self._may_hedge(policy.hedging):
                    yield HEDGE
                    self._take_decisive()
                elif self._choose_target():
                    yield ATTEMPT
                answer = self.answer
            if answer is not None:
                yield DELIVER
                return
            error = self.error
            if error is None:
                is_last = yield from self._delivers()
                error = self.error
                if error is None:
                    if is_last:
                        if self.failures or exchange.state:
                            self._answered()
                        yield DELIVER
                        return
                    yield DISCARD
            if error is not None:
                if not isinstance(error, UpstreamFault | LimitExceeded):
                    yield FAIL
                    return
                if is_adapted and failover_state is not None:
                    yield NARROW
                if not self._goes_on(error):
                    self._note_attempt()
                    if 0 < policy.attempts <= self._retries and error.reason in BROKEN:
                        error.status = 503
                    yield FAIL
                    return
            self._leave()
            yield WAIT
            if not self._choose_next():
                yield FAIL
                return

    def keep_session(self) -> None:
        """Tell the client its session of a rule with `sessions`, in the response that it gets."""
        assert self.sessions is not None
        assert self.target is not None
        self.sessions.keep(self._exchange, self._presented_session, self.backend, self.target)

    def end(self) -> None:
        """End the counts of retries, when no other attempt follows."""
        while self.parallel:
            self.parallel.pop().end_retry()

    # --- one attempt -----------------------------------------------------------------------------------------------
    def _enter_failover(self, failover_state: FailoverState) -> None:
        if self._failover is not None and self._failover.spec.shows_attempts:
            AttemptTrail.kept_by(self._exchange).is_shown = True
        if self._affinity is None or not may_serve(self.backend, self.now):
            self._affinity, self.backend = None, failover_state.first(self.now)

    def _begin(self) -> bool:
        """False: this backend is not the one of a session that is bound to its own."""
        exchange, backend, bound = self._exchange, self.backend, self._bound_session
        self.target = self.hedges = self.error = None
        self.elapsed_s = 0.0
        if bound is not None and backend is not bound.backend:
            self.error = bound.lost()
            return False
        self.chosen.append(backend)
        if backend.denied is not None:
            backend.note_denied(exchange)
        exchange.backend = backend.name
        exchange.series = backend.series
        self._following, self.wait_s = None, -1.0
        if self.failover_state is not None:
            self.failover_state.begin(backend, self.now)
        return True

    def _choose_target(self) -> bool:
        """False, with an `error`, where no host of the backend may be asked."""
        exchange, session = self._exchange, self._affinity
        try:
            if session is not None:
                target = session.target(exchange)
            else:
                target = untried(self.backend, exchange, self._tried, self._down)
        except GatewayError as error:
            self._refuse(error)
            return False
        self.target = target
        self._tried.add(target)
        return True

    def _delivers(self) -> Generator[str, None, bool]:
        """Whether the client gets this answer, as the value of the generator; an `error` where it cannot be read."""
        exchange, failover_state, failover, policy = self._exchange, self.failover_state, self._failover, self._policy
        status = exchange.response.status if failover_state is None else status_of_answer(exchange.response)
        is_of_grpc = bool(policy.grpc_codes) and self._is_grpc_retriable(exchange.response)
        if status not in self._codes and not is_of_grpc:
            if self.first_byte_s:
                yield AWAIT_BODY
                if self.has_failed:
                    return False
            if status == 200 and exchange.method == b"POST" and self._codes and self._reads_beginning():
                yield READ_BEGINNING
                if self.has_failed:
                    return False
                status = self.status
        self._is_good = status not in self._codes
        if not is_of_grpc:
            self._outcome = str(status)
        if not self._is_good or is_of_grpc:
            if failover_state is not None and failover is not None and status in failover.codes:
                if self._is_adapted:
                    yield NARROW
                failover_state.answered(self.backend, exchange.response, status, self.now)
                self._following = self._next_backend(None)
            if self._following is not None or ((status in policy.codes or is_of_grpc) and self._may_retry()):
                self.failures.append(f"status {self._outcome}")
                return False
        if self._is_adapted:
            yield TRANSFORM
            if self.has_failed:
                return False
        if failover_state is not None and self._is_good and not is_of_grpc:
            failover_state.succeeded(self.backend)
        return True

    def _reads_beginning(self) -> bool:
        """Whether the first event, or the whole of a short body, may tell of a failure. Where no other attempt could
        follow nothing is held.
        """
        body, policy, sessions = self.body, self._policy, self.sessions
        goes_on = self.failover_state is not None or (policy.attempts and not self.backend.has_parent)
        if not goes_on or not (body is None or body.is_kept):
            return False
        if sessions is not None and not sessions.reads_beginnings:
            return False
        self.beginning = PRODUCTS.answer_beginning(self._exchange)
        return self.beginning is not None

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
            if not 0 <= pushback_s <= min(MAX_PUSHBACK_S, self.ends_at - self.now):
                return False
            self.wait_s = pushback_s
        return True

    # --- after a failure -------------------------------------------------------------------------------------------
    def _goes_on(self, error: UpstreamFault | LimitExceeded) -> bool:
        backend, body, policy = self.backend, self.body, self._policy
        if isinstance(error, RepeatRequest) and error.outcome not in self.failures and (not body or body.is_kept):
            self._outcome, self._following, self.wait_s, self._retries = error.outcome, None, 0.0, self._retries - 1
            self.failures.append(error.outcome)
            return True
        self._outcome = error.reason.value
        is_wish = isinstance(error, NextAttempt)  # of a filter: nothing has failed
        self._following = self._next_backend(None if is_wish else error) if self.failover_state is not None else None
        if is_wish:
            if self._following is None and not self._may_retry():
                return False
        elif self._following is None:
            # The endpoint of a session is gone: it moves, whether or not the rule has retries.
            moves = self._affinity is not None and error.retry is RetrySafety.SAFE and (body is None or body.is_kept)
            if moves and not policy.attempts:
                self._retries -= 1
            elif (
                not isinstance(error, UpstreamFault)
                or not (moves or may_go_again(self._exchange, error, self._route.backends, backend))
                or not policy.has_another(self._retries, body)
                or not self._takes_retry(backend)
            ):
                return False
        self.failures.append(self._outcome)
        if error.retry is RetrySafety.IF_REUSED:
            self.wait_s = 0.0
        elif error.retry is RetrySafety.SAFE and self.target is not None:
            self._down.add(self.target)
        return True

    def _may_retry(self) -> bool:
        """Whether the rule asks this backend again after an answer of its own; if so that is counted."""
        return (
            not self.backend.has_parent
            and self._policy.has_another(self._retries, self.body)
            and self._takes_retry(self.backend)
        )

    def _next_backend(self, error: GatewayError | None) -> RouteBackend | None:
        """Where a Failover sends the request after this failure (None: a code); None where nobody is left to ask, the
        body was not kept, the budget of the rule is used up, or the circuit breaker of the next allows no retry.
        """
        failover_state, body = self.failover_state, self.body
        assert failover_state is not None
        waits = error is not None and error.reason is Reason.RESPONSE_TIMEOUT and body is not None and body.is_flowing
        following = failover_state.next(
            self._exchange, self.backend, error, self._tried, self.now, waits_for_client=waits
        )
        if following is None or not (body is None or body.is_kept):
            return None
        return following if self._policy.may_spend() and self._takes_retry(following) else None

    def _takes_retry(self, backend: RouteBackend) -> bool:
        """Whether the circuit breaker of this backend allows one more retry, which counts there until `end`."""
        hosts = backend.cluster.host_set if backend.cluster is not None else None
        if hosts is None or hosts in self.parallel:
            return True
        if not hosts.take_retry():
            return False
        self.parallel.append(hosts)
        return True

    def _leave(self) -> None:
        """Say how the attempt has ended, and how long to wait for the next."""
        backend, following = self.backend, self._following
        self._note_attempt()
        if following is not None or self._bound_session is None or self.target in self._down:
            self._affinity = None  # the retries of one that is bound stay with its own endpoint
        if following is not None:
            self.wait_s = 0.0
            if following is not backend:
                backend.series.failover(self._outcome)
        else:
            self._retries += 1
            if self.wait_s < 0:
                self.wait_s = self._policy.pause_s(self._retries)

    def _choose_next(self) -> bool:
        """Begin again with the client's request. False, with an `error`, where no backend may be asked."""
        exchange, body = self._exchange, self.body
        head = exchange.request
        head.fields.block, head.path, exchange.upstream_host, head.body = self._origin
        if body is not None and body.has_begun and b"expect" in head.fields:
            head.expect_continue = False
            head.fields.remove(b"expect")
        if self._following is not None:
            self.backend = self._following
        elif self._affinity is None and self._bound_session is None:
            if self.failover_state is not None:
                self.backend = self.failover_state.first(self.now)
                return True
            try:
                self.backend = self._route.choose()
            except GatewayError as error:
                self._refuse(error)
                return False
        return True

    def _refuse(self, error: GatewayError) -> None:
        error.__traceback__ = error.__context__ = None  # no cycle with frames
        self.error = error

    def _note_attempt(self) -> None:
        AttemptTrail.kept_by(self._exchange).add(self.backend.name, self._outcome, self.elapsed_s)

    def _answered(self) -> None:
        exchange = self._exchange
        trail = AttemptTrail.of(exchange) if exchange.state else None
        if trail is not None:
            self._note_attempt()
            if trail.is_shown:
                exchange.response.fields.set(ATTEMPTS_FIELD, trail.field)
        if self.failures:
            exchange.detail = f"retried after {', '.join(dict.fromkeys(self.failures))}"
        if self._is_hedged:
            exchange.detail = f"{exchange.detail}; hedged" if exchange.detail else "hedged"

    # --- several at once -------------------------------------------------------------------------------------------
    def _may_hedge(self, hedging: HedgingIR) -> bool:
        """Whether the next attempt may have others beside it, `hedges`: not in a session, which is with one endpoint,
        with a body that is still to come, or toward a parent, where only connections are tried again.
        """
        exchange, policy = self._exchange, self._policy
        head = exchange.request
        if exchange.method not in policy.hedged_methods:
            return False
        if self._is_adapted or head.upgrade or self._affinity is not None or self._bound_session is not None:
            return False
        if self.backend.has_parent or (head.body != 0 and self.collected is None):
            return False
        self.hedges = HedgeState(policy, hedging, exchange, self._route, self.failover_state, self._tried, self._down)
        return True

    def _take_decisive(self) -> None:
        """The attempt that decides is the one that what follows looks at."""
        hedges = self.hedges
        assert hedges is not None
        self._is_hedged = self._is_hedged or hedges.begun > 1
        decisive = hedges.decisive
        if decisive is not None:
            self.backend, self.target = decisive.backend, decisive.target
            self.chosen.append(decisive.backend)
