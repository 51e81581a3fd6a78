"""NamedReflector: keeps many named objects of one kind and namespace, over a few connections.

A watch for each name would need a connection for each. Instead, one watch of the whole namespace reports changes, and
wanted objects are read by name. The watch is metadata-only, so the values of other Secrets stay in the API server.
Without the right to watch the namespace (`resourceNames`), the names are polled.
Source: Kubernetes API concepts, "Metadata-only fetches".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from egressproxy.kubernetes import reflector
from egressproxy.kubernetes.api_client import UNREACHABLE, ApiClient, ApiError
from egressproxy.kubernetes.object_store import ObjectStore, Scope, stored
from egressproxy.kubernetes.reflector import Reflector
from egressproxy.model.published_object import Key

log = logging.getLogger(__name__)

#: The polling interval in seconds, and the number of polls before the watch is tried again.
READ_S: Final = 60.0
READS: Final = 10
#: Of an answer or an event: its metadata alone.
_METADATA: Final = "application/json;as={};v=v1;g=meta.k8s.io,application/json"


class NamedReflector(Reflector):
    """`want` sets the names."""

    def __init__(
        self, client: ApiClient, store: ObjectStore, scope: Scope, version: str, not_before: str,
        on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(client, store, scope, version, not_before, on_change)
        self._names: frozenset[str] = frozenset()
        self._due: set[str] = set()  # to be read
        self._is_due = asyncio.Event()
        self._is_read = asyncio.Event()
        self._refused: dict[str, str] = {}  # why, by name
        self._has_begun = False
        self._may_watch = True
        self._reads = 0

    def want(self, names: Iterable[str]) -> None:
        """Set the names of wanted objects."""
        before, self._names = self._names, frozenset(names)
        for name in before - self._names:
            self._refused.pop(name, None)
            self._store.remove(self.scope, self._key(name), "")
        if fresh := self._names - before:
            self.is_synced = False
            if self._has_begun:
                self._read_again(fresh)

    def _tell(self, problem: str) -> None:
        super()._tell(problem or "; ".join(self._refused.values()))

    def _key(self, name: str) -> Key:
        return self.scope.kind.group, self.scope.kind.kind, self.scope.namespace, name

    def _read_again(self, names: Iterable[str]) -> None:
        if due := self._names.intersection(names):
            self._due |= due
            self._is_read.clear()
            self._is_due.set()

    async def run(self) -> None:
        """Run until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._read_due())

    async def _read_due(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            due, self._due = self._due, set()
            try:
                async with asyncio.TaskGroup() as group:
                    for name in due:
                        group.create_task(self._read(name))
            except* Exception as errors:
                error = errors.exceptions[0]
                if isinstance(error, (ApiError, *UNREACHABLE)):
                    self._tell(f"{self.scope} cannot be read: {error or type(error).__name__}")
                else:
                    log.exception("internal error while %s are read; they are read again", self.scope)
                    self._tell(f"{self.scope} cannot be read: internal error ({type(error).__name__})")
                await asyncio.sleep(reflector.LONGEST_PAUSE_S)
                self._read_again(due)
            else:
                if not self._due:
                    self.is_synced = True
                    self._is_read.set()
                    self._tell("")
                    self._on_change()
                if self._refused:
                    refused = tuple(self._refused)
                    asyncio.get_running_loop().call_later(reflector.FORBIDDEN_PAUSE_S, self._read_again, refused)

    async def _read(self, name: str) -> None:
        """Raises ApiError, and what is in UNREACHABLE."""
        self._refused.pop(name, None)
        async with self._client.named_reads:
            try:
                key, found = stored(await self._client.get(f"{self.path}/{name}"), self.scope, self.version)
            except ApiError as error:
                if error.is_forbidden:
                    self._refused[name] = self._missing_right("get", name)
                elif error.is_not_found and name in self._names:
                    self._store.remove(self.scope, self._key(name), "")
                else:
                    raise
                return
        if key != self._key(name):
            raise ValueError(f"the API server answers with another object than {name}")
        if name in self._names:  # still
            self._store.put(self.scope, key, found)

    async def _list(self) -> None:
        """Read all wanted objects, and set the start of the watch."""
        try:
            accept = _METADATA.format("PartialObjectMetadataList")
            page = await self._client.get(self.path, {"limit": "1"}, accept)
        except ApiError as error:
            if not error.is_forbidden:
                raise
            if self._may_watch:
                log.info(
                    "%s: %d of them are read by name every %g s, since the gateway may not list all of them",
                    self.scope, len(self._names), READ_S,
                )  # fmt: skip
            self._may_watch, self._reads = False, 0
        else:
            self._may_watch = True
            metadata = page.get("metadata")
            if not isinstance(metadata, dict):
                raise ValueError(f"the answer for {self.path} is no list")
            self._begin_at(str(metadata.get("resourceVersion") or ""))
        self._has_begun = True
        self._read_again(self._names)
        if self._due:
            await self._is_read.wait()
        self._can_watch = self.is_synced = True
        self.is_refused = False

    async def _watch(self) -> None:
        if self._may_watch:
            await super()._watch()
            return
        await asyncio.sleep(READ_S)
        self._read_again(self._names)
        self._reads += 1
        self._can_watch = self._reads < READS

    @property
    def _accepts(self) -> str:
        return _METADATA.format("PartialObjectMetadata")

    def _take_object(self, what: str, value: dict[str, Any]) -> None:
        self._read_again((str(value["metadata"]["name"]),))
