"""InlineFuture: a future that resumes its waiter (on a Driver or a task) where the result is set, not in a later turn
of the loop. Only callbacks of the poller set results, so that no caller is surprised by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InlineFuture(Generic[T]):
    """The part of asyncio.Future that waiting needs."""

    __slots__ = ("_asyncio_future_blocking", "_callbacks", "_error", "_is_cancelled", "_is_done", "_result")

    _result: T

    def __init__(self) -> None:
        self._asyncio_future_blocking = False  # asyncio's protocol between whatever is awaited and who awaits it
        self._callbacks: list[Callable[[Any], object]] = []
        self._error: Exception | None = None
        self._is_done = False
        self._is_cancelled = False

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def result(self) -> T:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            del self  # the error's traceback holds this frame: no cycle

    def exception(self) -> Exception | None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        return self._error

    def set_result(self, result: T) -> None:
        """End it with this result, and resume its waiters at once."""
        self._result = result
        self._settle()

    def set_exception(self, error: Exception) -> None:
        """End it with this error, and resume its waiters at once."""
        self._error = error
        self._settle()

    def cancel(self, msg: object = None) -> bool:
        if self._is_done:
            return False
        self._is_cancelled = True
        self._settle()
        return True

    def add_done_callback(self, callback: Callable[[Any], object], *, context: object = None) -> None:
        """Called where the result is set; not for what is done already (`await` does not ask then)."""
        self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Call this one no more; gives how many there were of it."""
        before = len(self._callbacks)
        self._callbacks = [known for known in self._callbacks if known != callback]
        return before - len(self._callbacks)

    def block(self) -> None:
        """Mark it as a future that somebody is about to wait for, as asyncio's futures do themselves."""
        self._asyncio_future_blocking = True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, which asyncio compares with that of a task."""
        return asyncio.get_running_loop()

    def __await__(self) -> Generator[Any, None, T]:
        return _waiting([self])

    def _settle(self) -> None:
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def _waiting(held: list[InlineFuture[T]]) -> Generator[Any, None, T]:
    """Wait for the one future in this list. Under a Driver it is empty when it raises, since the traceback of the error
    holds this frame; a task asks for the result itself.
    """
    if not held[0].done():
        held[0].block()
        yield held[0]
    return held.pop().result()
