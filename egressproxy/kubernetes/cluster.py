"""Cluster: the gateway's view of the API server, through its own process."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final, Protocol

from egressproxy.ir.backend import EndpointAddress
from egressproxy.kubernetes import messages
from egressproxy.model.published_object import Key
from egressproxy.net.process import child_command, ending
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.workers.channel import FrameChannel
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.events import Events
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger("egressproxy")

#: Seconds for which a reload waits for the API server, if there are earlier objects.
PATIENCE_S: Final = 5.0
#: The pauses before a restart of the process, in seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: A process with a shorter life counts as failed.
SHORT_LIFE_S: Final = 30.0
END_S: Final = 3.0
_SILENT: Final = (
    "the process that asks the API server does not answer, and routes in service are newer than what it said last"
)
#: The most characters of a problem.
MAX_PROBLEM: Final = 4096


class _Replaced(Exception):
    """The process was restarted; repeat the request."""


class Follower(Protocol):
    """The listener to changes of a cluster: `reloads.ConfigManager`."""

    def ask_for_reload(self) -> None: ...  # objects have changed
    def ask_for_endpoints(self) -> None: ...  # only `Cluster.endpoints` have changed
    def ask_for_routes(self) -> None: ...  # only HTTPRoutes have changed
    def lead(self) -> None: ...  # this gateway now writes cluster-scoped objects
    def hear_trials(self, told: Mapping[str, bytes]) -> None: ...  # `messages.Figures.trials`


class Cluster:
    """Belongs to the event loop: `start` comes first, `stop` last."""

    _follower: Follower

    def __init__(self, options: RunOptions, metrics: Metrics, events: Events) -> None:
        """`events` are written to the API server, too."""
        self._has_given_routes = False  # since the last objects
        self._is_behind = False  # an answer with all that has changed is still to come
        self._updates = 0
        self._events = events
        self._seen = 0
        assert options.cluster is not None
        self._begin = messages.Begin(options.cluster, options.state_dir, options.log_level, options.log_format)
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[messages.Objects]] = {}
        self._last: messages.Objects | None = None
        self.endpoints: dict[tuple[str, int], tuple[EndpointAddress, ...]] = {}  # that are not among the last objects
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: FrameChannel | None = None
        self._is_gone = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._figures = messages.Figures()
        metrics.add_gauge("egress_kubernetes_watches", "Watches of the API server.", lambda: self._figures.watches)
        metrics.add_gauge(
            "egress_kubernetes_problems", "What cannot be read of the cluster, or written to it.",
            lambda: len(self._figures.problems),
        )  # fmt: skip
        metrics.add_counter(
            "egress_kubernetes_watch_restarts", "Lists and watches that failed and were begun again.",
            lambda: self._figures.watch_restarts,
        )  # fmt: skip
        metrics.add_counter(
            "egress_kubernetes_route_updates", "Changes of HTTPRoutes that needed no whole configuration.",
            lambda: self._updates,
        )  # fmt: skip

    def start(self, follower: Follower) -> None:
        """Start the process. Raises OSError."""
        self._follower = follower
        self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 (this program)
                    child_command("from egressproxy.kubernetes.process import main; main()"),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    process_group=0,  # a signal from the terminal is its parent's
                )
        except OSError:
            ours.close()
            raise
        self._is_gone.clear()
        self._channel = FrameChannel(ours, self._on_frame, self._is_gone.set)
        self._send(self._begin)

    async def _keep(self) -> None:
        """Start the process again where it ended."""
        pause_s = FIRST_PAUSE_S
        while True:
            began = asyncio.get_running_loop().time()
            await self._is_gone.wait()
            status = await self._reaped()
            is_short = asyncio.get_running_loop().time() - began < SHORT_LIFE_S
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S) if is_short else FIRST_PAUSE_S
            log.error("the process that asks the API server %s; it is started again in %g s", ending(status), pause_s)
            await asyncio.sleep(pause_s)
            try:
                self._spawn()
            except OSError as error:
                log.error("the process that asks the API server cannot be started: %s", error.strerror)
                continue
            for asked in self._asked.values():  # the one before has not answered
                if not asked.done():
                    asked.set_exception(_Replaced())
            self._follower.ask_for_reload()

    async def _reaped(self) -> int:
        process = self._process
        assert process is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(process.wait), END_S)
        if process.returncode is None:
            process.kill()
            await asyncio.to_thread(process.wait)
        return int(process.returncode)

    async def objects(self, referenced: Iterable[Key]) -> bytes:
        """The objects for a compilation, with the `referenced` ones of the kinds that are read by reference.

        If the API server does not answer in time, returns the last objects, at the start those on disk, and waits
        without either. Raises LoadingFailed if the last objects are known to be older than the configuration in
        service.
        """
        keys = tuple(sorted(referenced))
        while True:
            try:
                self._last = await self._answer(keys, PATIENCE_S if self._last is not None else None)
            except TimeoutError:
                assert self._last is not None
                self._is_behind = True
                if self._has_given_routes:
                    raise LoadingFailed(_SILENT) from None
            except _Replaced:
                continue
            else:
                self._has_given_routes, self._is_behind = False, self._last.is_late
            return self._last.packed

    @property
    def latest(self) -> bytes | None:
        """What `objects` has returned last; to ask anew would take changes away from the next load."""
        return self._last.packed if self._last is not None else None

    async def changed_routes(self, referenced: Iterable[Key]) -> tuple[bytes, tuple[str, ...]] | None:
        """`objects` with only the changed HTTPRoutes since the last call, and their names (namespace/name).

        None if the API server does not answer in time, or other objects have changed, too.
        """
        if self._is_behind:
            return None
        self._has_given_routes = True
        try:
            found = await self._answer(tuple(sorted(referenced)), PATIENCE_S, is_of_routes=True)
        except (TimeoutError, _Replaced):
            return None
        return (found.packed, found.routes) if found.routes is not None else None

    def routes_in_service(self) -> None:
        """Report that the last result of `changed_routes` is in service."""
        self._updates += 1
        self._send(messages.RoutesInService())

    async def _answer(
        self, keys: tuple[Key, ...], patience_s: float | None, *, is_of_routes: bool = False
    ) -> messages.Objects:
        """Raises TimeoutError, _Replaced."""
        number = next(self._numbers)
        asked: asyncio.Future[messages.Objects] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._send(messages.Ask(number, keys, self._last is None, is_of_routes))
        try:
            return await asyncio.wait_for(asked, patience_s)
        finally:
            self._asked.pop(number, None)

    @property
    def problem(self) -> str:
        """The read and write errors of the cluster, up to MAX_PROBLEM characters."""
        return "; ".join(self._figures.problems)[:MAX_PROBLEM]

    def catalogue(self, packed: bytes) -> None:
        """Have the catalogue of filter types written, as `catalog_object.catalogue` makes it."""
        self._send(messages.Catalogue(packed))

    def in_service(self, shown: bytes, rejection: str, reason: str) -> None:
        """Report the configuration in service (`CompiledConfig.shown`), and why the last objects were rejected, "" if
        they were not; `reason` is that in one word.
        """
        self._send(messages.InService(shown, rejection, reason))

    def _send(self, message: messages.Message) -> None:
        if self._channel is not None:
            self._channel.send(messages.encode(message))

    def _on_frame(self, frame: bytes, _descriptors: list[int]) -> None:
        match messages.decode(frame):
            case messages.Objects() as found:
                if found.routes is None and not found.is_late:
                    self.endpoints.clear()  # the objects include them
                asked = self._asked.get(found.number)
                if asked is not None and not asked.done():
                    asked.set_result(found)
                else:
                    self._follower.ask_for_reload()  # a late answer: load again
            case messages.Changed():
                self._follower.ask_for_reload()
            case messages.ChangedRoutes():
                self._follower.ask_for_routes()
            case messages.Endpoints(updates):
                self.endpoints.update(updates)
                self._follower.ask_for_endpoints()
            case messages.Figures() as figures:
                self._figures = figures
                self._follower.hear_trials(dict(figures.trials))
                if self._seen != self._events.version:
                    self._seen = self._events.version
                    self._send(messages.Seen(tuple(self._events.all())))
            case messages.Leading():
                self._follower.lead()

    async def stop(self) -> None:
        """End the process."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            await self._reaped()
