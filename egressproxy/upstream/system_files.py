"""The machine's own resolver settings: hosts(5), resolv.conf(5), and the route to the IPv6 internet. The files are
checked every few seconds at most, and read again after a change.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Generic, TypeVar

from egressproxy.model.authority import IPAddress
from egressproxy.upstream.dns_server import Server, parse_server

FILE_CHECK_S = 5.0  # the interval of checks of /etc/hosts and resolv.conf
ROUTE_CHECK_S = 60.0
#: Source: resolv.conf(5).
DEFAULT_NDOTS, MAX_NDOTS = 1, 15

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """A small system file, read again after a change. `parse` converts its text."""

    __slots__ = ("_checked", "_parse", "_path", "_stamp", "_value")

    def __init__(self, path: str, parse: Callable[[str], T]) -> None:
        self._path = path
        self._parse = parse
        self._value = parse("")
        self._checked = 0.0
        self._stamp: tuple[int, int] | None = None

    def read(self) -> T:
        """The parsed file; a missing file counts as empty."""
        now = time.monotonic()
        if self._checked and now - self._checked < FILE_CHECK_S:
            return self._value
        is_first, self._checked = not self._checked, now
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self._value = self._parse(file.read(1 << 20))
                self._stamp = stamp
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # no fault of the file
                self._value, self._stamp = self._parse(""), None
            elif is_first:
                self._checked = 0.0
        return self._value


def parse_hosts(text: str) -> dict[str, list[IPAddress]]:
    """The addresses by name, in lower case without trailing dot. Source: hosts(5)."""
    names: dict[str, list[IPAddress]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        try:
            address = ip_address(words[0]) if words else None
        except ValueError:
            continue
        if address is not None:
            for name in words[1:]:
                names.setdefault(name.lower().removesuffix("."), []).append(address)
    return names


@dataclass(frozen=True, slots=True)
class SystemResolver:
    """The settings of resolv.conf(5): the servers, the search list, and `ndots`."""

    servers: tuple[Server, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = DEFAULT_NDOTS

    def names(self, host: str) -> list[str]:
        """The absolute names to ask for, in turn, until one has addresses.

        A name with fewer dots than `ndots` is tried with each domain of the search list first, then as is; any other
        name is tried only as is, like in musl. (glibc falls back to the search list for a missing name, so that a
        public name could resolve to a host of the search list.)
        """
        completed = [f"{host}.{domain}" for domain in self.search] if host.count(".") < self.ndots else []
        return [*completed, host]


def parse_resolv_conf(text: str, transport: str) -> SystemResolver:
    """Parse resolv.conf(5); the servers are queried over `transport`. Lines that glibc ignores are ignored."""
    servers: list[Server] = []
    search: tuple[str, ...] = ()
    ndots = DEFAULT_NDOTS
    for line in text.splitlines():
        key, *values = line.split() or [""]
        if key == "nameserver" and values:
            with suppress(ValueError):
                servers.append(parse_server(values[0], transport))
        elif key in ("search", "domain") and values:
            search = tuple(value.lower().strip(".") for value in values if value.strip("."))
        elif key == "options":
            for value in values:
                name, _, number = value.partition(":")
                if name == "ndots" and number.isascii() and number.isdigit():
                    ndots = min(int(number[:9]), MAX_NDOTS)
    return SystemResolver(tuple(servers), search, ndots)


class Ipv6Route:
    """A check for a route to the IPv6 internet, which sends no packet."""

    __slots__ = ("_checked", "_exists")

    def __init__(self) -> None:
        self._checked = 0.0
        self._exists = False

    def exists(self) -> bool:
        """Whether there is a route to 2000::/3; the result is at most a minute old."""
        now = time.monotonic()
        if not self._checked or now - self._checked > ROUTE_CHECK_S:
            self._checked = now
            try:
                with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                    probe.connect(("2000::1", 53))
                self._exists = True
            except OSError:
                self._exists = False
        return self._exists
