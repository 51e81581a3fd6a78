"""Merging policies: what the layers of a place say together. Two ways of merging, and no third.

* Settings (mode, dns, timeouts): field by field, the more specific layer wins, Route > Backend > Gateway; within a
  layer the older policy. The loser is told who won.
* Restrictions (deny, allow, addresses, TLS floor, regions, limits): they add up; nothing more specific lifts them.

What is written and cannot be enforced closes the place (`Merged.blockers`) wherever leaving it out would let more pass:

* `subjects`: clients are not told apart yet. What such a policy forbids is forbidden to everybody; what it allows or
  sets is given to nobody; its filters cannot run for some clients only, so they close the place.
* `identity.token`, `identity.basic`: would let in whom it was told to check: closed. `dns.reverseCheck: Enforce`, and
  DNS over HTTPS where there is no other server: closed. So is `destinations.allow` on a route or Backend.
* `intercept`: the tunnels that it names would pass unseen: those names are denied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from egressproxy.config.compile import support
from egressproxy.config.compile.attempts import policy_retry
from egressproxy.config.compile.certificates import common_ca
from egressproxy.config.compile.contract import Key
from egressproxy.config.compile.references import References, Unresolved
from egressproxy.config.resources.policy import (
    AddressEntry,
    Addresses,
    DestinationEntry,
    Dns,
    EgressPolicy,
    EgressPolicySpec,
    Traffic,
    TrafficTimeouts,
)
from egressproxy.model.shares import most_of
from egressproxy.spec.policy import (
    AddressAllowance,
    AddressBound,
    AddressDenial,
    AddressesSpec,
    ConnectionsSpec,
    DestinationRule,
    DestinationsSpec,
    DnsSpec,
    LimitsSpec,
    Mode,
    PolicySpec,
    TimeoutsSpec,
)

__all__ = ["Layer", "Level", "Losses", "Merged", "Merger", "dns_notes"]


class Level(IntEnum):
    """How specific a layer is; the higher one wins (resources.md section 4, who wins)."""

    GATEWAY = 0
    LISTENER = 1
    BACKEND = 2
    ROUTE = 3
    RULE = 4


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The policies of one target, oldest first. Layers are interned, and compared by identity.

    `place` is how status names the target.
    `resolver` is the DNS section of a Backend object, which goes before the policies of the same layer.
    """

    level: Level
    target: Key
    section: str
    policies: tuple[EgressPolicy, ...]
    resolver: Dns | None = None

    @property
    def place(self) -> str:
        _, kind, namespace, name = self.target
        return f"{kind} {namespace}/{name}" + (f", section {self.section}" if self.section else "")


@dataclass(frozen=True, slots=True)
class Merged:
    """What holds at a place. `blockers` say why nothing may be served there; empty if all is enforced.

    `regions` None: every region. `pins` None, `ca_pem`, `crl_pem` and `min_version` "" ask for nothing.
    """

    policy: PolicySpec
    blockers: tuple[str, ...] = ()
    regions: frozenset[str] | None = None
    min_version: str = ""
    ca_pem: str = ""
    crl_pem: str = ""
    pins: frozenset[str] | None = None

    @property
    def has_tls_floor(self) -> bool:
        return bool(self.min_version or self.ca_pem or self.crl_pem or self.pins is not None)


@dataclass(slots=True)
class _Voice:
    """One value of one setting, with who says it."""

    layer: Layer
    policy: EgressPolicy | None
    value: Any

    @property
    def name(self) -> str:
        return str(self.policy) if self.policy is not None else self.layer.place


@dataclass(slots=True)
class Losses:
    """Which settings of one policy do not hold at one target: against its equals, and against the more specific."""

    conflicts: dict[str, None] = field(default_factory=dict)
    overrides: dict[str, None] = field(default_factory=dict)


