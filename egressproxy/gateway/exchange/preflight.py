"""CORS preflight requests of clients that have to be known: browsers send them without credentials. The Cors filter of
the route answers them, and nothing else of the route sees them; every other request without a credential is refused.

Source: the Fetch standard, CORS-preflight fetch ("credentials mode is "same-origin"").
"""

from __future__ import annotations

from egressproxy.errors import GatewayError, Reason
from egressproxy.gateway.exchange.admission import of_client, route_request
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.identity.challenges import Unauthenticated
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.message import RequestHead

__all__ = ["answer_to_preflight"]


def answer_to_preflight(
    x: Exchange, client: Client, listener: ActiveListener, head: RequestHead, refused: Unauthenticated
) -> LocalResponse | None:
    """The answer of the route's Cors filter to a preflight request without a credential, on a reverse listener. None
    for all other requests, and where the route has no such filter: they stay refused.
    """
    if refused.reason is not Reason.CREDENTIALS_REQUIRED or head.method != b"OPTIONS" or listener.is_forward:
        return None
    if client.tunnel is not None or x.authority is None:
        return None
    from egressproxy.filters.cors import CORS  # here: few gateways have browsers for clients

    try:
        route, _, _ = route_request(of_client(x, listener), x.authority, head)
        for step in route.chain.request_headers or ():
            if step.spec.type == CORS.name:
                answer = step.call(x)
                if isinstance(answer, LocalResponse):
                    x.route, x.series, client.resources.route = route.name, route.series, route
                    return answer
    except GatewayError as error:
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
    return None
