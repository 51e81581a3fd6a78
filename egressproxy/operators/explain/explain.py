"""Explain: what would become of a request, and why, without sending anything to a backend.

The decision is made by the functions that decide about traffic (`decision`), on the snapshot that is asked about;
names are resolved by the backend's own resolver, and every address is judged by its own policy. Filters are listed and
not run. What comes out is plain values, for JSON and for the command line.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from egressproxy.errors import Denied, GatewayError, GatewayFault, Reason
from egressproxy.filters.chain import approvals
from egressproxy.filters.direct_response import DIRECT_RESPONSE
from egressproxy.filters.filter_step import FilterSteps
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.request_redirect import REQUEST_REDIRECT
from egressproxy.gateway.backends.cluster import DEFAULT_TLS, Cluster
from egressproxy.gateway.backends.opener import OPERATOR, named_address
from egressproxy.gateway.backends.parent_connect import is_socks
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_hosts import DialTarget, backend_origin
from egressproxy.gateway.exchange.error_responses import is_denial
from egressproxy.gateway.route import SELF_SERVICE, Route
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.ir.backend import BackendTlsIR, Destination
from egressproxy.ir.policy import Mode
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import identity_of
from egressproxy.operators.explain import render
from egressproxy.operators.explain.decision import Decision, decide
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from egressproxy.operators.explain.notes import may_answer, notes
from egressproxy.protocols.grpc.statuses import is_grpc, status_of
from egressproxy.routing.destinations import Permission
from egressproxy.routing.precedence import Match, criterion
from egressproxy.telemetry.series import decided_by

#: Backends of one rule that are looked at: each may ask a name server.
MAX_BACKENDS = 16
_OF_ADDRESSES = (Reason.ADDRESS_DENIED.value, Reason.REVERSE_DNS_DENIED.value)
_DENIED_NOWHERE = ", and denied nowhere"
_PERMITTED = f"allowed by the route{_DENIED_NOWHERE}"
#: Rules of a host that are shown where none of them matches.
MAX_NEAR = 5


async def explain(snapshot: Snapshot, question: HypotheticalRequest, pseudonym: bytes = b"") -> dict[str, Any]:
    """The explanation; `verdict` is "allowed", "denied" (policy refuses) or "failed" (nothing could be served).
    `pseudonym` as in `decide`. Raises HypotheticalRequestError. Takes as long as a name server does, which its policy
    limits.
    """
    decided = decide(snapshot, question, pseudonym)
    exchange, route = decided.exchange, decided.route
    made: dict[str, Any] = {
        "verdict": "allowed",
        "request": {
            "method": question.method, "url": question.url, "namespace": question.namespace,
            "serviceAccount": question.service_account,
            "authority": str(exchange.authority) if exchange.authority is not None else "-",
        },
        "listener": render.listener_values(decided.listener, decided.port),
        "route": None, "runnerUp": None, "policy": _policy(decided), "error": None, "filters": [], "approvals": [],
        "backends": [],
        "limits": render.limit_values(decided.listener),
        "timeouts": render.timeout_values(decided.listener, route, None, is_tunnel=exchange.is_tunnel),
        "notes": notes(decided),
    }  # fmt: skip
    made["route"], made["runnerUp"] = _routes(decided)
    error = None
    if decided.error is not None:
        error = _remedied(decided, render.error_values(decided.error))
    elif route is not None and route.kind != SELF_SERVICE:
        made["filters"] = render.filter_values(
            route.chain, render.TUNNEL_PHASES[:1] if exchange.is_tunnel else render.REQUEST_PHASES, exchange
        )
        backends = route.backends[:MAX_BACKENDS]
        found = [_backend(decided, route, backend, snapshot.filters) for backend in backends]
        made["backends"] = await asyncio.gather(*found)
        answers = may_answer(route, REQUEST_REDIRECT) or may_answer(route, DIRECT_RESPONSE)
        error = None if answers else _outcome(route, made)
        error = _forecast(route.chain.request_headers, exchange) or error
        made["approvals"] = [
            {"filter": spec.name, "from": spec.source, "says": says} for spec, says in approvals(route.chain, exchange)
        ]
        for auth in route.auths:
            if not auth.is_usable and auth.is_asked_about_all:
                error = render.error_values(auth.unusable())
    if error is not None:
        if error["reason"] in _OF_ADDRESSES and decided.error is None:
            allowed = made["policy"]["decision"].removesuffix(_DENIED_NOWHERE)
            made["policy"]["decision"] = f"{allowed}, but no address of it may be dialled"
        if _is_call(decided, error):
            error["grpcStatus"] = status_of(Reason(error["reason"]), error["status"]).name
        made["error"] = error
        made["verdict"] = "denied" if error["denied"] else "failed"
    return made


# --- the decision ----------------------------------------------------------------------------------------------------
def _routes(decided: Decision) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The rule that serves this, with why; and the one that would, were it not there."""
    exchange, listener, route = decided.exchange, decided.listener, decided.route
    if exchange.is_tunnel:
        return _tunnel_route(decided), None
    if route is not None and route.kind == SELF_SERVICE:
        return {"name": "-", "why": "the gateway answers this itself: what this client may reach"}, None
    matches = _matches(decided)
    if not matches:
        return (None if route is None else {"name": "-", "why": "no route matches: policy decides"}), None
    winner, authority = matches[0], exchange.authority
    if listener.is_forward and authority is not None and not winner.payload.serves(authority.host, authority.port):
        why = f"{winner.origin.kind} {winner.origin.route} is for another port of {authority.host}: policy decides"
        return {"name": "-", "why": why}, None
    shown = render.match_values(winner)
    if len(matches) == 1:
        return {**shown, "why": "no other rule matches"}, None
    return {**shown, "why": criterion(winner, matches[1])}, render.match_values(matches[1])