class Merger:
    """Merges layers, and remembers what each policy lost against others."""

    __slots__ = ("_blockers", "_references", "losses")

    def __init__(self, references: References) -> None:
        self._references = references
        self._blockers: dict[EgressPolicy, tuple[str, ...]] = {}
        #: By policy, target and section.
        self.losses: dict[tuple[Key, Key, str], Losses] = defaultdict(Losses)

    def merge(self, layers: Iterable[Layer], is_routed: bool) -> Merged:
        """What the layers say together. `is_routed`: without the allow lists of Gateway and listener."""
        ordered = sorted(layers, key=lambda layer: layer.level, reverse=True)
        policies = list(dict.fromkeys(policy for layer in reversed(ordered) for policy in layer.policies))
        blockers = {blocker: None for policy in policies for blocker in self._of_policy(policy)}
        for layer in ordered:
            blockers.update(dict.fromkeys(b for policy in layer.policies for b in _misplaced(policy, layer.level)))
        retries = [_Voice(layer, policy, t.retries) for layer, policy, t in _traffic(ordered) if t.retries is not None]
        mode = self._mode(ordered)
        reported = _reported(ordered, mode)
        spec = PolicySpec(
            mode=mode,
            destinations=_destinations(ordered, is_routed, mode, reported),
            addresses=_addresses(ordered, reported),
            dns=self._dns(ordered, blockers),
            timeouts=self._timeouts(ordered),
            kept=self._connections(ordered),
            limits=_limits(ordered),
            retries=policy_retry(self._winner("traffic.retries", retries)),
            sources=tuple(policy.full_name for policy in policies),
        )
        return Merged(
            policy=spec,
            regions=_common(policies, lambda spec: spec.regions.allowed if spec.regions is not None else None),
            min_version=max((p.spec.tls.min_version or "" for p in policies if p.spec.tls is not None), default=""),
            ca_pem=self._ca(policies, blockers),
            crl_pem=self._crls(policies, blockers),
            pins=_common(policies, lambda spec: spec.tls.pins if spec.tls is not None and spec.tls.pins else None),
            blockers=tuple(blockers),
        )

    def blockers(self, policy: EgressPolicy, level: Level) -> list[str]:
        """Why a place at this level cannot be served under this policy; empty if all of it is enforced."""
        return [*self._of_policy(policy), *_misplaced(policy, level)]

    # --- settings: the more specific one wins ------------------------------------------------------------------------

    def _winner(self, name: str, voices: Sequence[_Voice]) -> Any:
        """The first value; everybody else who says something different is told so."""
        if not voices:
            return None
        first = voices[0]
        for voice in voices[1:]:
            if voice.policy is None or voice.value == first.value:
                continue
            losses = self.losses[voice.policy.key, voice.layer.target, voice.layer.section]
            if voice.layer is first.layer:
                losses.conflicts[f"{name} is that of {first.name}, which is older or precedes it by name"] = None
            else:
                losses.overrides[f"{name} is that of {first.name} for {first.layer.place}"] = None
        return first.value

    def _mode(self, ordered: Sequence[Layer]) -> Mode:
        return self._winner("mode", _modes(ordered)) or Mode.ENFORCE

    def _dns(self, ordered: Sequence[Layer], blockers: dict[str, None]) -> DnsSpec:
        sections: list[tuple[Layer, EgressPolicy | None, Dns]] = []
        for layer in ordered:
            if layer.resolver is not None:
                sections.append((layer, None, layer.resolver))
                blockers.update(dict.fromkeys(_dns_blockers(layer.resolver, layer.place)))
            sections += [
                (layer, policy, policy.spec.dns)
                for policy in layer.policies
                if policy.spec.dns is not None and not policy.spec.subjects
            ]

        def winner(name: str, attribute: str) -> Any:
            said = [
                _Voice(layer, policy, getattr(dns, attribute))
                for layer, policy, dns in sections
                if attribute in dns.model_fields_set and getattr(dns, attribute) is not None
            ]
            return self._winner(f"dns.{name}", said)

        # The transport belongs to the servers: one policy decides both.
        said = [
            _Voice(layer, policy, _servers(dns))
            for layer, policy, dns in sections
            if {"servers", "transport"} & dns.model_fields_set
        ]
        transport, servers = self._winner("dns.servers", said) or ("udp", ())
        least, most = winner("minTTL", "min_ttl"), winner("maxTTL", "max_ttl")
        timeout, stale = winner("timeout", "timeout"), winner("staleTTL", "stale_ttl")
        standard = DnsSpec()
        max_ttl_s = most.seconds if most is not None else standard.max_ttl_s
        min_ttl_s = least.seconds if least is not None else standard.min_ttl_s
        hosts = winner("hosts", "hosts") or {}
        return DnsSpec(
            servers=servers,
            transport=transport,
            timeout_s=timeout.seconds if timeout is not None else standard.timeout_s,
            hosts=tuple(sorted((name, tuple(addresses)) for name, addresses in hosts.items())),
            min_ttl_s=min(min_ttl_s, max_ttl_s) if most is not None else min_ttl_s,
            max_ttl_s=max(min_ttl_s, max_ttl_s) if most is None else max_ttl_s,
            stale_ttl_s=stale.seconds if stale is not None else standard.stale_ttl_s,
            family=winner("family", "family") or standard.family,
        )

    def _timeouts(self, ordered: Sequence[Layer]) -> TimeoutsSpec:
        chosen: dict[str, float] = {}
        for name, info in TrafficTimeouts.model_fields.items():
            voices = [
                _Voice(layer, policy, value.seconds)
                for layer, policy, traffic in _traffic(ordered)
                if (value := getattr(traffic.timeouts, name)) is not None
            ]
            if voices:
                chosen[f"{name}_s"] = self._winner(f"traffic.timeouts.{info.alias or name}", voices)
        return TimeoutsSpec(**chosen)

    def _connections(self, ordered: Sequence[Layer]) -> ConnectionsSpec:
        def winner(name: str, attribute: str) -> Any:
            said = [
                _Voice(layer, policy, value)
                for layer, policy, traffic in _traffic(ordered)
                if (value := getattr(traffic.connections, attribute)) is not None
            ]
            return self._winner(f"traffic.connections.{name}", said)

        age = winner("maxAge", "max_age")
        return ConnectionsSpec(age.seconds if age is not None else 0.0, winner("maxRequests", "max_requests") or 0)

    # --- restrictions: they add up -----------------------------------------------------------------------------------

    def _ca(self, policies: Iterable[EgressPolicy], blockers: dict[str, None]) -> str:
        """The CA certificates that every policy with `tls.caBundleRefs` accepts."""
        common = ""
        for policy in policies:
            if policy.spec.tls is None or not policy.spec.tls.ca_bundle_refs:
                continue
            try:
                bundle = "".join(self._references.ca_bundle(policy, ref) for ref in policy.spec.tls.ca_bundle_refs)
            except Unresolved as unresolved:
                blockers[f"tls.caBundleRefs of {policy}: {unresolved.message}"] = None
                continue
            shared = common_ca(common, bundle)
            if not shared:
                blockers[f"tls.caBundleRefs of {policy} has no CA in common with the other policies"] = None
                continue
            common = shared
        return common

    def _crls(self, policies: Iterable[EgressPolicy], blockers: dict[str, None]) -> str:
        """Every revocation list that a policy names."""
        lists: dict[str, None] = {}
        for policy in policies:
            for ref in policy.spec.tls.crl_refs if policy.spec.tls is not None else ():
                try:
                    lists[self._references.crl(policy, ref)] = None
                except Unresolved as unresolved:
                    blockers[f"tls.crlRefs of {policy}: {unresolved.message}"] = None
        return "".join(lists)

    def _of_policy(self, policy: EgressPolicy) -> tuple[str, ...]:
        if policy not in self._blockers:
            self._blockers[policy] = tuple(self._find_blockers(policy))
        return self._blockers[policy]

    def _find_blockers(self, policy: EgressPolicy) -> Iterable[str]:
        """What this policy restricts and nobody would enforce."""
        spec = policy.spec
        if spec.dns is not None:
            yield from _dns_blockers(spec.dns, str(policy))
        if spec.identity is not None and (spec.identity.token is not None or spec.identity.basic is not None):
            yield f"identity of {policy}: clients cannot be told by token or password yet"
        if spec.subjects and spec.extensions:
            yield f"extensions of {policy}: subjects are not told apart yet, and its filters are not for everybody"


