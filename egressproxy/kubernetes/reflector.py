"""Reflector: keeps one scope of the store as the API server has it, by list and watch.

A list is asked for in pages, of the state as it is now (no `resourceVersion`: a quorum has to agree), and the watch
goes on from there. Bookmarks move its place forward. The list is made again where the server has forgotten the place
(410), or the watch ends with an error or says what cannot be understood. A list that lacks what was there is asked for
twice. Every failure is followed by a pause that grows, with jitter. Source: Kubernetes API concepts, "Efficient
detection of changes".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from egressproxy.kubernetes.access import missing_right
from egressproxy.kubernetes.api_client import JSON, UNREACHABLE, AnswerTooLong, ApiClient, ApiError, api_root
from egressproxy.kubernetes.object_store import ObjectStore, Scope, StoredObject, is_older, stored
from egressproxy.model import deep_json
from egressproxy.model.published_object import Key

log = logging.getLogger(__name__)

#: Objects in a page of a list, which is smaller where they are too large for one answer; and in all pages.
PAGE: Final = 500
MOST_OBJECTS: Final = 500_000
#: How long the server is asked to keep a watch, at random between these, in seconds; and how long it may be silent
#: before another one is begun: bookmarks come every minute, and a connection may be stuck on its way.
WATCH_S: Final = (240.0, 480.0)
SILENT_S: Final = 150.0
#: How much longer a watch may last than the server was asked for, before another one is begun.
LEEWAY_S: Final = 60.0
#: The pauses after failures. What needs a person (a right, a kind) is tried again less often.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
FORBIDDEN_PAUSE_S: Final = 15.0
#: What a server may ask for at most: nothing new is in force meanwhile.
LONGEST_WAIT_S: Final = 30.0
#: Before a list is believed that lacks what was there.
CONFIRM_S: Final = 1.0
_GONE: Final = 410
#: The request itself is no good, and will not be: of a name that no object can have, say.
_REFUSED: Final = frozenset({400, 403, 405, 406, 422})
_ENDED_AT_ONCE: Final = 1.0


class Stale(Exception):
    """The server answers with what is older than what was in force."""


class Reflector:
    """`problem` is why the scope is not as the server has it, a sentence; "" while it is. `on_change` is called after
    every change of the scope or of its state.
    """

    def __init__(
        self, client: ApiClient, store: ObjectStore, scope: Scope, version: str, not_before: str,
        on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        """`version` is that of the kind's group in which it is asked for; `not_before` a resource version that was in
        force before.
        """
        self.scope = scope
        self.problem = ""
        self.is_synced = False  # it was listed once
        self.is_refused = False  # and a person has to do something
        self.restarts = 0
        self.resource_version = not_before  # the resource version up to which the store has it
        self._client = client
        self._store = store
        self.version = version
        self._on_change = on_change
        self._can_watch = False
        self._page = PAGE

    @property
    def path(self) -> str:
        """The collection in the API, without parameters."""
        kind, namespace = self.scope.kind, self.scope.namespace
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{api_root(kind.api_version(self.version))}{scope}/{kind.plural}"

    @property
    def _accepts(self) -> str:
        """The forms of events."""
        return JSON

    def _params(self, **more: str) -> dict[str, str]:
        scope = self.scope
        if scope.name:
            more["fieldSelector"] = f"metadata.name={scope.name}"
        if scope.labels:
            more["labelSelector"] = scope.labels
        return more

    async def run(self) -> None:
        """Run until it is cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            least_s = 0.0
            try:
                if not self._can_watch:
                    await self._list()
                    pause_s = FIRST_PAUSE_S
                began = asyncio.get_running_loop().time()
                await self._watch()
                if asyncio.get_running_loop().time() - began > _ENDED_AT_ONCE:
                    pause_s = FIRST_PAUSE_S
                    continue
            except ApiError as error:
                least_s = self._failed(error)
            except (Stale, ValueError) as error:
                self._tell(f"{self.scope} cannot be read: {error}")
            except UNREACHABLE as error:
                self._tell(f"the API server cannot be reached: {error or type(error).__name__}")
            except Exception as error:
                log.exception("internal error while %s is watched; it is listed again", self.scope)
                self._can_watch = False
                self._tell(f"{self.scope} cannot be read: internal error ({type(error).__name__})")
            self.restarts += 1
            await asyncio.sleep(max(least_s, pause_s * random.uniform(0.5, 1.0)))  # noqa: S311 (no secret)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _failed(self, error: ApiError) -> float:
        """How many seconds to wait at least."""
        if error.status == _GONE:
            self._can_watch = False
            return 0.0
        if error.is_not_found or error.status in _REFUSED:
            self._can_watch = False  # what is held stays, until discovery says that the kind is gone
        self.is_refused = error.status in _REFUSED
        right = self._missing_right("list", self.scope.name) if error.is_forbidden else ""
        self._tell(right or f"{self.scope} cannot be read: {error}")
        return max(min(error.retry_after_s, LONGEST_WAIT_S), FORBIDDEN_PAUSE_S if self.is_refused else 0.0)

    def _missing_right(self, verb: str, name: str) -> str:
        return missing_right(verb, self.scope.kind.group, self.scope.kind.plural, self.scope.namespace, name)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_change()

    async def _list(self) -> None:
        version, found = await self._pages()
        # No watch has said that they are gone: a server may answer before it has read them itself.
        if self._store.lacks(self.scope, found):
            await asyncio.sleep(CONFIRM_S)
            version, found = await self._pages()
        elif self.resource_version and not found and not self.is_synced:
            version, found = await self._pages()
        self._begin_at(version)
        self._store.replace(self.scope, found)
        self._can_watch = self.is_synced = True
        self.is_refused = False
        self._tell("")
        self._on_change()

    def _begin_at(self, version: str) -> None:
        """Watch from this version on. Raises Stale."""
        if is_older(version, self.resource_version):
            raise Stale(
                f"the API server answers with version {version}, and {self.resource_version} was in force already"
            )
        self.resource_version = version

    async def _pages(self) -> tuple[str, dict[Key, StoredObject]]:
        """All pages of a list, and the resource version of the first."""
        found: dict[Key, StoredObject] = {}
        version, continued = "", ""
        kind = f"{self.scope.kind.kind}List"
        for _ in range(MOST_OBJECTS):
            params = self._params(limit=str(self._page))
            if continued:
                params["continue"] = continued
            try:
                page = await self._client.get(self.path, params)
            except AnswerTooLong:
                if self._page == 1:
                    raise
                self._page = max(1, self._page // 4)
                continue
            metadata, items = page.get("metadata"), page.get("items", "")
            is_such = page.get("kind", kind) == kind
            if not is_such or not isinstance(metadata, dict) or not isinstance(items, list | None):
                raise ValueError(f"the answer for {self.path} is no list of kind {kind}")
            version = version or str(metadata.get("resourceVersion") or "")
            for item in items or ():
                key, each = stored(item, self.scope, self.version)
                found[key] = each
            if len(found) > MOST_OBJECTS:
                raise ValueError(f"the API server has more than {MOST_OBJECTS} objects")
            before, continued = continued, metadata.get("continue") or ""
            if not continued:
                return version, found
            if continued == before or not isinstance(continued, str):
                break
        raise ValueError("the API server answers with pages without an end")

    async def _watch(self) -> None:
        """Until the server ends it. Raises ApiError, and what is in UNREACHABLE."""
        longest_s = random.uniform(*WATCH_S)  # noqa: S311 (no secret)
        params = self._params(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self.resource_version,
            timeoutSeconds=str(int(longest_s)),
        )
        has_begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(longest_s + LEEWAY_S) as lasting:
                async for line in self._client.lines(self.path, params, SILENT_S, self._accepts):
                    if not line:
                        self._tell("")
                        continue
                    try:
                        event = deep_json.loads(line)
                        self._take(event["type"], event["object"])
                    except (ValueError, KeyError, TypeError, AttributeError):
                        self._can_watch = False  # what else it has said may be missing
                        raise ValueError(f"an event of {self.scope} cannot be understood") from None
        except aiohttp.SocketTimeoutError:
            if asyncio.get_running_loop().time() - has_begun < SILENT_S:
                raise  # it cannot be connected to
        except TimeoutError:
            if not lasting.expired():
                raise
        self._tell("")

    def _take(self, what: str, value: dict[str, Any]) -> None:
        if what == "ERROR":
            self._can_watch = False  # whatever it is: from here on, the same may follow for ever
            raise ApiError.of_status(value)
        version = str(value["metadata"]["resourceVersion"])
        if is_older(version, self.resource_version):
            return
        if what != "BOOKMARK":
            if what not in ("ADDED", "MODIFIED", "DELETED"):
                raise ValueError("an unknown kind of event")
            self._take_object(what, value)
        self.resource_version = version
        self._tell("")
        self._on_change()

    def _take_object(self, what: str, value: dict[str, Any]) -> None:
        key, each = stored(value, self.scope, self.version)
        if what == "DELETED":
            self._store.remove(self.scope, key, each.resource_version)
        else:
            self._store.put(self.scope, key, each)
