"""CORS where clients have to be known. Browsers send preflight requests without credentials: the Cors filter of the
route answers them, and nothing else of the route sees them. Every other request without a credential is refused, and
the page that has sent it may read that if the filter allows its origin.

Source: the Fetch standard, CORS-preflight fetch ("credentials mode is "same-origin"") and CORS check.
"""

from __future__ import annotations

from egressproxy.errors import GatewayError, Reason
from egressproxy.gateway.exchange.admission import of_client, route_request
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.identity.challenges import Unauthenticated
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead


def answer_to_browser(
    x: Exchange, client: Client, listener: ActiveListener, head: RequestHead, refused: Unauthenticated
) -> LocalResponse | None:
    """The answer of the route's Cors filter to a preflight request without a credential, on a reverse listener. None
    for all other requests, and where the route has no such filter: they stay refused, with the fields in `refused`
    that the filter adds.
    """
    if b"origin" not in head.fields or listener.is_forward or client.tunnel is not None or x.authority is None:
        return None
    from egressproxy.filters.cors import Cors, is_preflight  # here: few gateways have browsers for clients

    try:
        route, _, _ = route_request(of_client(x, listener), x.authority, head)
        found = next((step for step in route.chain.request_headers or () if isinstance(step.filter, Cors)), None)
        if found is None or not isinstance(found.filter, Cors):
            return None
        if refused.reason is Reason.CREDENTIALS_REQUIRED and is_preflight(x):
            answer = found.call(x)
            if isinstance(answer, LocalResponse):
                x.route, x.series, client.resources.route = route.name, route.series, route
                return answer
        refused.fields += found.filter.refusal_fields(head.fields)
    except GatewayError as error:
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
    return None
