"""A load generator and the origin behind it, in a process of its own: `python -m tests.support.load`.

It prints `{"origin": PORT}`, reads a line `{"targets": [[address, port, prefix], …], "connections": N, "requests": N}`,
and sends GETs over kept-alive connections until that many are answered AND its standard input is closed. Then it prints
`{"answered": N, "lost": N, "reconnects": N, "problems": […]}`. Every request has a path of its own, which the origin
answers as the body: an answer that belongs to another request counts as lost, like one that is cut off or not 200.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
MAX_PROBLEMS = 20


@dataclass
class Tally:
    """What became of the requests; `is_enough` says when a connection sends no more."""

    wanted: int
    answered: int = 0
    sent: int = 0
    lost: int = 0
    reconnects: int = 0
    input_closed: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        return self.input_closed and self.answered >= self.wanted

    def lose(self, problem: str) -> None:
        self.lost += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


class Origin(asyncio.Protocol):
    """Answers every request with its own target as the body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            target = self._data.split(b" ", 2)[1]
            self._data = self._data[end + 4 :]
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))


class Client(asyncio.Protocol):
    """One kept-alive connection: a request, its answer, the next one. `on_end` is called when it is over."""

    def __init__(self, tally: Tally, prefix: str, on_end: Callable[[], None]) -> None:
        self._tally = tally
        self._prefix = prefix
        self._on_end = on_end
        self._path = b""  # of the request that waits for its answer
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[:end]
        length = _LENGTH.search(head)
        if length is None:
            self._fail(f"no Content-Length: {head[:200]!r}")
            return
        whole = end + 4 + int(length.group(1))
        if len(self._data) < whole:
            return
        body, rest = self._data[end + 4 : whole], self._data[whole:]
        if not head.startswith(b"HTTP/1.1 200 ") or body != self._path or rest:
            self._fail(f"{self._path!r} was answered by {self._data[:300]!r}")
            return
        self._data = self._path = b""
        self._tally.answered += 1
        if _CLOSE.search(head):
            self._tally.reconnects += 1
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if self._path:
            self._tally.lose(f"{self._path!r} got no whole answer: {error or 'closed'}, after {self._data[:100]!r}")
        self._on_end()

    def _send(self) -> None:
        if self._tally.is_enough:
            self._transport.close()
            return
        self._tally.sent += 1
        self._path = b"/%d" % self._tally.sent
        target = f"{self._prefix}{self._path.decode()}".encode()
        self._transport.write(b"GET %b HTTP/1.1\r\nHost: origin.egress.test\r\nAccept: */*\r\n\r\n" % target)

    def _fail(self, problem: str) -> None:
        self._tally.lose(problem)
        self._path = b""
        self._transport.abort()


async def keep_busy(tally: Tally, address: str, port: int, prefix: str) -> None:
    """One connection after the other until it is enough."""
    loop = asyncio.get_running_loop()
    while not tally.is_enough:
        ended = asyncio.Event()
        try:
            await loop.create_connection(lambda done=ended.set: Client(tally, prefix, done), address, port)
        except OSError as error:
            tally.lose(f"cannot connect to {address}:{port}: {error}")
            await asyncio.sleep(0.1)
            continue
        await ended.wait()


async def main() -> None:
    loop = asyncio.get_running_loop()
    origin = await loop.create_server(Origin, "127.0.0.1", 0)
    print(json.dumps({"origin": origin.sockets[0].getsockname()[1]}), flush=True)
    asked = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    tally = Tally(asked["requests"])

    async def wait_for_end_of_input() -> None:
        await loop.run_in_executor(None, sys.stdin.read)
        tally.input_closed = True

    targets = asked["targets"]
    busy = [keep_busy(tally, *targets[number % len(targets)]) for number in range(asked["connections"])]
    await asyncio.gather(wait_for_end_of_input(), *busy)
    report = {name: getattr(tally, name) for name in ("answered", "lost", "reconnects", "problems")}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
