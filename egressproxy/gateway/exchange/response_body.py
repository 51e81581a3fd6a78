"""The response to a client: its head, and its body on the path that `filters/body_plan` has decided.

With no body filter the two connections are joined. Where a filter gets the body whole, the head waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from egressproxy.errors import GatewayError, UpstreamFault
from egressproxy.filters.body import BodyChain
from egressproxy.filters.body_plan import BodyPath, BodyPlan, path_of
from egressproxy.gateway.answers import Answer, WholeAnswer
from egressproxy.gateway.exchange.body_filter import BodyFilter, Collector, finished, pass_whole
from egressproxy.gateway.exchange.client import Client
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import CHUNKED
from egressproxy.net.driver import PAUSE, Driver


class Server(Protocol):
    """What the process says in every response."""

    pseudonym: bytes  # our name in Via
    ends_connections: bool  # each with the response under way


def begin_response(
    server: Server, exchange: Exchange, client: Client, chain: BodyChain | None, upstream: Answer,
    body: bytes | None = None,
) -> bool:  # fmt: skip
    """Send the head of `exchange.response`, and the body if all of it is here (`body`, where filters have made it).
    Returns whether that is the whole response; its connection is released then.
    """
    request = exchange.request
    pipeline = client.pipeline
    if chain is not None and not chain.keeps_length:
        exchange.response.body = CHUNKED
    close = pipeline.close = (
        pipeline.close
        or request.connection_close
        or server.ends_connections
        or client.state.is_closed
        or (client.has_ended and client.is_last)
    )
    if body is None:
        if upstream.has_ended:
            body = b""
        elif chain is None:
            body = upstream.whole_body()
    client.send_response(exchange.response, request, server.pseudonym, body, close=close)
    if client.call is not None:
        client.call.begin_response(exchange, exchange.response, body)
    exchange.status = exchange.response.status  # not before: what cannot be written is answered 500
    if body is None:
        exchange.first_byte_at = monotonic()
        return False
    pipeline.release(reusable=upstream.is_reusable())
    return True


async def relay_response(exchange: Exchange, client: Client, chain: BodyChain | None, upstream: Answer) -> None:
    """The body as it comes, to its end."""
    pipeline = client.pipeline
    if chain is None:
        upstream.send_response_body_to(client)
        client.feed_from(upstream)
        await upstream.response_end()
    else:
        body_filter = pipeline.response_filter = BodyFilter(exchange, chain, client, upstream, client)
        upstream.send_response_body_to(body_filter)
        client.feed_from(body_filter)
        await upstream.response_end()
        while not body_filter.is_over or body_filter.has_failed:
            await PAUSE
    pipeline.release(reusable=upstream.is_reusable())


async def filter_response(server: Server, exchange: Exchange, client: Client, plan: BodyPlan, upstream: Answer) -> None:
    """Send the response through those body filters that do not let it pass unread. Raises GatewayError of a filter."""
    chosen, response = None, exchange.response
    if response.body == CHUNKED:
        response.body = upstream.settle_length() or CHUNKED  # what is here whole is filtered like any other
    if response.body != 0:
        chosen = plan.choose(exchange)
    elif exchange.method == b"HEAD" or response.status == 304:
        plan.describe(exchange)
    path = path_of(chosen, response.fields)
    whole = upstream.whole_body() if path == BodyPath.WHOLE and not upstream.has_ended else None
    chain = plan.chain(exchange, chosen) if chosen is not None and whole is None else None
    if chosen is None or path == BodyPath.STREAM:
        if not begin_response(server, exchange, client, chain, upstream):
            await relay_response(exchange, client, chain, upstream)
        return
    trailers = b""
    try:
        if chain is None:
            outcome = pass_whole(client, exchange, chosen, whole or b"", upstream)
            body = outcome if isinstance(outcome, bytes) else await finished(outcome)
        else:
            collector = Collector(client.driver, client, -1, upstream)
            body_filter = client.pipeline.response_filter = BodyFilter(exchange, chain, collector, upstream, client)
            upstream.send_response_body_to(body_filter)
            await upstream.response_end()
            body, trailers = await collector.whole(), collector.trailers
    except GatewayError as error:
        if not isinstance(error, UpstreamFault) and upstream.is_reusable():
            client.pipeline.release(reusable=True)  # a filter has refused what the backend has said to its end
        raise
    if response.status in (204, 304):  # a filter has made it one, which has no body (RFC 9110 section 6.4.1)
        body = trailers = b""
    response.body = CHUNKED if trailers else len(body)
    answer = WholeAnswer(upstream, body, trailers) if trailers else upstream
    if not begin_response(server, exchange, client, None, answer, None if trailers else body):
        await relay_response(exchange, client, None, answer)


@dataclass(slots=True, eq=False, repr=False)
class Room:
    """A stand-in for a source: it resumes a driver when the other side has taken what was sent."""

    _driver: Driver

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None:
        self._driver.resume()


async def wait_until_taken(client: Client) -> None:
    """Wait until the client has taken what was held of the answer, or most of it: until then it is held."""
    client.clock.end_attempt(client)
    client.feed_from(Room(client.driver))
    while client.is_write_blocked:
        await PAUSE
