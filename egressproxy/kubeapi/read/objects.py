"""Objects: everything that the API shows, with the version at which each object changed last, and the latest changes.

Versions count changes, over all kinds, and go on over a restart: they start at the time of day. Nothing is compared
before somebody asks, and what is compared is compared in a thread. Kept are a number for each object, and the last
changes. Source: Kubernetes API concepts, resource versions and efficient detection of changes.
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

#: What a watcher can be behind, at most: changes, and bytes of what changed.
MAX_CHANGES: Final = 4096
MAX_BYTES: Final = 8 * 1024 * 1024


class ObjectSource(Protocol):
    """Where objects come from: the configuration in service, or what was observed (Events).

    Asked on the event loop, when somebody asks the API, or watches it and `AdminServer.changed` was called. What kinds
    it has stands in `kinds`, what their columns are in `columns`. No two sources have an object of the same kind,
    namespace and name.
    """

    @property
    def version(self) -> object:
        """Equal to what it was for as long as nothing has changed."""

    def objects(self) -> Iterable[PublishedObject]:
        """All of them as they are now: iterated in a thread, later, and more than once."""


class Gone(Exception):
    """The changes since that version are forgotten (410)."""


class ChangeType(Enum):
    """metav1.WatchEvent.type."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class ObjectChange(NamedTuple):
    """`before` is what a MODIFIED object was."""

    version: int
    type: ChangeType
    entry: PublishedObject
    before: PublishedObject | None


class _Known(NamedTuple):
    fingerprint: int
    version: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one source has, and the version of each of its objects."""

    entries: Iterable[PublishedObject] = ()
    known: Mapping[Key, _Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """All objects at one version. Iterated in a thread: what is packed is unpacked anew each time."""

    version: int
    parts: tuple[Part, ...] = ()

    def entries(self) -> Iterator[PublishedObject]:
        return chain.from_iterable(part.entries for part in self.parts)

    def version_at(self, key: Key) -> int | None:
        """That at which the object changed last; None where there is no such object."""
        return next((part.known[key].version for part in self.parts if key in part.known), None)


class Objects:
    """Belongs to the event loop. What changes a source calls `changed`."""

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
        """Something may have changed: those that wait for `signal` look again."""
        signal, self.signal = self.signal, asyncio.Event()
        signal.set()

    async def view(self) -> View:
        """All objects as they are now. What changed since the last view is remembered for `since`."""
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
        """The changes after a version, oldest first. Raises Gone where they are not all remembered."""
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
