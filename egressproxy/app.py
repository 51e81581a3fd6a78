"""The composition root: wires configuration, gateway, telemetry and admin, and runs them until a signal."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
import signal
import sys
import time
import zlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from egressproxy import __version__
from egressproxy.config.reading.problems import ConfigError, Problem, Severity
from egressproxy.config.reading.watch import changes
from egressproxy.ir.packing import unpacking
from egressproxy.model.certificate import CertificateState, Validity
from egressproxy.model.secret import SecretBytes
from egressproxy.model.secret_source import ConfigSource, SecretSource
from egressproxy.model.steps import finished
from egressproxy.net.file_lock import FileLock, memory_file
from egressproxy.net.loop import loop_name, new_loop, why_not_uvloop
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.notices import accepted, broken, rejected
from egressproxy.processes.loader.process import LoaderProcess, LoadingFailed
from egressproxy.processes.loader.published import PublishedConfiguration, digest
from egressproxy.processes.loader.result import ListenerAddress, Loaded, builtin
from egressproxy.processes.workers.fleet import (
    ConfigRefused,
    Configuration,
    Fleet,
    Guarded,
    NotBound,
    freeze_gc,
)
from egressproxy.telemetry.diagnostics import Diagnostics
from egressproxy.telemetry.events import Events
from egressproxy.telemetry.json_lines import take_over
from egressproxy.telemetry.metrics import Metrics
from egressproxy.telemetry.notices import NOTICES_S

if TYPE_CHECKING:
    from egressproxy.admin.server import AdminApi, AdminServer
    from egressproxy.kubeapi.write.writer import Writer
    from egressproxy.telemetry.exposition import Exposition

__all__ = ["RunOptions", "run"]

log = logging.getLogger("egressproxy")

#: The gateway runs without its Kubernetes-shaped API, too.
HAS_KUBEAPI = find_spec("egressproxy.kubeapi") is not None

#: Why a configuration cannot be put into service although nothing seems wrong with it; one sentence each.
FAILURES = (LoadingFailed, ConfigRefused, OSError)
REFUSALS = (ConfigError, *FAILURES)

#: How long a thread that computes (the text of many metrics) holds up the loop at each of its system calls: 5 ms else.
SWITCH_S = 0.0005
#: How often certificates are looked at; and how long after its end one is told, so that clocks agree that it was.
LOOK_S = 3600.0
LEEWAY_S = 1.0
#: How long cutting everything may take; who needs longer does not answer any more.
CUT_S = 2.0
#: Problems that the log is told of one configuration: traffic waits for as long as it takes to say them.
MAX_TOLD = 200

OPEN_PROXY = """\
No --config: an OPEN forward proxy on {place}, without any policy, for this machine alone.
Try it:
  curl -x http://{place} https://example.com/
To say what may leave, see `egressproxy schema` and `egressproxy run --help`.
"""

#: What helps where the admin address, or that of --metrics, cannot be had.
ADDRESS_REMEDIES = {
    errno.EADDRINUSE: " (`ss -ltnp` shows who has it: end that, or give another port)",
    errno.EACCES: " (ports below 1024 ask for CAP_NET_BIND_SERVICE; or give another port)",
    errno.EADDRNOTAVAIL: " (this machine has no such address; give one that it has, or 0.0.0.0 for all of them)",
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `egressproxy run` was asked for. `bind`: IP literals and networks, `admin`, `metrics`: (address, port)."""

    config: tuple[Path, ...] = ()
    secrets: tuple[SecretSource, ...] = ()
    bind: tuple[str, ...] = ("127.0.0.1",)
    admin: tuple[str, int] | None = ("127.0.0.1", 15000)
    metrics: tuple[str, int] | None = None
    access_log: str | None = None  # None: stdout; "off": none; else a path
    log_level: str = "info"
    log_format: str = "text"  # of the diagnostics: text or json
    drain_timeout_s: float = 10.0
    workers: int = 1
    state_dir: Path | None = None  # what was written through the API
    api_writes: bool = False
    api_token_file: Path | None = None
    guarded: bool = False  # a reload that would allow what was denied lately has to be acknowledged
    session_key: SecretBytes | None = None  # None: one is made up

    @property
    def sources(self) -> tuple[ConfigSource, ...]:
        """What the configuration is read from."""
        return (*self.config, *self.secrets)


