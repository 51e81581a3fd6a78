"""Worker: the data plane of one process: gateway, metrics and access log. A single worker runs in the main process;
several have separate processes (`process`).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from egressproxy.doors.catalog import Catalog
from egressproxy.doors.data_plane import GatewayServer
from egressproxy.errors import NotAnswered
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.gateway.backends.cluster import UPSTREAM_LIMITS
from egressproxy.gateway.exchange.recent_decisions import decisions, subjects_of
from egressproxy.gateway.identity.killed_identities import KillChange, KilledIdentities, KilledIdentity
from egressproxy.gateway.overload.process_limits import NO_LIMITS, ProcessLimits
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.model.admin_requests import MAX_PAGE, CachePurge, HoldDecision, HoldPage
from egressproxy.model.work import Work
from egressproxy.net.cooperative import in_turns
from egressproxy.net.listening import bind as bind_socket
from egressproxy.net.timers import TICK_S
from egressproxy.net.tls_contexts.key_log import start_key_log
from egressproxy.processes.listening_sockets import ListeningSockets
from egressproxy.processes.packing import unpacking
from egressproxy.processes.workers.codec_check import Misread, check_codec
from egressproxy.processes.workers.data_plane import (
    ConfigRefused,
    Configuration,
    DataPlane,
    EndpointUpdates,
    Guarded,
    RouteChanges,
    collect_garbage,
    process_limits,
)
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.counters import LoopLag
from egressproxy.telemetry.counts import Counts, ProcessFigures, process_figures
from egressproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from egressproxy.telemetry.live_lines import LiveLines

CACHE = "egressproxy.io/Cache:v1"
APPROVAL_HOLD = "egressproxy.io/ApprovalHold:v1"
#: The most requests that a refused guarded reload names.
MAX_SHOWN = 20


async def _imported(module: str) -> None:
    """Import a module of `operators/explain` in a thread, beside the traffic: most workers never need it."""
    await asyncio.to_thread(import_module, f"egressproxy.operators.explain.{module}")


def begin_key_log(file: Path | None) -> None:
    """Write the secrets of this process's TLS connections there. Raises ConfigRefused."""
    if file is not None:
        try:
            start_key_log(file)
        except (OSError, ValueError) as error:
            raise ConfigRefused(f"--tls-key-log {file}: {error}") from None


