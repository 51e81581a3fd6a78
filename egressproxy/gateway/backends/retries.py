"""Attempts: how a request of a rule with retries, session persistence or times below a second reaches a backend; and
one of a rule with a backend that policy would deny, were it not in Report mode.

Where a rule has none of them, the conductor makes its one attempt itself, and nothing here is asked. With them each
attempt chooses a backend and an endpoint again, starts from the client's request, and has that backend's filters and
credentials and no other's.

What goes again (GEP-1731; RFC 9110 section 9.2.2):

* always, where nothing of the request was sent: no connection came about;
* where a backend may have seen it (its connection broke, its time was over): an idempotent method;
* where a backend has answered with one of the rule's codes: every method, since the rule says so;
* toward a parent only what it has not seen: it has retries of its own, and each of its attempts would be one of each
  of ours;

and never without the whole body, nor when the client has the head of an answer. The replacement of an idle connection
that had died is one of the rule's attempts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.filters.chain import finish
from egressproxy.gateway.backends.dial_targets import Target
from egressproxy.gateway.backends.mirror import copies_of
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.session_persistence import PersistentSessions
from egressproxy.gateway.exchange.admission import note_denied
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.gateway.snapshot import EXACT_BELOW_S, Route, RouteBackend
from egressproxy.ir.policy import RetryBudgetIR, RetryIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import CHUNKED
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.protocols.http1.upstream import UpstreamConnection

if TYPE_CHECKING:
    from egressproxy.gateway.exchange.conductor import Conductor

__all__ = ["NO_RETRIES", "Attempts", "Budget"]

NO_RETRIES = RetryIR(0)
#: RFC 9110 section 9.2.2, without those that are never forwarded.
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
#: Why statuses of a parent are believed.
PARENT_RETRIES = "the parent retries for itself"
#: What asking the same place again will not change.
SETTLED = frozenset((Reason.DNS_NXDOMAIN, Reason.DNS_NO_ADDRESS, Reason.NO_ENDPOINT, Reason.TLS_CERTIFICATE))


class Attempts:
    """What a rule says of retries, sessions and short times. One per route; keeps nothing of an exchange."""

    __slots__ = ("_budget", "_codes", "_retry", "_sessions")

    def __init__(self, retry: RetryIR, sessions: PersistentSessions | None, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._retry = retry
        self._codes = frozenset(retry.codes)
        self._sessions = sessions
        self._budget = Budget(retry.budget, now) if retry.budget is not None else None

    @property
    def counts_stale(self) -> bool:
        """Whether the replacement of a stale connection is one of its attempts; else the conductor's own affair."""
        return self._retry is not NO_RETRIES

    def notes(self, choices: Sequence[RouteBackend] = ()) -> list[str]:
        """What it does for these backends, in sentences for people."""
        notes, retry = [], self._retry
        if retry.attempts:
            are_applied = not choices or not all(map(has_parent, choices))
            codes = f", and after {', '.join(map(str, retry.codes))}" if retry.codes and are_applied else ""
            times = "once more" if retry.attempts == 1 else f"up to {retry.attempts} times more"
            notes.append(f"a request goes again {times} where its backend cannot be reached or is too slow{codes}")
            behind = sorted({choice.backend for choice in choices if has_parent(choice)})
            if behind:
                notes.append(
                    f"toward the parent of {', '.join(behind)} only connections are tried again: {PARENT_RETRIES}"
                )
        if self._sessions is not None:
            notes.append(f"a client that shows {self._sessions.shown_as} goes back to the backend that it had")
        return notes

    async def reach(
        self, conductor: Conductor, x: Exchange, client: ClientConnection, route: Route, collected: bytes | None
    ) -> UpstreamConnection | None:
        """Attempt after attempt, until `x.response` is there. None: a filter has answered.

        Raises what the last attempt raised.
        """
        timer = None
        if 0 < route.request_s < EXACT_BELOW_S:
            left_s = max(0.0, x.started_at + route.request_s - monotonic())
            timer = asyncio.get_running_loop().call_later(left_s, client.end_late_request)
        chosen: list[RouteBackend] = []
        try:
            return await self._reach(conductor, x, client, route, collected, chosen)
        finally:
            if timer is not None:
                timer.cancel()
            if len(chosen) > 1 and x.notes is not None:
                finish_earlier(x, route, chosen)

    async def _reach(
        self, conductor: Conductor, x: Exchange, client: ClientConnection, route: Route, collected: bytes | None,
        chosen: list[RouteBackend],
    ) -> UpstreamConnection | None:  # fmt: skip
        head, life, sessions = x.request, client.life, self._sessions
        block, path, host, length = head.fields.block, head.path, x.upstream_host, head.body
        expects_continue = head.expect_continue
        body = kept_body(x, client, route, collected) if self._retry.attempts or sessions is not None else None
        shown = session = sessions.find(x) if sessions is not None else None
        tried: set[Target] = set()
        down: set[Target] = set()  # those of them that could not be connected to
        failures: list[str] = []
        retries = 0
        if self._budget is not None:
            self._budget.count_request()
        while True:
            choice = life.choice = session.choice if session is not None else route.choose()
            chosen.append(choice)
            if choice.denied is not None:
                note_denied(x, choice)
            x.backend = choice.backend
            x.series = choice.series
            if choice.mirrors is not None and not failures:
                life.copies = copies_of(choice.mirrors, x)
            try:
                target = session.target(x) if session is not None else untried(choice, x, tried, down)
                tried.add(target)
                upstream = await in_time(conductor, x, client, choice, target, body or collected)
                if upstream is None:
                    return None
                status = x.response.status
                if status not in self._codes or has_parent(choice) or not self._has_another(retries, body):
                    break
                failures.append(f"status {status}")
                discard(client, upstream)
                is_stale = False
            except UpstreamFault as error:
                # The endpoint of a session is gone: it moves, whether or not the rule has retries.
                moves = session is not None and error.retry is RetrySafety.SAFE and (body is None or body.is_kept)
                if moves and not self._retry.attempts:
                    retries -= 1
                elif not (moves or may_go_again(x, error, route, choice)) or not self._has_another(retries, body):
                    raise
                failures.append(error.reason.value)
                is_stale = error.retry is RetrySafety.IF_REUSED
                if error.retry is RetrySafety.SAFE:
                    down.add(target)
            session = None
            retries += 1
            if body is not None:
                body.detach()
            await pause(client, 0.0 if is_stale else self._pause_s(retries))
            head.fields.block, head.path, x.upstream_host, head.body = block, path, host, length
            if expects_continue and body is not None and body.has_begun:
                head.expect_continue = False
                head.fields.remove(b"expect")
        if failures:
            x.detail = f"retried after {', '.join(dict.fromkeys(failures))}"
        if sessions is not None:
            sessions.keep(x, shown, choice, target)
        return upstream

    def _has_another(self, retries: int, body: ReplayableBody | None) -> bool:
        """Whether the rule, its budget and the body allow one more."""
        if retries >= self._retry.attempts or not (body is None or body.is_kept):
            return False
        return self._budget is None or self._budget.take()

    def _pause_s(self, retries: int) -> float:
        """At least the backoff; its upper bound doubles each time. Spread, so that clients do not come back at once."""
        least = self._retry.backoff_s
        return random.uniform(least, min(least * 2.0 ** min(retries, 30), self._retry.max_backoff_s))  # noqa: S311

    def __repr__(self) -> str:
        return f"Attempts({self._retry.attempts} retries, {self._sessions})"


