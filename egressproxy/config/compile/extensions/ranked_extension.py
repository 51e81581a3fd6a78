"""Where extensions are declared, and in which order they run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from egressproxy.ir.policy import ExtensionIR

ROUTE_LEVEL = 1


class RankedExtension(NamedTuple):
    """An ExtensionIR with what decides its place among those of equal priority and level."""

    spec: ExtensionIR
    age: tuple[str, str]
    position: int  # in the list that declares it


@dataclass(frozen=True, slots=True)
class AttachmentPoint:
    """Where an extension is declared, for its spec: 0 Gateway, 1 Route, 2 Backend; and who shares the instance."""

    level: int
    scope: str


def ordered(placed: Iterable[RankedExtension]) -> tuple[ExtensionIR, ...]:
    """In running order: turn, priority, level, age of the declaring object, then as written."""
    in_order = sorted(placed, key=lambda p: (p.spec.turn, p.spec.priority, p.spec.level, p.age, p.position))
    return tuple(dict.fromkeys(p.spec for p in in_order))
