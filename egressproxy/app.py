"""The composition root: wires configuration, gateway, telemetry and admin, and runs them until a signal."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from time import time_ns
from typing import TYPE_CHECKING, Any

from egressproxy import __version__, build
from egressproxy.config.otlp_environment import otlp_settings
from egressproxy.config.reading.problems import ConfigError
from egressproxy.config.reading.watch import changes
from egressproxy.filters.filter_trace import show_failures
from egressproxy.gateway.identity.killed_identities import KilledIdentities
from egressproxy.ir.telemetry import Signal
from egressproxy.model.authority import Authority
from egressproxy.model.certificate import Validity
from egressproxy.model.encoding import counted
from egressproxy.model.listening_place import place_text
from egressproxy.net.file_lock import FileLock, memory_file
from egressproxy.net.listening import BindError, remedy
from egressproxy.net.loop import loop_name, new_loop, why_not_uvloop
from egressproxy.net.process import close_memory
from egressproxy.net.terminal import LOOK_S, ControllingTerminal
from egressproxy.net.tls_contexts.system_roots import watched
from egressproxy.processes.forward_listeners import ForwardListener
from egressproxy.processes.listening_sockets import ListeningSockets, Place
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.notices import tell_problems
from egressproxy.processes.loader.process import LoaderProcess
from egressproxy.processes.takeover.service_manager import ServiceManager, given_descriptors
from egressproxy.processes.workers.data_plane import ConfigRefused, DataPlane, settle_heap
from egressproxy.processes.workers.kill_switch import KillSwitch
from egressproxy.reloads import FAILURES, ConfigManager
from egressproxy.run_options import ADMIN_IS_CLOSED, RunOptions
from egressproxy.telemetry.counts import Counts, ProcessFigures
from egressproxy.telemetry.diagnostics import Diagnostics
from egressproxy.telemetry.event_aggregator import NOTICES_S
from egressproxy.telemetry.events import Events
from egressproxy.telemetry.json_lines import take_over
from egressproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from egressproxy.admin.history import History
    from egressproxy.admin.server import AdminApi, AdminServer
    from egressproxy.admin.write_access import WriteAccess
    from egressproxy.kubeapi.write.writer import Writer
    from egressproxy.kubernetes.cluster import Cluster
    from egressproxy.processes.takeover.predecessor import Predecessor
    from egressproxy.processes.takeover.succession import Succession
    from egressproxy.telemetry.exposition import Exposition
    from egressproxy.telemetry.otlp.periodic import MetricExport

#: Called once all is bound.
Started = Callable[[Sequence[ForwardListener]], None]

log = logging.getLogger("egressproxy")

#: The gateway runs without its Kubernetes-shaped API, too.
HAS_KUBEAPI = find_spec("egressproxy.kubeapi") is not None

#: The switch interval of threads, in seconds (Python's default: 5 ms). A thread that computes, such as the one that
#: renders metrics, delays each system call of the loop by it.
SWITCH_S = 0.0005
#: The descriptor to which a crash of this process is reported.
STDERR = 2
#: The time to close all connections, in seconds; a worker that takes longer has hung.
CUT_S = 2.0
#: After a takeover, the time in seconds in which an idle connection may send one more request when the drain begins.
#: Short, since the old configuration serves that request.
SUCCEEDED_S = 5.0
KEPT_S = 1.0

OPEN_PROXY = """\
No --config: an OPEN forward proxy on {place}, without any policy, for this machine alone. --port gives another port.
Try it in another terminal:
  curl -x http://{place} https://example.com/
