"""Checks: passwords and signatures are checked in two threads, since one check of a password takes as long as hundreds
of requests. Clients take turns, and what waits is bounded: a flood of wrong passwords delays others by a check or two.
Who guesses passwords has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from time import monotonic
from typing import Any, Final, TypeVar

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.model.shares import FairQueue, Tries

T = TypeVar("T")

#: At once; and how many different ones wait, in all and of one client.
THREADS: Final = 2
MAX_WAITING: Final = 256
MAX_OF_CLIENT: Final = 16
#: Different wrong passwords that one client may show in so many seconds.
MAX_GUESSES: Final = 30
GUESSES_S: Final = 60.0


@dataclass(slots=True, eq=False, repr=False)
class _Job:
    """One check, and who waits for it: many connections may show the same credential at once."""

    key: bytes
    check: Callable[[], Any]
    waiters: list[asyncio.Future[Any]] = field(default_factory=list)


class Checks:
    """One per process. The threads begin with the first check."""

    __slots__ = ("_guesses", "_jobs", "_running", "_threads", "_waiting")

    def __init__(self) -> None:
        self._guesses = Tries(MAX_GUESSES, GUESSES_S)
        self._threads: ThreadPoolExecutor | None = None
        self._running = 0
        self._jobs: dict[bytes, _Job] = {}
        self._waiting = FairQueue[_Job](MAX_WAITING, MAX_OF_CLIENT)

    async def run(self, client: str, key: bytes, check: Callable[[], T]) -> T:
        """What `check` returns, for this client (an address, see `origin_of`). Where a check with this key waits or
        runs already, its result is awaited. Raises what it raises, and LimitExceeded (503) where too many wait.
        """
        job = self._jobs.get(key)
        if job is None:
            job = _Job(key, check)
            if not self._waiting.add(client, job):
                message = "too many credentials are being checked"
                raise LimitExceeded(Reason.OVERLOADED, message, status=503, retry_after_s=1)
            self._jobs[key] = job
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job.waiters.append(done)
        self._start()
        return await done

    def note_wrong(self, client: str) -> None:
        self._guesses.add(client, monotonic())

    def refuse_guesses(self, client: str) -> None:
        """Raises LimitExceeded (429) for a client that has shown too many of them."""
        wait_s = self._guesses.wait_s(client, monotonic())
        if wait_s:
            message = "this client has shown too many wrong passwords"
            raise LimitExceeded(Reason.CREDENTIALS_REFUSED, message, retry_after_s=ceil(wait_s))

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def _start(self) -> None:
        while self._running < THREADS:
            job = self._waiting.next()
            if job is None:
                return
            if all(done.done() for done in job.waiters):  # the clients have left
                del self._jobs[job.key]
                continue
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "identity")
            self._running += 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.check)
            running.add_done_callback(partial(self._ended, job))

    def _ended(self, job: _Job, running: asyncio.Future[Any]) -> None:
        self._running -= 1
        del self._jobs[job.key]
        error = None if running.cancelled() else running.exception()
        for done in job.waiters:
            if done.done():
                continue
            if running.cancelled():  # the process ends
                done.cancel()
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(running.result())
        self._start()
