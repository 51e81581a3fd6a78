"""Attempts: how a request of a rule with a RetryPolicy reaches a backend.

Where a rule has none, the conductor makes its one attempt itself, and nothing here is asked. With one each attempt
chooses a backend and an endpoint again, starts from the client's request, and has that backend's filters and
credentials and no other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from egressproxy.errors import RetrySafety, UpstreamFault
from egressproxy.filters.chain import finish
from egressproxy.gateway.backends.dial_targets import Target
from egressproxy.gateway.backends.mirror_copy import copies_of
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.retries import RetryPolicy, may_go_again, untried
from egressproxy.gateway.backends.route_backend import EXACT_BELOW_S, RouteBackend
from egressproxy.gateway.backends.upstream_call import call_upstream
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.route import Route
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
    try:
        return await _reach(policy, x, client, route, collected, chosen)
    finally:
        if timer is not None:
            timer.cancel()
        if len(chosen) > 1 and x.notes is not None:
            finish_earlier(x, route, chosen)


async def _reach(
    policy: RetryPolicy, x: Exchange, client: Client, route: Route, collected: bytes | None,
    chosen: list[RouteBackend],
) -> Upstream | LocalResponse:  # fmt: skip
    head, resources, sessions = x.request, client.resources, policy.sessions
    block, path, host, length = head.fields.block, head.path, x.upstream_host, head.body
    expects_continue = head.expect_continue
    body = kept_body(x, client, route, collected) if policy.attempts or sessions is not None else None
    shown = session = sessions.find(x) if sessions is not None else None
    tried: set[Target] = set()
    down: set[Target] = set()  # those of them that could not be connected to
    failures: list[str] = []
    retries = 0
    policy.count_request()
    while True:
        backend = resources.backend = session.backend if session is not None else route.choose()
        chosen.append(backend)
        if backend.denied is not None:
            backend.note_denied(x)
        x.backend = backend.name
        x.series = backend.series
        if backend.mirrors is not None and not failures:
            resources.copies = copies_of(backend.mirrors, x)
        timer = None
        try:
            target = session.target(x) if session is not None else untried(backend, x, tried, down)
            tried.add(target)
            if 0 < backend.backend_request_s < EXACT_BELOW_S:  # the wheel of timers may be late by all of it
                timer = asyncio.get_running_loop().call_later(backend.backend_request_s, client.end_late_attempt)
            upstream = await call_upstream(
                client,
                x,
                backend.connector,  # type: ignore[arg-type]  # the target is of it
                target,
                backend.chain,
                body or collected,
                policy.repeat,
            )
            if isinstance(upstream, LocalResponse):
                return upstream
            status = x.response.status
            if status not in policy.codes or backend.has_parent or not policy.has_another(retries, body):
                break
            failures.append(f"status {status}")
            discard(client, upstream)
            is_stale = False
        except UpstreamFault as error:
            # The endpoint of a session is gone: it moves, whether or not the rule has retries.
            moves = session is not None and error.retry is RetrySafety.SAFE and (body is None or body.is_kept)
            if moves and not policy.attempts:
                retries -= 1
            elif not (moves or may_go_again(x, error, route.backends, backend)) or not policy.has_another(
                retries, body
            ):
                raise
            failures.append(error.reason.value)
            is_stale = error.retry is RetrySafety.IF_REUSED
            if error.retry is RetrySafety.SAFE:
                down.add(target)
        finally:
            if timer is not None:
                timer.cancel()
        session = None
        retries += 1
        if body is not None:
            body.detach()
        await pause(client, 0.0 if is_stale else policy.pause_s(retries))
        head.fields.block, head.path, x.upstream_host, head.body = block, path, host, length
        if expects_continue and body is not None and body.has_begun:
            head.expect_continue = False
            head.fields.remove(b"expect")
    if failures:
        x.detail = f"retried after {', '.join(dict.fromkeys(failures))}"
    if sessions is not None:
        sessions.keep(x, shown, backend, target)
    return upstream


def finish_earlier(x: Exchange, route: Route, chosen: Sequence[RouteBackend]) -> None:
    """Run `complete` of the filters of backends that were left for others; those of the last one run in the end."""
    last = chosen[-1]
    later = {completion.mark for place in (route, last) for completion in place.chain.complete}
    for backend in chosen:
        if backend is not last:
            finish([each for each in backend.chain.complete if each.mark not in later], x)


def kept_body(x: Exchange, client: Client, route: Route, collected: bytes | None) -> ReplayableBody | None:
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
        body_filter = client.resources.request_filter = BodyFilter(x, plan.begin(x), sink, client, client.driver)
        client.send_request_body_to(body_filter)
        return body_filter

    return ReplayableBody(length if plan is None or plan.keeps_length else CHUNKED, start)


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
    if not over.done():
        over.set_result(None)
