"""The conditions of a route at one parent. Source: Gateway API v1 RouteParentStatus, RouteConditionType."""

from __future__ import annotations

from egressproxy.config.compile.gateways.attachment import Attachment, Rejection
from egressproxy.config.compile.routes.route_validation import RouteValidation
from egressproxy.config.compile.status.conditions import Conditions

__all__ = ["set_route_conditions"]


def set_route_conditions(
    conditions: Conditions, outcome: list[Attachment] | Rejection, validation: RouteValidation
) -> None:
    """The conditions of a route at one parent (Gateway API v1, RouteConditionType)."""
    if isinstance(outcome, Rejection):
        conditions.set("Accepted", False, outcome.reason, outcome.message)
    elif validation.rules and not validation.is_served:
        conditions.set("Accepted", False, "UnsupportedValue", " ".join(validation.bad_rules))
    else:
        conditions.set("Accepted", True, "Accepted", "the route is attached.")
        closed = [plan.listener.name for plan in outcome if plan.listener.problem]
        if closed:
            conditions.add_note("Accepted", f"these listeners are not served: {', '.join(closed)}.")
        for note in validation.notes:
            conditions.add_note("Accepted", note)
    if validation.unresolved:
        reason = validation.unresolved[0][0]
        conditions.set("ResolvedRefs", False, reason, "; ".join(message for _, message in validation.unresolved))
    else:
        conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
    if validation.is_partial:
        conditions.set("PartiallyInvalid", True, "UnsupportedValue", " ".join(validation.bad_rules))
