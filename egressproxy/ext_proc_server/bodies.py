"""Which filters a body goes through, and how much of it has to be here before the backend is asked."""

from __future__ import annotations

from egressproxy.filters.body import BodyChain
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import Exchange


def limit_of_whole(route: Route, x: Exchange) -> int:
    """How many bytes the body may have, which filters of the backend need whole; -1: it may flow."""
    if route.choices:
        return route.body_limit(x)
    plan = route.chain.leg_request_body
    limits = (route.chain.needs_body, plan.limit_for(x) if plan is not None else -1)
    return min((limit for limit in limits if limit >= 0), default=-1)


def begun(plan: BodyPlan | None, x: Exchange, length: int) -> BodyChain | None:
    """The filters of a body of this length; None where there are none, or no body."""
    return plan.begin(x) if plan is not None and length != 0 else None
