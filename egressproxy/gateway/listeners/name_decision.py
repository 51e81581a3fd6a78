"""The decisions of a name server, as values: on which ports a client may connect to a name, which cluster resolves it,
and the codes for an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import chain, islice
from typing import Final, NamedTuple

from egressproxy.errors import Denied, GatewayError, GatewayFault, Reason
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.exchange.admission import (
    HTTP_PORT,
    HTTPS_PORT,
    Noted,
    check_destination_policy,
    default_route,
    route_tunnel,
)
from egressproxy.gateway.exchange.error_responses import is_denial
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.backend import Destination
from egressproxy.ir.name_server import NameDenials, NameServerIR
from egressproxy.ir.policy import DestinationsIR
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.listening_place import is_connection
from egressproxy.protocols.dns.messages import (
    BLOCKED,
    NO_REACHABLE_AUTHORITY,
    NOERROR,
    NOT_READY,
    NOT_SUPPORTED,
    NXDOMAIN,
    OTHER,
    PROHIBITED,
    REFUSED,
    SERVFAIL,
)
from egressproxy.routing.hosts import patterns_of

#: The rules of a name that are looked at.
MAX_RULES: Final = 256
#: The `destinations` whose ports are remembered.
MAX_KNOWN: Final = 1024
#: Denials of the client rather than of the name it asks for.
_OF_CLIENT: Final = frozenset((
    Reason.CREDENTIALS_REQUIRED, Reason.CREDENTIALS_REFUSED, Reason.CLIENT_CERTIFICATE, Reason.IDENTITY_KILLED,
    Reason.LOOP_DETECTED, Reason.NEW_NAMES,
))  # fmt: skip
#: What a resolver says of a name: it is no failure.
NEGATIVE_CODES: Final = {Reason.DNS_NXDOMAIN: NXDOMAIN, Reason.DNS_NO_ADDRESS: NOERROR}
_EXTENDED: Final = {
    Reason.DNS_TIMEOUT: NO_REACHABLE_AUTHORITY, Reason.OVERLOADED: NOT_READY, Reason.METHOD_NOT_ALLOWED: NOT_SUPPORTED,
}  # fmt: skip


class AllowedPort(NamedTuple):
    """A port on which a name is allowed, and its route there."""

    port: int
    route: Route
    noted: Noted


def allowed_ports(listener: ActiveListener, host: str, named: NamedPorts) -> Iterator[AllowedPort]:
    """The ports on which the name is allowed. Raises the denial of the first port where the name is allowed on none."""
    first, is_allowed = None, False
    for port in _candidates(listener, host, named):
        try:
            allowed = AllowedPort(port, *decide_name(listener, Authority(host, port)))
        except GatewayError as error:
            first = first or error.with_traceback(None)
            continue
        is_allowed = True
        yield allowed
    if not is_allowed and first is not None:
        raise first


class NamedPorts:
    """The ports in entries of `destinations` for a host. There may be thousands of entries, which are read once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        #: By identity, with the object itself, which is kept so that no other gets its place; ports by hostname, with
        #: "" for every host.
        self._known: dict[int, tuple[DestinationsIR, dict[str, dict[int, None]]]] = {}

    def of(self, destinations: DestinationsIR, host: str) -> Iterator[int]:
        """Those in entries that match this host (lower case)."""
        known = self._known.get(id(destinations))
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[id(destinations)] = destinations, _ports_of(destinations)
        if known[1]:
            for pattern in (*patterns_of(host), ""):
                yield from known[1].get(pattern, ())


def _ports_of(destinations: DestinationsIR) -> dict[str, dict[int, None]]:
    made: dict[str, dict[int, None]] = {}
    for rule in chain(*destinations.allow, destinations.deny):
        for pattern in (rule.hostnames or ("",)) if rule.ports else ():
            made.setdefault(pattern, {}).update(dict.fromkeys(rule.ports))
    return made


