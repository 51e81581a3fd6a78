"""RedisLink: one persistent connection to a Redis; commands of one turn of the loop go out in one write.

It connects at the first use, and reconnects with exponential backoff. A command without reply after `timeout_s` ends
the connection: a hanging Redis counts as unavailable. Must be used on the event loop.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from egressproxy.filters.calls import CallFailed, FilterCall

#: The first and the longest pause between attempts to connect, in seconds; pauses double, with 50 % jitter.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
#: The time limit of connecting, in seconds.
_CONNECT_S: Final = 2.0
#: The most commands without a reply; with more, the Redis is too slow.
MAX_WAITING: Final = 10_000
#: The most bytes of one reply: ours are far below.
MAX_REPLY: Final = 1024 * 1024
#: The start of an array of 10,000 entries or more: hiredis allocates all of them in advance.
_LONG_ARRAY: Final = re.compile(rb"[*%~>|][1-9]\d{4}")
_INCOMPLETE: Final = object()

#: The error codes of a Redis that cannot count -> the meaning.
_UNUSABLE: Final = {
    "MOVED": "it is one of several nodes of a Redis Cluster: name a Redis that has all keys",
    "CLUSTERDOWN": "it is a node of a Redis Cluster and does not serve all keys: name a Redis that has all keys",
    "READONLY": "it is a replica: name the primary",
    "NOPERM": "its user may not use what limits need: EVALSHA, EVAL, SCRIPT LOAD, TIME and the keys {egressproxy}:*",
    "NOAUTH": "it wants a password: name its Secret in secretRef",
    "WRONGPASS": "it does not know the password, or the user",
}


class RedisAway(Exception):
    """There is no reply. The text gives the reason, without secrets."""


class ReplyError(Exception):
    """An error reply. `code` is its first word: NOSCRIPT, WRONGPASS, LOADING."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


Reply = bytes | int | ReplyError | list["Reply"] | None
#: The types of RESP2. hiredis reads RESP3, too, whose push messages would shift the replies.
_KINDS: Final = frozenset((bytes, int, ReplyError, list, type(None)))


@dataclass(slots=True, eq=False, repr=False)
class RedisLink:
    """`dial` opens connections to the backend of the Redis. `greeting` are the first commands of a connection (AUTH),
    in one write; an error reply to one of these closes the connection.

    `on_state` is called with "" after connecting, and with the reason after a disconnect or a failed attempt.
    """

    _dial: FilterCall
    _greeting: Sequence[Sequence[bytes]]
    _timeout_s: float
    _on_state: Callable[[str], None]
    _connection: _Connection | None = None
    _task: asyncio.Task[None] | None = None
    _is_closed: bool = False
    _first: asyncio.Future[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_waiting(self) -> bool:
        return self._connection is not None and self._connection.is_waiting

    @property
    def is_beginning(self) -> bool:
        """Whether the first attempt to connect is in progress."""
        return self._first is not None and not self._first.done()

    def connect(self) -> None:
        """Begin to connect, and stay connected until `close`."""
        if self._task is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._first = loop.create_future()
            self._task = loop.create_task(self._stay_connected())

    async def first_outcome(self) -> None:
        """Wait for the result of the first attempt to connect."""
        if self._first is not None:
            await asyncio.shield(self._first)

    def send(self, words: Sequence[bytes]) -> asyncio.Future[Reply]:
        """Send a command. The future has the reply, which may be a ReplyError. Raises RedisAway, as the future does."""
        if self._connection is None:
            raise RedisAway("there is no connection")
        return self._connection.send(words)

    def lose(self, error: ReplyError) -> None:
        """Reconnect, after the Redis replied with this error."""
        if self._connection is not None:
            self._connection.end(_told(error))

    def close(self) -> None:
        self._is_closed = True
        self._begun()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._connection is not None:
            self._connection.end("closed")

    async def _stay_connected(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_closed:
            connection = _Connection(self._timeout_s)
            try:
                await self._open(connection)
                self._connection = connection
                pause_s = _FIRST_PAUSE_S
                self._begun()
                self._on_state("")
                await connection.lost
                why = connection.why
            except (RedisAway, CallFailed) as error:
                why = str(error)
            finally:
                self._connection = None
                connection.end("closed")
            self._begun()
            self._on_state(why)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 (a pause is no secret)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _begun(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    async def _open(self, connection: _Connection) -> None:
        await self._dial.open(connection, timeout_s=_CONNECT_S)
        for waiting in [connection.send(words) for words in self._greeting]:  # one round trip for all
            reply = await waiting
            if isinstance(reply, ReplyError):
                raise RedisAway(_told(reply))


def _told(error: ReplyError) -> str:
    what = _UNUSABLE.get(error.code)
    return f"it replies {error.code}" if what is None else f"{what} ({error.code})"


class ReplyReader:
    """Bytes to replies, read by hiredis and bounded here. Must not be fed again after an error."""

    __slots__ = ("_begun", "_pending", "_reader")

    def __init__(self) -> None:
        self._reader = hiredis.Reader(protocolError=ValueError, replyError=ReplyError, notEnoughData=_INCOMPLETE)
        self._pending = 0  # bytes since the last reply
        self._begun = b""  # the last bytes: the start of an array may be cut anywhere

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are complete with these bytes. Raises ValueError for invalid bytes."""
        seen = self._begun + data
        if _LONG_ARRAY.search(seen):
            raise ValueError("a reply has too many entries")
        self._begun = seen[-5:]
        self._pending += len(data)
        self._reader.feed(data)
        replies: list[Reply] = []
        while (reply := self._next()) is not _INCOMPLETE:
            if type(reply) not in _KINDS:
                raise ValueError("this is no reply of RESP2")
            replies.append(reply)
            self._pending = 0
        if self._pending > MAX_REPLY:
            raise ValueError("a reply is too long")
        return replies

    def _next(self) -> Any:
        try:
            return self._reader.gets()
        except TypeError:  # of hiredis, for a RESP3 map with list keys
            raise ValueError("this is no reply of RESP2") from None


class _Connection(asyncio.Protocol):
    """Commands and replies in order. `lost` is done at the end of the connection; `why` has the reason."""

    def __init__(self, timeout_s: float) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.why = "the connection was closed"
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = ReplyReader()
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._outgoing: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.lost.done():
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._reader.feed(data)
        except ValueError as error:
            self.end(str(error))
            return
        for reply in replies:
            if not self._waiting:
                self.end("it replies to no command")
                return
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.end("the connection was closed")

    # --- commands --------------------------------------------------------------------------------------------------
    def send(self, words: Sequence[bytes]) -> asyncio.Future[Reply]:
        if self._transport is None or self.lost.done():
            raise RedisAway(self.why)
        if len(self._waiting) >= MAX_WAITING:
            raise RedisAway("too many commands wait for a reply")
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.append((future, self._loop.time()))
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(hiredis.pack_command(tuple(words)))  # type: ignore[arg-type]  # its stub means one word
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look_at_clock)
        return future

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def end(self, why: str) -> None:
        """End the connection; pending replies raise RedisAway."""
        if self.lost.done():
            return
        self.why = why
        self.lost.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(RedisAway(why))
                future.exception()  # some futures have no waiter

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None:
            self._transport.write(b"".join(outgoing))

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._waiting:
            left_s = self._waiting[0][1] + self._timeout_s - self._loop.time()
            if left_s <= 0.0:
                self.end(f"no reply came within {self._timeout_s:g} s")
            else:
                self._timer = self._loop.call_later(left_s, self._look_at_clock)