def _traffic(ordered: Sequence[Layer]) -> list[tuple[Layer, EgressPolicy, Traffic]]:
    """The `traffic` sections, most specific first. What is for some clients only is given to nobody."""
    each = ((layer, policy, policy.spec.traffic) for layer in ordered for policy in layer.policies)
    return [(layer, policy, said) for layer, policy, said in each if said is not None and not policy.spec.subjects]


def _modes(ordered: Iterable[Layer]) -> list[_Voice]:
    """Who says a mode, most specific first."""
    return [
        _Voice(layer, policy, policy.spec.mode)
        for layer in ordered
        for policy in layer.policies
        if policy.spec.mode is not None and (not policy.spec.subjects or policy.spec.mode is Mode.ENFORCE)
    ]


def _reported(ordered: Sequence[Layer], mode: Mode) -> frozenset[Level]:
    """The levels whose denials mode Report lets pass: it has to hold where they were written, too. A more specific
    policy that says Report lifts nothing that a wider one denies.
    """
    if mode is not Mode.REPORT:
        return frozenset()
    modes = _modes(ordered)
    said = {level: next((voice.value for voice in modes if voice.layer.level <= level), None) for level in Level}
    return frozenset(level for level, value in said.items() if value is Mode.REPORT)


def _destinations(
    ordered: Sequence[Layer], is_routed: bool, mode: Mode, reported: Container[Level]
) -> DestinationsSpec:
    """Deny at any level denies; one group of allow per layer that says something. Both from the Gateway down."""
    allow: list[tuple[DestinationRule, ...]] = []
    deny: dict[DestinationRule, None] = {}
    for layer in reversed(ordered):
        group: dict[DestinationRule, None] = {}
        says_something = False
        is_firm = mode is Mode.REPORT and layer.level not in reported
        for policy in layer.policies:
            section = policy.spec.destinations
            if section is not None:
                deny.update(dict.fromkeys(_rule(entry, policy, is_firm=is_firm) for entry in section.deny))
                if section.allow is not None:
                    says_something = True
                    if not policy.spec.subjects:
                        group.update(dict.fromkeys(_rule(entry, policy) for entry in section.allow))
            if policy.spec.intercept is not None:
                names = policy.spec.intercept.hostnames
                rule = DestinationRule(hostnames=names, policy=policy.full_name, intercepts=True, is_firm=is_firm)
                deny[rule] = None
        if says_something and not (is_routed and layer.level <= Level.LISTENER):
            allow.append(tuple(group))
    return DestinationsSpec(tuple(allow), tuple(deny))


