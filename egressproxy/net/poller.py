"""Poller: the descriptors of one event loop, on its epoll descriptor.

The loop watches that one descriptor. A turn serves what is ready, straight from a table of handlers. A connection
costs a third less than with the loop's own transports: no handle, no context, no task for a step of its life.

At the end of a turn what was sent is flushed, and then what is over is told so and closed; not before, so that the
number of a closed descriptor never comes back while events of its former owner are still in hand. Where thousands end
together (a reload, a drain), it takes several turns, and traffic has those between.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

#: With EPOLLRDHUP an end is seen together with the last bytes, and costs no turn of its own.
READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP
WRITABLE: Final = select.EPOLLOUT
#: Reported whether asked for or not: both directions have ended, or the connection is broken.
ENDED: Final = select.EPOLLHUP | select.EPOLLERR

#: Events in one turn: then what was sent is flushed, and the loop is given back if it is asked for.
MAX_EVENTS: Final = 64
#: How often a turn asks for more before the loop has its own.
ROUNDS: Final = 4
#: Behind fewer events than this, more are unlikely to be there already, and asking costs a system call.
MANY: Final = 4
#: Ends in one turn: each takes 10 to 30 microseconds.
MAX_ENDS: Final = 256


class Handler(Protocol):
    """What watches a descriptor."""

    def ready(self, fd: int, events: int) -> None:
        """Something has happened; it may turn out to be nothing."""

    def failed(self, error: Exception) -> None:
        """`ready` has raised this, and it was reported."""


class Flushes(Protocol):
    """What has something to send at the end of the turn."""

    def flush(self) -> None:
        """Send what is waiting."""


class Poller:
    """Descriptors and their handlers."""

    __slots__ = ("_ending", "_epoll", "_handlers", "_loop", "_modify", "_poll", "_register", "flushing", "is_due")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._register = self._epoll.register
        self._modify = self._epoll.modify
        self._handlers: list[Handler | None] = []  # by descriptor
        self.flushing: list[Flushes] = []
        self._ending: list[Callable[[], object]] = []
        self.is_due = False  # the end of this turn comes by itself
        self._loop = loop
        loop.add_reader(self._epoll, self._serve)

    # --- descriptors ---------------------------------------------------------------------------------------------
    def watch(self, fd: int, events: int, handler: Handler) -> None:
        """Call the handler's `ready` for these events (epoll(7)) of a descriptor from now on. Raises OSError (ENOMEM,
        ENOSPC: fs.epoll.max_user_watches).
        """
        self._register(fd, events)
        handlers = self._handlers
        while len(handlers) <= fd:
            handlers.extend([None] * 64)
        handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        """Watch for these events from now on; 0 for what is reported anyway (ENDED). Raises OSError."""
        self._modify(fd, events)

    def hand_over(self, fd: int, handler: Handler) -> None:
        """This handler is called from now on; what is watched for stays."""
        self._handlers[fd] = handler

    def leave(self, fd: int) -> None:
        """Watch no more for anything. The descriptor stays open."""
        self.forget(fd)
        with suppress(OSError, ValueError):  # it was closed; or the loop was
            self._epoll.unregister(fd)

    def forget(self, fd: int) -> None:
        """The descriptor is about to be closed, which ends what the kernel watches for."""
        if 0 <= fd < len(self._handlers):  # -1: it was closed, and is nobody's
            self._handlers[fd] = None

    async def all_ended(self) -> None:
        """Return when whatever was to end has been told so, and is closed."""
        while self._ending or self.flushing:  # noqa: ASYNC110   what is waited for are turns
            await asyncio.sleep(0)

    # --- turns -----------------------------------------------------------------------------------------------------
    def flush_later(self, one: Flushes) -> None:
        """Call its `flush()` at the end of this turn."""
        if not self.is_due:
            self.fall_due()
        self.flushing.append(one)

    def end_later(self, call: Callable[[], object]) -> None:
        """Call this at the end of this turn, once all is flushed. What closes a descriptor has to be called so."""
        if not self.is_due:
            self.fall_due()
        self._ending.append(call)

    def fall_due(self) -> None:
        """Outside of a turn (a timer, a DNS answer, a task): one call of the loop ends what they all have begun."""
        self.is_due = True
        self._loop.call_soon(self._end_turn)

    def _serve(self) -> None:
        """Serve what is ready, when the loop finds the epoll descriptor readable. Raises SystemExit and
        KeyboardInterrupt of a handler at the end of the turn.
        """
        handlers, poll = self._handlers, self._poll
        for _ in range(ROUNDS):
            events = poll(0, MAX_EVENTS)
            if not events:
                return
            self.is_due = True
            try:
                for fd, event in events:
                    handler = handlers[fd]
                    if handler is not None:
                        try:
                            handler.ready(fd, event)
                        except BaseException as error:
                            self._failed(handler, error)
            finally:
                self._end_turn()
            if len(events) < MANY:
                return

    def serve_one(self, fd: int, event: int, handler: Handler) -> None:
        """A turn for a descriptor that the loop watches itself. Raises what `_serve` does."""
        self.is_due = True
        try:
            handler.ready(fd, event)
        except BaseException as error:
            self._failed(handler, error)
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        try:
            while self.flushing or self._ending:
                flushing, self.flushing = self.flushing, []
                for flow in flushing:
                    try:
                        flow.flush()
                    except BaseException as error:
                        self._report("a connection could not be written to", error)
                if self.flushing:
                    continue
                if not self._ending:
                    break
                ending, self._ending = self._ending[:MAX_ENDS], self._ending[MAX_ENDS:]
                for call in ending:
                    try:
                        call()
                    except BaseException as error:
                        self._report("the end of a connection failed", error)
                if self._ending and len(ending) == MAX_ENDS:
                    break
        finally:
            self.is_due = False
            if self._ending:
                self.fall_due()

    def _failed(self, handler: Handler, error: BaseException) -> None:
        self._report("a socket's handler failed", error)
        try:
            handler.failed(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))
        except BaseException as another:
            self._report("a socket's handler failed twice", another)

    def _report(self, message: str, error: BaseException) -> None:
        """As the loop does with its callbacks: nothing but what is to end the process goes beyond one of them."""
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        self._loop.call_exception_handler({"message": message, "exception": error})
