"""Readmission: what has waited for a person is decided once more, by the configuration in force, as if it came now.

The request is decided as its client has sent it. The filters that have run do not run again, and limits that have
counted it do not count it twice; everything behind them is that of the rule in force: which backend is denied, which
addresses, how they are reached, and with which credential. What would no more be the request that was approved is
refused: other filters of the request, other backends, other mirrors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import ORIGINAL_HEAD
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.filter_step import FilterStep, FilterSteps
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.admission import (
    Noted,
    check_grant,
    name_request,
    of_client,
    route_request,
    route_tunnel,
)
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.opened_tunnel import OpenedTunnel, Redirection
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead

_NO_STEPS: Final[FilterSteps] = ()


async def admit_again(
    exchange: Exchange, client: Client, route: Route, listener: ActiveListener
) -> tuple[Route, ActiveListener]:
    """The rule in force for a request, or a CONNECT, that was approved, and its client's listener; it goes on with
    them. `route` and `listener` have let it in. Raises GatewayError, as admission does.
    """
    client.state.check_open()
    again, now = exchange, client.listener
    is_connect = exchange.request.method == b"CONNECT"
    if not is_connect:
        again, now = name_again(exchange, client.state.port, client.server_name, client.tunnel)
    check_gateway(exchange, listener, now)
    if now.authenticator is not None:
        checking = now.authenticator.admit_again(exchange, client)
        if checking is not None:
            await checking
    own = of_client(exchange, now)
    if not is_connect:
        return route_again(exchange, again, route, own), own
    assert exchange.authority is not None
    found, noted = route_tunnel(own, exchange.authority)
    if own.certificates_for(exchange.authority.host) is not None:
        raise changed(found)
    take_over(exchange, route, found, noted)
    return found, own


def name_again(
    exchange: Exchange, port: Port, server_name: str, inside: OpenedTunnel | Redirection | None
) -> tuple[Exchange, ActiveListener]:
    """What a request names, as its client has sent it, in a copy of the exchange; and its listener. Raises as
    `name_request`.
    """
    again = exchange.copy()
    again.request = original_head(exchange)
    return again, name_request(again, port, server_name, inside, again.request)


def route_again(exchange: Exchange, again: Exchange, route: Route, own: ActiveListener) -> Route:
    """The rule in force for the request of `name_again`. Raises as `route_request` and `take_over`."""
    assert again.authority is not None
    found, prefix, noted = route_request(own, again.authority, again.request)
    if prefix != exchange.path_prefix:
        raise changed(found)
    take_over(exchange, route, found, noted)
    return found


def take_over(exchange: Exchange, route: Route, found: Route, noted: Noted) -> None:
    """`found` is the rule in force for what `route` has let in. Raises Denied where `found` would change the
    request, and as `check_grant`.
    """
    if found is not route and not sends_alike(route, found):
        raise changed(found)
    if exchange.identity.grant is not None:
        check_grant(exchange.identity.grant, exchange, found)
    exchange.note_denials(*noted)
    exchange.route, exchange.series = found.name, found.series


def original_head(exchange: Exchange) -> RequestHead:
    """The head of the request before any filter."""
    head = exchange.request.copy()
    kept = ORIGINAL_HEAD.get(exchange)
    if kept is not None:
        head.path, block = kept
        head.fields = Fields(block)
    return head


def check_gateway(exchange: Exchange, listener: ActiveListener, now: ActiveListener) -> None:
    """What another gateway has signed holds as long as the keys stay that are believed. Raises Denied."""
    if exchange.identity.source == "gateway" and listener is not now:
        keys = listener.spec.policy.gateway_keys
        if any(key not in now.spec.policy.gateway_keys for key in keys):
            message = "which gateways are believed has changed while this request waited: send it again"
            raise Denied(Reason.CREDENTIALS_REFUSED, message)


def changed(route: Route) -> Denied:
    """Why a request is refused that would be sent otherwise than it was approved."""
    message = (
        "this request was approved, and the configuration that came while it waited would make another of it: send it"
        " again"
    )
    return Denied(Reason.APPROVAL_DENIED, message, rule=route.rule)


# --- what was approved -----------------------------------------------------------------------------------------------
def sends_alike(route: Route, found: Route) -> bool:
    """Whether two rules make the same of a request: by filters, backends and mirrors. How these are reached, and what
    policies say of them, may differ; so may secrets of filters that run for a backend.
    """
    if not _same_filters(route.chain.request_headers, found.chain.request_headers):
        return False
    if not _same_filters(_steps(route.chain.request_body), _steps(found.chain.request_body)):
        return False
    left = [each for each in found.backends if each.name not in route.excluded]
    return len(left) == len(route.backends) and all(map(_same_backend, route.backends, left))


def _same_backend(one: RouteBackend, other: RouteBackend) -> bool:
    if (one.name, one.priority, _mirrors(one)) != (other.name, other.priority, _mirrors(other)):
        return False
    if other.cluster is None:
        return True  # who gets the request is told why
    if one.cluster is None or _sent_to(one.cluster.spec.backend) != _sent_to(other.cluster.spec.backend):
        return False
    chain, its = one.chain, other.chain
    return _same_filters(chain.backend_request, its.backend_request, of_backend=True) and _same_filters(
        _steps(chain.backend_request_body), _steps(its.backend_request_body), of_backend=True
    )


def _mirrors(backend: RouteBackend) -> list[str]:
    return [mirror.backend for mirror in backend.mirrors or ()]


def _sent_to(backend: BackendIR) -> tuple[object, ...]:
    """The endpoints of a Service come and go, and are the Service all the same."""
    endpoints = () if backend.destination is Destination.SERVICE else backend.endpoints
    return (
        backend.kind, backend.destination, backend.hostname, backend.port, endpoints, backend.protocol,
        backend.tls is None, backend.mcp, backend.ai,
    )  # fmt: skip


def _steps(plan: BodyPlan | None) -> FilterSteps:
    return plan.steps if plan is not None else _NO_STEPS


def _same_filters(steps: FilterSteps | None, others: FilterSteps | None, *, of_backend: bool = False) -> bool:
    steps, others = steps or _NO_STEPS, others or _NO_STEPS
    return len(steps) == len(others) and all(_is_same(*both, of_backend) for both in zip(steps, others, strict=True))


def _is_same(step: FilterStep, other: FilterStep, of_backend: bool) -> bool:
    """The gateway's own filters are made anew with each snapshot, under a scope that counts them."""
    if step.filter is other.filter:
        return True
    if type(step.filter) is not type(other.filter):
        return False
    spec, its = replace(step.spec, scope=""), replace(other.spec, scope="")
    if of_backend:
        spec, its = replace(spec, secrets=(), calls=()), replace(its, secrets=(), calls=())
    return spec == its
