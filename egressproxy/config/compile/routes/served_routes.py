"""ServedRoutes: the routes of one listener, and their hostnames, so that a younger route in conflict is refused.

Sources: Gateway API v1 GRPCRouteSpec.hostnames (an HTTPRoute and a GRPCRoute with hosts in common exclude each other),
TLSRoute and TCPRoute (of routes that match the same, the oldest has it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from egressproxy.config.compile.gateways.attachment import Attachment
from egressproxy.config.compile.policies.layers import Layers
from egressproxy.config.compile.routes.route_compiler import RouteCompiler
from egressproxy.config.compile.routes.route_validation import RouteValidation
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.routes import AnyRoute, GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.ir.route import HttpRouteIR, StreamRouteIR, WeightedBackend
from egressproxy.model.published_object import Key

#: An HTTPRoute and a GRPCRoute cannot have the same host on one listener.
_EXCLUDES = {"HTTPRoute": "GRPCRoute", "GRPCRoute": "HTTPRoute"}


@dataclass(slots=True)
class AddedRoute:
    """A route at one listener. `met`: places with subjects that it has asked for; `conditions`: of its parent there."""

    route: AnyRoute
    attachment: Attachment
    validation: RouteValidation
    made: HttpRouteIR | StreamRouteIR
    conditions: Conditions
    met: dict[tuple[Key, str], None] = field(default_factory=dict)


class ServedRoutes:
    """The routes that one listener serves. Add them oldest first."""

    __slots__ = ("_claims", "added", "http", "layers", "met", "tcp", "tls")

    def __init__(self, layers: Layers) -> None:
        self.http: list[HttpRouteIR] = []
        self.tls: list[StreamRouteIR] = []
        self.tcp: list[StreamRouteIR] = []
        self.layers = layers
        self.added: list[AddedRoute] = []
        self.met: dict[tuple[Key, str], None] = {}  # targets and sections that have policies with subjects
        self._claims: dict[str, HostnameClaims] = defaultdict(HostnameClaims)  # by kind of route

    def conflict(self, route: AnyRoute, attachment: Attachment) -> str:
        """Which older route of the other kind has one of these hosts, as a sentence; "" for none."""
        other = _EXCLUDES.get(route.KIND)
        owner = self._claims[other].conflicting_owner(attachment.hostnames) if other is not None else ""
        if not owner:
            return ""
        message = f"{other} {owner} is older and has hosts in common with it on {attachment.listener.name}"
        return f"{message}: give this {route.KIND} hostnames that the other does not have, or another listener"

    def claim_hostnames(self, route: AnyRoute, attachment: Attachment, conditions: Conditions) -> None:
        """Give the route its hosts. A TLSRoute or TCPRoute is told which of them an older one has already."""
        claims = self._claims[route.KIND]
        name = attachment.listener.name
        if isinstance(route, TlsRoute | TcpRoute):
            for hostname in attachment.hostnames or ("",):
                owner = claims.owner(hostname)
                if owner and owner != route.full_name:
                    what = f"the connections for {hostname}" if hostname else "every other connection"
                    message = f"{route.KIND} {owner} is older or precedes it by name: it has {what} of {name}"
                    conditions.set("egressproxy.io/Conflicted", True, "OlderRoute", message)
        claims.claim(attachment.hostnames, route.full_name)

    def add(
        self,
        route: AnyRoute,
        attachment: Attachment,
        validation: RouteValidation,
        conditions: Conditions,
        compiler: RouteCompiler,
    ) -> tuple[list[WeightedBackend], list[WeightedBackend]]:
        """Compile a route for this listener; returns the backends of all its rules, and those of its mirrors."""
        if isinstance(route, HttpRoute | GrpcRoute):
            http = compiler.http_route(route, attachment, self.layers, validation)
            self.serve(AddedRoute(route, attachment, validation, http, conditions))
            backends = [backend for rule in http.rules for backend in rule.backends]
            asked = [auth.backend for rule in http.rules for auth in rule.auths]
            mirrors = [rule.mirrors for rule in http.rules] + [backend.mirrors for backend in backends]
            return [*asked, *backends], [mirror.backend for each in mirrors for mirror in each]
        stream = compiler.stream_route(route, attachment, self.layers)
        self.serve(AddedRoute(route, attachment, validation, stream, conditions))
        return list(stream.backends), []

    def serve(self, added: AddedRoute) -> None:
        """Serve a route as it was compiled, here or for the listener that this one is a variant of."""
        self.added.append(added)
        made = added.made
        if isinstance(made, StreamRouteIR):
            (self.tls if isinstance(added.route, TlsRoute) else self.tcp).append(made)
        elif made.rules:
            self.http.append(made)


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
            patterns = (hostname, *_wildcards(hostname), "")
            found = next((self._owners[pattern] for pattern in patterns if pattern in self._owners), "")
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
