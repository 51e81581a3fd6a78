"""Admission: what a request asks for, and whether policy lets it. Decided on names alone: nothing is resolved here.

Sources: RFC 9112 section 3.2 (request targets), RFC 9110 sections 7.6.2 (Max-Forwards), 7.6.3 (loops) and 9.3.8
(TRACE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from egressproxy.errors import BadRequest, Denied, GatewayFault, Reason
from egressproxy.gateway.enforcement import enforce
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.policy import Mode
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead, TargetForm

if TYPE_CHECKING:
    from egressproxy.gateway.exchange.client_connection import ClientConnection

__all__ = [
    "HTTP_PORT",
    "connect_not_served",
    "default_route",
    "judge",
    "name_destination",
    "read_authority",
    "refuse_loops",
    "route_request",
]

HTTP_PORT = 80
HTTPS_PORT = 443


def name_destination(
    x: Exchange, client: ClientConnection, head: RequestHead, listener: ActiveListener
) -> ActiveListener:
    """Fill in scheme, authority and logged path; returns the listener, chosen by host where several share the port."""
    path = head.path
    query = path.find(b"?")
    x.path = path if query < 0 else path[:query]
    if client.tunnel_authority is not None:
        name_inside_tunnel(x, client.tunnel_authority, head)
        return listener
    if head.scheme:  # absolute-form
        x.scheme = head.scheme
    elif listener.is_forward:
        message = "this is a forward proxy: the request target has to be an absolute URL"
        raise BadRequest(Reason.BAD_TARGET, message, close=False)
    else:
        x.scheme = listener.scheme
    if head.authority is not None and x.scheme == b"http":
        x.authority = head.authority
    else:
        x.authority = read_authority(head.host, HTTPS_PORT if x.scheme == b"https" else HTTP_PORT)
    if not listener.is_forward:
        listener = client.listener_for(x.authority.host)
        x.gateway, x.listener, x.series = listener.gateway, listener.name, listener.series
    return listener


def name_inside_tunnel(x: Exchange, inside: Authority, head: RequestHead) -> None:
    """HTTP in a tunnel to port 80 goes to the tunnel's authority, and may name no other."""
    if head.form is TargetForm.ABSOLUTE and head.scheme != b"http":
        raise BadRequest(Reason.BAD_TARGET, "only http is spoken inside a tunnel to port 80")
    if head.host and read_authority(head.host, HTTP_PORT) != inside:
        raise BadRequest(Reason.BAD_HOST, "the Host inside the tunnel is not the one that the tunnel was opened to")
    x.authority = inside


def read_authority(raw: bytes, default_port: int | None) -> Authority:
    """Raises BadRequest(BAD_HOST)."""
    try:
        return parse_authority(raw, default_port)
    except AuthorityError as error:
        raise BadRequest(Reason.BAD_HOST, f"the host of the request is not valid: {error}") from None


def connect_not_served() -> GatewayFault:
    """What a CONNECT to a listener is told that is no forward proxy."""
    message = "CONNECT is served by forward-proxy listeners alone"
    remedy = "point HTTPS_PROXY at the port of a listener of protocol egressproxy.io/forward-proxy"
    return GatewayFault(Reason.METHOD_NOT_ALLOWED, message, status=405, remedy=remedy)


def refuse_loops(head: RequestHead, pseudonym: bytes) -> None:
    """TRACE is refused, since it would reflect credentials; a request that passed here before is a loop."""
    if head.method == b"TRACE":
        raise GatewayFault(Reason.METHOD_NOT_ALLOWED, "TRACE is not served", status=405)
    if head.via and pseudonym in head.via:
        raise Denied(Reason.LOOP_DETECTED, "the request has passed this gateway before", status=508)


def route_request(x: Exchange, listener: ActiveListener) -> Route:
    """The rule that serves this request. Raises Denied (403), or GatewayFault (404) where no route matches."""
    authority, head = x.authority, x.request
    assert authority is not None
    found = listener.http.match(authority.host, head.method, head.path, head.fields)
    if found is not None and (not listener.is_forward or found[0].serves(authority.host, authority.port)):
        route, x.path_prefix = found
        if route.is_judged:
            judge(x, route, authority)
    elif listener.is_forward:
        route = default_route(x, listener, authority)
    else:
        raise GatewayFault(
            Reason.NO_ROUTE,
            f"no route for this request to {authority.host} on this listener",
            status=404,
            remedy="attach an HTTPRoute whose hostnames and matches (path, method, headers, query) fit; status of those"
            " that are there says whether they are attached",
        )
    x.route = route.name
    x.series = route.series
    return route


def judge(x: Exchange, route: Route, authority: Authority) -> None:
    """What policy says of a destination that a route matches. Raises Denied."""
    if route.destinations.denies:
        enforce(x, route.mode, route.destinations.explicit_deny(authority))
    permission = route.permission
    if permission is not None and authority.text not in permission.permitted:
        enforce(x, permission.mode, permission.decide(authority))


def default_route(x: Exchange, listener: ActiveListener, authority: Authority) -> Route:
    """What the listener's policy says of a destination that no route matches; traffic is counted by what allows it."""
    defaults = listener.defaults
    if defaults is None:
        raise Denied(Reason.NO_POLICY, f"{authority.host} is not allowed: no policy and no route says so")
    known = defaults.known.get((authority.host, authority.port))
    if known is not None:
        return known
    if listener.mode is Mode.OPEN:
        denied, mode = listener.destinations.decide_firm(authority), Mode.ENFORCE
    else:
        denied, mode = listener.destinations.decide(authority), listener.mode
    if denied is None:
        return defaults.allowed(authority)
    try:
        enforce(x, mode, denied)
    finally:
        del denied  # its traceback holds this frame: no cycle
    return defaults.reported()
