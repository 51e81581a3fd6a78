"""Choice by host name: exact, then the wildcard with the longest suffix, then every host.

`*.suffix` stands for one label or more in front of the suffix, never for the suffix itself.
Source: Gateway API, HTTPRouteSpec.hostnames and Listener.hostname.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from egressproxy.model.steps import Cooperative, finished

__all__ = ["HostEntry", "HostMap", "HostTable"]

T = TypeVar("T")


class HostMap(Generic[T]):
    """One value per hostname pattern, found from the most specific to the least. Cost: one dict look-up per label."""

    __slots__ = ("_anywhere", "_exact", "_suffixes")

    def __init__(self) -> None:
        self._exact: dict[str, T] = {}
        self._suffixes: dict[str, T] = {}
        self._anywhere: T | None = None

    def put(self, pattern: str, value: T) -> None:
        """`pattern` is a lower-case name, `*.suffix`, or "" for every host. The first value of a pattern stays."""
        if not pattern or pattern == "*":
            if self._anywhere is None:
                self._anywhere = value
        elif pattern.startswith("*."):
            self._suffixes.setdefault(pattern[2:], value)
        else:
            self._exact.setdefault(pattern, value)

    def exactly(self, pattern: str) -> T | None:
        """The value that was put under the same pattern."""
        if not pattern or pattern == "*":
            return self._anywhere
        return self._suffixes.get(pattern[2:]) if pattern.startswith("*.") else self._exact.get(pattern)

    def first(self, host: str) -> T | None:
        """The value of the most specific pattern that this (lower-case) host matches."""
        found = self._exact.get(host)
        if found is not None:
            return found
        if self._suffixes:
            for found in self._wildcards(host):
                return found
        return self._anywhere

    def after_exact(self, host: str) -> Iterator[T]:
        """The values of every wildcard that matches, longest suffix first, then that of every host."""
        if self._suffixes:
            yield from self._wildcards(host)
        if self._anywhere is not None:
            yield self._anywhere

    def exact(self, host: str) -> T | None:
        """The value of this host (lower case) without wildcards."""
        return self._exact.get(host)

    def values(self) -> Iterator[T]:
        """Every value: exact hosts, then wildcards, then that of every host."""
        yield from self._exact.values()
        yield from self._suffixes.values()
        if self._anywhere is not None:
            yield self._anywhere

    def _wildcards(self, host: str) -> Iterator[T]:
        suffixes = self._suffixes
        dot = host.find(".")
        while dot >= 0:
            found = suffixes.get(host[dot + 1 :])
            if found is not None:
                yield found
            dot = host.find(".", dot + 1)


@dataclass(frozen=True, slots=True)
class HostEntry(Generic[T]):
    """What a HostTable is built from. No `hostnames`: every host. `created` and `name` (namespace/name) break ties."""

    hostnames: Sequence[str]
    payload: T
    created: str = "~"
    name: str = ""


class HostTable(Generic[T]):
    """Host to payload: TLSRoutes, TCPRoutes, listeners that share a port."""

    __slots__ = ("_map",)

    def __init__(self, entries: HostMap[T]) -> None:
        self._map = entries

    @classmethod
    def build(cls, entries: Iterable[HostEntry[T]]) -> HostTable[T]:
        """Of several entries with the same hostname the oldest wins, then the first by name, then the first given."""
        return finished(cls.building(entries))

    @classmethod
    def building(cls, entries: Iterable[HostEntry[T]]) -> Cooperative[HostTable[T]]:
        """`build`, an entry at a time."""
        chosen: HostMap[T] = HostMap()
        for entry in sorted(entries, key=lambda e: (e.created, e.name)):
            for hostname in entry.hostnames or ("",):
                chosen.put(hostname, entry.payload)
            yield None
        return cls(chosen)

    def match(self, host: str) -> T | None:
        """The payload for this host (lower case, no trailing dot, no port), or None."""
        return self._map.first(host)
