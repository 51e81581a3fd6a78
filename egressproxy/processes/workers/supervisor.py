"""Supervisor: a fleet of worker processes that share one listening socket for each place.

It binds the sockets, and sends every worker a copy of the descriptors. Another worker accepts the pending connections
of a dead worker. All workers build a configuration, and swap after the last has built it. The supervisor itself serves
no traffic.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from egressproxy.errors import NotAnswered
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.gateway.identity.killed_identities import KillChange, KilledIdentities
from egressproxy.model.admin_requests import MAX_PAGE, HoldPage
from egressproxy.model.own_names import new_pseudonym
from egressproxy.model.secret import SecretBytes
from egressproxy.net.file_lock import memory_file
from egressproxy.net.listening import BindError, bind_error
from egressproxy.processes.listening_sockets import ListeningSockets
from egressproxy.processes.workers.data_plane import (
    ConfigRefused,
    Configuration,
    DataPlane,
    EndpointUpdates,
    RouteChanges,
    bind_filters,
    process_limits,
)
from egressproxy.processes.workers.messages import Begin, Command, Drain, Query, Reply
from egressproxy.processes.workers.worker_handle import WorkerEnded, WorkerHandle, WorkerSilent
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.counts import Counts, ProcessFigures
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger("egressproxy")

#: The time limit of a worker's counters for a scrape; afterwards the last known ones are shown.
SCRAPE_S: Final = 1.0
#: The interval of collecting counters besides, in seconds: at most so much is lost with a killed worker.
COLLECT_S: Final = 10.0
#: Seconds without a turn of its loop after which a worker is replaced.
SILENT_S: Final = 60.0
#: A worker with a shorter life counts as failed: its replacement waits, twice as long each time.
SHORT_LIFE_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
#: The longest pause without another serving worker.
LONGEST_PAUSE_ALONE_S: Final = 1.0


class Supervisor(DataPlane):
    """The DataPlane of several processes. `errors`: the descriptor of standard error's FileLock, if any; closed here.
    `sockets`: inherited ones of this process; None: all are bound here.
    """

    def __init__(
        self, options: RunOptions, metrics: Metrics, errors: int | None = None, sockets: ListeningSockets | None = None
    ) -> None:
        self._options = options
        self._given = sockets or ListeningSockets()
        self._errors = errors
        self._limits = process_limits(options)
        self._metrics = metrics
        self._pseudonym = new_pseudonym()
        self._session_key = options.session_key or SecretBytes(secrets.token_bytes(32))
        self._shared: list[int] = []  # descriptors
        self._tally: SharedCounters | None = None
        self._handles: dict[int, WorkerHandle] = {}  # slot -> current or starting worker
        self._members: set[WorkerHandle] = set()  # the workers that build
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._current: Configuration | None = None
        self._endpoints: EndpointUpdates = {}  # of Services, since the configuration
        self._routes: RouteChanges | None = None  # since the configuration
        self._killed = KilledIdentities()
        self._buried = Counts()
        self._spent_s = dict.fromkeys(range(1, options.workers + 1), 0.0)
        self._restarts = 0
        self._changed = asyncio.Event()  # a new configuration, which ends pauses
        self._tasks: list[asyncio.Task[None]] = []
        self._answers: set[asyncio.Task[None]] = set()  # to queries of workers
        metrics.add_gauge("egress_workers", "Worker processes that serve.", lambda: len(self._serving()))
        metrics.add_counter("egress_worker_restarts", "Workers that had to be replaced.", lambda: self._restarts)

    # --- its life --------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        errors = self._errors if self._errors is not None else memory_file("egressproxy-errors")
        self._shared = [memory_file("egressproxy-log"), memory_file("egressproxy-limits"), errors]
        self._tally = SharedCounters(self._shared[1], self._options.workers, 0)
        try:
            handles = [self._spawn(number) for number in self._spent_s]
            await asyncio.gather(*(self._begin(handle) for handle in handles))
        except WorkerEnded as error:
            raise ConfigRefused(str(error)) from None
        except OSError as error:
            file = f" ({error.filename})" if error.filename else ""
            raise ConfigRefused(f"a worker cannot be started: {error.strerror}{file}") from None
        self._members.update(handles)
        self._tasks = [asyncio.create_task(self._keep(handle)) for handle in handles]
        self._tasks.append(asyncio.create_task(self._collect_regularly()))
        for task in self._tasks:
            task.add_done_callback(_tell_defect)

    def announcement(self) -> str:
        pids = ", ".join(str(handle.pid) for handle in self._serving())
        return f"{len(self._serving())} workers serve: processes {pids}"

    def why_not_ready(self) -> str:
        return "" if self._serving() else "no worker serves"

    def reopen_access_log(self) -> None:
        for handle in self._handles.values():
            handle.tell(Command.REOPEN_ACCESS_LOG)

    def end_connections(self) -> None:
        for handle in self._serving():
            handle.tell(Command.END_CONNECTIONS)

    async def drain(self, timeout_s: float, elsewhere: Collection[tuple[str, int]] = (), idle_s: float = 0.0) -> int:
        asked = Drain(timeout_s, tuple(elsewhere), idle_s)
        self._cancel_tasks()
        self._close_sockets(list(self._sockets))
        for handle in self._handles.values():
            if not handle.is_serving:
                handle.end()
        cut = await asyncio.gather(*(self._drain(handle, asked) for handle in self._serving()))
        return sum(cut)

    def hurry(self) -> None:
        for handle in self._serving():
            handle.tell(Command.HURRY)

    async def stop(self) -> None:
        self._cancel_tasks()
        self._close_sockets(list(self._sockets))
        for handle in self._handles.values():
            handle.end()
        for handle in self._handles.values():
            await handle.has_ended.wait()
        for descriptor in self._shared:
            os.close(descriptor)
        self._shared.clear()

    async def _drain(self, handle: WorkerHandle, asked: Drain) -> int:
        try:
            return await handle.drain(asked)
        except WorkerEnded as error:
            log.error("%s", error)
            return 0

    def _cancel_tasks(self) -> None:
        for task in (*self._tasks, *self._answers):
            task.cancel()
        self._tasks.clear()

    # --- workers ---------------------------------------------------------------------------------------------------
    def _serving(self) -> list[WorkerHandle]:
        return [handle for handle in self._handles.values() if handle.is_serving]

    def _spawn(self, number: int) -> WorkerHandle:
        """Raises OSError."""
        handle = self._handles[number] = WorkerHandle(number, self._metrics.notices.add, self._asked_by)
        return handle

    async def _begin(self, handle: WorkerHandle) -> None:
        """Raises ConfigRefused, WorkerEnded."""
        options, key = self._options, self._session_key.reveal()
        asked = Begin(
            handle.number, options.workers, options.access_log, options.log_level, self._pseudonym, key,
            options.log_format, options.zone, self._limits, options.filters, options.tls_key_log,
        )  # fmt: skip
        await handle.begin(asked, self._shared)
        if self._killed:
            try:
                await handle.answer(_all_killed(self._killed))
            except NotAnswered as error:
                raise ConfigRefused(str(error)) from None

    async def _keep(self, handle: WorkerHandle) -> None:
        """Restart the worker in this slot when it exits."""
        short_lives = 0
        while True:
            await handle.has_ended.wait()
            self._bury(handle)
            is_short = time.monotonic() - handle.started_at < SHORT_LIFE_S
            short_lives = short_lives + 1 if is_short else 0
            longest_s = LONGEST_PAUSE_S if self._serving() else LONGEST_PAUSE_ALONE_S
            pause_s = min(FIRST_PAUSE_S * 2 ** (short_lives - 2), longest_s) if short_lives > 1 else 0.0
            what = f"again in {pause_s:g} s: it is number {short_lives} in a row" if pause_s else "at once"
            log.error("%s %s; it is replaced %s", handle, handle.how_it_ended(), what)
            handle = await self._replaced(handle, pause_s)

    async def _replaced(self, handle: WorkerHandle, pause_s: float) -> WorkerHandle:
        """The replacement in its slot, which may have ended, too."""
        while True:
            if pause_s:
                self._changed.clear()
                await _within(pause_s, self._changed.wait())
            self._restarts += 1
            try:
                fresh = self._spawn(handle.number)
            except OSError as error:
                pause_s = LONGEST_PAUSE_S
                log.error("worker %d cannot be started: %s; again in %g s", handle.number, error.strerror, pause_s)
                continue
            try:
                await self._begin(fresh)
                await self._bring_up(fresh)
                log.info("%s serves", fresh)
            except WorkerSilent as error:
                log.error("%s", error)
            except WorkerEnded:
                pass  # reported together with the next start
            except (ConfigRefused, OSError) as error:  # OSError: no free descriptor to send a socket
                log.error("%s cannot serve: %s", fresh, error)
                fresh.end()
            return fresh

    async def _bring_up(self, handle: WorkerHandle) -> None:
        """Bring the configuration in service to a new worker. Raises ConfigRefused, WorkerEnded."""
        routes = None  # the worker's current ones
        while handle.built is not self._current or routes is not self._routes:
            assert self._current is not None
            if handle.built is not self._current:
                await handle.build(self._current)
                routes = None
            elif (routes := self._routes) is not None:
                await _have_routes(handle, routes)
        self._members.add(handle)
        if self._current is not None:
            await handle.swap(self._current, self._sockets)
        if self._routes is not None and self._routes is not routes:  # changed meanwhile
            await _have_routes(handle, self._routes)
        try:
            if self._endpoints:
                await handle.answer(Query("replace_endpoints", (self._endpoints,)))
        except NotAnswered as error:
            raise ConfigRefused(str(error)) from None

    def _bury(self, handle: WorkerHandle) -> None:
        self._members.discard(handle)
        if self._tally is not None:
            self._tally.forget(handle.number)
        handle.counts.forget_gauges()
        self._buried.add(handle.counts)
        handle.counts = Counts()
        self._spent_s[handle.number] += handle.figures().cpu_s
        handle.latest_figures = ProcessFigures(handle.number)

    # --- configuration ---------------------------------------------------------------------------------------------
    async def apply(self, configuration: Configuration) -> None:
        # A worker that ends during the build is left out, unless all do; its replacement builds it.
        try:
            ended: list[WorkerEnded] = []
            while asked := [each for each in self._members if each.built is not configuration and not each.is_gone]:
                ended += await _ended(handle.build(configuration) for handle in asked)
            if ended and not any(each.built is configuration and not each.is_gone for each in self._members):
                raise ConfigRefused(f"no worker could build it: {ended[-1]}")
            new = self._bind_new(configuration)
        except (ConfigRefused, BindError):
            for handle in self._members:
                handle.tell(Command.FORGET)
                handle.built = handle.configuration
            raise
        self._current = configuration
        self._endpoints, self._routes = {}, None
        self._sockets.update(new)
        self._changed.set()
        await asyncio.gather(*(self._swap(handle, configuration, new) for handle in self._members))
        self._close_sockets([address for address in self._sockets if address not in self._places(configuration)])

    async def replace_endpoints(self, updates: EndpointUpdates) -> bool:
        self._endpoints = {**self._endpoints, **updates}
        return await self._have_all_done(Query("replace_endpoints", (dict(updates),)))

    async def update_routes(self, changes: RouteChanges) -> bool:
        before, self._routes = self._routes, changes
        is_done = await self._have_all_done(Query("update_routes", (changes,)))
        if not is_done:
            self._routes = before
        return is_done

    async def _have_all_done(self, question: Query) -> bool:
        """Whether every worker answers with 1; the replacement of a worker that ends meanwhile catches up."""
        serving = self._serving()
        answers = await asyncio.gather(*(each.answer(question) for each in serving), return_exceptions=True)
        return all(answer == 1 or each.is_gone for each, answer in zip(serving, answers, strict=True))

    async def _swap(
        self, handle: WorkerHandle, configuration: Configuration, new: dict[tuple[str, int], socket.socket]
    ) -> None:
        try:
            await handle.swap(configuration, new)
        # A worker that cannot swap must not serve the old configuration; its replacement gets the new one.
        except WorkerSilent as error:
            log.error("%s", error)
        except WorkerEnded:
            pass  # reported together with the next start
        except OSError as error:
            log.error("%s cannot be sent what it is to serve (%s) and is ended", handle, error.strerror)
            handle.end()

    def _bind_new(self, configuration: Configuration) -> dict[tuple[str, int], socket.socket]:
        """The new sockets. Raises BindError, with none bound."""
        new: dict[tuple[str, int], socket.socket] = {}
        failed: list[BindError] = []
        for (address, port), listeners in self._places(configuration).items():
            if (address, port) in self._sockets:
                continue
            try:
                filters = self._options.filters
                new[address, port] = self._given.bind(address, port) if filters is None else bind_filters(filters)
            except OSError as error:
                if self._options.filters is not None:
                    raise ConfigRefused(f"cannot serve filters on {address}: {error}") from None
                failed.append(bind_error(listeners, address, port, error))
        if failed:
            for sock in new.values():
                sock.close()
            raise BindError.of(failed)
        return new

    def _places(self, configuration: Configuration) -> Mapping[tuple[str, int], str]:
        """The places to listen, as Configuration.places; for filters their single place by its text."""
        filters = self._options.filters
        return configuration.places if filters is None else {(str(filters), 0): "filters"}

    def _close_sockets(self, addresses: list[tuple[str, int]]) -> None:
        for address in addresses:
            self._sockets.pop(address).close()

    # --- questions -------------------------------------------------------------------------------------------------
    async def ask_one(self, name: str, *arguments: object) -> bytes:
        for handle in self._serving():
            found: bytes = await handle.answer(Query(name, arguments))
            return found
        raise NotAnswered("no worker serves")

    async def ask_all(self, name: str, *arguments: object) -> list[bytes]:
        serving, question = self._serving(), Query(name, arguments)
        answers = await asyncio.gather(*(each.answer(question) for each in serving), return_exceptions=True)
        found = [answer for answer in _answered(serving, answers) if isinstance(answer, bytes)]
        if not found:
            raise NotAnswered("no worker serves")
        return found

    async def ask_some(self, name: str, *arguments: object) -> list[bytes]:
        asked = (handle.answer(Query(name, arguments)) for handle in self._serving())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, bytes)]

    def _asked_by(self, handle: WorkerHandle, number: int, question: Query) -> None:
        """Answer a worker's query for one client's held requests in all workers, the only allowed one. Workers process
        untrusted bytes, so their messages must not approve, restore or purge elsewhere.
        """
        match question:
            case Query("holds", (None, HoldPage(identity=str(identity)))):
                allowed = HoldPage(MAX_PAGE, identity=identity)
            case _:
                log.error("worker %d asks for what workers may not ask for; it gets no answer", handle.number)
                return
        task = asyncio.create_task(self._answer_worker(handle, number, allowed))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer_worker(self, handle: WorkerHandle, number: int, page: HoldPage) -> None:
        try:
            value: tuple[bytes, ...] | NotAnswered = tuple(await self.ask_all("holds", None, page))
        except NotAnswered as error:
            value = error
        handle.tell(Reply(number, value))

    async def kill(self, killed: KilledIdentities, change: KillChange | None = None) -> int:
        # Notify started workers; others get the list when they start.
        self._killed = killed
        asked = [each for each in self._handles.values() if each.can_count]
        answers = await asyncio.gather(*(_kill(each, killed, change) for each in asked), return_exceptions=True)
        return sum(answer for answer in _answered(asked, answers) if isinstance(answer, int))

    # --- metrics ---------------------------------------------------------------------------------------------------
    async def counts(self) -> Counts:
        await self._collect()
        total = Counts()
        total.add(self._buried)
        total.add(self._metrics.gather())
        for handle in self._handles.values():
            total.add(handle.counts)
            handle.counts.forget_peaks()
        return total

    async def usage(self) -> list[Counts]:
        await self._collect()
        return [self._buried, *(handle.counts for handle in self._handles.values())]

    def figures(self) -> list[ProcessFigures]:
        latest = [self._handles[number].figures() for number in sorted(self._handles)]
        return [replace(each, cpu_s=each.cpu_s + self._spent_s[each.worker]) for each in latest]

    async def _collect(self) -> None:
        asked = [handle.collect() for handle in self._handles.values() if handle.can_count]
        if asked:
            await _within(SCRAPE_S, asyncio.gather(*asked))

    async def _collect_regularly(self) -> None:
        while True:
            await asyncio.sleep(COLLECT_S)
            await self._collect()
            for handle in self._serving():
                handle.look()
                silent_s = time.monotonic() - handle.answered_at
                if silent_s > SILENT_S:
                    log.error("%s has not answered for %.0f s; it is ended", handle, silent_s)
                    handle.kill()


async def _have_routes(handle: WorkerHandle, changes: RouteChanges) -> None:
    """Raises ConfigRefused if a worker does not accept routes in service elsewhere."""
    try:
        is_done = await handle.answer(Query("update_routes", (changes,))) == 1
    except NotAnswered as error:
        raise ConfigRefused(str(error)) from None
    if not is_done:
        raise ConfigRefused("it has not taken the routes that have changed")


async def _kill(handle: WorkerHandle, killed: KilledIdentities, change: KillChange | None) -> int:
    """The number of exchanges that a worker cut. It gets all names only after a missed change. Raises NotAnswered."""
    cut: int | None = None
    if change is not None:
        cut = await handle.answer(Query("kill", (change, killed.revision)))
    if cut is None:
        cut = await handle.answer(_all_killed(killed))
    assert cut is not None
    return cut


def _all_killed(killed: KilledIdentities) -> Query:
    return Query("set_killed", (tuple(each.name for each in killed.every), killed.revision))


def _answered(asked: Iterable[WorkerHandle], answers: Iterable[object]) -> Iterator[object]:
    """The answers of these workers, except ended ones. Raises other errors of workers."""
    for handle, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, BaseException):
            yield answer
        elif not (handle.is_gone and isinstance(answer, NotAnswered)):
            raise answer


def _tell_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("internal error; workers are no longer looked after: restart the gateway", exc_info=error)


async def _within(seconds: float, waiting: Awaitable[object]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(waiting, seconds)


async def _ended(waiting: Iterable[Awaitable[None]]) -> list[WorkerEnded]:
    """Wait for all workers, and return the ended ones. Raises other errors of workers."""
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, WorkerEnded):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, WorkerEnded)]
