"""Refresher: keeps a credential that has to be fetched fresh, away from the requests that use it.

The first request starts it and waits; from then on a timer fetches the next value before the old one ends, with a
random part, so that many gateways do not ask at the same moment. There is one fetch at a time for all requests. If a
fetch fails, the last value serves until it expires, and the next attempt waits longer each time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

#: The longest that one fetch may take, in seconds.
MAX_FETCH_S: Final = 60.0
#: Between failed fetches, in seconds: from the first to the second, and at most.
FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0
#: A value is fetched again when this share of its life is over, less a random part of up to SPREAD.
EARLY: Final = 0.9
SPREAD: Final = 0.2
#: Between two values at least, in seconds.
SHORTEST_S: Final = 1.0
#: In seconds: a life is counted as a little shorter, for the clocks and for requests on their way.
MARGIN_S: Final = 5.0
#: Between a value and its renewal after a refusal at least, in seconds: whoever refuses all values costs no more.
RENEWAL_S: Final = 10.0
#: A timer of the loop takes no longer times.
_LONGEST_S: Final = 86400.0


class FetchError(Exception):
    """A credential cannot be fetched. The text is shown, and has no secret. `is_final`: the old value ends, too.
    `code`: the error code of RFC 6749 section 5.2, "" without one.
    """

    def __init__(self, message: str, *, is_final: bool = False, code: str = "") -> None:
        super().__init__(message)
        self.is_final = is_final
        self.code = code


@asynccontextmanager
async def fetching() -> AsyncIterator[None]:
    """A fetch, for MAX_FETCH_S at most. Raises FetchError alone; of other errors it has the type, no text."""
    try:
        async with asyncio.timeout(MAX_FETCH_S):
            yield
    except FetchError:
        raise
    except TimeoutError:
        raise FetchError(f"no answer within {MAX_FETCH_S:.0f} s") from None
    except Exception as error:  # the text may contain the fetched value
        raise FetchError(type(error).__name__) from None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A value, for how long it is valid (seconds; infinite: until replaced), and when to fetch again (0: before)."""

    value: object = field(repr=False)
    life_s: float = math.inf
    refresh_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Refresher:
    """Calls `fetch` when a value is needed, and `keep` with each new value, with None when the last one has expired.

    `fetch` returns Fetched or raises FetchError; whatever else it raises is told by its type alone. `keep` may raise
    ValueError for a value that cannot be used. `tell(error, left_s)` is called after each fetch: "" for success, and
    for how many seconds there is a value, 0 without one.
    """

    _fetch: Callable[[], Awaitable[Fetched]]
    _keep: Callable[[object | None], None]
    _tell: Callable[[str, float], None]
    _task: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _expiry: asyncio.TimerHandle | None = None
    _failures: int = 0
    _is_closed: bool = False
    _waiting: int = 0
    error: str = ""  # why the last fetch failed
    has_value: bool = False
    fetched_at: float = -math.inf  # the last time that a fetch began, in seconds of the loop's clock
    expires_at: float = math.inf  # of the value, in seconds of the loop's clock

    async def ready(self) -> None:
        """Wait until there is a value, or the fetch of now has failed. Starts a fetch unless one has just failed."""
        if self.has_value or self._is_closed:
            return
        if self._task is None and self._timer is None:
            self._start()
        await self._fetched()

    async def renew(self) -> None:
        """Fetch now, because the value was refused, and wait for it. The old value serves on if that fails."""
        if self._is_closed or self.fetched_at + RENEWAL_S > asyncio.get_running_loop().time():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._start()
        await self._fetched()

    async def _fetched(self) -> None:
        if self._task is not None:
            self._waiting += 1
            try:
                await asyncio.shield(self._task)
            finally:
                self._waiting -= 1

    @property
    def retry_s(self) -> int:
        """In how many whole seconds the next fetch begins, at least 1; for Retry-After."""
        if self._timer is None:
            return 1
        return max(1, math.ceil(self._timer.when() - asyncio.get_running_loop().time()))

    def close(self) -> None:
        """Stop: no timer and no further fetch. Requests under way keep the value, and the fetch that they wait for."""
        self._is_closed = True
        for handle in (self._timer, self._expiry, None if self._waiting else self._task):
            if handle is not None:
                handle.cancel()
        self._timer = self._expiry = None

    def _start(self) -> None:
        self._timer = None
        if self._task is None and not self._is_closed:
            self.fetched_at = asyncio.get_running_loop().time()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            async with fetching():
                self._take(await self._fetch())
        except FetchError as error:
            self._failed(str(error), is_final=error.is_final)
        finally:
            self._task = None

    def _take(self, fetched: Fetched) -> None:
        try:
            self._keep(fetched.value)
        except ValueError as error:
            raise FetchError(str(error)) from None
        if self._is_closed:
            self.has_value = True
            return
        loop = asyncio.get_running_loop()
        self._failures, self.error, self.has_value = 0, "", True
        life = fetched.life_s - min(MARGIN_S, fetched.life_s / 10) if fetched.life_s < math.inf else math.inf
        self.expires_at = loop.time() + life
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = loop.call_later(life, self._expire) if life < _LONGEST_S else None
        again = fetched.refresh_s or life * (EARLY - random.random() * SPREAD)  # noqa: S311 - it spreads load
        # A source whose values live for milliseconds is not asked without a pause.
        self._timer = loop.call_later(min(max(again, SHORTEST_S), _LONGEST_S), self._start)
        self._tell("", life)

    def _failed(self, error: str, *, is_final: bool = False) -> None:
        self.error = error
        if self._is_closed:
            return
        self._failures += 1
        wait = min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10))
        wait *= 1 - random.random() / 2  # noqa: S311
        self._timer = asyncio.get_running_loop().call_later(wait, self._start)
        if is_final or asyncio.get_running_loop().time() >= self.expires_at:  # a timer is for a day at most
            self._expire()
        left = self.expires_at - asyncio.get_running_loop().time() if self.has_value else 0.0
        self._tell(error, max(0.0, left))

    def _expire(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None
        if self.has_value:
            self.has_value, self.expires_at = False, math.inf
            self._keep(None)
