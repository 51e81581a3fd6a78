"""Attempts: how a request of a rule with a RetryPolicy reaches a backend.

Where a rule has none, the conductor makes its one attempt itself, and nothing here is asked. With one each attempt
chooses a backend and an endpoint again, starts from the client's request, and has that backend's filters and
credentials and no other's. Where the rule's choice is a Failover, its `Course` says where the request goes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from time import monotonic

from egressproxy.errors import GatewayError, LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.chain import finish
from egressproxy.gateway.backends.dial_targets import Target
from egressproxy.gateway.backends.endpoints import Endpoints
from egressproxy.gateway.backends.failover import Course, FailoverGroup, may_serve, status_of_answer
from egressproxy.gateway.backends.mcp_sessions import McpSession, session_not_found
from egressproxy.gateway.backends.mirror_copy import copies_of
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT, ReplayableBody
from egressproxy.gateway.backends.retries import RetryPolicy, may_go_again, untried
from egressproxy.gateway.backends.route_backend import EXACT_BELOW_S, RouteBackend
from egressproxy.gateway.backends.upstream_call import Repeat, call_upstream
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.ext_authz.buffered_body import HELD, BufferedRequest
from egressproxy.gateway.route import Route
from egressproxy.model.attempt_trail import ATTEMPTS_FIELD, AttemptTrail
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.message import CHUNKED
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.protocols.upstream import Upstream

__all__ = ["reach_with_retries"]


async def reach_with_retries(
    policy: RetryPolicy, x: Exchange, client: Client, route: Route, collected: bytes | None
) -> Upstream | LocalResponse:
    """Attempt after attempt, until `x.response` is there; returns its connection, or the response of a filter.

    Raises GatewayError: what the last attempt raised. Source: GEP-1731.
    """
    timer = None
    if 0 < route.request_s < EXACT_BELOW_S:
        left_s = max(0.0, x.started_at + route.request_s - monotonic())
        timer = asyncio.get_running_loop().call_later(left_s, client.end_late_request)
    chosen: list[RouteBackend] = []
    counted: list[Endpoints] = []  # those that count a retry of this request
    try:
        return await _reach(policy, x, client, route, collected, chosen, counted)
    finally:
        for endpoints in counted:
            endpoints.end_retry()
        if timer is not None:
            timer.cancel()
        if len(chosen) > 1 and x.notes is not None:
            finish_earlier(x, route, chosen)


async def _reach(
    policy: RetryPolicy, x: Exchange, client: Client, route: Route, collected: bytes | None,
    chosen: list[RouteBackend], counted: list[Endpoints],
) -> Upstream | LocalResponse:  # fmt: skip
    head, resources, sessions = x.request, client.resources, policy.sessions
    block, path, host, length = head.fields.block, head.path, x.upstream_host, head.body
    expects_continue = head.expect_continue
    shown = session = sessions.find(x) if sessions is not None else None
    backend = session.backend if session is not None else route.choose()
    owner = backend if isinstance(session, McpSession) else None  # nobody else gets the server's own id
    failover = route.failover_of(backend)
    course, codes, repeat, limit = None, policy.codes, policy.repeat, REPLAY_LIMIT
    if failover is not None:
        course, codes, repeat = Course(failover), policy.codes | failover.codes, Repeat.NEVER
        limit = failover.spec.max_replay_bytes
        if failover.spec.shows_attempts:
            AttemptTrail.kept_by(x).is_shown = True
        if session is None or not may_serve(backend, client.wheel.now):
            session, backend = None, course.first(client.wheel.now)
    body = None
    if course is not None or policy.attempts or sessions is not None:
        body = kept_body(x, client, route, collected, limit)
    tried: set[Target] = set()
    down: set[Target] = set()  # those of them that could not be connected to
    failures: list[str] = []
    retries = 0
    policy.count_request()
    while True:
        if owner is not None and backend is not owner:
            raise session_not_found()
        resources.backend = backend
        chosen.append(backend)
        if backend.denied is not None:
            backend.note_denied(x)
        x.backend = backend.name
        x.series = backend.series
        if backend.mirrors is not None and not failures:
            resources.copies = copies_of(backend.mirrors, x)
        began = monotonic()
        following, wait_s = None, -1.0  # below 0: as the rule says
        target: Target | None = None
        if course is not None:
            course.begin(backend, client.wheel.now)
        timer = None
        if backend.is_brief or (failover is not None and failover.spec.first_byte_s):
            timer = AttemptTimer(client, backend, failover, body)
        try:
            target = session.target(x) if session is not None else untried(backend, x, tried, down)
            tried.add(target)
            upstream = await call_upstream(
                client,
                x,
                backend.connector,  # type: ignore[arg-type]  # the target is of it
                target,
                backend.chain,
                body or collected,
                repeat,
            )
            if isinstance(upstream, LocalResponse):
                return upstream
            status = x.response.status if course is None else status_of_answer(x.response)
            if status not in codes:
                if course is not None and failover is not None:
                    if failover.spec.first_byte_s:
                        await upstream.first_byte()
                    course.succeeded(backend)
                break
            outcome = str(status)
            if course is not None and failover is not None and status in failover.codes:
                course.answered(backend, x.response, client.wheel.now)
                following = next_backend(course, policy, x, client, backend, None, tried, body, counted)
            if following is None and (
                status not in policy.codes
                or backend.has_parent
                or not policy.has_another(retries, body)
                or not may_retry(backend, counted)
            ):
                break
            failures.append(f"status {status}")
            discard(client, upstream)
        except (UpstreamFault, LimitExceeded) as error:
            resources.release(reusable=False)  # of an answer without a first byte
            outcome = error.reason.value
            if course is not None:
                following = next_backend(course, policy, x, client, backend, error, tried, body, counted)
            if following is None:
                # The endpoint of a session is gone: it moves, whether or not the rule has retries.
                moves = session is not None and error.retry is RetrySafety.SAFE and (body is None or body.is_kept)
                if moves and not policy.attempts:
                    retries -= 1
                elif (
                    not isinstance(error, UpstreamFault)
                    or not (moves or may_go_again(x, error, route.backends, backend))
                    or not policy.has_another(retries, body)
                    or not may_retry(backend, counted)
                ):
                    note_attempt(x, backend, outcome, began)
                    raise
            failures.append(outcome)
            if error.retry is RetrySafety.IF_REUSED:
                wait_s = 0.0
            elif error.retry is RetrySafety.SAFE and target is not None:
                down.add(target)
        finally:
            if timer is not None:
                timer.cancel()
        note_attempt(x, backend, outcome, began)
        if following is not None or not isinstance(session, McpSession) or target in down:
            session = None  # other endpoints do not know a session of MCP: its retries stay with its own
        if following is not None:
            wait_s = 0.0
            if following is not backend:
                backend.series.failover(outcome)
        else:
            retries += 1
        if body is not None:
            body.detach()
        await pause(client, policy.pause_s(retries) if wait_s < 0 else wait_s)
        head.fields.block, head.path, x.upstream_host, head.body = block, path, host, length
        if expects_continue and body is not None and body.has_begun:
            head.expect_continue = False
            head.fields.remove(b"expect")
        if following is not None:
            backend = following
        elif session is None and owner is None:
            backend = course.first(client.wheel.now) if course is not None else route.choose()
    trail = AttemptTrail.of(x)
    if trail is not None:
        note_attempt(x, backend, str(status), began)
        if trail.is_shown:
            x.response.fields.set(ATTEMPTS_FIELD, trail.field)
    if failures:
        x.detail = f"retried after {', '.join(dict.fromkeys(failures))}"
    if body is not None:
        body.forget()
    if sessions is not None:
        assert target is not None
        sessions.keep(x, shown, backend, target)
    return upstream


def next_backend(
    course: Course,
    policy: RetryPolicy,
    x: Exchange,
    client: Client,
    backend: RouteBackend,
    error: GatewayError | None,
    tried: Collection[Target],
    body: ReplayableBody | None,
    counted: list[Endpoints],
) -> RouteBackend | None:
    """Where a Failover sends the request after this failure (None: a code); None where it has nobody left to ask, where
    the body was not kept, where the budget of the rule is used up, or where the circuit breaker of the next backend
    allows no retry.
    """
    waits = error is not None and error.reason is Reason.RESPONSE_TIMEOUT and body is not None and body.is_flowing
    following = course.next(x, backend, error, tried, client.wheel.now, waits_for_client=waits)
    if following is None or not (body is None or body.is_kept):
        return None
    return following if policy.may_spend() and may_retry(following, counted) else None


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
            self._rest = loop.call_later(backend.backend_request_s, client.end_late_attempt)
        if self._first_byte_s:
            self._handle = loop.call_later(self._first_byte_s, self._look)

    def cancel(self) -> None:
        """The answer has begun, or the attempt is over."""
        for handle in (self._handle, self._rest):
            if handle is not None:
                handle.cancel()

    def _look(self) -> None:
        body, upstream = self._body, self._client.resources.upstream
        left_s = 0.0
        if body is not None and upstream is not None:
            if body.is_flowing and not upstream.is_write_blocked:
                left_s = self._first_byte_s
            elif not body.is_flowing:
                left_s = body.whole_at + self._first_byte_s - monotonic()
        if left_s > 0:
            self._handle = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self._client.end_late_attempt()


def note_attempt(x: Exchange, backend: RouteBackend, outcome: str, began: float) -> None:
    """Add an attempt to the trail of this exchange. `began`: monotonic seconds."""
    AttemptTrail.kept_by(x).add(backend.name, outcome, monotonic() - began)


def may_retry(backend: RouteBackend, counted: list[Endpoints]) -> bool:
    """Whether the circuit breaker of this backend allows one more retry, which is added to `counted` then."""
    endpoints = backend.connector.watched if backend.connector is not None else None
    if endpoints is None or endpoints in counted:
        return True
    if not endpoints.take_retry():
        return False
    counted.append(endpoints)
    return True


def finish_earlier(x: Exchange, route: Route, chosen: Sequence[RouteBackend]) -> None:
    """Run `complete` of the filters of backends that were left for others; those of the last one run in the end."""
    last = chosen[-1]
    later = {completion.mark for place in (route, last) for completion in place.chain.complete}
    for backend in chosen:
        if backend is not last:
            finish([each for each in backend.chain.complete if each.mark not in later], x)


def kept_body(x: Exchange, client: Client, route: Route, collected: bytes | None, limit: int) -> ReplayableBody | None:
    """The request's body in a form that can be sent more than once; None where it has none. `limit` in bytes."""
    length, plan = x.request.body, route.chain.request_body
    early: BufferedRequest | None = x.notes.get(HELD) if x.notes is not None else None
    source = early or client
    if collected is not None:
        return ReplayableBody.whole(collected)
    if length == 0:
        return None

    def start(sink: BodySink) -> Reads:
        if plan is None:
            source.send_request_body_to(sink)
            return client
        body_filter = client.resources.request_filter = BodyFilter(x, plan.begin(x), sink, client, client.driver)
        source.send_request_body_to(body_filter)
        return body_filter

    return ReplayableBody(length if plan is None or plan.keeps_length else CHUNKED, start, limit)


def discard(client: Client, upstream: Upstream) -> None:
    """The answer goes nowhere. Its connection is used again if all of the answer is here, else closed."""
    if not upstream.has_ended:
        upstream.whole_body()
    client.resources.release(reusable=upstream.is_reusable)


async def pause(client: Client, seconds: float) -> None:
    """Between two attempts; the request's own time goes on. Always lets others have a turn."""
    client.end_attempt()
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    handle = loop.call_later(seconds, wake, over) if seconds > 0 else loop.call_soon(wake, over)
    try:
        await over
    finally:
        handle.cancel()


def wake(over: asyncio.Future[None]) -> None:
    """Let the waiting attempt go on."""
    if not over.done():
        over.set_result(None)
