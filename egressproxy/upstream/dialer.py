"""Dialer: opens TCP connections to addresses that were already judged. It never sees a name.

Several addresses are tried as RFC 8305 says: one after the other, the next after 250 ms or as soon as one fails, all
within one time limit; the first that answers wins, and the others are closed. What is given back is a plain future, so
that a coroutine that is no task may await it. Cancelling it closes all.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from egressproxy.errors import Reason, Retry, UpstreamFault
from egressproxy.model.authority import IPAddress

__all__ = ["STAGGER_S", "Dialer", "abandon"]

#: RFC 8305 section 5, the recommended Connection Attempt Delay.
STAGGER_S = 0.25

P = TypeVar("P", bound=asyncio.BaseProtocol)
_Target = tuple[IPAddress, int]
_Made = asyncio.Future[tuple[asyncio.Transport, P, _Target]]


class Dialer:
    """Opens connections; holds no state but how it staggers attempts."""

    __slots__ = ("_stagger_s",)

    def __init__(self, stagger_s: float = STAGGER_S) -> None:
        self._stagger_s = stagger_s

    def dial(self, endpoints: Sequence[_Target], protocol_factory: Callable[[], P], *, timeout_s: float) -> _Made[P]:
        """Connect to the first of these (address, port) that answers, in this order; 0 seconds is no limit.

        The future raises UpstreamFault: CONNECT_REFUSED or CONNECT_FAILED (503), CONNECT_TIMEOUT (504), all safe to
        retry. Its messages hold no address, `detail` does. Whoever stops waiting for it calls `abandon`.
        """
        loop = asyncio.get_running_loop()
        made: _Made[P] = loop.create_future()
        _Race(loop, endpoints, protocol_factory, made, self._stagger_s, timeout_s).start()
        return made

    def __repr__(self) -> str:
        return f"Dialer(stagger {self._stagger_s} s)"


def abandon(dial: _Made[P]) -> None:
    """Whoever waited for this dial has gone: cancel it, or abort the connection that has just been made."""
    if not dial.cancel() and not dial.cancelled() and dial.exception() is None:
        dial.result()[0].abort()


class _Race(Generic[P]):
    """One dial: attempts under way, those that failed, and the timers."""

    __slots__ = (
        "_deadline", "_factory", "_failures", "_loop", "_made", "_next", "_stagger", "_stagger_s", "_targets",
        "_timeout_s", "_trying",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        targets: Sequence[_Target],
        factory: Callable[[], P],
        made: _Made[P],
        stagger_s: float,
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._targets = targets
        self._factory = factory
        self._made = made
        self._stagger_s = stagger_s
        self._timeout_s = timeout_s
        self._next = 0
        self._trying: dict[asyncio.Task[tuple[asyncio.Transport, P]], _Target] = {}
        self._failures: list[tuple[_Target, BaseException]] = []
        self._stagger: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._made.add_done_callback(self._finish)  # also when the caller cancels it
        if self._timeout_s > 0:
            self._deadline = self._loop.call_later(self._timeout_s, self._too_late)
        self._try_next()

    def _try_next(self) -> None:
        if self._stagger is not None:
            self._stagger.cancel()
            self._stagger = None
        if self._made.done():
            return
        if self._next < len(self._targets):
            target = self._targets[self._next]
            self._next += 1
            # The text of an address, which the loop does not look up; never a name.
            opening = self._loop.create_connection(self._factory, str(target[0]), target[1])
            task = self._loop.create_task(opening)
            self._trying[task] = target
            task.add_done_callback(self._ended)
            if self._next < len(self._targets):
                self._stagger = self._loop.call_later(self._stagger_s, self._try_next)
        elif not self._trying:
            self._made.set_exception(_fault(self._failures))

    def _ended(self, task: asyncio.Task[tuple[asyncio.Transport, P]]) -> None:
        target = self._trying.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failures.append((target, error))
            self._try_next()
            return
        transport, protocol = task.result()
        if self._made.done():
            transport.abort()
            return
        self._made.set_result((transport, protocol, target))

    def _too_late(self) -> None:
        self._deadline = None
        if not self._made.done():
            silent = [(target, TimeoutError("no answer in time")) for target in self._trying.values()]
            self._made.set_exception(_fault([*self._failures, *silent]))

    def _finish(self, _made: _Made[P]) -> None:
        for timer in (self._stagger, self._deadline):
            if timer is not None:
                timer.cancel()
        for task in self._trying:
            task.cancel()


def _fault(failures: Sequence[tuple[_Target, BaseException]]) -> UpstreamFault:
    """What to tell of several failures: too late before refused before anything else."""
    detail = "; ".join(f"{address} port {port}: {error}" for (address, port), error in failures) or "no address"
    codes = {error.errno for _, error in failures if isinstance(error, OSError)}
    if errno.ETIMEDOUT in codes or any(isinstance(error, TimeoutError) for _, error in failures):
        message = "the upstream did not answer a connection in time"
        return UpstreamFault(Reason.CONNECT_TIMEOUT, message, status=504, retry=Retry.SAFE, detail=detail)
    if errno.ECONNREFUSED in codes:
        message = "the upstream refused the connection"
        return UpstreamFault(Reason.CONNECT_REFUSED, message, status=503, retry=Retry.SAFE, detail=detail)
    message = "no connection to the upstream could be made"
    return UpstreamFault(Reason.CONNECT_FAILED, message, status=503, retry=Retry.SAFE, detail=detail)
