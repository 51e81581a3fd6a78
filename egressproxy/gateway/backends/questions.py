"""What the gateway asks backends for itself: the exchange of its own, and the filters of the backend around it."""

from __future__ import annotations

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.chain import run_to_end
from egressproxy.filters.filter_step import Steps
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead


def question(x: Exchange, head: RequestHead, backend: str) -> Exchange:
    """An exchange of our own with the server, for the filters that run for it as a backend."""
    own = Exchange(x.client, x.gateway, x.listener, x.started_at, x.identity, request_id=x.request_id, backend=backend)
    own.route = x.route
    own.request = head
    own.method = head.method
    own.path = x.path
    return own


def asked_host(x: Exchange) -> bytes:
    """The Host that the client has asked for; b"" if it has named none."""
    return x.request.host or (x.authority.host_field(80) if x.authority is not None else b"")


async def passed_body(plan: BodyPlan | None, x: Exchange, body: bytes) -> bytes:
    """The whole body of an answer as its body filters leave it: a client may get it."""
    chain = plan.begin(x) if plan is not None else None
    return body if chain is None else await chain.feed_to_end(x, body, True)


async def passed(steps: Steps | None, x: Exchange) -> None:
    """Run a phase of the server's filters. Raises what they refuse with, and UpstreamFault if one responds."""
    if await run_to_end(steps, x) is not None:
        raise answered_in_its_place()


def answered_in_its_place() -> UpstreamFault:
    """The error for a filter that responds instead of the backend, where its response means nothing."""
    return UpstreamFault(Reason.FILTER_REJECTED, "a filter of the backend answered in its place")
