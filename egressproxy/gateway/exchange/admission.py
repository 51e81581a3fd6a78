"""Admission: what a request asks for, who asks, and whether policy lets it. Decided on names alone: nothing is resolved
here.

`name_request` and `name_stream` write into the exchange what the client has named. Everything else takes values and
returns a decision: a route and what is to be noted, or it raises. `pipeline` says in which order they are asked.
Sources: RFC 9112 section 3.2 (request targets), RFC 9110 sections 7.6.3 (loops) and 9.3.8 (TRACE).
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from egressproxy.errors import BadRequest, Denied, GatewayFault, Reason
from egressproxy.gateway.enforcement import report_only_denial
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache
from egressproxy.gateway.leaf_certificates.client_cas import ClientCas
from egressproxy.gateway.route import SELF_SERVICE, Route
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.ir.policy import Mode
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.key_grant import KeyGrant
from egressproxy.model.message import RequestHead
from egressproxy.model.own_names import OWN_HOST, proxies_of
from egressproxy.protocols.tls.client_hello import ClientHello
from egressproxy.routing.hosts import patterns_of

#: Why a request would be denied, were it not for mode Report: to be noted.
Noted = tuple[Reason, ...]

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443


def name_request(
    exchange: Exchange, port: Port, server_name: str, inside: OpenedTunnel | Redirection | None, head: RequestHead
) -> ActiveListener:
    """Write into `exchange` what a request names: logged path, scheme, authority and listener. Returns the listener.

    `server_name`: the SNI of the client's TLS, or "". `inside`: the tunnel that the request came in, or None.
    Raises BadRequest (400), and as `Port.listener_for` and `OpenedTunnel.check`. Source: RFC 9112 section 3.2.
    """
    listener = port.first
    path = head.path
    query = path.find(b"?")
    exchange.path = path if query < 0 else path[:query]
    if inside is not None:
        exchange.scheme, exchange.authority = inside.scheme, inside.authority
        exchange.authority = inside.check(head)
        if listener.is_stream:
            listener = port.opened_stream(exchange.authority.host)
            exchange.gateway, exchange.listener, exchange.series = listener.gateway, listener.name, listener.series
        return listener
    if head.scheme:  # absolute-form
        exchange.scheme = head.scheme
    elif listener.is_forward:
        message = "this is a forward proxy: the request target has to be an absolute URL"
        raise BadRequest(Reason.BAD_TARGET, message, close=False)
    else:
        exchange.scheme = listener.scheme
    if head.authority is not None and exchange.scheme == b"http":
        exchange.authority = head.authority
    else:
        if not head.host and head.http_1_0 and not listener.is_forward:
            # RFC 9112 section 3.3: the server's own name. Health checks of load balancers ask like this.
            head.host = server_name.encode() or _own_name(port)
        exchange.authority = read_authority(head.host, HTTPS_PORT if exchange.scheme == b"https" else HTTP_PORT)
    if not listener.is_forward:
        listener = port.listener_for(exchange.authority.host, server_name)
        exchange.gateway, exchange.listener, exchange.series = listener.gateway, listener.name, listener.series
    return listener


def _own_name(port: Port) -> bytes:
    """The address that the listener is bound to; localhost where that is none or every one."""
    with suppress(ValueError):
        address = ip_address(port.address)
        if not address.is_unspecified:
            return f"[{address}]".encode() if address.version == 6 else str(address).encode()
    return b"localhost"


def name_stream(exchange: Exchange, port: Port, hello: ClientHello | None) -> ActiveListener:
    """Write into `exchange` what a ClientHello (None: of TCP) names: authority and listener, which is returned. Raises
    GatewayFault (404), Denied.
    """
    if hello is None:
        return port.first
    if hello.sni is None:
        raise GatewayFault(Reason.NO_ROUTE, "the ClientHello names no server", status=404)
    try:
        exchange.authority = parse_authority(hello.sni.encode(), port.number if port.number != 0 else 443)
    except AuthorityError:
        raise Denied(Reason.SNI_MISMATCH, "the ClientHello names no valid host") from None
    found = port.by_host.match(exchange.authority.host)
    if found is None:
        raise GatewayFault(Reason.NO_ROUTE, f"no listener for {exchange.authority.host}", status=404)
    exchange.gateway, exchange.listener, exchange.series = found.gateway, found.name, found.series
    exchange.authority = Authority(exchange.authority.host, HTTPS_PORT)
    return found


def read_authority(raw: bytes, default_port: int | None) -> Authority:
    """Raises BadRequest(BAD_HOST)."""
    try:
        return parse_authority(raw, default_port)
    except AuthorityError as error:
        raise BadRequest(Reason.BAD_HOST, f"the host of the request is not valid: {error}") from None


def connect_not_served() -> GatewayFault:
    """The error for a CONNECT to a listener that is no forward proxy."""
    message = "CONNECT is served by forward-proxy listeners alone"
    remedy = "point HTTPS_PROXY at the port of a listener of protocol egressproxy.io/forward-proxy"
    return GatewayFault(Reason.METHOD_NOT_ALLOWED, message, status=405, remedy=remedy)


def refuse_loops(head: RequestHead, pseudonym: bytes) -> None:
    """TRACE is refused, since it would reflect credentials; a request that passed here before is a loop. What Via says
    besides the names of proxies does not go on. Without a pseudonym nothing is a loop.
    """
    if head.method == b"TRACE":
        raise GatewayFault(Reason.METHOD_NOT_ALLOWED, "TRACE is not served", status=405)
    if head.via and pseudonym and pseudonym in head.via:
        raise Denied(Reason.LOOP_DETECTED, "the request has passed this gateway before", status=508)
    if head.via:
        head.via = proxies_of(head.via)


def of_client(exchange: Exchange, listener: ActiveListener) -> ActiveListener:
    """The listener as it is for the client of this exchange. Raises Denied as `SubjectOverrides.of`."""
    return listener if listener.variants is None else listener.variants.of(exchange.identity)


def route_request(listener: ActiveListener, authority: Authority, head: RequestHead) -> tuple[Route, bytes, Noted]:
    """The rule of this request, and the PathPrefix that it matched (b"": none). Raises Denied, GatewayFault (404)."""
    found = listener.http.match(authority.host, head.method, head.path, head.fields)
    if found is not None and (not listener.is_forward or found[0].serves(authority.host, authority.port)):
        route, prefix = found
        return route, prefix, check_destination_policy(route, authority) if route.has_destination_policy else ()
    if listener.is_forward or listener.is_stream:
        return _unmatched_request(listener, authority, is_named=found is not None)
    raise GatewayFault(
        Reason.NO_ROUTE,
        f"no route for this request to {authority.host} on this listener",
        status=404,
        remedy="attach a route whose hostnames and matches (path, method, headers, query) fit; status of those"
        " that are there says whether they are attached",
    )


def check_grant(grant: KeyGrant, exchange: Exchange, route: Route) -> None:
    """Whether the API key of the client may be used for this route. Models are compared by the ModelPolicy of the
    route: without one they would not be known, and a tunnel's are never known. Raises Denied.
    """
    if route.kind == SELF_SERVICE:
        return
    rule = f"API key {grant.entry}"
    if grant.routes is not None and route.name not in grant.routes:
        what = f"the route {route.name}" if route.name != "-" else "destinations without a route"
        message = f"the API key of this client is not for {what}"
        remedy = "use another key, or have the route added to `routes` of this one"
        raise Denied(Reason.DESTINATION_DENIED, message, rule=rule, remedy=remedy)
    if grant.models is None:
        return
    if exchange.is_tunnel:
        message = "the API key of this client is for some models alone, and in this tunnel nobody sees which are asked"
        remedy = "use another key, or have the host added to `intercept.hostnames`"
        raise Denied(Reason.MODEL_DENIED, message, rule=rule, remedy=remedy)
    if not any(step.filter.checks_models and not step.fail_open for step in route.chain.request_headers or ()):
        message = "the API key of this client is for some models alone, and this route has no filter that reads them"
        remedy = "use another key, or have a ModelPolicy without failOpen added to the route"
        raise Denied(Reason.MODEL_DENIED, message, rule=rule, remedy=remedy)


def _unmatched_request(listener: ActiveListener, authority: Authority, *, is_named: bool) -> tuple[Route, bytes, Noted]:
    """As `default_route`, for a request. `is_named`: a route matches it, and serves another port of its host."""
    defaults = listener.defaults
    if defaults is not None and (known := defaults.known.get((authority.host, authority.port))) is not None:
        return known, b"", ()
    try:
        route, noted = default_route(listener, authority)
    except Denied as denied:
        if not is_named and is_served_for_others(listener, authority, denied):
            denied.remedy = (
                f"add a rule for this request (path, method, headers, query) to the HTTPRoute of {authority.host},"
                " where it is meant to be served; destinations.allow would open all of the host"
            )
        raise
    return route, b"", noted


def is_served_for_others(listener: ActiveListener, authority: Authority, denied: Denied) -> bool:
    """Whether a route names the host of what nothing allows: who follows the usual advice opens the whole host."""
    return denied.reason in (Reason.DESTINATION_NOT_ALLOWED, Reason.NO_POLICY) and any(
        each.hostname for each in listener.http.rules_of(authority.host)
    )


def decide_names(
    listener: ActiveListener, authority: Authority, head: RequestHead
) -> tuple[Route, bytes, Noted] | tuple[Route, Noted]:
    """What is decided of this request, or this CONNECT, on names alone. Raises as `route_request`, `route_tunnel`."""
    if head.method != b"CONNECT":
        hostname = listener.spec.hostname
        if not listener.is_forward and hostname and hostname not in patterns_of(authority.host):
            raise GatewayFault(Reason.NO_ROUTE, f"{authority.host} is not served on this listener", status=404)
        return route_request(listener, authority, head)
    return route_tunnel(listener, authority)


def route_tunnel(listener: ActiveListener, authority: Authority) -> tuple[Route, Noted]:
    """The route of a tunnel: a TLSRoute, or what the policy allows. Raises Denied."""
    route = listener.streams.match(authority.host)
    if route is not None and route.serves(authority.host, authority.port):
        return route, check_destination_policy(route, authority)
    return default_route(listener, authority)


def route_of_stream(listener: ActiveListener, authority: Authority | None) -> tuple[Route, Noted]:
    """The route of a stream, by the name in its ClientHello (None: no TLS), and what is noted of it. Raises
    GatewayFault (404), Denied.
    """
    host = authority.host if authority is not None else ""
    route = listener.streams.match(host)
    if route is None:
        raise GatewayFault(Reason.NO_ROUTE, f"no route for {host or 'this connection'} on this listener", status=404)
    if authority is None:
        return route, ()
    noted = check_destination_policy(route, authority)
    certificate_cache = listener.certificates_for(host)
    if certificate_cache is not None:
        raise not_opened(host, certificate_cache.policy)
    return route, noted


def not_opened(host: str, policy: str) -> Denied:
    """Why a stream is refused whose TLS is to be opened (`intercept`): what passes here cannot be looked at."""
    message = f"{host} is denied by policy {policy}: its TLS is to be opened, and this listener cannot do that"
    remedy = (
        f"let clients CONNECT to {host} through a forward-proxy listener, or use a TLS listener of mode Passthrough on"
        f" a port without HTTPS, or take {host} out of intercept.hostnames"
    )
    return Denied(Reason.DESTINATION_DENIED, message, rule=f"EgressPolicy {policy}", remedy=remedy)


def stream_certificates(
    port: Port, listener: ActiveListener, authority: Authority | None
) -> CertificateCache | ClientCas | None:
    """The certificates for a stream whose TLS is to be opened; None: it passes unread. Where the listener ends TLS
    itself, or shares its port with HTTPS, `route_of_stream` refuses such a stream.
    """
    if authority is None or listener.terminate is not None or not port.is_stream:
        return None
    return listener.certificates_for(authority.host)


def admit_http(listener: ActiveListener, authority: Authority) -> Noted:
    """Whether HTTP in a tunnel to port 80 could be allowed at all: each request is decided by itself. Raises Denied."""
    if not listener.hosts.match(authority.host):
        return default_route(listener, authority)[1]
    denied = listener.destinations.explicit_deny(authority)
    try:
        return () if denied is None else (report_only_denial(listener.mode, denied),)
    finally:
        del denied  # its traceback holds this frame: no cycle


def ways_to_http_port(listener: ActiveListener, authority: Authority) -> tuple[Route | None, bool]:
    """The route of TLS in a tunnel to port 80 (None: it would be refused), and whether HTTP may go there. Raises Denied
    where neither may; it is the denial of HTTP.
    """
    tls = None
    with suppress(Denied):
        tls, _ = route_tunnel(listener, authority)
    try:
        admit_http(listener, authority)
    except Denied:
        if tls is None:
            raise
        return tls, False
    return tls, True


def check_destination_policy(route: Route, authority: Authority) -> Noted:
    """What policy says of a destination that a route matches. Raises Denied."""
    noted: Noted = ()
    denied = route.destinations.explicit_deny(authority) if route.destinations.denies else None
    permission = route.permission
    try:
        if denied is not None:
            noted = (report_only_denial(route.mode, denied),)
        if permission is not None and authority.text not in permission.permitted:
            denied = permission.decide(authority)
            if denied is not None:
                noted += (report_only_denial(permission.mode, denied),)
        return noted
    finally:
        del denied  # its traceback holds this frame: no cycle


def default_route(listener: ActiveListener, authority: Authority) -> tuple[Route, Noted]:
    """What policy says of a destination that no route matches; it is counted by what allows it. Raises Denied."""
    defaults = listener.defaults
    if defaults is None:
        raise Denied(Reason.NO_POLICY, f"{authority.host} is not allowed: no policy and no route says so")
    known = defaults.known.get((authority.host, authority.port))
    if known is not None:
        return known, ()
    if authority.host == OWN_HOST:
        message = f"{OWN_HOST} is answered by the gateway itself, at http://{OWN_HOST}/ alone"
        raise Denied(Reason.DESTINATION_NOT_ALLOWED, message)
    if listener.mode is Mode.OPEN:
        denied, mode = listener.destinations.decide_firm(authority), Mode.ENFORCE
    else:
        denied, mode = listener.destinations.decide(authority), listener.mode
    try:
        return (
            (defaults.allowed(authority), ())
            if denied is None
            else (defaults.reported(), (report_only_denial(mode, denied),))
        )
    finally:
        del denied  # its traceback holds this frame: no cycle