class Budget:
    """At most a share of the requests of an interval goes again: retries must not become the load that ends a backend.

    Counts whole intervals; the one before counts with the part of it that is younger than an interval.
    """

    __slots__ = ("_before", "_began", "_now", "_requests", "_retries", "_spec")

    def __init__(self, spec: RetryBudgetIR, now: Callable[[], float]) -> None:
        self._spec = spec
        self._now = now
        self._began = now()
        self._requests = self._retries = 0
        self._before = (0, 0)

    def count_request(self) -> None:
        self._roll()
        self._requests += 1

    def take(self) -> bool:
        """Whether one more retry may be made; if so it is counted."""
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

    def __repr__(self) -> str:
        return f"Budget({self._retries} of {self._requests})"


def finish_earlier(x: Exchange, route: Route, chosen: Sequence[RouteBackend]) -> None:
    """Run `complete` of the filters of backends that were left for others; those of the last one run in the end."""
    last = chosen[-1]
    later = {completion.mark for place in (route, last) for completion in place.chain.complete or ()}
    for choice in chosen:
        if choice is not last:
            finish([each for each in choice.chain.complete or () if each.mark not in later], x)


def kept_body(x: Exchange, client: ClientConnection, route: Route, collected: bytes | None) -> ReplayableBody | None:
    """The request's body in a form that can be sent more than once; None where it has none."""
    length, plan = x.request.body, route.chain.request_body
    if collected is not None:
        return ReplayableBody.whole(collected)
    if length == 0:
        return None

    def start(sink: BodySink) -> Reads:
        if plan is None:
            client.send_request_body_to(sink)
            return client
        body_filter = client.life.request_filter = BodyFilter(x, plan.begin(x), sink, client, client.driver)
        client.send_request_body_to(body_filter)
        return body_filter

    return ReplayableBody(length if plan is None or plan.keeps_length else CHUNKED, start)


