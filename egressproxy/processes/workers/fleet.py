"""Fleet: what the application asks of those who serve its traffic, be they one data plane in this process
(`worker.InProcess`) or several processes (`supervisor.Supervisor`).
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage
from egressproxy.model.kill_switch import KillChange, KilledIdentities
from egressproxy.model.process_limits import ProcessLimits
from egressproxy.net.process import collapse_heap, memory_for_each
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.counts import Counts
from egressproxy.telemetry.process_figures import ProcessFigures

#: Of clients, from which on a reload does not look for garbage among all objects.
MANY_CONNECTIONS: Final = 1000


class ConfigRefused(Exception):
    """A start that fails, or a configuration that cannot be put into service: then the one before stays, everywhere.

    The message says why.
    """


class Guarded(ConfigRefused):
    """A configuration that would allow what was recently denied, which nobody has acknowledged."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A ConfigIR as `ir.packing` writes it (`packed`), and what a process that does not serve it has to know of it.

    `places` are those to bind: address (IP literal), port, and whose it is (`gateway/listener`, …). `generation` counts
    the configurations that were put into service, from 1. `own` are further sockets of ours, which nobody may reach
    through us. `is_guarded`: it is Guarded where a recent decision would flip from denied to allowed.
    """

    packed: bytes = field(repr=False)
    places: Mapping[tuple[str, int], str]
    generation: int
    own: tuple[tuple[str, int], ...] = ()
    is_guarded: bool = False


class Fleet(Protocol):
    """All methods belong to the event loop. `start` comes first, `stop` last, however it went."""

    async def start(self) -> None:
        """Raises ConfigRefused where the access log cannot be opened or a process cannot be started."""

    async def apply(self, configuration: Configuration) -> None:
        """Put it into service everywhere at once. Raises ConfigRefused, or net.listening.BindError
        for an address that is not to be had, and has changed nothing then.
        """

    def announcement(self) -> str:
        """Which processes serve, for the log; "" where that is this one alone."""

    def why_not_ready(self) -> str:
        """ "" while somebody serves."""

    def reopen_access_log(self) -> None:
        """Open the file of the access log anew: it was rotated."""

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """What would become of a request (`gateway.explain`), as JSON. Raises errors.NotAnswered."""

    async def look_up(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """Where a name leads (`gateway.explain.name_lookup`), as JSON. Raises errors.NotAnswered."""

    async def decisions(self) -> list[bytes]:
        """The recent decisions of each process that serves, the latest first, as JSON."""

    async def caches(self, purge: CachePurge | None) -> list[bytes]:
        """The caches of each process that serves, as JSON (`filters.cache.cache.states`), behind this purge, if it is
        not None. Raises errors.NotAnswered where a process has not answered, and may have purged nothing.
        """

    async def holds(self, decision: HoldDecision | None, page: HoldPage) -> list[bytes]:
        """This page of what waits for approval in each process that serves, as JSON (`filters.approval_hold.holds`),
        behind this decision, if it is not None. Raises errors.NotAnswered where a process has not answered.
        """

    async def kill(self, killed: KilledIdentities, change: KillChange | None = None) -> int:
        """Put these clients out of service in each process, and in those that will be started, and no others; what is
        in progress for them is cut. `change`: what is different since the last call; processes are told that alone.

        Returns how many exchanges were cut. Raises errors.NotAnswered where a process has not answered; it holds for
        the others, and for what takes its place.
        """

    async def counts(self) -> Counts:
        """What was counted by all since the start; not to be changed."""

    def figures(self) -> list[ProcessFigures]:
        """What each worker costs."""

    async def drain(self, timeout_s: float) -> int:
        """Stop accepting, let exchanges and tunnels end, cut what is left then; returns how many were cut."""

    def hurry(self) -> None:
        """While it drains: cut what is left without waiting any longer."""

    async def stop(self) -> None:
        """End everything, and write what is to be logged."""


def process_limits(options: RunOptions) -> ProcessLimits:
    """What each process that serves may have."""
    memory = memory_for_each(options.workers) if options.max_memory is None else options.max_memory
    return ProcessLimits(options.max_connections, options.max_requests, memory)


def settle_heap() -> None:
    """After the start: what is there now stays. No collection need look at it, and it lies in huge pages."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    collapse_heap()


def collect_garbage(connections: int) -> None:
    """To be done before objects are frozen: garbage would stay for good. The event loop waits meanwhile. A connection
    takes up to 40 microseconds, so that with many of them the youngest objects alone are looked at.
    """
    gc.collect(2 if connections <= MANY_CONNECTIONS else 0)
