"""Policies on targets of another namespace: a team's rules, within the limits of the target's owner.

A ReferenceGrant in the target's namespace permits the policy, which then applies to clients of its own namespace. Its
restrictions add up with the owner's. Its `destinations.allow` narrows the owner's list; without such a list, it allows
by itself (`restrictions.merge_destinations`). All other fields are reserved for the owner: a policy with one of these
only restricts, and allows nothing.

It may not name groups, claims or service accounts: these use up a listener's limited combinations
(`subjects.MAX_COMBINED`), at the expense of other teams.
"""

from __future__ import annotations

from typing import Final

from egressproxy.config.compile.policies.ineffective_fields import written
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.policy import (
    Destinations,
    EgressPolicy,
    EgressPolicySpec,
    EgressPolicyTargetReference,
    Subject,
)
from egressproxy.ir.policy import SniCheck
from egressproxy.model.published_object import Key

#: Fields of `spec` reserved for the owner of a target: they open access, or apply to all clients.
_OF_THE_OWNER: Final = (
    "mode", "dns", "parent", "source_address", "intercept", "identity", "limits.store", "traffic", "extensions",
)  # fmt: skip
#: The most keys of one limit: 1 MiB of shared memory.
_MAX_KEYS: Final = 16_384


class ForeignPolicies:
    """The form of each policy at targets of other namespaces, computed once, and its refusals."""

    __slots__ = ("_forms", "_references", "refused")

    def __init__(self, references: References) -> None:
        self._references = references
        self._forms: dict[Key, EgressPolicy] = {}
        #: Policy and target -> the reason why the policy has no effect there.
        self.refused: dict[tuple[Key, Key], UnresolvedRef] = {}

    def admit(self, policy: EgressPolicy, ref: EgressPolicyTargetReference, target: Key) -> EgressPolicy | None:
        """The effective form of the policy at the target; None if it is refused."""
        if target[2] == policy.namespace:
            return policy
        try:
            self._references.check_permitted(policy, ref, target[1])
            self._check_subjects(policy)
        except UnresolvedRef as problem:
            self.refused[policy.key, target] = problem
            return None
        return self.form(policy)

    def form(self, policy: EgressPolicy) -> EgressPolicy:
        """The effective form of the policy at permitting targets of other namespaces."""
        if policy.key not in self._forms:
            self._forms[policy.key] = policy.model_copy(update={"spec": _narrowed(policy)})
        return self._forms[policy.key]

    def _check_subjects(self, policy: EgressPolicy) -> None:
        own = Subject(namespace=policy.namespace)
        if all(each == own for each in policy.spec.subjects):
            return
        raise UnresolvedRef(
            "NotPermitted",
            f"on a target of another namespace a policy is for all clients of its own namespace: remove subjects, or "
            f"write [{{namespace: {policy.namespace}}}]",
        )


def owners_fields(policy: EgressPolicy) -> list[str]:
    """The policy's fields that are reserved for the owner of a target, in the manifest's spelling."""
    found = written(policy.spec, _OF_THE_OWNER)
    allowed = policy.spec.destinations.allow if policy.spec.destinations is not None else None
    if any(entry.sni is not SniCheck.MATCH for entry in allowed or ()):
        found.append("destinations.allow.sni")  # a tunnel could reach a host that the owner denies by name
    return found


def state_foreign(conditions: Conditions, policy: EgressPolicy, target: Key) -> None:
    """State the clients of a policy at a permitting target of another namespace, and its fields without effect."""
    whose = f"It is for the clients of namespace {policy.namespace}, within what {target[1]} {target[2]}/{target[3]}"
    conditions.add_note("Accepted", f"{whose} and the policies of its namespace leave open.")
    if names := owners_fields(policy):
        is_, it = ("are", "them") if len(names) > 1 else ("is", "it")
        conditions.set(
            "Accepted",
            False,
            "NotPermitted",
            f"{', '.join(names)} {is_} for policies of namespace {target[2]}, which owns {target[1]} {target[3]}: what "
            f"this policy restricts holds there, and what it allows does not; remove {it}",
        )


def _narrowed(policy: EgressPolicy) -> EgressPolicySpec:
    """The restrictions of the policy, and its allowances if it has no reserved fields."""
    spec = policy.spec
    destinations, limits = spec.destinations, spec.limits
    if destinations is not None and destinations.allow is not None and owners_fields(policy):
        destinations = Destinations(allow=(), deny=destinations.deny)
    if limits is not None and (limits.store is not None or limits.max_keys > _MAX_KEYS):
        at_most = {"max_keys": _MAX_KEYS} if limits.max_keys > _MAX_KEYS else {}
        limits = limits.model_copy(update={"store": None, **at_most})
    return EgressPolicySpec.model_construct(
        target_refs=spec.target_refs,
        subjects=(Subject(namespace=policy.namespace),),
        destinations=destinations,
        addresses=spec.addresses,
        tls=spec.tls,
        limits=limits,
        regions=spec.regions,
    )
