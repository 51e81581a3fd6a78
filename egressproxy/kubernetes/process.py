"""The process that asks the API server. It joins `cluster_source`, which reads, and `status_writer` with the gateway.

It speaks `messages` on the socket that is its standard input, and ends with it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import socket
import time
import zlib
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from egressproxy.config.compile.interface import BUILTIN_CLASS
from egressproxy.kubernetes import messages
from egressproxy.kubernetes.cluster_source import ClusterSource
from egressproxy.kubernetes.lease import StatusLeases
from egressproxy.kubernetes.object_store import StoredObject, lines
from egressproxy.kubernetes.saved_objects import SavedObjects, save, saved
from egressproxy.kubernetes.shared_trials import SharedTrials
from egressproxy.kubernetes.status_writer import StatusWriter, gateway_status
from egressproxy.model.encoding import rfc3339
from egressproxy.model.published_object import Key
from egressproxy.net.loop import new_loop
from egressproxy.net.process import close_memory, give_back_memory
from egressproxy.processes.loader.published import PublishedConfiguration
from egressproxy.processes.workers.channel import FrameChannel
from egressproxy.processes.workers.data_plane import EndpointUpdates
from egressproxy.telemetry.diagnostics import Diagnostics
from egressproxy.telemetry.event_aggregator import Notice

if TYPE_CHECKING:
    from egressproxy.kubernetes.observed import EventWriter

log = logging.getLogger(__name__)

#: Without its Kubernetes-shaped API, a gateway writes no Events.
_HAS_KUBEAPI: Final = find_spec("egressproxy.kubeapi") is not None
#: How long the API server has to answer before the objects on disk are served, in seconds.
OFFLINE_S: Final = 5.0
#: How long it has before the objects that were given last are given again, with the routes that have changed since.
#: This is less than `cluster.PATIENCE_S`.
STALE_S: Final = 3.0
#: How often `Figures` are sent.
FIGURES_S: Final = 5.0
_NAME: Final = "egress-cluster"
_LEASE: Final = "lease"
_HTTP_ROUTES: Final = "httproutes."


def main() -> None:
    """Serve the socket that is standard input, until its other end is gone."""
    with suppress(OSError):  # Linux alone has it
        Path("/proc/self/comm").write_text(_NAME)
    close_memory()
    gc.freeze()
    sock = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:  # a plugin for credentials inherits it, and is not to read what is said here
        os.dup2(nothing.fileno(), 0)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(sock))


async def _serve(sock: socket.socket) -> None:
    await _SourceProcess(sock).serve()


class _SourceProcess:
    #: Both are there from the first message on.
    _begun: messages.Begin
    _source: ClusterSource

    def __init__(self, sock: socket.socket) -> None:
        self._ended = asyncio.Event()
        self._channel = FrameChannel(sock, self._on_frame, self._ended.set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._saved: SavedObjects | None = None
        self._given: list[tuple[Key, StoredObject]] | None = None  # what was given last, if not from disk
        self._versions: dict[str, str] = {}  # of what was given last
        #: The same with the changed HTTPRoutes that were given last.
        self._with_routes: tuple[list[tuple[Key, StoredObject]] | None, dict[str, str]] = None, {}
        self._is_unsaved = False
        self._answering: asyncio.Task[None] | None = None
        self._told_endpoints: EndpointUpdates = {}  # after a rejection
        self._is_saving = asyncio.Lock()
        self._leases: StatusLeases | None = None
        self._writer: StatusWriter | None = None
        self._trials: SharedTrials | None = None
        self._published = PublishedConfiguration()
        self._events: EventWriter | None = None
        self._is_leading = False
        self._began = rfc3339(time.time())
        self._holder = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"

    async def serve(self) -> None:
        """Until the other end is gone. Leases are given back before the connections are closed."""
        await self._ended.wait()
        leases = [task for task in self._tasks if task.get_name() == _LEASE]
        for tasks in (leases, self._tasks - set(leases)):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _on_frame(self, frame: bytes, _descriptors: list[int]) -> None:
        match messages.decode(frame):
            case messages.Begin() as begin:
                self._begin(begin)
            case messages.Ask() as asked:
                if self._answering is not None:
                    self._answering.cancel()  # nobody waits for that any more
                self._answering = self._start(self._answer(asked))
            case messages.InService() as told:
                if told.rejection:
                    self._tell_endpoints()
                else:
                    self._told_endpoints = {}
                    self._is_unsaved = True
                    self._start(self._keep())
                self._start(self._write_status(told))
            case messages.RoutesInService():
                self._given, self._versions = self._with_routes
                self._is_unsaved = True
                self._start(self._keep())
            case messages.Seen(events):
                self._write_events(events)
            case messages.Catalogue(packed):
                self._write_catalogue(packed)

    def _begin(self, begin: messages.Begin) -> None:
        Diagnostics(begin.log_level, origin="kubernetes", log_format=begin.log_format).start()
        self._begun = begin
        if begin.state_dir is not None:
            self._saved = saved(begin.state_dir, begin.options.state_key)
        versions = self._saved.resource_versions if self._saved is not None else {}
        self._source = ClusterSource(begin.options, versions, self._send)
        self._start(self._source.run())
        self._start(self._tell_figures())

    def _start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A defect ends the process: the next one begins with the objects as they are."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error; the process that asks the API server ends", exc_info=error)
            self._ended.set()

    def _send(self, message: messages.Message) -> None:
        self._channel.send(messages.encode(message))

    async def _answer(self, asked: messages.Ask) -> None:
        source = self._source
        source.want(asked.referenced, and_others=asked.is_of_routes)
        asked_at = time.monotonic()
        while why_not := source.why_not_ready():
            left_s = None
            if asked.takes_saved and self._saved is not None:
                left_s = OFFLINE_S - (time.monotonic() - asked_at)
                if left_s <= 0:
                    log.warning("%s: what was kept on disk is served", why_not)
                    source.expect()
                    self._send(messages.Objects(asked.number, self._saved.packed))
                    return
            elif self._given is not None and source.changed_routes and not asked.is_of_routes:
                left_s = STALE_S - (time.monotonic() - asked_at)
                if left_s <= 0:
                    await self._give_late(source, asked, self._given)
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(source.wait(), left_s)
        if asked.is_of_routes:
            self._give_routes(source, asked)
            return
        packed = source.take()
        self._given, self._versions = list(source.relevant()), source.resource_versions()
        self._send(messages.Objects(asked.number, packed))

    async def _give_late(
        self, source: ClusterSource, asked: messages.Ask, given: list[tuple[Key, StoredObject]]
    ) -> None:
        """Give what was given last again, with the changed HTTPRoutes; and tell when the rest can be had."""
        self._given, self._versions = self._with_changed_routes(source, given)
        packed = zlib.compress(lines(each for _, each in self._given), 1)
        self._send(messages.Objects(asked.number, packed, is_late=True))
        while source.why_not_ready():
            await source.wait()
        self._send(messages.Changed())

    def _give_routes(self, source: ClusterSource, asked: messages.Ask) -> None:
        names = tuple(sorted(f"{namespace}/{name}" for _, _, namespace, name in source.changed_routes))
        packed = source.take_routes(frozenset(asked.referenced))
        if self._given is not None:
            self._with_routes = self._with_changed_routes(source, self._given)
        self._send(messages.Objects(asked.number, packed, names))

    def _with_changed_routes(
        self, source: ClusterSource, given: list[tuple[Key, StoredObject]]
    ) -> tuple[list[tuple[Key, StoredObject]], dict[str, str]]:
        """What was given last, with the HTTPRoutes as they are by now; and its places."""
        versions = {scope: at for scope, at in source.resource_versions().items() if scope.startswith(_HTTP_ROUTES)}
        return source.with_changed_routes(given), {**self._versions, **versions}

    def _tell_endpoints(self) -> None:
        """Send the addresses of all Services, which were rejected with the other objects: Pods may have changed."""
        found = self._source.every_endpoint() if self._given is not None else {}
        if found and found != self._told_endpoints:
            self._told_endpoints = found
            self._send(messages.Endpoints(found))

    async def _write_status(self, in_service: messages.InService) -> None:
        """Have the status of these objects written, if this gateway has the Leases of their GatewayClasses."""
        if self._source.client is None:  # the objects come from disk
            return
        self._published.publish(in_service.shown, in_service.rejection, in_service.reason)
        objects = self._published.objects()
        statuses = await asyncio.to_thread(lambda: {each.key: each.status for each in objects if each.status})
        classes = [key[3] for key in statuses if key[1] == "GatewayClass"] or [BUILTIN_CLASS]
        if self._leases is None or self._writer is None or self._trials is None:
            self._leases = leases = StatusLeases(self._source.client, self._begun.options, self._holder)
            self._trials = SharedTrials(self._source.client, self._source.store, leases.left_s)
            self._writer = StatusWriter(self._source.client, self._source.store, self._trials.left_s, self._completed)
            self._start(self._writer.run())
            self._start(leases.look_elsewhere(self._writer.look_again))
        for lease in self._leases.want(classes):
            self._start(lease.run(), _LEASE)
        self._trials.show(statuses)
        self._writer.show(statuses)

    def _completed(self, key: Key, status: bytes) -> bytes:
        """The status (JSON) with what only this process knows: of a Gateway, its addresses and missing objects; of a
        policy on trial, flips of others.
        """
        if key[1] != "Gateway":
            return status if self._trials is None else self._trials.completed(key, status)
        return gateway_status(status, self._source.addresses(), self._source.problems(), self._began)

    def _write_events(self, events: Sequence[tuple[int, Notice]]) -> None:
        if self._source.client is None or not _HAS_KUBEAPI:
            return
        if self._events is None:
            from egressproxy.kubernetes.observed import EventWriter

            self._events = EventWriter(self._source.client, self._published.objects)
            self._start(self._events.run())
        self._events.show(events)

    def _write_catalogue(self, packed: bytes) -> None:
        if self._source.client is not None and _HAS_KUBEAPI:
            from egressproxy.kubernetes.observed import write_catalogue

            self._start(write_catalogue(self._source.client, packed))

    async def _keep(self) -> None:
        """Keep the objects that were given last on disk: they are in service."""
        folder = self._begun.state_dir
        if folder is None:
            return
        async with self._is_saving:
            given = self._given
            if given is None or not self._is_unsaved:
                return
            self._is_unsaved = False
            try:
                await asyncio.to_thread(save, folder, given, self._versions, self._begun.options.state_key)
            except OSError as error:
                log.error("the objects cannot be kept on disk: %s (%s)", error.strerror or error, error.filename)
        give_back_memory()

    async def _tell_figures(self) -> None:
        while True:
            await asyncio.sleep(FIGURES_S)
            problems = self._source.problems()
            if self._leases is not None:
                problems += self._leases.problems
            if self._writer is not None:
                problems += self._writer.problems
                self._writer.look_again()
            if self._events is not None and self._events.problem:
                problems.append(self._events.problem)
            told = self._trials.told() if self._trials is not None else ()
            self._send(messages.Figures(*self._source.figures(), tuple(problems), told))
            was_leading, self._is_leading = self._is_leading, self._leases is not None and self._leases.is_leader
            if self._is_leading and not was_leading:
                self._send(messages.Leading())
            if self._trials is not None:
                await self._trials.write()
