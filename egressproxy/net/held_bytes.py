"""Held bytes: how much of bodies is held for one client, or on one of its connections, and which exchanges wait.

What holds bodies counts them here: a filter that gets them whole, works on them in turns or keeps parts of a stream, an
authorization server that is shown them, what is translated, and what is kept to be sent again. An exchange whose client
holds more than its limit waits: nothing more is read for it. Only the oldest one goes on, so that one always can. As
others let bytes go, those that wait follow in the order in which they began.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

#: What one that waits may still send when it goes on: the window of a stream of HTTP/2.
PROMISED: Final = 256 * 1024
#: What is on its way when its exchange has to wait is still taken: so much beyond the limit, and no more.
ON_ITS_WAY: Final = 32 * 1024 * 1024


class HeldBytes:
    """What is held for one client, or on one connection: `total` bytes, by exchanges in the order of their begin."""

    __slots__ = ("__weakref__", "_holds", "_is_waking", "total")

    def __init__(self) -> None:
        self._holds: OrderedDict[Hold, None] = OrderedDict()
        self._is_waking = False
        self.total = 0

    def is_oldest(self, hold: Hold) -> bool:
        return next(iter(self._holds), hold) is hold

    def wake_later(self) -> None:
        """Let those go on that have room. Not at once: that may end them, and so wake others."""
        if not self._is_waking and any(hold.is_waiting for hold in self._holds):
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        promised = 0
        for hold in list(self._holds):
            if hold.is_waiting and hold.has_room(promised):
                promised += PROMISED
                hold.go_on()

    def __repr__(self) -> str:
        return f"HeldBytes({self.total}, {len(self._holds)} exchanges)"


class Hold:
    """What one exchange holds: `size` bytes, of which `of_answer`; the others are of its request. It counts in each of
    `accounts`, each with its limit; the first one has all exchanges of the others.
    """

    __slots__ = ("_accounts", "_resume", "is_of_request", "of_answer", "size", "undo", "waits_since")

    def __init__(self, accounts: tuple[tuple[HeldBytes, int], ...]) -> None:
        self._accounts = accounts
        self._resume: Callable[[], None] | None = None
        self.is_of_request = False  # whether its request waits, not its response
        self.undo: Callable[[], None] | None = None  # what has to be done at its end, where it has waited
        self.size = 0
        self.of_answer = 0
        self.waits_since = 0.0

    def add(self, size: int) -> None:
        """Hold so many bytes more; below 0: so many less, as far as they were not released before."""
        size = max(size, -self.size)
        self.size += size
        for account, _ in self._accounts:
            account.total += size
            account._holds[self] = None  # also where it holds nothing for a moment
        if size < 0 and self._accounts:
            self._accounts[0][0].wake_later()

    def has_room(self, more: int = 0) -> bool:
        """Whether it may hold more, when `more` bytes are promised to others."""
        return all(account.total + more <= limit or account.is_oldest(self) for account, limit in self._accounts)

    @property
    def is_beyond(self) -> bool:
        """Whether so much is held that not even what is on its way may come."""
        return not self.has_room(-ON_ITS_WAY)

    @property
    def is_waiting(self) -> bool:
        return self._resume is not None

    def wait(self, resume: Callable[[], None], now: float) -> bool:
        """Wait for room: `resume` is called then. Returns false where it waits already."""
        if self._resume is not None:
            return False
        self._resume = resume
        self.waits_since = now
        return True

    def go_on(self) -> None:
        """Wait no more."""
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def release_request(self) -> None:
        """Nothing of the request is held any more: an answer has come. The rest of the request waits for nothing."""
        self.add(self.of_answer - self.size)
        if not self.size:
            for account, _ in self._accounts:
                del account._holds[self]
            self.go_on()

    def release(self) -> None:
        """Its exchange is over: it holds nothing, and waits for nothing."""
        self._resume = None
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()
        for account, _ in self._accounts:
            account.total -= self.size
            account._holds.pop(self, None)
        self.size = self.of_answer = 0
        if self._accounts:
            self._accounts[0][0].wake_later()

    def __repr__(self) -> str:
        return f"Hold({self.size}{', waits' if self.is_waiting else ''})"
