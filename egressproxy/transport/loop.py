"""Loop: asyncio's event loop, whose waiting is the poller's.

What carries traffic is served straight from the poller's table while the loop waits, for as long as nobody asks for
the loop itself; timers, tasks, DNS and the admin server live on asyncio as anywhere. One descriptor is waited on, so an
event costs one system call and no round of the loop. (A loop in C with the poller's descriptor inside its own waits
twice for each event: measured, that costs 4 % of a CONNECT and 8 µs of an event's latency.)
"""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVarTuple

from egressproxy.transport.poller import Poller

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["Loop", "poller"]

Args = TypeVarTuple("Args")

#: How long is waited where there is no timer: a bound that asks for nothing.
LONG_S = 3600.0
_EVENTS = (0, select.EPOLLIN, select.EPOLLOUT, select.EPOLLIN | select.EPOLLOUT)


class Loop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=Loop)`. Its `poller` is for its own thread alone, as everything of asyncio."""

    def __init__(self) -> None:
        self.poller = Poller(self)
        super().__init__(_Selector(self.poller))

    # What is scheduled while handlers are served has its turn behind them; else the poller would go on waiting.
    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        self.poller.is_asked_back = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.poller.is_asked_back = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        self.poller.is_asked_back = True
        super().stop()


def poller() -> Poller:
    """That of the running loop."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, Loop):
        raise TypeError(f"sockets need a running {Loop.__module__}.Loop, and this is a {type(loop).__name__}")
    return loop.poller


class _Selector(selectors.BaseSelector):
    """The descriptors of asyncio itself, as handlers of the poller."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._keys: dict[FileDescriptorLike, selectors.SelectorKey] = {}
        self._found: list[tuple[selectors.SelectorKey, int]] = []

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is registered already")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._poller.watch(fd, _EVENTS[events], self)
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())
        if self._poller.serves(key.fd, self):  # else it was closed before, and its number is another's now
            self._poller.leave(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._poller.wait(LONG_S if timeout is None else max(0.0, timeout))
        found, self._found = self._found, []
        keys = self._keys  # a handler of the same turn may have ended a registration, or made another
        return [(key, events) for key, events in found if keys.get(key.fd) is key]

    def ready(self, fd: int, events: int) -> None:
        self._poller.is_asked_back = True
        key = self._keys[fd]
        seen = (events & ~select.EPOLLOUT and selectors.EVENT_READ) | (
            events & ~select.EPOLLIN and selectors.EVENT_WRITE
        )
        self._found.append((key, seen & key.events))

    def failed(self, error: Exception) -> None:
        """Nothing here is known to fail."""

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
        self._poller.close()
