"""Held bytes: the body bytes that are buffered for one client or one of its connections, and the waiting exchanges.

All buffers of bodies are counted here: whole bodies for filters, parts of streams, bodies for external authorization,
translation, and bodies kept for retries. An exchange whose client is over its limit waits: its body is not read
further. Only the oldest exchange goes on, so that one always can. As buffers are released, the waiting exchanges resume
in the order in which they began.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

#: Bytes that a resumed exchange may send at once: the window of an HTTP/2 stream.
PROMISED: Final = 256 * 1024
#: Bytes beyond the limit that are still accepted, since they were in flight when the exchange had to wait.
ON_ITS_WAY: Final = 32 * 1024 * 1024


class HeldBytes:
    """The bytes held for one client, or on one connection: `total`, and the exchanges in the order of their start."""

    __slots__ = ("__weakref__", "_holds", "_is_waking", "total")

    def __init__(self) -> None:
        self._holds: OrderedDict[Hold, None] = OrderedDict()
        self._is_waking = False
        self.total = 0

    def is_oldest(self, hold: Hold) -> bool:
        return next(iter(self._holds), hold) is hold

    def wake_later(self) -> None:
        """Schedule the exchanges that have room to resume. Not at once: resuming may end them, and so wake others."""
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
    """The bytes of one exchange: `size`, of which `of_answer` belong to the response, the others to the request. Each
    of `accounts` counts them, with its own limit; the first account has all exchanges of the others.
    """

    __slots__ = ("_accounts", "_resume", "is_of_request", "of_answer", "size", "undo", "waits_since")

    def __init__(self, accounts: tuple[tuple[HeldBytes, int], ...]) -> None:
        self._accounts = accounts
        self._resume: Callable[[], None] | None = None
        self.is_of_request = False  # whether its request waits, not its response
        self.undo: Callable[[], None] | None = None  # called at the end, if the exchange has waited
        self.size = 0
        self.of_answer = 0
        self.waits_since = 0.0

    def add(self, size: int) -> None:
        """Count `size` more bytes; if negative, fewer, down to 0."""
        size = max(size, -self.size)
        self.size += size
        for account, _ in self._accounts:
            account.total += size
            account._holds[self] = None  # even while it holds no bytes
        if size < 0 and self._accounts:
            self._accounts[0][0].wake_later()

    def has_room(self, more: int = 0) -> bool:
        """Whether the exchange may hold more, if `more` bytes are promised to others."""
        return all(account.total + more <= limit or account.is_oldest(self) for account, limit in self._accounts)

    @property
    def is_beyond(self) -> bool:
        """Whether even bytes in flight exceed the allowance beyond the limit."""
        return not self.has_room(-ON_ITS_WAY)

    @property
    def is_waiting(self) -> bool:
        return self._resume is not None

    def wait(self, resume: Callable[[], None], now: float) -> bool:
        """Wait for room, then call `resume`. Returns false if the exchange waits already."""
        if self._resume is not None:
            return False
        self._resume = resume
        self.waits_since = now
        return True

    def go_on(self) -> None:
        """Stop waiting."""
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def release_request(self) -> None:
        """Release the request's bytes: a response has come. The rest of the request no longer waits."""
        self.add(self.of_answer - self.size)
        if not self.size:
            for account, _ in self._accounts:
                del account._holds[self]
            self.go_on()

    def release(self) -> None:
        """Release all bytes and stop waiting, at the end of the exchange."""
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
