"""Which Gateway serves a call of Envoy's; and what its rules ask for that cannot be had there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.gateway.route import SELF_SERVICE, Route
from egressproxy.gateway.snapshot import ActiveListener, Port, Snapshot
from egressproxy.model.work import at_once
from egressproxy.routing.hosts import HostEntry, HostMap

#: Fields of the call (`initial_metadata` of Envoy's grpc_service): namespace/name of a Gateway, name of its listener.
GATEWAY_FIELD: Final = b"egressproxy-gateway"
LISTENER_FIELD: Final = b"egressproxy-listener"


class ServedGateways:
    """The listeners of a snapshot that speak HTTP, by the names that a call may give."""

    __slots__ = ("_by_gateway", "_by_listener", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._by_gateway: dict[str, list[Port]] = {}
        self._by_listener: dict[tuple[str, str], Port] = {}
        seen: set[tuple[str, int]] = set()
        for port in snapshot.ports.values():
            web = [listener for listener in port.listeners if not listener.is_stream]
            for gateway in dict.fromkeys(listener.gateway for listener in web):
                if (gateway, port.number) in seen:
                    continue  # another address of the same listeners
                seen.add((gateway, port.number))
                own = [listener for listener in web if listener.gateway == gateway]
                self._by_gateway.setdefault(gateway, []).append(_port(port, own))
                for listener in own:
                    self._by_listener[gateway, listener.name] = _port(port, [listener])

    def port_for(self, gateway: bytes, listener: bytes) -> Port:
        """The listeners for these fields of a call (b"": none). Raises GatewayFault (500) if no one port has them."""
        name, section = gateway.decode("latin-1"), listener.decode("latin-1")
        if not name:
            if len(self._by_gateway) != 1:
                known = ", ".join(sorted(self._by_gateway)) or "none"
                raise _unknown(
                    f"the call does not say which Gateway serves it; there are {known}",
                    f"name one in {GATEWAY_FIELD.decode()} of the initial_metadata of Envoy's grpc_service",
                )
            (name,) = self._by_gateway
        ports = self._by_gateway.get(name if "/" in name else f"default/{name}")
        if ports is None:
            raise _unknown(
                f"there is no Gateway {name} with a listener that speaks HTTP",
                f"correct {GATEWAY_FIELD.decode()} of the initial_metadata of Envoy's grpc_service",
            )
        first = ports[0].first.gateway
        if section:
            port = self._by_listener.get((first, section))
            if port is None:
                raise _unknown(f"Gateway {first} has no listener {section} that speaks HTTP")
            return port
        if len(ports) > 1:
            raise _unknown(
                f"Gateway {first} has listeners on several ports",
                f"name one in {LISTENER_FIELD.decode()} of the initial_metadata of Envoy's grpc_service",
            )
        return ports[0]


def unservable(snapshot: Snapshot) -> list[str]:
    """What these rules ask for that only a gateway can do which connects to the backend itself; a sentence each."""
    found: dict[str, None] = {}
    for port in snapshot.ports.values():
        for listener in port.listeners:
            if listener.authenticator is not None:
                where = f"listener {listener.name} of Gateway {listener.gateway}"
                found[f"{where}: identity: Envoy knows the clients; it tells them in metadata"] = None
            for route in _routes(listener):
                found |= dict.fromkeys(_problems(route))
    return list(found)


def _port(port: Port, listeners: list[ActiveListener]) -> Port:
    by_host = at_once(HostMap.building(HostEntry((listener.spec.hostname,), listener) for listener in listeners))
    return replace(port, listeners=tuple(listeners), by_host=by_host, tls=None, clients=None)


def _routes(listener: ActiveListener) -> Iterator[Route]:
    for variant in listener.variants or ():
        yield from _routes(variant)
    yield from (route for _, route in listener.http.every() if route.kind != SELF_SERVICE)
    if listener.pre_route is not None:
        yield listener.pre_route
    if listener.defaults is not None:
        yield listener.defaults.route


def _problems(route: Route) -> Iterable[str]:
    where = route.rule if not route.is_default else "the default route"
    for chain in (route.chain, *(backend.chain for backend in route.backends)):  # what is told twice is shown once
        for step in chain.connect or ():
            yield f"{where}: filter {step.spec.name} of {step.spec.source} runs in phase connect: Envoy connects"
    if route.auths:
        yield f"{where}: external authorization: use Envoy's own ext_authz filter"
    if route.looks_at_bodies:
        yield f"{where}: a backend of protocol MCP, whose sessions the gateway itself keeps"
    if any(backend.ai is not None for backend in route.backends):
        yield f"{where}: a backend that is an AI provider of its own API, whose answers the gateway itself translates"
    if len(route.choices) > 1 or route.failovers:
        yield f"{where}: several backends: Envoy chooses one, so each of its routes needs a rule of its own here"


def _unknown(message: str, remedy: str = "") -> GatewayFault:
    return GatewayFault(Reason.NO_ROUTE, message, status=500, remedy=remedy)
