"""Layer: the policies of one target, at its Level. Winners: of the values for one setting the most specific holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from egressproxy.config.compile.interface import scope_of
from egressproxy.config.resources.access_policy import AccessPolicy
from egressproxy.config.resources.policy import Addresses, Dns, EgressPolicy, EgressPolicySpec
from egressproxy.config.resources.values import Duration
from egressproxy.model.published_object import Key


class Level(IntEnum):
    """How specific a layer is; the higher one wins."""

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
    `withheld` are policies for other clients (`subjects`); for messages.
    `has_certificates`: a policy of one of its listeners identifies clients by certificate, which all listeners of a
    port share.
    `is_foreign`: the policies are in another namespace than the target, and open only what the owner opens.
    `only_narrows`: the policies allow nothing by themselves, without an allow list of the owner.
    `access` are the XAccessPolicies of the target.
    """

    level: Level
    target: Key
    section: str
    policies: tuple[EgressPolicy, ...]
    resolver: Dns | None = None
    withheld: tuple[EgressPolicy, ...] = ()
    has_certificates: bool = False
    is_foreign: bool = False
    only_narrows: bool = False
    access: tuple[AccessPolicy, ...] = ()

    @property
    def scope(self) -> str:
        """The scope of counters of this layer."""
        return scope_of(self.target) + (f", section {self.section}" if self.section else "")

    @property
    def place(self) -> str:
        """The target for people: `Kind namespace/name`, and the section if it is one."""
        _, kind, namespace, name = self.target
        return f"{kind} {namespace}/{name}" + (f", section {self.section}" if self.section else "")


#: The effective layers at a place, the widest first.
Layers = tuple[Layer, ...]


@dataclass(slots=True)
class PolicyCandidate:
    """A value of a setting, with its policy."""

    layer: Layer
    policy: EgressPolicy | None
    value: Any

    @property
    def name(self) -> str:
        return str(self.policy) if self.policy is not None else self.layer.place


class Lost(NamedTuple):
    """A setting that `winner` overrides: the setting of `policy` at `target`, or without a policy, of the target
    itself. `is_conflict`: both are on the same level; otherwise the winner is more specific.
    """

    setting: str
    winner: str
    policy: Key | None
    target: Key
    place: str
    is_conflict: bool

    @property
    def sentence(self) -> str:
        """The winning setting, as a sentence for status."""
        if self.is_conflict:
            return f"{self.setting} is that of {self.winner}, which is older or precedes it by name"
        return f"{self.setting} is that of {self.winner} for {self.place}"


class EffectivePolicy:
    """Chooses values, and records overridden settings."""

    __slots__ = ("lost",)

    def __init__(self) -> None:
        #: The overridden settings by policy, target and section; each once.
        self.lost: dict[tuple[Key, Key, str], dict[Lost, None]] = defaultdict(dict)

    def choose(self, name: str, candidates: Sequence[PolicyCandidate]) -> Any:
        """The value of the first candidate. Every other policy with a different value is noted as overridden."""
        if not candidates:
            return None
        first = candidates[0]
        winner = first.policy.key if first.policy is not None else None
        for candidate in candidates[1:]:
            if candidate.policy is None or candidate.value == first.value:
                continue
            is_conflict = candidate.layer is first.layer
            lost = Lost(name, first.name, winner, first.layer.target, first.layer.place, is_conflict)
            self.lost[candidate.policy.key, candidate.layer.target, candidate.layer.section][lost] = None
        return first.value


def restrictions_of(layer: Layer) -> Layer:
    """The layer's restrictions alone, for the Service of a Backend."""
    return _narrowed(layer, _without_settings)


def denials_of(layer: Layer) -> Layer:
    """The layer's denials alone, for all backends behind this parent."""
    return _narrowed(layer, _denials_alone)


def narrowing(layer: Layer) -> Layer:
    """A Gateway's layer for another namespace's listeners, where policies of a third namespace open nothing."""
    return replace(layer, only_narrows=True) if layer.is_foreign else layer


def field_value(written: object, path: str) -> Any:
    """The value at a path of attributes (`traffic.health_check.active`), or None."""
    for name in path.split("."):
        written = getattr(written, name, None)
    return written


def field_path(path: str) -> str:
    """A path of attributes in the manifest's spelling: `traffic.healthCheck.active`."""
    return ".".join(map(to_camel, path.split(".")))


def plain_value(value: Any) -> Any:
    """A duration in seconds; another value unchanged."""
    return value.seconds if isinstance(value, Duration) else value


def _narrowed(layer: Layer, narrow: Callable[[EgressPolicy], EgressPolicy]) -> Layer:
    return replace(layer, policies=tuple(map(narrow, layer.policies)), resolver=None)


def _without_settings(policy: EgressPolicy) -> EgressPolicy:
    """The policy's restrictions alone: modes of one level may differ, and none lifts another policy's denial."""
    spec = policy.spec.model_copy(
        update={"mode": None, "dns": None, "name_server": None, "parent": None, "source_address": None, "traffic": None}
    )
    return policy.model_copy(update={"spec": spec})


def _denials_alone(policy: EgressPolicy) -> EgressPolicy:
    """The policy's denials alone, without settings, allowances and rules of the parent's own connection."""
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
