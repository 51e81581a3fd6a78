"""HostnameClaims: which route of a listener has which hosts, so that a younger one with the same is refused.

Source: Gateway API v1 GRPCRouteSpec.hostnames (an HTTPRoute and a GRPCRoute with hosts in common exclude each other),
TLSRoute and TCPRoute (of routes that match the same, the oldest has it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class HostnameClaims:
    """Hostname patterns, each with the route that claimed it first. Claim for the oldest route first."""

    __slots__ = ("_above", "_owners")

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._above: dict[str, str] = {}  # every wildcard that holds one of them, with the first owner below

    def claim(self, hostnames: Sequence[str], owner: str) -> None:
        """Give these patterns to a route (`namespace/name`), unless one has them. No patterns: every host."""
        for hostname in hostnames or ("",):
            self._owners.setdefault(hostname, owner)
            self._above.setdefault("", owner)
            for wildcard in _wildcards(hostname):
                self._above.setdefault(wildcard, owner)

    def owner(self, hostname: str) -> str:
        """The route that has the same pattern; "" for none."""
        return self._owners.get(hostname, "")

    def conflicting_owner(self, hostnames: Sequence[str]) -> str:
        """The first route that has a host in common with one of these patterns; "" for none."""
        if not self._owners:
            return ""
        for hostname in hostnames or ("",):
            places = (hostname, *_wildcards(hostname), "")
            found = next((self._owners[place] for place in places if place in self._owners), "")
            found = found or (self._above.get(hostname, "") if not hostname or hostname.startswith("*.") else "")
            if found:
                return found
        return ""


def _wildcards(hostname: str) -> Iterator[str]:
    """The wildcards that hold every host of a pattern, without itself."""
    bare = hostname.removeprefix("*.")
    dot = bare.find(".")
    while dot >= 0:
        yield "*" + bare[dot:]
        dot = bare.find(".", dot + 1)
