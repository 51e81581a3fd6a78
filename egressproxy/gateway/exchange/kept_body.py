"""kept_body: the body of a request in a form that can be sent more than once, for attempts that may not be the last."""

from __future__ import annotations

from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.ext_authz.buffered_body import HELD, BufferedRequest
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import CHUNKED
from egressproxy.net.flow_control import BodySink, Reads


def kept_body(
    x: Exchange, client: Client, route: Route, collected: bytes | ReplayableBody | None, limit: int
) -> ReplayableBody | None:
    """The request's body, kept up to `limit` bytes; None where it has none. Filters of the rule are before it, so that
    they see it once, however many attempts there are. `collected` is the body, where it is here already.
    """
    length, chain = x.request.body, None
    if route.chain.request_body is not None:
        chain = client.resources.request_chain
    early: BufferedRequest | None = x.notes.get(HELD) if x.notes is not None else None
    source = early or client
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
        body_filter = client.resources.request_filter = BodyFilter(x, chain, sink, client, client)
        source.send_request_body_to(body_filter)
        return body_filter

    return ReplayableBody(length if chain is None or chain.keeps_length else CHUNKED, start, limit, client)