def _is_call(decided: Decision, error: dict[str, Any]) -> bool:
    """Whether this is, or may well be, a call of gRPC: by its content, or by the routes of its host."""
    route = decided.route
    if not decided.exchange.has_request or decided.exchange.request.method != b"POST":
        return False
    request = decided.exchange.request
    kinds = {each["kind"] for each in error.get("near", ())} | {route.kind if route is not None else ""}
    return "GRPCRoute" in kinds or is_grpc(request.fields.get(b"content-type"))


def _matches(decided: Decision) -> list[Match[Route]]:
    exchange = decided.exchange
    if exchange.authority is None or not exchange.has_request:
        return []
    try:
        found = decided.listener.http.matches(
            exchange.authority.host, exchange.request.method, exchange.request.path, exchange.request.fields
        )
        return list(islice(found, 2))
    except GatewayError:  # the request is refused for what its path or a value looks like
        return []


def _tunnel_route(decided: Decision) -> dict[str, Any] | None:
    route = decided.route
    if route is None:
        return None
    if route.is_default:
        return {"name": "-", "why": "no TLSRoute has this host: policy decides"}
    why = "its hostname is the most specific one" if route.is_tls_only else "the oldest route of this listener"
    return {"kind": route.kind, "name": route.name, "rule": 0, "why": why}


