"""ClusterSource: the reflectors of a cluster, and what a compilation reads of their objects.

All objects of the kinds that configure the gateway are read, in the namespaces that are watched. Of Secrets and the
like a cluster has more than is needed: those are read that a compilation has looked up (`want`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, Final

from egressproxy.config.reading.endpoint_slices import ready_addresses, ready_endpoints, service_of_pods
from egressproxy.config.served_kinds import AGENTIC, GATEWAY, OURS, ServedKind
from egressproxy.ir.backend import EndpointAddress
from egressproxy.kubernetes.api_client import UNREACHABLE, ApiClient, ApiError
from egressproxy.kubernetes.credentials import Credentials
from egressproxy.kubernetes.discovery import GONE_S, AvailableKinds, discovered
from egressproxy.kubernetes.messages import Changed, ChangedRoutes, Endpoints
from egressproxy.kubernetes.named_reflector import NamedReflector
from egressproxy.kubernetes.object_store import (
    ALL_PODS,
    READ_SCOPE,
    SLICES,
    ObjectStore,
    Scope,
    StoredObject,
    lines,
    read_kinds,
)
from egressproxy.kubernetes.reflector import FIRST_PAUSE_S, LONGEST_PAUSE_S, Reflector
from egressproxy.kubernetes.status_writer import service_addresses
from egressproxy.kubernetes.watched_scopes import watched_scopes
from egressproxy.model.published_object import Key
from egressproxy.processes.workers.data_plane import EndpointUpdates
from egressproxy.run_options import ClusterOptions

log = logging.getLogger(__name__)

#: How often discovery looks for kinds that were not there, in seconds.
DISCOVER_S: Final = 30.0
#: A change has settled when nothing more comes for so long; what changes without end is given on after the second.
QUIET_S: Final = 0.05
PATIENCE_S: Final = 0.3
_HTTP_ROUTE: Final = (GATEWAY, "HTTPRoute")
#: Kinds of which all are read, and those are given on that a compilation has looked up.
_BY_LOOKUP: Final = frozenset({("", "Service"), ("", "Namespace")})
#: Without one of these, more would be allowed than is meant: nothing is served before they are read.
_ALWAYS_NEEDED: Final = frozenset({(OURS, "EgressPolicy"), (AGENTIC, "XAccessPolicy"), (GATEWAY, "BackendTLSPolicy")})
#: Without one of these, requests could take a wider way than is meant, such as one without the filters of their route.
#: They hold up the start, and nothing later. What refers to an object of any other kind is closed without it.
_NEEDED_AT_START: Final = frozenset(
    (GATEWAY, kind) for kind in ("GatewayClass", "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute")
)


class _Given(Enum):
    """What was given last: the objects of the API server, or those that were kept on disk."""

    NOTHING = auto()
    FROM_DISK = auto()
    OBJECTS = auto()


class ClusterSource:
    """The objects of a cluster that a compilation reads (`take`). Belongs to the event loop."""

    def __init__(
        self, options: ClusterOptions, versions: Mapping[str, str],
        tell: Callable[[Changed | ChangedRoutes | Endpoints], None],
    ) -> None:  # fmt: skip
        """`versions` are resource versions up to which each scope, by its text, was in force before. `tell` is called
        when objects are other ones than `take` gave last.
        """
        self._tell = tell
        self.changed_routes: set[Key] = set()  # since `take`
        self.store = ObjectStore()
        self.client: ApiClient | None = None
        self._options = options
        self._before = versions
        self._referenced: frozenset[Key] = frozenset()
        self._reflectors: dict[Scope, tuple[Reflector, asyncio.Task[None]]] = {}
        self._leaving: list[Scope] = []
        self._kinds = AvailableKinds({scope.split()[0] for scope in versions})
        self._policies: dict[ServedKind, float] = {}  # of kinds that are not read: when they were there last
        self._has_lost_kinds = False  # since what was given last
        self._is_discovered = False
        self._problem = "the API server has not answered yet"
        self._changed = asyncio.Event()
        self._given = _Given.NOTHING
        self._reported: set[str] = set()
        self._too_many: list[str] = []  # sentences

    async def run(self) -> None:
        """Until it is cancelled. A defect ends it: nobody would be told of changes any more."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._notify())
                group.create_task(self._discover())
        finally:
            for _, task in self._reflectors.values():
                task.cancel()
            if self.client is not None:
                await self.client.close()

    async def _discover(self) -> None:
        """Look again and again for which kinds there are, and watch them."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if self.client is None:
                    self.client = ApiClient(await Credentials.load(self._options))
                found, policies = await discovered(self.client)
            except (ApiError, *UNREACHABLE) as error:
                self._problem = f"the API server cannot be reached: {error or type(error).__name__}"
                self._changed.set()
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                continue
            now = asyncio.get_running_loop().time()
            self._has_lost_kinds |= self._kinds.update(found, now)
            seen = {**self._policies, **dict.fromkeys(policies, now)}
            self._policies = {kind: at for kind, at in seen.items() if now - at <= GONE_S}
            if not self._is_discovered and (missing := self._kinds.missing()):
                log.info(
                    "kinds that this cluster does not have, looked for again every %g s: %s",
                    DISCOVER_S, ", ".join(missing),
                )  # fmt: skip
            self._is_discovered, self._problem = True, ""
            pause_s = FIRST_PAUSE_S
            self._adjust()
            self._changed.set()
            await asyncio.sleep(DISCOVER_S * random.uniform(0.8, 1.2))  # noqa: S311 (no secret)

    # --- what is watched -------------------------------------------------------------------------------------------
    def want(self, keys: Iterable[Key], *, and_others: bool = False) -> None:
        """Read these objects, of kinds that are read by reference; `and_others`: beside those that are read already."""
        self._referenced = self._referenced.union(keys) if and_others else frozenset(keys)
        if self._is_discovered:
            self._adjust()

    def _adjust(self) -> None:
        assert self.client is not None
        scopes, self._too_many = watched_scopes(self._options, self._kinds.versions, self._referenced, self._policies)
        for scope in self._reflectors.keys() - scopes.keys():
            _, task = self._reflectors.pop(scope)
            task.cancel()
            self._leaving.append(scope)  # until what takes its place is read
        for scope, names in scopes.items():
            version = self._kinds.versions.get((scope.kind.group, scope.kind.kind), scope.kind.versions[0])
            since = self._before.get(str(scope), "")
            if scope in self._reflectors and self._reflectors[scope][0].version != version:
                old, task = self._reflectors.pop(scope)  # a server may serve the old one no longer
                task.cancel()
                since = old.resource_version
            if scope not in self._reflectors:
                make = NamedReflector if scope.is_by_name else Reflector
                reflector = make(self.client, self.store, scope, version, since, self._changed.set)
                self._reflectors[scope] = (reflector, asyncio.create_task(reflector.run()))
            made, _ = self._reflectors[scope]
            if isinstance(made, NamedReflector):
                made.want(names)

    # --- what is read ----------------------------------------------------------------------------------------------
    def why_not_ready(self) -> str:
        """ "" once everything that is watched was read, or cannot be read before a person does something."""
        if self._problem:
            return self._problem
        for group, name in self._kinds.awaited():
            return f"the cluster has no {name} of {group or 'the core group'} any more, or not yet"
        for reflector, _ in self._reflectors.values():
            kind = reflector.scope.kind
            holds_up = _ALWAYS_NEEDED if self._given is _Given.OBJECTS else _ALWAYS_NEEDED | _NEEDED_AT_START
            if not reflector.is_synced and (not reflector.is_refused or (kind.group, kind.kind) in holds_up):
                return reflector.problem or f"{reflector.scope} are not read yet"
        return ""

    def problems(self) -> list[str]:
        """What cannot be read, a sentence for each scope."""
        found = [reflector.problem for reflector, _ in self._reflectors.values() if reflector.problem]
        found += self._too_many
        return [self._problem, *found] if self._problem else found

    def _tell_problems(self) -> None:
        """Log what is new of them: while the API server is away, all watches say the same."""
        problems = set(self.problems())
        for problem in sorted(problems - self._reported):
            log.warning("%s", problem)
        if self._reported and not problems:
            log.info("everything can be read again")
        self._reported = problems

    async def wait(self) -> None:
        """Until something may have changed."""
        self._changed.clear()
        await self._changed.wait()

    def expect(self) -> None:
        """The objects on disk are served: tell of those of the API server once they are read."""
        self._given = _Given.FROM_DISK

    def take(self) -> bytes:
        """What a compilation reads, compressed (`config.reading.cluster_objects`)."""
        self._forget_left()
        self._note_read()
        self._given = _Given.OBJECTS
        for changed in (self.store.changed, self.store.services, self.store.pods, self.changed_routes):
            changed.clear()
        return zlib.compress(lines(each for _, each in self.relevant()), 1)

    def _note_read(self) -> None:
        """Have the kinds among the objects of which all is read (`object_store.read_kinds`): whether all Pods are,
        since no Pod at all says something.
        """
        pod = ALL_PODS[:2]
        scopes = [each for each, _ in self._reflectors.values() if (each.scope.kind.group, each.scope.kind.kind) == pod]
        is_read = ALL_PODS in self._referenced and bool(scopes) and all(each.is_synced for each in scopes)
        key, each = read_kinds([pod] if is_read else [])
        self.store.put(READ_SCOPE, key, each)

    def take_routes(self, referenced: Collection[Key]) -> bytes:
        """As `take`, without HTTPRoutes that have not changed since, and as if these objects were `referenced`."""
        self._forget_left()
        found = self.relevant(referenced)
        kept = (each for key, each in found if key[:2] != _HTTP_ROUTE or key in self.changed_routes)
        return zlib.compress(lines(kept), 1)

    def _forget_left(self) -> None:
        """Hold nothing of scopes that are not watched any more: what has taken their place is read."""
        for scope in self._leaving:
            if scope not in self._reflectors:
                self.store.forget(scope)
                self._changed.set()
        self._leaving.clear()

    def relevant(self, referenced: Collection[Key] | None = None) -> Iterator[tuple[Key, StoredObject]]:
        """Every object that a compilation reads, in the order of keys."""
        referenced = self._referenced if referenced is None else referenced
        services = {key[2:] for key in referenced if key[:2] == ("", "Service")}
        for key, each in sorted(self.store.objects()):
            if key[:2] == SLICES and (key[2], each.service) not in services:
                continue
            if key[:2] not in _BY_LOOKUP or key in referenced:
                yield key, each

    def with_changed_routes(self, given: Iterable[tuple[Key, StoredObject]]) -> list[tuple[Key, StoredObject]]:
        """What `relevant` gave before, with the HTTPRoutes as they are by now."""
        found = ((key, self.store.find(key)) for key in self.changed_routes)
        fresh = [(key, each) for key, each in found if each is not None]
        return sorted([*(each for each in given if each[0] not in self.changed_routes), *fresh])

    def resource_versions(self) -> dict[str, str]:
        """The resource version up to which each scope is read, by its text."""
        return {
            str(scope): reflector.resource_version
            for scope, (reflector, _) in self._reflectors.items()
            if reflector.resource_version
        }

    def figures(self) -> tuple[int, int]:
        """How many watches there are, and how often one of them was begun again."""
        return len(self._reflectors), sum(reflector.restarts for reflector, _ in self._reflectors.values())

    def addresses(self) -> list[dict[str, str]]:
        """`status.addresses` of our Gateways: those of the Service in front; none where that is not asked for."""
        namespace, _, name = self._options.publish_service.partition("/")
        service = self.store.find(("", "Service", namespace, name)) if name else None
        return service_addresses(service) if service is not None else []

    async def _notify(self) -> None:
        """Tell of changes when they have settled, and of what cannot be read."""
        while True:
            await self.wait()
            self._tell_problems()
            self._note_read()
            if self._given is _Given.NOTHING or (self._given is _Given.FROM_DISK and self.why_not_ready()):
                continue
            if ALL_PODS in self._referenced:
                self.store.changed |= self.store.pods  # whose an address is: a configuration says it
            if not (self.store.changed or self.store.services or self.store.pods or self._has_lost_kinds):
                continue
            deadline = asyncio.get_running_loop().time() + PATIENCE_S
            revision = -1
            while revision != self.store.revision and asyncio.get_running_loop().time() < deadline:
                revision = self.store.revision
                await asyncio.sleep(QUIET_S)
            changed = {key for key in self.store.changed if key[:2] not in _BY_LOOKUP or key in self._referenced}
            routes = {key for key in changed if key[:2] == _HTTP_ROUTE}
            is_other = len(routes) < len(changed) or self._has_lost_kinds or self._given is _Given.FROM_DISK
            self._has_lost_kinds = False
            self.store.changed.clear()
            self.changed_routes |= routes
            if is_other:
                self._tell(Changed())
                continue
            if routes:
                self._tell(ChangedRoutes())
            if updates := self._endpoints():
                self._tell(Endpoints(updates))

    def _endpoints(self) -> EndpointUpdates:
        """The addresses of the Services whose slices have changed, where a configuration refers to them.

        Also those of selected Pods in namespaces with a changed Pod.
        """
        services, namespaces = set(self.store.services), {key[2] for key in self.store.pods}
        self.store.services.clear()
        self.store.pods.clear()
        return {**self._endpoints_of(services), **self._selected_pods(namespaces)}

    def every_endpoint(self) -> EndpointUpdates:
        """The addresses of all Services and Pods that a configuration refers to."""
        services = {key[2:] for key in self._referenced if key[:2] == ("", "Service")}
        return {**self._endpoints_of(services), **self._selected_pods({key[2] for key in self._referenced})}

    def _selected_pods(self, namespaces: Collection[str]) -> EndpointUpdates:
        """By namespace and selector, under port 0: the addresses of the Pods that a configuration selects there."""
        wanted = [key for key in self._referenced if key[:2] == ALL_PODS[:2] and key[2] in namespaces and key[3]]
        if not wanted:
            return {}
        pods: dict[str, list[dict[str, Any]]] = {}
        for key, each in self.store.objects():
            if key[:2] == ALL_PODS[:2]:
                pods.setdefault(key[2], []).append(json.loads(each.manifest))
        found: dict[tuple[str, int], tuple[EndpointAddress, ...]] = {}
        for _, _, namespace, selector in wanted:
            labels = dict(part.partition("=")[::2] for part in selector.split(","))
            selected = (
                pod
                for pod in pods.get(namespace, ())
                if labels.items() <= (pod["metadata"].get("labels") or {}).items()
            )
            addresses = ready_addresses(selected, has_kubelet=True)
            found[service_of_pods(namespace, selector), 0] = tuple(EndpointAddress(each, 0) for each in addresses)
        return found

    def _endpoints_of(self, services: Collection[tuple[str, str]]) -> EndpointUpdates:
        found: dict[tuple[str, int], tuple[EndpointAddress, ...]] = {}
        slices: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for key, each in self.store.objects():
            if key[:2] == SLICES and (key[2], each.service) in services:
                slices.setdefault((key[2], each.service), []).append(json.loads(each.manifest))
        for namespace, name in services:
            service = self.store.find(("", "Service", namespace, name))
            if service is None or ("", "Service", namespace, name) not in self._referenced:
                continue
            for port in json.loads(service.manifest)["spec"].get("ports") or ():
                addresses = ready_endpoints(slices.get((namespace, name), ()), port.get("name") or "")
                found[f"{namespace}/{name}", port["port"]] = addresses
        return found