def run(options: RunOptions, first: LoaderProcess | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status: 0 after a drain, 1 where the start failed.

    `first` is the process that loads where it was started already. Raises ConfigError if the configuration is bad at
    the start.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two descriptors an exchange: 1,024 are soon gone
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold secrets
    sys.setswitchinterval(SWITCH_S)
    errors = memory_file("egressproxy-errors") if options.workers > 1 else None
    turn = FileLock(errors) if errors is not None else None
    if errors is not None and options.log_format == "json":
        take_over(turn=FileLock(errors))  # one of its own: that of a process holds for all of its threads
    diagnostics = Diagnostics(options.log_level, log_format=options.log_format, turn=turn)
    diagnostics.start()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(App(options, first, errors).serve())
    except ConfigError as error:
        if options.log_format == "text":
            raise  # it is for a person, and may be coloured
        _tell_problems(error.problems)
        return 1
    finally:
        diagnostics.stop()


class App:
    """What was started. Implements AdminState. `errors`: of the Turn of standard error, where there are workers."""

    def __init__(self, options: RunOptions, first: LoaderProcess | None = None, errors: int | None = None) -> None:
        self.options = options
        self._loader = Loader(first)
        self.metrics = Metrics(__version__)
        self._exposition: Exposition | None = None
        wait_s = NOTICES_S if options.workers == 1 else 0.0  # those of workers have been collected by them
        self._events = Events(self.metrics, self._objects_changed, wait_s)
        self._fleet = _fleet(options, self.metrics, errors)
        self._loaded: Loaded | None = None
        self._packed = b""  # the spec in service, as `ir.packing` writes it, compressed
        self._generation = 0
        self._is_rejected = False  # the configuration that was read last
        self._published = PublishedConfiguration()
        self._told: set[Problem] = set()
        self._told_late: set[Validity] = set()
        self._servers: list[AdminServer] = []
        self._own: dict[str, tuple[str, int]] = {}  # what is served beside traffic, and where
        self._is_draining = False
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._has_other_certificates = asyncio.Event()
        self._asked: list[tuple[str, asyncio.Future[str]]] = []  # who waits for a reload, with what they acknowledge
        self._signals = 0
        self.taking = asyncio.Lock()
        self._writer: Writer | None = None

    # --- AdminState ------------------------------------------------------------------------------------------------
    def why_not_ready(self) -> str:
        if self._is_draining:
            return "draining"
        if self._loaded is None:
            return "the listeners are not bound yet"
        return self._fleet.why_not_ready() if self._loaded.places else "no listener is served"

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        assert self._exposition is not None, "asked by an admin server"
        self._events.take()
        counts = await self._fleet.counts()
        return await asyncio.to_thread(self._exposition.render, counts, accept, self._fleet.figures(), self._validities)

    def _publish(self, rejection: str = "", reason: str = "") -> None:
        """Show what is in service now, to watchers, too; `rejection` and `reason` say why the latest one is not."""
        if self._loaded is not None:
            self._published.publish(self._loaded.shown, rejection, reason)
            self._objects_changed()

    def _objects_changed(self) -> None:
        """What one of the sources has is not what it had."""
        for server in self._servers:
            server.changed()

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        return await self._fleet.explain(pairs)

    async def model(self) -> bytes:
        return await asyncio.to_thread(_model, self._packed, self.options.bind)

    async def reload(self, acknowledged: str) -> str:
        if self._is_draining:
            return "draining"
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append((acknowledged, done))
        self._reload.set()
        return await done

    async def decisions(self) -> Sequence[bytes]:
        return await self._fleet.decisions()

    # --- Application (of the Kubernetes-shaped API) ----------------------------------------------------------------
    def why_not_writable(self) -> str:
        return self.why_not_ready() if self._is_draining or self._loaded is None else ""

    def memory(self) -> bytes:
        """What the next loading has to know of the configuration in service."""
        return self._loaded.memory if self._loaded is not None else b""

    # --- life ------------------------------------------------------------------------------------------------------
    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._asked_to_reload)
        try:
            return await self._serve()
        finally:
            for server in self._servers:
                await server.stop()
            self._loader.close()
            if self._writer is not None:
                self._writer.close()
            await self._fleet.stop()

    async def _serve(self) -> int:
        changed = changes(self.options.sources, self._stop)  # what changes from here on is seen
        try:
            self._open_state()
            await self._fleet.start()
            await self._start_admin()  # it tells that the rest is not there yet
            await self._take_configuration()
        except FAILURES as error:
            return self._start_failed(str(error))
        freeze_gc()
        self._announce()
        watcher = asyncio.create_task(self._watch(changed)) if self.options.sources else None
        reloader = asyncio.create_task(self._reload_when_asked())
        clock = asyncio.create_task(self._look_at_certificates())
        await self._stop.wait()
        self._is_draining = True
        for server in self._servers:
            server.end_watches()
        for task in (watcher, reloader, clock):
            if task is not None:
                task.cancel()
        log.info(
            "draining: in-flight requests have %g s to finish; send the signal again to stop now",
            self.options.drain_timeout_s,
        )
        cut = await self._drain()
        self._events.take()
        log.info("stopped%s", cut)
        return 0

    def _start_failed(self, why: str) -> int:
        if self.options.log_format == "json":
            log.error("%s", why)
        else:
            print(f"egressproxy: {why}", file=sys.stderr)
        return 1

    async def _drain(self) -> str:
        """What was cut, for the log."""
        when = "at the deadline"
        draining = asyncio.create_task(self._fleet.drain(self.options.drain_timeout_s))
        while not draining.done():
            await asyncio.wait((draining,), timeout=0.1)
            if self._signals > 1:  # asked again: at once
                when = "at the second signal"
                self._fleet.hurry()
                await asyncio.wait((draining,), timeout=CUT_S)
                break
        if not draining.done():
            draining.cancel()
            return f"; not everything that was cut {when} is in the access log"
        cut = draining.result()
        return f"; {_counted(cut, 'connection')} cut {when}" if cut else ""

    def _asked_to_stop(self) -> None:
        self._signals += 1
        self._stop.set()

    def _asked_to_reload(self) -> None:
        log.info("SIGHUP: the configuration is read again, the access log opened again")
        self._reload.set()

    def _open_state(self) -> None:
        """Raises OSError, or ConfigRefused where this installation has no Kubernetes-shaped API."""
        if self.options.state_dir is not None:
            if not HAS_KUBEAPI:
                raise ConfigRefused("--state-dir: this installation has no package egressproxy.kubeapi to write with")
            from egressproxy.kubeapi.write.writer import Writer

            self._writer = Writer(self._loader, self.options.sources, self.options.bind, self.options.state_dir)
            self._writer.open()

    async def _start_admin(self) -> None:
        """Raises ConfigRefused."""
        if self.options.admin is None and self.options.metrics is None:
            return
        # A third of all that this process would import.
        from egressproxy.admin.server import AdminServer, Surface
        from egressproxy.telemetry.exposition import Exposition

        self._exposition = Exposition(__version__)
        asked = (("admin", self.options.admin, Surface.FULL), ("metrics", self.options.metrics, Surface.METRICS))
        for what, place, surface in asked:
            if place is not None:
                server = AdminServer(self, place[0], place[1], surface, self._kubernetes_api if HAS_KUBEAPI else None)
                try:
                    await server.start()
                except OSError as error:
                    why = f"cannot bind {place[0]} port {place[1]}: {error.strerror or error}"
                    raise ConfigRefused(f"--{what}: {why}{ADDRESS_REMEDIES.get(error.errno or 0, '')}") from None
                self._servers.append(server)
                self._own[what] = (server.host, server.port)

    def _kubernetes_api(self, server: AdminServer) -> AdminApi:
        from egressproxy.kubeapi.kubernetes_api import KubernetesApi
        from egressproxy.kubeapi.read.events import PublishedEvents
        from egressproxy.kubeapi.service import ApiService
        from egressproxy.kubeapi.write.access import WriteAccess

        sources = (self._published, PublishedEvents(self._events, self._published))
        access = WriteAccess(self.options.api_token_file) if self.options.api_writes else None
        return KubernetesApi(ApiService(self, sources, self._loader, self._writer), server, access)

    # --- configuration ---------------------------------------------------------------------------------------------
    async def _take_configuration(self, acknowledged: Collection[str] = ()) -> None:
        """Load, compile, build, swap. Raises one of REFUSALS, and has changed nothing then."""
        async with self.taking:
            await self.put_in_service(await self._read(), acknowledged)

    async def put_in_service(self, fresh: Loaded, acknowledged: Collection[str] = ()) -> None:
        own = tuple(self._own.values())
        is_guarded = self.options.guarded and self._generation > 0
        if is_guarded and acknowledged:
            is_guarded = await asyncio.to_thread(digest, fresh.shown) not in acknowledged
        asked = Configuration(fresh.spec, _listeners(fresh.places), self._generation + 1, own, is_guarded)
        try:
            await self._fleet.apply(asked)
        except Guarded as error:
            mark = await asyncio.to_thread(digest, fresh.shown)
            raise Guarded(f"{error}\nif that is meant: egressproxy reload --acknowledge {mark}") from None
        self._packed = await asyncio.to_thread(zlib.compress, fresh.spec, 1)
        self._loaded = replace(fresh, spec=b"", broken=())
        self._generation += 1
        self._publish()
        self.metrics.reload_succeeded(self._generation)
        self._tell_shortcomings(fresh.findings)
        self._tell_late_certificates()
        self._has_other_certificates.set()
        over = accepted(fresh.places, self._generation) if self._is_rejected else []
        self._is_rejected = False
        self._events.add([*broken(fresh.broken), *over], is_logged=True)

    def _tell_shortcomings(self, findings: Iterable[Problem]) -> None:
        """What is served less than whole; after a reload only what is new."""
        told, self._told = self._told, set(findings)
        new = sorted(self._told - told, key=_turn)
        for finding in new[:MAX_TOLD]:
            level = logging.INFO if finding.severity is Severity.NOTE else logging.WARNING
            log.log(level, "%s", finding, extra={"fields": finding.as_dict()})
        _tell_more(new)

    @property
    def _validities(self) -> tuple[Validity, ...]:
        return self._loaded.validities if self._loaded is not None else ()

    def _tell_late_certificates(self) -> None:
        """Those that end soon, each once: no fault of the configuration, and so none of its warnings."""
        now_s = time.time()
        late = {each for each in self._validities if each.state(now_s) is CertificateState.LATE}
        told, self._told_late = self._told_late, late
        for each in sorted(late - told):
            log.warning("%s", each.sentence(now_s))

    async def _look_at_certificates(self) -> None:
        """Now and then. One that begins or ends to be valid is another configuration: read again, it says so."""
        while True:
            self._has_other_certificates.clear()
            looked_s = time.time()
            changes_s = min((each.next_change_s(looked_s) for each in self._validities), default=looked_s + LOOK_S)
            wait_s = min(max(changes_s - looked_s, 0.0) + LEEWAY_S, LOOK_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_other_certificates.wait(), wait_s)
                continue  # another configuration is in service: its certificates end at other times
            self._tell_late_certificates()
            if any(each.next_change_s(looked_s) <= time.time() for each in self._validities):
                log.info("a certificate has begun or ended to be valid: the configuration is read again")
                self._reload.set()

    async def _read(self) -> Loaded:
        if not self._is_configured:
            return builtin()
        return await self._loader.load(self.options.sources, self.options.bind, self.memory(), self.options.state_dir)

    @property
    def _is_configured(self) -> bool:
        return bool(self.options.config) or self.options.state_dir is not None

    async def _watch(self, changed: AsyncIterator[None]) -> None:
        try:
            async for _ in changed:
                self._reload.set()
        except Exception:
            log.exception("internal error: files are not watched any more; SIGHUP has them read again")

    async def _reload_when_asked(self) -> None:
        """One reload at a time; what comes meanwhile is one more."""
        while True:
            await self._reload.wait()
            self._reload.clear()
            asked, self._asked = self._asked, []
            self._fleet.reopen_access_log()
            why = ""
            try:
                await self._take_configuration([mark for mark, _ in asked if mark])
            except REFUSALS as error:
                why = str(error)
                self._rejected(error)
            except Exception as error:
                log.exception("internal error in a reload")
                why = f"internal error ({type(error).__name__})"
                self._rejected(ConfigRefused(why))
            else:
                self.tell_generation()
            for _, done in asked:
                if not done.done():  # who asked may have left
                    done.set_result(why)

    def _rejected(self, error: Exception) -> None:
        why, is_guarded = str(error), isinstance(error, Guarded)
        self._is_rejected = True
        self._publish(why, "Guarded" if is_guarded else "Invalid")
        self.metrics.reload_failed("guarded" if is_guarded else "failure")
        log.error("the new configuration is rejected, configuration %d stays in service:", self._generation)
        if isinstance(error, ConfigError):
            _tell_problems(error.problems)
        else:
            for line in why.splitlines():
                log.error("%s", line)
        places = self._loaded.places if self._loaded is not None else ()
        unbound = error.listeners if isinstance(error, NotBound) else ""
        self._events.add(rejected(error, places, self._generation, unbound), is_logged=True)

    def tell_generation(self) -> None:
        objects = _counted(self._loaded.objects if self._loaded is not None else 0, "object")
        log.info("configuration %d is in service: %s", self._generation, objects)

    def _announce(self) -> None:
        assert self._loaded is not None
        for address, port, protocol, listener in self._loaded.places:
            place = _place(address, port)
            log.info("%s listener %s on %s", protocol, listener, place)
            if not self._is_configured and self.options.log_format == "text":  # said only now that the port is ours
                print(OPEN_PROXY.format(place=place), end="", file=sys.stderr)  # in one piece, beside other lines
        for what, (address, port) in self._own.items():
            log.info("%s on http://%s/", what, _place(address, port))
        error = why_not_uvloop()
        if error is not None and find_spec("uvloop") is not None:
            log.warning(
                "uvloop is installed but cannot be imported (%s: %s); asyncio's event loop serves instead, which is"
                " slower: install a uvloop for this Python and this system, or remove it",
                type(error).__name__,
                error,
            )
        log.info("event loop: %s", loop_name())
        if serving := self._fleet.announcement():
            log.info("%s", serving)
        if self._is_configured:
            self.tell_generation()


