"""Merging policies: what all layers of a place say together, in one of two ways.

* Settings (mode, dns, parent, timeouts): field by field, the more specific layer wins, Route > Backend > Gateway, and
  of one object a section (a listener, a port) before the whole; within a layer the older policy. The status of the
  overridden policy names the other.
* Restrictions (deny, allow, addresses, TLS floor, regions, limits): they add up; nothing more specific lifts them
  (`restrictions`).

What is written and cannot be enforced closes the place (`unenforceable`) wherever leaving it out would let more pass:

* `identity` on a route or Backend, or for some clients only (`subjects`): the place is closed, since clients would not
  be checked. So it is with DNS servers of which none has an address, and with `destinations.allow` on a route or
  Backend.
* `intercept` on a route or Backend, or whose CA cannot be read: the names that it lists are denied, since their tunnels
  would not be inspected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic.alias_generators import to_camel

from egressproxy.config.compile.backends.parent_credentials import checked_key
from egressproxy.config.compile.certificates import common_ca
from egressproxy.config.compile.dns_section import dns_blockers
from egressproxy.config.compile.policies.dns_merge import DnsMerger
from egressproxy.config.compile.policies.identity import SECTIONS, read_identity, required_of, section_of
from egressproxy.config.compile.policies.layers import (
    EffectivePolicy,
    Layer,
    Level,
    PolicyCandidate,
    field_path,
    field_value,
    plain_value,
)
from egressproxy.config.compile.policies.resilience import (
    circuit_breaker,
    health_check,
    load_balancer,
    outlier_detection,
    policy_hedging,
    policy_retry,
)
from egressproxy.config.compile.policies.restrictions import (
    allowed_regions,
    intersect,
    merge_addresses,
    merge_destinations,
    merge_limits,
)
from egressproxy.config.compile.policies.signing_cas import SigningCas, signing_cas
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.source_addresses import source_address
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.parent import BackendParent, ParentProxyRef
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.traffic import TrafficTimeouts
from egressproxy.ir.identity import IdentityIR
from egressproxy.ir.name_server import DEFAULT_ANSWERS, NameServerIR
from egressproxy.ir.policy import ConnectionsIR, InterceptIR, Mode, PolicyIR, Priority, TimeoutsIR
from egressproxy.ir.resilience import NO_RESILIENCE, ResilienceIR
from egressproxy.model.published_object import Key
from egressproxy.model.secret import SecretBytes


@dataclass(frozen=True, slots=True)
class ChosenParent:
    """The parent that holds at a place, and the policy that names it."""

    ref: BackendParent
    policy: EgressPolicy = field(compare=False)


@dataclass(frozen=True, slots=True)
class Merged:
    """What holds at a place. `unenforceable` say why nothing may be served there; empty if all is enforced.

    `parent` is the upstream gateway that the policies set. `regions` None: every region. `pins` None, `ca_pem`,
    `crl_pem` and `min_version` "" ask for nothing.
    """

    policy: PolicyIR
    unenforceable: tuple[str, ...] = ()
    parent: ChosenParent | None = None
    regions: frozenset[str] | None = None
    min_version: str = ""
    ca_pem: str = ""
    crl_pem: str = ""
    pins: frozenset[str] | None = None

    @property
    def has_tls_floor(self) -> bool:
        return bool(self.min_version or self.ca_pem or self.crl_pem or self.pins is not None)


class Merger:
    """Merges layers, and remembers what each policy lost against others."""

    __slots__ = ("_dns", "_identities", "_references", "_resources", "_signing", "effective")

    def __init__(self, references: References, resources: ResourceSet) -> None:
        self._references = references
        self._resources = resources
        self.effective = EffectivePolicy()
        self._dns = DnsMerger(references, self.effective)
        self._signing: dict[Key, SigningCas] = {}
        #: By the policies that say it.
        self._identities: dict[object, tuple[IdentityIR | None, dict[str, None]]] = {}

    def merge(self, layers: Iterable[Layer], is_routed: bool) -> Merged:
        """What the layers say together. `is_routed`: without the allow lists of Gateway and listener."""
        ordered = sorted(layers, key=lambda each: (each.level, each.section != "", each.is_foreign), reverse=True)
        policies = list(dict.fromkeys(policy for layer in reversed(ordered) for policy in layer.policies))
        unenforceable = {blocker: None for policy in policies for blocker in _blockers(policy)}
        for layer in ordered:
            unenforceable.update(dict.fromkeys(b for policy in layer.policies for b in _misplaced(policy, layer.level)))
        mode = self.effective.choose("mode", _modes(ordered)) or Mode.ENFORCE
        modes = _modes_of_levels(ordered)
        reported = {level for level, own in modes.items() if mode is own is Mode.REPORT}
        if modes[Level.LISTENER] is not Mode.REPORT:
            reported.discard(Level.GATEWAY)  # what holds on a listener is lifted by no route there
        bound = {level for level, own in modes.items() if mode is not own is Mode.ENFORCE}
        opened = self._intercepts(ordered)
        identity = self._identity(ordered, unenforceable)
        gateway_keys, gateway_trust_domain = self._gateways(ordered, unenforceable)
        destinations = merge_destinations(ordered, is_routed, mode, reported, bound, opened)
        is_public_alone = destinations.is_delegated and mode is Mode.ENFORCE
        spec = PolicyIR(
            mode=mode,
            destinations=destinations,
            addresses=merge_addresses(ordered, reported, is_public_alone=is_public_alone),
            dns=self._dns.merge(ordered, unenforceable),
            name_server=DEFAULT_ANSWERS if is_routed else self._name_server(ordered),
            timeouts=self._timeouts(ordered),
            kept=self._connections(ordered),
            extended_connect=bool(self._traffic_winner(ordered, "http2.extended_connect")),
            half_close=bool(self._traffic_winner(ordered, "half_close")),
            gateway_keys=gateway_keys,
            gateway_trust_domain=gateway_trust_domain,
            intercepts=tuple(opened.values()) if not is_routed else (),
            identity=None if is_routed else identity,
            limits=merge_limits(ordered),
            retries=policy_retry(self._traffic_winner(ordered, "retries")),
            hedging=policy_hedging(self._traffic_winner(ordered, "hedging")),
            resilience=self._resilience(ordered),
            source_address=self.effective.choose(
                "sourceAddress",
                _candidates(ordered, lambda policy: source_address(policy.spec.source_address, str(policy))),
            ),
            priority=self._traffic_winner(ordered, "priority") or Priority.NORMAL,
            sources=tuple(dict.fromkeys(policy.full_name for policy in policies)),
            mode_source=next((v.policy.full_name for v in _modes(ordered) if v.policy is not None), "-"),
        )
        crl_refs = ((policy, ref) for policy in policies if policy.spec.tls for ref in policy.spec.tls.crl_refs)
        return Merged(
            policy=spec,
            parent=self._parent(ordered),
            regions=intersect(policies, allowed_regions),
            min_version=max((p.spec.tls.min_version or "" for p in policies if p.spec.tls is not None), default=""),
            ca_pem=self._ca(policies, unenforceable),
            crl_pem=self._references.crls(crl_refs, "tls.crlRefs", unenforceable),
            pins=intersect(policies, lambda spec: spec.tls.pins if spec.tls is not None and spec.tls.pins else None),
            unenforceable=tuple(unenforceable),
        )

    def unenforceable(self, policy: EgressPolicy, level: Level) -> list[str]:
        """Why a place at this level cannot be served under this policy; empty if all of it is enforced."""
        own = {section: policy for section in SECTIONS if section_of(section, policy) is not None}
        unread = list(self._read_identity(own, None)[1]) if own else []
        if policy.spec.dns is not None:
            problem = self._dns.trust(policy.key, f"dns.caCertificateRefs of {policy}", policy.spec.dns)[2]
            unread += [problem] if problem else []
        return [*_blockers(policy), *_misplaced(policy, level), *unread]

    def signing_cas(self, policy: EgressPolicy) -> SigningCas:
        """The CAs of its `intercept`, read once."""
        found = self._signing.get(policy.key)
        if found is None:
            found = self._signing[policy.key] = signing_cas(self._references, self._resources, policy)
        return found

    # --- settings: the more specific one wins ------------------------------------------------------------------------

    def _parent(self, ordered: Sequence[Layer]) -> ChosenParent | None:
        """Reference and credentials together: one policy decides both."""
        candidates = _candidates(ordered, lambda policy: policy.spec.parent and ChosenParent(_in_full(policy), policy))
        chosen: ChosenParent | None = self.effective.choose("parent", candidates)
        return chosen

    def _gateways(
        self, ordered: Sequence[Layer], unenforceable: dict[str, None]
    ) -> tuple[tuple[SecretBytes, ...], str]:
        """Keys and trust domain of one policy: the most specific that says `identity.gateways`."""
        candidates = _candidates(
            ordered, lambda policy: policy if policy.spec.identity and policy.spec.identity.gateways else None
        )
        policy: EgressPolicy | None = self.effective.choose("identity.gateways", candidates)
        if policy is None or policy.spec.identity is None or policy.spec.identity.gateways is None:
            return (), ""
        keys: list[SecretBytes] = []
        for ref in policy.spec.identity.gateways.key_refs:
            try:
                name = self._references.names(policy, (ref,))
                keys.append(checked_key(self._references.data(policy, ref, "key"), name))
            except UnresolvedRef as unresolved:
                unenforceable[f"spec.identity.gateways.keyRefs of {policy}: {unresolved.message}"] = None
        return tuple(keys), policy.spec.identity.gateways.trust_domain or ""

    def _intercepts(self, ordered: Sequence[Layer]) -> dict[tuple[Layer, EgressPolicy], InterceptIR]:
        """The tunnels that policies of the Gateway and the listener have opened, the more specific policy first."""
        found = {}
        for layer in ordered:
            for policy in layer.policies if layer.level <= Level.LISTENER else ():
                spec = self.signing_cas(policy).spec if policy.spec.intercept is not None else None
                if spec is not None:
                    found[layer, policy] = spec
        return found

    def _identity(self, ordered: Sequence[Layer], unenforceable: dict[str, None]) -> IdentityIR | None:
        """Each part as the most specific policy writes it that has it."""
        chosen: dict[str, EgressPolicy] = {}
        for section in SECTIONS:
            candidates = _candidates(ordered, partial(section_of, section))
            found: EgressPolicy | None = self.effective.choose(f"identity.{to_camel(section)}", candidates)
            if found is not None:
                chosen[section] = found
        required: bool | None = self.effective.choose("identity.required", _candidates(ordered, required_of))
        made, problems = self._read_identity(chosen, required)
        unenforceable.update(problems)
        return made

    def _read_identity(
        self, chosen: dict[str, EgressPolicy], required: bool | None
    ) -> tuple[IdentityIR | None, dict[str, None]]:
        """What is read, and why something cannot be; once for the same policies."""
        key = (*((section, policy.key) for section, policy in chosen.items()), required)
        if key not in self._identities:
            problems: dict[str, None] = {}
            self._identities[key] = read_identity(chosen, required, self._references, problems), problems
        return self._identities[key]

    def _timeouts(self, ordered: Sequence[Layer]) -> TimeoutsIR:
        chosen = {
            f"{name}_s": self._traffic_winner(ordered, f"timeouts.{name}") for name in TrafficTimeouts.model_fields
        }
        return TimeoutsIR(**{name: value for name, value in chosen.items() if value is not None})

    def _name_server(self, ordered: Sequence[Layer]) -> NameServerIR:
        """Each field as the most specific policy writes it."""
        chosen: dict[str, Any] = {}
        for name in ("addresses", "gateway_addresses", "denials", "max_ttl", "queries", "new_names"):
            candidates = _candidates(ordered, partial(_name_server_field, name))
            chosen[name] = self.effective.choose(field_path(f"name_server.{name}"), candidates)
        ttl, queries, new_names = (chosen.pop(name) for name in ("max_ttl", "queries", "new_names"))
        if ttl is not None:
            chosen["max_ttl_s"] = ttl.seconds
        if queries is not None:
            chosen |= {"queries": queries.limit, "queries_window_s": queries.window.seconds}
        if new_names is not None:
            chosen |= {"new_names": new_names.limit, "new_names_window_s": new_names.window.seconds}
        return NameServerIR(**{name: value for name, value in chosen.items() if value is not None})

    def _connections(self, ordered: Sequence[Layer]) -> ConnectionsIR:
        age_s = self._traffic_winner(ordered, "connections.max_age")
        requests = self._traffic_winner(ordered, "connections.max_requests")
        shared = self._traffic_winner(ordered, "connections.share_tenants")
        knows_clients = any(
            layer.has_certificates or any(policy.spec.identity is not None for policy in layer.policies)
            for layer in ordered
        )
        return ConnectionsIR(age_s or 0.0, requests or 0, knows_clients and not shared)

    def _resilience(self, ordered: Sequence[Layer]) -> ResilienceIR:
        """Each section as the most specific policy writes it that has it; their fields are not mixed."""
        made = ResilienceIR(
            load_balancer(self._traffic_winner(ordered, "load_balancer")),
            outlier_detection(self._traffic_winner(ordered, "health_check.passive")),
            health_check(self._traffic_winner(ordered, "health_check.active")),
            circuit_breaker(self._traffic_winner(ordered, "circuit_breaker")),
            self._traffic_winner(ordered, "health_check.panic_threshold") or 0.0,
        )
        return NO_RESILIENCE if made == NO_RESILIENCE else made

    def _traffic_winner(self, ordered: Sequence[Layer], path: str) -> Any:
        """The setting at this path of attributes below `traffic`, a duration in seconds; None where none sets it."""
        path = f"traffic.{path}"
        candidates = _candidates(ordered, lambda policy: plain_value(field_value(policy.spec, path)))
        return self.effective.choose(field_path(path), candidates)

    # --- restrictions: they add up -----------------------------------------------------------------------------------

    def _ca(self, policies: Iterable[EgressPolicy], unenforceable: dict[str, None]) -> str:
        """The CA certificates that every policy with `tls.caBundleRefs` accepts."""
        common = ""
        for policy in policies:
            if policy.spec.tls is None or not policy.spec.tls.ca_bundle_refs:
                continue
            try:
                bundle = "".join(self._references.ca_bundle(policy, ref) for ref in policy.spec.tls.ca_bundle_refs)
            except UnresolvedRef as unresolved:
                unenforceable[f"tls.caBundleRefs of {policy}: {unresolved.message}"] = None
                continue
            shared = common_ca(common, bundle)
            if not shared:
                unenforceable[f"tls.caBundleRefs of {policy} has no CA in common with the other policies"] = None
                continue
            common = shared
        return common


def _blockers(policy: EgressPolicy) -> Iterable[str]:
    """What this policy restricts and the data plane does not enforce."""
    spec = policy.spec
    if spec.dns is not None:
        yield from dns_blockers(spec.dns, str(policy))
    if spec.subjects and spec.identity is not None:
        yield (
            f"identity of {policy}: a client has to be known before a policy is found to be for it; write it in a "
            "policy without subjects"
        )


def _in_full(policy: EgressPolicy) -> BackendParent:
    """The parent of a policy that names one, with its namespaces written out (else those of the policy)."""
    ref = policy.spec.parent
    assert ref is not None
    fallbacks = tuple(each.model_copy(update=_namespaces(each, policy)) for each in ref.fallbacks)
    return ref.model_copy(update={**_namespaces(ref, policy), "fallbacks": fallbacks})


def _namespaces(ref: ParentProxyRef, policy: EgressPolicy) -> dict[str, Any]:
    written: dict[str, Any] = {"namespace": ref.namespace or policy.namespace}
    for name in ("credentials_ref", "identity_key_ref"):
        secret = getattr(ref, name)
        if secret is not None:
            written[name] = secret.model_copy(update={"namespace": secret.namespace or policy.namespace})
    return written


def _candidates(ordered: Iterable[Layer], read: Callable[[EgressPolicy], Any]) -> list[PolicyCandidate]:
    """What each policy says, most specific first; `read` returns None where it says nothing."""
    policies = ((layer, policy) for layer in ordered for policy in layer.policies)
    return [PolicyCandidate(*each, value) for each in policies if (value := read(each[1])) is not None]


def _name_server_field(name: str, policy: EgressPolicy) -> Any:
    return field_value(policy.spec, f"name_server.{name}") or None


def _modes(ordered: Iterable[Layer]) -> list[PolicyCandidate]:
    return _candidates(ordered, lambda policy: policy.spec.mode)


def _modes_of_levels(ordered: Sequence[Layer]) -> dict[Level, Mode]:
    """The mode of each level: what it, or the next wider one that says any, says. A restriction is lifted by a mode of
    its own level, and never by that of something more specific. A Backend says nothing for the routes to it.
    """
    found = {}
    for level in Level:
        wider = {each for each in Level if each <= level} - ({Level.BACKEND} if level > Level.BACKEND else set())
        modes = (candidate.value for candidate in _modes(ordered) if candidate.layer.level in wider)
        found[level] = next(modes, Mode.ENFORCE)
    return found


def _misplaced(policy: EgressPolicy, level: Level) -> Iterable[str]:
    """What is enforced on a Gateway or listener, and not on a route or Backend."""
    if level <= Level.LISTENER:
        return
    identity, section = policy.spec.identity, policy.spec.destinations
    if identity is not None and (identity.token or identity.basic or identity.api_keys or identity.required):
        yield f"identity of {policy} is not enforced on a route or Backend: put it on the Gateway or a listener"
    if section is not None and section.allow is not None:
        yield f"destinations.allow of {policy} is not enforced on a route or Backend yet: put it on the Gateway"
