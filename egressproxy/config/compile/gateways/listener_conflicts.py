"""Conflicts between the listeners of a Gateway and its ListenerSets.

Listeners share a port if the client's first bytes tell them apart. Source: Gateway API v1 ListenerSetSpec.listeners
(the Gateway's go first, then those of the oldest ListenerSet), GatewaySpec.listeners (which listeners are distinct).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from egressproxy.config.compile.gateways.listener_plan import ListenerPlan, have_hosts_in_common
from egressproxy.ir.gateway import ListenerProtocol

_PROXY_OVER_TLS = "forward-proxy over TLS"


def find_conflicts(listeners: Iterable[ListenerPlan]) -> None:
    """State `Conflicted` of the listeners that cannot share their port with others.

    `listeners` are those of the Gateway, then those of its ListenerSets, the oldest set first. A listener in conflict
    with an earlier object's listener loses alone. Within one object all listeners in conflict lose.
    """
    by_port: dict[int, list[ListenerPlan]] = defaultdict(list)
    for listener in listeners:
        if listener.protocol is not None:
            by_port[listener.listener.port].append(listener)
    for together in by_port.values():
        if len(together) > 1:
            _judge_port(together)
            _find_overlaps(together)


def _judge_port(listeners: list[ListenerPlan]) -> None:
    by_owner: dict[int, list[ListenerPlan]] = defaultdict(list)
    for listener in listeners:
        by_owner[id(listener.owner)].append(listener)
    standing: list[ListenerPlan] = []
    for group in by_owner.values():
        # Who lost to an earlier object is out, and no conflict for its siblings.
        left = [listener for listener in group if not _state_conflict(listener, standing)]
        lost = [listener for listener in left if _state_conflict(listener, left)]
        standing += [listener for listener in left if listener not in lost]


def _find_overlaps(listeners: list[ListenerPlan]) -> None:
    """State `OverlappingTLSConfig`, for information: a request on the wrong connection gets 421."""
    speaking = [one for one in listeners if one.listener.tls is not None and not one.conditions.holds("Conflicted")]
    for listener in speaking:
        others = [
            one for one in speaking if one is not listener and have_hosts_in_common(one.hostname, listener.hostname)
        ]
        if others:
            names = ", ".join(f"{one.name} ({one.hostname or 'every host'})" for one in others)
            message = f"these listeners of the same port have hosts in common with it: {names}"
            listener.conditions.set("OverlappingTLSConfig", True, "OverlappingHostnames", message)


def _state_conflict(listener: ListenerPlan, others: Iterable[ListenerPlan]) -> bool:
    for other in others:
        if other is listener:
            continue
        if not _may_share(listener, other):
            remedy = "another hostname or port" if _are_told_apart_by_name(listener, other) else "another port"
            problem = f"listener {other.name} has protocol {other.listener.protocol} on the same port"
            kind, message = "ProtocolConflict", f"{problem}: change a listener to {remedy}"
            # The reasons differ by API type: Listener of a Gateway, ListenerEntry of a ListenerSet.
            reason = "Invalid" if listener.owner is listener.gateway else "ProtocolConflict"
        elif other.hostname == listener.hostname:
            kind = reason = "HostnameConflict"
            message = f"listener {other.name} has the same port and hostname: give one of them another"
        else:
            continue
        listener.refuse("Conflicted", kind, message)
        listener.conditions.set("Accepted", False, reason, message)
        return True
    return False


def _may_share(one: ListenerPlan, other: ListenerPlan) -> bool:
    """Whether the protocols of two listeners can share a port: equal ones, by hostname; or HTTP and streams inside TLS,
    by SNI (a forward proxy takes all names that no other listener has).
    """
    if _family(one) == _family(other):
        return True
    return _are_told_apart_by_name(one, other) and one.hostname != other.hostname


def _are_told_apart_by_name(one: ListenerPlan, other: ListenerPlan) -> bool:
    kinds = {_family(one), _family(other)}
    return "TLS" in kinds and kinds <= {"TLS", "HTTPS", _PROXY_OVER_TLS}


def _family(plan: ListenerPlan) -> str:
    if plan.protocol is ListenerProtocol.FORWARD_PROXY and plan.listener.tls is not None:
        return _PROXY_OVER_TLS
    return plan.listener.protocol
