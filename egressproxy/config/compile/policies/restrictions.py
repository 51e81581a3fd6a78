"""Restrictions: the merged denials, allow lists and limits of all layers. Restrictions add up, and a more specific
policy cannot lift them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from egressproxy.config.compile.policies.layers import Layer, Level
from egressproxy.config.resources.policy import (
    Addresses,
    DeniedAddressRanges,
    DestinationEntry,
    EgressPolicy,
    EgressPolicySpec,
)
from egressproxy.ir.policy import (
    AddressAllowance,
    AddressBound,
    AddressDenial,
    AddressesIR,
    DestinationRule,
    DestinationsIR,
    ExtensionIR,
    LimitsIR,
    Mode,
    NameDenial,
)
from egressproxy.model.per_client_quota import most_of

#: The fields of `limits` for connections, which apply to Gateways and listeners alone.
CONNECTION_LIMITS: Final = (
    "max_head_bytes", "max_fields", "max_buffered_bytes", "buffered_bytes_per_client", "buffered_bytes_per_connection",
    "connections", "connections_per_client", "tunnels",
)  # fmt: skip
#: The names of the built-in type RegionLock, a restriction that never runs as a filter.
_REGION_LOCKS: Final = frozenset(
    ("RegionLock", "egressproxy.io/RegionLock:v1", "gateway.networking.k8s.io/RegionLock:v1")
)


def merge_destinations(
    ordered: Sequence[Layer],
    is_routed: bool,
    mode: Mode,
    reported: Container[Level],
    bound: Container[Level],
    opened: Container[tuple[Layer, EgressPolicy]] = (),
) -> DestinationsIR:
    """The merged destinations: all denials, and one group of allow per layer with a list, from the Gateway down.

    Mode Report lifts the denials of `reported` levels, and no mode lifts the allow lists of `bound` levels. The names
    in `intercept` of policies that are not `opened` are denied at their layer.

    The lists of policies of other namespaces are separate levels. Without the owner's lists these allow by themselves,
    unless all of these policies only narrow.
    """
    allow: list[tuple[DestinationRule, ...]] = []
    listed: list[tuple[str, ...]] = []
    messages: list[str] = []
    texts = {each.full_name: each.spec.message for one in ordered for each in one.policies if each.spec.message}
    allowing: list[Layer] = []
    firm_allow = 0
    deny: dict[DestinationRule, None] = {}
    withheld: dict[DestinationRule, None] = {}
    for layer in reversed(ordered):
        group: dict[DestinationRule, None] = {}
        lists: list[str] = []
        is_firm = mode is Mode.REPORT and layer.level not in reported
        for policy in layer.policies:
            section = policy.spec.destinations
            if section is not None:
                deny.update(dict.fromkeys(_denied(entry, policy, is_firm=is_firm) for entry in section.deny))
                if section.allow is not None:
                    lists.append(policy.full_name)
                    group.update(dict.fromkeys(_rule(entry, policy) for entry in section.allow))
            if policy.spec.intercept is not None and (layer, policy) not in opened:
                names, says = policy.spec.intercept.hostnames, policy.spec.message or ""
                rule = DestinationRule(names, policy=policy.full_name, intercepts=True, is_firm=is_firm, message=says)
                deny[rule] = None
        for policy in layer.withheld:
            allowed = policy.spec.destinations.allow if policy.spec.destinations is not None else None
            withheld.update(dict.fromkeys(_rule(entry, policy) for entry in allowed or ()))
        if lists and not (is_routed and layer.level <= Level.LISTENER):
            allow.append(tuple(group))
            listed.append(tuple(dict.fromkeys(lists)))
            messages.append(texts.get(lists[0], ""))
            allowing.append(layer)
            firm_allow += layer.level in bound
    is_delegated = bool(allowing) and all(layer.is_foreign for layer in allowing)
    if is_delegated and all(layer.only_narrows for layer in allowing):
        allow.append(())
        listed.append(listed[-1])
        messages.append(messages[-1])
    return DestinationsIR(
        tuple(allow),
        tuple(deny),
        firm_allow,
        tuple(withheld),
        tuple(listed),
        is_delegated,
        messages=tuple(messages) if any(messages) else (),
        message=next(iter(texts.values()), "") if not allow else "",
    )


def _rule(entry: DestinationEntry, policy: EgressPolicy) -> DestinationRule:
    return DestinationRule(entry.hostnames, entry.ports, entry.cidrs, entry.sni, policy.full_name)


def _denied(entry: DestinationEntry, policy: EgressPolicy, *, is_firm: bool) -> DestinationRule:
    return replace(_rule(entry, policy), is_firm=is_firm, message=_message(policy, entry))


def _message(policy: EgressPolicy, entry: DestinationEntry | DeniedAddressRanges | None = None) -> str:
    """What clients are told whom this entry of the policy refuses; "" for nothing."""
    return (entry.message if entry is not None else None) or policy.spec.message or ""


def merge_addresses(
    ordered: Sequence[Layer], reported: Container[Level], *, is_public_alone: bool = False
) -> AddressesIR:
    """The merged addresses: one group of allow per layer with a list; every `deny` and `only` of all policies.

    `is_public_alone`: no policy can open non-public addresses, as when only policies of other namespaces allow them.
    """
    groups: list[tuple[AddressAllowance, ...]] = []
    deny: dict[AddressDenial, None] = {}
    only: dict[AddressBound, None] = {}
    names: dict[NameDenial, None] = {}
    name, message, has_owners = "-", "", False
    for layer in reversed(ordered):
        for policy in layer.policies:
            deny.update(dict.fromkeys(_denied_ranges(policy, reports=layer.level in reported)))
            names.update(dict.fromkeys(_denied_names(policy, reports=layer.level in reported)))
            if policy.spec.addresses is not None and policy.spec.addresses.only is not None:
                ranges = (cidr for entry in policy.spec.addresses.only for cidr in entry.cidrs)
                only[AddressBound(tuple(dict.fromkeys(ranges)), policy.full_name, _message(policy))] = None
        sections = ((policy, policy.spec.addresses) for policy in layer.policies)
        saying = [(policy, each) for policy, each in sections if each is not None and _speaks_of_allowed(each)]
        if saying:
            entries = (entry for _, each in saying for entry in each.allow)
            groups.append(tuple(dict.fromkeys(AddressAllowance(entry.cidrs, entry.hostnames) for entry in entries)))
            if name == "-":
                name, message = saying[0][0].full_name, _message(saying[0][0])
            has_owners |= not layer.is_foreign
    owner = ""
    if is_public_alone or (groups and not has_owners):
        groups.append(())
        owner = next((layer.target[2] for layer in ordered if layer.is_foreign), "")
    return AddressesIR(tuple(groups), name, tuple(deny), tuple(only), tuple(names), owner, message)


def _speaks_of_allowed(section: Addresses) -> bool:
    """Whether the section counts as an allow list. `deny` or `only` alone narrow without a list."""
    return "allow" in section.model_fields_set or not {"deny", "only"} & section.model_fields_set


def _denied_ranges(policy: EgressPolicy, *, reports: bool) -> Iterable[AddressDenial]:
    """The denied address ranges. Mode Report lifts only those of `destinations`."""
    destinations, addresses = policy.spec.destinations, policy.spec.addresses
    for entry in destinations.deny if destinations is not None else ():
        if entry.cidrs:
            says = _message(policy, entry)
            yield AddressDenial(entry.cidrs, entry.ports, policy.full_name, "destinations.deny", reports, says)
    for ranges in addresses.deny if addresses is not None else ():
        yield AddressDenial(ranges.cidrs, (), policy.full_name, message=_message(policy, ranges))


def _denied_names(policy: EgressPolicy, *, reports: bool) -> Iterable[NameDenial]:
    """The names that are denied as CNAME targets."""
    destinations = policy.spec.destinations
    for entry in destinations.deny if destinations is not None else ():
        if entry.hostnames:
            yield NameDenial(entry.hostnames, entry.ports, policy.full_name, reports, _message(policy, entry))


def merge_limits(ordered: Sequence[Layer]) -> LimitsIR:
    """The minimum of each limit over the policies of Gateway and listener: connections belong to no route."""
    policies = (policy for layer in ordered if layer.level <= Level.LISTENER for policy in layer.policies)
    # Connections are counted before the client is identified.
    sections = [each.spec.limits for each in policies if each.spec.limits is not None and not each.spec.subjects]
    written_values = {name: [getattr(one, name) for one in sections] for name in CONNECTION_LIMITS}
    chosen = {name: min(filter(None, values)) for name, values in written_values.items() if any(values)}
    chosen |= {name: 0 for name, values in written_values.items() if 0 in values and name not in chosen}
    is_lifted = 0 in written_values["connections_per_client"]
    # One client gets a share of the limit, unless a policy sets connectionsPerClient (0: no limit per client).
    written, connections, tunnels = (
        chosen.get(name, 0) for name in ("connections_per_client", "connections", "tunnels")
    )
    chosen["connections_per_client"] = written or (connections if is_lifted else most_of(connections))
    chosen["tunnels_per_client"] = written or (tunnels if is_lifted else most_of(tunnels))
    return LimitsIR(**chosen)


def allowed_regions(spec: EgressPolicySpec) -> frozenset[str] | None:
    """The regions that a policy allows: its `regions`, and each RegionLock of its extensions."""
    lists = [spec.regions.allowed] if spec.regions is not None else []
    lists += [_locked(extension.config) for extension in spec.extensions if is_region_lock(extension.type)]
    return frozenset.intersection(*map(frozenset, lists)) if lists else None


def locked_regions(extensions: Iterable[ExtensionIR]) -> frozenset[str] | None:
    """The regions that the RegionLocks among these extensions allow; None without a RegionLock."""
    locks = [_locked(json.loads(each.config)) for each in extensions if is_region_lock(each.type)]
    return frozenset.intersection(*map(frozenset, locks)) if locks else None


def is_region_lock(type_: str) -> bool:
    return type_ in _REGION_LOCKS


def _locked(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The regions of a RegionLock; an invalid config, which is reported elsewhere, allows none."""
    allowed = config.get("allowed")
    return tuple(each for each in allowed if type(each) is str) if isinstance(allowed, list | tuple) else ()


def intersect(
    policies: Iterable[EgressPolicy], allowed_by: Callable[[EgressPolicySpec], Iterable[str] | None]
) -> frozenset[str] | None:
    """The regions that all policies with a restriction allow; None without a restriction."""
    lists = (allowed_by(policy.spec) for policy in policies)
    sets = [frozenset(allowed) for allowed in lists if allowed is not None]
    return frozenset.intersection(*sets) if sets else None