class Worker:
    """Created on the event loop. Raises ConfigRefused: no access log can be opened, or this Python misreads HTTP."""

    def __init__(
        self,
        access_log: str | None,
        metrics: Metrics,
        pseudonym: bytes = b"",
        bind: Callable[[str, int], socket.socket] = bind_socket,
        turn: AbstractContextManager[object] | None = None,
        tally: SharedCounters | None = None,
        session_key: bytes = b"",
        zone: str = "",
        limits: ProcessLimits = NO_LIMITS,
        access_log_format: str = "json",
    ) -> None:
        try:
            check_codec(HeadLimits(), UPSTREAM_LIMITS)
            self.access_log = AccessLog(access_log, turn=turn, log_format=access_log_format)
        except Misread as error:
            raise ConfigRefused(str(error)) from None
        except OSError as error:
            remedy = "--access-log takes a file in a folder that is there, - for standard output, or off"
            raise ConfigRefused(f"access log {access_log}: {error.strerror} ({remedy})") from None
        self.metrics = metrics
        self.gateway = GatewayServer(
            Catalog(counters=tally), self.metrics, self.access_log, pseudonym, bind, session_key, zone, limits
        )
        self.gateway.connection_manager.self_service.waiting = self.waiting
        #: The held requests of a client in all workers.
        self.holds_of_all: Callable[[str], Awaitable[tuple[bytes, ...]]] = self._own_holds
        self._live: LiveLines | None = None  # while somebody watches
        self._asking: dict[str, asyncio.Future[tuple[bytes, ...]]] = {}
        lag = LoopLag(TICK_S)
        self.gateway.wheel.watch = lag.tick
        self.metrics.add_counter(
            "egress_limit_keys_without_room_total", "Requests whose key of a limit found no room of its own.",
            lambda: self.gateway.catalog.crowded,
        )  # fmt: skip
        self.metrics.add_counter(
            "egress_access_log_dropped_total", "Access log lines that could not be written.",
            lambda: self.access_log.dropped,
        )  # fmt: skip
        self.metrics.add_counter(
            "egress_access_log_suppressed_total", "Access log lines of denials that were left out in a flood.",
            lambda: self.access_log.suppressed,
        )  # fmt: skip
        self.metrics.add_histogram(
            "egress_event_loop_lag_seconds", "How late the event loop was, ten times a second.", lag.delays
        )
        self.metrics.add_peak(
            "egress_event_loop_lag_max_seconds", "Longest delay since the last scrape.", lag.take_worst
        )

    async def prepare(self, asked: Configuration) -> Snapshot:
        """Build a snapshot beside the one in service. Raises ConfigRefused, and Guarded if it would allow denied
        requests.
        """
        collect_garbage(self.gateway.connection_manager.clients.total)
        gc.disable()  # a collection over the many new objects would stop the loop
        try:
            spec = replace(await in_turns(unpacking(asked.packed)), generation=asked.generation)
            fresh = await self.gateway.prepare(spec)
        except (ssl.SSLError, ValueError, OSError) as error:  # FilterBuildError is a ValueError
            raise ConfigRefused(str(error)) from None
        finally:
            gc.freeze()
            gc.enable()
        if asked.is_guarded:
            await self._guard(fresh)
        return fresh

    async def put_into_service(self, snapshot: Snapshot, own: tuple[tuple[str, int], ...]) -> None:
        """Serve a prepared snapshot. `own`: sockets of ours, closed to clients of the gateway."""
        await self.gateway.put_into_service(snapshot, own)

    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        return await self.gateway.drain(timeout_s, elsewhere, idle_s)

    def hurry(self) -> None:
        self.gateway.hurry()

    async def _guard(self, fresh: Snapshot) -> None:
        """Raises Guarded if this configuration would allow a recently denied request."""
        before = self.gateway.snapshot
        if before is None:
            return
        await _imported("decision_diff")
        from egressproxy.operators.explain.decision_diff import DENIED, flips

        recent = decisions(self.gateway.connection_manager.accounting.recent, subjects_of(fresh))
        denied = (each for each in recent if each.reason in DENIED)
        found = await in_turns(flips(before, fresh, denied))
        opened = [str(flip) for flip in found if flip.opens]
        if opened:
            more = [f"… and {len(opened) - MAX_SHOWN} more"] if len(opened) > MAX_SHOWN else []
            what = "a request that was" if len(opened) == 1 else f"{len(opened)} requests that were"
            raise Guarded("\n".join([f"it would allow {what} denied lately:", *opened[:MAX_SHOWN], *more]))

    async def answer(self, name: str, arguments: Sequence[Any] = ()) -> Any:
        """The answer to a query of `QUESTIONS`. Raises NotAnswered."""
        return await QUESTIONS[name](self, *arguments)

    async def _explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        await _imported("explain")
        from egressproxy.operators.explain.explain import explain
        from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest, HypotheticalRequestError

        try:
            question, pseudonym = HypotheticalRequest.of(pairs), self.gateway.connection_manager.pseudonym
            return json.dumps(await explain(self._in_service(), question, pseudonym)).encode()
        except HypotheticalRequestError as error:
            raise NotAnswered(str(error)) from None

    async def _look_up(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        await _imported("name_lookup")
        from egressproxy.operators.explain.hypothetical_request import HypotheticalRequestError
        from egressproxy.operators.explain.name_lookup import NameQuestion, look_up

        try:
            return json.dumps(await look_up(self._in_service(), NameQuestion.of(pairs))).encode()
        except HypotheticalRequestError as error:
            raise NotAnswered(str(error)) from None

    def _in_service(self) -> Snapshot:
        if self.gateway.snapshot is None:
            raise NotAnswered("nothing is in service yet")
        return self.gateway.snapshot

    async def _decisions(self) -> bytes:
        found, subjects = tuple(self.gateway.connection_manager.accounting.recent), subjects_of(self.gateway.snapshot)
        return await asyncio.to_thread(
            lambda: json.dumps([each._asdict() for each in decisions(found, subjects)]).encode()
        )

    async def _shown(self, what: str, *arguments: object) -> bytes:
        """What a function of `operators.explain.in_service.SHOWN` finds."""
        await _imported("in_service")
        from egressproxy.operators.explain.in_service import SHOWN

        made = SHOWN[what](self._in_service(), self.gateway.connection_manager.accounting, *arguments)
        return json.dumps(await in_turns(made)).encode()

    async def _open_connections(self) -> bytes:
        return b"%d" % self.gateway.connection_manager.clients.total

    async def _live_lines(self) -> bytes:
        """The lines of the access log since the last question, as `LiveLines.take`."""
        if self._live is None:
            from egressproxy.telemetry.live_lines import LiveLines

            self._live = LiveLines(self.access_log)
        return self._live.take()

    async def _caches(self, purge: CachePurge | None) -> bytes:
        snapshot = self.gateway.snapshot
        found = snapshot.filters.of_type(CACHE) if snapshot is not None else []
        if not found:
            return b"[]"
        from egressproxy.ai.cache.cache import states  # where there is one, it is imported already

        return json.dumps(states(found, purge)).encode()

    async def _holds(self, decision: HoldDecision | None, page: HoldPage) -> bytes:
        snapshot = self.gateway.snapshot
        found = snapshot.filters.of_type(APPROVAL_HOLD) if snapshot is not None else []
        if not found:
            return b'{"holds": [], "waiting": 0, "behind": 0, "decided": 0}'
        from egressproxy.operators.approval.approval_hold import holds  # where there is one, it is imported already

        return await in_turns(_written(holds(found, decision, page)))

    async def _own_holds(self, identity: str) -> tuple[bytes, ...]:
        return (await self._holds(None, HoldPage(MAX_PAGE, identity=identity)),)

    async def waiting(self, identity: str) -> list[dict[str, Any]] | None:
        """The held requests of this client in all workers, a page of each; None without all answers."""
        snapshot = self.gateway.snapshot
        if snapshot is None or not snapshot.filters.of_type(APPROVAL_HOLD):
            return []
        if (asking := self._asking.get(identity)) is None:  # a client that asks all the time asks others once at a time
            asking = self._asking[identity] = asyncio.ensure_future(self.holds_of_all(identity))
            asking.add_done_callback(lambda _done: self._asking.pop(identity, None))
        try:
            answers = [json.loads(each) for each in await asyncio.shield(asking)]
        except NotAnswered:
            return None
        return sorted((hold for each in answers for hold in each["holds"]), key=lambda hold: hold["deadline"])

    async def _export_metrics(self, request: bytes) -> bytes:
        """Send this request of OTLP to the collector of metrics. The answer is JSON: `refused` of its data points, and
        `why`; -1: none was taken, -2: the collector does not want them.
        """
        send = self._in_service().send_metrics
        if send is None:
            raise NotAnswered("no collector of metrics is in service")
        from egressproxy.telemetry.tracing.exporter import NotTaken  # where there is one, it is imported already

        try:
            refused, why = await send(request)
        except NotTaken as error:
            refused, why = -2 if error.after_s is None else -1, str(error)
        return json.dumps({"refused": refused, "why": why}).encode()

    async def _replace_endpoints(self, updates: EndpointUpdates) -> int:
        """1 if the endpoints of all these Services were replaced in the snapshot in service, else 0."""
        return int(self.gateway.replace_endpoints(updates))

    async def _update_routes(self, changes: RouteChanges) -> int:
        """1 if the configuration of this generation has these routes now; 0: a whole configuration is needed."""
        try:
            spec = replace(await in_turns(unpacking(changes.packed)), generation=changes.generation)
            return int(await self.gateway.update_routes(spec, frozenset(changes.names)))
        except (ssl.SSLError, ValueError, OSError):  # the whole configuration says what is wrong
            return 0

    async def _set_killed(self, names: Sequence[str], revision: int) -> int:
        """Set the killed clients. Returns the number of exchanges cut."""
        killed = KilledIdentities(map(KilledIdentity, names), revision)
        return self.gateway.kill(killed, killed)

    async def _kill(self, change: KillChange, revision: int) -> int | None:
        """Apply the change to this revision. Returns the number of exchanges cut; None: a missed change."""
        before = self.gateway.killed
        if before.revision != revision - 1:
            return None
        return self.gateway.kill(before.changed(change), change.killed())

    def close(self) -> None:
        self.access_log.close()


#: The queries to serving processes, by name in a message. All but live_lines and the last four have JSON answers.
QUESTIONS: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
    "explain": Worker._explain,
    "look_up": Worker._look_up,
    "decisions": Worker._decisions,
    "shown": Worker._shown,
    "open_connections": Worker._open_connections,
    "live_lines": Worker._live_lines,
    "caches": Worker._caches,
    "holds": Worker._holds,
    "export_metrics": Worker._export_metrics,
    "set_killed": Worker._set_killed,
    "kill": Worker._kill,
    "replace_endpoints": Worker._replace_endpoints,
    "update_routes": Worker._update_routes,
}