def _candidates(listener: ActiveListener, host: str, named: NamedPorts) -> Sequence[int]:
    """Ports that stand for all: the usual ones, those in some rule for the name, and one that is in no rule."""
    routes = rules_of(listener, host)
    stream = listener.streams.match(host)
    if stream is not None:
        routes.append(stream)
    found = dict.fromkeys((HTTPS_PORT, HTTP_PORT, *named.of(listener.spec.policy.destinations, host)))
    for route in routes:
        found.update(dict.fromkeys(route.ports.get(host) or ()))
        if route.permission is not None:
            found.update(dict.fromkeys(route.permission.ports or ()))
        found.update(dict.fromkeys(named.of(route.policy.destinations, host)))
    other = next(port for port in range(1, len(found) + 2) if port not in found)
    return (*found, other)


def decide_name(listener: ActiveListener, authority: Authority) -> tuple[Route, Noted]:
    """What serves a connection to this name and port, whatever is spoken in it: a tunnel, or requests by some rule.
    Raises GatewayError where nothing may.
    """
    denied: GatewayError | None = None
    if listener.certificates_for(authority.host) is None:
        try:
            return _reachable(*route_tunnel(listener, authority))
        except GatewayError as error:
            denied = error.with_traceback(None)
    for route in rules_of(listener, authority.host):
        if route.serves(authority.host, authority.port):
            with suppress(GatewayError):
                return _reachable(
                    route, check_destination_policy(route, authority) if route.has_destination_policy else ()
                )
    try:
        return _reachable(*default_route(listener, authority))
    except Denied as error:
        raise denied or error.with_traceback(None) from None


def _reachable(route: Route, noted: Noted) -> tuple[Route, Noted]:
    """The same. Raises GatewayError where each backend of the route is denied, or invalid."""
    if route.choices and all(each.cluster is None for each in route.choices):
        raise route.choices[0].fault(route.name, route.rule)
    return route, noted


def rules_of(listener: ActiveListener, host: str) -> list[Route]:
    """The rules of HTTPRoutes for this host, the first MAX_RULES of them."""
    return [match.payload for match in islice(listener.http.rules_of(host), MAX_RULES)]


def cluster_for(listener: ActiveListener, route: Route, host: str) -> Cluster:
    """The cluster that resolves this name: of the route's own backend where it is the destination that clients name or
    has this hostname, else of the listener. Raises GatewayFault.
    """
    for each in (route, listener.defaults.route if listener.defaults is not None else None):
        for backend in each.backends if each is not None else ():
            if backend.cluster is not None:
                spec = backend.cluster.spec.backend
                if spec.destination is Destination.DYNAMIC or spec.hostname == host:
                    return backend.cluster
    message = f"{host} leads to a backend with other addresses than its own"
    raise GatewayFault(Reason.BACKEND_INVALID, message, remedy="write nameServer.addresses: Gateway in an EgressPolicy")


def own_addresses(listener: ActiveListener) -> tuple[IPAddress, ...]:
    """The addresses at which clients reach the gateway. Raises GatewayFault where they are not known."""
    written = listener.spec.policy.name_server.gateway_addresses
    if written:
        return written
    bound = (ip_address(each) for each in listener.spec.addresses if is_connection(each))
    found = tuple(each for each in bound if not each.is_unspecified)
    if not found:
        message = "the gateway listens on every address, so that its own is not known"
        remedy = "write nameServer.gatewayAddresses in an EgressPolicy, or spec.addresses in the Gateway"
        raise GatewayFault(Reason.BACKEND_INVALID, message, remedy=remedy)
    return found


def code_for(error: GatewayError, settings: NameServerIR) -> int:
    """The response code of an error: NXDOMAIN, where it is chosen, for names that policy denies."""
    if error.reason in NEGATIVE_CODES:
        return NEGATIVE_CODES[error.reason]
    if error.reason is Reason.OVERLOADED or not is_denial(error):
        return SERVFAIL
    hides = settings.denials is NameDenials.NXDOMAIN and extended_code(error) == BLOCKED
    return NXDOMAIN if hides else REFUSED


def extended_code(error: GatewayError) -> int:
    """The code of RFC 8914 for an error."""
    if error.reason in _OF_CLIENT:
        return PROHIBITED
    return _EXTENDED.get(error.reason, BLOCKED if is_denial(error) else OTHER)
