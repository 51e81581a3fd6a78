"""Policies on targets of another namespace: what a team says there, within what the owner of the target leaves open.

A ReferenceGrant in the namespace of the target permits it. The policy then holds for clients of its own namespace. Its
restrictions add up with those of the owner. Its `destinations.allow` narrows what the owner allows these clients; where
the owner has no list, it allows by itself (`restrictions.merge_destinations`). Everything else is the owner's to say: a
policy that says it all the same restricts, and allows nothing.

It names no groups, claims or service accounts: these share the room that a listener has for combinations
(`subjects.MAX_COMBINED`), and one team could use up that of the others.
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

#: Attributes below `spec` that the owner of a target alone may write: they open something, or say it for all clients.
_OF_THE_OWNER: Final = ("mode", "dns", "parent", "intercept", "identity", "limits.store", "traffic", "extensions")
#: How many keys one limit may have: 1 MiB of the memory that is that of all.
_MAX_KEYS: Final = 16_384


class ForeignPolicies:
    """The form that each policy has at targets of other namespaces, made once, and why it holds at some of them not."""

    __slots__ = ("_forms", "_references", "refused")

    def __init__(self, references: References) -> None:
        self._references = references
        self._forms: dict[Key, EgressPolicy] = {}
        #: By policy and target: why the policy does nothing there.
        self.refused: dict[tuple[Key, Key], UnresolvedRef] = {}

    def admit(self, policy: EgressPolicy, ref: EgressPolicyTargetReference, target: Key) -> EgressPolicy | None:
        """The policy as it holds at the target; None where it does not."""
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
        """The policy as it holds at targets of other namespaces that permit it."""
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
    """The fields of the policy that the owner of a target alone may write, as manifests write them."""
    found = written(policy.spec, _OF_THE_OWNER)
    allowed = policy.spec.destinations.allow if policy.spec.destinations is not None else None
    if any(entry.sni is not SniCheck.MATCH for entry in allowed or ()):
        found.append("destinations.allow.sni")  # a tunnel could lead to what the owner denies by name
    return found


def state_foreign(conditions: Conditions, policy: EgressPolicy, target: Key) -> None:
    """State for whom a policy holds at a target of another namespace that permits it, and what of it does not hold."""
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
    """What it restricts and, if nothing of it is the owner's to say, what it allows."""
    said = policy.spec
    destinations, limits = said.destinations, said.limits
    if destinations is not None and destinations.allow is not None and owners_fields(policy):
        destinations = Destinations(allow=(), deny=destinations.deny)
    if limits is not None and (limits.store is not None or limits.max_keys > _MAX_KEYS):
        at_most = {"max_keys": _MAX_KEYS} if limits.max_keys > _MAX_KEYS else {}
        limits = limits.model_copy(update={"store": None, **at_most})
    return EgressPolicySpec.model_construct(
        target_refs=said.target_refs,
        subjects=(Subject(namespace=policy.namespace),),
        destinations=destinations,
        addresses=said.addresses,
        tls=said.tls,
        limits=limits,
        regions=said.regions,
    )
