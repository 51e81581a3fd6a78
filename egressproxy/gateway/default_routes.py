"""DefaultRoutes: what serves the destinations of a listener that no route matches, under the name "-".

It is one route, and a copy of it for each entry of `destinations.allow` that was used, whose traffic is counted under
the policy and the entry. So a request looks up no more than whether its destination is known to be allowed.
"""

from __future__ import annotations

from collections.abc import Callable

from egressproxy.gateway.route import Route
from egressproxy.ir.policy import PolicyIR
from egressproxy.model.authority import Authority
from egressproxy.routing.destinations import MAX_KNOWN, DestinationPolicy
from egressproxy.telemetry.series import Series

#: Gives the counters for a policy and its entry.
Count = Callable[[str, str], Series]


class DefaultRoutes:
    """Those of one listener. `known` has the routes of destinations that were allowed, by host and port.

    Remembered answers stay true, because policies change with the snapshot only.
    """

    __slots__ = ("_by_entry", "_count", "_destinations", "_mode", "_policy", "known", "route")

    def __init__(self, route: Route, policy: PolicyIR, destinations: DestinationPolicy, count: Count) -> None:
        self.route = route
        self.known: dict[tuple[str, int], Route] = {}
        self._destinations = destinations
        self._policy = policy.mode_source
        self._mode = f"mode: {policy.mode.value}"
        self._count = count
        self._by_entry: dict[tuple[str, str], Route] = {}

    def allowed(self, authority: Authority) -> Route:
        """The route of a destination that policy allows, which is `known` from now on."""
        route = self._of_entry(*(self._destinations.entry(authority) or (self._policy, self._mode)))
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known[authority.host, authority.port] = route
        return route

    def reported(self) -> Route:
        """The route of a destination that passes in mode Report only. It is not remembered: each denial is noted."""
        return self._of_entry(self._policy, self._mode)

    def _of_entry(self, policy: str, entry: str) -> Route:
        found = self._by_entry.get((policy, entry))
        if found is None:
            found = self._by_entry[policy, entry] = self.route.counted_in(self._count(policy, entry))
        return found
