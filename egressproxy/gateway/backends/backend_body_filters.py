"""The leg of one backend: the body filters that run for it alone, once for each attempt.

They get the body as the filters of the rule have left it, and what they return is sent to this backend and no other:
mirrors and further attempts begin with what has come in.
"""

from __future__ import annotations

from typing import Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters.base import REQUEST_TRAILERS
from egressproxy.filters.body import BodyChain
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.protocols.grpc.statuses import grpc_trailers
from egressproxy.protocols.http1.chunked import late_fields

#: The chain for a body that flows; a whole body as it was before the chain, and its trailers.
_FLOWING: Final[StateSlot[BodyChain]] = StateSlot("leg of the backend")
_UNFILTERED: Final[StateSlot[tuple[bytes, bytes]]] = StateSlot("body before the leg")


async def filtered_backend_body(
    exchange: Exchange, chain: Chain, body: bytes | ReplayableBody | None, *, may_flow: bool
) -> bytes | ReplayableBody | None:
    """What this attempt sends of `body`, where the chain has body filters of its own. A body that flows goes through
    `streaming_backend_filters`, as far as its caller `may_flow`.

    Raises what a filter refuses with, and GatewayFault (502) for a body that would go past it.
    """
    plan = chain.backend_request_body
    trailers = b""
    if isinstance(body, ReplayableBody):
        whole, trailers = body.given, body.given_trailers
    else:
        whole = body
    exchange.take(_FLOWING)
    exchange.take(_UNFILTERED)
    exchange.take(REQUEST_TRAILERS)  # those that the filters of the rule have seen
    if plan is None or (exchange.request.body == 0 and not whole):
        return body
    filters = plan.begin(exchange)
    if filters is None:
        return body
    if whole is not None:
        exchange.keep(_UNFILTERED, (whole, trailers))
        if not trailers:
            return await filters.feed_to_end(exchange, whole, True)
        filters.expect_trailers(exchange, trailers)
        filtered = await filters.feed_to_end(exchange, whole, True)
        outcome = filters.run_trailers(exchange, trailers)
        left = outcome if isinstance(outcome, bytes) else await outcome
        return ReplayableBody.whole(filtered, forwarded_trailers(filters, trailers, left))
    if not may_flow:
        if filters.is_empty:
            return body
        message = f"a filter of backend {exchange.backend} needs the body, which is not here"
        raise GatewayFault(Reason.FILTER_FAILED, message, status=502)
    exchange.keep(_FLOWING, filters)
    return body


def streaming_backend_filters(exchange: Exchange, chain: Chain) -> BodyChain | None:
    """The filters of the backend (with this `chain`) that the body of this attempt flows through; None: none."""
    return exchange.take(_FLOWING) if chain.backend_request_body is not None else None


def unfiltered_body(exchange: Exchange, chain: Chain) -> tuple[bytes, bytes] | None:
    """The whole body before the filters of the backend (with this `chain`), and its trailers; None: none had it."""
    return exchange.state.get(_UNFILTERED) if chain.backend_request_body is not None else None


def forwarded_trailers(chain: BodyChain, came: bytes, left: bytes) -> bytes:
    """The trailers to forward: those that came, minus those that filters of the body removed (RFC 9110 section 6.5)."""
    passing = late_fields(left) if chain.lets_trailers else grpc_trailers(left, with_text=chain.lets_status_text)
    if not grpc_trailers(passing, with_text=False):
        passing += grpc_trailers(came, with_text=False)  # without a status no call ends
    return passing