To say what may leave, write an EgressPolicy (`egressproxy schema EgressPolicy` has its fields) into a folder DIR, and
serve it: egressproxy run --config DIR
"""


def run(options: RunOptions, first: LoaderProcess | None = None, started: Started | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status: 0 after a drain, 1 if the start failed.

    `first` is the loader process if one was started already; `started` gets the listeners, which are printed without
    it. Raises ConfigError if the configuration is bad at the start.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two descriptors an exchange: 1,024 are soon gone
    close_memory()
    manager, given = ServiceManager(os.environ), given_descriptors()
    if not faulthandler.is_enabled():
        faulthandler.enable(STDERR, all_threads=False)  # a crash of compiled code would end the process without a word
    sys.setswitchinterval(SWITCH_S)
    errors = memory_file("egressproxy-errors") if options.workers > 1 else None
    turn = FileLock(errors) if errors is not None else None
    if errors is not None and options.log_format == "json":
        take_over(turn=FileLock(errors))  # a lock of the log alone: a process-wide lock would not exclude other threads
    diagnostics = Diagnostics(options.log_level, log_format=options.log_format, turn=turn)
    diagnostics.start()
    if options.debug_filters:
        show_failures()
    try:
        # What a filter prints must not stand between the lines of the access log.
        with asyncio.Runner(loop_factory=new_loop) as runner, redirect_stdout(sys.stderr):
            return runner.run(App(options, first, errors, started, manager, given).serve())
    except ConfigError as error:
        if options.log_format == "text":
            raise  # for the terminal, maybe in colour
        tell_problems(error.problems)
        return 1
    finally:
        diagnostics.stop()


class App:
    """The running process. Implements AdminState. `errors`: the descriptor of standard error's FileLock if there are
    workers. `given`: the descriptors of sockets that the service manager opened, with the names of their units.
    """

    def __init__(
        self, options: RunOptions, first: LoaderProcess | None = None, errors: int | None = None,
        started: Started | None = None, manager: ServiceManager | None = None, given: Sequence[tuple[int, str]] = (),
    ) -> None:  # fmt: skip
        self.options = options
        self._manager = manager or ServiceManager()
        self._given = given
        self._sockets = ListeningSockets()
        self._terminal = ControllingTerminal()
        self._predecessor: Predecessor | None = None
        self._succession: Succession | None = None
        self._successor = 0  # the pid of the process that took over
        self._taken: frozenset[Place] = frozenset()  # the places of its sockets
        self._is_leaving = False
        self._started = started
        self._loader = Loader(first)
        self.metrics = Metrics(__version__)
        self._began_ns = time_ns()
        self._exposition: Exposition | None = None
        wait_s = NOTICES_S if options.workers == 1 else 0.0  # workers have collected theirs
        is_for_people = options.access_log is None and "json" not in (options.access_log_format, options.log_format)
        # Where people read the access log beside the diagnostics, a denial has its line there.
        logs_exchanges = not (is_for_people and sys.stdout.isatty() and sys.stderr.isatty())
        self._events = Events(self.metrics, self._objects_changed, wait_s, logs_exchanges=logs_exchanges)
        self._data_plane = _data_plane(options, self.metrics, errors, self._sockets)
        self._servers: list[AdminServer] = []
        self._access: WriteAccess | None = None  # where there is an admin address
        self._history: History | None = None  # where there is an admin address
        self._own: dict[str, tuple[str, int]] = {}  # listening addresses by option
        self._cluster: Cluster | None = None
        if options.cluster is not None:
            from egressproxy.kubernetes.cluster import Cluster

            self._cluster = Cluster(options, self.metrics, self._events)
        self._live = ConfigManager(
            options, self._loader, self._data_plane, self.metrics, self._events, self._objects_changed, self._own,
            self._cluster, self._manager,
        )  # fmt: skip
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()  # set by a second signal
        self._signals = 0
        self._writer: Writer | None = None
        # The rest of AdminState.
        live = self._live
        self.reload, self.model, self.proposals, self.generation = (
            live.reload, live.model, live.proposals, live.generation,
        )  # fmt: skip
        self.configurations, self.validities = live.configurations, lambda: live.certificates.validities
        self._kill_switch = KillSwitch(self._data_plane, self.metrics, options.state_dir)
        self.kill_switch = self._kill_switch.answer
        self.ask_one, self.ask_all, self.ask_some = (
            self._data_plane.ask_one,
            self._data_plane.ask_all,
            self._data_plane.ask_some,
        )

    # --- AdminState ------------------------------------------------------------------------------------------------
    def why_not_ready(self) -> str:
        """ "" while every listener is bound and traffic is welcome; else a sentence for people."""
        if why_not := "draining" if self._is_leaving else self._live.why_not_writable():
            return (self._cluster.problem if self._cluster is not None else "") or why_not
        return self._data_plane.why_not_ready() if self._live.places else "no listener is served"

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The response to a scrape and its content type; `accept` is the scraper's Accept field."""
        assert self._exposition is not None, "asked by an admin server"
        return await asyncio.to_thread(self._exposition.render, *await self._counted(), accept)

    async def summary(self) -> dict[str, Any]:
        """What /summary says of the process and its configuration."""
        options, why_not_ready = self.options, self.why_not_ready()
        return {
            "version": __version__, "compiled": build.name() != build.PURE, "started": self._began_ns / 1e9,
            "workers": options.workers, "ready": not why_not_ready, "why_not_ready": why_not_ready,
            "api_writes": options.api_writes, "needs_token": options.api_token_file is not None,
            "experimental": options.experimental,
            "source": "kubernetes" if options.cluster is not None else "files" if options.is_configured else "none",
            **await self._live.summary(),
        }  # fmt: skip

    async def history(self) -> list[dict[str, Any]]:
        """The minutes of the last hour."""
        assert self._history is not None, "asked by an admin server"
        return await self._history.minutes()

    async def _counted(self) -> tuple[Counts, list[ProcessFigures], tuple[Validity, ...]]:
        self._events.take()
        counts = await self._data_plane.counts()
        return counts, self._data_plane.figures(), tuple(self._live.certificates.validities)

    def _objects_changed(self) -> None:
        """Reload: a source has changed."""
        for server in self._servers:
            server.changed()

    # --- life ------------------------------------------------------------------------------------------------------
    async def serve(self) -> int:
        """Serve until a signal; returns the exit status. Raises ConfigError for a bad configuration at the start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._asked_to_reload)
        if self._terminal.is_there:
            loop.call_later(LOOK_S, self._look_at_terminal)
        alive = asyncio.create_task(self._stay_alive()) if self._manager.watchdog_s else None
        try:
            return await self._serve()
        finally:
            if alive is not None:
                alive.cancel()
            if self._succession is not None:
                self._succession.close()
            if self._predecessor is not None:
                self._predecessor.close()
            for server in self._servers:
                await server.stop()
            self._loader.close()
            if self._writer is not None:
                self._writer.close()
            if self._cluster is not None:
                await self._cluster.stop()
            await self._data_plane.stop()

    async def _serve(self) -> int:
        changed = changes(self.options.sources, self._stop, watched())  # what changes from here on is seen
        try:
            self._take_given()
            before = await self._find_predecessor()
            if before is None:
                self._open_state(None)
            if self._cluster is not None:
                self._cluster.start(self._live)
            await self._data_plane.start()
            if before is not None:
                await before.switch(self._sockets)  # the predecessor's configuration is frozen from here on
                self._open_state(before.lock)
            await self._kill_switch.start(KilledIdentities() if before is None else before.killed)
            self._bind_own()
            if before is None:
                await self._start_own()  # /readyz reports that the rest has not started
            if not await self._first_taken() and before is None:
                await self._drain()  # listeners may be bound already
                return 0
            if before is not None and self._stop.is_set():  # asked to end meanwhile: the one before goes on
                before.close()
                self._taken = self._sockets.taken
                await self._drain()
                return 0
            if before is not None:
                await before.serving(self._sockets.taken, self._kill_switch.follow)
                self._kill_switch.listeners.append(before.kill)
                await self._start_own()
        except FAILURES as error:
            if isinstance(error, BindError) and not self.options.is_configured:
                return self._start_failed(f"{error.what}{remedy(error.number, 'another one with --port')}")
            return self._start_failed(str(error))
        self._sockets.own_paths()
        settle_heap()
        self._announce()
        if self._succession is not None:
            self._succession.start()
        self._manager.ready(self._live.status())
        if self._started is not None:
            self._started(await self._live.forward_listeners())
        tasks = [
            asyncio.create_task(each)
            for each in (
                self._live.reload_when_asked(),
                self._live.certificates.run(),
                self._watch(changed),
                self._live.update_when_asked(),
            )
        ]
        if self._history is not None:
            tasks.append(asyncio.create_task(self._history.run()))
        export = self._metric_export()
        if export is not None:
            tasks.append(asyncio.create_task(export.run()))
        await self._stop.wait()
        delay_s, timeout_s = self.options.drain_delay_s, self.options.drain_timeout_s
        self._manager.stopping(delay_s + timeout_s + 2 * CUT_S, "draining")
        if delay_s and not self._successor:
            await self._wait_before_drain(delay_s)
        self._live.is_draining = True
        if self._succession is not None:
            self._succession.stop()
        for server in self._servers:
            server.end_watches()
        for task in tasks:
            task.cancel()
        finishing = asyncio.create_task(export.finish()) if export is not None else None
        if self._successor:
            log.info("process %d serves: in-flight requests have %g s to finish here", self._successor, timeout_s)
            leaving = [asyncio.create_task(server.stop()) for server in self._servers]  # the addresses are that one's
        else:
            log.info("draining: in-flight requests have %g s to finish; send the signal again to stop now", timeout_s)
            leaving = []
        cut = await self._drain()
        await asyncio.gather(*leaving)
        if finishing is not None:
            await finishing
        self._events.take()
        log.info("stopped%s", cut)
        return 0

    async def _first_taken(self) -> bool:
        """Whether a configuration came into service before a signal and before the predecessor cancelled the takeover.
        An API server may be unreachable for long.
        """
        taking = asyncio.ensure_future(self._live.take())
        ends: list[asyncio.Task[object]] = [asyncio.create_task(self._stop.wait())]
        if self._predecessor is not None:
            ends.append(asyncio.create_task(self._predecessor.wait_withdrawn()))
        try:
            await asyncio.wait((taking, *ends), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                return False
            taking.result()
            return True
        finally:
            for task in (taking, *ends):
                task.cancel()

    def _start_failed(self, why: str) -> int:
        if self.options.log_format == "json":
            log.error("%s", why)
        else:
            print(f"egressproxy: {why}", file=sys.stderr)
        return 1

    async def _drain(self) -> str:
        """Drain, then close all connections; returns the summary of closed connections for the log."""
        when = "at the deadline"
        elsewhere = self._sockets.served_elsewhere(self._taken)
        idle_s = SUCCEEDED_S if self._successor else KEPT_S if elsewhere else 0.0
        draining = asyncio.create_task(self._data_plane.drain(self.options.drain_timeout_s, elsewhere, idle_s))
        while not draining.done():
            await asyncio.wait((draining,), timeout=0.1)
            if self._signals > 1:  # asked again: at once
                when = "at the second signal"
                self._data_plane.hurry()
                await asyncio.wait((draining,), timeout=CUT_S)
                break
        if not draining.done():
            draining.cancel()
            return f"; not everything that was cut {when} is in the access log"
        cut = draining.result()
        return f"; {counted(cut, 'connection')} cut {when}" if cut else ""

    async def _wait_before_drain(self, delay_s: float) -> None:
        """/readyz says 503, and everything else goes on: reloads, too, since a denial may be among them."""
        self._is_leaving = True
        self._data_plane.end_connections()
        log.info("not ready any more; connections are accepted for %g s; send the signal again to stop now", delay_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay_s)

    async def _stay_alive(self) -> None:
        while True:
            self._manager.alive()
            await asyncio.sleep(self._manager.watchdog_s)

    def _asked_to_stop(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            self._hurry.set()

    def _look_at_terminal(self) -> None:
        self._terminal.look()
        if self._terminal.is_there:
            asyncio.get_running_loop().call_later(LOOK_S, self._look_at_terminal)

    def _asked_to_reload(self) -> None:
        if self._terminal.has_just_gone():
            if not self._stop.is_set():  # a shell may send it besides
                log.info("SIGHUP: the terminal has gone, and so does the gateway")
                self._asked_to_stop()
            return
        log.info("SIGHUP: the configuration is read again, the access log opened again")
        self._live.ask_for_reload("SIGHUP")

    def _open_state(self, held: int | None) -> None:
        """`held`: see `staging.lock`. Raises OSError, or ConfigRefused where this installation has no Kubernetes-shaped
        API.
        """
        if self.options.state_dir is not None:
            if not HAS_KUBEAPI:
                raise ConfigRefused("--state-dir: this installation has no package egressproxy.kubeapi to write with")
            from egressproxy.kubeapi.write.writer import Writer

            self._writer = Writer(
                self._loader, self.options.sources, self.options.bind, self.options.state_dir,
                experimental=self.options.experimental,
            )  # fmt: skip
            self._writer.open(held)

    # --- sockets that are there already, and the process after this one -----------------------------------------------
    def _take_given(self) -> None:
        for descriptor, name in self._given:
            try:
                self._sockets.give(descriptor, f"of systemd's unit {name}", is_kept=True)
            except (OSError, ValueError) as error:
                log.warning("the socket of systemd's unit %s is not used: %s", name, error)

    async def _find_predecessor(self) -> Predecessor | None:
        """Raises ConfigRefused."""
        path = self.options.takeover
        if path is None:
            return None
        from egressproxy.processes.takeover.predecessor import Predecessor
        from egressproxy.processes.takeover.succession import Succession

        self._succession = Succession(
            path, self._sockets, self._live.taking, self._kill_switch,
            lambda: self._writer.lock if self._writer is not None else None, self._has_successor,
        )  # fmt: skip
        self._predecessor = await Predecessor.find(path)
        return self._predecessor

    def _has_successor(self, pid: int, taken: frozenset[Place]) -> None:
        self._successor, self._taken = pid, taken
        self._live.is_draining = True
        if self._writer is not None:
            self._writer.close()
        self._stop.set()

    # --- the admin address ------------------------------------------------------------------------------------------
    def _bind_own(self) -> None:
        """Raises ConfigRefused."""
        if self._succession is not None:
            self._succession.bind()
        if self.options.admin is None and self.options.metrics is None:
            return
        # A third of all that this process would import.
        from egressproxy.admin.server import AdminServer, Surface
        from egressproxy.admin.write_access import WriteAccess
        from egressproxy.telemetry.exposition import Exposition

        self._exposition = Exposition(__version__)
        options, login = self.options, None
        if options.ui_oidc_issuer:
            from egressproxy.admin.oidc import OidcLogin

            login = OidcLogin(options.ui_oidc_issuer, options.ui_oidc_client_id, options.ui_oidc_allow)
        self._access = WriteAccess(options.api_token_file, login)
        if self.options.admin is not None:
            from egressproxy.admin.history import History

            self._history = History(self._data_plane.usage)
        asked = (("admin", self.options.admin, Surface.FULL), ("metrics", self.options.metrics, Surface.METRICS))
        for what, place, surface in asked:
            if place is not None:
                api = self._kubernetes_api if HAS_KUBEAPI else None
                server = AdminServer(self, place[0], place[1], surface, api, self._access, self._sockets.bind)
                try:
                    server.bind()
                except OSError as error:
                    why = f"cannot bind {place[0]} port {place[1]}: {error.strerror or error}"
                    do = remedy(error.errno, "another port", "name another one, or 0.0.0.0 for all")
                    raise ConfigRefused(f"--{what}: {why}{do}") from None
                self._servers.append(server)
                self._own[what] = (server.host, server.port)

    def _metric_export(self) -> MetricExport | None:
        """What sends metrics to a collector, by a serving process; None where nobody asks for it."""
        try:
            settings = otlp_settings(os.environ)
        except ValueError as error:  # `run` has refused to start
            log.warning("%s; nothing is exported by these variables", error)
            return None
        for warning in settings.warnings:
            log.warning("%s", warning)
        collector = next((each for each in settings.collectors if each.signal is Signal.METRICS), None)
        if collector is None:
            return None
        from egressproxy.telemetry.exposition import Exposition
        from egressproxy.telemetry.otlp.messages import Envelope, resource_of
        from egressproxy.telemetry.otlp.metrics import MetricEncoder
        from egressproxy.telemetry.otlp.periodic import MetricExport

        exposition = self._exposition or Exposition(__version__)

        async def read() -> list[Metric]:
            return await asyncio.to_thread(exposition.families, *await self._counted())

        async def send(request: bytes) -> bytes:
            return await self._data_plane.ask_one("export_metrics", request)

        encoder = MetricEncoder(Envelope(resource_of(collector)), self._began_ns)
        return MetricExport(read, send, encoder, self.metrics.metric_points, settings.interval_s)

    async def _start_own(self) -> None:
        for server in self._servers:
            await server.start()

    async def _kubernetes_api(self, server: AdminServer) -> AdminApi:
        # In a thread, beside the traffic. Most gateways are never asked, and do without its two megabytes.
        await asyncio.to_thread(import_module, "egressproxy.kubeapi.kubernetes_api")
        await self._live.show_catalogue()
        from egressproxy.kubeapi.kubernetes_api import WRITE_TO_THE_CLUSTER, WRITES_ARE_OFF, KubernetesApi
        from egressproxy.kubeapi.read.events import PublishedEvents
        from egressproxy.kubeapi.service import ApiService

        published = self._live.published
        sources = (published, PublishedEvents(self._events, published))
        access = self._access if self.options.api_writes else None
        why_not = WRITE_TO_THE_CLUSTER if self._cluster is not None else WRITES_ARE_OFF
        return KubernetesApi(ApiService(self._live, sources, self._loader, self._writer), server, access, why_not)

    async def _watch(self, changed: AsyncIterator[None]) -> None:
        try:
            async for _ in changed:
                self._live.ask_for_reload("files")
        except Exception:
            log.exception("internal error: files are not watched any more; SIGHUP has them read again")

    def _announce(self) -> None:
        if self.options.filters is not None:
            log.info("filters for Envoy (ext_proc) on %s", self.options.filters)
        for address, port, protocol, listener in () if self.options.filters is not None else self._live.places:
            place = place_text(address, port)
            log.info("%s listener %s on %s", protocol, listener, place)
            is_for_people = self._started is None and self.options.log_format == "text"
            if not self.options.is_configured and is_for_people:
                # Only now the port is ours. In one piece, beside other lines.
                print(OPEN_PROXY.format(place=place), end="", file=sys.stderr)
        for unused in self._sockets.close_unused():
            if unused.is_kept:
                log.warning(
                    "no listener is for the socket %s, which is closed here, so that what connects there waits until"
                    " it gives up: take it out of the unit, or add a listener with this address and port",
                    unused,
                )
            else:
                log.info("no listener is for the socket %s any more, which is closed", unused)
        for what, (address, port) in self._own.items():
            log.info("%s on http://%s/", what, Authority(address, port))
            if what == "admin" and self.options.lacks_token:
                log.warning("%s: give one, or --admin 127.0.0.1:%d", ADMIN_IS_CLOSED, port)
        error = why_not_uvloop()
        if error is not None and find_spec("uvloop") is not None:
            log.warning(
                "uvloop is installed but cannot be imported (%s: %s); asyncio's event loop serves instead, which is"
                " slower: install a uvloop for this Python and this system, or remove it",
                type(error).__name__,
                error,
            )
        log.info("event loop: %s", loop_name())
        if self.options.tls_key_log is not None:
            log.warning(
                "the keys of all TLS connections are written to %s: whoever has this file and the traffic can read all"
                " of it, credentials included; use --tls-key-log for debugging alone, then delete the file",
                self.options.tls_key_log,
            )
        if self.options.debug_filters:
            log.warning(
                "--debug-filters: the log has the text of what filters raise, with tracebacks: it may hold keys and"
                " content of requests; use it for debugging alone"
            )
        if serving := self._data_plane.announcement():
            log.info("%s", serving)
        if self.options.is_configured:
            self._live.tell_generation()


def _data_plane(options: RunOptions, metrics: Metrics, errors: int | None, sockets: ListeningSockets) -> DataPlane:
    """The data plane, imported here: a supervisor has no own."""
    if options.filters is not None and options.workers == 1:
        from egressproxy.processes.workers.filter_worker import FilterFleet

        return FilterFleet(options, options.filters, metrics)
    if options.workers == 1:
        from egressproxy.processes.workers.worker import InProcess

        return InProcess(options, metrics, sockets)
    from egressproxy.processes.workers.supervisor import Supervisor

    return Supervisor(options, metrics, errors, sockets)
