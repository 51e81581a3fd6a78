"""OverloadManager: looks at the memory of the process, and does what its state asks for.

The wheel of timers wakes it: ten times a second where the memory has a limit, else for growth alone. What each state
does: `OverloadState`. What is in progress is counted in every state but the normal one, so that it is known whose it
is; where `--max-requests` says how much there may be, it is counted always. Source of the idea and of most names:
Envoy, overload manager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from operator import itemgetter
from time import perf_counter
from typing import Protocol

from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.identity.killed_identities import KilledIdentities
from egressproxy.gateway.listeners.bound_port import BoundPort
from egressproxy.gateway.open_connections import Connection, OpenConnections
from egressproxy.gateway.overload.memory_pressure import MemoryPressure, OverloadState
from egressproxy.gateway.overload.process_limits import ProcessLimits
from egressproxy.gateway.overload.request_gate import RequestGate, path_of
from egressproxy.model.per_client_quota import PerClientQuota
from egressproxy.net.process import ResidentMemory, give_back_memory
from egressproxy.net.timers import Deadline
from egressproxy.telemetry.event_aggregator import EventType, InvolvedObject

log = logging.getLogger(__name__)

#: Idle connections that are closed at each look: their clients come back, and not all at once.
CLOSED_AT_ONCE = 64
#: Of what is in progress, what is ended at each look at which the process has more than it may have.
ENDED_SHARE = 0.25
#: So many requests in progress there may be while memory is short, however few there were when that began.
LEAST_REQUESTS = 8
#: Memory is given back so often, in seconds; more rarely where that takes long: for this part of the time.
GIVE_BACK_S = 1.0
GIVE_BACK_SHARE = 0.05
#: And so often after the state is normal again.
GIVE_BACK_TIMES = 3
#: What is in circles is collected no more often than this, in seconds: that looks at every object.
COLLECT_S = 30.0
#: Circles are looked for, too, where the process has grown by so many bytes; and so often it is asked, in seconds.
GROWN_BYTES = 64 * 1024 * 1024
GROWTH_S = 10.0
#: The measures of each state, for Events.
DONE = {
    OverloadState.NO_KEEPALIVE: "connections end with their response",
    OverloadState.SHEDDING: "requests are refused, those of low priority and of clients with many first",
    OverloadState.REFUSING: "every request is refused",
}
#: Gateways that an Event is told of at each change.
MAX_TOLD = 16


class GiveBack(Protocol):
    """See `give_back_memory`."""

    def __call__(self, *, collects: bool) -> None: ...


class OverloadManager:
    """`ports` and `clusters` give those in service, `copies` are those for mirrors. `read_memory`: resident bytes."""

    def __init__(
        self, limits: ProcessLimits, connection_manager: HttpConnectionManager,
        ports: Callable[[], Iterable[BoundPort]], clusters: Callable[[], Iterable[Cluster]], copies: PerClientQuota,
        read_memory: Callable[[], int] | None = None, give_back: GiveBack = give_back_memory,
    ) -> None:  # fmt: skip
        self._limits = limits
        self._connection_manager = connection_manager
        self._accounting = connection_manager.accounting
        self._wheel = connection_manager.wheel
        self._ports = ports
        self._clusters = clusters
        self._copies, self._most_copies = copies, copies.limit
        self._give_back = give_back
        self._give_back_at = 0.0
        self._collect_at = 0.0
        self._gives_back = 0
        self._idle: list[Connection] = []  # those from before the state began, the oldest last
        self._worst = OverloadState.NORMAL  # since the last scrape
        self._has_warned = False
        self.gate = RequestGate(limits.requests)
        self._accounting.gate = self.gate if limits.requests else None
        self.pressure = MemoryPressure(limits.memory_bytes)
        self._memory = ResidentMemory() if read_memory is None else None
        self._read = read_memory or self._memory.read  # type: ignore[union-attr]  # set if `read_memory` is None
        self._deadline = Deadline(self._wheel, self.look)
        self._growth = Deadline(self._wheel, self._look_for_growth)
        self._resident = 0  # at the last collection, or less
        connection_manager.clients.states = self._states
        metrics = self._accounting.metrics
        metrics.shed = self.gate.shed
        metrics.add_peak(
            "egress_overload_state",
            "The worst state of any worker since the last scrape: 0 normal, 1 no_keepalive, 2 shedding, 3 refusing.",
            self._take_worst,
        )
        limit_help = "What the workers may have together; 0: no limit."
        metrics.add_gauge("egress_memory_limit_bytes", limit_help, lambda: limits.memory_bytes)

    @property
    def state(self) -> OverloadState:
        return self.pressure.state

    def start(self) -> None:
        """Look from now on: the first configuration is in service."""
        if self._limits.memory_bytes and not self.pressure.kept:
            self.look()
        if not self._resident:
            self._resident = self._read()
            self._growth.set(self._wheel.now + GROWTH_S)

    def stop(self) -> None:
        self._deadline.close()
        self._growth.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def look(self) -> None:
        """Compare the memory with its limit, ten times a second, and act."""
        now, before, resident = self._wheel.now, self.pressure.state, self._read()
        state = self.pressure.observe(resident, self.gate.active + self._connection_manager.clients.total, now)
        if state is not before:
            self._changed(before, state, resident)
        if state is not OverloadState.NORMAL:
            if resident > self.pressure.most:
                self._end_exchanges(resident)
                self._give_back_at = now
            self._relieve(now, is_new=state is not before)
            self._gives_back = GIVE_BACK_TIMES
        elif self._gives_back:
            if now >= self._give_back_at:
                self._gives_back -= 1
                self._give_memory_back(now)
        elif self.pressure.kept > self._limits.memory_bytes * 0.8 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s stay resident in this process, of a limit of %s: raise --max-memory, so that requests have room",
                _size(self.pressure.kept),
                _size(self._limits.memory_bytes),
            )
        self._deadline.set(now)  # at the next tick

    def _look_for_growth(self) -> None:
        """The collector counts objects, and a body is one, however long. So what has grown is collected by its size."""
        now, resident = self._wheel.now, self._read()
        if resident <= self._resident + GROWN_BYTES:
            self._resident = min(self._resident, resident)
        elif now >= max(self._collect_at, self._give_back_at):
            self._give_memory_back(now)
            self._resident = self._read()
        self._growth.set(now + GROWTH_S)

    def _changed(self, before: OverloadState, state: OverloadState, resident: int) -> None:
        connection_manager, gate = self._connection_manager, self.gate
        connection_manager.ends_connections = connection_manager.is_draining or state is not OverloadState.NORMAL
        connection_manager.has_no_memory = state is OverloadState.REFUSING
        self._worst = max(self._worst, state)
        if before is OverloadState.NORMAL:
            if self._accounting.gate is None:
                self._count_requests()
            self._idle = [each for open_here in self._states() for each in open_here.connections]
            self._idle.reverse()
            self._give_back_at = 0.0
        self._copies.limit = self._most_copies if state < OverloadState.SHEDDING else 0
        limit = self._limits.requests
        if state is OverloadState.SHEDDING:
            now = max(gate.active, LEAST_REQUESTS)
            limit = min(limit, now) if limit else now
        gate.set_limit(limit, is_closed=state is OverloadState.REFUSING, is_pressed=state is OverloadState.SHEDDING)
        if state is OverloadState.NORMAL:
            self._idle = []
            self._accounting.gate = gate if limit or gate.killed else None
        if OverloadState.REFUSING in (before, state):
            for port in self._ports():
                if state is OverloadState.REFUSING:
                    port.pause_accepting()
                else:
                    port.resume_accepting()
        self._tell(before, state, resident)

    def refuse_identities(self, killed: KilledIdentities) -> None:
        """From now on no request of these clients is admitted; of those in progress nothing is said."""
        self.gate.killed = killed
        if killed and self._accounting.gate is None:
            self._count_requests()
        elif not killed and not self._limits.requests and self.state is OverloadState.NORMAL:
            self._accounting.gate = None

    def _count_requests(self) -> None:
        """Count requests from now on. Those in progress are found by their connections."""
        gate = self._accounting.gate = self.gate
        for open_here in self._states():
            listener = open_here.port.first
            for connection, origin in open_here.connections.items():
                path = path_of(listener.gateway, listener.name, "-", origin)
                for holder in connection.serving():
                    if holder.tenant is None:
                        holder.tenant = gate.count(path)

    def _relieve(self, now: float, *, is_new: bool) -> None:
        if not is_new:  # what was accepted a moment ago has asked for something by now
            for _ in range(min(CLOSED_AT_ONCE, len(self._idle))):
                self._idle.pop().close_if_idle()
        if now >= self._give_back_at:
            for cluster in self._clusters():
                cluster.close_idle()
            self._give_memory_back(now)

    def _end_exchanges(self, resident: int) -> None:
        """Memory grows although nothing is admitted: what is in progress fills its buffers. A quarter of it ends, with
        the connections of those clients that would be refused first: they, or their networks, have most in progress.
        """
        found: list[tuple[int, int, Connection]] = []
        for open_here in self._states():
            for connection in open_here.connections:
                tenants = [holder.tenant for holder in connection.serving()]
                if tenants:
                    found.append((max(map(self.gate.price_of, tenants)), len(tenants), connection))
        found.sort(key=itemgetter(0, 1), reverse=True)
        wanted, ended = max(1, int(sum(count for _, count, _ in found) * ENDED_SHARE)), 0
        for _, count, connection in found:
            if ended >= wanted:
                break
            connection.abort()
            ended += count
        if ended:
            log.warning(
                "%s of %s are resident, and nothing is admitted: %d requests in progress are ended, of the clients that"
                " have most", _size(resident), _size(self._limits.memory_bytes), ended,
            )  # fmt: skip

    def _give_memory_back(self, now: float) -> None:
        collects = now >= self._collect_at or not self._gives_back  # and at last, after all
        if collects:
            self._collect_at = now + COLLECT_S
        began = perf_counter()
        self._give_back(collects=collects)
        took_s = perf_counter() - began
        self._give_back_at = now + max(GIVE_BACK_S, took_s / GIVE_BACK_SHARE)
        log.debug("memory was given back in %.1f ms", took_s * 1000)

    def _states(self) -> list[OpenConnections]:
        return [state for port in self._ports() for state in port.states]

    def _tell(self, before: OverloadState, state: OverloadState, resident: int) -> None:
        gate, limit = self.gate, self._limits.memory_bytes
        what = f"{_size(resident)} of {_size(limit)} are resident, and {gate.active} requests in progress"
        message = f"overload state {state.text} after {before.text}: {what}"
        is_worse = state > before
        log.log(logging.WARNING if is_worse else logging.INFO, "%s", message)
        gateways = {live.gateway for port in self._ports() for live in port.state.port.listeners}
        is_over = state is OverloadState.NORMAL
        if not is_worse and not is_over:
            return
        for name in sorted(gateways)[:MAX_TOLD]:
            regarding = InvolvedObject.of("Gateway", name)
            if is_over:
                notice = "MemoryPressureEnded", "a worker has memory again", EventType.NORMAL
            else:
                notice = "MemoryPressure", f"a worker has little memory left: {DONE[state]}", EventType.WARNING
            self._accounting.notices.changed("Shed", regarding, *notice)

    def _take_worst(self) -> int:
        worst, self._worst = self._worst, self.state
        return int(worst)


def _size(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
