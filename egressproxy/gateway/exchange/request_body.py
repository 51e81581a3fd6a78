"""The body of a request: to filters that get it whole, to the backend, to mirrors, and into what keeps it.

`filters/body_plan` decides the path. This module carries it out, for single and hedged attempts alike.
"""

from __future__ import annotations

from egressproxy.filters.body_plan import BodyPath, is_short, path_of
from egressproxy.gateway.backends.buffered_body import BUFFERED_REQUEST, MADE_BODY, invite_body
from egressproxy.gateway.backends.replayable_body import (
    BodyTarget,
    ReplayableBody,
    streaming_backend_filters,
    unfiltered_body,
)
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.body_filter import BodyFilter, Collector, finished, pass_whole
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import CHUNKED, RequestHead
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.protocols.upstream import Upstream


async def read_request_body(
    exchange: Exchange, client: Client, head: RequestHead, route: Route
) -> bytes | ReplayableBody | None:
    """The filtered body, where a filter gets it whole or a filter of the head has collected it; None where it is still
    to come, through `pipeline.request_chain`. Raises what a filter refuses with.
    """
    pipeline, plan = client.pipeline, route.chain.request_body
    chosen = plan.choose(exchange) if plan is not None else None
    limit = route.body_limit(exchange) if route.backend_body_plans else route.needs_body
    path = path_of(chosen, head.fields, limit, is_alone=route.filters_alone)
    if path == BodyPath.WHOLE and chosen is not None:
        whole = None if head.expect_continue else client.take_request_body()
        if whole is None and is_short(chosen, head.body):
            short = Collector(client.driver)
            invite_body(client, head)
            client.send_request_body_to(short)
            whole = await short.whole()
        if whole is not None:
            outcome = pass_whole(client, exchange, chosen, whole)
            return outcome if isinstance(outcome, bytes) else await finished(outcome)
        path = BodyPath.BUFFERED
    chain = pipeline.request_chain = plan.chain(exchange, chosen) if plan is not None and chosen is not None else None
    if path != BodyPath.BUFFERED and not route.buffers_request:
        return None
    held, made = exchange.take(BUFFERED_REQUEST), exchange.take(MADE_BODY)
    early = held.body if held is not None else made
    if chain is None and (limit < 0 or (early is not None and len(early) <= limit)):
        return early
    pipeline.request_chain = None
    collector = Collector(client.driver, client, limit)
    sink: BodyFilter | Collector = collector
    if chain is not None:
        sink = pipeline.request_filter = BodyFilter(exchange, chain, collector, client, client)
    if early is None:
        invite_body(client, head)
        (held or client).send_request_body_to(sink)
    else:
        client.hold_bytes(-len(early))  # the sink holds it now
        sink.send_body(early)
        sink.end_body(b"")
    body = await collector.whole()
    return ReplayableBody.whole(body, collector.trailers) if collector.trailers else body


def kept_body(
    exchange: Exchange, client: Client, route: Route, collected: bytes | ReplayableBody | None, limit: int
) -> ReplayableBody | None:
    """The request's body, kept up to `limit` bytes to be sent again; None where it has none. Filters of the rule are
    before it, so that they see it once, however many attempts there are. `collected`: the body, if it is here already.
    """
    length, chain = exchange.request.body, None
    if route.chain.request_body is not None:
        chain = client.pipeline.request_chain
    source = exchange.state.get(BUFFERED_REQUEST) or client
    if isinstance(collected, ReplayableBody):
        return collected
    if collected is not None:
        return ReplayableBody.whole(collected)
    if length == 0:
        return None

    def start(sink: BodySink) -> Reads:
        if chain is None:
            source.send_request_body_to(sink)
            return client
        body_filter = client.pipeline.request_filter = BodyFilter(exchange, chain, sink, client, client)
        source.send_request_body_to(body_filter)
        return body_filter

    return ReplayableBody(length if chain is None or chain.keeps_length else CHUNKED, start, limit, client)


def send_request(
    client: Client, driver: Driver, backend: RouteBackend | None, exchange: Exchange, upstream: Upstream,
    body: bytes | ReplayableBody | None, pseudonym: bytes,
) -> None:  # fmt: skip
    """The head to this backend (it is chosen), and the body: at once where we have it, else as the client sends it.
    `body`: what the attempt sends where that is known or kept. `driver` waits for the response.
    """
    head, pipeline = exchange.request, client.pipeline
    mirrors, is_filtered = pipeline.mirror_requests, pipeline.route.filters_request  # type: ignore[union-attr]  # set before ENTER_GATE
    if mirrors is None:
        if body is None and not (is_filtered and head.body != 0):
            upstream.begin(driver, head)
            upstream.send_head(head, exchange.upstream_host, pseudonym)
            if head.body != 0:
                upstream.feed_from(client)
                client.send_request_body_to(upstream)
            return
        if body and isinstance(body, bytes):
            head.body = len(body)
            upstream.begin(driver, head)
            upstream.send_whole(head, exchange.upstream_host, pseudonym, body)
            return
    assert backend is not None
    kept = chain = filters = None
    if isinstance(body, bytes):
        head.body = len(body)
    else:
        if body is not None:
            kept = body
            kept.drop_trailers(backend.chain.stops_backend_trailers)
            head.body = kept.length
        elif head.body != 0 and is_filtered:
            chain = pipeline.request_chain
        filters = streaming_backend_filters(exchange, backend.chain)
        if not (chain is None or chain.keeps_length) or not (filters is None or filters.keeps_length):
            head.body = CHUNKED
    upstream.begin(driver, head)
    upstream.send_head(head, exchange.upstream_host, pseudonym)
    target: BodyTarget = upstream  # takes the body of this attempt
    if filters is not None:
        own = BodyFilter(exchange, filters, upstream, client, client)
        before, pipeline.backend_filter = pipeline.backend_filter, own
        pipeline.request_filter = pipeline.request_filter or own  # `Accounting.account` looks at that one alone
        if before is not None:
            before.release()  # of the attempt before
        target = own
        upstream.feed_from(own)
    sink: BodySink = target  # takes what is sent, for mirrors, too
    if mirrors is not None:
        pipeline.mirror_requests = None
        unfiltered = unfiltered_body(exchange, backend.chain)
        if unfiltered is not None:
            mirrors.begin_whole(*unfiltered)
        else:
            mirrors.begin(head, kept if kept is not None else target)
            sink = mirrors
            if head.body != 0:
                pipeline.when_complete(mirrors.end)
    if head.body == 0:
        return
    if isinstance(body, bytes):
        sink.send_body(body)
        sink.end_body(b"")
    elif kept is not None:
        kept.send_to(target, kept if sink is target else sink)
    else:
        source: Reads = client
        if chain is not None:
            source = sink = pipeline.request_filter = BodyFilter(exchange, chain, sink, client, client)
        target.feed_from(source)
        client.send_request_body_to(sink)
