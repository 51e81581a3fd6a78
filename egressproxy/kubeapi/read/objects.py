"""Objects: all objects of the API, with the version of the last change of each, and the latest changes.

Versions count changes over all kinds, and start at the time of day, so they increase across restarts. Comparisons run
on demand, in a thread. The memory is a number for each object, and the last changes. Source: Kubernetes API concepts,
resource versions and efficient detection of changes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple, Protocol

from egressproxy.model.encoding import line
from egressproxy.model.published_object import Key, PublishedObject

#: The most changes, and bytes of changes, that a watcher can be behind.
MAX_CHANGES: Final = 4096
MAX_BYTES: Final = 8 * 1024 * 1024


class ObjectSource(Protocol):
    """A source of objects: the configuration in service, or observed Events.

    Called on the event loop, for a request to the API, or for a watch after `AdminServer.changed`. `kinds` lists its
    kinds, `columns` has their columns. No two sources have an object of the same kind, namespace and name.
    """

    @property
    def version(self) -> object:
        """A value that is equal as long as no object has changed."""

    def objects(self) -> Iterable[PublishedObject]:
        """All current objects: iterated in a thread, later, and more than once."""


class Gone(Exception):
    """The changes since that version are no longer known (410)."""


class ChangeType(Enum):
    """metav1.WatchEvent.type."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class ObjectChange(NamedTuple):
    """`before` is the earlier object of a MODIFIED one."""

    version: int
    type: ChangeType
    entry: PublishedObject
    before: PublishedObject | None


class _Known(NamedTuple):
    fingerprint: int
    version: int


@dataclass(frozen=True, slots=True)
class Part:
    """The objects of one source with their versions."""

    entries: Iterable[PublishedObject] = ()
    known: Mapping[Key, _Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """All objects at one version. Iterated in a thread, since packed objects are unpacked each time."""

    version: int
    parts: tuple[Part, ...] = ()

    def entries(self) -> Iterator[PublishedObject]:
        return chain.from_iterable(part.entries for part in self.parts)

    def version_at(self, key: Key) -> int | None:
        """The version of the object's last change; None for a missing object."""
        return next((part.known[key].version for part in self.parts if key in part.known), None)


class Objects:
    """Belongs to the event loop. A changed source calls `changed`."""

    def __init__(self, sources: Sequence[ObjectSource], start: int | None = None) -> None:
        self._sources = sources
        self._seen: list[object] = []
        first = start if start is not None else int(time.time() * 1000)
        self._view = View(first, (Part(),) * (len(sources) + 1))
        self._changes: deque[ObjectChange] = deque()
        self._bytes = 0
        self._oldest = first  # changes after this one are known
        self._lock = asyncio.Lock()
        self.signal = asyncio.Event()

    def changed(self) -> None:
        """Note a possible change: wake the waiters of `signal`."""
        signal, self.signal = self.signal, asyncio.Event()
        signal.set()

    async def view(self) -> View:
        """The view of all current objects. Changes since the last view are stored for `since`."""
        async with self._lock:
            versions = [source.version for source in self._sources]
            if versions != self._seen:
                is_first = not self._seen
                moved = {
                    index: source.objects()
                    for index, (source, version) in enumerate(zip(self._sources, versions, strict=True))
                    if is_first or version != self._seen[index]
                }
                self._view, changes = await asyncio.to_thread(_advanced, self._view, moved)
                self._seen = versions
                if is_first:
                    self._oldest = self._view.version
                else:
                    self._remember(changes)
            return self._view

    def since(self, version: int) -> list[ObjectChange]:
        """The changes after a version, oldest first. Raises Gone if some are no longer known."""
        if version < self._oldest:
            raise Gone
        newer = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            newer.append(change)
        return newer[::-1]

    def _remember(self, changes: Iterable[ObjectChange]) -> None:
        for change in changes:
            self._changes.append(change)
            self._bytes += _size(change)
            while len(self._changes) > MAX_CHANGES or self._bytes > MAX_BYTES:
                forgotten = self._changes.popleft()
                self._bytes -= _size(forgotten)
                self._oldest = forgotten.version


def _size(change: ObjectChange) -> int:
    entries = (change.entry, change.before) if change.before is not None else (change.entry,)
    return sum(len(entry.manifest) + len(entry.status or b"") for entry in entries)


def _advanced(before: View, moved: Mapping[int, Iterable[PublishedObject]]) -> tuple[View, list[ObjectChange]]:
    """The next view, and changes by version. `moved`: sources that changed; the last part: implied namespaces."""
    version = before.version
    changes: list[ObjectChange] = []
    *parts, implied = before.parts
    for index, entries in moved.items():
        parts[index], found = _part(parts[index], entries, version)
        version += len(found)
        changes += found
    implied, found = _part(implied, tuple(_implied_namespaces(parts)), version)
    return View(version + len(found), (*parts, implied)), [*changes, *found]


def _part(before: Part, entries: Iterable[PublishedObject], version: int) -> tuple[Part, list[ObjectChange]]:
    known: dict[Key, _Known] = {}
    fresh: dict[Key, PublishedObject] = {}
    for entry in entries:
        key = entry.key
        fingerprint = hash((entry.manifest, entry.generation, entry.status))
        old = before.known.get(key)
        if old is None or old.fingerprint != fingerprint:
            fresh[key] = entry
            old = _Known(fingerprint, 0)
        known[key] = old
    gone = before.known.keys() - known.keys()
    touched = gone | (fresh.keys() & before.known.keys())
    was = {key: entry for entry in before.entries if (key := entry.key) in touched} if touched else {}
    changes: list[ObjectChange] = []
    for key in sorted(gone):
        version += 1
        changes.append(ObjectChange(version, ChangeType.DELETED, was[key], None))
    for key, entry in fresh.items():
        version += 1
        known[key] = known[key]._replace(version=version)
        kind = ChangeType.MODIFIED if key in was else ChangeType.ADDED
        changes.append(ObjectChange(version, kind, entry, was.get(key)))
    return Part(entries, known), changes


def _implied_namespaces(parts: Iterable[Part]) -> Iterator[PublishedObject]:
    keys = [key for part in parts for key in part.known]
    names = {"default", *(namespace for _, _, namespace, _ in keys if namespace)}
    for name in sorted(names - {name for group, kind, _, name in keys if (group, kind) == ("", "Namespace")}):
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        yield PublishedObject("", "Namespace", "", name, line(manifest))
