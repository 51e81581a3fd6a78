"""A kernel that is a fake: sockets and a poller which say of themselves what epoll(7), recv(2) and send(2) would.

For tests that put every event in every order, which real sockets would not do.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable
from typing import Any

from egressproxy.net.poller import ENDED, WRITABLE
from egressproxy.net.watched_socket import NOT_WATCHED


class FakePoller:
    """The poller of some sockets. `is_full`: it can watch nothing more."""

    def __init__(self) -> None:
        self.sockets: list[FakeSocket] = []
        self.ending: list[Callable[[], object]] = []
        self.is_full = False

    def watch(self, fd: int, events: int, handler: Any) -> None:
        sock = self.sockets[fd]
        assert sock.mask == NOT_WATCHED
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        sock.mask, sock.handler = events, handler

    def change(self, fd: int, events: int) -> None:
        assert self.sockets[fd].mask != NOT_WATCHED
        if self.is_full:
            raise OSError(errno.ENOMEM, "no memory")
        self.sockets[fd].mask = events

    def hand_over(self, fd: int, handler: Any) -> None:
        self.sockets[fd].handler = handler

    def leave(self, fd: int) -> None:
        self.sockets[fd].mask, self.sockets[fd].handler = NOT_WATCHED, None

    def forget(self, fd: int) -> None:
        self.sockets[fd].handler = None

    def end_later(self, call: Callable[[], object]) -> None:
        self.ending.append(call)

    def turn(self) -> None:
        """What is ready is served, then what is over ends."""
        for sock in self.sockets:
            events = sock.events()
            if events and sock.handler is not None:
                sock.handler.ready(sock.fd, events)
        ending, self.ending = self.ending, []
        for call in ending:
            call()


class FakeSocket:
    """One socket. `room`: how many bytes it takes; `has_fin`, `is_reset`: what the peer has done."""

    def __init__(self, poller: FakePoller) -> None:
        self.fd = len(poller.sockets)
        poller.sockets.append(self)
        self.incoming = b""
        self.room = 100
        self.sent = b""
        self.has_fin = self.is_reset = self.is_shut = self.is_closed = False
        self.mask = NOT_WATCHED
        self.handler: Any = None

    def events(self) -> int:
        """What epoll_wait(2) reports of it now."""
        events = select.EPOLLIN if self.incoming or self.has_fin or self.is_reset else 0
        events |= select.EPOLLRDHUP if self.has_fin else 0
        events |= WRITABLE if self.room else 0
        if self.is_reset or (self.has_fin and self.is_shut):
            events |= ENDED
        return 0 if self.mask == NOT_WATCHED else events & (self.mask | ENDED)

    def fileno(self) -> int:
        assert not self.is_closed
        return self.fd

    def recv(self, size: int) -> bytes:
        assert not self.is_closed
        if self.is_reset:
            raise ConnectionResetError
        if not self.incoming and not self.has_fin:
            raise BlockingIOError
        data, self.incoming = self.incoming[:size], self.incoming[size:]
        return data

    def recv_into(self, buffer: bytearray) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any) -> int:
        assert not self.is_closed
        if self.is_reset:
            raise ConnectionResetError
        assert not self.is_shut
        if not self.room:
            raise BlockingIOError
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def sendmsg(self, pieces: list[Any]) -> int:
        return self.send(b"".join(pieces))

    def shutdown(self, how: int) -> None:
        assert not self.is_closed
        self.is_shut = True

    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> int:
        return errno.ECONNRESET if self.is_reset else 0

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True
