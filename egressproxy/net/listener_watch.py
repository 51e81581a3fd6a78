"""ListenerWatch: a listening socket that several processes watch, of which a connection wakes one. EPOLLEXCLUSIVE does
that only on the very descriptor for which a process waits (epoll(7)), not on the nested one of a poller: so the loop
watches the socket, and its entry is replaced by an exclusive one.
"""

from __future__ import annotations

import asyncio
import os
import select
from typing import Protocol

from egressproxy.net.poller import Handler, Poller

#: How long, in seconds, a connection waits that another process was woken for and has not taken. A look takes 20 us.
LOOK_S = 0.5


class ListenerHandler(Handler, Protocol):
    """What accepts connections."""

    def unwatched(self, error: OSError) -> None:
        """The socket cannot be watched any more (ENOMEM, ENOSPC), and nothing is accepted until it is again."""


class ListenerWatch:
    """Calls the handler's `ready` when a connection waits, in a turn of the poller. Raises OSError. A loop that does
    not tell its descriptor wakes every idle process for each, and one of them gets it.
    """

    __slots__ = ("_fd", "_handler", "_loop", "_next_look")

    def __init__(self, poller: Poller, fd: int, handler: ListenerHandler) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._handler = handler
        self._loop.add_reader(fd, poller.serve_one, fd, select.EPOLLIN, handler)
        # uvloop tells the kernel just before it waits: after the first of the two, and before the second.
        self._loop.call_soon(self._loop.call_soon, self.let_others_first)
        self._next_look = self._loop.call_later(LOOK_S, self._look)

    def let_others_first(self) -> None:
        """Join the end of the queue of processes: the next connection wakes another one, if one is idle."""
        if self._fd < 0:
            return
        try:
            epoll = select.epoll.fromfd(os.dup(_descriptor_of(self._loop)))  # a copy, since the object closes its own
        except (OSError, AttributeError):  # no descriptor is left; or another loop, which wakes all processes
            return
        with epoll:
            try:
                epoll.unregister(self._fd)
            except OSError:  # the loop has not told the kernel yet
                return
            try:
                epoll.register(self._fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            except OSError as error:
                self.close()
                self._handler.unwatched(error)

    def _look(self) -> None:
        """An entry that is made anew is ready at once where a connection waits."""
        self._next_look = self._loop.call_later(LOOK_S, self._look)
        self.let_others_first()

    def close(self) -> None:
        """Watch no more. To be called before the socket is closed; a second call does nothing."""
        if self._fd >= 0:
            self._next_look.cancel()
            self._loop.remove_reader(self._fd)
            self._fd = -1


def _descriptor_of(loop: asyncio.AbstractEventLoop) -> int:
    """The epoll descriptor on which the loop waits. AttributeError where it does not tell: neither loop promises to."""
    if hasattr(loop, "_get_backend_id"):  # uvloop
        return int(loop._get_backend_id())
    return int(loop._selector.fileno())  # type: ignore[attr-defined]
