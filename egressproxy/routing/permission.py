"""Permission: what a route to a Dynamic backend opens by itself: the hosts that it names.

A route to a backend with an address of its own is the permission for it: somebody wrote the place down. A Dynamic
backend has none, so for whatever such a route does not name the `destinations` of its listener decide, as if there were
no route; the route serves what they allow. So no route with a filter for everything opens the gateway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from egressproxy.errors import Denied
from egressproxy.ir.policy import DestinationRule, Mode
from egressproxy.model.authority import Authority
from egressproxy.routing.destinations import MAX_KNOWN, DestinationPolicy
from egressproxy.routing.hosts import HostMap

__all__ = ["Permission", "strictest"]

_STRICTNESS = (Mode.OPEN, Mode.REPORT, Mode.ENFORCE)


class Permission:
    """What one rule with a Dynamic backend permits. A deny is not asked for here: it holds for every rule.

    `hostnames` are those of the route, without what a listener made of them. A name is permitted; what is below a
    wildcard is where no policy of the listener has an allow list, for such a list says which part of it is meant.
    `ports` are those that stand in the backend; None: every port.
    `destinations` are the listener's. `mode`: how what is refused is treated. `permitted` has the texts of authorities
    that were asked for and are named.
    """

    __slots__ = ("_destinations", "_hosts", "_ports", "_says", "mode", "permitted")

    def __init__(
        self,
        route: str,
        hostnames: Iterable[str],
        ports: Collection[int] | None,
        destinations: DestinationPolicy,
        mode: Mode,
    ) -> None:
        self._hosts: HostMap[bool] = HostMap()
        for hostname in hostnames:
            if hostname.strip("*.") and not (destinations.has_allow_list and hostname.startswith("*.")):
                self._hosts.put(hostname, True)
        self._ports = frozenset(ports) if ports is not None else None
        self._destinations = destinations
        self.mode = mode
        self.permitted: set[str] = set()
        on_ports = ""
        if self._ports is not None:
            on_ports = f", on port {', '.join(map(str, sorted(self._ports)))}" if self._ports else ", on no port"
        self._says = (
            f"{route} leads to a Dynamic backend, and permits by itself the hosts that it names{on_ports}; "
            "destinations decide about the rest, and about what is below a wildcard where they have an allow list"
        )

    def names(self, authority: Authority) -> bool:
        """Whether the route itself permits this. A wildcard in place of the host stands for all below it."""
        if self._ports is not None and authority.port not in self._ports:
            return False
        return self._hosts.first(authority.host) is not None

    def refusal(self, authority: Authority) -> Denied | None:
        """The refusal of a destination that neither the route names nor the listener's policies allow."""
        if self.names(authority):
            if len(self.permitted) >= MAX_KNOWN:
                self.permitted.clear()
            self.permitted.add(authority.text)
            return None
        if self.mode is Mode.OPEN:
            denied = self._destinations.firm_refusal(authority)
        else:
            denied = self._destinations.refusal(authority)
        if denied is not None:
            denied.detail = denied.detail or self._says
        return denied

    def grounds(self, authority: Authority) -> tuple[DestinationRule, ...]:
        """The entries that allow what the route does not name; for explanations."""
        return () if self.names(authority) else self._destinations.grounds(authority)


def strictest(*modes: Mode) -> Mode:
    """The one that lets the least pass."""
    return max(modes, key=_STRICTNESS.index)
