"""ServiceManager: sockets from systemd, and notifications to systemd (sd_notify).

Environment variables announce both; without the variables nothing is done. Sources: sd_listen_fds(3), sd_notify(3),
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
#: Variables for this process alone, removed from the environment of children.
_OF_SOCKETS: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


def given_descriptors(environment: MutableMapping[str, str] = os.environ) -> list[tuple[int, str]]:
    """The descriptors that systemd opened for this process, with the names of their units. Children inherit neither
    descriptors nor variables.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):  # meant for another process
        return []
    _, many, names, _ = [environment.pop(name, "") for name in _OF_SOCKETS]
    count = int(many) if many.isdecimal() else 0
    named = [*names.split(":"), *[""] * count]
    found = [(FIRST_DESCRIPTOR + at, named[at] or "unknown") for at in range(count)]
    for descriptor, _ in found:
        os.set_inheritable(descriptor, False)
    return found


class ServiceManager:
    """Notifies systemd if $NOTIFY_SOCKET names a socket; otherwise each call does nothing."""

    __slots__ = ("_address", "_socket", "watchdog_s")

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Without an environment nothing is sent."""
        found = environment if environment is not None else {}
        path, for_pid = found.pop("NOTIFY_SOCKET", ""), found.pop("WATCHDOG_PID", "")
        wait_us = found.pop("WATCHDOG_USEC", "")
        #: The interval of watchdog messages in seconds; 0: none.
        self.watchdog_s = 0.0
        self._socket: socket.socket | None = None
        self._address = ""
        if path.startswith(("/", "@")):
            self._address = f"\0{path[1:]}" if path[0] == "@" else path
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            if wait_us.isdecimal() and for_pid in ("", str(os.getpid())):
                self.watchdog_s = int(wait_us) / 2e6

    def ready(self, status: str) -> None:
        """Report the end of the start or of a reload, successful or not."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, within_s: float, status: str) -> None:
        """Report that the process stops within this many seconds."""
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", f"STATUS={status}")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the manager may have stopped listening
                self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
