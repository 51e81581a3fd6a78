"""Winners: of the values that policies give one setting the most specific holds; status tells the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from egressproxy.config.compile.policies.layers import Layer
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.values import Duration
from egressproxy.model.published_object import Key


@dataclass(slots=True)
class PolicyCandidate:
    """One value of one setting, with who says it."""

    layer: Layer
    policy: EgressPolicy | None
    value: Any

    @property
    def name(self) -> str:
        """Who says it."""
        return str(self.policy) if self.policy is not None else self.layer.place


@dataclass(slots=True)
class Overridden:
    """Which settings of one policy do not hold at one target: against its equals, and against the more specific."""

    conflicts: dict[str, None] = field(default_factory=dict)
    overrides: dict[str, None] = field(default_factory=dict)


class Winners:
    """Chooses, and remembers what each policy lost against others."""

    __slots__ = ("overridden",)

    def __init__(self) -> None:
        #: By policy, target and section.
        self.overridden: dict[tuple[Key, Key, str], Overridden] = defaultdict(Overridden)

    def choose(self, name: str, candidates: Sequence[PolicyCandidate]) -> Any:
        """The value of the first candidate. Every other policy with a different value is noted as overridden."""
        if not candidates:
            return None
        first = candidates[0]
        for candidate in candidates[1:]:
            if candidate.policy is None or candidate.value == first.value:
                continue
            overridden = self.overridden[candidate.policy.key, candidate.layer.target, candidate.layer.section]
            if candidate.layer is first.layer:
                overridden.conflicts[f"{name} is that of {first.name}, which is older or precedes it by name"] = None
            else:
                overridden.overrides[f"{name} is that of {first.name} for {first.layer.place}"] = None
        return first.value


def plain_value(value: Any) -> Any:
    """A duration in seconds; anything else as it is."""
    return value.seconds if isinstance(value, Duration) else value
