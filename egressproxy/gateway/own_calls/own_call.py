"""The order of a call that the gateway makes itself: filters of the server, one upstream call, filters of the answer.

Unary calls (`backend_call`) and streams (`bidirectional_call`) begin here, and differ in what they do with the answer's
body.
"""

from __future__ import annotations

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.chain import Chain, run_to_end
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.own_caller import OwnCaller
from egressproxy.gateway.backends.upstream_call import HeldConnection, Repeat, call_upstream
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.upstream import Upstream


async def begin_own_call(
    caller: OwnCaller, held: HeldConnection, inner: Exchange, cluster: Cluster, chain: Chain, body: bytes | None
) -> Upstream:
    """Ask a server until the head of its answer is in `inner.response`, behind the filters of that head. Returns the
    connection, which is in `held` and has to be released. Raises GatewayError.
    """
    await _pass(chain.request_headers, inner)
    target = cluster.target(inner)
    upstream = await call_upstream(caller, held, inner, cluster, target, chain, body, Repeat.ALWAYS)
    if isinstance(upstream, LocalResponse):
        raise _answered()
    held.check_credentials(inner)
    await _pass(chain.backend_response, inner)
    return upstream


async def _pass(steps: FilterSteps | None, exchange: Exchange) -> None:
    """Run a phase of the server's filters. Raises what they refuse with, and UpstreamFault if one responds."""
    if await run_to_end(steps, exchange) is not None:
        raise _answered()


def _answered() -> UpstreamFault:
    return UpstreamFault(Reason.FILTER_REJECTED, "a filter of the backend answered in its place")
