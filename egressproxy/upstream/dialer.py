"""Dialer: opens TCP connections to addresses that were already judged. It never sees a name.

Several addresses are tried as RFC 8305 says: one after the other, the next after 250 ms or as soon as one fails, all
within one time limit; the first that answers wins, and the others are closed. Everything runs in callbacks, and what is
given back is a plain future, so that a coroutine that is no task may await it. Cancelling that future closes all.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from egressproxy.errors import Reason, Retry, UpstreamFault
from egressproxy.model.authority import IPAddress

__all__ = ["STAGGER_S", "Dialer", "abandon"]

#: RFC 8305 section 5, the recommended Connection Attempt Delay.
STAGGER_S = 0.25
#: A peer that vanished is found after 60 + 4 × 15 s, also where no exchange is in progress.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 60, 15, 4

P = TypeVar("P", bound=asyncio.BaseProtocol)
_Target = tuple[IPAddress, int]


class Dialer:
    """Opens connections; holds no state but how it staggers attempts."""

    __slots__ = ("_stagger_s",)

    def __init__(self, stagger_s: float = STAGGER_S) -> None:
        self._stagger_s = stagger_s

    def dial(
        self, endpoints: Sequence[_Target], protocol_factory: Callable[[], P], *, timeout_s: float
    ) -> asyncio.Future[tuple[asyncio.Transport, P, _Target]]:
        """Connect to the first of these (address, port) that answers, in this order; 0 seconds is no limit.

        The future raises UpstreamFault: CONNECT_REFUSED or CONNECT_FAILED (503), CONNECT_TIMEOUT (504), all safe to
        retry. Its messages hold no address, `detail` does.
        """
        loop = asyncio.get_running_loop()
        made: asyncio.Future[tuple[asyncio.Transport, P, _Target]] = loop.create_future()
        opening = self.dial_socket(endpoints, timeout_s=timeout_s)

        def opened(done: asyncio.Future[tuple[socket.socket, _Target]]) -> None:
            if done.cancelled():
                made.cancel()
                return
            error = done.exception()
            if error is not None:
                if not made.done():
                    made.set_exception(error)
                return
            sock, target = done.result()
            if made.done():
                sock.close()
                return
            task = loop.create_task(_join(loop, sock, target, protocol_factory, made))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        tasks: set[asyncio.Task[None]] = set()
        opening.add_done_callback(opened)
        made.add_done_callback(lambda done: opening.cancel() if done.cancelled() else None)
        return made

    def dial_socket(
        self, endpoints: Sequence[_Target], *, timeout_s: float
    ) -> asyncio.Future[tuple[socket.socket, _Target]]:
        """As `dial`, but gives the connected, non-blocking socket itself, for whoever relays without transports."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[tuple[socket.socket, _Target]] = loop.create_future()
        _Race(loop, endpoints, result, self._stagger_s, timeout_s).start()
        return result

    def __repr__(self) -> str:
        return f"Dialer(stagger {self._stagger_s} s)"


def abandon(dial: asyncio.Future[tuple[asyncio.Transport, P, _Target]]) -> None:
    """Whoever waited for this dial has gone: cancel it, or abort the connection that has just been made."""
    if not dial.cancel() and not dial.cancelled() and dial.exception() is None:
        dial.result()[0].abort()


async def _join(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    target: _Target,
    protocol_factory: Callable[[], P],
    made: asyncio.Future[tuple[asyncio.Transport, P, _Target]],
) -> None:
    """Put a connected socket under a transport."""
    try:
        transport, protocol = await loop.create_connection(protocol_factory, sock=sock)
    except Exception as error:
        sock.close()
        if not made.done():
            made.set_exception(_fault([(target, error)]))
        return
    if made.done():
        transport.abort()
    else:
        made.set_result((transport, protocol, target))


class _Race:
    """One dial: attempts under way, those that failed, and the timers."""

    __slots__ = (
        "_deadline", "_failures", "_loop", "_next", "_result", "_stagger", "_stagger_s", "_targets", "_timeout_s",
        "_trying",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        targets: Sequence[_Target],
        result: asyncio.Future[tuple[socket.socket, _Target]],
        stagger_s: float,
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._targets = targets
        self._result = result
        self._stagger_s = stagger_s
        self._timeout_s = timeout_s
        self._next = 0
        self._trying: dict[socket.socket, _Target] = {}
        self._failures: list[tuple[_Target, BaseException]] = []
        self._stagger: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._result.add_done_callback(self._finish)  # also when the caller cancels it
        if self._timeout_s > 0:
            self._deadline = self._loop.call_later(self._timeout_s, self._too_late)
        self._try_next()

    def _try_next(self) -> None:
        """Start the next attempt that does not fail at once."""
        self._stop_stagger()
        while self._next < len(self._targets) and not self._result.done():
            target = self._targets[self._next]
            self._next += 1
            if self._begin(target):
                if self._next < len(self._targets) and not self._result.done():
                    self._stagger = self._loop.call_later(self._stagger_s, self._try_next)
                return
        if not self._trying and not self._result.done():
            self._result.set_exception(_fault(self._failures))

    def _begin(self, target: _Target) -> bool:
        """Whether a connection is now being opened (or is open)."""
        address, port = target
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            _tune(sock)
            code = sock.connect_ex((str(address), port))
        except (OSError, OverflowError) as error:
            if sock is not None:
                sock.close()
            self._failures.append((target, error))
            return False
        if code == 0:
            self._result.set_result((sock, target))
            return True
        if code != errno.EINPROGRESS:
            sock.close()
            self._failures.append((target, OSError(code, os.strerror(code))))
            return False
        self._trying[sock] = target
        self._loop.add_writer(sock.fileno(), self._answered, sock)
        return True

    def _answered(self, sock: socket.socket) -> None:
        self._loop.remove_writer(sock.fileno())
        target = self._trying.pop(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and not self._result.done():
            self._result.set_result((sock, target))
            return
        sock.close()
        self._failures.append((target, OSError(code, os.strerror(code))))
        if not self._result.done():
            self._try_next()

    def _too_late(self) -> None:
        self._deadline = None
        if not self._result.done():
            last = self._targets[self._next - 1]
            self._result.set_exception(_fault([*self._failures, (last, TimeoutError("the time limit is reached"))]))

    def _finish(self, result: asyncio.Future[tuple[socket.socket, _Target]]) -> None:
        self._stop_stagger()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for sock in self._trying:
            self._loop.remove_writer(sock.fileno())
            sock.close()
        self._trying.clear()

    def _stop_stagger(self) -> None:
        if self._stagger is not None:
            self._stagger.cancel()
            self._stagger = None


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


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