def _policy(decided: Decision) -> dict[str, Any]:
    listener, route, exchange = decided.listener, decided.route, decided.exchange
    is_default = route is None or route.is_default
    mode = listener.mode if is_default or route is None else route.mode
    made: dict[str, Any] = {"mode": mode.value, "decision": "allowed", "entries": []}
    if decided.error is not None and exchange.authority is None:
        made["decision"] = "not asked: the request is refused before"
    elif decided.error is not None:
        made["decision"] = (
            "denied" if is_denial(decided.error) else "not asked: no listener or route serves the request"
        )
    elif exchange.would_deny:
        made["decision"] = "allowed, because mode is Report: it would be denied"
        refused = _refusal(decided, exchange.authority) if exchange.authority is not None else None
        made["wouldDeny"] = (
            render.error_values(refused) if refused is not None else {"reason": exchange.would_deny[0].value}
        )
    elif route is not None and not is_default:
        made["decision"] = _of_backends(route)
        if route.permission is not None and exchange.authority is not None and made["decision"] == _PERMITTED:
            made["decision"] = _of_permission(route.permission, exchange.authority)
            made["entries"] = [render.entry_values(rule) for rule in route.permission.grounds(exchange.authority)]
    elif mode is Mode.OPEN:
        made["decision"] = "allowed: mode is Open, and it is denied nowhere"
    if is_default and exchange.authority is not None and decided.error is None and mode is not Mode.OPEN:
        made["entries"] = [render.entry_values(rule) for rule in listener.destinations.grounds(exchange.authority)]
    if route is not None and is_default and decided.error is None:
        policy, entry = decided_by(route.series)
        made["counted"] = {"policy": policy, "entry": entry}
    made["policies"] = list(listener.spec.policy.sources)
    if route is not None:
        made["priority"] = route.priority.value
    return made


def _refusal(decided: Decision, authority: Authority) -> Denied | None:
    """What Report mode lets pass."""
    listener, route = decided.listener, decided.route
    if route is None or route.is_default:
        return listener.destinations.decide(authority)
    denied = route.destinations.explicit_deny(authority)
    if denied is None and route.permission is not None:
        denied = route.permission.decide(authority)
    return denied


def _of_permission(permission: Permission, authority: Authority) -> str:
    """What a route to a Dynamic backend comes to, where it is not refused."""
    if permission.names(authority):
        return "allowed by the route, which names it, and denied nowhere"
    if permission.mode is Mode.OPEN:
        return "not named by the route; allowed: mode is Open, and it is denied nowhere"
    return "not named by the route; allowed by destinations"


def _of_backends(route: Route) -> str:
    """What a route's own permission comes to, with the places of its backends."""
    denied = [backend for backend in route.backends if backend.denied is not None]
    if not denied:
        return _PERMITTED
    which = "its backend is" if len(denied) == len(route.backends) else "some backends are"
    if all(backend.cluster is not None for backend in denied):
        return f"allowed, because mode is Report: {which} denied"
    return f"allowed by the route, but {which} denied"


def _remedied(decided: Decision, error: dict[str, Any]) -> dict[str, Any]:
    """With what to add, where no policy has said it."""
    exchange, listener = decided.exchange, decided.listener
    if error["reason"] != Reason.NO_ROUTE.value or exchange.authority is None:
        return error
    listener_name = f"listener {listener.name} of Gateway {listener.gateway}"
    near = list(islice(listener.http.rules_of(exchange.authority.host), MAX_NEAR))
    if near:
        error["near"] = [render.match_values(each) for each in near]
        remedy = f"none of the rules for {exchange.authority.host} matches: add a match to one of them"
    else:
        kind = "a TLSRoute" if exchange.is_tunnel else "an HTTPRoute"
        remedy = f"attach {kind} with hostname {exchange.authority.host} to {listener_name}"
    return {**error, "remedy": remedy}


