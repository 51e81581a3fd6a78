"""/live: the finished exchanges of all workers as server-sent events, each a line of the access log.

Workers keep lines only while they are asked for them, which happens while there are readers. A reader that is slow, or
asks for fewer events than there are, is told how many it has lost; nothing waits for it beyond a bound.

Source: HTML Living Standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from aiohttp import web

from egressproxy.admin.status import HEADERS, ApiError, bad_request
from egressproxy.errors import NotAnswered

MAX_READERS: Final = 8
#: Events in a second for one reader.
DEFAULT_EVENTS: Final = 200
MAX_EVENTS: Final = 1000
#: Bytes that may wait for one reader, beside what its socket holds.
MAX_WAITING: Final = 512 * 1024
#: How often workers are asked, how long nothing may be sent, and how often a reader's right is checked, in seconds.
ASK_S: Final = 0.25
COMMENT_S: Final = 15.0
CHECK_S: Final = 15.0
#: How long a reader may read nothing, in seconds.
UNREAD_S: Final = 30.0
#: The most lines that are read of one round of answers: some milliseconds of a thread.
MAX_READ: Final = 5000
#: Parameters that are compared with one field of a line.
_FIELDS: Final = ("namespace", "service_account", "reason", "route", "backend")


class LineSource(Protocol):
    """Who has the lines: `AdminState`."""

    async def ask_some(self, name: str, *arguments: object) -> Sequence[bytes]: ...


@dataclass(frozen=True, slots=True)
class LiveFilter:
    """The lines that a reader wants. `needles` are in every line that matches."""

    fields: tuple[tuple[str, str], ...] = ()
    host: str = ""
    status: str = ""
    is_denied: bool = False
    limit: int = DEFAULT_EVENTS
    needles: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> LiveFilter:
        """The filter of these parameters. Raises ValueError with a sentence."""
        given: dict[str, str] = {}
        for name, value in pairs:
            if name not in (*_FIELDS, "host", "status", "denied", "limit"):
                raise ValueError(
                    f"unknown parameter {name!r}; known are {', '.join(_FIELDS)}, host, status, denied, limit"
                )
            if name in given:
                raise ValueError(f"{name} is given twice")
            given[name] = value
        status = given.get("status", "")
        if status and not (len(status) == 3 and status[0] in "012345" and (status[1:] == "xx" or status.isdecimal())):
            raise ValueError(f"status {status!r} is neither a status such as 403 nor a class such as 4xx")
        limit = given.get("limit", str(DEFAULT_EVENTS))
        if not (limit.isdecimal() and limit.isascii() and 1 <= int(limit[:9]) <= MAX_EVENTS):
            raise ValueError(f"limit {limit!r} is no number from 1 to {MAX_EVENTS}")
        if given.get("denied", "0") not in ("0", "1"):
            raise ValueError("denied is 0 or 1")
        fields = tuple((name, given[name]) for name in _FIELDS if given.get(name))
        needles = tuple(f'"{name}":{json.dumps(value)}'.encode() for name, value in fields)
        host = given.get("host", "").lower()
        return cls(fields, host, status, given.get("denied") == "1", int(limit), needles)

    def may_match(self, line: bytes) -> bool:
        """Whether a line may match: a quick look."""
        return all(needle in line for needle in self.needles)

    def matches(self, values: Mapping[str, Any], denials: frozenset[str]) -> bool:
        """Whether the line with these values is wanted."""
        status = str(values.get("status", 0))
        return (
            all(values.get(name) == value for name, value in self.fields)
            and self.host in str(values.get("authority", "")).lower()
            and (not self.status or (status[0] == self.status[0] and self.status in (status, f"{status[0]}xx")))
            and (not self.is_denied or values.get("reason") in denials)
        )


class LiveReader:
    """One reader: what waits for it, and how many more events it may have now. Belongs to the event loop."""

    def __init__(self, wanted: LiveFilter) -> None:
        self.wanted = wanted
        self.has_more = asyncio.Event()
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._lost = 0
        self._room = float(wanted.limit)
        self._filled_at = monotonic()

    def room(self, now: float) -> int:
        """How many more events may come at this time."""
        limit = self.wanted.limit
        self._room = min(limit, self._room + limit * (now - self._filled_at))
        self._filled_at = now
        return int(self._room) if self._size < MAX_WAITING else 0

    def put(self, events: Iterable[bytes], lost: int) -> None:
        """Take these events; `lost` others are not among them."""
        self._lost += lost
        for event in events:
            self._room -= 1
            if self._size >= MAX_WAITING:
                self._lost += 1
                continue
            self._pieces.append(event)
            self._size += len(event)
        if self._pieces or self._lost:
            self.has_more.set()

    def take(self) -> bytes:
        """All that waits, with the number of lost lines behind it; b"" for nothing."""
        self.has_more.clear()
        if self._lost:
            self._pieces.append(b'event: lost\ndata: {"lost": %d}\n\n' % self._lost)
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._size = self._lost = 0
        return taken


@dataclass(slots=True)
class _Want:
    """What one reader gets of a round: `room` for more lines, `lines` that it gets, and how many are `lost`."""

    wanted: LiveFilter
    room: int
    lines: list[bytes] = field(default_factory=list)
    lost: int = 0


class LiveFeed:
    """The readers of /live, and the one task that asks for them."""

    def __init__(self, source: LineSource) -> None:
        self._source = source
        self._readers: dict[LiveReader, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._number = 0
        self._is_over = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def serve(
        self, request: web.BaseRequest, check: Callable[[web.BaseRequest], Awaitable[None]]
    ) -> web.StreamResponse:
        """The stream, until its reader leaves, `check` raises ApiError (its token has ended), or the gateway drains.

        Raises ApiError before it begins.
        """
        try:
            reader = LiveReader(LiveFilter.of(request.query.items()))
        except ValueError as error:
            raise bad_request(str(error)) from None
        if len(self._readers) >= MAX_READERS:
            raise ApiError(503, "ServiceUnavailable", f"/live has {MAX_READERS} readers already", retry_after_s=5)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._readers[reader] = None
        try:
            await response.prepare(request)
            if request.method != "HEAD":
                await self._begin()
                await response.write(b": live\n\n")
                with suppress(ApiError):
                    await self._pump(reader, response, lambda: check(request))
            await response.write_eof()
        except TimeoutError:  # the reader reads nothing
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:  # the reader has left
            pass
        finally:
            del self._readers[reader]
        return response

    def end(self) -> None:
        """End all streams."""
        self._is_over = True
        for reader in self._readers:
            reader.has_more.set()

    async def _pump(
        self, reader: LiveReader, response: web.StreamResponse, check: Callable[[], Awaitable[None]]
    ) -> None:
        checked_at = monotonic()
        while not self._is_over:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.has_more.wait(), COMMENT_S)
            if monotonic() - checked_at >= CHECK_S:
                await check()
                checked_at = monotonic()
            async with asyncio.timeout(UNREAD_S):
                await response.write(reader.take() or b": \n\n")

    async def _begin(self) -> None:
        """Have workers keep lines from here on."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_regularly())
            self._asking.add_done_callback(self._ended)
            with suppress(NotAnswered):
                await self._source.ask_some("live_lines")  # and forget those for readers before these

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._asking = None

    async def _ask_regularly(self) -> None:
        while self._readers:
            await asyncio.sleep(ASK_S)
            with suppress(NotAnswered):
                await self._share(await self._source.ask_some("live_lines"))

    async def _share(self, answers: Sequence[bytes]) -> None:
        now = monotonic()
        wants = {reader: _Want(reader.wanted, reader.room(now)) for reader in self._readers}
        await asyncio.to_thread(sift, answers, list(wants.values()))
        for reader, want in wants.items():
            reader.put([self._event(line) for line in want.lines], want.lost)

    def _event(self, line: bytes) -> bytes:
        self._number += 1
        return b"id: %d\nevent: exchange\ndata: %b\n\n" % (self._number, line)


