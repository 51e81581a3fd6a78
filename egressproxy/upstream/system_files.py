"""What the machine itself says of names: hosts(5), resolv.conf(5), and whether there is a way to the IPv6 internet.

Read again when it has changed, looked at every few seconds at the most.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from ipaddress import ip_address

from egressproxy.model.authority import IPAddress
from egressproxy.upstream.dns_query import Server, parse_server

__all__ = ["FILE_CHECK_S", "HostsFile", "Ipv6Route", "ResolvConf"]

FILE_CHECK_S = 5.0  # how often /etc/hosts and resolv.conf are looked at
ROUTE_CHECK_S = 60.0


class _WatchedFile:
    """A small file of the system that is read again when it has changed."""

    __slots__ = ("_checked", "_path", "_stamp")

    def __init__(self, path: str) -> None:
        self._path = path
        self._checked = 0.0
        self._stamp: tuple[int, int] | None = None

    def changed_text(self) -> str | None:
        """The text if it changed since the last call ("" if the file is gone), else None."""
        now = time.monotonic()
        if self._checked and now - self._checked < FILE_CHECK_S:
            return None
        first, self._checked = not self._checked, now
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return None
            with open(self._path, encoding="utf-8", errors="replace") as file:
                text = file.read(1 << 20)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # it says nothing about the file
                self._checked = 0.0 if first else now
                return None
            gone = first or self._stamp is not None
            self._stamp = None
            return "" if gone else None
        self._stamp = stamp
        return text


class HostsFile(_WatchedFile):
    """hosts(5)."""

    __slots__ = ("_names",)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._names: dict[str, list[IPAddress]] = {}

    def read(self) -> dict[str, list[IPAddress]]:
        text = self.changed_text()
        if text is not None:
            self._names = {}
            for line in text.splitlines():
                words = line.partition("#")[0].split()
                try:
                    address = ip_address(words[0]) if words else None
                except ValueError:
                    continue
                if address is not None:
                    for name in words[1:]:
                        self._names.setdefault(name.lower().removesuffix("."), []).append(address)
        return self._names


class ResolvConf(_WatchedFile):
    """resolv.conf(5): the servers and the search list."""

    __slots__ = ("_search", "_servers", "_transport")

    def __init__(self, path: str, transport: str) -> None:
        super().__init__(path)
        self._transport = transport
        self._servers: tuple[Server, ...] = ()
        self._search: tuple[str, ...] = ()

    def read(self) -> tuple[tuple[Server, ...], tuple[str, ...]]:
        text = self.changed_text()
        if text is not None:
            servers: list[Server] = []
            search: tuple[str, ...] = ()
            for line in text.splitlines():
                words = line.split()
                if len(words) > 1 and words[0] == "nameserver":
                    try:
                        servers.append(parse_server(words[1], self._transport))
                    except ValueError:
                        continue  # glibc ignores such a line too
                elif len(words) > 1 and words[0] in ("search", "domain"):
                    search = tuple(word.lower().strip(".") for word in words[1:] if word.strip("."))
            self._servers, self._search = tuple(servers), search
        return self._servers, self._search


class Ipv6Route:
    """Whether this machine has a route to the IPv6 internet; nothing is sent to find out."""

    __slots__ = ("_checked", "_exists")

    def __init__(self) -> None:
        self._checked = 0.0
        self._exists = False

    def exists(self) -> bool:
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
