"""WatchedSocket: a socket, what the poller watches it for, and what the kernel has not taken yet: the base of
transports (net/sockets) and of the ends of a tunnel (protocols/tunnel).
"""

from __future__ import annotations

import os
import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from egressproxy.net.poller import ENDED, READABLE, WRITABLE, Poller

#: The socket itself, without the Python class around it, whose calls take longer.
Socket = socket.SocketType

#: In place of a mask: the descriptor is not on the poller.
NOT_WATCHED: Final = -1
_SHUT_WR: Final[int] = socket.SHUT_WR
READABLE_OR_ENDED: Final = READABLE | ENDED
WRITABLE_OR_ENDED: Final = WRITABLE | ENDED


def break_off(sock: Socket) -> None:
    """Its close will be TCP's RST in place of its FIN, which would make what was sent look whole."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class WatchedSocket(ABC):
    """A socket that does not block. `unsent`: bytes that the kernel did not take, or None; never empty. `watched`: the
    mask that the poller has, or NOT_WATCHED.
    """

    __slots__ = ()  # subclasses have slots for these: asyncio's Transport allows only one base with some

    poller: Poller
    sock: Socket
    unsent: bytearray | None
    watched: int

    @abstractmethod
    def ready(self, fd: int, events: int) -> None:
        """The poller's event; it may turn out to be nothing."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """`ready` has raised this, and it was reported."""

    @abstractmethod
    def wants_input(self) -> bool:
        """Whether bytes of the peer are wanted at this moment."""

    @abstractmethod
    def all_sent(self) -> None:
        """The kernel has taken what was unsent."""

    @abstractmethod
    def send_failed(self, error: OSError) -> None:
        """The peer takes nothing more."""

    @abstractmethod
    def watch_failed(self, error: OSError) -> None:
        """The poller cannot watch: out of memory, or of what fs.epoll.max_user_watches allows."""

    def watch(self) -> None:
        """Have the poller watch for what is wanted at this moment."""
        wanted = READABLE if self.wants_input() else 0
        if self.unsent is not None:
            wanted |= WRITABLE
        if wanted == self.watched:
            return
        try:
            if self.watched == NOT_WATCHED:
                self.poller.watch(self.sock.fileno(), wanted, self)
            else:
                self.poller.change(self.sock.fileno(), wanted)
            self.watched = wanted  # type: ignore[misc]    # a slot of the subclass
        except OSError as error:
            self.watch_failed(error)

    def unwatch(self) -> None:
        """Have the poller forget this socket until `watch` is called again."""
        if self.watched != NOT_WATCHED:
            self.watched = NOT_WATCHED  # type: ignore[misc]
            self.poller.leave(self.sock.fileno())

    def look_away(self, events: int, *, is_at_end: bool) -> None:
        """Something is to be read that is not wanted now; `is_at_end`: the peer's end was read, behind which only a
        reset can follow. ENDED is reported while the socket is watched: so it is not, and the next read finds the end.
        """
        if not events & ENDED:
            self.watch()
            return
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if is_at_end else 0
        if code:
            self.send_failed(OSError(code, os.strerror(code)))
        self.unwatch()

    def send_unsent(self) -> None:
        """The kernel may take something again."""
        unsent = self.unsent
        assert unsent is not None
        try:
            sent = self.sock.send(unsent)
            del unsent[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.send_failed(error)
            return
        if not unsent:
            self.unsent = None  # type: ignore[misc]
            self.all_sent()

    def shut_down(self) -> None:
        """Send the end of our side (TCP's FIN)."""
        try:
            self.sock.shutdown(_SHUT_WR)
        except OSError:  # the peer is gone: the poller will say so
            return
