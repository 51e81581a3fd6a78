"""PolicyAttachments: the effective EgressPolicies of each place, and their status.

A place is a listener, a rule of a route, or a rule's backend. Its policies form layers, one for each target: Gateway,
listener, Backend, route, rule. `policy_merge` combines them.

A policy with `subjects` is in the layers of matching clients: see `for_clients`. So is a policy on a target of another
namespace, for clients of the policy's namespace: see `foreign_policy`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain

from egressproxy.config.compile.backends.backend_references import object_key, only_parents
from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
from egressproxy.config.compile.certificates import outside_constraints
from egressproxy.config.compile.extensions.extension_faults import ExtensionFaults
from egressproxy.config.compile.interface import Status, age_of
from egressproxy.config.compile.policies.access_policies import AccessPolicies
from egressproxy.config.compile.policies.foreign_policy import ForeignPolicies, state_foreign
from egressproxy.config.compile.policies.identity import unusable_keys
from egressproxy.config.compile.policies.ineffective_fields import (
    Idle,
    idle_on_kind,
    ineffective_fields,
    notes,
    nothing_here,
    written,
)
from egressproxy.config.compile.policies.layers import Layer, Layers, Level, Lost
from egressproxy.config.compile.policies.policy_merge import Merged, Merger
from egressproxy.config.compile.policies.signing_cas import SigningCas
from egressproxy.config.compile.policies.subjects import MAX_COMBINED, NOBODY, has_conditions
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.source_addresses import missing_sources
from egressproxy.config.compile.status.conditions import Conditions, ReferenceConditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.core import Service
from egressproxy.config.resources.gateway import Gateway
from egressproxy.config.resources.policy import Dns, EgressPolicy, EgressPolicyTargetReference
from egressproxy.model.near_names import did_you_mean
from egressproxy.model.published_object import Key

#: The kinds of targets.
_TARGETS = (
    "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "Service", "Backend", "XBackend",
    "XBackendDestination",
)  # fmt: skip

#: The remedy for a target in another namespace.
_ELSEWHERE = "name its namespace in targetRefs, and add a ReferenceGrant for it there"
#: The settings without effect on a Backend that is only a parent of others.
_OF_TARGETS = ("mode", "dns", "addresses.allow", "traffic")


class PolicyAttachments:
    """All EgressPolicies by target; and their merges, each computed once."""

    def __init__(
        self,
        resources: ResourceSet,
        references: References,
        tls_policies: BackendTlsPolicies,
        why_unusable: Callable[[str], str] = lambda _address: "",
    ) -> None:
        """`why_unusable`: as of Defaults."""
        self._why_unusable = why_unusable
        self.access = AccessPolicies(resources, references)
        self._resources = resources
        self._tls_policies = tls_policies
        self._references = references
        self._merger = Merger(references, resources)
        every = sorted(resources.of(EgressPolicy), key=age_of)
        #: Every policy in force, oldest first; and those on trial.
        self.objects = [each for each in every if each.spec.replaces is None]
        self._on_trial = [each for each in every if each.spec.replaces is not None]
        self._foreign = ForeignPolicies(references)
        self._by_target: dict[tuple[Key, str], list[EgressPolicy]] = defaultdict(list)
        for policy in (*self.objects, *resources.left_out):
            for ref in policy.spec.target_refs:
                key = object_key(resources, ref, references.namespace_of(policy, ref))
                held = self._foreign.admit(policy, ref, key)
                if held is not None:
                    self._by_target[key, ref.section_name or ""].append(held)
        #: Existing target and section -> its layer for clients that match no subjects, or none.
        self._layers: dict[tuple[Key, str], Layers] = {}
        #: Target and section -> its policies with subjects, if any.
        self._with_subjects: dict[tuple[Key, str], dict[Key, EgressPolicy]] = {}
        self._of_clients: dict[tuple[Key, str, tuple[Key, ...]], Layers] = {}
        self._holding = NOBODY
        self._met: dict[tuple[Key, str], None] = {}
        self._noted: dict[Key, dict[str, None]] = {}
        #: The layers of rules whose filters name policies.
        self._of_rules: dict[tuple[Key, str, tuple[EgressPolicy, ...]], Layers] = {}
        self._named_by: dict[Key, dict[tuple[Key, str], None]] = {}
        self._merged: dict[tuple[Layers, bool], Merged] = {}
        #: By policy and target.
        self._idle_at: dict[tuple[Key, Key], tuple[Idle, ...]] = {}

    def layer(self, level: Level, target: Key, section: str = "", resolver: Dns | None = None) -> Layers:
        """The layers of one target: that of its own policies, if any, and that of other namespaces' policies. Marks the
        target as existing.
        """
        target_key = (target, section)
        if target_key not in self._layers:
            policies = self._by_target.get(target_key, ())
            theirs = {policy.key: policy for policy in policies if policy.spec.subjects}
            if theirs:
                self._with_subjects[target_key] = theirs
            common, withheld = tuple(each for each in policies if not each.spec.subjects), tuple(theirs.values())
            certified = level is Level.GATEWAY and self._reads_certificates(target)
            access = self.access.at(target, section)
            holds = policies or resolver is not None or certified or access
            made = Layer(level, target, section, common, resolver, withheld, certified, access=access)
            self._layers[target_key] = (made,) if holds else ()
        if target_key in self._with_subjects:
            self._met[target_key] = None
            if self._holding:
                return self._layer_of_clients(target_key)
        return self._layers[target_key]

    def _layer_of_clients(self, target_key: tuple[Key, str]) -> Layers:
        """The layers for the current clients; clients with the same policies share the objects."""
        theirs = self._with_subjects[target_key]
        holding = tuple(sorted(key for key in self._holding if key in theirs))
        if not holding:
            return self._layers[target_key]
        known = (*target_key, holding)
        if known not in self._of_clients:
            (layer,) = self._layers[target_key]
            own = [theirs[key] for key in holding if key[2] == layer.target[2]]
            policies = tuple(sorted((*layer.policies, *own), key=age_of))
            made: Layers = (replace(layer, policies=policies, withheld=()),)
            foreign = sorted((theirs[key] for key in holding if key[2] != layer.target[2]), key=age_of)
            if foreign:
                made += (Layer(layer.level, layer.target, layer.section, tuple(foreign), is_foreign=True),)
            self._of_clients[known] = made
        return self._of_clients[known]

    @contextmanager
    def for_clients(self, holding: frozenset[Key], met: dict[tuple[Key, str], None]) -> Iterator[None]:
        """Apply only these policies with subjects until the end of the block; `met` gets places with such policies."""
        before = self._holding, self._met
        self._holding, self._met = holding, met
        try:
            yield
        finally:
            self._holding, self._met = before

    def note_bound(self, policy: EgressPolicy, listener: str, at_most: int | None) -> None:
        """Report the unserved combinations of the policy's subjects on a listener: see `ClientSets.at_most`."""
        if at_most is None or not any(map(has_conditions, policy.spec.subjects)):
            return
        why = f"groups and claims combine to more than {MAX_COMBINED} variants of listener {listener}"
        if at_most:
            entries = "one entry" if at_most == 1 else f"{at_most} entries"
            note = f"{why}: a client that more than {entries} of subjects with groups or claims fit is refused (403)."
        else:
            note = f"{why}: who fits subjects with groups or claims is refused (403)."
        self.note(policy.key, note)

    def note(self, policy: Key, sentence: str) -> None:
        """Add a sentence to the policy's status at all its targets."""
        self._noted.setdefault(policy, {})[sentence] = None

    def is_touched(self, met: Iterable[tuple[Key, str]], holding: frozenset[Key]) -> bool:
        """Whether one of these policies with subjects is at one of these places."""
        return any(not holding.isdisjoint(self._with_subjects[target]) for target in met)

    def with_subjects(self, met: Iterable[tuple[Key, str]]) -> tuple[EgressPolicy, ...]:
        """The policies with subjects at these places, oldest first."""
        found = {key: policy for target in met for key, policy in self._with_subjects[target].items()}
        return tuple(sorted(found.values(), key=age_of))

    def foreign_at(self, met: Iterable[tuple[Key, str]]) -> frozenset[Key]:
        """The policies with subjects at these places that are in another namespace than their target."""
        return frozenset(key for target in met for key in self._with_subjects[target] if key[2] != target[0][2])

    def layer_of_rule(self, route: Key, section: str, index: int, named: tuple[EgressPolicy, ...]) -> Layers:
        """The layer of a rule (`section` is its name or ""): policies that it names, and policies that target it."""
        layers = self.layer(Level.RULE, route, section) if section else ()
        own = [policy for layer in layers if not layer.is_foreign for policy in layer.policies]
        name = section or f"rules[{index}]"
        for policy in named:
            self._named_by.setdefault(policy.key, {})[route, name] = None
        theirs = {policy.key: policy for policy in named if policy.spec.subjects}
        if theirs:
            self._with_subjects.setdefault((route, f"{name}, named"), theirs)
            self._met[route, f"{name}, named"] = None
        held = (policy for policy in named if not policy.spec.subjects or policy.key in self._holding)
        policies = tuple(sorted(dict.fromkeys((*own, *held)), key=age_of))
        access = tuple(policy for layer in layers for policy in layer.access)
        key = (route, name, policies)
        if key not in self._of_rules:
            made = Layer(Level.RULE, route, name, policies, access=access)
            self._of_rules[key] = (made,) if policies or access else ()
        return self._of_rules[key] + tuple(layer for layer in layers if layer.is_foreign)

    def merge(self, layers: Layers, *, is_routed: bool) -> Merged:
        """The merged policy of these layers, shared by all places with the same layers.

        `is_routed`: for requests that match a route. The route is the permission there, so `destinations.allow` of
        Gateway and listener, which are for requests without a route, is left out; their `deny` applies.
        """
        key = (layers, is_routed)
        merged = self._merged.get(key)
        if merged is None:
            merged = self._merged[key] = self._merger.merge(layers, is_routed)
        return merged

    def statuses(
        self, generations: Mapping[Key, int], faults: dict[Key, ExtensionFaults], parents: Mapping[Key, UnresolvedRef]
    ) -> dict[Key, Status]:
        """The status of every EgressPolicy, after all merges. `faults` of filters and `parents` are by policy."""
        for layers in self._layers.values():
            if any(len(layer.policies) > 1 for layer in layers):  # report conflicts also at unserved places
                self.merge(layers, is_routed=True)
        in_force = {
            policy.key: self._status(policy, generations[policy.key], faults, parents.get(policy.key))
            for policy in self.objects
        }
        return in_force | {policy.key: self._trial_status(policy, generations[policy.key]) for policy in self._on_trial}

    def _trial_status(self, policy: EgressPolicy, generation: int) -> Status:
        ancestors = ReferenceConditions("ancestors", generation)
        replaces = policy.spec.replaces
        name = replaces.name if replaces is not None else ""
        is_there = any(each.namespace == policy.namespace and each.metadata.name == name for each in self.objects)
        for ref in policy.spec.target_refs:
            conditions = ancestors.add(ref, namespace=self._references.namespace_of(policy, ref))
            if is_there:
                conditions.set("Accepted", True, "OnTrial", f"on trial in place of {name}: the policy is not in force")
            else:
                message = f"spec.replaces: no EgressPolicy {policy.namespace}/{name} is in force (name one that is)"
                conditions.set("Accepted", False, "TargetNotFound", message)
        return ancestors.to_status()

    def access_statuses(self, generations: Mapping[Key, int]) -> dict[Key, Status]:
        """The status of every XAccessPolicy, after all places are known."""

        def not_found(target: Key, section: str) -> str | None:
            return None if (target, section) in self._layers else self._not_found(target, section)

        return self.access.statuses(generations, not_found, self._knowing_clients.__contains__)

    def _status(
        self, policy: EgressPolicy, generation: int, faults: dict[Key, ExtensionFaults], parent: UnresolvedRef | None
    ) -> Status:
        ancestors = ReferenceConditions("ancestors", generation)
        targets = [
            (ref, object_key(self._resources, ref, self._references.namespace_of(policy, ref)), ref.section_name or "")
            for ref in policy.spec.target_refs
        ]
        for route, section in self._named_by.get(policy.key, ()):
            by_filter = EgressPolicyTargetReference.model_construct(group=route[0], kind=route[1], name=route[3])
            targets.append((by_filter, route, section))
        for position, (ref, target, section) in enumerate(targets):
            conditions = ancestors.add(ref, namespace=target[2])
            is_named = position >= len(policy.spec.target_refs)
            refused = self._foreign.refused.get((policy.key, target))
            if refused is not None:
                message = f"{refused.with_hint}; nothing that this policy allows, denies or limits holds there"
                conditions.set("Accepted", False, refused.reason, message)
            elif not is_named and (target, section) not in self._layers:
                conditions.set("Accepted", False, "TargetNotFound", self._not_found(target, section))
            elif target[2] != policy.namespace:
                self._state(conditions, self._foreign.form(policy), target, section)
                state_foreign(conditions, policy, target)
            else:
                self._state(conditions, policy, target, section, faults[policy.key])
                if parent is not None:
                    message = f"spec.parent: {parent.with_hint}; what is to go through it is refused (500)"
                    conditions.fail("ResolvedRefs", parent.reason, message)
        return ancestors.to_status()

    def _state(
        self,
        conditions: Conditions,
        policy: EgressPolicy,
        target: Key,
        section: str,
        faults: ExtensionFaults | None = None,
    ) -> None:
        """State the effect of a policy at a target; `faults` are those of its extensions."""
        conditions.set("Accepted", True, "Accepted", "the policy is in force")
        level = Level.LISTENER if target[1] in ("Gateway", "ListenerSet") else Level.ROUTE
        closed = self._merger.unenforceable(policy, level)
        if closed:
            own = "; ".join(each.replace(f" of {policy}: ", ": ") for each in closed)
            conditions.set("Accepted", False, "NotEnforceable", f"requests here are refused: {own}.")
        for note in self._noted.get(policy.key, ()):
            conditions.add_note("Accepted", note)
        idle = (each.sentence for each in self._idle(policy, target))
        unread = unusable_keys(policy, self._references)
        for note in chain(idle, notes(policy, target[1]), self._notes_here(policy, target), unread):
            conditions.add_note("Accepted", note)
        every = self._merger.effective.lost.get((policy.key, target, section), ())
        lost = [each for each in every if self._takes_effect(each, policy, target)]
        for kind, is_conflict in (("Conflicted", True), ("Overridden", False)):
            if sentences := [each.sentence for each in lost if each.is_conflict is is_conflict]:
                conditions.set(kind, True, kind, "; ".join(sentences))
        for missing in missing_sources(policy.spec.source_address, self._why_unusable):
            conditions.report("Degraded", "SourceAddressNotUsable", missing)
        if faults is not None:
            faults.set_conditions(conditions)
        if policy.spec.intercept is not None:
            self._state_cas(conditions, policy, self._merger.signing_cas(policy))

    def _state_cas(self, conditions: Conditions, policy: EgressPolicy, cas: SigningCas) -> None:
        """State what is wrong with the CAs of its `intercept`."""
        assert policy.spec.intercept is not None
        if policy.spec.intercept.issuing is not None and self._resources.has_cluster:
            note = "intercept.issuing does nothing here: CAs are made where --api-writes is on"
            conditions.add_note("Accepted", f"{note}; write bySubject.")
        if cas.problems:
            closed = "the names that it lists are denied" if cas.spec is None else "its clients are refused"
            message = "; ".join(f"{where}: {problem.with_hint}; {closed}" for where, problem in cas.problems[:3])
            conditions.fail("ResolvedRefs", cas.problems[0][1].reason, message)
        written = (each for each in cas.read if each[0].startswith("spec."))  # others are for few names on purpose
        for where, ca in written:
            if outside := outside_constraints(ca, policy.spec.intercept.hostnames):
                shown = ", ".join(outside[:3]) + (f" and {len(outside) - 3} more" if len(outside) > 3 else "")
                which = "" if where.endswith("intercept.caCertificateRef") else f" of {where.removeprefix('spec.')}"
                note = f"intercept.hostnames: no client believes the CA{which} for {shown}, by its name constraints"
                conditions.add_note("Accepted", f"{note}; take these names out, or make a CA that may sign them.")

    def _takes_effect(self, lost: Lost, policy: EgressPolicy, target: Key) -> bool:
        """Whether the setting would have an effect at this target, and the winner's has one at its own."""
        winner = self._resources.get(*lost.policy) if lost.policy is not None else None
        pairs = [(policy, target), *([(winner, lost.target)] if isinstance(winner, EgressPolicy) else ())]
        return not any(idle.has(lost.setting) for pair in pairs for idle in self._idle(*pair))

    def _idle(self, policy: EgressPolicy, target: Key) -> tuple[Idle, ...]:
        """The parts of the policy without effect at this target, cached."""
        found = self._idle_at.get((policy.key, target))
        if found is None:
            useless = ineffective_fields(policy, target, self._resources, self._references)
            found = *idle_on_kind(policy, target[1]), *self._idle_here(policy, target), *useless
            self._idle_at[policy.key, target] = found
        return found

    def _notes_here(self, policy: EgressPolicy, target: Key) -> Iterator[str]:
        spec, found = policy.spec, self._resources.named(*target)
        if spec.subjects and isinstance(found, Gateway) and target not in self._knowing_clients:
            yield (
                f"subjects fit nobody: no policy of {found} says who its clients are (identity); with serve-filters "
                "Envoy says it."
            )

    def _idle_here(self, policy: EgressPolicy, target: Key) -> Iterator[Idle]:
        """The parts of the policy without effect at this target."""
        spec, found = policy.spec, self._resources.named(*target)
        destination_type = getattr(getattr(getattr(found, "spec", None), "destination", None), "type", "")
        if spec.parent is not None and isinstance(found, Backend) and found.spec.parent is not None:
            yield nothing_here(("parent",), f"{found} has its own")
        elif spec.parent is not None and (isinstance(found, Service) or destination_type in ("Ip", "Service")):
            yield nothing_here(("parent",), f"{found} is reached directly, unless it names a parent itself")
        if spec.source_address is not None and isinstance(found, Backend) and found.spec.source_address is not None:
            yield nothing_here(("sourceAddress",), f"{found} has its own")
        # A TLS minimum has no effect without a TLS backend.
        has_tls = spec.tls is not None and bool(spec.tls.model_fields_set)
        if has_tls and isinstance(found, Backend) and found.spec.parent is None:
            is_plain = all(form.tls is None or form.tls.mode == "None" for form in self._tls_policies.forms(found))
            if is_plain and found.spec.destination.type in ("Fqdn", "Ip"):
                yield nothing_here(("tls",), f"{found} is reached without TLS")
        # The backends behind a parent have their own settings and permissions.
        names = written(spec, _OF_TARGETS) if target in self._parents else ()
        if names:
            why = f"{target[1]} {target[2]}/{target[3]} is only a parent, and the policies of what goes through it hold"
            yield nothing_here(names, f"{why}; write this in a policy of the Gateway")

    @cached_property
    def _knowing_clients(self) -> set[Key]:
        """The Gateways with an `identity` policy, on themselves or on a listener."""
        found = ((key, policies) for (key, _), policies in self._by_target.items())
        return {key for key, policies in found if any(each.spec.identity is not None for each in policies)}

    def _reads_certificates(self, gateway: Key) -> bool:
        """Whether a policy of this Gateway, or of a listener that may share its ports, reads certificates."""
        reading = self._reading_certificates
        return gateway in reading or any(key[1] == "ListenerSet" for key in reading)

    @cached_property
    def _reading_certificates(self) -> set[Key]:
        return {
            key
            for (key, _), policies in self._by_target.items()
            if any(each.spec.identity is not None and each.spec.identity.certificate is not None for each in policies)
        }

    @cached_property
    def _parents(self) -> set[Key]:
        """The backends that are used only as parents."""
        return only_parents(
            self._resources,
            lambda source, ref: object_key(self._resources, ref, self._references.namespace_of(source, ref)),
        )

    def _not_found(self, target: Key, section: str) -> str:
        """Why this target matches no place, suggestions, and the consequence."""
        group, kind, namespace, name = target
        shown = f"{kind} {namespace}/{name}"
        sections = [known for seen, known in self._layers if seen == target and known]
        if self._resources.named(*target) is None:
            message = f"there is no {shown}" + ("" if group or kind == "Service" else " in the core group")
            remedy = self._references.suggestions.remedy(*target, _ELSEWHERE) or _known(kind)
        elif (target, "") in self._layers or sections:
            message = f"{shown} has no section {section}"
            remedy = did_you_mean(section, sections, f"it has {', '.join(sorted(sections)) or 'none'}")
        else:
            message, remedy = f"{shown} is not served here, so no policy holds for it", ""
        hint = f" ({remedy})" if remedy else ""
        return f"{message}{hint}; nothing that this policy allows, denies or limits holds there"


def _known(kind: str) -> str:
    """The possible kinds of targets, if this kind is none; else ""."""
    known = f"targets are of kind {', '.join(_TARGETS)}"
    return "" if kind in _TARGETS else did_you_mean(kind, _TARGETS, known)
