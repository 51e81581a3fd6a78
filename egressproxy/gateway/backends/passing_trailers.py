"""What goes on of trailers behind filters of the body (RFC 9110 section 6.5)."""

from __future__ import annotations

from egressproxy.filters.body import BodyChain
from egressproxy.protocols.grpc.statuses import grpc_trailers
from egressproxy.protocols.http1.chunked import late_fields


def passing_trailers(chain: BodyChain, came: bytes, left: bytes) -> bytes:
    """What goes on of the trailers that came, and of which the filters of the body have left this."""
    passing = late_fields(left) if chain.lets_trailers else grpc_trailers(left, with_text=chain.lets_status_text)
    if not grpc_trailers(passing, with_text=False):
        passing += grpc_trailers(came, with_text=False)  # without a status no call ends
    return passing
