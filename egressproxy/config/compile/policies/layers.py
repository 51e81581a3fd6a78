"""Layer: the policies of one target, and its Level: how specific the target is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from egressproxy.config.compile.interface import Key, scope_of
from egressproxy.config.resources.policy import Dns, EgressPolicy

__all__ = ["Layer", "Level"]


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
    """

    level: Level
    target: Key
    section: str
    policies: tuple[EgressPolicy, ...]
    resolver: Dns | None = None

    @property
    def scope(self) -> str:
        """Who shares what is counted there."""
        return scope_of(self.target) + (f", section {self.section}" if self.section else "")

    @property
    def place(self) -> str:
        """The target for people: `Kind namespace/name`, and the section if it is one."""
        _, kind, namespace, name = self.target
        return f"{kind} {namespace}/{name}" + (f", section {self.section}" if self.section else "")
