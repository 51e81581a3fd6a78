"""/live: the finished exchanges of all workers as server-sent events, each a line of the access log.

Workers keep lines only while they are asked for them, which happens while there are readers. A reader that is slow, or
asks for fewer events than there are, is told how many it has lost; nothing waits for it beyond a bound.

Source: HTML Living Standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.admin_state import AdminState
from egressproxy.admin.status import HEADERS, ApiError
from egressproxy.admin.write_access import CHECK_S
from egressproxy.model.admin_requests import read_number, read_parameters

MAX_READERS: Final = 8
#: Events in a second for one reader.
DEFAULT_EVENTS: Final = 200
MAX_EVENTS: Final = 1000
#: Bytes that may wait for one reader, beside what its socket holds.
MAX_WAITING: Final = 512 * 1024
#: How often workers are asked, and how long nothing may be sent, in seconds.
ASK_S: Final = 0.25
COMMENT_S: Final = 15.0
#: How long a reader may read nothing, in seconds.
UNREAD_S: Final = 30.0
#: The most lines that are read of one round of answers: 5 to 20 ms of a thread.
MAX_READ: Final = 2000
#: Parameters that are compared with one field of a line, and all of them.
_FIELDS: Final = ("namespace", "service_account", "reason", "route", "backend")
_PARAMETERS: Final = (*_FIELDS, "host", "status", "denied", "limit")


@dataclass(frozen=True, slots=True)
class LiveFilter:
    """The lines that a reader wants."""

    fields: tuple[tuple[str, str], ...] = ()
    host: str = ""
    status: str = ""
    is_denied: bool = False
    limit: int = DEFAULT_EVENTS

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> LiveFilter:
        """The filter of these parameters. Raises ValueError with a sentence."""
        given = read_parameters(pairs, _PARAMETERS)
        status, denied = given.get("status", ""), given.get("denied", "0")
        if status and not (len(status) == 3 and status[0] in "012345" and (status[1:] == "xx" or status.isdecimal())):
            raise ValueError(f"status {status!r} is neither a status such as 403 nor a class such as 4xx")
        if denied not in ("0", "1"):
            raise ValueError("denied is 0 or 1")
        fields = tuple((name, given[name]) for name in _FIELDS if given.get(name))
        limit = read_number(given, "limit", DEFAULT_EVENTS, MAX_EVENTS)
        return cls(fields, given.get("host", "").lower(), status, denied == "1", limit)

    def matches(self, values: Mapping[str, Any], denials: frozenset[str]) -> bool:
        """Whether the line with these values is wanted."""
        status = str(values.get("status", 0))
        return (
            all(values.get(name) == value for name, value in self.fields)
            and self.host in str(values.get("authority", "")).lower()
            and (not self.status or self.status in (status, f"{status[:1]}xx"))
            and (not self.is_denied or values.get("reason") in denials)
        )


class LiveReader:
    """One reader: what waits for it, and how many more events it may have now. Belongs to the event loop."""

    def __init__(self, wanted: LiveFilter) -> None:
        self.wanted = wanted
        self.has_more = asyncio.Event()
        self._waiting = bytearray()
        self._lost = 0
        self._room = float(wanted.limit)
        self._filled_at = monotonic()

    def room(self, now: float) -> int:
        """How many more events may come at this time."""
        limit = self.wanted.limit
        self._room = min(limit, self._room + limit * (now - self._filled_at))
        self._filled_at = now
        return int(self._room)

    def put(self, events: Sequence[bytes], lost: int) -> None:
        """Take these events; `lost` others are not among them."""
        self._lost += lost
        self._room -= len(events)
        for event in events:
            if len(self._waiting) < MAX_WAITING:
                self._waiting += event
            else:
                self._lost += 1
        if self._waiting or self._lost:
            self.has_more.set()

    def take(self) -> bytes:
        """All that waits, with the number of lost lines behind it; b"" for nothing."""
        self.has_more.clear()
        if self._lost:
            self._waiting += b'event: lost\ndata: {"lost": %d}\n\n' % self._lost
        taken, self._waiting, self._lost = bytes(self._waiting), bytearray(), 0
        return taken


class LiveFeed:
    """The readers of /live, and the one task that asks for them."""

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self._readers: dict[LiveReader, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._number = 0
        self._is_over = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def serve(
        self, request: web.BaseRequest, wanted: LiveFilter, check: Callable[[], Awaitable[None]]
    ) -> web.StreamResponse:
        """The stream, until its reader leaves, `check` raises ApiError (its token has ended), or the gateway drains.

        Raises ApiError before it begins.
        """
        if len(self._readers) >= MAX_READERS:
            raise ApiError(503, "ServiceUnavailable", f"/live has {MAX_READERS} readers already", retry_after_s=5)
        reader = LiveReader(wanted)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._readers[reader] = None
        try:
            await response.prepare(request)
            if request.method != "HEAD":
                if self._asking is None or self._asking.done():
                    self._asking = asyncio.create_task(self._ask_regularly())
                    # From here on workers keep lines; those for readers before are forgotten.
                    await self._state.ask_some("live_lines")
                await response.write(b": live\n\n")
                with suppress(ApiError):
                    await self._pump(reader, response, check)
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

    async def _ask_regularly(self) -> None:
        while self._readers:
            await asyncio.sleep(ASK_S)
            answers, now = await self._state.ask_some("live_lines"), monotonic()
            readers = list(self._readers)
            wants = [(reader.wanted, reader.room(now)) for reader in readers]
            for reader, (lines, lost) in zip(readers, await asyncio.to_thread(sift, answers, wants), strict=True):
                reader.put([self._event(line) for line in lines], lost)

    def _event(self, line: bytes) -> bytes:
        self._number += 1
        return b"id: %d\nevent: exchange\ndata: %b\n\n" % (self._number, line)


def sift(answers: Sequence[bytes], wants: Sequence[tuple[LiveFilter, int]]) -> list[tuple[list[bytes], int]]:
    """The lines of the answers of workers (`LiveLines.take`) for each filter, at most so many, and how many are lost.
    For a thread.

    A line is given only if it is JSON, which has no line ends: no text from outside can become another event.
    """
    from egressproxy.gateway.exchange.error_responses import DENIALS  # here: a supervisor does without

    denials = frozenset(reason.value for reason in DENIALS)
    found: list[list[bytes]] = [[] for _ in wants]
    lost = [0] * len(wants)
    left, unread, places = MAX_READ, 0, sum(room for _, room in wants)
    for answer in answers:
        unknown, *lines = answer.split(b"\n")
        unread += int(unknown)
        for line in filter(None, lines):
            if not left or not places:
                unread += 1
                continue
            left -= 1
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                continue
            for number, (wanted, room) in enumerate(wants):
                if wanted.matches(values, denials):
                    if len(found[number]) < room:
                        found[number].append(line)
                        places -= 1
                    else:
                        lost[number] += 1
    return [(mine, of_them + unread) for mine, of_them in zip(found, lost, strict=True)]
