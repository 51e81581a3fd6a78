"""Parts of a layer: what its policies restrict, or deny, without what they set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from egressproxy.config.compile.policies.layers import Layer
from egressproxy.config.resources.policy import Addresses, EgressPolicy, EgressPolicySpec

__all__ = ["denials_of", "restrictions_of"]


def restrictions_of(layer: Layer) -> Layer:
    """What the layer restricts: for the Service that a Backend stands for."""
    return _narrowed(layer, _without_settings)


def denials_of(layer: Layer) -> Layer:
    """What the layer denies: for all that is reached through this parent."""
    return _narrowed(layer, _denials_alone)


def _narrowed(layer: Layer, narrow: Callable[[EgressPolicy], EgressPolicy]) -> Layer:
    return replace(layer, policies=tuple(map(narrow, layer.policies)), resolver=None)


def _without_settings(policy: EgressPolicy) -> EgressPolicy:
    """The policy as it restricts: those of one level may say different modes, and none lifts what another denies."""
    spec = policy.spec.model_copy(update={"mode": None, "dns": None, "parent": None, "traffic": None})
    return policy.model_copy(update={"spec": spec})


def _denials_alone(policy: EgressPolicy) -> EgressPolicy:
    """The policy without what sets or opens something, and without what is for the parent's own connection."""
    written, addresses = policy.spec, None
    if written.addresses is not None and written.addresses.only is not None:
        addresses = Addresses(deny=written.addresses.deny, only=written.addresses.only)
    elif written.addresses is not None and written.addresses.deny:
        addresses = Addresses(deny=written.addresses.deny)
    spec = EgressPolicySpec.model_construct(
        target_refs=written.target_refs,
        subjects=written.subjects,
        destinations=written.destinations,
        addresses=addresses,
        intercept=written.intercept,
    )
    return policy.model_copy(update={"spec": spec})
