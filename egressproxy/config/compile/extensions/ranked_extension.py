"""Where extensions are declared, in which phase they run (as written, or what fits), and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from egressproxy.config.resources.backend import WorkingGroupExtension
from egressproxy.config.resources.extension import Extension
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR

ROUTE_LEVEL = 1
#: Phases that run for one backend, once per attempt; whatever is declared on a Backend runs in one of these.
_OF_BACKENDS: Final = frozenset({"connect", "backend-request", "backend-response"})
#: What the phases of a client's exchange mean on a Backend: where they run there, and in which turn.
_ON_BACKENDS: Final[Mapping[str | None, tuple[str, int]]] = {
    "request-headers": ("backend-request", -1),
    "response-headers": ("backend-response", 1),
}
#: Those of its own backend are there, too.
_BODIES: Final = frozenset({"request-body", "response-body"})


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


class ImpossiblePhase(Exception):
    """The phase that is written cannot be, or has to be written. `remedy` says which can."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class ChosenPhase(NamedTuple):
    """A phase, and the turn of the extension there: -1 before the others, 1 behind them."""

    phase: str
    turn: int = 0


def ordered(placed: Iterable[RankedExtension]) -> tuple[ExtensionIR, ...]:
    """In running order: turn, priority, level, age of the declaring object, then as written."""
    in_order = sorted(placed, key=lambda p: (p.spec.turn, p.spec.priority, p.spec.level, p.age, p.position))
    return tuple(dict.fromkeys(p.spec for p in in_order))


def chosen_phase(extension: Extension, name: str, possible: frozenset[str], level: int) -> ChosenPhase:
    """The phase of an extension, of a type called `name` that runs in the `possible` ones, declared at this level. On
    a Backend they are the backend's phases: request-headers is the head that goes there. Raises ImpossiblePhase.
    """
    phase: str | None = extension.phase
    if level == BACKEND_LEVEL:
        possible &= _OF_BACKENDS | _BODIES
        if phase in _ON_BACKENDS and _ON_BACKENDS[phase][0] in possible:
            return ChosenPhase(*_ON_BACKENDS[phase])
        if phase is None and isinstance(extension, WorkingGroupExtension) and "backend-request" in possible:
            phase = "backend-request"
    if phase is None and len(possible) == 1:
        (phase,) = possible
    if phase in possible:
        return ChosenPhase(phase)
    if not possible:
        raise ImpossiblePhase(
            f"{name} cannot run for a backend", "declare it in an EgressPolicy, or in a filter of a route"
        )
    listed = ", ".join(sorted(possible))
    if phase is None:
        raise ImpossiblePhase(f"{name} runs in more than one phase", f"set phase to one of: {listed}")
    where = " for a backend" if level == BACKEND_LEVEL else ""
    raise ImpossiblePhase(f"{name} cannot run in phase {phase}{where}", f"possible are: {listed}")
