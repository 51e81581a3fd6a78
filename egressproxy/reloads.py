"""Reloads put a configuration into service and report the result in the log, status, Events and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.model.encoding import counted
from egressproxy.model.published_object import Key
from egressproxy.model.unix_socket import is_unix, parse_unix_socket
from egressproxy.model.work import at_once
from egressproxy.net.listening import BindError, is_inside
from egressproxy.processes.configuration_log import ConfigurationLog
from egressproxy.processes.forward_listeners import ForwardListener, forward_listeners
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.notices import accepted, broken, rejected, tell_findings, tell_problems
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.loader.published import PublishedConfiguration, digest
from egressproxy.processes.loader.request import LoadRequest
from egressproxy.processes.loader.result import CompiledConfig, ListenerAddress, Trial, builtin
from egressproxy.processes.loader.result import shown as objects
from egressproxy.processes.packing import unpacking
from egressproxy.processes.takeover.service_manager import ServiceManager
from egressproxy.processes.takeover.wanted_lock import WantedLock
from egressproxy.processes.workers.data_plane import (
    ConfigRefused,
    Configuration,
    DataPlane,
    EndpointUpdates,
    Guarded,
    RouteChanges,
)
from egressproxy.run_options import RunOptions
from egressproxy.telemetry.certificate_watch import CertificateWatch
from egressproxy.telemetry.events import Events
from egressproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from egressproxy.processes.trials import Trials

log = logging.getLogger("egressproxy")

#: After a change of endpoints or routes alone the configuration is read again within this many seconds, or within this
#: multiple of the time that a load takes. Until then status is not updated.
FOLLOW_S = 60.0
FOLLOW_FACTOR = 4
#: Changed routes are patched into the snapshot in service if a whole reload takes longer, in seconds.
LONG_S = 1.0
#: The most rounds of reading the references of new objects, before a configuration is used as read.
MAX_ROUNDS = 8

#: The interval in seconds after which a reload again tries to bind the failed addresses of a cluster's Gateways.
UNBOUND_S = 60.0

#: The errors that keep a valid configuration out of service; each message is one sentence.
FAILURES = (LoadingFailed, ConfigRefused, BindError, OSError)
REFUSALS = (ConfigError, *FAILURES)


class ObjectSource(Protocol):
    """The source of objects beside files; `kubernetes.cluster.Cluster` documents the methods."""

    async def objects(self, wanted: frozenset[Key]) -> bytes: ...

    @property
    def latest(self) -> bytes | None: ...

    async def changed_routes(self, wanted: frozenset[Key]) -> tuple[bytes, tuple[str, ...]] | None: ...

    def routes_in_service(self) -> None: ...

    @property
    def endpoints(self) -> EndpointUpdates: ...

    def catalogue(self, packed: bytes) -> None: ...

    def in_service(self, shown: bytes, rejection: str, reason: str) -> None: ...


class ConfigManager:
    """The configuration in service. Implements kubeapi's Application. Belongs to the event loop.

    `own` are the sockets of the admin and metrics servers, closed to clients of the gateway; `published` shows the
    objects, `certificates` their certificates. `taking` is held while a configuration is put into service.
    """

    def __init__(
        self, options: RunOptions, loader: Loader, data_plane: DataPlane, metrics: Metrics, events: Events,
        on_change: Callable[[], None], own: Mapping[str, tuple[str, int]], cluster: ObjectSource | None = None,
        manager: ServiceManager | None = None,
    ) -> None:  # fmt: skip
        """`on_change` is called after a change of `published`. `cluster` is a source beside files."""
        self._cluster = cluster
        self._wanted: frozenset[Key] = frozenset()
        self._manager = manager or ServiceManager()
        self._options = options
        self._loader = loader
        self._data_plane = data_plane
        self._metrics = metrics
        self._events = events
        self._on_change = on_change
        self._own = own
        self.published = PublishedConfiguration()
        self.certificates = CertificateWatch(lambda: self.ask_for_reload("a certificate"))
        self._log = ConfigurationLog(loader) if options.admin is not None else None
        self._counted: tuple[int, Counter[str]] = (-1, Counter())  # objects by kind, and of which configuration
        self._by: dict[str, None] = {}  # who has asked for the next reload
        self.taking = WantedLock()
        self.is_draining = False  # new configurations are refused; a load in progress does not reset this
        self._loaded = CompiledConfig()
        self._packed = b""  # the spec in service, as `processes.packing` writes it, compressed
        self._generation = 0
        self._is_rejected = False  # of the configuration read last
        self._shows_catalogue = False
        self._showing: asyncio.Task[None] | None = None
        self._trials: Trials | None = None  # of policies on trial, if there ever were some
        self._shown = b""  # the objects in service, with the counts of trials
        self._rejection = "", ""
        self._unbound: Mapping[tuple[str, int], str] = {}  # failed addresses of a cluster's Gateways: reason
        self._unbound_at = 0.0  # time of the last attempt
        self._told: set[Problem] = set()
        self._reload = asyncio.Event()
        self._has_updates = asyncio.Event()  # of the cluster's endpoints and routes
        self._has_routes = False
        self._wanted_by_routes: frozenset[Key] = frozenset()
        self._took_s = 0.0  # to load and build the configuration in service
        self._following: asyncio.TimerHandle | None = None  # a reload after endpoints or routes were replaced
        self._asked: list[tuple[str, asyncio.Future[str]]] = []  # waiting callers: mark, result

    @property
    def places(self) -> Sequence[ListenerAddress]:
        """Where the listeners are bound."""
        return self._loaded.places

    def generation(self) -> int:
        """The number of the configuration in service, 0 before the first."""
        return self._generation

    def why_not_writable(self) -> str:
        """ "" while configurations are taken; else a sentence for people."""
        if self.is_draining:
            return "draining"
        return "" if self._generation else "the listeners are not bound yet"

    def memory(self) -> bytes:
        """The facts about the configuration in service that the next load needs."""
        return self._loaded.memory

    async def model(self) -> bytes:
        """The outline of the configuration in service (`operators.explain.outline`), as JSON. It has no secret."""
        return await asyncio.to_thread(_model, self._packed, self._options)

    async def forward_listeners(self) -> list[ForwardListener]:
        """Where clients find their proxy."""
        return await asyncio.to_thread(lambda: forward_listeners(zlib.decompress(self._packed)))

    # --- into service ----------------------------------------------------------------------------------------------
    async def take(self, acknowledged: Collection[str] = (), by: str = "start") -> None:
        """Load, compile, build, swap. Raises one of REFUSALS; the configuration in service stays then.

        `acknowledged` are the marks of configurations that may allow recently denied requests. `by`: who has asked.
        """
        async with self.taking:
            unbound = self._unbound if time.monotonic() - self._unbound_at < UNBOUND_S else {}
            while True:
                fresh = await self._read(unbound)
                try:
                    await self.put_in_service(fresh, acknowledged, by)
                except BindError as error:
                    if self._cluster is None or error.places.keys() <= unbound.keys():
                        raise
                    # A failed Gateway of a cluster does not hold up the others; its status reports the error.
                    log.warning("%s", error)
                    unbound = {**unbound, **error.places}
                    self._unbound_at = time.monotonic()
                else:
                    self._unbound = unbound
                    return

    async def show_catalogue(self) -> None:
        """Show the catalogue of filter types among the objects, from here on. Making it takes longer than the rest of a
        load, so the first request for objects triggers it.
        """
        if not self._options.is_configured:
            return
        self._shows_catalogue = True
        try:
            declared = b""
            while declared != self._loaded.declared:
                declared = self._loaded.declared
                made = await self._loader.catalogue(declared)
        except OSError as error:
            log.warning("the catalogue of filter types cannot be shown: %s", error)
            return
        self.published.show_catalogue(made)
        if self._cluster is not None:
            self._cluster.catalogue(made)
        self._on_change()

    def lead(self) -> None:
        """Show the catalogue in the cluster, too: this gateway is the one that writes there."""
        self._showing = asyncio.create_task(self.show_catalogue())

    def hear_trials(self, told: Mapping[str, bytes]) -> None:
        """Of policies on trial: what other gateways have counted, as `trial` (JSON) by full name."""
        if self._trials is not None:
            self._trials.hear(told)

    async def _read(self, unbound: Mapping[tuple[str, int], str]) -> CompiledConfig:
        """`unbound` are addresses and ports that could not be bound, with a sentence why."""
        options = self._options
        if not options.is_configured:
            return builtin(options.open_port)
        if self._cluster is None:
            return await self._load(None, {})
        return await self._read_cluster(self._cluster, unbound)

    async def _read_cluster(self, cluster: ObjectSource, unbound: Mapping[tuple[str, int], str]) -> CompiledConfig:
        """Load again until all objects that the configuration refers to were read."""
        if self._following is not None:
            self._following.cancel()
            self._following = None
        wanted = self._wanted
        for _ in range(MAX_ROUNDS):
            packed = await cluster.objects(wanted)
            began = time.monotonic()
            loaded = await self._load(packed, unbound)
            self._took_s = time.monotonic() - began
            if loaded.wanted <= wanted:
                break
            wanted |= loaded.wanted
        self._wanted = loaded.wanted
        return loaded

    async def _load(self, packed: bytes | None, unbound: Mapping[tuple[str, int], str]) -> CompiledConfig:
        """Load the files and these objects of a cluster."""
        return await self._loader.load(self._request(packed, unbound))

    def _request(self, packed: bytes | None, unbound: Mapping[tuple[str, int], str]) -> LoadRequest:
        options = self._options
        places = tuple((*place, why) for place, why in unbound.items())
        namespaces = options.cluster.gateway_namespaces if options.cluster is not None else ()
        return LoadRequest(
            options.sources, options.bind, self.memory(), options.state_dir, packed, places, namespaces,
            options.experimental, options.cluster is not None and options.cluster.publish_service != "",
        )  # fmt: skip

    async def proposals(self, asked: bytes) -> Sequence[dict[str, Any] | None]:
        """Changes of policies that would allow what they denied, for `asked` as in `proposals.answer`."""
        if not self._options.is_configured:
            return []
        try:
            packed = self._cluster.latest if self._cluster is not None else None
            return await self._loader.proposals(self._request(packed, self._unbound), asked)
        except FAILURES as error:
            log.warning("no change can be proposed for what was denied: %s", error)
            return []

    async def put_in_service(self, fresh: CompiledConfig, acknowledged: Collection[str] = (), by: str = "API") -> None:
        """Build and swap; the caller holds `taking`. Raises Guarded, ConfigRefused, BindError or OSError, and has
        changed nothing then.
        """
        is_guarded = self._options.guarded and self._generation > 0
        if is_guarded and acknowledged:
            is_guarded = await asyncio.to_thread(digest, fresh.shown) not in acknowledged
        places = _listeners(fresh.places)
        self._check_sockets(places)
        asked = Configuration(fresh.spec, places, self._generation + 1, tuple(self._own.values()), is_guarded)
        began = time.monotonic()
        try:
            await self._data_plane.apply(asked)
        except Guarded as error:
            mark = await asyncio.to_thread(digest, fresh.shown)
            raise Guarded(f"{error}\nif that is meant: egressproxy reload --acknowledge {mark}") from None
        except ConfigRefused as error:
            raise ConfigRefused(fresh.with_places(str(error))) from None
        self._took_s += time.monotonic() - began
        await self._replace_endpoints()
        before, self._packed = self._packed, await asyncio.to_thread(zlib.compress, fresh.spec, 1)
        has_other_types = fresh.declared != self._loaded.declared
        self._loaded = replace(fresh, spec=b"", broken=(), filter_places=(), trials=())
        self._generation += 1
        if self._log is not None:
            self._log.in_service(self._generation, by, fresh.objects, (before, self._packed))
        self._shown = fresh.shown
        if fresh.trials or self._trials is not None:
            self._shown = await self._follow_trials(fresh.trials)
        self._publish()
        if self._shows_catalogue and has_other_types:
            await self.show_catalogue()
        self._metrics.reload_succeeded(self._generation)
        self._tell_shortcomings(fresh.findings)
        self.certificates.show(fresh.validities)
        over = accepted(fresh.places, self._generation) if self._is_rejected else []
        self._is_rejected = False
        self._events.add([*broken(fresh.broken), *over], is_logged=True)

    def _check_sockets(self, places: Mapping[tuple[str, int], str]) -> None:
        """Raises BindError for a Unix socket outside the allowed folders."""
        folders = self._options.socket_dirs
        if not folders and not self._options.api_writes and self._cluster is None:
            return
        option = "--api-writes" if self._cluster is None else "--source kubernetes"
        failed = []
        for (address, port), listeners in places.items():
            if is_unix(address) and not is_inside(parse_unix_socket(address), folders):
                where = ", ".join(map(str, folders)) or f"no folder: with {option} it has to be given"
                why = f"{address} is not in --socket-dir ({where})"
                failed.append(BindError(f"listener {listeners}: {why}", listeners, {(address, port): why}))
        if failed:
            raise BindError.of(failed)

    def _publish(self, rejection: str = "", reason: str = "") -> None:
        """Publish the objects in service, to watchers, too; `rejection` and `reason` tell of a rejected newer load."""
        self._rejection = rejection, reason
        self.published.publish(self._shown, rejection, reason)
        if self._cluster is not None:
            self._cluster.in_service(self._shown, rejection, reason)
        self._on_change()

    async def _follow_trials(self, trials: tuple[Trial, ...]) -> bytes:
        if self._trials is None:
            from egressproxy.processes.trials import Trials

            self._trials = Trials(
                self._data_plane, self._loader, self._metrics.trial_decisions, self._options.state_dir,
                self._show_trials,
            )  # fmt: skip
        self._trials.follow(trials)
        return await asyncio.to_thread(self._trials.overlay, self._shown)

    async def _show_trials(self) -> None:
        """Publish the counts of trials, unless another configuration is in service by then."""
        loaded = self._loaded
        if self._trials is not None:
            made = await asyncio.to_thread(self._trials.overlay, loaded.shown)
            if loaded is self._loaded:
                self._shown = made
                self._publish(*self._rejection)

    # --- reloads ---------------------------------------------------------------------------------------------------
    def ask_for_reload(self, by: str = "cluster") -> None:
        """Read the configuration again as soon as possible; several requests may become one reload."""
        self._by[by] = None
        self._reload.set()

    async def summary(self) -> dict[str, Any]:
        """The configuration in service in numbers, and its listeners."""
        if self._counted[0] != self._generation:
            generation, shown = self._generation, self._loaded.shown
            self._counted = generation, await asyncio.to_thread(lambda: Counter(each.kind for each in objects(shown)))
        kinds = self._counted[1]
        return {
            "configuration": self._generation, "is_rejected": self._is_rejected,
            "listeners": [
                {"gateway": gateway, "listener": name, "protocol": each.protocol, "address": each.address,
                 "port": each.port}
                for each in self.places for gateway, _, name in (each.listener.rpartition("/"),)
            ],
            "routes": sum(count for kind, count in kinds.items() if kind.endswith("Route")),
            "backends": kinds["Backend"] + kinds["XBackend"], "policies": kinds["EgressPolicy"],
            "gateways": kinds["Gateway"],
        }  # fmt: skip

    def configurations(self) -> list[dict[str, Any]]:
        """The latest configurations that were put into service or rejected, the newest first."""
        return self._log.told() if self._log is not None else []

    def ask_for_endpoints(self) -> None:
        """Have Services lead to the addresses that the cluster has for them by now."""
        self._has_updates.set()

    def ask_for_routes(self) -> None:
        """Serve the HTTPRoutes that the cluster has by now; nothing else has changed there."""
        self._has_routes = True
        self._has_updates.set()

    async def update_when_asked(self) -> None:
        """Replace endpoints and routes in the snapshot in service. A later reload updates their status and Events.

        Runs until it is cancelled.
        """
        while True:
            await self._has_updates.wait()
            self._has_updates.clear()
            has_routes, self._has_routes = self._has_routes, False
            is_done = False
            try:
                async with self.taking:
                    is_done = await self._update_routes() if has_routes else True
                    is_done &= not self._generation or await self._replace_endpoints()
            except Exception:
                log.exception("internal error in an update: the configuration is read again")
            if not is_done:
                self.ask_for_reload()
            else:
                self._follow_within(min(FOLLOW_S, FOLLOW_FACTOR * self._took_s) if has_routes else FOLLOW_S)

    async def _replace_endpoints(self) -> bool:
        """Have Services lead to their addresses. Returns False where a whole configuration has to be read for that."""
        updates = dict(self._cluster.endpoints) if self._cluster is not None else {}
        return not updates or await self._data_plane.replace_endpoints(updates)

    async def _update_routes(self) -> bool:
        """Patch changed HTTPRoutes into the snapshot in service. Returns False if a whole reload is needed: reloads are
        quick, or the last configuration was rejected, or the change needs a guard's check, or only filters are served.
        """
        cluster = self._cluster
        options = self._options
        is_one_step = self._took_s < LONG_S or self._is_rejected or options.guarded or options.filters is not None
        if cluster is None or not self._generation or is_one_step:
            return False
        wanted = self._wanted_by_routes
        try:
            for _ in range(MAX_ROUNDS):
                changed = await cluster.changed_routes(wanted)
                if changed is None:
                    return False
                packed, names = changed
                if not names:
                    return True
                loaded = await self._load(packed, self._unbound)
                if loaded.wanted <= wanted:
                    break
                wanted |= loaded.wanted
        except REFUSALS as error:
            log.debug("changed routes wait for a whole configuration: %s", error)
            return False
        self._wanted_by_routes = loaded.wanted
        self._wanted |= loaded.wanted
        if not await self._data_plane.update_routes(RouteChanges(loaded.spec, names, self._generation)):
            return False
        cluster.routes_in_service()
        return True

    def _follow_within(self, seconds: float) -> None:
        """Schedule a reload within this many seconds."""
        at = asyncio.get_running_loop().time() + seconds
        if self._following is not None:
            if self._following.when() <= at:
                return
            self._following.cancel()
        self._following = asyncio.get_running_loop().call_at(at, self._follow)

    def _follow(self) -> None:
        self._following = None
        self.ask_for_reload()

    async def reload(self, acknowledged: str) -> str:
        """Read the configuration again; returns the reason of a failure, "" for success. `acknowledged` is the mark of
        a configuration that may allow recently denied requests, or "".
        """
        if why_not := self.why_not_writable():
            return why_not
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append((acknowledged, done))
        self.ask_for_reload("reload")
        return await done

    async def reload_when_asked(self) -> None:
        """Run one reload at a time; requests that arrive meanwhile share the next. Runs until it is cancelled."""
        while True:
            await self._reload.wait()
            self._reload.clear()
            asked, self._asked = self._asked, []
            by, self._by = ", ".join(self._by), {}
            self._manager.reloading()
            self._data_plane.reopen_access_log()
            why = ""
            try:
                await self.take([mark for mark, _ in asked if mark], by)
            except REFUSALS as error:
                why = str(error)
                self._rejected(error, by)
            except Exception as error:
                log.exception("internal error in a reload")
                why = f"internal error ({type(error).__name__})"
                self._rejected(ConfigRefused(why), by)
            else:
                self.tell_generation()
            self._manager.ready(self.status(is_rejected=bool(why)))
            for _, done in asked:
                if not done.done():  # the caller may have left
                    done.set_result(why)

    def _rejected(self, error: Exception, by: str = "files") -> None:
        why, is_guarded = str(error), isinstance(error, Guarded)
        if self._log is not None:
            problems = error.problems if isinstance(error, ConfigError) else why.splitlines()
            self._log.rejected(self._generation, by, problems)
        self._is_rejected = True
        self._publish(why, "Guarded" if is_guarded else "Invalid")
        self._metrics.reload_failed("guarded" if is_guarded else "failure")
        log.error("the new configuration is rejected, configuration %d stays in service:", self._generation)
        if isinstance(error, ConfigError):
            tell_problems(error.problems)
        else:
            for line in why.splitlines():
                log.error("%s", line)
        unbound = error.listeners if isinstance(error, BindError) else ""
        self._events.add(rejected(error, self.places, self._generation, unbound), is_logged=True)

    def tell_generation(self) -> None:
        """Log which configuration is in service."""
        log.info("%s", self.status())

    def status(self, *, is_rejected: bool = False) -> str:
        """The configuration in service, as text for people; `is_rejected`: a newer configuration was rejected."""
        stays = "; the latest one is rejected, as the log says" if is_rejected else ""
        return f"configuration {self._generation} is in service: {counted(self._loaded.objects, 'object')}{stays}"

    def _tell_shortcomings(self, findings: Iterable[Problem]) -> None:
        """Log the fields that are not served as written; after a reload only new ones."""
        told, self._told = self._told, set(findings)
        tell_findings(self._told - told)


def _listeners(places: Iterable[ListenerAddress]) -> dict[tuple[str, int], str]:
    """Each address and port, with all listeners there."""
    shared: dict[tuple[str, int], list[str]] = {}
    for place in places:
        shared.setdefault((place.address, place.port), []).append(place.listener)
    return {where: ", ".join(listeners) for where, listeners in shared.items()}


def _model(packed: bytes, options: RunOptions) -> bytes:
    """The outline of a configuration, and the options of `run` that another one is compared with."""
    from egressproxy.operators.explain.outline import outline

    spec = at_once(unpacking(zlib.decompress(packed)))
    made = {"model": outline(spec), "bind": list(options.bind), "experimental": options.experimental}
    return json.dumps(made).encode()
