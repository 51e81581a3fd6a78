"""A rule as filters have narrowed it for one request: without what they exclude, the preferred backend first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from egressproxy.errors import Denied, Reason
from egressproxy.gateway.backends.failover import FailoverGroup
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import Exchange

#: The narrowed forms of one rule that are kept: filters ask for the same few over and over.
MAX_KEPT: Final = 64


def narrowed(route: Route, x: Exchange) -> Route:
    """The rule that serves this exchange: `route` itself where no filter has asked for another choice of its backends.

    Names of backends that the rule does not have change nothing. Raises Denied (403) where every one is excluded.
    """
    choice = x.backend_choice
    if choice is None:
        return route
    names = {backend.name for backend in (*route.backends, *route.choices)}
    excluded = frozenset(names & choice.excluded)
    preferred = choice.preferred if choice.preferred in names - excluded else ""
    if not (excluded or preferred):
        return route
    if excluded == names:
        message = "a filter excludes every backend of this route for this request"
        raise Denied(Reason.FILTER_REJECTED, message, rule=route.rule)
    kept = route.narrowed.get((excluded, preferred))
    if kept is None:
        kept = _made(route, excluded, preferred)
        if len(route.narrowed) < MAX_KEPT:
            route.narrowed[excluded, preferred] = kept
    return kept


def _made(route: Route, excluded: frozenset[str], preferred: str) -> Route:
    groups: dict[FailoverGroup, FailoverGroup | None] = {}
    failovers: dict[RouteBackend, FailoverGroup] = {}
    for backend, group in (route.failovers or {}).items():
        if group not in groups:
            groups[group] = _group(group, excluded, preferred)
        left = groups[group]
        if left is not None:
            failovers[backend] = left
    choices = []
    for choice in route.choices:
        left = failovers.get(choice)
        if route.failover_of(choice) is left:
            if choice.name not in excluded:
                choices.append(choice)
        elif left is not None:
            leader = replace(left.endpoints[0], weight=choice.weight)
            failovers[leader] = left
            choices.append(leader)
    chosen = tuple(_preferred(choices, failovers, preferred) or choices)
    return route.narrowed_to(excluded, chosen, failovers or None)


def _group(group: FailoverGroup, excluded: frozenset[str], preferred: str) -> FailoverGroup | None:
    """Without what is excluded; None where nothing is left. The preferred endpoint is asked before all others."""
    left = [endpoint for endpoint in group.endpoints if endpoint.name not in excluded]
    if any(endpoint.name == preferred for endpoint in left):
        first = min(endpoint.priority for endpoint in left) - 1
        left = [replace(each, priority=first) if each.name == preferred else each for each in left]
    elif len(left) == len(group.endpoints):
        return group
    return FailoverGroup(group.spec, left) if left else None


def _preferred(
    choices: list[RouteBackend], failovers: Mapping[RouteBackend, FailoverGroup], preferred: str
) -> list[RouteBackend]:
    """What a request that prefers this backend chooses among; empty where nothing has it."""
    return [
        choice
        for choice in choices
        if preferred
        and (
            any(endpoint.name == preferred for endpoint in failovers[choice].endpoints)
            if choice in failovers
            else choice.name == preferred
        )
    ]
