"""Choice by host name: exact, then the wildcard with the longest suffix, then every host.

`*.suffix` stands for one label or more in front of the suffix, never for the suffix itself.
Source: Gateway API, HTTPRouteSpec.hostnames and Listener.hostname.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from egressproxy.model.work import Work

T = TypeVar("T")


class HostEntry(NamedTuple, Generic[T]):
    """What `HostMap.building` takes. No `hostnames`: every host. `created` and `name` (namespace/name) break ties."""

    hostnames: Sequence[str]
    payload: T
    created: str = "~"
    name: str = ""


class HostMap(Generic[T]):
    """One value per hostname pattern (lower-case name, `*.suffix`, or "" or "*" for every host), found from the most
    specific to the least. Cost: one dict look-up per label.
    """

    __slots__ = ("_exact", "_suffixes", "exact")

    def __init__(self) -> None:
        self._exact: dict[str, T] = {}  # that of every host under ""
        self._suffixes: dict[str, T] = {}
        self.exact = self._exact.get  # the value of this host (lower case) without wildcards

    @classmethod
    def building(cls, entries: Iterable[HostEntry[T]]) -> Work[HostMap[T]]:
        """Build a map, an entry at a time. Of one hostname the oldest wins, then the first by name, then as given."""
        made = cls()
        for entry in sorted(entries, key=lambda e: (e.created, e.name)):
            for hostname in entry.hostnames or ("",):
                made.setdefault(hostname, entry.payload)
            yield None
        return made

    def setdefault(self, pattern: str, value: T) -> T:
        """Put a value unless the pattern has one. Returns the value of the pattern, as `dict.setdefault`."""
        if pattern.startswith("*."):
            return self._suffixes.setdefault(pattern[2:], value)
        return self._exact.setdefault("" if pattern == "*" else pattern, value)

    def match(self, host: str) -> T | None:
        """The value of the most specific pattern that this host matches (lower case, no trailing dot), or None."""
        found = self._exact.get(host)
        return found if found is not None else next(self.after_exact(host), None)

    def after_exact(self, host: str) -> Iterator[T]:
        """The values of every wildcard that matches, longest suffix first, then that of every host."""
        return self._after_exact(host) if self._suffixes or "" in self._exact else iter(())

    def _after_exact(self, host: str) -> Iterator[T]:
        suffixes = self._suffixes
        if suffixes:
            dot = host.find(".")
            while dot >= 0:
                found = suffixes.get(host[dot + 1 :])
                if found is not None:
                    yield found
                dot = host.find(".", dot + 1)
        if "" in self._exact:
            yield self._exact[""]

    def replaced(self, changes: Mapping[str, T | None]) -> HostMap[T]:
        """Another map, with these values for these patterns; None takes a pattern out."""
        made: HostMap[T] = HostMap()
        made._exact.update(self._exact)
        made._suffixes.update(self._suffixes)
        for pattern, value in changes.items():
            is_wildcard = pattern.startswith("*.")
            of = made._suffixes if is_wildcard else made._exact
            key = pattern[2:] if is_wildcard else "" if pattern == "*" else pattern
            if value is None:
                of.pop(key, None)
            else:
                of[key] = value
        return made

    def get(self, pattern: str) -> T | None:
        """The value of exactly this name or wildcard."""
        return self._suffixes.get(pattern[2:]) if pattern.startswith("*.") else self._exact.get(pattern)

    def values(self) -> Iterator[T]:
        return chain(self._exact.values(), self._suffixes.values())


def patterns_of(host: str) -> Iterator[str]:
    """A host and the wildcards that match it, the longest suffix first."""
    yield host
    while "." in host:
        host = host.partition(".")[2]
        yield f"*.{host}"
