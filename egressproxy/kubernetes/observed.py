"""Events, and the catalogue of filter types, written to the API server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from egressproxy.kubeapi.read.events import published, references
from egressproxy.kubernetes.access import missing_right
from egressproxy.kubernetes.api_client import MERGE_PATCH, UNREACHABLE, ApiClient, ApiError
from egressproxy.model.published_object import PublishedObject
from egressproxy.processes.loader.result import shown
from egressproxy.telemetry.event_aggregator import Notice

log = logging.getLogger(__name__)

#: Between two writes of Events, in seconds: a flood must not reach the API server.
PAUSE_S: Final = 0.2
_GROUP: Final = "events.k8s.io"


class EventWriter:
    """Writes each Event once, and again with a new count. Belongs to the event loop.

    `objects` returns the objects in service, which Events are about.
    """

    def __init__(self, client: ApiClient, objects: Callable[[], Iterable[PublishedObject]]) -> None:
        self._client = client
        self._objects = objects
        self._events: dict[int, Notice] = {}
        #: By number: the count that was written, the uid of the object that it is about, and the Event's own name.
        self._written: dict[int, tuple[int, str, str]] = {}
        self._due = asyncio.Event()
        self.problem = ""

    def show(self, events: Sequence[tuple[int, Notice]]) -> None:
        """Write Events from `telemetry.events.Events.all`."""
        self._events = dict(events)
        self._written = {number: each for number, each in self._written.items() if number in self._events}
        self._due.set()

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            due = [(number, each) for number, each in self._events.items() if self._count(number) != each.count]
            subjects = {subject for _, each in due for subject in (each.regarding, each.related) if subject}
            found = await asyncio.to_thread(references, subjects, self._objects())
            for number, notice in due:
                await self._write(number, notice, found)
                await asyncio.sleep(PAUSE_S)

    def _count(self, number: int) -> int:
        return self._written.get(number, (0, "", ""))[0]

    async def _write(self, number: int, notice: Notice, found: Mapping[Any, Mapping[str, str]]) -> None:
        made = next(each for each in published(number, notice, found) if each.group == _GROUP)
        # A server refuses an Event of this group that is new and has fields of the other one.
        value = {name: each for name, each in json.loads(made.manifest).items() if not name.startswith("deprecated")}
        uid = value["regarding"]["uid"]
        _, was_about, name = self._written.get(number, (0, uid, made.name))
        is_new = number not in self._written or was_about != uid
        if was_about != uid:  # the object was deleted, and made again
            name = f"{made.name}-{uid[:7]}"
        value["metadata"] = {"name": name, "namespace": made.namespace}
        path = f"/apis/{_GROUP}/v1/namespaces/{made.namespace}/events"
        try:
            if is_new:
                try:
                    await self._client.send("POST", path, None, value)
                except ApiError as error:
                    if not error.is_conflict:
                        raise
            else:
                series = {"series": value.get("series")}
                await self._client.send("PATCH", f"{path}/{name}", None, series, MERGE_PATCH)
            self._written[number] = notice.count, uid, name
            self.problem = ""
        except ApiError as error:
            if error.is_not_found:  # the namespace is gone, or the Event has reached its age
                self._written.pop(number, None)
            right = missing_right("create" if is_new else "patch", _GROUP, "events", made.namespace)
            why = right if error.is_forbidden else str(error)
            self._tell(f"Events cannot be written in namespace {made.namespace}: {why}")
        except UNREACHABLE:
            return  # the readers report it

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


async def write_catalogue(client: ApiClient, packed: bytes) -> None:
    """Apply the ConfigMap with the catalogue of filter types, as `catalog_object.catalogue` makes it."""
    for each in shown(packed):
        path = f"/api/v1/namespaces/{each.namespace}/configmaps/{each.name}"
        try:
            await client.apply(path, json.loads(each.manifest))
        except (ApiError, *UNREACHABLE) as error:
            what, why = f"ConfigMap {each.namespace}/{each.name}", str(error) or type(error).__name__
            if isinstance(error, ApiError) and error.is_forbidden:
                why = missing_right("patch", "", "configmaps", each.namespace, each.name)
            log.warning("the catalogue of filter types cannot be written to %s: %s", what, why)
