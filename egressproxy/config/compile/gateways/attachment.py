"""Which listeners a route attaches to, and for which hostnames.

Both sides have to agree: the route names the Gateway (and maybe one listener, one port), the listener admits the
route's namespace and kind, and their hostnames overlap.
Source: Gateway API v1 ParentReference, AllowedRoutes, Listener.hostname.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from egressproxy.config.compile.gateways.gateway_plan import GatewayPlan
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan, have_hosts_in_common
from egressproxy.config.compile.references import References
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.object_references import ParentReference
from egressproxy.model.near_names import did_you_mean
from egressproxy.model.published_object import Key


@dataclass(frozen=True, slots=True, eq=False)
class Attachment:
    """A route at one listener; `hostnames` are those of the route that have hosts in common with the listener's.

    Empty: every host of the listener. They are kept as the route has them, not narrowed to the listener's: no other
    hosts come here, and which route goes first is decided by what the routes say (HTTPRouteSpec.hostnames).
    """

    listener: ListenerPlan
    hostnames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a route attaches nowhere below one parentRef: the reason and message of its `Accepted` condition."""

    reason: str
    message: str


class Parents:
    """What routes may name as their parents: the Gateways and ListenerSets that are ours."""

    __slots__ = ("_listeners", "_references", "_refused")

    def __init__(self, plans: Iterable[GatewayPlan], references: References) -> None:
        self._references = references
        self._listeners: dict[Key, list[ListenerPlan]] = {}
        self._refused: dict[Key, str] = {}
        for plan in plans:
            self._listeners[plan.gateway.key] = plan.own
            for attached in plan.sets:
                owner = attached.listener_set
                self._listeners[owner.key] = [p for p in plan.listeners if p.owner is owner]
                self._refused[owner.key] = attached.refusal

    def attach(
        self, route: Resource, hostnames: Sequence[str], ref: ParentReference
    ) -> list[Attachment] | Rejection | None:
        """The listeners that one parentRef attaches the route to; None where the parent is not ours."""
        key = (ref.group, ref.kind, ref.namespace or route.namespace, ref.name)
        listeners = self._listeners.get(key)
        if listeners is None:
            return None
        if not listeners:
            return Rejection("NoMatchingParent", f"{ref.kind} {key[2]}/{ref.name} is not served: {self._refused[key]}")
        named = [
            plan
            for plan in listeners
            if ref.section_name in (None, plan.listener.name) and ref.port in (None, plan.listener.port)
        ]
        if not named:
            restriction = f" named {ref.section_name}" if ref.section_name else ""
            restriction += f" on port {ref.port}" if ref.port else ""
            message = f"{ref.kind} {key[2]}/{ref.name} has no listener{restriction}{_hint(ref, listeners)}"
            return Rejection("NoMatchingParent", message)
        refusals = {plan: self._refusal(plan, route) for plan in named}
        admitting = [plan for plan, refusal in refusals.items() if not refusal]
        if not admitting:
            return Rejection("NotAllowedByListeners", "; ".join(dict.fromkeys(refusals.values())))
        common = {plan: common_hostnames(plan.hostname, hostnames) for plan in admitting}
        attached = [Attachment(plan, names) for plan, names in common.items() if names is not None]
        if not attached:
            theirs = ", ".join(plan.hostname for plan in admitting)
            message = f"none of the hostnames {', '.join(hostnames)} is within the listener's ({theirs})"
            return Rejection("NoMatchingListenerHostname", message)
        return attached

    def _refusal(self, plan: ListenerPlan, route: Resource) -> str:
        if route.KIND not in plan.kinds:
            kinds = ", ".join(plan.kinds) or "none"
            return f"listener {plan.name} does not take routes of kind {route.KIND} (it takes: {kinds})"
        allowed = plan.listener.allowed_routes.namespaces
        if not self._references.is_allowed(allowed, route.namespace, plan.owner.namespace):
            return (
                f"listener {plan.name} does not take routes of namespace {route.namespace}: "
                f"allowedRoutes.namespaces.from is {allowed.from_}"
            )
        return ""


def _hint(ref: ParentReference, listeners: Iterable[ListenerPlan]) -> str:
    """Which listeners there are, the nearest name first."""
    names = [plan.listener.name for plan in listeners]
    shown = [f"{plan.listener.name} on port {plan.listener.port}" for plan in listeners]
    there = f"it has {', '.join(shown[:5])}{' and more' if len(shown) > 5 else ''}"
    return f" ({there if ref.section_name in names else did_you_mean(ref.section_name or '', names, there)})"


def common_hostnames(listener: str, hostnames: Sequence[str]) -> tuple[str, ...] | None:
    """The route's hostnames that share hosts with the listener's ("": all). Empty: every host; None: no host."""
    common = tuple(dict.fromkeys(hostname for hostname in hostnames if have_hosts_in_common(hostname, listener)))
    return common if common or not hostnames else None
