"""DataPlane: the application's interface to the serving side: one data plane in this process (`worker.InProcess`), or
several processes (`supervisor.Supervisor`).
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from egressproxy.errors import NotAnswered
from egressproxy.gateway.identity.killed_identities import KillChange, KilledIdentities
from egressproxy.gateway.overload.process_limits import ProcessLimits
from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.unix_socket import UnixSocket
from egressproxy.net.listening import bind, bind_unix
from egressproxy.net.process import collapse_heap, memory_for_each
from egressproxy.run_options import FilterListener, RunOptions
from egressproxy.telemetry.counts import Counts, ProcessFigures

#: The number of client connections above which a reload collects only the youngest garbage.
MANY_CONNECTIONS: Final = 1000


class ConfigRefused(Exception):
    """A failed start, or an unusable configuration: the earlier one stays in all processes. The message says why."""


class Guarded(ConfigRefused):
    """An unacknowledged configuration that would allow recently denied requests."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A ConfigIR, packed by `processes.packing`, and the facts for processes that do not serve it.

    `places` are to be bound: address (IP literal), port, and owner (`gateway/listener`, …). `generation` counts the
    configurations in service, from 1. `own` are further sockets of ours, closed to clients of the gateway.
    `is_guarded`: raise Guarded if a recent decision would change from denied to allowed.
    """

    packed: bytes = field(repr=False)
    places: Mapping[tuple[str, int], str]
    generation: int
    own: tuple[tuple[str, int], ...] = ()
    is_guarded: bool = False


@dataclass(frozen=True, slots=True)
class RouteChanges:
    """HTTPRoutes (`names`: namespace/name) that were changed or deleted since the configuration of this generation.
    They are in `packed`, a ConfigIR as in Configuration, with all listeners and without the cluster's other HTTPRoutes.
    """

    packed: bytes = field(repr=False)
    names: tuple[str, ...]
    generation: int


#: The addresses of Services, by name ("namespace/name") and port.
EndpointUpdates = Mapping[tuple[str, int], tuple[EndpointAddress, ...]]


class DataPlane(Protocol):
    """All methods belong to the event loop. Call `start` first, and `stop` last even after errors.

    Queries are those of `worker.Worker.answer`; the answers are JSON.
    """

    async def ask_one(self, name: str, *arguments: object) -> bytes:
        """The answer of one serving process. Raises errors.NotAnswered."""

    async def ask_all(self, name: str, *arguments: object) -> list[bytes]:
        """The answers of all serving processes, except those that end meanwhile.

        Raises errors.NotAnswered if another process has not answered.
        """

    async def start(self) -> None:
        """Start. Raises ConfigRefused if the access log cannot be opened or a process cannot be started."""

    async def apply(self, configuration: Configuration) -> None:
        """Put a configuration into service in all processes. Raises ConfigRefused or BindError, without a change."""

    async def replace_endpoints(self, updates: EndpointUpdates) -> bool:
        """Replace the addresses of Services in all processes, until the next `apply`. Returns False if a whole
        configuration is needed.
        """

    async def update_routes(self, changes: RouteChanges) -> bool:
        """Replace these routes in all processes, until the next `apply` or `update_routes`, whose changes include
        these. Returns False if a whole configuration is needed.
        """

    def announcement(self) -> str:
        """The serving processes, for the log; "" for this process alone."""
        return ""

    def why_not_ready(self) -> str:
        """ "" while a process serves, else a sentence."""
        return ""

    def reopen_access_log(self) -> None: ...  # its file was rotated
    async def kill(self, killed: KilledIdentities, change: KillChange | None = None) -> int:
        """Set the killed clients in all current and future processes, and cut their exchanges. `change`: the difference
        since the last call, which alone is sent to processes.

        Returns the number of exchanges cut. Raises errors.NotAnswered if a process has not answered; the change holds
        for the others, and for its replacement.
        """

    async def counts(self) -> Counts: ...  # of all processes, since the start; read-only
    async def usage(self) -> list[Counts]:
        """What was counted of exchanges and by filters, by processes that have ended, too: add them up."""

    def figures(self) -> list[ProcessFigures]: ...  # the resource use of each worker
    def end_connections(self) -> None: ...  # each with its exchange; new ones are accepted, and served
    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        """Stop accepting, wait for exchanges and tunnels, then cut the rest; returns the number cut.

        `elsewhere` are the addresses and ports whose pending connections another process accepts. An idle connection
        may send one more request within `idle_s`.
        """

    def hurry(self) -> None: ...  # while it drains: cut what is left without waiting any longer
    async def stop(self) -> None: ...  # end everything, and write what is to be logged
    async def ask_some(self, name: str, *arguments: object) -> list[bytes]:
        """The answers of all serving processes that answer."""
        try:
            return await self.ask_all(name, *arguments)
        except NotAnswered:
            return []


def process_limits(options: RunOptions) -> ProcessLimits:
    """The limits of each serving process."""
    memory = memory_for_each(options.workers) if options.max_memory is None else options.max_memory
    return ProcessLimits(options.max_connections, options.max_requests, memory)


def bind_filters(at: FilterListener) -> socket.socket:
    """A listening socket; a stale Unix socket is replaced. Closing the socket removes its path. Raises OSError."""
    return bind_unix(UnixSocket(at.path, at.mode)) if at.path else bind(at.host, at.port)


def settle_heap() -> None:
    """Freeze the objects of the start, so that collections skip them, and move them to huge pages."""
    gc.collect()
    gc.freeze()
    collapse_heap()


def collect_garbage(connections: int) -> None:
    """Collect garbage before objects are frozen, which would keep garbage for good. This blocks the event loop, up to
    40 microseconds per connection, so with many connections only the youngest objects are collected.
    """
    gc.collect(2 if connections <= MANY_CONNECTIONS else 0)
