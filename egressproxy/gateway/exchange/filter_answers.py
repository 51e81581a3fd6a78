"""What filters answer in place of a backend: a phase of them, and Cors to a client that is not known. Sends nothing."""

from __future__ import annotations

from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.chain import Outcome, run_to_end
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.gateway.exchange.admission import of_client, route_request
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.identity.challenges import Unauthenticated
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead


async def answer_of(
    outcome: Outcome, steps: FilterSteps, exchange: Exchange, pipeline: Pipeline
) -> LocalResponse | None:
    """Wait for a phase whose filters did not end at once: the response that one of them has made, or None."""
    answer = outcome if isinstance(outcome, LocalResponse) else await outcome
    return None if answer is None else await run_response_filters(answer, exchange, pipeline, steps)


async def run_response_filters(
    answer: LocalResponse, exchange: Exchange, pipeline: Pipeline, steps: FilterSteps | None = None
) -> LocalResponse:
    """A filter's answer as the response-headers filters leave it: they see all that a client gets, but for the answer
    of their own phase (`steps`).
    """
    place = pipeline.backend or pipeline.route
    response_filters = place.chain.response_headers if place is not None else None
    if response_filters is None or response_filters is steps:
        return answer
    exchange.response = ResponseHead(answer.status, answer.phrase, Fields.of(answer.fields))
    outcome = await run_to_end(response_filters, exchange)
    if outcome is not None:
        return outcome
    return LocalResponse(
        exchange.response.status, tuple(exchange.response.fields), answer.body, exchange.response.phrase
    )


def answer_to_browser(
    exchange: Exchange, client: Client, listener: ActiveListener, head: RequestHead, refused: Unauthenticated
) -> LocalResponse | None:
    """The answer of the route's Cors filter to a preflight request, which browsers send without a credential, on a
    reverse listener. None for all other requests, and where the route has no such filter: they stay refused, with the
    fields in `refused` that the filter adds, so that the page that has sent one may read why.

    Source: the Fetch standard, CORS-preflight fetch ("credentials mode is "same-origin"") and CORS check.
    """
    if b"origin" not in head.fields or listener.is_forward or client.tunnel is not None or exchange.authority is None:
        return None
    from egressproxy.filters.cors import Cors, is_preflight  # here: few gateways have browsers for clients

    try:
        route, _, _ = route_request(of_client(exchange, listener), exchange.authority, head)
        found = next((step for step in route.chain.request_headers or () if isinstance(step.filter, Cors)), None)
        if found is None or not isinstance(found.filter, Cors):
            return None
        if refused.reason is Reason.CREDENTIALS_REQUIRED and is_preflight(exchange):
            answer = found.call(exchange)
            if isinstance(answer, LocalResponse):
                exchange.route, exchange.series, client.pipeline.route = route.name, route.series, route
                return answer
        refused.fields += found.filter.refusal_fields(head.fields)
    except GatewayError as error:
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
    return None
