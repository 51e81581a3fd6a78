"""Permission: the hosts that a route to a Dynamic backend allows by itself: those that it names.

A route to a backend with an address of its own allows that address: it is written in the manifest. A Dynamic backend
has no address, so the `destinations` of the listener decide about every host that the route does not name, as if there
were no route; the route serves what they allow. So a route for every host, made for its filters, does not open the
gateway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from egressproxy.errors import Denied
from egressproxy.ir.policy import DestinationRule, Mode
from egressproxy.model.authority import Authority
from egressproxy.routing.destinations import MAX_KNOWN, DestinationPolicy
from egressproxy.routing.hosts import HostMap

_STRICTNESS: Final = (Mode.OPEN, Mode.REPORT, Mode.ENFORCE)


class Permission:
    """What one rule with a Dynamic backend permits. Deny entries are not its task: they hold for every rule.

    `hostnames` are those of the route as written. A name is permitted. A wildcard is permitted only where no policy of
    the listener has an allow list, since such a list says which part of the wildcard is meant.
    `ports` are those of the backend; None is every port.
    `destinations` are the listener's. `mode` says whether what is denied is refused. `permitted` holds the texts of the
    authorities that were permitted before.
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
                self._hosts.setdefault(hostname, True)
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
        """Whether the route itself permits this host and port. The host may be a wildcard, for all hosts below it."""
        if self._ports is not None and authority.port not in self._ports:
            return False
        return self._hosts.match(authority.host) is not None

    def decide(self, authority: Authority) -> Denied | None:
        """None if the route names this destination or the listener's policies allow it; otherwise the error."""
        if self.names(authority):
            if len(self.permitted) >= MAX_KNOWN:
                self.permitted.clear()
            self.permitted.add(authority.text)
            return None
        if self.mode is Mode.OPEN:
            denied = self._destinations.decide_firm(authority)
        else:
            denied = self._destinations.decide(authority)
        if denied is not None:
            denied.detail = denied.detail or self._says
        return denied

    def grounds(self, authority: Authority) -> tuple[DestinationRule, ...]:
        """The policy entries that allow a destination that the route does not name; for explanations."""
        return () if self.names(authority) else self._destinations.grounds(authority)


def strictest(*modes: Mode) -> Mode:
    """The strictest of these modes: Enforce before Report before Open."""
    return max(modes, key=_STRICTNESS.index)