# --- backends --------------------------------------------------------------------------------------------------------
async def _backend(decided: Decision, route: Route, backend: RouteBackend, filters: FilterInstances) -> dict[str, Any]:
    exchange = decided.exchange
    made = render.backend_values(backend, route)
    if backend.ai is not None and not exchange.is_tunnel:
        made["ai"]["becomes"] = backend.ai.sentence(exchange.request.path if exchange.method == b"POST" else b"")
    exchange.backend = backend.name
    made["filters"] = render.filter_values(
        backend.chain, render.TUNNEL_PHASES[1:] if exchange.is_tunnel else render.BACKEND_PHASES, exchange
    )
    made["timeouts"] = render.timeout_values(decided.listener, route, backend, is_tunnel=exchange.is_tunnel)
    if (
        backend.cluster is not None
        and not exchange.is_tunnel
        and (kept := render.kept_values(backend.cluster.spec.kept))
    ):
        made["connections"] = kept
    if backend.cluster is not None and (source := backend.cluster.spec.source_address) is not None:
        made["sourceAddress"] = render.source_values(source, identity_of(exchange))
    made["credentials"] = render.secret_values(backend.chain, filters) if not exchange.is_tunnel else []
    if backend.denied is not None:
        authority = backend.denied.authority
        made["host"], made["port"] = authority.host, authority.port
    if backend.cluster is None:
        return {**made, "error": render.error_values(backend.fault(route.name, route.rule))}
    if backend.denied is not None:
        made["wouldDeny"] = render.error_values(backend.denied.error())
    try:
        await _describe_upstream(made, decided, backend.cluster)
        if exchange.is_tunnel:
            refused = _forecast(backend.chain.connect, exchange)
        else:
            exchange.backend, exchange.backend_is_secure = backend.name, made["tls"] is not None
            target = backend.cluster.tunnel_target(exchange)
            tls = backend.cluster.spec.backend.tls or DEFAULT_TLS
            exchange.backend_origin = backend_origin(
                target.host, target.port, tls if exchange.backend_is_secure else None
            )
            path = exchange.request.path
            refused = _forecast(backend.chain.backend_request, exchange)
            exchange.request.path = path  # of the next backend, too
        if refused is not None:
            made["error"] = refused
    except GatewayError as error:
        made["error"] = render.error_values(error)
    return made


async def _describe_upstream(made: dict[str, Any], decided: Decision, cluster: Cluster) -> None:
    """Fill in names, addresses and TLS, in the order of a dial. Raises what a dial would raise before it dials."""
    exchange = decided.exchange
    backend = cluster.spec.backend
    if backend.destination in OPERATOR:
        made["tls"] = _tls(decided, cluster, "")
        made["addresses"] = []
        policy = cluster.opener.address_policy()
        for endpoint in backend.endpoints:
            verdict, why = "dial", "written by the operator"
            if endpoint in cluster.endpoints:
                policy.check_operator(endpoint.address, endpoint.port)
            else:
                verdict, why = "refuse", policy.verdict(str(endpoint.address), endpoint.address, endpoint.port)[1]
            made["addresses"].append(render.address_values(endpoint.address, endpoint.port, verdict, why))
        _describe_endpoints(made, cluster)
        if not cluster.endpoints:
            cluster.tunnel_target(exchange)  # says what is missing
    else:
        target = cluster.tunnel_target(exchange)
        made["host"], made["port"] = target.host, target.port
        made["tls"] = _tls(decided, cluster, target.host)
        _describe_endpoints(made, cluster)
        if cluster.parents is not None:
            if aside := {name: round(left_s, 1) for name, left_s in cluster.parents.put_aside() if left_s > 0}:
                made["parentsAside"] = aside
            cluster = cluster.parents.first(target.host, target.port)
            if cluster.parent is None:
                made["noProxy"], made["via"] = True, []
                made.pop("fallbacks", None)
                made.pop("parentsAside", None)
        if cluster.parent is None:
            await _describe_addresses(made, decided, cluster, target)
        else:
            cluster.opener.check_for_parent(target)
            made["dns"] = f"resolved by the parent {cluster.parent.name}"
    if cluster.parent is not None:
        await _describe_parent(made, decided, cluster, cluster.parent)