def _written(found: dict[str, Any]) -> Work[bytes]:
    """The result of `holds` as JSON, as cooperative work: each request has some kilobytes."""
    written = []
    for each in found.pop("holds"):
        written.append(json.dumps(each))
        yield None
    return f'{{"holds": [{", ".join(written)}], {json.dumps(found)[1:]}'.encode()


class InProcess(DataPlane):
    """The DataPlane of one worker in this process."""

    def __init__(self, options: RunOptions, metrics: Metrics, sockets: ListeningSockets | None = None) -> None:
        """`sockets`: those of this process; None: all are bound here."""
        self._options = options
        self._metrics = metrics
        self._sockets = sockets or ListeningSockets()
        metrics.add_gauge("egress_workers", "Worker processes that serve.", lambda: 1)
        metrics.add_counter("egress_worker_restarts", "Workers that had to be replaced.", lambda: 0)
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The data plane, created by `start`."""
        assert self._worker is not None, "not started"
        return self._worker

    async def start(self) -> None:
        begin_key_log(self._options.tls_key_log)
        self._worker = self._made()

    def _made(self) -> Worker:
        """The new worker. Raises ConfigRefused."""
        options = self._options
        key = options.session_key.reveal()
        return Worker(
            options.access_log, self._metrics, bind=self._sockets.bind, session_key=key, zone=options.zone,
            limits=process_limits(options), access_log_format=options.access_log_format,
        )  # fmt: skip

    async def apply(self, configuration: Configuration) -> None:
        snapshot = await self.worker.prepare(configuration)
        await self.worker.put_into_service(snapshot, configuration.own)

    async def replace_endpoints(self, updates: EndpointUpdates) -> bool:
        return self.worker.gateway.replace_endpoints(updates)

    async def update_routes(self, changes: RouteChanges) -> bool:
        return bool(await self.worker.answer("update_routes", (changes,)))

    def reopen_access_log(self) -> None:
        self.worker.access_log.reopen()

    async def ask_one(self, name: str, *arguments: object) -> bytes:
        found: bytes = await self.worker.answer(name, arguments)
        return found

    async def ask_all(self, name: str, *arguments: object) -> list[bytes]:
        return [await self.ask_one(name, *arguments)]

    async def kill(self, killed: KilledIdentities, change: KillChange | None = None) -> int:
        return self.worker.gateway.kill(killed, killed if change is None else change.killed())

    async def counts(self) -> Counts:
        return self._metrics.gather()

    async def usage(self) -> list[Counts]:
        return [self._metrics.usage()]

    def figures(self) -> list[ProcessFigures]:
        return [process_figures(1, os.getpid())]

    def end_connections(self) -> None:
        self.worker.gateway.end_connections()

    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        return await self.worker.drain(timeout_s, elsewhere, idle_s)

    def hurry(self) -> None:
        self.worker.hurry()

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
