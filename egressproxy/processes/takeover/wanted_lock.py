"""WantedLock: a lock whose holder can wait for contention."""

from __future__ import annotations

import asyncio
from typing import Literal


class WantedLock(asyncio.Lock):
    """`wait_wanted` is for the holder."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = 0
        self._wanted = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        self._waiting += 1
        self._wanted.set()
        try:
            return await super().acquire()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._wanted.clear()

    async def wait_wanted(self) -> None:
        """Return when another task waits for the lock."""
        await self._wanted.wait()
