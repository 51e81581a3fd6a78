"""ServiceManager: what systemd gives this process (listening sockets), and what it is told (sd_notify).

Both are a few variables of the environment; without them nothing is done. Sources: sd_listen_fds(3), sd_notify(3),
sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

#: SD_LISTEN_FDS_START.
FIRST_DESCRIPTOR: Final = 3
#: Variables that are for this process alone: its children find none of them.
_OF_SOCKETS: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


def given_descriptors(environment: MutableMapping[str, str] = os.environ) -> list[tuple[int, str]]:
    """The descriptors that systemd has opened for this process, each with the name of its unit. What children inherit
    of them, and of these variables, is nothing.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):  # they are another process's
        return []
    _, many, names, _ = [environment.pop(name, "") for name in _OF_SOCKETS]
    count = int(many) if many.isdecimal() else 0
    named = [*names.split(":"), *[""] * count]
    found = [(FIRST_DESCRIPTOR + at, named[at] or "unknown") for at in range(count)]
    for descriptor, _ in found:
        os.set_inheritable(descriptor, False)
    return found


class ServiceManager:
    """It is told where $NOTIFY_SOCKET names a socket; else each call does nothing."""

    __slots__ = ("_address", "_socket", "watchdog_s")

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Without an environment nobody is told."""
        found = environment if environment is not None else {}
        path, for_pid = found.pop("NOTIFY_SOCKET", ""), found.pop("WATCHDOG_PID", "")
        wait_us = found.pop("WATCHDOG_USEC", "")
        #: How often it wants to hear that the loop turns; 0: never.
        self.watchdog_s = 0.0
        self._socket: socket.socket | None = None
        self._address = ""
        if path.startswith(("/", "@")):
            self._address = f"\0{path[1:]}" if path[0] == "@" else path
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            if wait_us.isdecimal() and for_pid in ("", str(os.getpid())):
                self.watchdog_s = int(wait_us) / 2e6

    def ready(self, status: str) -> None:
        """The start, or a reload, is over, however it went."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, within_s: float, status: str) -> None:
        """The end has begun, and takes so long at most."""
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", f"STATUS={status}")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # who does not listen any more is not told
                self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
