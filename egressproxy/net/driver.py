"""Driver: runs the coroutine of an exchange without a task.

`start` runs it inside the I/O callback of the request. To wait for I/O it awaits `PAUSE`; the callback of the event
resumes it by a plain `send`. If it awaits an asyncio future (a dial, a DNS answer, a filter's task), the driver resumes
it when the future is done. An exchange that only waits for its sockets schedules nothing on the loop.

Code under a driver must not use `asyncio.current_task()`, nor functions that do (`asyncio.timeout`, `wait_for`): these
run in a separate task, whose future is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

log = logging.getLogger("egressproxy.net")


class Pause:
    """An awaitable that waits for `Driver.resume`. Await it in a loop, `while not done: await PAUSE`, since a call may
    be spurious, and a call while the coroutine runs is dropped.
    """

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield None


PAUSE: Final = Pause()

#: The result of a step that ended the coroutine: cheaper than StopIteration in every exchange.
_ENDED: Final = object()
_NO_STEPS: Final[Iterator[Any]] = iter(())


class Driver:
    """Drives one coroutine at a time; lives as long as a client's connection, and drives its next exchange, too."""

    __slots__ = ("_coroutine", "_error", "_future", "_running", "_steps", "is_busy", "on_idle")

    def __init__(self, on_idle: Callable[[], None] | None = None) -> None:
        self.on_idle = on_idle  # called when a coroutine has ended, and the next may start
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._steps = _NO_STEPS
        self._future: asyncio.Future[Any] | None = None
        self._error: BaseException | None = None
        self._running = False
        self.is_busy = False

    def start(self, life: Coroutine[Any, Any, None]) -> None:
        """Run this coroutine until it waits. Raises RuntimeError while another one runs."""
        if self._coroutine is not None:
            life.close()
            raise RuntimeError("the driver is busy")
        self._coroutine = life
        self._steps = life.__await__()
        self.is_busy = True
        self._step(life)

    def resume(self) -> None:
        """Resume the coroutine after an event."""
        coroutine = self._coroutine
        if coroutine is not None and not self._running and self._future is None:
            self._step(coroutine)

    def throw(self, error: BaseException) -> None:
        """End any wait with an error. An awaited future is cancelled."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        if self._running:
            self._error = self._error or error  # thrown when the coroutine waits next
            return
        future, self._future = self._future, None
        if future is not None:
            future.remove_done_callback(self._future_done)
            future.cancel()
        # From CPython 3.12 on the traceback of an error leads to the frames below the coroutine, too, with their
        # variables: none of them may hold the error, or it would hold itself, and with it everything of its exchange.
        handed_over = [error]
        del error
        self._step(coroutine, handed_over)

    def _step(self, coroutine: Coroutine[Any, Any, None], handed_over: list[BaseException] | None = None) -> None:
        """Run the coroutine until it waits again; throws the error in `handed_over`, if any."""
        self._running = True
        try:
            awaited: Any = next(self._steps, _ENDED) if handed_over is None else coroutine.throw(handed_over.pop())
        except StopIteration:
            awaited = _ENDED
        except BaseException as error:
            self._running = False
            log.error("an exchange ended with an unhandled %s", type(error).__name__, exc_info=error)
            self._end()
            if not isinstance(error, Exception):
                raise
            return
        self._running = False
        if awaited is _ENDED:
            self._end()
            return
        if awaited is not None:
            awaited._asyncio_future_blocking = False
            self._future = awaited
            awaited.add_done_callback(self._future_done)
        if self._error is not None:
            early, self._error = self._error, None
            self.throw(early)

    def _future_done(self, future: asyncio.Future[Any]) -> None:
        coroutine = self._coroutine
        if self._future is not future or coroutine is None:
            return
        self._future = None
        self._step(coroutine)  # Future.__await__ takes the result or raises

    def _end(self) -> None:
        self._coroutine = None
        self._steps = _NO_STEPS
        self.is_busy = False
        self._future = None
        self._error = None
        on_idle = self.on_idle
        if on_idle is not None:
            on_idle()

    def __repr__(self) -> str:
        state = "idle" if self._coroutine is None else "future" if self._future else "paused"
        return f"Driver({state})"


def driven(work: Callable[[Driver], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
    """Run what pauses on a driver of its own, for a task, which cannot pause itself: gives its result or error. To
    cancel the future throws CancelledError into the work where it waits.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    waiting = [result]  # so that the frame of an error does not hold what holds the error: no cycle
    driver = Driver()

    async def run() -> None:
        try:
            made = await work(driver)
        except asyncio.CancelledError:
            waiting.pop().cancel()
        except Exception as error:
            future = waiting.pop()
            if not future.done():
                future.set_exception(error)
            del future
        else:
            future = waiting.pop()
            if not future.done():
                future.set_result(made)

    def look_at(future: asyncio.Future[T]) -> None:
        if future.cancelled():
            driver.throw(asyncio.CancelledError())

    driver.start(run())
    result.add_done_callback(look_at)
    return result
