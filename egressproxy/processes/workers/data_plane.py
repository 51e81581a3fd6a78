"""DataPlane: what the application asks of those who serve its traffic, be they one data plane in this process
(`worker.InProcess`) or several processes (`supervisor.Supervisor`).
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.kill_switch import KillChange, KilledIdentities
from egressproxy.model.process_limits import ProcessLimits
from egressproxy.model.unix_socket import UnixSocket
from egressproxy.net.listening import bind, bind_unix
from egressproxy.net.process import collapse_heap, memory_for_each
from egressproxy.run_options import FilterListener, RunOptions
from egressproxy.telemetry.counts import Counts, ProcessFigures

#: Of clients, from which on a reload does not look for garbage among all objects.
MANY_CONNECTIONS: Final = 1000


class ConfigRefused(Exception):
    """A start that fails, or a configuration that cannot be used: the one before stays, everywhere. It says why."""


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


@dataclass(frozen=True, slots=True)
class RouteChanges:
    """HTTPRoutes (`names`: namespace/name) that are other ones than in the configuration of this generation, or are
    gone. They are in `packed`, a ConfigIR as of Configuration, with all listeners and without the other HTTPRoutes of a
    cluster.
    """

    packed: bytes = field(repr=False)
    names: tuple[str, ...]
    generation: int


#: The addresses of Services, by name ("namespace/name") and port.
EndpointUpdates = Mapping[tuple[str, int], tuple[EndpointAddress, ...]]


class DataPlane(Protocol):
    """All methods belong to the event loop. `start` comes first, `stop` last, however it went.

    Questions are those that `worker.Worker.answer` knows; the answers are JSON.
    """

    async def ask_one(self, name: str, *arguments: object) -> bytes:
        """The answer of one process that serves. Raises errors.NotAnswered."""

    async def ask_all(self, name: str, *arguments: object) -> list[bytes]:
        """The answers of all processes that serve; what one kept that ends meanwhile ends with it.

        Raises errors.NotAnswered where another one has not answered.
        """

    async def start(self) -> None:
        """Raises ConfigRefused where the access log cannot be opened or a process cannot be started."""

    async def apply(self, configuration: Configuration) -> None:
        """Put it into service everywhere at once. Raises ConfigRefused, BindError, and has changed nothing then."""

    async def replace_endpoints(self, updates: EndpointUpdates) -> bool:
        """Let Services lead to these addresses everywhere, until the next `apply`. Returns False where a configuration
        has to be built for that.
        """

    async def update_routes(self, changes: RouteChanges) -> bool:
        """Put these routes into service everywhere, until the next `apply` or `update_routes`, whose changes have to
        be those of this one, too. Returns False where a whole configuration has to be.
        """

    def announcement(self) -> str:
        """Which processes serve, for the log; "" where that is this one alone."""
        return ""

    def why_not_ready(self) -> str:
        """ "" while somebody serves."""
        return ""

    def reopen_access_log(self) -> None: ...  # its file was rotated
    async def kill(self, killed: KilledIdentities, change: KillChange | None = None) -> int:
        """Put these clients out of service in each process, and in those that will be started, and no others; what is
        in progress for them is cut. `change`: what is different since the last call; processes are told that alone.

        Returns how many exchanges were cut. Raises errors.NotAnswered where a process has not answered; it holds for
        the others, and for what takes its place.
        """

    async def counts(self) -> Counts: ...  # of all, since the start; not to be changed
    def figures(self) -> list[ProcessFigures]: ...  # what each worker costs
    def end_connections(self) -> None: ...  # each with its exchange; new ones are accepted, and served
    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        """Stop accepting, let exchanges and tunnels end, cut what is left then; returns how many were cut.

        `elsewhere` are the addresses and ports on which another process accepts what waits. A connection that is idle
        may ask once more within `idle_s`.
        """

    def hurry(self) -> None: ...  # while it drains: cut what is left without waiting any longer
    async def stop(self) -> None: ...  # end everything, and write what is to be logged
    async def decisions(self) -> list[bytes]:
        """The recent decisions of each process that answers, the latest first."""
        return await self.ask_all("decisions")


def process_limits(options: RunOptions) -> ProcessLimits:
    """What each process that serves may have."""
    memory = memory_for_each(options.workers) if options.max_memory is None else options.max_memory
    return ProcessLimits(options.max_connections, options.max_requests, memory)


def bind_filters(at: FilterListener) -> socket.socket:
    """A socket that listens there, in place of a dead Unix socket; to close it removes its path. Raises OSError."""
    return bind_unix(UnixSocket(at.path, at.mode)) if at.path else bind(at.host, at.port)


def settle_heap() -> None:
    """After the start: what is there now stays. No collection need look at it, and it lies in huge pages."""
    gc.collect()
    gc.freeze()
    collapse_heap()


def collect_garbage(connections: int) -> None:
    """To be done before objects are frozen: garbage would stay for good. The event loop waits meanwhile. A connection
    takes up to 40 microseconds, so that with many of them the youngest objects alone are looked at.
    """
    gc.collect(2 if connections <= MANY_CONNECTIONS else 0)