def _fleet(options: RunOptions, metrics: Metrics, errors: int | None) -> Fleet:
    """Imports what it takes: a supervisor serves nobody, and has no data plane."""
    key = options.session_key.reveal() if options.session_key is not None else b""
    if options.workers == 1:
        from egressproxy.processes.workers.worker import InProcess

        return InProcess(options.access_log, metrics, key)
    from egressproxy.processes.workers.supervisor import Supervisor

    return Supervisor(options.workers, options.access_log, options.log_level, metrics, key, options.log_format, errors)


def _listeners(places: Iterable[ListenerAddress]) -> dict[tuple[str, int], str]:
    """Each address and port, with all listeners there."""
    shared: dict[tuple[str, int], list[str]] = {}
    for place in places:
        shared.setdefault((place.address, place.port), []).append(place.listener)
    return {where: ", ".join(listeners) for where, listeners in shared.items()}


def _model(packed: bytes, bind: Sequence[str]) -> bytes:
    """The outline of a configuration, and where its Gateways listen that give no address; holds no secret."""
    from egressproxy.ir.outline import outline

    spec = finished(unpacking(zlib.decompress(packed)))
    return json.dumps({"model": outline(spec), "bind": list(bind)}).encode()


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _turn(finding: Problem) -> tuple[bool, str, int, int, str]:
    """In the order of files and lines; notes behind what somebody has to look at."""
    return finding.severity is Severity.NOTE, finding.file, finding.line, finding.column, str(finding)


def _tell_problems(problems: Sequence[Problem]) -> None:
    """One record for each."""
    for problem in problems[:MAX_TOLD]:
        log.error("%s", problem, extra={"fields": problem.as_dict()})
    _tell_more(problems)


def _tell_more(told: Sequence[Problem]) -> None:
    if len(told) > MAX_TOLD:
        log.warning("and %d more, which `egressproxy check` shows", len(told) - MAX_TOLD)