def _rule(entry: DestinationEntry, policy: EgressPolicy, *, is_firm: bool = False) -> DestinationRule:
    return DestinationRule(entry.hostnames, entry.ports, entry.cidrs, entry.sni, policy.full_name, is_firm=is_firm)


def _addresses(ordered: Sequence[Layer], reported: Container[Level]) -> AddressesSpec:
    """One group of allow per layer that says something; every deny and every `only`, of all policies alike."""
    groups: list[tuple[AddressAllowance, ...]] = []
    deny: dict[AddressDenial, None] = {}
    only: dict[AddressBound, None] = {}
    name = "-"
    for layer in reversed(ordered):
        for policy in layer.policies:
            deny.update(dict.fromkeys(_denied_ranges(policy, reports=layer.level in reported)))
            if policy.spec.addresses is not None and policy.spec.addresses.only is not None:
                ranges = (cidr for entry in policy.spec.addresses.only for cidr in entry.cidrs)
                only[AddressBound(tuple(dict.fromkeys(ranges)), policy.full_name)] = None
        saying = [policy for policy in layer.policies if _speaks_of_allowed(policy.spec.addresses)]
        if not saying:
            continue
        entries: list[AddressEntry] = []
        for policy in saying:
            if policy.spec.addresses is not None and not policy.spec.subjects:
                entries += policy.spec.addresses.allow
        groups.append(tuple(dict.fromkeys(AddressAllowance(entry.cidrs, entry.hostnames) for entry in entries)))
        name = saying[0].full_name if name == "-" else name
    return AddressesSpec(tuple(groups), name, tuple(deny), tuple(only))


