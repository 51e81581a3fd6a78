"""What a phase of filters has found: a response of its own, or nothing. Sends nothing."""

from __future__ import annotations

from egressproxy.filters.chain import Outcome, run_to_end
from egressproxy.filters.filter_step import Steps
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead


async def answer_of(outcome: Outcome, steps: Steps, x: Exchange, resources: HeldResources) -> LocalResponse | None:
    """Wait for a phase whose filters did not end at once: the response that one of them has made, or None."""
    answer = outcome if isinstance(outcome, LocalResponse) else await outcome
    return None if answer is None else await dressed(answer, x, resources, steps)


async def dressed(
    answer: LocalResponse, x: Exchange, resources: HeldResources, steps: Steps | None = None
) -> LocalResponse:
    """A filter's answer as the response-headers filters leave it: they see all that a client gets.

    `steps`: the phase that has answered; a phase does not see its own answer.
    """
    place = resources.backend or resources.route
    dressing = place.chain.response_headers if place is not None else None
    if dressing is None or dressing is steps:
        return answer
    x.response = ResponseHead(answer.status, answer.phrase, Fields.of(answer.fields))
    outcome = await run_to_end(dressing, x)
    if outcome is not None:
        return outcome
    return LocalResponse(x.response.status, tuple(x.response.fields), answer.body, x.response.phrase)