def sift(answers: Sequence[bytes], wants: Sequence[_Want]) -> None:
    """Give each of `wants` its lines of the answers of workers (`LiveLines.take`). For a thread.

    A line is given only if it is JSON, which has no line ends: no text from outside can become another event.
    """
    denials = _denials() if any(want.wanted.is_denied for want in wants) else frozenset()
    left = MAX_READ
    for line in _lines(answers, wants):
        asking = [want for want in wants if want.wanted.may_match(line)]
        if not asking:
            continue
        if not left or not any(want.room for want in asking):
            for want in asking:
                want.lost += 1
            continue
        left -= 1
        try:
            values = json.loads(line)
        except ValueError:
            continue
        for want in asking:
            if not want.wanted.matches(values, denials):
                continue
            if want.room > 0:
                want.room -= 1
                want.lines.append(line)
            else:
                want.lost += 1


def _lines(answers: Sequence[bytes], wants: Sequence[_Want]) -> Iterator[bytes]:
    for answer in answers:
        lost, *lines = answer.split(b"\n")
        for want in wants:
            want.lost += int(lost)
        yield from filter(None, lines)


def _denials() -> frozenset[str]:
    from egressproxy.gateway.exchange.error_responses import DENIALS  # here: a supervisor does without

    return frozenset(reason.value for reason in DENIALS)