def _speaks_of_allowed(section: Addresses | None) -> bool:
    """Not with `deny` or `only` alone: these narrow, and take nothing back that another level has opened."""
    return section is not None and (
        "allow" in section.model_fields_set or not {"deny", "only"} & section.model_fields_set
    )


def _denied_ranges(policy: EgressPolicy, *, reports: bool) -> Iterable[AddressDenial]:
    """What no name may lead to. Mode Report lets pass what `destinations` denies, and nothing else."""
    destinations, addresses = policy.spec.destinations, policy.spec.addresses
    for entry in destinations.deny if destinations is not None else ():
        if entry.cidrs:
            yield AddressDenial(entry.cidrs, entry.ports, policy.full_name, "destinations.deny", reports=reports)
    for ranges in addresses.deny if addresses is not None else ():
        yield AddressDenial(ranges.cidrs, (), policy.full_name)


def _limits(ordered: Sequence[Layer]) -> LimitsSpec:
    """The least of each, over the policies of the Gateway and the listener: connections belong to no route."""
    chosen: dict[str, int] = {}
    is_lifted = False
    for layer in ordered:
        if layer.level > Level.LISTENER:
            continue
        for policy in layer.policies:
            for name in ("max_head_bytes", "max_fields", "connections", "connections_per_client", "tunnels"):
                value = getattr(policy.spec.limits, name, None)
                if value:
                    chosen[name] = min(value, chosen.get(name, value))
            is_lifted = is_lifted or getattr(policy.spec.limits, "connections_per_client", None) == 0
    # One client leaves something for the others, unless somebody has said how much it may have (0: everything).
    written, connections, tunnels = (
        chosen.get(name, 0) for name in ("connections_per_client", "connections", "tunnels")
    )
    chosen["connections_per_client"] = written or (connections if is_lifted else most_of(connections))
    chosen["tunnels_per_client"] = written or (tunnels if is_lifted else most_of(tunnels))
    return LimitsSpec(**chosen)


def _common(
    policies: Iterable[EgressPolicy], allowed_by: Callable[[EgressPolicySpec], Iterable[str] | None]
) -> frozenset[str] | None:
    """What all policies allow that say something; None where none does."""
    common: frozenset[str] | None = None
    for policy in policies:
        allowed = allowed_by(policy.spec)
        if allowed is not None:
            common = frozenset(allowed) if common is None else common & frozenset(allowed)
    return common


def _misplaced(policy: EgressPolicy, level: Level) -> Iterable[str]:
    """What is enforced on a Gateway or listener, and not on a route or Backend."""
    section = policy.spec.destinations
    if level > Level.LISTENER and section is not None and section.allow is not None and not support.ROUTED_ALLOW:
        yield f"destinations.allow of {policy} is not enforced on a route or Backend yet: put it on the Gateway"


def _servers(dns: Dns) -> tuple[str, tuple[str, ...]]:
    """Transport and servers in the form of DnsSpec; those over HTTPS are left out."""
    transport = "tcp" if any(server.startswith("tcp://") for server in dns.servers) else dns.transport
    servers = [server for server in dns.servers if not server.startswith("https://")]
    return transport, tuple(server.removeprefix("udp://").removeprefix("tcp://") for server in servers)


def dns_notes(dns: Dns, section: str) -> list[str]:
    """What a `dns` or `resolver` section says and nobody does; for status."""
    notes = []
    if dns.reverse_check == "Report":
        notes.append(f"{section}.reverseCheck is not supported yet and does nothing.")
    if any(server.startswith("https://") for server in dns.servers):
        notes.append(f"{section}.servers over HTTPS are not supported yet and left out.")
    return notes


def _dns_blockers(dns: Dns, owner: str) -> Iterable[str]:
    over_https = [server for server in dns.servers if server.startswith("https://")]
    if dns.transport == "https" or (over_https and len(over_https) == len(dns.servers)):
        yield f"dns of {owner}: DNS over HTTPS is not supported yet"
    if dns.reverse_check == "Enforce":
        yield f"dns.reverseCheck of {owner} is not enforced yet"