def untried(choice: RouteBackend, x: Exchange, tried: Collection[Target], down: Collection[Target]) -> Target:
    """The next endpoint in turn that was not tried for this request; where all were, one that was not found down."""
    connector = choice.connector
    assert connector is not None
    target = connector.target(x)
    for avoided in (tried, down):
        for _ in connector.endpoints:
            if target not in avoided:
                return target
            target = connector.target(x)
    return target


async def in_time(
    conductor: Conductor, x: Exchange, client: ClientConnection, choice: RouteBackend, target: Target,
    body: bytes | ReplayableBody | None,
) -> UpstreamConnection | None:  # fmt: skip
    """One attempt. A short time for it is kept to the millisecond: the wheel of timers may be late by all of it."""
    if not 0 < choice.backend_request_s < EXACT_BELOW_S:
        return await conductor.reach_backend(x, client, choice, target, body)
    timer = asyncio.get_running_loop().call_later(choice.backend_request_s, client.end_late_attempt)
    try:
        return await conductor.reach_backend(x, client, choice, target, body)
    finally:
        timer.cancel()


def may_go_again(x: Exchange, error: UpstreamFault, route: Route, choice: RouteBackend) -> bool:
    """Whether this failure leaves it open that another attempt does better, and does no harm."""
    if error.reason in SETTLED:
        has_others = choice.connector is not None and len(choice.connector.endpoints) > 1
        return has_others or len(route.choices) > 1
    if error.retry is RetrySafety.SAFE:
        return True
    if has_parent(choice):
        return x.method in IDEMPOTENT and error.retry is RetrySafety.IF_REUSED
    return x.method in IDEMPOTENT and (
        error.retry is not RetrySafety.NEVER or error.reason is Reason.UPSTREAM_INCOMPLETE
    )


def has_parent(choice: RouteBackend) -> bool:
    """Whether this backend is reached through another gateway."""
    return choice.connector is not None and choice.connector.parent is not None


def discard(client: ClientConnection, upstream: UpstreamConnection) -> None:
    """The answer goes nowhere. Its connection is used again if all of the answer is here, else closed."""
    if not upstream.has_ended:
        upstream.whole_body()
    client.life.release(reusable=upstream.is_reusable)


async def pause(client: ClientConnection, seconds: float) -> None:
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
    if not over.done():
        over.set_result(None)
