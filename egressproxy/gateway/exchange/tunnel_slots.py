"""Places of tunnels: how many a listener may have (`limits.tunnels`), and what of them one client gets.

A tunnel has its place from the decision until its connection or stream has ended, whether it is opaque or opened.
"""

from __future__ import annotations

from functools import partial

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.gateway.exchange.held_resources import HeldResources
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.exchange import Exchange
from egressproxy.model.shares import client_of


def take_tunnel_slot(x: Exchange, state: OpenConnections, resources: HeldResources, listener: ActiveListener) -> None:
    """`limits.tunnels` of this listener, and what of it one client may have. Raises LimitExceeded (503)."""
    limits, client = listener.spec.policy.limits, client_of(x)
    place = listener.gateway, listener.name
    limit, taken = limits.tunnels, state.tunnels_of.get(place)
    if limit and taken is not None:
        if taken.total >= limit:
            message = f"this listener already has {limit} tunnel{'s' if limit > 1 else ''}"
            raise LimitExceeded(Reason.TUNNEL_LIMIT, message, status=503, retry_after_s=1)
        if taken.of(client) >= limits.tunnels_per_client:
            message = f"this client already has {limits.tunnels_per_client} of the {limit} tunnels of this listener"
            remedy = "set limits.connectionsPerClient, where one client is to have more than three quarters of them"
            raise LimitExceeded(Reason.TUNNEL_LIMIT, message, status=503, retry_after_s=1, remedy=remedy)
    state.add_tunnel(place, client)
    resources.when_complete(partial(state.give_tunnel_back, place, client))