def _describe_endpoints(made: dict[str, Any], cluster: Cluster) -> None:
    """What is known of endpoints, where a policy has them watched: their health, and the limits that are reached."""
    if cluster.host_set is not None:
        now = cluster.network.wheel.now
        made["loadBalancer"] = cluster.spec.resilience.load_balancer.type.value
        made["endpoints"] = [
            {"address": health.address, "health": health.state.value}
            | ({"outForSeconds": round(health.ejected_until - now, 1)} if health.ejected_until > now else {})
            for health in cluster.host_set.healths()
        ]
        if limits := sorted(set(cluster.host_set.open_circuits())):
            made["openCircuits"] = limits


async def _describe_parent(made: dict[str, Any], decided: Decision, cluster: Cluster, parent: Cluster) -> None:
    """The upstream gateway on the way, and what it is shown: a Secret by its name."""
    shown = cluster.spec.backend.parent_credentials
    values = made["parent"] = {"name": parent.name, "credentials": shown.source if shown is not None else None}
    if is_socks(parent.spec.backend):
        values["protocol"] = parent.spec.backend.protocol.value
    if cluster.spec.backend.parent_identity_key is not None:
        values["identity"] = "signed"
    await _describe_upstream(values, decided, parent)
    tls = parent.spec.backend.tls
    if tls is not None:  # that of a tunnel's client is not ours, that to the parent is
        values["tls"] = _tls_values(tls, parent, values.get("host", ""))


async def _describe_addresses(made: dict[str, Any], decided: Decision, cluster: Cluster, target: DialTarget) -> None:
    """As `ConnectionOpener._endpoints`: each address with its verdict. Raises UpstreamFault, Denied."""
    literal = named_address(decided.exchange, target)
    if literal is not None:
        made["dns"] = "not asked: the client named an address"
        policy = cluster.opener.address_policy()
        may_be_dialled, why = policy.verdict(target.host, literal, target.port)
        made["addresses"] = [render.address_values(literal, target.port, "dial" if may_be_dialled else "refuse", why)]
        policy.check(target.host, (literal,), target.port)
    elif not decided.question.asks_dns:
        made["dns"] = "not asked"
    else:
        await render.describe_resolved(made, cluster.opener, target.host, target.port)


def _tls(decided: Decision, cluster: Cluster, host: str) -> dict[str, Any] | None:
    backend = cluster.spec.backend
    tls = backend.tls
    if backend.destination is Destination.DYNAMIC and not decided.exchange.is_tunnel:
        tls = (tls or DEFAULT_TLS) if decided.exchange.scheme == b"https" else None
    if tls is None or not decided.originates_tls:
        return None
    return _tls_values(tls, cluster, host)


def _tls_values(tls: BackendTlsIR, cluster: Cluster, host: str) -> dict[str, Any]:
    """How the server is verified, and why the latest handshake with it failed, where it did."""
    values = render.tls_values(tls, host, cluster.spec.backend.destination)
    failure = cluster.tls_failure(host)
    if failure is not None:
        failure_values = failure._asdict()
        values["latestFailure"] = {
            "secondsAgo": round(cluster.network.wheel.now - failure_values.pop("at"), 1),
            **failure_values,
        }
    return values


def _forecast(steps: FilterSteps | None, exchange: Exchange) -> dict[str, Any] | None:
    """What one of these filters refuses every such request with; None where none does."""
    try:
        for step in steps or ():
            step.filter.forecast(exchange)
    except GatewayError as error:
        return render.error_values(error)
    return None


def _outcome(route: Route, made: dict[str, Any]) -> dict[str, Any] | None:
    """What ends every request of this rule; None if any of its backends can serve."""
    if not route.backends:
        missing = GatewayFault(Reason.BACKEND_INVALID, f"route {route.name} has no backend", rule=route.rule)
        return render.error_values(missing)
    errors: list[dict[str, Any] | None] = [each.get("error") for each in made["backends"]]
    if None not in errors:
        return errors[0]
    if any(each.get("error") for each in made["backends"] if "failover" not in each):
        made["notes"].append("some of the backends cannot serve: their share of the requests ends with an error")
    return None
