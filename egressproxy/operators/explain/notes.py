"""Notes: what an explanation says besides the decision, such as what it does not know."""

from __future__ import annotations

from egressproxy.errors import Denied
from egressproxy.filters.base import FilterType
from egressproxy.filters.cors import CORS, is_preflight
from egressproxy.filters.direct_response import DIRECT_RESPONSE
from egressproxy.filters.request_redirect import REQUEST_REDIRECT
from egressproxy.gateway.exchange.admission import HTTP_PORT, is_served_for_others
from egressproxy.gateway.route import Route
from egressproxy.ir.policy import Priority, SniCheck
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.operators.explain.decision import Decision
from egressproxy.operators.explain.render import steps_of


def notes(decided: Decision) -> list[str]:
    """Sentences about this decision; each stands by itself."""
    exchange, listener, question, made = decided.exchange, decided.listener, decided.question, list[str]()
    if not question.authority and not any(name.lower() == "host" for name, _ in question.fields):
        made.append("a path alone has no Host: add -H 'Host: NAME', or ask by the whole URL")
    route = decided.route
    if route is not None and decided.error is None:
        made += route.retries.notes(route.backends) if route.retries is not None else ()
        made += dict.fromkeys(failover.note for failover in (route.failovers or {}).values())
    if listener.pre_route is not None:
        made.append("filters of the listener (httpFilters) run first: what they change, and answer, is not known here")
    for auth in route.auths if route is not None else ():
        if auth.is_usable:
            which = "" if auth.is_asked_about_all else f" about requests that {auth.spec.place.source} names"
            made.append(f"{auth.server} is asked first{which} (ExternalAuth): what it says is not known here")
    if route is not None and decided.error is None:
        if not exchange.is_tunnel and is_preflight(exchange) and may_answer(route, CORS):
            made.append("this is a preflight request: CORS answers it with 200, and no backend is asked")
        elif not exchange.is_tunnel and may_answer(route, REQUEST_REDIRECT):
            made.append("RequestRedirect answers every request of this rule, and no backend is asked")
        elif not exchange.is_tunnel and may_answer(route, DIRECT_RESPONSE):
            made.append("DirectResponse answers every request of this rule, and no backend is asked")
        if route.priority is not Priority.NORMAL:
            when = "first" if route.priority is Priority.LOW else "last"
            priority = route.priority.value
            made.append(f"traffic.priority is {priority}: where the gateway is overloaded, it is refused {when}")
    if decided.has_subjects and question.identity is ANONYMOUS:
        made.append("some policies here are for some clients alone: say who asks with --as, --group or --claim")
    if decided.opened_by and listener.is_stream:
        made.append(
            f"policy {decided.opened_by} has TLS opened here (intercept): this is decided of each request inside, and"
            " told there"
        )
    elif decided.opened_by and exchange.authority is not None:
        url = f"https://{exchange.authority.host_field(443).decode()}/"
        made.append(
            f"policy {decided.opened_by} has TLS in this tunnel opened (intercept): explain {url} for its requests"
        )
    if (
        decided.opened_by
        and not listener.is_stream
        and exchange.authority is not None
        and exchange.authority.port != HTTP_PORT
    ):
        made.append(
            "what is wrong is told inside, where clients see it: an answer in HTTP, behind a 200 to the CONNECT"
        )
    elif exchange.is_tunnel and decided.error is None and route is None:
        made.append(f"HTTP is read inside a tunnel to port 80: explain http://{exchange.authority}/ for its requests")
        tls = decided.tls_route
        goes = "is refused there" if tls is None else f"there goes by {'policy' if tls.name == '-' else tls.name}"
        made.append(f"what begins with a ClientHello {goes}")
    elif exchange.is_tunnel and decided.error is None and listener.is_forward and exchange.authority is not None:
        if route is not None and route.is_tls_only:
            made.append(f"what the tunnel carries has to be TLS for {exchange.authority.host}")
        elif listener.destinations.sni_check(exchange.authority) is SniCheck.MATCH:
            made.append(f"TLS inside the tunnel is the client's own, and has to name {exchange.authority.host}")
    elif (
        exchange.is_tunnel and listener.is_forward and exchange.authority is not None and exchange.authority.port != 80
    ):
        made += _of_others(decided, exchange.authority)
    elif listener.is_forward and question.scheme == "https":
        made.append(
            "this is an https:// URL in the request line; clients that open a tunnel: explain CONNECT "
            f"{exchange.authority}"
        )
    if not exchange.is_tunnel and listener.is_forward and exchange.authority is not None:
        made += _of_others(decided, exchange.authority)
    return made


def _of_others(decided: Decision, authority: Authority) -> list[str]:
    """Of what is not allowed, where an HTTPRoute names the host: no rule of it fits this request, or it is a tunnel."""
    if not isinstance(decided.error, Denied) or not is_served_for_others(decided.listener, authority, decided.error):
        return []
    routes = decided.listener.http
    named = next(each.origin for each in routes.rules_of(authority.host) if each.hostname)
    serves = f"{named.kind} {named.route} serves requests for {authority.host}"
    if decided.exchange.is_tunnel:
        return [f"{serves}, and no tunnel: a tunnel needs a TLSRoute or destinations.allow"]
    head = decided.exchange.request
    if routes.match(authority.host, head.method, head.path, head.fields) is not None:
        return []
    return [f"{serves}, and no rule of it fits this one"]


def may_answer(route: Route, kind: FilterType) -> bool:
    return any(step.spec.type == kind.name for step in steps_of(route.chain, "request_headers"))
